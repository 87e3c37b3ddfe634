"""Run manifest: what is on record of a run's plan, so that a page can be made of its folder alone, wherever that lies."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.check import by_schema
from runner.check.derived_values import computed
from runner.check.validate import load
from runner.plan import PLAN_FILE, Plan, Prediction
from runner.recipe import origins as showing
from runner.recipe.reading import read
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.run.run_folder import RunFolder
from runner.scenarios import forecasting, translate
from runner.tools import packaged
from runner.tools.files import Record, read_record, write_text
from runner.tools.problem import Stop
from runner.tools.run_files import CONFIG, PLANNED

# What a copy always has of its own, and what says nothing of training.
_OWN = ("name", "description")


@dataclass(frozen=True)
class Differs(Record):
    """A setting that is not as in the starter: its value there and here as a recipe has it, empty where there is none."""

    setting: str = ""
    starter: str = ""
    here: str = ""
    origin: str = ""


@dataclass(frozen=True)
class RunManifest(Record):
    """What a run was to be, before anything was put in place of the recipe's own settings.

    file: the recipe's, by its name. at: when it was first begun (ISO 8601, UTC). fingerprint: of the recipe. settings: with every
    default; text: the same as YAML, with where each comes from. starter: the one that it differs least from.
    commit: of the repository that the recipe lies in, with a `+` where the recipe has changed since, empty where it lies in none.
    model: the base model's name, or its architecture; licence: of it, as the hub abbreviates it, empty where nobody knows.
    foreseen: for the run as it goes; full_size: for a rehearsal's recipe on the machines that it names.
    """

    FILE = PLANNED
    file: str = ""
    at: str = ""
    fingerprint: str = ""
    scenario: str = ""
    description: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    starter: str = ""
    differs: tuple[Differs, ...] = ()
    model: str = ""
    revision: str = ""
    licence: str = ""
    commit: str = ""
    foreseen: tuple[Prediction, ...] = ()
    full_size: tuple[Prediction, ...] = ()


def keep(run: RunFolder, recipe: Recipe, plan: Plan, runs: Recipe | None = None) -> None:
    """Leaves plan and recipe in the run folder. runs: the recipe with what a rehearsal or this machine has put in its place,
    which the plan is of; the recipe itself where it is None."""
    write_text(run.path / CONFIG / PLAN_FILE, _whole(plan).as_json())
    known = RunManifest.read(run.path)
    same = known.fingerprint == recipe.fingerprint and known.at
    starter, differs = _starter(recipe)
    model = recipe.settings.get("model") or {}
    RunManifest(
        file=recipe.file.name,
        at=known.at if same else datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        fingerprint=recipe.fingerprint,
        scenario=recipe.scenario,
        description=recipe.settings.get("description") or "",
        settings=recipe.settings.plain(),
        text=showing.as_yaml(recipe, by_schema.schema(recipe.scenario), dict(computed(recipe))),
        starter=starter,
        differs=differs,
        model=str(model.get("base") or model.get("architecture") or ""),
        revision=recipe.model_revision if model.get("base") else "",
        licence=recipe.model_facts.licence if recipe.model_facts else "",
        commit=_commit(recipe.file),
        foreseen=predictions(runs or recipe, plan),
        full_size=predictions(recipe, translate(recipe, place(recipe))) if run.kind == "rehearsal" else (),
    ).write(run.path)


def _commit(file: Path) -> str:
    """The commit that is checked out where a file lies, if git keeps it there."""
    command = [
        "git",
        "-C",
        str(file.absolute().parent),
        "status",
        "--porcelain=v2",
        "--branch",
        "--ignored",
        "--",
        file.name,
    ]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    facts = [line.split() for line in said.splitlines()]
    head = next((words[2] for words in facts if words[:2] == ["#", "branch.oid"]), "(initial)")
    changed = [words[0] for words in facts if words[0] != "#"]
    return "" if head == "(initial)" or {"?", "!"} & set(changed) else head + ("+" if changed else "")


def _whole(plan: Plan) -> Plan:
    """The plan without the texts of its stages' files, which lie beside it."""
    return plan.upto(plan.stages[-1])


def predictions(recipe: Recipe, plan: Plan) -> tuple[Prediction, ...]:
    planner = forecasting()
    return planner.predictions(recipe, plan) if planner else ()


def plan_of(run: RunFolder) -> Plan:
    """The plan that is on record in a run folder, as it is where the folder lies now.

    Raises Stop where there is none.
    """
    facts = read_record(run.path / CONFIG / PLAN_FILE)
    try:
        there = facts["place"]["run_dir"]
        return Plan.read(json.dumps(_moved(facts, there, str(run.path))))
    except (KeyError, TypeError, ValueError):
        raise Stop(
            f"`{run.shown}` has no plan on record, or a broken one.",
            "The command that made the run writes it when it is called again, and repeats nothing that is done.",
        ) from None


def _moved(value: Any, there: str, here: str) -> Any:
    if isinstance(value, dict):
        return {name: _moved(item, there, here) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, there, here) for item in value]
    inside = isinstance(value, str) and f"{value}/".startswith(f"{there}/")
    return here + value.removeprefix(there) if inside else value


def flat(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every setting that is no section by its dotted name, and its value as a recipe has it."""
    for name, value in settings.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from flat(value, here)
        else:
            yield here, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def differing(texts: Iterable[Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all, each with its value in each, empty where it has none."""
    texts = list(texts)
    names = dict.fromkeys(name for each in texts for name in each)
    rows = [(name, [each.get(name, "") for each in texts]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _starter(recipe: Recipe) -> tuple[str, tuple[Differs, ...]]:
    """The starter of the recipe's scenario that it differs least from, and in what; no name where there is none."""
    own, best = dict(flat(recipe.settings.plain())), None
    for name, file in packaged.named().items():
        try:
            if read(file).data.get("scenario") != recipe.scenario:
                continue
            other = dict(flat(load(file, look=False)[0].settings.plain()))
        except Stop:
            continue  # somebody has edited it
        rows = [(name, values) for name, values in differing([other, own]) if name not in _OWN]
        if best is None or len(rows) < len(best[1]):
            best = name, rows
    if best is None:
        return "", ()
    origins = dict(showing.origins(recipe.document, recipe.settings.plain()))
    return best[0], tuple(Differs(name, there, here, origins.get(name, "")) for name, (there, here) in best[1])
