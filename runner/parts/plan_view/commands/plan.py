"""`recipe plan`: what a recipe will need, before it costs anything."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from runner import parts
from runner.check import by_schema
from runner.check.validate import load
from runner.commands.options import end, open_recipe, print_notes, recipe_path, say, set_option, with_section
from runner.parts.plan_view import report, text
from runner.parts.planner import calibration, constants, forecast, limits, recipe_offers
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.recipe import copying
from runner.recipe import overrides as changing
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.scenarios import translate
from runner.tools.files import write_text
from runner.tools.problem import Stop, errors_of

# The same limit as a recipe's.
MOST_MACHINES = 1024


@click.command()
@recipe_path
@set_option
@click.option("--format", "style", type=click.Choice(["text", "json"]), default="text", help="How to print the plan.")
@click.option("--details", "in_parts", is_flag=True, help="Show what each figure consists of, stage by stage.")
@click.option(
    "--exact", is_flag=True, help="Build the real model, without its weights, and count the memory of two steps."
)
@click.option("--price", type=click.FloatRange(min=0), help="The price of one GPU for an hour, in any currency.")
@click.option(
    "--machines", "counts", metavar="N,N…", help="Compare these numbers of machines, e.g. 1,2,4 or 1,2,…,1024."
)
@click.option("--rows", type=click.IntRange(min=1), help="The number of rows, if it is unknown.")
@click.option("--apply", "taken", type=click.IntRange(min=1), metavar="N", help="Write suggestion N into the recipe.")
@click.option(
    "--chart",
    "picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE.svg",
    help="Draw memory and time to this SVG file.",
)
@click.option(
    "--serve", "serves", is_flag=True, help="Show what a server of the trained model needs, instead of training."
)
@click.option(
    "--learn",
    "runs",
    multiple=True,
    metavar="DIR",
    help="A finished run of the recipe, for better estimates. Repeatable.",
)
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

    If you have trained on such a card before, the plan uses the speed and memory of those runs. A run saves them on
    its machine. For a run that you fetched from a cluster, use `--learn`."""
    if price is not None and not math.isfinite(price):
        raise Stop(f"`--price {price}` is not a price.", "For example: --price 2.50", code=2)
    if taken and (sets or style == "json"):
        other, hint = "--format json", "`--apply` prints a difference, not JSON. Leave out one of the two."
        if sets:
            other, hint = "--set", "Write the changes into the recipe first, or leave out `--set`."
        raise Stop(f"`--apply` writes into the recipe as it is, so it excludes `{other}`.", hint, code=2)
    if picture and picture.suffix.lower() != ".svg":
        message = f"`--chart` draws SVG, but `{picture}` does not end in .svg."
        raise Stop(message, "For example: --chart plan.svg", code=2)
    nodes = _counts(counts)
    recipe = _open(path, sets, style)
    if serves:
        others = {"--apply": taken, "--chart": picture, "--exact": exact, "--machines": counts}
        if unfit := [name for name, given in others.items() if given]:
            message = f"`--serve` is about a server, but `{unfit[0]}` is about training."
            raise Stop(message, "Leave out one of the two.", code=2)
        served: int = parts.hook("plan_server")(with_section(recipe, "serve", "--serve"), style == "json")
        return served
    if runs:
        calibration.learn(recipe, runs)
    click.get_current_context().with_resource(constants.taking(calibration.learned()))
    try:
        planned = Planned.of(recipe, price, rows)
    except UnknownArchitecture as error:
        if not exact or taken or picture:
            raise Stop(forecast.unknown_architecture(recipe, error)) from None
        made = translate(recipe, place(recipe))
        forecasts = forecast.of(recipe, made, price, rows, any_architecture=True)
        by_trace: int = parts.hook("plan_by_trace")(recipe, made, forecasts, style == "json")
        return by_trace
    found = recipe_offers.of(planned)
    if taken:
        return _apply(planned, found, taken)
    # Only JSON shows operations.
    traced = {}
    if exact:
        trace = parts.hook("trace")
        traced = {stage.stage.name: trace(stage.workload, style == "json") for stage in planned.forecasts}
    if picture:
        _draw(planned, picture)
    if style == "json":
        say(report.as_json(planned, found, nodes, traced))
        return 1 if errors_of(planned.problems) else 0
    text.answer(planned, found)
    if in_parts:
        text.details(planned, nodes, traced)
    else:
        text.stages(planned)
        text.exact(Console(width=text.WIDTH), planned.forecasts, traced)
    if nodes:
        text.machines(planned, nodes)
    text.offered(found)
    for problem in (*planned.problems, *planned.notes):
        # The offers are printed above, or there are none.
        said = "" if found else "No change that was tried makes the recipe fit. Name a larger GPU, or ask for less."
        hint = problem.hint.replace(forecast.OFFERED, said)
        if found:
            hint = hint.replace(limits.MORE_STEPS_OFFERED, "")
        say(f"\n{replace(problem, hint=hint.strip())}")
    if picture:
        say(f"\n{picture}: memory over a step, and time by stage")
    wrong = errors_of(planned.problems)
    if planned.problems:
        then = ("plan", path, "--apply", "1") if found and not sets else ("plan", path, "--details")
        warned = "The recipe can run, but the plan has notes on what may go wrong."
        end("The recipe does not fit." if wrong else warned, *then)
    elif any(stage.full.fits is False for stage in planned.forecasts):
        end("The recipe fits if no row is longer than expected.", "prepare", path)
    else:
        end("The recipe fits, as far as this machine can tell.", "rehearse", path)
    return 1 if wrong else 0


