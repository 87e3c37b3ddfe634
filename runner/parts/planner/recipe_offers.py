"""Offers: changes to a recipe that make it fit, faster or cheaper. Each is tried: `check` must pass
it, and it must fit."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from pathlib import Path

from runner.catalog import Gpu
from runner.check.validate import override, valid
from runner.parts.planner.forecast import MOST_TRIED, Changes, Forecast, Loss, splits, stated
from runner.parts.planner.formulas import Lines
from runner.parts.planner.machine_counts import fewer, training_seconds, with_machines
from runner.parts.planner.memory import cards
from runner.parts.planner.planned import ENOUGH, Planned, gpu_memory, too_short
from runner.parts.planner.workload import TABLES, Workload
from runner.recipe import units
from runner.recipe.reading import written
from runner.recipe.recipe import Override
from runner.tools.problem import Problem, Stop
from runner.tools.text import template

MOST, MOST_OF_A_KIND = 5, 2
# What makes an offer worth its change.
WORTH: Mapping[str, float] = TABLES["worth"]
# How many cards and counts of machines are tried, and how often a change is repaired.
TRIES, ROUNDS = 4, 8
# Up to this many times as long is the same time.
ALIKE = 1.1
# With more epochs a model memorises its rows.
MOST_EPOCHS = 10
# The first letters of a curriculum's stages, one sequence length each.
CURRICULUM = "pretrain-"


class OfferScope(IntEnum):
    """What a change costs its owner; the least comes first."""

    LINES = 0
    LIMITS = 1
    MACHINES = 2


# How often a stage evaluates and saves.
_every = attrgetter(
    "workload.evaluation_steps", "workload.engine_save_steps", "workload.save_steps"
)


@dataclass(frozen=True)
class Offer:
    """A change that was tried. before, after: the plan without it and with it; changes: every line
    that changes, also lines that depend on others; notes: the notes of `check` after the change."""

    before: Planned
    after: Planned
    changes: Sequence[Override]
    notes: Sequence[Problem]

    @cached_property
    def losses(self) -> list[tuple[Loss, str]]:
        """What all stages learn less or differently, in words."""
        losses = template(
            Path(__file__).with_name("losses.txt.jinja"),
            units=units,
            isclose=math.isclose,
            every=_every,
        )
        text = losses.render(
            stages=list(zip(self.before.forecasts, self.after.forecasts, strict=False))
        )
        losses_with_sentences = []
        for line in text.splitlines():
            loss, _, sentence = line.partition(" ")
            losses_with_sentences.append((Loss[loss], sentence))
        return losses_with_sentences

    @property
    def loss(self) -> Loss:
        return max((loss for loss, _ in self.losses), default=Loss.NOTHING)

    @property
    def loses(self) -> list[str]:
        """What the stages learn less or differently, in words."""
        return list(dict.fromkeys(sentence for _, sentence in self.losses))

    @property
    def enough_steps(self) -> bool:
        """Whether a stage made too few steps before, and none does after."""
        return bool(too_short(self.before.forecasts)) and not too_short(self.after.forecasts)

    @property
    def saves_less(self) -> bool:
        return all(
            change.setting.endswith((".eval_steps", ".save_steps")) for change in self.changes
        )

    @property
    def fewer_machines(self) -> bool:
        before = self.before.forecasts[0].stage.machines.nodes
        after = self.after.forecasts[0].stage.machines.nodes
        return after < before

    @property
    def changes_card(self) -> bool:
        return any(change.setting == "machines.gpu" for change in self.changes)

    @property
    def needs_dearer_card(self) -> bool:
        """Whether its card costs more per hour. The catalog has no prices, but larger and faster
        cards cost more."""
        old = self.before.forecasts[0].gpu
        new = self.after.forecasts[0].gpu
        return old is not None and new is not None and _is_dearer(new, old)

    @property
    def scope(self) -> OfferScope:
        sections = {change.setting.partition(".")[0] for change in self.changes}
        if "machines" in sections:
            return OfferScope.MACHINES
        if sections & {"limits", "openshift"}:
            return OfferScope.LIMITS
        return OfferScope.LINES

    @property
    def lines(self) -> list[str]:
        """The changed lines as a recipe has them, without lines that depend on others."""
        written_changes = []
        for change in self.changes:
            if not change.why:
                written_changes.append(f"{change.setting}: {written(change.after)}")
        return written_changes

    @property
    def cost(self) -> float | None:
        """The cost after the change; None without a price, or with another card's."""
        if self.changes_card:
            return None
        return self.after.together.cost

    @property
    def gpu_memory(self) -> int:
        """Bytes of each GPU in the stage that needs most."""
        return max(forecast.memory.total for forecast in self.after.forecasts)


