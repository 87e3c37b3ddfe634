"""Scenarios: one folder for each technique, recognised by its files. `contract.py` describes a
folder's content."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from runner import __version__, catalog, parts
from runner.catalog import Model
from runner.data import PREPARERS, RenderedExample, reading
from runner.parts.contract import (
    Forecasting,
    Measurable,
    PlacedTarget,
    Preparer,
    Rule,
    Substitutions,
    Target,
    Work,
)
from runner.plan import RUNS, Place, Plan, RowsRequest, Stage
from runner.recipe import reading as yaml_file
from runner.recipe.document import merged, value_at
from runner.recipe.recipe import Recipe
from runner.tools.problem import Stop, listed
from runner.tools.settings import Schema, Settings

if TYPE_CHECKING:
    from runner.data.report import Examined


# Folders with one schema for several scenarios, which `x-scenario` and `x-by-scenario` distinguish.
TOGETHER = {"language": ("causal-lm", "full", "last-layers", "lora")}


@cache
def packages() -> dict[str, str]:
    """Every scenario's package, by its name in recipes, sorted."""
    ours = {}
    for folder in (file.parent for file in Path(__file__).parent.glob("*/translation.py")):
        if (folder / "schema.yaml").is_file():
            for name in TOGETHER.get(folder.name, (folder.name.replace("_", "-"),)):
                ours[name] = f"{__name__}.{folder.name}"
    return dict(sorted((ours | parts.table("scenarios")).items()))


def names() -> tuple[str, ...]:
    return tuple(packages())


@cache
def part(scenario: str, name: str) -> ModuleType | None:
    """The module `name` of a scenario's folder; None if it has none."""
    module = f"{packages()[scenario]}.{name}"
    if find_spec(module):
        return importlib.import_module(module)
    return None


def _member(scenario: str, name: str, usual: object = None, module: str = "translation") -> Any:
    """What a module of a scenario, or its `translation.py` without that module, calls `name`; else
    `usual`."""
    return getattr(part(scenario, module) or part(scenario, "translation"), name, usual)


def target(name: str) -> Target:
    module: Any = importlib.import_module(parts.table("targets")[name])
    return cast(Target, module)


def place(recipe: Recipe, name: str | None = None) -> Place:
    """The folders of a recipe's machines on a target, by default the first that the recipe has a
    section for, or this machine. Without a name, data files are beside the recipe. Raises Stop if
    the recipe lacks the target's section."""
    chosen = target(name) if name else None
    if isinstance(chosen, PlacedTarget):
        _require_hub_model(recipe)
        return chosen.place(recipe)
    # imported one by one, because the first is usually enough
    for candidate in map(target, parts.table("targets")):
        if isinstance(candidate, PlacedTarget) and candidate.named(recipe):
            _require_hub_model(recipe)
            target_place = candidate.place(recipe)
            if name:
                return target_place
            return replace(target_place, files_dir=None)
    folder = os.path.abspath(f"{RUNS}/{recipe.name}")
    return Place(f"{folder}/config", f"{folder}/data", folder, f"{folder}/scratch")


def _require_hub_model(recipe: Recipe) -> None:
    """Raises Stop for a base model in a package of this machine's Python, which other machines do
    not have."""
    for stage, stage_recipe in (recipe.stage_recipes or {"": recipe}).items():
        base = str((stage_recipe.settings.get("model") or {}).get("base", ""))
        packaged = catalog.packaged_model(base)
        if packaged:
            raise Stop(
                recipe.problem(
                    recipe.setting_of(stage, "model.base"),
                    f"The model `{base}` is part of this machine's installation, so other machines do not have it.",
                    f"Write `base: {packaged.like}`, the same model on the hub. `{base}` trains with `recipe run` in "
                    "recipes without the sections `openshift` and `nodes`.",
                )
            )


def translate(recipe: Recipe, place: Place) -> Plan:
    return cast(Plan, _member(recipe.scenario, "translate")(recipe, place))


def measurable(recipe: Recipe) -> Measurable | None:
    """What can be measured of a recipe's training; None if its scenario does not say."""
    return cast(
        Measurable | None, _member(recipe.scenario, "measurable", lambda recipe: None)(recipe)
    )


def rules(scenario: str, look: bool = True) -> tuple[Rule, ...]:
    """The rules for recipes of this scenario alone. look: whether to read their files."""
    kinds: tuple[str, ...]
    if look:
        kinds = ("RULES", "FILE_RULES")
    else:
        kinds = ("RULES",)
    return tuple(rule for list_name in kinds for rule in _member(scenario, list_name, (), "rules"))


def model_facts(scenario: str, settings: Settings) -> Model | None:
    """The model that a recipe itself describes; None if it names one. Raises BrokenSetting."""
    return cast(
        Model | None,
        _member(scenario, "model_facts", lambda settings: None, "architecture")(settings),
    )


