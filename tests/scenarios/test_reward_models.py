"""Reward models: what Axolotl gets, how they are planned, what the trained model says, and what
cannot be asked of it."""

import pytest
import torch

from runner import catalog
from runner.check.validate import examine
from runner.parts.planner import parameters, state
from runner.recipe.overrides import from_options
from runner.recipe.recipe import PREFERENCES
from runner.tools.files import read_record
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT
from tests.scenarios.test_combinations import written
from tests.scenarios.test_preferences import workload

REWARD = "train.objective=reward"


@pytest.mark.parametrize("technique", ["lora", "qlora", "last-layers", "full"])
def test_axolotl_accepts_what_it_gets(technique, tmp_path):
    config, _ = workload(written(tmp_path, technique, PREFERENCES), REWARD)
    checked = validated(config, catalog.gpu("NVIDIA-L40S"), 1)
    assert unknown_keys(config) == [] and (checked["reward_model"], checked["num_labels"]) == (
        True,
        1,
    )
    assert checked["type_of_model"] == "AutoModelForSequenceClassification"
    assert not {"rl", "rl_beta", "lora_qkv_kernel"} & {
        key for key, value in config.items() if value
    }
    assert "demo" not in config["recipe_runner"]
    assert ("^score.weight$" in config.get("unfrozen_parameters", ())) == (
        technique == "last-layers"
    )


def test_the_plan_has_no_head_and_no_logits(tmp_path):
    path = written(tmp_path, "full", PREFERENCES)
    options = ("model.base=mistralai/Mistral-7B-v0.3", "machines.gpu=NVIDIA-H100-80GB-HBM3")
    (_, dpo), (_, scores) = (
        workload(path, *options, f"train.objective={name}") for name in ("simpo", "reward")
    )
    head = dpo.model.vocab_size * dpo.model.hidden_size
    assert parameters.total(dpo.model) - parameters.total(scores.model) == head
    assert state.weights_of(dpo) - state.weights_of(scores) == head * (4 if dpo.in_full else 2)
    assert scores.answers == 2 and scores.compared(1000) == 0


def test_a_stage_cannot_start_from_it(tmp_path, golden_message):
    text = (ROOT / "recipes" / "minimal" / "stages.yaml").read_text("utf-8")
    path = tmp_path / "stages.yaml"
    path.write_text(text.replace("../data", str(ROOT / "recipes" / "data")), "utf-8")
    last = ("stages[1].train.objective=reward", "stages[1].gates=[preference_accuracy >= 0.6]")
    assert not [one for one in examine(path, from_options(last)) if one.severity == "error"]
    other = {
        "name": "more",
        "technique": "lora",
        "data": {"hub": "me/rows", "question": "[a]", "answer": "[b]"},
    }
    path.write_text(
        path.read_text("utf-8").replace("machines:", f"  - {other}\nmachines:", 1), "utf-8"
    )
    golden_message([one for one in examine(path, from_options(last)) if one.severity == "error"])


@pytest.mark.long
def test_the_trained_model_prefers_what_it_did_in_training_and_answers_nothing(
    tmp_path, recipe_command
):
    from pyarrow import parquet
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    path, run = written(tmp_path, "qlora", PREFERENCES), tmp_path / "run"
    sets = ("--set", REWARD, "--set", "gates=[preference_accuracy >= 0.55]")
    done = recipe_command("rehearse", path, "--out", run, *sets, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    summary = read_record(run / "training_summary.json")
    model = AutoModelForSequenceClassification.from_pretrained(run / "best_model").eval()
    tokenizer, losses, right = AutoTokenizer.from_pretrained(run / "best_model"), [], []
    for row in parquet.read_table(run / "data" / "validation.parquet").to_pylist():
        both = []
        for side in ("chosen", "rejected"):
            said = [*row["messages"], {"role": "assistant", "content": row[side]}]
            read = tokenizer.apply_chat_template(said, return_tensors="pt", return_dict=True)
            with torch.no_grad():
                both.append(model(**read).logits[0, 0])
        losses.append(float(-torch.nn.functional.logsigmoid(both[0] - both[1])))
        right.append(bool(both[0] > both[1]))
    assert sum(right) / len(right) == pytest.approx(summary["last_preference_accuracy"], abs=1e-6)
    assert summary["first_preference_accuracy"] < summary["last_preference_accuracy"]
    # The base model was in 4 bits in training, and is whole here.
    assert sum(losses) / len(losses) == pytest.approx(summary["best_validation_loss"], abs=0.05)
    for command in (("ask", path, "How?", "--run", run, *sets), ("export", run)):
        refused = recipe_command(*command)
        assert (
            refused.returncode == 1 and "trains a reward model" in refused.stdout + refused.stderr
        )


def test_it_has_no_beta_and_none_is_shown(tmp_path, recipe_command):
    path = written(tmp_path, "lora", PREFERENCES)
    config, _ = workload(path, REWARD)
    assert "rl_beta" not in config
    shown = {
        name: recipe_command("show", path, "--set", f"train.objective={name}").stdout
        for name in ("dpo", "reward")
    }
    assert ["beta:" in shown[name] for name in ("dpo", "reward")] == [True, False]