# The search: which changes become offers, and in which order.


def of(planned: Planned) -> list[Offer]:
    """The best offers, the least loss first: they fix a plan's problems, or gain time or cost and
    lose nothing."""
    cards = [forecast.gpu for forecast in planned.forecasts]
    if not cards or None in cards:
        return []
    offers = _without_inferior(_tried_ways(planned))
    # Enough steps come first where a recipe lacks them, then the least loss.
    lacking = bool(too_short(planned.forecasts))
    offers.sort(
        key=lambda offer: (
            lacking and not offer.enough_steps,
            offer.loss,
            offer.scope,
            offer.after.seconds or 0,
        )
    )
    return _first_of_each_kind(offers)


def _tried_ways(planned: Planned) -> list[Offer]:
    """The first change of each group that fixes the plan's problems, or is worth it without any."""
    offers: list[Offer] = []
    done: set[str] = set()
    for group, changes in _ways(planned):
        if group in done:
            continue
        if planned.problems:
            offer = _settled(planned, changes)
        else:
            offer = _tried(planned, changes)
        if offer is None or offer.after.problems or not offer.changes:
            continue
        if planned.problems or offer.enough_steps or _worth(offer):
            done.add(group)
            # Two candidates may end as the same change.
            if all(offer.lines != earlier.lines for earlier in offers):
                offers.append(offer)
    return offers


def _without_inferior(offers: Sequence[Offer]) -> list[Offer]:
    """The offers beside which no other is better."""
    needed = []
    for offer in offers:
        if not any(_is_needless(offer, cheaper) for cheaper in offers):
            needed.append(offer)
    superior = []
    for offer in needed:
        if offer.enough_steps or not any(_far_better(rival, offer) for rival in needed):
            superior.append(offer)
    return superior


def _first_of_each_kind(offers: Sequence[Offer]) -> list[Offer]:
    """At most MOST offers, and of each kind MOST_OF_A_KIND."""
    counts: Counter[tuple[Loss, str | OfferScope]] = Counter()
    chosen = []
    for offer in offers:
        loss_and_place: tuple[Loss, str | OfferScope] = (offer.loss, offer.scope)
        if offer.scope == OfferScope.MACHINES:
            loss_and_place = (offer.loss, offer.changes[0].setting)
        counts[loss_and_place] += 1
        if counts[loss_and_place] <= MOST_OF_A_KIND:
            chosen.append(offer)
    return chosen[:MOST]


def more_steps(planned: Planned) -> dict[str, str]:
    """By the name of each stage with too few steps, a sentence with the first settings that make
    enough in all of them."""
    short = too_short(planned.forecasts)
    for changes in _longer(planned):
        offer = _tried(planned, changes, look=False)  # none of them concerns rows
        if offer and offer.enough_steps and offer.after.fits is not False:
            after = {stage.stage.name: stage for stage in offer.after.forecasts}
            remedies = {}
            for stage in short:
                remedies[stage.stage.name] = _remedy(stage, after[stage.stage.name], offer)
            return remedies
    return {}


def _remedy(before: Forecast, after: Forecast, offer: Offer) -> str:
    """What an offer makes of a stage with too few steps, in a sentence."""
    lines = ", ".join(f"`{line}`" for line in offer.lines)
    duration = ""
    if before.time and after.time:
        slower = after.time.total_seconds / before.time.total_seconds
        if slower < ALIKE:
            duration = " in the same time"
        else:
            duration = f" in {units.duration(after.time.total_seconds)}"
    return f"Write {lines}, for {after.steps} steps{duration}."


