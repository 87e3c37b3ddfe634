"""Rehearsal: the whole way of a recipe on any machine, with a tiny twin in place of the model.

A rehearsal is the recipe with substitutions, each an Override like `--set`, and then the same check, the same
translation, the same engine and the same results as the full run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from runner import scenarios
from runner.check.validate import changed
from runner.data.report import PreparedRows
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.run.launch import ahead
from runner.run.pipeline import Selection, Tell, Watch, carry_out
from runner.run.report import introduction, report
from runner.run.run_folder import RunFolder
from runner.run.run_manifest import keep
from runner.scenarios import translate
from runner.scenarios.shared.common import DATA, with_config
from runner.tools.problem import Stop


def rehearse(
    recipe: Recipe,
    run: RunFolder,
    data: str | None,
    chosen: Selection,
    tell: Tell,
    watch: Watch,
    changes: Iterable[Override] = (),
) -> None:
    """Rehearses the chosen stages of a recipe in a run folder, and tells what was learned.

    data: a file with rows to use instead of the recipe's sample. changes: what the person has changed in the recipe.
    Raises Stop where anything fails, a gate does not open, or too little is learned (see the scenario's `rehearsal`).
    """
    rehearsal, place = scenarios.rehearsal(recipe.scenario), run.place()
    first, made = changed(recipe, rehearsal.before_data(recipe, data))
    rehearsed = first
    plan = translate(first, place)
    chosen.of(plan)  # a name that is no stage is said before the long list
    # The first stage also makes what stands in for the base model, from the rows that it prepares.
    prepares = with_config(recipe, plan.stages[0], rehearsal.stands_in(recipe, run.path))
    plan = replace(plan, stages=(prepares, *plan.stages[1:]))
    tell("What stands in for the real thing")
    for override in made:
        tell(f"  {override}")
    for line in introduction(plan):
        tell(line)
    if rehearsal.after_data is not None:
        # What else must be small follows from the rows, and so they come first; the engine is imported beside them.
        if engine := next((stage for stage in chosen.of(plan) if stage.trains), None):
            ahead(engine, place)
        carry_out(
            plan,
            [stage for stage in chosen.of(plan) if stage.name == DATA],
            tell,
            watch,
            run.made_with(changes, made),
            partial(keep, run, recipe, plan, first),
        )
        rows = PreparedRows.read(Path(place.data_dir))
        if not rows:
            raise Stop(
                "The stage `data` is not finished, and what is trained follows from its rows.", "Leave out `--stage`."
            )
        second, more = changed(first, rehearsal.after_data(first, rows, run.path))
        tell("What stands in for it, now that the rows are known")
        for line in rehearsal.shown(recipe, more, rows):
            tell(f"  {line}")
        made += more
        # What the rows were prepared for is the model that they train, not the twin.
        plan = replace(plan, stages=(prepares, *translate(second, place).stages[1:]))
        rehearsed = second
    keeping = partial(keep, run, recipe, plan, rehearsed)
    summaries = carry_out(plan, chosen.of(plan), tell, watch, run.made_with(changes, made), keeping)
    for line in report(plan):
        tell(line)
    try:
        rehearsal.judge(plan, summaries)
    except Stop as stop:
        run.mark(run.state.status, fault=stop.text)
        raise
