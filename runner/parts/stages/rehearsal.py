"""Rehearsal of stages: each as a recipe of its own, on its rows, from the twin that the stage before has trained."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from runner import scenarios
from runner.data.report import PreparedRows
from runner.plan import Plan
from runner.recipe.overrides import Override, of_each
from runner.recipe.recipe import Recipe
from runner.recipe.stages import BASE, PRETRAIN, starts
from runner.scenarios.shared import rehearsal
from runner.tools.problem import Stop, worded
from runner.trainer.records import Summary


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    if data:
        raise Stop(*worded("stages.rows-of-several"))
    return of_each(recipe, lambda name, one: scenarios.rehearsal(one.scenario).before_data(one, None))


def after_data(recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
    twins = _twins(recipe, folder)

    def of(name: str, one: Recipe) -> list[Override]:
        if PRETRAIN in one.settings:
            return []
        own = PreparedRows.read(folder / "data" / name)
        assert own, name
        changes = rehearsal.substituted(one, own, twins.get(name, folder))
        return [
            change for change in changes if name in twins or change.path[0] != "model" or change.path[1] not in BASE
        ]

    return of_each(recipe, of)


def _twins(recipe: Recipe, folder: Path) -> dict[str, Path]:
    """The folder of the twin of each base model, by the stage that starts from it."""
    found = {}
    for index, (name, one) in enumerate(recipe.stage_recipes.items()):
        if PRETRAIN not in one.settings and starts(recipe.document, index):
            found[name] = folder / (f"{rehearsal.TWIN}-{name}" if index else rehearsal.TWIN)
    return found


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    """Each twin has the layers of that of its stages which trains most, and the tokens of the first."""
    twins, trained = _twins(recipe, folder), dict[str, list[Recipe]]()
    for name, one in recipe.stage_recipes.items():
        trained.setdefault(name if name in twins else next(reversed(trained), ""), []).append(one)
    made = {name: rehearsal.twin_of(max(trained[name], key=rehearsal.layers), twins[name]) for name in twins}
    return {"twins": made, "sample_rows": rehearsal.MAX_ROWS}


def shown(original: Recipe, made: list[Override], rows: PreparedRows) -> Iterable[str]:
    first = next(iter(original.stage_recipes.values()))
    return rehearsal.shown(first, made, rows)


def judge(plan: Plan, summaries: list[Summary]) -> None:
    """As each stage alone; a context length need not learn as much as a whole training."""
    tokens = plan.facts.get("tokens", {})
    pretrained = [summary for summary in summaries if summary.stage in tokens]
    if pretrained:
        scenarios.rehearsal("pipeline").judge(plan, pretrained)
    rehearsal.judge(plan, [summary for summary in summaries if summary not in pretrained])