def _far_better(better: Offer, offer: Offer) -> bool:
    """Whether the first offer asks for no more than the second and is much faster or cheaper."""
    if better.loss > offer.loss or better.scope > offer.scope:
        return False
    fewer_seconds = better.after.seconds
    seconds = offer.after.seconds
    if fewer_seconds is None or seconds is None:
        return False
    fewer_hours = better.after.together.gpu_hours
    hours = offer.after.together.gpu_hours
    if WORTH["far"] * fewer_seconds < seconds and fewer_hours <= hours:
        return True
    return WORTH["far_dearer"] * fewer_hours < hours and fewer_seconds <= WORTH["far"] * seconds


def _is_dearer(card: Gpu, cheaper: Gpu) -> bool:
    rate = max(card.bf16_tflops, card.fp16_tflops)
    other_rate = max(cheaper.bf16_tflops, cheaper.fp16_tflops)
    return card.memory_gib > cheaper.memory_gib or rate > other_rate


def _is_needless(offer: Offer, cheaper: Offer) -> bool:
    """Whether an offer of a dearer card saves too little beside one of a cheaper card."""
    card = offer.after.forecasts[0].gpu
    cheaper_card = cheaper.after.forecasts[0].gpu
    if not (offer.changes_card and cheaper.changes_card and card and cheaper_card):
        return False
    if not _is_dearer(card, cheaper_card) or cheaper.loss > offer.loss:
        return False
    return not _saves_enough(offer.after.seconds, cheaper.after.seconds)


def _saves_enough(seconds: float | None, usual: float | None) -> bool:
    """Whether a dearer card saves enough time to be worth it."""
    if seconds is None or usual is None:
        return False
    if usual - seconds < WORTH["dearer_saves"]:
        return False
    return seconds <= WORTH["dearer"] * usual


def _worth(offer: Offer) -> bool:
    """Whether an optional offer gains something and loses nothing but checkpoints."""
    before = offer.before
    after = offer.after
    if offer.loss and not offer.saves_less:
        return False
    if after.seconds is None or before.seconds is None:
        return False
    messages_before = {note.message for note in before.notes}
    if any(note.message not in messages_before for note in after.notes):
        return False
    # An optional offer must fit in the whole likely range, with rows of full length.
    if _cramped(after):
        return False
    if _cramped(before) and offer.scope == OfferScope.LINES:
        return True
    if offer.needs_dearer_card and not _saves_enough(after.seconds, before.seconds):
        return False
    time = after.seconds / before.seconds
    hours = after.together.gpu_hours / before.together.gpu_hours
    faster = time <= WORTH["least"] and hours <= WORTH["most"]
    cheaper = hours <= WORTH["least"]
    return faster or (cheaper and offer.scope == OfferScope.MACHINES)


def _cramped(planned: Planned) -> bool:
    """Whether rows of full length may not fit a card."""
    for stage in planned.forecasts:
        likely_most = stage.full.memory_range[1]
        if likely_most > (stage.usable or 0):
            return True
    return False


# The judge: tries a change with `check` and the plan.


def _tried(planned: Planned, changes: Changes, look: bool = True) -> Offer | None:
    """The change with its plan; None if it makes the recipe invalid. look: whether `check` reads
    the recipe's files."""
    try:
        wished = [Override(name, None, value, "the offer") for name, value in changes.items()]
        document, changed = override(planned.recipe.document, wished)
        recipe, notes = valid(document, look)
        return Offer(planned, Planned.of(recipe, planned.price, planned.rows), changed, notes)
    except Stop:
        return None


def _settled(planned: Planned, changes: Changes) -> Offer | None:
    """The change with those that it needs, so that all stages fit and the recipe's limits hold.
    Limits are raised only if nothing else changes, or where a stage does not fit its card; else a
    change that breaks one is dropped."""
    elsewhere = any(name.startswith("machines.") for name in changes)
    for _ in range(ROUNDS):
        offer = _tried(planned, changes)
        if offer is None:
            return None
        problems = (*offer.after.problems, *offer.after.notes, *offer.notes)
        mending = dict(problem.mends for problem in problems if problem.mends)
        mends_cluster = any(name.startswith("openshift.") for name in mending)
        if not offer.after.problems and not mends_cluster:
            return offer
        tight = _tight(offer.after)
        if tight and changes and not elsewhere:
            stage, budget = tight[0]
            more = alike_first(stage.offers(offer.after.recipe, budget), changes)
            if more:
                changes = {**changes, **more}
                continue
        if not mending:
            return None
        raises_limit = any(name.startswith("limits.") for name in mending)
        if raises_limit and changes and planned.fits:
            return None
        changes = {**changes, **mending}
    return None