def rehearsal(scenario: str) -> Substitutions:
    """The scenario's own members of Substitutions, else those of language models on rows."""
    usual = importlib.import_module(f"{__name__}.shared.rehearsal")
    names = ("before_data", "after_data", "stands_in", "shown", "judge")
    members = {name: _member(scenario, name, getattr(usual, name), "rehearsal") for name in names}
    return cast(Substitutions, SimpleNamespace(**members))


def prepare(data: RowsRequest, out: Path, **options: Any) -> Examined:
    """Prepares the rows of a stage's `data` in `out`, unless they exist already."""
    return reading(preparer(data).prepare)(data, out, **options)


def preparer(data: RowsRequest) -> Preparer[Any]:
    module: Any = importlib.import_module((PREPARERS | parts.table("preparers"))[data["kind"]])
    return cast(Preparer[Any], module)


def first(stage: Stage) -> dict[str, Iterator[RenderedExample]]:
    """The rows of a stage as the model will see them, by purpose; empty if they cannot be shown."""
    if stage.data:
        rows_shown = seen(stage.data)
        if rows_shown:
            return {stage.name: rows_shown}
        return {}
    scenario, _, function = stage.config.get("work", "").partition(".")
    # Work without a scenario prepares rows for the stage that trains, which shows them.
    if function:
        shows = getattr(part(scenario, "work"), "FIRST", {}).get(function)
    else:
        shows = None
    if not shows:
        return {}
    rows: dict[str, Iterator[RenderedExample]] = reading(shows)(stage.config)
    return rows


def seen(data: RowsRequest) -> Iterator[RenderedExample] | None:
    """The rows of a stage's `data` as the model will see them; None if they cannot be shown."""
    show_rows = getattr(preparer(data), "first", None)
    if not show_rows:
        return None
    rows: Iterator[RenderedExample] | None = reading(show_rows)(data)
    return rows


def work(name: str) -> Callable[[Work, Callable[[str], None]], None]:
    """The work of a stage that trains nothing, by `SCENARIO.NAME`: a function of the scenario's
    module `work`."""
    scenario, _, function = name.partition(".")
    carry_out: Callable[..., None] = getattr(part(scenario, "work"), function)
    return reading(carry_out)


# Without the part that forecasts, nothing is known.
_UNKNOWN: Mapping[str, Callable[..., Any]] = {
    **{"problems": lambda *_: [], "sized": lambda recipe, plan: plan, "written": lambda *_: {}},
    **dict.fromkeys(("on_processor", "predictions"), lambda *_: ()),
}


def forecasting() -> Forecasting:
    return cast("Forecasting", next(iter(parts.modules("forecast")), SimpleNamespace(**_UNKNOWN)))


def planned(recipe: Recipe, target: str) -> Plan:
    """The plan that a target gets, with its estimated needs: sizes of claims, memory. It depends
    only on recipe and catalog, not on this machine. Raises Stop if the recipe lacks the target's
    section."""
    return forecasting().sized(recipe, translate(recipe, place(recipe, target)))


DIALECT = "https://json-schema.org/draft/2020-12/schema"


# A scenario's schema: its own file, the pieces that scenarios share, and the sections of parts.
# `make schemas` writes ours; what other people's parts bring is added when it is read.


def composed(scenario: str) -> Schema:
    source = _whole(scenario)
    source["properties"]["scenario"] |= {"const": scenario, "examples": [scenario]}
    return {"$schema": DIALECT, **source}


def identity(scenario: str) -> str:
    """The identity of a copy of a schema: its scenario and version, without an address that would
    have to be maintained."""
    return f"urn:recipe-runner:{scenario}:{__version__}"


def _whole(scenario: str) -> Schema:
    """A scenario's schema; or, by the name of a folder in TOGETHER, that of all its scenarios in
    one."""
    source = dict(
        yaml_file.read(
            _file(packages().get(scenario, f"{__name__}.{scenario}"), "schema.yaml")
        ).data
    )
    return cast(
        Schema, narrowed(inlined(source), "scenario", scenario if scenario in packages() else "")
    )


@cache
def section_schema(name: str, *inner: str) -> Schema:
    """The schema of a part's section, for all kinds of recipes in one; or of a section in it.
    inner: the names from `name` to that."""
    schema = inlined(_pieces()[name])
    for inner_name in inner:
        schema = schema["properties"][inner_name]
    return cast(Schema, schema)


@cache
def foreign_sections() -> Schema:
    """The sections that other people's parts bring to every scenario."""
    names: list[str] = []
    for part in parts.found().values():
        if part.foreign:
            names.extend(part.sections)
    return {name: inlined(_pieces()[name]) for name in names}


