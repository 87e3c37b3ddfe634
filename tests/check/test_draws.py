"""What `check` lets through works: drawn recipes are refused with reasons, or they render and plan,
and Axolotl, DeepSpeed, what prepares the rows and a cluster take what they become."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache, lru_cache
from io import StringIO
from types import ModuleType
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner import catalog, parts, scenarios
from runner.catalog import UnknownArchitecture
from runner.check.validate import ALLOWED, examine, load
from runner.data import PREPARERS
from runner.parts.jobs import kubernetes, trainjob
from runner.parts.openshift import site
from runner.parts.openshift.kfp import target
from runner.parts.planner import forecast
from runner.parts.planner.planned import Planned
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios import place, saved_plan
from runner.scenarios.render import emit, named
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.check.test_every_leaf import planned_in_full
from tests.drawing import Drawn, recipes
from tests.parts.openshift.judging import core_refusals, refusals, schema_of

pytestmark = pytest.mark.heavy

CARD = "NVIDIA-L40S"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def accepted(drawn: Drawn) -> bool:
    """Whether `check` lets a recipe through; what it refuses has reasons that can be shown."""
    problems = examine(drawn.starter, drawn.changes, allowed=ALLOWED)
    assert all(
        problem.message and str(problem) and json.dumps(problem.as_json()) for problem in problems
    )
    return not any(problem.severity == "error" for problem in problems)


def rendered(recipe: Recipe, every: bool) -> dict[str, str]:
    """What is written for a recipe, by path; every: for each job and pipeline that its cluster
    knows, and with the site."""
    if not named(recipe):
        return {}
    names = named(recipe)
    where = recipe.settings.get("openshift")
    if where and every:
        jobs = (
            ("pytorchjob", "trainjob")
            if kubernetes.version_numbers(where["version"]) >= trainjob.SINCE
            else ("pytorchjob",)
        )
        names = (*jobs, target.NAME, *(name for name in names if name not in jobs))
    files = emit(recipe, names)
    if where and every:
        files += site.render([planned(recipe)])
    assert all(file.text for file in files if not file.path.endswith("claims.yaml"))
    return {file.path: file.text for file in files}


def planned(recipe: Recipe) -> Plan:
    from runner.scenarios.render import planned

    return planned(recipe, "pytorchjob")


def refused_by_a_cluster(files: dict[str, str], version: str) -> Iterator[str]:
    for path, text in files.items():
        if not path.endswith(".yaml"):
            continue
        for one in yaml.load_all(text, Loader=LOADER):
            known = isinstance(one, dict) and "apiVersion" in one and one["kind"] != "Kustomization"
            if known and not one["apiVersion"].partition("/")[0].endswith("openshift.io"):
                judge = refusals(one, version) if schema_of(one, version) else core_refusals(one)
                yield from (f"{path}: {refusal}" for refusal in judge)


def refused_by_the_engine(recipe: Recipe, stage: Stage) -> Iterator[str]:
    """What Axolotl says of a stage's config, as it reads it from the emitted file, and DeepSpeed of
    its own."""
    files = {file.path: file.text for file in stage.files}
    if stage.engine == "axolotl":
        config = yaml.load(files[stage.config_file], Loader=LOADER)
        # Axolotl looks whether it is there; a processor cannot use it.
        sys.modules.setdefault("ring_flash_attn", ModuleType("ring_flash_attn"))
        try:
            validated(
                config,
                catalog.gpu(recipe.machines.gpu) or catalog.gpu(CARD),
                stage.machines.world_size,
            )
        except Exception as error:
            yield f"Axolotl of `{stage.name}`: {type(error).__name__}: {error}"
        yield from (f"Axolotl drops `{key}` of `{stage.name}`" for key in unknown_keys(config))
    for path, text in files.items():
        if path.endswith("deepspeed.json"):
            yield from refused_by_deepspeed(text)


@lru_cache(1000)
def refused_by_deepspeed(text: str) -> tuple[str, ...]:
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        # What transformers writes in place of `auto`.
        batch = {
            "train_batch_size": 16,
            "train_micro_batch_size_per_gpu": 8,
            "gradient_accumulation_steps": 2,
        }
        DeepSpeedConfig(json.loads(text) | batch)
    except Exception as error:
        return (f"DeepSpeed: {type(error).__name__}: {error}",)
    return ()


@cache
def reads(module: str, function: str) -> Any:
    """What reads the JSON form of that function's first argument, as the pod does before it calls
    it."""
    from pydantic import TypeAdapter

    called = getattr(importlib.import_module(module), function)
    return TypeAdapter(
        next(iter(inspect.signature(called, eval_str=True).parameters.values())).annotation
    )


def refused_in_pods(plan: Plan) -> Iterator[str]:
    """What the programs in pods say of the plan, and of the settings in it that they take."""
    from runner.trainer.settings import RunSettings

    kinds = PREPARERS | parts.table("preparers")
    for stage in saved_plan.from_json(plan.as_json()).stages:
        config = stage.config
        for data in (stage.data, config.get("data"), config.get("prepare")):
            if isinstance(data, dict) and "kind" in data:
                reads(kinds[data["kind"]], "prepare").validate_python(data)
        scenario, point, function = str(config.get("work", "")).partition(".")
        if point:
            reads(f"{scenarios.packages()[scenario]}.work", function).validate_python(config)
        if "lengths" in config:
            reads("runner.parts.pretrain.work", "text").validate_python(config)
        if stage.engine == "images":
            RunSettings.read(config["recipe_runner"])
    yield from ()


def scripts_of(files: dict[str, str]) -> Iterator[str]:
    for path, text in files.items():
        if path.endswith(".sh"):
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
            yield from (f"{path}: {line}" for line in done.stderr.splitlines())


def faults(drawn: Drawn, every: bool) -> list[str] | None:
    """What does not work of a recipe that `check` lets through; None where it does not. every: by
    the judges too that take long."""
    if not accepted(drawn):
        return None
    recipe, _, _ = load(drawn.starter, drawn.changes)
    found = []
    files = rendered(recipe, every)
    where = recipe.settings.get("openshift")
    version = "3.6" if where and kubernetes.patched(where.version) else "3.5"
    found += refused_by_a_cluster(files, version)
    found += scripts_of(files)
    try:
        plan = Planned.of(recipe).plan
        if every:
            planned_in_full(recipe)
    except UnknownArchitecture as error:
        assert forecast.unknown_architecture(recipe, error)
        plan = scenarios.translate(recipe, place(recipe))
    for stage in plan.stages:
        found += refused_by_the_engine(recipe, stage)
    found += refused_in_pods(plan)
    return found


def judged(drawn: Drawn, every: bool) -> None:
    with redirect_stdout(StringIO()):
        found = faults(drawn, every)
    assert not found, "\n".join(found)


# In every tenth draw the judges that take long.
DRAWN = given(recipes(), st.sampled_from([False] * 9 + [True]))
ALL_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


@DRAWN
@settings(max_examples=150, deadline=None, suppress_health_check=ALL_SLOW)
def test_what_check_lets_through_works(drawn, every):
    judged(drawn, every)


@pytest.mark.long
@DRAWN
@settings(
    max_examples=5_000,
    deadline=None,
    derandomize=False,
    database=None,
    suppress_health_check=ALL_SLOW,
)
def test_what_check_lets_through_works_in_many_more(drawn, every):
    judged(drawn, every)


def test_enough_of_what_is_drawn_is_let_through():
    """Else the test above would look at nothing."""
    counts = {True: 0, False: 0}

    @given(recipes())
    @settings(max_examples=60, deadline=None, suppress_health_check=ALL_SLOW)
    def count(drawn):
        counts[accepted(drawn)] += 1

    count()
    assert min(counts.values()) > 10, counts