def alike_first(offered: Sequence[Changes], changes: Changes) -> Changes | None:
    """The first of these that changes no line twice; best one of the kind that other stages have
    already."""
    changed_kinds = _kinds(changes)
    compatible = [candidate for candidate in offered if not candidate.keys() & changes.keys()]
    for candidate in compatible:
        if _kinds(candidate) <= changed_kinds:
            return candidate
    return compatible[0] if compatible else None


def _kinds(changes: Changes) -> set[str]:
    """The changed settings, without their sections."""
    return {name.rpartition(".")[2] for name in changes}


def _budget(planned: Planned, stage: Forecast) -> float:
    """Bytes of each GPU for a stage: the card's, or the recipe's limit where that is lower."""
    return min(stage.usable or 0, gpu_memory(planned.recipe) or math.inf)


def _tight(planned: Planned) -> list[tuple[Forecast, float]]:
    """The stages that need more than their budget, with that budget in bytes, the tightest
    first."""
    tight = []
    for stage in planned.forecasts:
        budget = _budget(planned, stage)
        if stage.memory.total > budget:
            tight.append((stage, budget))
    return sorted(tight, key=lambda stage_budget: stage_budget[1] / stage_budget[0].memory.total)


# The candidates.


def _ways(planned: Planned) -> Iterator[tuple[str, Changes]]:
    """Changes to try, each with the name of its group; one success in a group is enough."""
    tight = _tight(planned)
    if not planned.problems:
        yield from _better_suited(planned)
    elif planned.fits:
        yield "limits", {}
    if tight:
        stage, budget = tight[0]
        for changes in stage.offers(planned.recipe, budget):
            yield str(sorted(changes)), changes
    elif not planned.problems or _breaks_pace(planned):
        yield from _faster(planned)
        for changes in _fewer_steps(planned):
            yield "fewer steps", changes
    else:
        return
    if not (tight and planned.fits):
        yield from _other_machines(planned, bool(tight))


def _better_suited(planned: Planned) -> Iterator[tuple[str, Changes]]:
    """For a plan without problems: rows of the length that the data has, and enough steps."""
    if _cramped(planned):
        for stage in planned.forecasts:
            setting = Lines(planned.recipe, stage.stage).find("sequence_len")
            if setting and stage.shorter_rows:
                yield "shorter rows", {setting: stage.shorter_rows}
    for changes in _longer(planned):
        yield str(sorted(changes)), changes


def _breaks_pace(planned: Planned) -> bool:
    """Whether a limit of time, cost or speed does not hold."""
    broken = {problem.mends[0] for problem in planned.problems if problem.mends}
    return not broken.isdisjoint({"limits.time", "limits.cost", "limits.samples_per_second"})


def _other_machines(planned: Planned, tight: bool) -> Iterator[tuple[str, Changes]]:
    nodes = planned.forecasts[0].stage.machines.nodes
    for count in range(1, TRIES):
        yield "more machines", _on(planned, nodes * 2**count)
    if not tight:
        for count in _fewer_machines(planned):
            yield "fewer machines", _on(planned, count)
    yield from _cards(planned, tight)


def _longer(planned: Planned) -> Iterator[Changes]:
    """Settings for about ENOUGH steps in every stage with too few: fewer rows in a step, and then
    more epochs. If no other stage needs the GPUs, also on a single one."""
    short = too_short(planned.forecasts)
    if not short:
        return
    yield _longer_stages(planned, short, alone=False)
    if short == planned.forecasts and short[0].workload.machines.world_size > 1:
        single = {"machines.nodes": 1, "machines.gpus_per_node": 1}
        yield {**single, **_longer_stages(planned, short, alone=True)}


