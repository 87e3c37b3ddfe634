"""`recipe gpus` and `recipe models`: what the catalog has, and what fits where by the planner's own
memory."""

from __future__ import annotations

import json

import pytest

from runner import catalog
from runner.check.validate import changed, load
from runner.commands.cli import _code
from runner.parts.planner.parameters import has_formulas
from runner.parts.planner.planned import Planned
from runner.parts.start.commands.models import WAYS, needs_of
from runner.recipe.recipe import Override
from tests.conftest import ROOT

SURVIVAL = ROOT / "recipes" / "survival.yaml"


@pytest.fixture
def told(capsys):
    """What a command prints, as text or read from its JSON."""

    def run(*arguments: str, json_too: bool = False):
        code = _code([*arguments, *(["--format", "json"] if json_too else [])])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out) if json_too else said.out

    return run


def test_every_card_of_the_catalog_is_shown(told, golden_message):
    golden_message(told("gpus"))
    assert [card["name"] for card in told("gpus", json_too=True)] == catalog.gpu_names()


def test_a_recipe_is_planned_on_every_card(told, golden_message):
    said = told("gpus", str(SURVIVAL))
    shown = [
        line
        for line in said.splitlines()
        if not line.startswith("NVIDIA-") or "-L4 " in line or "H200" in line
    ]
    golden_message("\n".join(shown))
    found = {each["gpu"]: each for each in told("gpus", str(SURVIVAL), json_too=True)}
    assert list(found) == catalog.gpu_names()
    assert found["NVIDIA-L4"]["fits"] and found["NVIDIA-H200"]["fits"]
    assert "fits your rows" in next(line for line in shown if line.startswith("NVIDIA-L4 "))
    songs = {
        each["gpu"]: each
        for each in told("gpus", str(ROOT / "recipes" / "lyrics.yaml"), json_too=True)
    }
    assert not songs["NVIDIA-L4"]["fits"]
    recipe, _ = changed(load(SURVIVAL)[0], [Override("machines.gpu", None, "NVIDIA-H200")])
    assert found["NVIDIA-H200"]["memory_bytes"] == Planned.of(recipe).forecasts[0].memory.total
    assert (
        "capability" in found["Tesla-T4"]["why_not"] and found["Tesla-T4"]["memory_bytes"] is None
    )


def test_every_model_has_the_smallest_card_for_each_way(told):
    found = {each["model"]: each for each in told("models", json_too=True)}
    assert {*found} == {*catalog.model_ids()}
    years = [each["released"] for each in found.values()]
    assert years == sorted(years, reverse=True) and years[-1] > 2020
    traced = catalog.table("traced-needs")
    for name, each in found.items():
        if has_formulas(catalog.model(name).model_type):
            assert list(each["ways"]) == list(WAYS)
        else:
            assert list(each["ways"]) == list(traced.get(catalog.original(name), {}))
        assert each["licence"] and each["parameters"]
    ways = found["Qwen/Qwen2.5-32B-Instruct"]["ways"]
    assert (
        ways["qlora"]["memory_bytes"]
        < ways["lora"]["memory_bytes"]
        < ways["all weights"]["memory_bytes"]
    )
    assert ways["all weights"]["cards"] == []
    assert (
        ways["lora"]["cards"][0].startswith("NVIDIA-H100")
        and "NVIDIA-L40S" not in ways["lora"]["cards"]
    )


def test_each_traced_need_is_more_than_the_weights():
    """Of one whose half for text has no formulas, and of no model that has some."""
    for name, needs in catalog.table("traced-needs").items():
        model = catalog.model(name)
        assert not has_formulas(model.model_type) and {*needs} <= {*WAYS}
        assert needs["lora"] > 2 * model.parameters
        assert needs.get("qlora", 0) < needs["lora"] < needs["all weights"]
    for name in catalog.model_ids():
        if catalog.release_year(name) == 2026:
            assert needs_of(catalog.model(name)), name


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_a_traced_need_is_what_a_trace_gives(way):
    from benchmarks.traced_needs import traced_need

    name = "Qwen/Qwen3.5-0.8B"
    assert traced_need(catalog.model(name), way) == catalog.table("traced-needs")[name][way]


@pytest.mark.parametrize("way", WAYS)
def test_what_a_model_needs_is_what_its_plan_says(way):
    name = "Qwen/Qwen2.5-7B-Instruct"
    starter, changes = WAYS[way]["starter"], WAYS[way]["settings"]
    wished = {"model.base": name, "model.precision": "bf16", "train.micro_batch_size": 1, **changes}
    path = ROOT / "recipes" / f"{starter}.yaml"
    recipe = load(path, [Override(setting, None, wished[setting]) for setting in wished])[0]
    assert (
        needs_of(catalog.model(name))[way].memory_bytes
        == Planned.of(recipe).forecasts[0].full.memory.total
    )


def test_models_for_one_card_are_those_that_fit_it(told, golden_message):
    found = told("models", "--gpu", "Tesla-T4", json_too=True)
    names = {each["model"] for each in found}
    assert "google/gemma-3-270m" in names and "Qwen/Qwen2.5-32B-Instruct" not in names
    assert all(
        need["cards"] and "Tesla-T4" in need["cards"]
        for each in found
        for need in each["ways"].values()
    )
    golden_message("\n".join(told("models", "--gpu", "Tesla-T4").splitlines()[:3]))


@pytest.mark.parametrize("name", ["L40S", "rtx 4090", "NVIDIA-H10", "cpu"])
def test_a_card_that_nobody_knows_is_answered_with_those_alike(name, capsys, golden_message):
    assert _code(["models", "--gpu", name]) == 1
    golden_message(capsys.readouterr().err)
