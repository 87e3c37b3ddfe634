"""Scenario last-layers on all layers: with the LM head that is the whole model, the embedding and
the last norm too."""

from __future__ import annotations

import pytest

from runner.check.validate import examine, load
from runner.parts.planner import forecast
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from tests.conftest import ROOT

MINIMAL = ROOT / "recipes" / "minimal" / "last-layers.yaml"
# Embedding and head are two, and there is a last norm.
UNTIED = ("model.base=Qwen/Qwen2.5-7B-Instruct",)
LAYERS = 28


def trained(*options: str) -> tuple[dict, int, int]:
    recipe, _, _ = load(MINIMAL, from_options([*UNTIED, *options]))
    plan = translate(recipe, place(recipe))
    (found,) = forecast.of(recipe, plan, look=False)
    return plan.stage("train").config, found.counts.trainable, found.counts.total


def test_all_layers_with_the_head_are_every_weight():
    config, moved, total = trained(f"train.last_layers={LAYERS}")
    # Axolotl trains every weight where none is named.
    assert "unfrozen_parameters" not in config and moved == total


@pytest.mark.parametrize("less", [f"train.last_layers={LAYERS - 1}", "train.lm_head=false"])
def test_a_layer_less_or_no_head_leaves_embedding_and_last_norm_as_they_are(less):
    config, moved, total = trained(f"train.last_layers={LAYERS}", less)
    named = config["unfrozen_parameters"]
    assert not [one for one in named if "embed" in one or "model.norm" in one]
    assert total - moved > 152_064 * 3584


def test_more_layers_than_there_are_are_answered_with_what_trains_everything(golden_message):
    (problem,) = examine(MINIMAL, from_options([*UNTIED, "train.last_layers=99"]))
    golden_message(problem)
