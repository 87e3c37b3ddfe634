"""`recipe plan`: what a recipe needs, before it costs anything; `recipe gpus`: the same on each GPU
of the catalog."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from runner import catalog, parts
from runner.catalog.hardware import NO_GPU
from runner.check.validate import changed, load
from runner.commands import options
from runner.commands.options import command, end, open_recipe, print_notes, say, table
from runner.parts.edits import copying
from runner.parts.plan_view import views
from runner.parts.planner import (
    calibration,
    constants,
    forecast,
    processor_offers,
    recipe_offers,
)
from runner.parts.planner.planned import MORE_STEPS_OFFERED, Planned
from runner.recipe import overrides as changing
from runner.recipe.recipe import Override, Recipe
from runner.run import this_machine
from runner.run.run_folder import folder
from runner.scenarios import place, translate
from runner.tools.files import write_text
from runner.tools.problem import Stop, errors_of, worded
from runner.tools.text import json_text

MOST_MACHINES = 1024  # as in a recipe


@command
def plan(
    path: str,
    sets: tuple[str, ...],
    style: str,
    in_parts: bool,
    exact: bool,
    price: float | None,
    counts: str | None,
    rows: int | None,
    taken: int | None,
    picture: Path | None,
    serves: bool,
    runs: tuple[str, ...],
) -> int:
    """Estimate whether a recipe fits, how long it takes and what it costs, and suggest changes.

    If you have trained on such a card before, the plan uses the speed and memory of those runs. A
    run saves them on its machine. For a run that you fetched from a cluster, use `--learn`."""
    if price is not None and not math.isfinite(price):
        raise Stop(f"`--price {price}` is not a price.", "For example: --price 2.50", code=2)
    if taken and (sets or style == "json"):
        other = "--format json"
        hint = "`--apply` prints a difference, not JSON. Leave out one of the two."
        if sets:
            other = "--set"
            hint = "Write the changes into the recipe first, or leave out `--set`."
        raise Stop(
            f"`--apply` writes into the recipe as it is, so it excludes `{other}`.", hint, code=2
        )
    if picture and picture.suffix.lower() != ".svg":
        raise Stop(*worded("plan_view.not-svg", picture=picture), code=2)
    nodes = _counts(counts)
    if style == "text":
        recipe = open_recipe(path, sets)[0]
    else:  # JSON has standard output for itself.
        recipe, _, aside = load(path, changing.from_options(sets))
        print_notes(aside)
    others: dict[str, object]
    if recipe.machines.gpu == NO_GPU and not serves:
        others = {
            "--chart": picture,
            "--exact": exact,
            "--machines": counts,
            "--details": in_parts,
        }
        unfit = [name for name, given in others.items() if given]
        if unfit:
            raise Stop(
                f"`{unfit[0]}` is about GPUs, but the recipe trains on the CPU (`gpu: none`).",
                f"Leave out `{unfit[0]}`, or name a GPU: `--set machines.gpu=GPU`.",
            )
        return _on_processor(recipe, path, style, taken)
    if serves:
        others = {"--apply": taken, "--chart": picture, "--exact": exact, "--machines": counts}
        unfit = [name for name, given in others.items() if given]
        if unfit:
            raise Stop(*worded("plan_view.server-or-training", unfit=unfit), code=2)
        served: int = parts.hook("plan_server")(
            options.with_section(recipe, "serve", "--serve"), style == "json"
        )
        return served
    if runs:
        calibration.learn(recipe, runs)
    click.get_current_context().with_resource(constants.taking(calibration.learned()))
    try:
        planned = Planned.of(recipe, price, rows)
    except catalog.UnknownArchitecture as error:
        if not exact or taken or picture:
            raise Stop(forecast.unknown_architecture(recipe, error)) from None
        made = translate(recipe, place(recipe))
        forecasts = forecast.of(recipe, made, price, rows, any_architecture=True)
        code: int = parts.hook("plan_by_trace")(recipe, made, forecasts, style == "json")
        return code
    found = recipe_offers.of(planned)
    if taken:
        return _apply(recipe, found, taken)
    # Only JSON shows operations.
    traced = {}
    if exact:
        trace = parts.hook("trace")
        traced = {
            stage.stage.name: trace(stage.workload, style == "json") for stage in planned.forecasts
        }
    if picture:
        try:
            write_text(picture, views.svg(planned))
        except OSError as error:
            raise Stop(*worded("plan_view.chart-not-written", file=picture, error=error)) from None
    if style == "json":
        say(views.as_json(planned, found, nodes, traced))
        if errors_of(planned.problems):
            return 1
        return 0
    views.answer(planned, found)
    if in_parts:
        views.details(planned, nodes, traced)
    else:
        views.stages(planned)
        views.exact(Console(width=views.WIDTH), planned.forecasts, traced)
    if nodes:
        views.machines(planned, nodes)
    views.offered(found)
    for problem in (*planned.problems, *planned.notes):
        # The offers are printed above, or there are none.
        if found:
            said = ""
        else:
            said = (
                "No change that was tried makes the recipe fit. Name a larger GPU, or ask for less."
            )
        hint = problem.hint.replace(forecast.OFFERED, said)
        if found:
            hint = hint.replace(MORE_STEPS_OFFERED, "")
        say(f"\n{replace(problem, hint=hint.strip())}")
    if picture:
        say(f"\n{picture}: memory over a step, and time by stage")
    wrong = errors_of(planned.problems)
    if planned.problems:
        then: tuple[str, ...]
        if found and not sets:
            then = ("plan", path, "--apply", "1")
        else:
            then = ("plan", path, "--details")
        warned = "The recipe can run, but the plan has notes on what may go wrong."
        end("The recipe does not fit." if wrong else warned, *then)
    elif any(stage.full.fits is False for stage in planned.forecasts):
        end("The recipe fits if no row is longer than expected.", "prepare", path)
    else:
        end("The recipe fits, as far as this machine can tell.", "rehearse", path)
    if wrong:
        return 1
    return 0


def _on_processor(recipe: Recipe, path: str, style: str, number: int | None) -> int:
    """The plan of a recipe with `gpu: none`, by the figures that `recipe run` prints. If this
    machine's main memory is too small: changes that fit, of which it writes number `number`."""
    run = folder(recipe.name, "run")
    local = this_machine.processor_run(recipe, run)
    stages = list(local.predictions.values())
    too_large = any(stage.too_large for stage in stages)
    if style == "json":
        say(json_text(stages))
        if too_large:
            return 1
        return 0
    click.get_current_context().with_resource(constants.taking(calibration.learned()))
    offers = processor_offers.of(recipe, local, run) if too_large else []
    if number:
        return _apply(recipe, offers, number)
    for sentence in (*map(this_machine.needs, stages), this_machine.download(local)):
        if sentence:
            say(sentence)
    if not any(map(this_machine.needs, stages)):
        say("How long it takes on this machine's CPU is unknown.")
    views.offered(offers, "offer_here")
    lacks = next(filter(None, map(this_machine.lacks_memory, stages)), "")
    if lacks:
        hint = "No change that was tried makes the recipe fit."
        if offers:
            say()
            hint = f"Each suggestion above fits. `recipe plan {path} --apply N` writes one."
        raise Stop(
            lacks,
            f"{hint} Other machines have GPUs: `recipe gpus RECIPE` shows what it needs on each.",
        )
    end("The recipe fits this machine.", "rehearse", path)
    return 0