def narrowed(node: object, key: str, variant: str) -> Any:
    """A schema for one kind of scenario or of rows: without the settings whose `x-KEY` lists
    others, with the values of `x-by-KEY`, and with `x-renamed` for the removed settings. variant:
    empty for all of them together."""
    if isinstance(node, list):
        return [narrowed(item, key, variant) for item in node]
    if not isinstance(node, dict):
        return node
    for name, value in node.get(f"x-by-{key}", {}).get(variant, {}).items():
        node = {**node, name: value}
    kept = {
        name: value
        for name, value in node.items()
        if name not in (f"x-{key}", f"x-by-{key}") and value is not None
    }
    if variant and isinstance(kept.get("properties"), dict):
        _remove_others(kept, key, variant)
    # Most values have no parts, and a schema has thousands.
    for name, value in kept.items():
        if isinstance(value, dict | list) and not name.startswith("x-by-"):
            kept[name] = narrowed(value, key, variant)
    return kept


def _remove_others(section: dict[str, Any], key: str, variant: str) -> None:
    """Removes the settings of a section that are only for other variants, and adds a hint at each
    of them to `x-renamed`."""
    properties = {}
    hints = {}
    for name, part in section["properties"].items():
        if part and variant not in part.get(f"x-{key}", (variant,)):
            hints[name] = _elsewhere(key, variant, part)
        else:
            properties[name] = part
    section["properties"] = properties
    if hints:
        section["x-renamed"] = hints | section.get("x-renamed", {})


def _elsewhere(key: str, variant: str, part: Schema) -> str:
    says = part.get("x-elsewhere")
    if says:
        return str(says)
    if key == "scenario":
        return f"It is for the scenario {listed(part['x-scenario'])}."
    ways = {"songs": "delete `songs`", "labels": "write another `objective`"}
    if part["x-rows"] == ["labels"]:
        alternative = "write `objective: kto`"
    else:
        alternative = ways.get(variant, "write another `form`")
    rows = " and ".join(", ".join(part["x-rows"]).rsplit(", ", 1))
    return f"It is for {rows}. These rows are {variant}. Delete the line, or {alternative}."


def inlined(node: object) -> Any:
    """Replaces `$ref: FILE#/NAME` and `$ref: SCENARIO/schema.yaml`, with or without
    `#/properties/NAME/…`, by their targets. Keys beside `$ref` win."""
    if isinstance(node, list):
        return [inlined(item) for item in node]
    if not isinstance(node, dict):
        return node
    while "$ref" in node:
        file, _, name = node["$ref"].partition("#/")
        is_whole_schema = not name or name.startswith("properties/")
        if is_whole_schema:
            piece = _whole(file.partition("/")[0])
        else:
            piece = _pieces()[name]
        if is_whole_schema and name:
            piece = value_at(piece, tuple(name.split("/")))
        own_keys = {key: value for key, value in node.items() if key != "$ref"}
        _refuse_second_definitions(node["$ref"], piece, own_keys)
        node = merged(piece, own_keys)
    return {key: inlined(value) for key, value in node.items()}


def _refuse_second_definitions(reference: str, piece: Schema, own_keys: Schema) -> None:
    """Raises Stop if a key beside `$ref` takes a setting from a third file, and the piece defines
    that setting differently: merged, it would be half of one and half of the other."""
    for name, setting in own_keys.items():
        defined = piece.get(name)
        if not isinstance(defined, dict) or not isinstance(setting, dict):
            continue
        third = setting.get("$ref")
        if third and inlined(defined) != inlined({"$ref": third}):
            raise Stop(
                f"Two files define the setting `{name}` differently: {_source(reference)} and {_source(third)}.",
                "Define it in runner/scenarios/shared/schema.yaml, and refer to that from both. Or give one of them another name.",
            )
        _refuse_second_definitions(reference, defined, setting)


def _source(reference: str) -> str:
    """The file that a `$ref` is about, as a path below the folder of its package."""
    folder, _, name = reference.partition("#/")[0].partition("/")
    package = packages().get(folder, f"{__name__}.{folder}")
    if folder in parts.found():
        package = parts.found()[folder].package
    return f"{package.replace('.', '/')}/{name}"


@cache
def _pieces() -> Schema:
    owners = [part.package for part in parts.found().values() if part.sections]
    files = [
        Path(__file__).parent / "shared" / "schema.yaml",
        *(_file(owner, "sections.yaml") for owner in owners),
    ]
    return {name: piece for file in files for name, piece in yaml_file.read(file).data.items()}


def _file(package: str, name: str) -> Path:
    spec = find_spec(package)
    assert spec and spec.submodule_search_locations, package
    return Path(spec.submodule_search_locations[0]) / name
