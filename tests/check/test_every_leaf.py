"""Every setting of every scenario at each of its enum values and bounds, and beyond: what check
accepts renders, plans and gives JSON, what it refuses has its reasons, and nothing ends in a
trace."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest

from runner import scenarios
from runner.catalog import UnknownArchitecture
from runner.check.by_schema import schema
from runner.check.validate import changed, judge, load, override
from runner.parts.planner import forecast
from runner.parts.planner.planned import Planned
from runner.parts.planner.view import views
from runner.recipe.recipe import Override
from runner.scenarios.render import emit
from runner.tools.problem import Stop
from tests.conftest import RECIPES, ROOT
from tests.drawing import CLUSTER

pytestmark = pytest.mark.heavy

# Those for this machine alone render nothing.
RENDERED = [
    recipe for recipe, *_ in map(load, RECIPES) if {"openshift", "nodes"} & {*recipe.settings}
]
STARTERS = {recipe.scenario: recipe for recipe in RENDERED}
STARTERS["full"] = load(
    STARTERS["causal-lm"].file,
    [Override("scenario", None, "full"), Override("data.form", None, "text")],
)[0]
# Its starter is a minimal one, and runs here.
STARTERS["pretrain"] = load(
    ROOT / "recipes" / "minimal" / "pretrain.yaml", [Override("openshift", None, CLUSTER)]
)[0]
# Far more than anyone means, where the schema has no upper bound.
MANY = 10**9
# Changes that are put into one recipe; alone, each would cost a rendering and a plan of its own.
FEW = 30
# The estimate looks at each layer of each model that would fit; a thousand take it half a minute.
MOST_LAYERS = 100


def leaves(
    part: dict[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every setting that is no section of its own, with its path; in a list, that of the first
    entry. The settings of a stage are those of recipes of its technique, which have them too."""
    for name, inner in part.get("properties", {}).items():
        here = (*path, name)
        if inner.get("properties"):
            yield from leaves(inner, here)
            continue
        yield here, inner
        if inner.get("items", {}).get("properties") and "x-own-recipe" not in inner["items"]:
            yield from leaves(inner["items"], (*here, "0"))


def values(part: dict[str, Any]) -> list[Any]:
    """What is worth trying for a setting: its choices, its bounds and what lies beyond them, and
    another kind of value."""
    if "enum" in part or "const" in part:
        return [*part.get("enum", [part.get("const")]), "banana"]
    if part["type"] in ("integer", "number"):
        step = 1 if part["type"] == "integer" else 0.001
        least = part.get("minimum", part.get("exclusiveMinimum"))
        most = part.get("maximum", part.get("exclusiveMaximum"))
        low = [-MANY, 0, 1e-9] if least is None else [least - step, least, least + step]
        return [
            *low,
            *([MANY] if most is None else [most - step, most, most + step]),
            "banana",
            None,
        ]
    if part["type"] == "array":
        item = example(part["items"])
        return [[], [item], [item] * 2, [item] * (part.get("maxItems", 1) + 1), None]
    return [
        *{"boolean": [True, False], "string": [""], "object": [{}]}[part["type"]],
        *part.get("examples", []),
        7,
        None,
    ]


def example(part: dict[str, Any]) -> Any:
    """A value that the schema itself gives for a setting."""
    if "properties" in part:
        return {name: example(part["properties"][name]) for name in part.get("required", [])}
    return copy.deepcopy(part.get("examples", part.get("enum", [part.get("default")]))[0])


def with_section(
    document: Any, whole: dict[str, Any], path: tuple[str, ...], value: Any
) -> Override:
    """The change that sets a value, and what its section needs where the starter recipe has no such
    section."""
    part = whole
    for depth, name in enumerate(path[:-1]):
        part = part["items"] if name == "0" else part["properties"][name]
        there = document.lookup(
            tuple(int(step) if step == "0" else step for step in path[: depth + 1])
        )
        if there is None and name != "0":
            section = example(part) if "properties" in part else [example(part["items"])]
            inside: Any = section
            for step, following in zip(path[depth + 1 :], path[depth + 2 :], strict=False):
                made = [{}] if following == "0" else {}
                inside = inside[0] if step == "0" else inside.setdefault(step, made)
            inside[path[-1]] = value
            return Override(".".join(path[: depth + 1]), None, section, "test")
    return Override(".".join(path), None, value, "test")


def planned_in_full(recipe) -> None:
    """What `recipe plan` does, in text and in JSON."""
    try:
        planned = Planned.of(recipe, 2.5)
    except UnknownArchitecture as error:
        assert forecast.unknown_architecture(recipe, error)
        return
    views.answer(planned, [])
    views.stages(planned)
    views.details(planned, [1, 2], {})
    views.machines(planned, [1, 2])
    assert json.loads(views.as_json(planned, [], [1, 2], {}), parse_constant=no_number)
    assert ElementTree.fromstring(views.svg(planned)) is not None


def no_number(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def together(recipe, changes: list[Override]) -> Iterator[tuple[Any, list[Override]]]:
    """Recipes that hold all the changes between them, as many as agree with each other in each."""
    try:
        yield changed(recipe, changes)[0], changes
    except Stop:
        assert len(changes) > 1, changes
        half = len(changes) // 2
        yield from together(recipe, changes[:half])
        yield from together(recipe, changes[half:])


# Their settings are those of `lora` and `stages`, for the most part.
LONG = dict.fromkeys(("stages", "last-layers", "full", "causal-lm"), pytest.mark.long)


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=LONG.get(name, ())) for name in scenarios.names()]
)
def test_every_setting_at_every_bound_is_refused_with_reasons_or_renders_plans_and_gives_json(
    scenario,
):
    whole, starter = schema(scenario), STARTERS[scenario]
    # The n-th accepted value of every setting, so that a round holds each setting once.
    rounds: dict[int, list[Override]] = {}
    refused = 0
    for path, part in leaves(whole):
        accepted = 0
        for value in values(part):
            change = with_section(starter.document, whole, path, value)
            where = f"{change.setting} = {change.after!r}"
            try:
                _, problems = judge(override(starter.document, [change])[0])
            except Stop as stop:
                problems = stop.problems
                assert stop.text, where
            except Exception as error:
                raise AssertionError(f"{where}: {error!r}") from error
            assert all(problem.message and json.dumps(problem.as_json()) for problem in problems), (
                where
            )
            if any(problem.severity == "error" for problem in problems):
                refused += 1
            elif value is None or path != ("model", "layers") or value <= MOST_LAYERS:
                rounds.setdefault(accepted, []).append(change)
                accepted += 1
    assert refused > 100 and sum(map(len, rounds.values())) > 100
    few = [
        changes[start : start + FEW]
        for changes in rounds.values()
        for start in range(0, len(changes), FEW)
    ]
    for changes in few:
        for recipe, used in together(starter, changes):
            where = ", ".join(f"{change.setting} = {change.after!r}" for change in used)
            try:
                assert all(file.text for file in emit(recipe)), where
                planned_in_full(recipe)
            except Stop as stop:
                assert stop.problems, where
            except Exception as error:
                raise AssertionError(f"{where}: {error!r}") from error
