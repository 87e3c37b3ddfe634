"""`recipe plan`: what a recipe needs, before it costs anything; `recipe gpus`: the same on each GPU
of the catalog."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from runner import catalog, parts
from runner.catalog.hardware import NO_GPU
from runner.check import copying
from runner.check.validate import changed, load
from runner.commands import options
from runner.commands.next_step import before_training
from runner.commands.options import command, end, open_recipe, print_notes, say, table
from runner.parts.planner import (
    calibration,
    constants,
    forecast,
    processor_offers,
    recipe_offers,
)
from runner.parts.planner.formulas import Traced
from runner.parts.planner.planned import MORE_STEPS_OFFERED, Planned
from runner.parts.planner.view import views
from runner.recipe import overrides as changing
from runner.recipe.recipe import Override, Recipe
from runner.run import this_machine
from runner.run.run_folder import folder
from runner.scenarios import place, translate
from runner.tools.files import write_text
from runner.tools.problem import Problem, Stop, errors_of
from runner.tools.text import json_text

MOST_MACHINES = 1024  # as in a recipe
NOTHING_FITS = "No change that was tried makes the recipe fit. Name a larger GPU, or ask for less."


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
    suggestion: int | None,
    picture: Path | None,
    serves: bool,
    runs: tuple[str, ...],
) -> int:
    """Estimate whether a recipe fits, how long it takes and what it costs, and suggest changes.

    If you have trained on such a card before, the plan uses the speed and memory of those runs. A
    run saves them on its machine. For a run that you fetched from a cluster, use `--learn`."""
    as_json = style == "json"
    if price is not None and not math.isfinite(price):
        raise Stop(f"`--price {price}` is not a price.", "For example: --price 2.50", code=2)
    if suggestion:
        _require_file_alone(sets, as_json)
    if picture and picture.suffix.lower() != ".svg":
        raise Stop(
            f"`--chart` draws SVG, but `{picture}` does not end in .svg.",
            "For example: --chart plan.svg",
            code=2,
        )
    nodes = _counts(counts)
    if as_json:
        # JSON has standard output for itself.
        recipe, _, notes = load(path, changing.from_options(sets))
        print_notes(notes)
    else:
        recipe = open_recipe(path, sets)[0]
    about_gpus: dict[str, object] = {
        "--chart": picture,
        "--exact": exact,
        "--machines": counts,
        "--details": in_parts,
    }
    if serves:
        del about_gpus["--details"]
        return _plan_server(recipe, {"--apply": suggestion, **about_gpus}, as_json)
    if recipe.machines.gpu == NO_GPU:
        _require_none(about_gpus)
        return _on_processor(recipe, path, as_json, suggestion)
    if runs:
        calibration.learn(recipe, runs)
    click.get_current_context().with_resource(constants.taking(calibration.learned()))
    try:
        planned = Planned.of(recipe, price, rows)
    except catalog.UnknownArchitecture as error:
        if not exact or suggestion or picture:
            raise Stop(forecast.unknown_architecture(recipe, error)) from None
        return _plan_by_trace(recipe, price, rows, as_json)
    offers = recipe_offers.of(planned)
    if suggestion:
        return _apply(recipe, offers, suggestion)
    traced = {}
    if exact:
        traced = _exact_traces(planned, as_json)
    if picture:
        _write_picture(planned, picture)
    if as_json:
        say(views.as_json(planned, offers, nodes, traced))
    else:
        _show(planned, offers, nodes, traced, in_parts)
        if picture:
            say(f"\n{picture}: memory over a step, and time by stage")
        _end(planned, path, can_apply=bool(offers and not sets))
    return int(bool(errors_of(planned.problems)))


def _require_file_alone(sets: tuple[str, ...], as_json: bool) -> None:
    """Raises Stop for options that exclude `--apply`."""
    if sets:
        other_option = "--set"
        hint = "Write the changes into the recipe first, or leave out `--set`."
    elif as_json:
        other_option = "--format json"
        hint = "`--apply` prints a difference, not JSON. Leave out one of the two."
    else:
        return
    raise Stop(
        f"`--apply` writes into the recipe as it is, so it excludes `{other_option}`.", hint, code=2
    )


def _require_none(about_gpus: Mapping[str, object]) -> None:
    """Raises Stop for options about GPUs, by their names."""
    unfit = [option for option, content in about_gpus.items() if content]
    if unfit:
        raise Stop(
            f"`{unfit[0]}` is about GPUs, but the recipe trains on the CPU (`gpu: none`).",
            f"Leave out `{unfit[0]}`, or name a GPU: `--set machines.gpu=GPU`.",
        )


def _plan_server(recipe: Recipe, about_training: Mapping[str, object], as_json: bool) -> int:
    """Prints what a server of the trained model needs. Raises Stop for options about training, by
    their names."""
    unfit = [option for option, content in about_training.items() if content]
    if unfit:
        raise Stop(
            f"`--serve` is about a server, but `{unfit[0]}` is about training.",
            "Leave out one of the two.",
            code=2,
        )
    with_server = options.with_section(recipe, "serve", "--serve")
    parts.require("serve")
    from runner.parts.serve import commands as serve_commands

    return serve_commands.plan_server(with_server, as_json)


def _plan_by_trace(recipe: Recipe, price: float | None, rows: int | None, as_json: bool) -> int:
    """The plan of a model without formulas."""
    untraced = translate(recipe, place(recipe))
    forecasts = forecast.of(recipe, untraced, price, rows, any_architecture=True)
    from runner.parts.planner.trace import tracing

    return tracing.plan_by_trace(recipe, untraced, forecasts, as_json)


def _exact_traces(planned: Planned, as_json: bool) -> dict[str, Traced]:
    """By stage. Only JSON shows operations."""
    from runner.parts.planner.trace import tracing

    return {stage.stage.name: tracing.trace(stage.workload, as_json) for stage in planned.forecasts}


def _write_picture(planned: Planned, picture: Path) -> None:
    try:
        write_text(picture, views.svg(planned))
    except OSError as error:
        raise Stop(
            f"`{picture}` cannot be written: {error.strerror}.",
            "Name a file after `--chart`, in a folder where you may write.",
        ) from None


def _show(
    planned: Planned,
    offers: list[recipe_offers.Offer],
    nodes: list[int],
    traced: Mapping[str, Traced],
    in_parts: bool,
) -> None:
    """Prints the plan, the suggestions and the problems. nodes: other counts of machines."""
    views.answer(planned, offers)
    if in_parts:
        views.details(planned, nodes, traced)
    else:
        views.stages(planned)
        views.exact(Console(width=views.WIDTH), planned.forecasts, traced)
    if nodes:
        views.machines(planned, nodes)
    views.offered(offers)
    for problem in (*planned.problems, *planned.notes):
        say(f"\n{replace(problem, hint=_hint(problem, bool(offers)))}")


def _hint(problem: Problem, has_offers: bool) -> str:
    """A problem's hint without its reference to suggestions: they are printed above, or there are
    none."""
    if has_offers:
        hint = problem.hint.replace(forecast.OFFERED, "").replace(MORE_STEPS_OFFERED, "")
    else:
        hint = problem.hint.replace(forecast.OFFERED, NOTHING_FITS)
    return hint.strip()


def _end(planned: Planned, path: str, can_apply: bool) -> None:
    if planned.problems:
        result = "The recipe can run, but the plan has notes on what may go wrong."
        if errors_of(planned.problems):
            result = "The recipe does not fit."
        following = ("--apply", "1") if can_apply else ("--details",)
        end(result, "plan", path, *following)
    elif any(stage.full.fits is False for stage in planned.forecasts):
        end("The recipe fits if no row is longer than expected.", "prepare", path)
    else:
        end(
            "The recipe fits, as far as this machine can tell.",
            before_training(planned.recipe),
            path,
        )


def _on_processor(recipe: Recipe, path: str, as_json: bool, number: int | None) -> int:
    """The plan of a recipe with `gpu: none`, by the figures that `recipe run` prints. If this
    machine's main memory is too small: changes that fit, of which it writes number `number`."""
    run = folder(recipe.name, "run")
    local = this_machine.processor_run(recipe, run)
    stages = list(local.predictions.values())
    too_large = any(stage.too_large for stage in stages)
    if as_json:
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
    end("The recipe fits this machine.", before_training(recipe), path)
    return 0


def _apply(recipe: Recipe, offers: list[recipe_offers.Offer], number: int) -> int:
    if number > len(offers):
        usual = f"They go from 1 to {len(offers)}."
        numbers = {0: "There are none.", 1: "There is one: `--apply 1`."}.get(len(offers), usual)
        raise Stop(
            f"There is no suggestion {number} for `{recipe.document.file}`.",
            f"{numbers} `recipe plan` shows them, with the same options.",
        )
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
                    raise Stop(
                        f"The dots in `--machines {written}` have nothing to continue.",
                        "They multiply as the two counts before them do, up to a larger one: --machines 1,2,…,8",
                        code=2,
                    )
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
    table([titles, *facts], movable=titles[-2:])
    say("\nMEMORY is the part that PyTorch can use.")
    say("TFLOPS is the dense rate in bf16, or in fp16 without bf16.")
    end(f"{len(all_cards)} GPUs can be named in a recipe.", "gpus", "RECIPE")
