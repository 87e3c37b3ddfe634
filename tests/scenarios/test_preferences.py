"""Preferences without a second model: ORPO and SimPO, as Axolotl gets them, as they are planned, and as they train."""

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
from runner.recipe.recipe import PREFERENCES
from runner.scenarios.targets import place
from runner.tools.files import read_record
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT
from tests.scenarios.test_combinations import written

OBJECTIVES = ("dpo", "orpo", "simpo")


def workload(path, *options: str) -> tuple[dict, Workload]:
    recipe, _, _ = load(path, from_options(options))
    (stage,) = [stage for stage in scenarios.translate(recipe, place(recipe)).stages if stage.trains]
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
    # Axolotl refuses a share of the steps beside SimPO; its trainer gets it from the runner's plug-in.
    warmup = config["recipe_runner"].get("warmup_ratio"), config.get("warmup_ratio")
    assert warmup == ((0.03, None) if objective == "simpo" else (None, 0.03))


def test_the_plan_has_one_model_and_one_forward_pass_fewer(tmp_path):
    path, gpu = written(tmp_path, "full", PREFERENCES), catalog.gpu("NVIDIA-L40S")
    dpo, orpo, simpo = (workload(path, f"train.objective={name}")[1] for name in OBJECTIVES)
    weights = state.weights_of(dpo)
    assert [state.held(one).weights for one in (dpo, orpo, simpo)] == [2 * weights, weights, weights]
    assert dpo.answers == orpo.answers == simpo.answers == 2
    assert orpo.warmup_ratio == simpo.warmup_ratio == 0.03
    assert max(duration.computing(one, gpu) for one in (orpo, simpo)) < 0.9 * duration.computing(dpo, gpu)


def test_a_margin_belongs_to_simpo_alone(tmp_path, golden_message):
    path = written(tmp_path, "lora", PREFERENCES)
    found = examine(path, from_options(["train.objective=orpo", "train.simpo_margin=0.5"]))
    golden_message([one for one in found if one.severity == "error"])
    config, _ = workload(path, "train.objective=simpo", "train.simpo_margin=0.5", "train.beta=2.5")
    assert (config["simpo_gamma"], config["rl_beta"]) == (0.5, 2.5)


@pytest.mark.long
@pytest.mark.parametrize("technique", ["full", "lora"])
@pytest.mark.parametrize("objective", ["orpo", "simpo"])
def test_each_step_of_a_rehearsal_has_the_loss_of_trls_own_trainer(objective, technique, tmp_path, recipe_command):
    path, run = written(tmp_path, technique, PREFERENCES), tmp_path / "run"
    path.write_text(path.read_text("utf-8") + f"train: {{objective: {objective}}}\n", encoding="utf-8")
    done = recipe_command("rehearse", path, "--out", run, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    proof = read_record(run / "proof.json")
    assert proof["kind"] == "preferences" and proof["judged"] == proof["rows"] > 100 and proof["batches"] > 1
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
