"""Opening the run folder of a pipeline to read, measure or promote: the plan as it was run there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from runner.execute import rehearse_pipeline
from runner.execute.runs import ROOT, STATE_FILE, RunFolder, folder
from runner.execute.stages import StageFolder
from runner.execute.training import place_for
from runner.files import read_json
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.recipe.recipe import Recipe
from runner.scenarios import translate


def run_of(recipe: Recipe, given: str | None) -> RunFolder:
    """The run folder that is meant: `--run DIR`, or the one of this recipe that was worked on last.

    Raises Stop where there is none, and (exit 2) where the recipe has no stages.
    """
    _staged(recipe)
    wanted = (
        [RunFolder(Path(os.path.abspath(given)), "run")]
        if given
        else [folder(recipe.name, kind) for kind in ("run", "rehearsal")]
    )
    there = [run for run in wanted if (run.path / STATE_FILE).is_file()]
    if not there:
        raise Stop(
            f"`{given}` is not a run folder." if given else f"There is no run of `{recipe.name}` below `{ROOT}/`.",
            "`recipe rehearse` and `recipe run` make one; name another with `--run DIR`. "
            "A run on the cluster is shown by `recipe status`, and promoted with `recipe promote --cluster`.",
        )
    newest = max(there, key=lambda run: (run.path / STATE_FILE).stat().st_mtime)
    return RunFolder(newest.path, (read_json(newest.path / STATE_FILE) or {}).get("kind", "run"))


def plan_of(recipe: Recipe, run: RunFolder) -> Plan:
    """The recipe's plan in that folder; in the folder of a rehearsal with what a rehearsal puts in its place.

    Raises Stop (exit 2) where the recipe has no stages.
    """
    _staged(recipe)
    rehearsed = run.kind == "rehearsal"
    if rehearsed:
        recipe, _ = rehearse_pipeline.substituted(recipe, run.state.get("data"))
    place = place_for(run, accelerator=not rehearsed, data_dir=run.state.get("data_dir"))
    plan = translate(recipe, place)
    return replace(plan, stages=tuple(_as_run(plan, stage) for stage in plan.stages))


def _staged(recipe: Recipe) -> None:
    if recipe.scenario != "pipeline":
        raise Stop(f"`{recipe.name}` is no pipeline; it has no stages and no gates.", code=2)


def _as_run(plan: Plan, stage: Stage) -> Stage:
    """The stage as it is, once it is sure that its folder is this stage's."""
    state = StageFolder(plan, stage).state
    if state and state.get("stage") != stage.name:
        raise Stop(f"`{StageFolder(plan, stage).path}` holds the stage `{state.get('stage')}`.")
    return stage