def _longer_stages(planned: Planned, short: Sequence[Forecast], alone: bool) -> Changes:
    """The lines of these stages for about ENOUGH steps, with as many rows in each as that allows.
    alone: on one GPU."""
    changes: dict[str, float] = {}
    for stage in short:
        work = stage.workload
        lines = Lines(planned.recipe, stage.stage)
        all_rows = (stage.steps or 0) * work.effective_batch_size / work.epochs
        rows = min(all_rows, work.rows or all_rows)
        replicas = 1 if alone else work.replicas
        wanted = int(rows * work.epochs / ENOUGH / replicas)
        micro = max(work.fewest_rows, min(work.micro_batch_size, wanted))
        accumulation = max(1, min(work.accumulation, wanted // micro))
        changes |= lines.batch(micro, accumulation)
        epochs = min(MOST_EPOCHS, math.ceil(ENOUGH * micro * replicas / rows))
        if epochs > work.epochs:
            changes[f"{lines.home}.epochs"] = epochs
    return changes


def _longest(planned: Planned) -> Forecast:
    def seconds(stage: Forecast) -> float:
        if stage.time:
            return stage.time.total_seconds
        return 0

    return max(planned.forecasts, key=seconds)


def _fewer_steps(planned: Planned) -> Iterator[Changes]:
    """The settings with fewer steps of the longest stage that may meet the limits of time and cost,
    the most steps first; the stages of a curriculum share theirs."""
    most = _share_of_steps(planned)
    if not 0 < most < 1:
        return
    longest = _longest(planned)
    home = Lines(planned.recipe, longest.stage).home
    curriculum = longest.stage.name.startswith(CURRICULUM)
    shorter = [longest]
    if curriculum:
        shorter = [stage for stage in planned.forecasts if stage.stage.name.startswith(CURRICULUM)]
    steps = sum(stage.steps or 0 for stage in shorter)
    for spared in (1.0, 0.98, 0.95, 0.9, 0.8):
        share = most * spared
        fewer = int(steps * share)
        if not fewer:
            continue
        if not longest.workload.max_steps:
            hundredths = math.floor(longest.workload.epochs * share * 100)
            yield {f"{home}.epochs": hundredths / 100}
        elif curriculum:
            yield {f"{home}.steps": fewer}
        else:
            yield {"advanced.axolotl.max_steps": fewer}


def _share_of_steps(planned: Planned) -> float:
    """The share of the steps for which the limits of time and cost leave time. Evaluation and
    saving shrink with the steps, but starting does not."""
    limit = stated(planned.recipe)
    cost = planned.together.cost
    times = [stage.time for stage in planned.forecasts if stage.time]
    total = sum(time.total_seconds for time in times)
    start = sum(time.overhead_seconds - time.checkpoints.seconds for time in times)
    allowed = []
    if limit.get("time"):
        allowed.append(units.seconds(limit["time"]))
    if limit.get("cost") is not None and cost:
        allowed.append(limit["cost"] / cost * total)
    if total <= start or not allowed:
        return 1.0
    return float((min(allowed) - start) / (total - start))


def _faster(planned: Planned) -> Iterator[tuple[str, Changes]]:
    """Changes that may make the longest stage faster: larger batches, no padding, no recomputation,
    fused code; and fewer checkpoints of any stage."""
    stage = _longest(planned)
    lines = Lines(planned.recipe, stage.stage)
    work = stage.workload
    larger = _larger_batch(planned, stage)
    if larger:
        yield "larger batch", lines.batch(*larger)
    yield from _fewer_checkpoints(planned)
    values = {
        "packing": "auto",
        "kernels": "auto",
        "cross_entropy": "auto",
        "gradient_checkpointing": False,
    }
    for name, value in values.items():
        setting = lines.find(name)
        if setting:
            yield setting, {setting: value}
    if isinstance(work, Workload) and not work.packing and not work.joined:
        yield "packing", {"model.attention": "flash_attention_2"}
        setting = lines.find("packing")
        if planned.problems and setting:
            yield "packing", {setting: "pack"}


def _larger_batch(planned: Planned, stage: Forecast) -> tuple[int, int] | None:
    """The fastest of the larger micro batches that fit, with its accumulation."""
    room = _budget(planned, stage)
    if not planned.problems:
        stage = stage.full
    likely = stage.memory_range[1] / stage.memory.total
    sizes = []
    for rows, accumulation in splits(stage.workload, smaller=False):
        larger = replace(stage, workload=stage.workload.with_rows(rows, accumulation))
        if likely * larger.memory.total > room:
            break
        if larger.time:
            sizes.append((larger.time.total_seconds, rows, accumulation))
    if not sizes:
        return None
    _, rows, accumulation = min(sizes)
    return rows, accumulation


def _fewer_checkpoints(planned: Planned) -> Iterator[tuple[str, Changes]]:
    """Saving less often, in the stage whose checkpoints take most, if that is too much of its time:
    steps between two checkpoints, between two evaluations, and both."""
    timed = [(forecast, forecast.time) for forecast in planned.forecasts if forecast.time]
    if not timed:
        return
    saving, time = max(timed, key=lambda timed_stage: timed_stage[1].checkpoints.seconds)
    if time.checkpoints.seconds <= WORTH["saving"] * time.total_seconds:
        return
    count = int(WORTH["saved"] * time.training_seconds / time.checkpoints.writing)
    interval = math.ceil(time.steps / max(1, count))
    home = Lines(planned.recipe, saving.stage).home
    for names in (("save_steps",), ("eval_steps",), ("eval_steps", "save_steps")):
        yield "fewer checkpoints", {f"{home}.{name}": interval for name in names}


def _on(planned: Planned, nodes: int) -> Changes:
    """The settings for another number of machines, with the same rows in each step where
    possible."""
    changes: dict[str, float] = {"machines.nodes": nodes}
    for stage in planned.forecasts:
        work = stage.workload
        lines = Lines(planned.recipe, stage.stage)
        group = work.machines.world_size // work.replicas
        replicas = nodes * work.machines.gpus_per_node // group or 1
        rows, remainder = divmod(work.effective_batch_size, replicas)
        if remainder or work.machines.uneven:
            continue
        most = min(work.micro_batch_size, MOST_TRIED)
        at_once = max(size for size in range(1, most + 1) if rows % size == 0)
        changes |= lines.batch(at_once, rows // at_once)
        train = lines.recipe.train
        if train.get("learning_rate_scaling") == "linear" and work.replicas != replicas:
            rate = work.learning_rate / replicas
            changes[f"{lines.home}.learning_rate"] = float(f"{rate:.12g}")
    return changes


def _fewer_machines(planned: Planned) -> list[int]:
    """Smaller counts of machines, the fastest by formulas first."""
    counts = fewer(planned.forecasts[0].stage.machines.nodes)
    seconds = {}
    for count in counts:
        forecasts = [with_machines(stage, count) for stage in planned.forecasts]
        seconds[count] = training_seconds(forecasts) or math.inf
    return sorted(counts, key=lambda count: seconds[count])


def _cards(planned: Planned, tight: bool) -> Iterator[tuple[str, Changes]]:
    """Cards of the catalog with enough memory: the smallest that is not slower, where the present
    one has too little; else the slowest that meets a limit of time or is clearly faster, and the
    fastest."""
    if planned.problems:
        need = max(stage.memory.total for stage in planned.forecasts)
    else:
        need = max(stage.full.memory.total for stage in planned.forecasts)
    workloads = [stage.workload for stage in planned.forecasts]
    present_name = planned.forecasts[0].stage.machines.gpu
    smallest = [card for card in cards(need, workloads) if card.name != present_name]
    seconds = {card.name: _seconds(planned, card) for card in smallest}
    fastest = sorted(smallest, key=lambda card: seconds[card.name])
    present = planned.forecasts[0].gpu
    if present and planned.seconds:
        now = _seconds(planned, present)
    else:
        now = math.inf
    if tight:
        not_slower = [card for card in smallest if seconds[card.name] <= now]
        for card in (not_slower or smallest)[:TRIES]:
            yield "card", {"machines.gpu": card.name}
        return
    limit = stated(planned.recipe).get("time")
    if planned.problems and limit:
        enough = units.seconds(limit)
    else:
        enough = now * WORTH["dearer"]
    fast = [card for card in reversed(fastest) if seconds[card.name] <= enough]
    for card in fast[:TRIES]:
        yield "card", {"machines.gpu": card.name}
    for card in fastest[:1]:
        yield "fastest card", {"machines.gpu": card.name}


def _seconds(planned: Planned, card: Gpu) -> float:
    """Time of all stages on another card, before the recipe is translated for it."""
    seconds: float = 0
    for stage in planned.forecasts:
        machines = replace(stage.workload.machines, gpu=card.name)
        time = stage.changed(machines=machines).time_on(card)
        if time:
            seconds += time.total_seconds
    return seconds