def _apply(recipe: Recipe, offers: list[recipe_offers.Offer], number: int) -> int:
    if number > len(offers):
        usual = f"They go from 1 to {len(offers)}."
        numbers = {0: "There are none.", 1: "There is one: `--apply 1`."}.get(len(offers), usual)
        raise Stop(*worded("plan_view.no-suggestion", taken=number, recipe=recipe, known=numbers))
    say(copying.rewrite(recipe.document, offers[number - 1].changes))
    say(f"\nWritten. `recipe plan {recipe.document.file}` shows the new plan.")
    return 0


def _counts(written: str | None) -> list[int]:
    """Counts of machines. Dots continue the ratio of the two counts before them, up to the count
    after them."""
    try:
        counts: list[int] = []
        parts = [part.strip() for part in (written or "").split(",") if part.strip()]
        for place, part in enumerate(parts):
            if part in ("…", "..."):
                (before, last), end = counts[-2:], int(parts[place + 1])
                times = last // before
                if times < 2 or last % before or end <= last:
                    raise Stop(*worded("plan_view.idle-dots", given=written), code=2)
                while counts[-1] * times < end:
                    counts.append(counts[-1] * times)
            else:
                counts.append(int(part))
    except (ValueError, IndexError, ZeroDivisionError):
        counts = [0]
    if any(not 1 <= count <= MOST_MACHINES for count in counts):
        raise Stop(
            f"`--machines {written}` is not a list of counts.",
            "For example: --machines 1,2,4",
            code=2,
        )
    return counts


