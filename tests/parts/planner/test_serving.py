"""What a server needs: by sums that somebody can do by hand, and by what must hold whatever the
numbers are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner import catalog
from runner.check.validate import load
from runner.commands import cli
from runner.parts.planner import parameters
from runner.parts.serve import serving
from runner.parts.serve.kserve import served
from runner.parts.serve.serving import COUNTS, GIB, GPU_SHARE, ServingForecast, splits
from runner.recipe.overrides import from_options
from tests.conftest import RECIPES, ROOT, setting_of

SURVIVAL = ROOT / "recipes" / "survival.yaml"
SMOL = catalog.model("HuggingFaceTB/SmolLM3-3B")


def forecast(**change) -> ServingForecast:
    usual = ServingForecast(SMOL, 1, "bf16", 4096, 8, 0, 1, catalog.gpu("NVIDIA-L40S"))
    return replace(usual, **change)


def of(path=SURVIVAL, *sets: str):
    recipe, _, _ = load(path, from_options(sets))
    plan, server = served(recipe)
    return recipe, plan, server, server.forecast


def test_weights_and_cache_are_what_the_models_sizes_say():
    """SmolLM3: 3,075,098,624 parameters; 36 layers, 4 heads of keys and values with 128 numbers
    each."""
    needs = forecast()
    assert needs.weights == 2 * 3_075_098_624
    assert needs.cache_a_token == 2 * 36 * 4 * 128 * 2 == 73_728
    assert needs.cache == 8 * 4096 * 73_728
    assert needs.budget == round(GPU_SHARE * catalog.gpu("NVIDIA-L40S").usable_gib * GIB)
    assert needs.total == needs.weights + needs.cache + needs.working + needs.overhead


def test_a_context_takes_whole_pages():
    assert forecast(context=4097).cache_a_request == 4112 * 73_728


def test_an_adapter_takes_what_peft_would_make_of_every_layer():
    from math import prod

    shapes = {
        name: shape for name, shape in parameters.named(SMOL) if name.endswith("_proj.weight")
    }
    assert forecast(rank=16).adapter == 2 * sum(16 * sum(shape) for shape in shapes.values())
    assert prod(next(iter(shapes.values()))) and forecast().adapter == 0


def test_gpus_share_weights_and_cache_and_nothing_fits_worse_on_more():
    one, two, eight = (replace(forecast(), gpus=count) for count in (1, 2, 8))
    assert two.weights == one.weights // 2 and two.cache == one.cache // 2
    # Four heads of keys and values are on eight GPUs twice.
    assert eight.cache == one.cache // 4
    assert one.total - one.cache > two.total - two.cache


def test_as_many_requests_have_room_as_are_promised():
    needs = forecast()
    assert needs.requests > needs.concurrency and needs.fits
    full = replace(needs, concurrency=needs.requests)
    assert full.fits or full.working > needs.working
    assert replace(needs, concurrency=needs.requests + 1).fits is False
    assert forecast(gpu=None).fits is None and forecast(gpu=None).requests is None


def test_models_are_split_as_their_heads_allow():
    assert splits(SMOL, COUNTS) == [1, 2, 4, 8]
    assert splits(replace(SMOL, num_attention_heads=24, num_key_value_heads=8), COUNTS) == [
        1,
        2,
        4,
        8,
    ]
    assert splits(replace(SMOL, num_attention_heads=4, num_key_value_heads=1), COUNTS) == [1, 2, 4]
    assert splits(replace(SMOL, num_attention_heads=15, num_key_value_heads=5), COUNTS) == [1]


def test_the_fewest_gpus_that_have_room_are_taken():
    few, many = (
        of(SURVIVAL, f"serve.concurrency={count}", "serve.context=32768") for count in (8, 40)
    )
    assert few[2].gpus == 1 and many[2].gpus == 4
    assert many[3].fits and not replace(many[3], gpus=2).fits
    (note,) = serving.problems(many[0], many[2])
    assert note.severity == "note" and "4 GPUs of one machine" in note.message


def test_what_has_no_room_is_said_at_its_line_with_what_has():
    recipe, _, server, needs = of(
        SURVIVAL, "serve.concurrency=400", "serve.context=32768", "serve.gpus=1"
    )
    (problem,) = serving.problems(recipe, server)
    assert problem.severity == "error" and setting_of(problem) == "serve.concurrency"
    assert f"`concurrency: {needs.requests}`" in problem.hint
    again = of(
        SURVIVAL, f"serve.concurrency={needs.requests - 1}", "serve.context=32768", "serve.gpus=1"
    )
    assert again[3].fits


def test_left_out_the_context_is_that_of_training():
    recipe, _, server, _ = of(ROOT / "recipes" / "seven-b.yaml", "serve={}")
    assert server.context == recipe.of_stage("lora").model.sequence_len


@pytest.mark.parametrize(
    "path",
    [path for path in RECIPES if "\nserve:" in path.read_text("utf-8")],
    ids=lambda path: path.stem,
)
def test_a_starters_server_fits(path):
    recipe, _, server, needs = of(path)
    assert needs.fits and serving.problems(recipe, server) == []
    machines = served(recipe)[0].stages[-1].machines
    assert server.memory_gib <= (machines.requested_memory_gib or machines.memory_gib)


def test_plan_serve_shows_every_part(capsys, golden_message):
    assert cli._code(["plan", str(ROOT / "recipes" / "lyrics.yaml"), "--serve"]) == 0
    golden_message(capsys.readouterr().out)


def test_plan_serve_as_json_is_the_same_figures(capsys):
    assert cli._code(["plan", str(SURVIVAL), "--serve", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    needs = of()[3]
    assert (
        said["forecast"]["total"] == needs.total and said["forecast"]["requests"] == needs.requests
    )
    assert said["server"]["source"]["uri"] == "pvc://trained-models-pvc/survival/best_model"


def test_plan_serve_ends_with_1_where_it_does_not_fit(capsys):
    sets = [
        "--set",
        "serve.concurrency=400",
        "--set",
        "serve.context=32768",
        "--set",
        "serve.gpus=1",
    ]
    assert cli._code(["plan", str(SURVIVAL), "--serve", *sets]) == 1
    assert "does not fit" in capsys.readouterr().out


def test_a_recipe_without_the_section_is_reckoned_with_its_defaults(capsys):
    assert cli._code(["plan", str(ROOT / "recipes" / "seven-b.yaml"), "--serve"]) == 0
    assert "the recipe asks for 8" in capsys.readouterr().out
