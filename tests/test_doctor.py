"""The doctor says what will not work, in plain words, with what mends it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner.execute import doctor
from runner.execute.probing import PACKAGES, Card, Machine
from runner.recipe.changes import from_options
from runner.recipe.check import load
from runner.scenarios import translate
from runner.targets import kubernetes, place
from tests.conftest import RECIPES, ROOT

H100 = Card("NVIDIA H100 80GB HBM3", 79.6, "9.0")
A100 = Card("NVIDIA A100-SXM4-80GB", 79.3, "8.0")
# What `nvidia-smi topo -m` writes below every table, whatever stands in it.
LEGEND = """
Legend:

  X    = Self
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
LINKS = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n" + LEGEND
WELL = Machine(
    python="3.11.7",
    packages=dict.fromkeys(PACKAGES, "1.0") | {"axolotl": "0.19.0"},
    cards=(H100,) * 8,
    driver="570.1",
    links=LINKS,
    memory_gib=2000,
    shm_gib=64,
    disk_gib=5000,
    folder="/tmp",
    cores=128,
    hub=None,
    token=True,
)


def seven_b(*options):
    recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml", from_options(options))
    return recipe, translate(recipe, kubernetes.place(recipe))


def found(machine: Machine, *options: str) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {doctor.OK: [], doctor.WARNING: [], doctor.PROBLEM: []}
    for finding in doctor.findings(machine, *seven_b(*options)):
        said[finding.state].append(str(finding))
        assert finding.state == doctor.OK or finding.mend, f"nothing mends: {finding}"
    return said


def test_a_fitting_machine_has_no_problem_and_no_warning():
    said = found(WELL)
    assert said[doctor.PROBLEM] == [] and said[doctor.WARNING] == []
    assert any(
        "8 × NVIDIA H100 80GB HBM3, 79.6 GiB, compute capability 9.0, FP8, driver 570.1" in line for line in said["ok"]
    )
    assert any("NVLink" in line for line in said["ok"])


@pytest.mark.parametrize(
    ("change", "state", "words", "mend"),
    [
        ({"cards": ()}, "problem", "this machine has none", "recipe rehearse"),
        (
            {"cards": (A100,) * 8},
            "problem",
            "planned in FP8, and NVIDIA A100-SXM4-80GB has none",
            "model.precision=bf16",
        ),
        (
            {"cards": (A100,) * 8},
            "warning",
            "planned for NVIDIA H100 SXM5 80 GB, and this is NVIDIA A100",
            "machines.gpu=NVIDIA-A100-SXM4-80GB",
        ),
        ({"cards": (H100,) * 4}, "warning", "4 here, and the recipe plans 8", "machines.gpus_per_node=4"),
        (
            {"cards": (replace(H100, memory_gib=47.0),) * 8},
            "problem",
            "47 GiB, and the recipe is planned for 80 GiB",
            "micro_batch_size",
        ),
        ({"links": "\tGPU0\tGPU1\nGPU0\t X \tPHB\n" + LEGEND}, "warning", "over PCIe", "ddp"),
        ({"packages": WELL.packages | {"axolotl": None}}, "problem", "not installed: axolotl", "recipe-runner[train]"),
        ({"packages": WELL.packages | {"axolotl": "0.18.0"}}, "problem", "version 0.18.0", "axolotl==0.19.0"),
        ({"packages": WELL.packages | {"flash-attn": None}}, "problem", "flash_attention_2", "sdpa"),
        ({"packages": WELL.packages | {"datatrove": None}}, "problem", "cleaning text", "recipe-runner[data]"),
        ({"memory_gib": 64}, "problem", "the recipe plans 512 GiB", "another machine"),
        ({"shm_gib": 0.06}, "warning", "/dev/shm", "--shm-size"),
        ({"disk_gib": 100}, "problem", "models and checkpoints take about", "--out"),
        ({"ports_taken": (29500,)}, "warning", "29500 is taken", "MASTER_PORT"),
        ({"hub": "it does not answer"}, "problem", "it does not answer", "local files"),
        (
            {"gated": {"big/model": "its owner has to grant access first"}},
            "problem",
            "big/model cannot be read",
            "ask for access",
        ),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)
def test_what_will_not_work_is_said_with_what_mends_it(change, state, words, mend):
    lines = [line for line in found(replace(WELL, **change))[state] if words in line]
    assert lines, found(replace(WELL, **change))
    assert any(mend in line for line in lines), lines


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_starter_recipe_is_looked_at(path):
    recipe, _, _ = load(path)
    subjects = {finding.subject for finding in doctor.findings(WELL, recipe, translate(recipe, place(recipe)))}
    assert subjects >= {"packages", "GPU", "interconnect", "memory", "disk", "port", "hub"}


def test_images_need_no_axolotl():
    recipe, _, _ = load(ROOT / "recipes" / "resnet.yaml")
    plan = translate(recipe, place(recipe))
    bare = WELL.packages | dict.fromkeys(("axolotl", "peft", "trl"))
    lines = [str(finding) for finding in doctor.packages(replace(WELL, packages=bare), recipe, plan)]
    assert lines == ["ok       packages     Python 3.11.7, torch 1.0, transformers 1.0, accelerate 1.0, datasets 1.0"]


def test_sharing_by_deepspeed_needs_its_package():
    recipe, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options(["distribution=zero2"]))
    machine = replace(WELL, packages=WELL.packages | {"deepspeed": None})
    lines = [str(finding) for finding in doctor.packages(machine, recipe, None)]
    assert any(
        "deepspeed    not installed, and the recipe needs it for `distribution: zero2`" in line for line in lines
    )


def test_a_recipe_in_bf16_fits_an_a100():
    machine = replace(WELL, cards=(A100,) * 8)
    said = found(machine, "machines.gpu=NVIDIA-A100-SXM4-80GB")
    assert said[doctor.PROBLEM] == [] and said[doctor.WARNING] == []


@pytest.mark.parametrize("name", ["seven-b", "survival"])
def test_the_disk_that_a_run_takes_is_the_plan_s(name, recipe_command):
    recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml")
    plan = translate(recipe, kubernetes.place(recipe))
    found = json.loads(recipe_command("plan", ROOT / "recipes" / f"{name}.yaml", "--format", "json").stdout)
    entries = [*found["before_training_bytes"], *(entry for stage in found["stages"] for entry in stage["disk_bytes"])]
    once = {(entry["what"], entry["folder"]): entry["size"] for entry in entries}
    assert doctor.needed_gib(recipe, plan) == pytest.approx(sum(once.values()) / 2**30)
    assert doctor.needed_gib(None, None) == 0


def test_an_8_bit_optimizer_needs_its_package():
    machine = replace(WELL, packages=WELL.packages | {"bitsandbytes": None})
    assert found(machine)[doctor.PROBLEM] == []
    assert any("8-bit" in line for line in found(machine, "pretrain.optimizer=adamw_bnb_8bit")[doctor.PROBLEM])


def test_the_command_looks_at_this_machine(recipe_command):
    done = recipe_command("doctor", "recipes/survival.yaml", env={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "problem  GPU" in done.stdout and "HF_HUB_OFFLINE is set" in done.stdout
    without = recipe_command("doctor", env={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert without.returncode == 0, without.stdout + without.stderr
    assert "warning  GPU" in without.stdout