def _apply(planned: Planned, found: list[Offer], taken: int) -> int:
    """Writes an offer into the recipe's file and shows the difference."""
    if taken > len(found):
        known = {0: "There are none.", 1: "There is one: `--apply 1`."}.get(
            len(found), f"They go from 1 to {len(found)}."
        )
        message = f"There is no suggestion {taken} for `{planned.recipe.document.file}`."
        raise Stop(message, f"{known} `recipe plan` shows them, with the same options.")
    edited = partial(copying.edited, says=partial(by_schema.sentence, planned.recipe.scenario))
    say(copying.rewrite(planned.recipe.document, found[taken - 1].changes, edited))
    say(f"\nWritten. `recipe plan {planned.recipe.document.file}` shows the new plan.")
    return 0


def _draw(planned: Planned, file: Path) -> None:
    try:
        write_text(file, report.svg(planned))
    except OSError as error:
        hint = "Name a file after `--chart`, in a folder where you may write."
        raise Stop(f"`{file}` cannot be written: {error.strerror}.", hint) from None


def _open(path: str, sets: tuple[str, ...], style: str) -> Recipe:
    if style == "text":
        return open_recipe(path, sets)[0]
    # JSON has standard output for itself.
    recipe, _, notes = load(path, changing.from_options(sets))
    print_notes(notes)
    return recipe


def _counts(given: str | None) -> list[int]:
    """Counts of machines. Dots continue the two counts before them, up to the count after them."""
    try:
        counts: list[int] = []
        parts = [part.strip() for part in (given or "").split(",") if part.strip()]
        for at, part in enumerate(parts):
            if part in ("…", "..."):
                (before, last), end = counts[-2:], int(parts[at + 1])
                if (times := last // before) < 2 or last % before or end <= last:
                    hint = "They multiply as the two counts before them do, up to a larger one: --machines 1,2,…,8"
                    raise Stop(f"The dots in `--machines {given}` have nothing to continue.", hint, code=2)
                while counts[-1] * times < end:
                    counts.append(counts[-1] * times)
            else:
                counts.append(int(part))
    except (ValueError, IndexError, ZeroDivisionError):
        counts = [0]
    if any(not 1 <= count <= MOST_MACHINES for count in counts):
        raise Stop(f"`--machines {given}` is not a list of counts.", "For example: --machines 1,2,4", code=2)
    return counts
