"""Energy-based fine-tuning: what a recipe may say of it, what Axolotl gets, and what a plan
counts."""

from dataclasses import replace

import pytest

from runner import scenarios
from runner.check.validate import examine, load
from runner.parts.planner import memory
from runner.parts.planner.state import held
from runner.parts.planner.workload import from_stage
from runner.recipe.overrides import from_options
from runner.recipe.recipe import PROMPTS
from runner.scenarios import place
from tests.scenarios.test_combinations import written


def work(path, *options: str):
    recipe = load(path, from_options(options))[0]
    stage = scenarios.translate(recipe, place(recipe)).stage("train")
    return from_stage(stage, recipe.facts), stage.config


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("ebft.stride=4", "is not a setting of `ebft`"),
        ("train.eval_batch_size=6", "no multiple of the 8 answers"),
        ("train.vllm_server=there:8000", "only for a vLLM server"),
        ("rewards.exact.weight=1", "rewards have no effect"),
        ("train.objective=grpo", "only for energy-based fine-tuning"),
    ],
)
def test_what_makes_no_sense_is_refused(option, said, tmp_path):
    path = written(tmp_path, "lora", PROMPTS, features=True)
    found = [
        problem for problem in examine(path, from_options([option])) if problem.severity == "error"
    ]
    assert found and any(said in f"{problem.message} {problem.hint}" for problem in found), found


def test_a_server_of_vllm_writes_the_answers(tmp_path):
    path = written(tmp_path, "lora", PROMPTS, features=True)
    _, config = work(path, "train.generator=vllm-server", "train.vllm_server=gpu-2:8001")
    trl = config["trl"]
    assert (trl["vllm_mode"], trl["vllm_server_host"], trl["vllm_server_port"]) == (
        "server",
        "gpu-2",
        8001,
    )
    assert "vllm" not in config and "generation_batch_size" not in trl


def test_the_plan_counts_the_copy_of_the_model_that_features_come_from(tmp_path):
    path = written(tmp_path, "full", PROMPTS, features=True)
    compared, _ = work(path)
    plain = held(compared).weights - held(of_the_next_token(compared)).weights
    assert plain >= 2 * 360_000_000
    lora = written(tmp_path, "lora", PROMPTS, features=True)
    adapted, _ = work(lora)
    assert held(adapted).weights < 1.2 * 2 * 362_000_000
    assert memory.estimate(adapted).total < memory.estimate(compared).total


def of_the_next_token(workload):
    """The same training of the next token."""
    return replace(workload, objective="sft", generated=0)
