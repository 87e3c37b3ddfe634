"""`recipe explain`: what a setting does, tried on a recipe, and where it goes."""

from __future__ import annotations

import json

import pytest

from runner.check import by_schema
from runner.check.validate import changed, load
from runner.commands.cli import _code
from runner.parts.planner.planned import Planned
from runner.parts.start.commands import explain
from runner.recipe.document import path_of
from runner.recipe.recipe import Override, rows_of
from runner.tools import packaged
from tests.conftest import RECIPES, ROOT

SURVIVAL = "recipes/survival.yaml"


@pytest.fixture
def told(capsys, monkeypatch):
    """What `recipe explain …` prints."""
    monkeypatch.chdir(ROOT)

    def run(*arguments: str) -> str:
        code = _code(["explain", *arguments])
        said = capsys.readouterr()
        assert code == 0, said.err
        return said.out

    return run


@pytest.mark.parametrize(
    "asked",
    [
        ("train.epochs",),
        ("model.precision", SURVIVAL),
        ("limits.time", SURVIVAL, "--set", "limits.time=20 min"),
        ("train.effective_batch_size", "recipes/minimal/lora.yaml"),
        ("demo",),
        ("lr", SURVIVAL),
        ("openshift.queue",),
        ("data.sets[].share", SURVIVAL),
        ("stages.1.train.beta", "recipes/sft-dpo.yaml"),
    ],
    ids=" ".join,
)
def test_a_setting_is_explained_in_words(told, golden_message, asked):
    golden_message(told(*asked))


def test_recipe_and_setting_may_change_places(told):
    assert told(SURVIVAL, "lr") == told("lr", SURVIVAL)


@pytest.mark.parametrize("word", ["train.epocs", "epocs", "trian", "nonsense"])
def test_a_misspelt_setting_is_answered_with_the_near_one(word, capsys, golden_message):
    assert _code(["explain", word]) == 1
    golden_message(capsys.readouterr().err)


def test_what_more_and_less_cost_is_what_the_plan_says_of_them(told):
    (found,) = json.loads(told("model.sequence_len", SURVIVAL, "--format", "json"))
    recipe, _, _ = load(ROOT / SURVIVAL)
    assert [each["value"] for each in found["beside"]] == [512, 2048]
    for each in (found["here"], *found["beside"]):
        planned = Planned.of(
            changed(recipe, [Override("model.sequence_len", None, each["value"])])[0]
        )
        assert each["memory_bytes"] == planned.forecasts[0].full.memory.total
        assert each["seconds"] == planned.seconds
    assert found["origin"] == "line 24" and found["source"].startswith("sequence_len: 1024")


@pytest.mark.parametrize(
    ("setting", "file", "line"),
    [
        ("train.weight_decay", "axolotl.yaml", "weight_decay: 0.005"),
        ("openshift.deadline_hours", "pytorchjob.yaml", "activeDeadlineSeconds: 43200"),
        ("openshift.queue", "pytorchjob.yaml", "kueue.x-k8s.io/queue-name: default2"),
        ("serve.concurrency", "serve/inferenceservice.yaml", "- --max-num-seqs=4"),
        ("openshift.claims[1].size_gib", "claims.yaml", "storage: 25Gi"),
        ("communication.nccl_debug", "pytorchjob.yaml", "value: VERSION"),
    ],
)
def test_where_a_setting_goes_is_found_by_changing_it(setting, file, line):
    recipe, _, _ = load(ROOT / SURVIVAL)
    (fact,) = explain.facts(setting.replace("[1]", "[0]"), (recipe.scenario,))
    found = explain.tried(explain.replace(fact, setting=setting), recipe)
    assert any(line in (each.changed or {}).get(file, ()) for each in found.beside), found.beside
    # Hashes and copies of the recipe follow every change, and are no place where a setting goes.
    assert all(
        "fingerprint" not in one
        for each in found.beside
        for lines in (each.changed or {}).values()
        for one in lines
    )


def test_of_nothing_there_is_no_half_and_what_the_schema_shows_is_tried():
    recipe, _, _ = load(ROOT / SURVIVAL, [Override("train.weight_decay", None, 0.0)])
    (fact,) = explain.facts("train.weight_decay", (recipe.scenario,))
    (each,) = explain.tried(fact, recipe).beside
    assert each.shown == "0.01" and "weight_decay: 0.01" in each.changed["axolotl.yaml"]


@pytest.mark.long
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_setting_of_every_starter_can_be_explained(path):
    recipe = load(packaged.named()[path.stem])[0]
    settings = [name for name, _ in by_schema.settings(recipe.scenario)]
    assert len(settings) > 100
    silent = []
    for setting in settings:
        assert explain.named(setting, (recipe.scenario,)) == [setting]
        (fact,) = explain.facts(setting, (recipe.scenario,))
        if fact.within:
            continue
        found = explain.tried(fact, recipe)
        if not any(each.changed for each in found.beside) and not any(
            each.refused for each in found.beside
        ):
            silent.append(setting)
    # A setting that changes nothing that is emitted, and is not refused, stands in a list of which
    # there is no entry, or has one choice alone, as the technique has.
    narrowed = by_schema.schema(
        recipe.scenario, rows_of(recipe.document.data, by_schema.schema(recipe.scenario))
    )
    alone = [
        one for one in settings if len(by_schema.below(narrowed, path_of(one)).get("enum", ())) == 1
    ]
    assert all("[0]" in one or one in ("scenario", *alone) for one in silent), silent
