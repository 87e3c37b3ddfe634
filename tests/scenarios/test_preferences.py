"""Preferences without a second model: ORPO and SimPO, as Axolotl gets them, as they are planned,
and as they train."""

import json
import os
import subprocess
import sys

import pytest

from runner import catalog, scenarios
from runner.check.validate import examine, load
from runner.parts.planner import duration, state
from runner.parts.planner.workload import Workload, from_stage
from runner.recipe.overrides import from_options
from runner.recipe.recipe import LABELS, PREFERENCES
from runner.scenarios import place
from runner.tools.files import read_record
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT
from tests.scenarios.test_combinations import written

OBJECTIVES = ("dpo", "orpo", "simpo")


def workload(path, *options: str) -> tuple[dict, Workload]:
    recipe, _, _ = load(path, from_options(options))
    (stage,) = [
        stage for stage in scenarios.translate(recipe, place(recipe)).stages if stage.trains
    ]
    assert recipe.model_facts
    return dict(stage.config), from_stage(stage, recipe.model_facts)


@pytest.mark.parametrize("technique", ["lora", "qlora", "last-layers", "full"])
@pytest.mark.parametrize("objective", ["orpo", "simpo"])
def test_axolotl_accepts_what_it_gets(objective, technique, tmp_path):
    path = written(tmp_path, technique, PREFERENCES)
    config, _ = workload(path, f"train.objective={objective}")
    checked = validated(config, catalog.gpu("NVIDIA-L40S"), 1)
    assert unknown_keys(config) == [] and checked["rl"] == objective
    numbers = {"orpo": (0.1, None, None), "simpo": (2.0, 1.0, 0.0)}[objective]
    assert tuple(checked.get(name) for name in ("rl_beta", "simpo_gamma", "cpo_alpha")) == numbers
    # Axolotl refuses a share of the steps beside SimPO; its trainer gets it from the runner's
    # plug-in.
    warmup = config["recipe_runner"].get("warmup_ratio"), config.get("warmup_ratio")
    assert warmup == ((0.03, None) if objective == "simpo" else (None, 0.03))


def test_the_plan_has_one_model_and_one_forward_pass_fewer(tmp_path):
    path, gpu = written(tmp_path, "full", PREFERENCES), catalog.gpu("NVIDIA-L40S")
    dpo, orpo, simpo = (workload(path, f"train.objective={name}")[1] for name in OBJECTIVES)
    weights = state.weights_of(dpo)
    assert [state.held(one).weights for one in (dpo, orpo, simpo)] == [
        2 * weights,
        weights,
        weights,
    ]
    assert dpo.answers == orpo.answers == simpo.answers == 2
    assert orpo.warmup_ratio == simpo.warmup_ratio == 0.03
    assert max(duration.computing(one, gpu) for one in (orpo, simpo)) < 0.9 * duration.computing(
        dpo, gpu
    )


def test_labels_are_planned_and_weighed(tmp_path):
    """Two models, one answer a row, and three more forward passes: of KTO's mismatched answers, and
    of the first model."""
    path, gpu = written(tmp_path, "full", LABELS), catalog.gpu("NVIDIA-L40S")
    config, kto = workload(path, "train.kto_undesirable_weight=1.5")
    checked = validated(config, gpu, 1)
    assert unknown_keys(config) == [] and checked["remove_unused_columns"] is False
    assert (checked["kto_desirable_weight"], checked["kto_undesirable_weight"]) == (1.0, 1.5)
    assert state.held(kto).weights == 2 * state.weights_of(kto) and kto.answers == 1
    _, dpo = workload(written(tmp_path, "full", PREFERENCES), "train.micro_batch_size=2")
    assert dpo.micro_batch_size * dpo.answers == kto.micro_batch_size == 4
    assert duration.computing(kto, gpu) > 1.3 * duration.computing(dpo, gpu)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (LABELS, ("train.objective=dpo",)),
        (LABELS, ("train.micro_batch_size=1",)),
        (LABELS, ("train.kto_desirable_weight=0",)),
        (PREFERENCES, ("train.objective=kto",)),
        (PREFERENCES, ("train.objective=reward", "train.beta=0.2")),
        (PREFERENCES, ("train.objective=reward", "demo.questions=[How?]")),
        (PREFERENCES, ("train.objective=reward", "evaluation.tasks=[hellaswag]")),
        (PREFERENCES, ("train.objective=orpo", "train.kto_desirable_weight=2")),
        (PREFERENCES, ("train.adapter=qlora", "machines.gpus_per_node=2", "distribution=fsdp")),
        (LABELS, ("train.adapter=qlora", "machines.gpus_per_node=2", "distribution=fsdp")),
    ],
    ids=lambda part: ", ".join(part) if isinstance(part, tuple) else part,
)
def test_what_makes_no_sense_is_refused_with_a_sentence(rows, options, tmp_path, golden_message):
    path = written(tmp_path, "lora", rows)
    golden_message(
        [one for one in examine(path, from_options(list(options))) if one.severity == "error"]
    )


