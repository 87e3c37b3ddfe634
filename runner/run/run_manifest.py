"""Run manifest: the record of a run's plan, so that a page can be made from its folder alone,
wherever that is."""

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runner.check import by_schema, origins
from runner.check.computed import computed_values
from runner.plan import PLAN_FILE, Plan, Prediction
from runner.recipe.recipe import Recipe
from runner.run import provenance
from runner.run.provenance import Differs
from runner.run.run_folder import RunFolder, moved
from runner.scenarios import forecasting, place, saved_plan, translate
from runner.tools.files import Record, read_record, write_text
from runner.tools.problem import Stop
from runner.tools.run_files import CONFIG, PLANNED


@dataclass(frozen=True)
class RunManifest(Record):
    """A run as planned, before a rehearsal or a machine replaced any of the recipe's own settings.

    file: the name of the recipe's file. at: when the run first began (ISO 8601, UTC). fingerprint:
    of the recipe. settings: with every default. text: the settings as YAML, with the origin of
    each. starter: the one that the recipe differs least from. model: the base model's name, or its
    architecture. licence: as the hub abbreviates it; empty if unknown. commit: of the recipe's
    repository, with a `+` if the recipe has changed since; empty without one. foreseen: predictions
    for the run on this machine. full_size: for a rehearsal's recipe on its own machines."""

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
    """Writes plan and recipe to the run folder. runs: the recipe with the replacements of a
    rehearsal or of this machine, to which the plan belongs; the recipe itself if it is None."""
    # Without the texts of the stages' files, which are beside it.
    write_text(run.path / CONFIG / PLAN_FILE, plan.upto(plan.stages[-1]).as_json())
    existing = RunManifest.read(run.path)
    same = existing.fingerprint == recipe.fingerprint and existing.at
    model = recipe.settings.get("model") or {}
    forecast = forecasting().predictions
    starter, differs = provenance.nearest_starter(recipe)
    RunManifest(
        file=recipe.file.name,
        at=existing.at
        if same
        else datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        fingerprint=recipe.fingerprint,
        scenario=recipe.scenario,
        description=recipe.settings.get("description") or "",
        settings=recipe.settings.plain(),
        text=origins.as_yaml(
            recipe, by_schema.schema(recipe.scenario), dict(computed_values(recipe))
        ),
        model=str(model.get("base") or model.get("architecture") or ""),
        revision=recipe.model_revision if model.get("base") else "",
        licence=recipe.model_facts.licence if recipe.model_facts else "",
        foreseen=forecast(runs or recipe, plan),
        full_size=forecast(recipe, translate(recipe, place(recipe)))
        if run.kind == "rehearsal"
        else (),
        commit=provenance.commit(recipe.file),
        starter=starter,
        differs=differs,
    ).write(run.path)


def plan_of(run: RunFolder) -> Plan:
    """The recorded plan of a run folder, with the folder's current paths. Raises Stop if there is
    none."""
    facts = read_record(run.path / CONFIG / PLAN_FILE)
    try:
        return saved_plan.from_json(
            json.dumps(moved(facts, facts["place"]["run_dir"], str(run.path)))
        )
    except (KeyError, TypeError, ValueError):
        raise Stop(
            f"`{run.shown}` has no recorded plan, or a broken one.",
            "Run again the command that created the run. It writes the plan, and repeats no finished work.",
        ) from None