@dataclass(frozen=True)
class _OnCard:
    """A recipe on another card. fits: whether all stages do; the recipe's limits are another
    question."""

    gpu: str
    usable_bytes: int
    memory_bytes: int | None = None
    seconds: float | None = None
    fits: bool = False
    why_not: str = ""


def _on_card(recipe: Recipe, card: catalog.Gpu) -> tuple[_OnCard, str]:
    """The recipe with this card as its `machines.gpu`, and the verdict in words."""
    usable = round(card.usable_gib * 2**30)
    try:
        planned = Planned.of(
            changed(recipe, [Override("machines.gpu", None, card.name, "recipe gpus")])[0]
        )
    except Stop as stop:
        reason = stop.problems[0].message
        return _OnCard(card.name, usable, why_not=reason), reason
    except catalog.UnknownArchitecture as error:
        raise Stop(forecast.unknown_architecture(recipe, error)) from None
    need = max((stage.memory.total for stage in planned.forecasts), default=None)
    if not planned.fits:
        return _OnCard(card.name, usable, need), "too small"
    full = all(stage.full.fits for stage in planned.forecasts)
    if full:
        verdict = "fits"
    else:
        verdict = "fits your rows, but not rows of full length"
    return _OnCard(card.name, usable, need, planned.seconds, fits=True), verdict


@command
def gpus(path: str | None, sets: tuple[str, ...], style: str) -> None:
    """List the GPUs that a recipe can name, by their label on a cluster. With RECIPE: what it needs
    on each of them."""
    all_cards = [card for name in catalog.gpu_names() if (card := catalog.gpu(name))]
    if path:
        recipe, _ = open_recipe(path, sets, aside=style == "json")
        verdicts = [_on_card(recipe, card) for card in all_cards]
        if style == "json":
            say(json_text([on_card for on_card, _ in verdicts]))
            return
        table(views.rows("on_cards", [*zip(all_cards, verdicts, strict=True)]))
        count = sum(on_card.fits for on_card, _ in verdicts)
        end(
            f"`{recipe.name}` fits {count} of these {len(verdicts)} GPUs.",
            "plan",
            path,
            "--set",
            "machines.gpu=GPU",
        )
        return
    if style == "json":
        say(json_text(all_cards))
        return
    titles, *facts = views.rows("cards", all_cards)
    table([titles, *facts], below=titles[-2:])
    say("\nMEMORY is the part that PyTorch can use.")
    say("TFLOPS is the dense rate in bf16, or in fp16 without bf16.")
    end(f"{len(all_cards)} GPUs can be named in a recipe.", "gpus", "RECIPE")