def test_a_base_in_4_bits_and_preferences_are_split_by_zero(tmp_path):
    path = written(tmp_path, "qlora", PREFERENCES)
    for options in (
        ["distribution=zero2"],
        ["distribution=fsdp", "train.objective=simpo"],
        ["distribution=ddp"],
    ):
        found = examine(path, from_options(["machines.gpus_per_node=2", *options]))
        assert [one.message for one in found if one.severity == "error"] == []


def test_orpo_and_reward_models_have_their_own_learning_rate(tmp_path):
    rates = {"full": (5e-7, 8e-6, 1e-5, 1e-6), "lora": (5e-6, 8e-5, 1e-4, 1e-5)}
    for technique, (usual, orpo, scores, kto) in rates.items():
        path = written(tmp_path, technique, PREFERENCES)
        names = ("dpo", "simpo", "orpo", "reward")
        rate = [workload(path, f"train.objective={name}")[0]["learning_rate"] for name in names]
        assert rate == [usual, usual, orpo, scores]
        assert workload(written(tmp_path, technique, LABELS))[0]["learning_rate"] == kto


def test_a_margin_belongs_to_simpo_alone(tmp_path, golden_message):
    path = written(tmp_path, "lora", PREFERENCES)
    found = examine(path, from_options(["train.objective=orpo", "train.simpo_margin=0.5"]))
    golden_message([one for one in found if one.severity == "error"])
    config, _ = workload(path, "train.objective=simpo", "train.simpo_margin=0.5", "train.beta=2.5")
    assert (config["simpo_gamma"], config["rl_beta"]) == (0.5, 2.5)


@pytest.mark.long
@pytest.mark.parametrize("technique", ["full", "lora"])
@pytest.mark.parametrize("objective", ["dpo", "orpo", "simpo", "kto", "reward"])
def test_each_step_of_a_rehearsal_has_the_loss_of_trls_own_trainer(
    objective, technique, tmp_path, recipe_command
):
    path, run = (
        written(tmp_path, technique, LABELS if objective == "kto" else PREFERENCES),
        tmp_path / "run",
    )
    more = ", kto_undesirable_weight: 1.5" if objective == "kto" else ""
    path.write_text(
        path.read_text("utf-8") + f"train: {{objective: {objective}{more}}}\n", encoding="utf-8"
    )
    done = recipe_command("rehearse", path, "--out", run, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    proof = read_record(run / "proof.json")
    assert proof["kind"] == ("scores" if objective == "reward" else "preferences")
    assert proof["judged"] == proof["rows"] > 100 and proof["batches"] > 1
    if technique != "full":
        return
    command = [sys.executable, "-m", "tests.scenarios.plain_preferences", str(run)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    plain = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert plain.returncode == 0, plain.stderr[-3000:]
    found = json.loads(plain.stdout.splitlines()[-1])
    assert len(found["plain"]) >= 20
    assert found["plain"][0] == pytest.approx(found["rehearsed"][0], abs=1e-5)
    assert found["plain"][:20] == pytest.approx(found["rehearsed"][:20], abs=1e-4)
