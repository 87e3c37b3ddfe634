"""The doctor says what will not work, in plain words, with what mends it."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, replace

import pytest

from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu
from runner.check.validate import load
from runner.data.hub_failures import NO_ACCESS
from runner.parts.jobs import kubernetes
from runner.parts.planner import processor
from runner.parts.start.commands import doctor
from runner.parts.start.commands.doctor import FLASH_KERNEL, PACKAGES, Card, Machine, probe
from runner.recipe.overrides import from_options
from runner.run.launch import particular
from runner.scenarios import place, translate
from runner.tools.files import cache_folder, write_json
from tests.conftest import ROOT, STARTERS

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
    packages=dict.fromkeys(PACKAGES, "1.0") | {"python": "3.11.7", "axolotl": "0.19.0"},
    cards=(H100,) * 8,
    driver="580.65",
    cuda="13.0",
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


def test_a_fitting_machine_has_no_problem_and_no_warning(golden_message):
    said = found(WELL)
    assert said[doctor.PROBLEM] == [] and said[doctor.WARNING] == []
    golden_message("\n".join(said[doctor.OK]))


NO_FLASH = WELL.packages | {"flash-attn": None}
# What is not as it should be, and the subject of what is said of it.
AMISS = {
    "no GPU": ({"cards": ()}, "warning", "GPU"),
    "no GPU and too little memory for a processor": (
        {"cards": (), "memory_gib": 64.0},
        "problem",
        "GPU",
    ),
    "an old driver": ({"driver": "535.104.05", "cuda": "13.0"}, "problem", "NVIDIA driver"),
    "no FP8": ({"cards": (A100,) * 8}, "problem", "FP8"),
    "another GPU": ({"cards": (A100,) * 8}, "warning", "GPU"),
    "fewer GPUs": ({"cards": (H100,) * 4}, "warning", "GPU"),
    "less GPU memory": ({"cards": (H100._replace(memory_gib=47.0),) * 8}, "problem", "GPU memory"),
    "no NVLink": ({"links": "\tGPU0\tGPU1\nGPU0\t X \tPHB\n" + LEGEND}, "warning", "interconnect"),
    "no axolotl": ({"packages": WELL.packages | {"axolotl": None}}, "problem", "packages"),
    "another axolotl": ({"packages": WELL.packages | {"axolotl": "0.18.0"}}, "problem", "axolotl"),
    "no kernels": ({"packages": NO_FLASH | {"kernels": None}}, "problem", "flash-attn"),
    "no kernels and no hub": (
        {"packages": NO_FLASH, "hub": "it does not answer"},
        "problem",
        "flash-attn",
    ),
    "kernels of the hub": ({"packages": NO_FLASH}, "warning", "flash-attn"),
    "no datatrove": ({"packages": WELL.packages | {"datatrove": None}}, "problem", "datatrove"),
    "little memory": ({"memory_gib": 64}, "problem", "memory"),
    "little shared memory": ({"shm_gib": 0.06}, "warning", "memory"),
    "a small disk": ({"disk_gib": 100}, "problem", "disk"),
    "a port in use": ({"ports_taken": (29500,)}, "warning", "port"),
    "no hub": ({"hub": "it does not answer"}, "problem", "hub"),
    "a gated model": ({"gated": {"big/model": NO_ACCESS}}, "problem", "hub"),
}


@pytest.fixture
def processor_as_elsewhere(tmp_path, monkeypatch) -> None:
    """What a processor needs is the same on every machine that runs these tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    card = Gpu(
        PROCESSOR,
        "Some with 4 threads",
        64,
        64.0,
        "0.0",
        90.0,
        "host",
        1.0,
        "torch 2",
        fp32_tflops=0.2,
    )
    monkeypatch.setattr(
        processor, "measure", lambda: write_json(cache_folder() / MEASURED, asdict(card))
    )
    cache_folder().mkdir(parents=True)


@pytest.mark.parametrize("case", AMISS)
def test_what_will_not_work_is_said_with_what_mends_it(
    case, golden_message, processor_as_elsewhere
):
    change, state, subject = AMISS[case]
    findings = [
        finding
        for finding in doctor.findings(replace(WELL, **change), *seven_b())
        if finding.state != doctor.OK
    ]
    assert (state, subject) in [(finding.state, finding.subject) for finding in findings]
    assert all(finding.mend for finding in findings)
    golden_message("\n".join(map(str, findings)))


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_every_starter_recipe_is_looked_at(path):
    recipe, _, _ = load(path)
    subjects = {
        finding.subject
        for finding in doctor.findings(WELL, recipe, translate(recipe, place(recipe)))
    }
    assert subjects >= {"packages", "GPU", "interconnect", "memory", "disk", "port", "hub"}


def test_images_need_no_axolotl(golden_message):
    recipe, _, _ = load(ROOT / "recipes" / "resnet.yaml")
    plan = translate(recipe, place(recipe))
    bare = WELL.packages | dict.fromkeys(("axolotl", "peft", "trl"))
    (finding,) = doctor.packages(replace(WELL, packages=bare), recipe, plan)
    assert finding.state == doctor.OK
    golden_message(finding)


def test_the_image_s_own_kernel_stands_in_for_flash_attn(tmp_path, monkeypatch):
    (tmp_path / "flash").mkdir()
    monkeypatch.setenv("LOCAL_KERNELS", f"someone/else=/nowhere:{FLASH_KERNEL}={tmp_path}/flash")
    packages = {"flash-attn": None, "kernels": "0.16.2"}
    here = probe(tmp_path)
    machine = replace(
        WELL, packages=WELL.packages | packages, flash_kernel=here.flash_kernel, hub="closed"
    )
    lines = [
        finding
        for finding in doctor.packages(machine, *seven_b())
        if finding.subject == "flash-attn"
    ]
    assert [(finding.state, f"{tmp_path}/flash" in finding.text) for finding in lines] == [
        (doctor.OK, True)
    ]


def gemma(*options: str):
    recipe, _, _ = load(ROOT / "recipes" / "gemma.yaml", from_options(options))
    return recipe, translate(recipe, place(recipe))


A40 = Card("NVIDIA A40", 44.4, "8.6")
TABLE = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\t X \t{0}\tPHB\tPHB\nGPU1\t{0}\t X \tPHB\tPHB\nGPU2\tPHB\tPHB\t X \t{1}\nGPU3\tPHB\tPHB\t{1}\t X \n"


@pytest.mark.parametrize(
    ("visible", "cards", "links", "nvlink"),
    [
        (None, (A100, A100, A40, A40), TABLE.format("PHB", "NV4"), True),
        (None, (A100, A100, A40, A40), TABLE.format("NV4", "PHB"), False),
        ("3,0,2", (A40, A100, A40), TABLE.format("PHB", "NV4"), True),
        # Whoever gives out GPUs has given these; they have other numbers here.
        ("GPU-8f6b,GPU-11aa", (A40, A40), TABLE.format("NV4", "NV4"), True),
    ],
)
def test_the_gpus_that_the_recipe_names_are_looked_at_and_no_others(visible, cards, links, nvlink):
    machine = replace(WELL, cards=cards, visible=visible, links=links + LEGEND)
    lines = [
        finding
        for finding in doctor.findings(machine, *gemma())
        if finding.subject in ("GPU", "interconnect")
    ]
    assert [finding.state for finding in lines] == ["ok", "ok" if nvlink else "warning"], [
        *map(str, lines)
    ]
    assert "2 × NVIDIA A40" in lines[0].text
    assert ("NVLink" in lines[1].text) == nvlink


def test_the_port_of_the_recipe_is_looked_at():
    recipe, plan = gemma("nodes.port=29677")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        machine = probe(ROOT, ports=doctor.ports_of(gemma(f"nodes.port={port}")[0]))
    (finding,) = [one for one in doctor.findings(machine, recipe, plan) if one.subject == "port"]
    assert (finding.state, f"{port} is used by another program" in finding.text) == (
        doctor.WARNING,
        True,
    )
    assert "nodes.port" in finding.mend
    assert doctor.ports_of(recipe) == (29677,)
    assert doctor.ports_of(seven_b()[0]) == (29500, 23456)


@pytest.mark.parametrize(
    ("visible", "numbers", "here", "most", "chosen"),
    [
        (None, [2, 3], 4, 2, "2,3"),
        (None, [2, 3], 4, 1, "2"),
        (None, [], 4, 2, "0,1"),
        # Of two that are named one is here; the others belong to somebody else.
        (None, [2, 3], 3, 2, "2"),
        # Another machine than the recipe's, or a container that counts from 0.
        (None, [2, 3], 2, 2, "0,1"),
        ("1,2,3", [2, 3], 3, 2, "2,3"),
        ("3, 2", [2, 3], 2, 2, "2,3"),
        # What the environment says wins.
        ("0,1", [2, 3], 2, 2, "0,1"),
        ("GPU-8f6b,GPU-11aa", [2, 3], 2, 1, "GPU-8f6b"),
        # CUDA stops at the first name that is none.
        ("2,9,3", [2, 3], 1, 2, "2"),
        ("", [2, 3], 0, 2, ""),
    ],
)
def test_processes_see_the_gpus_that_the_recipe_names(visible, numbers, here, most, chosen):
    assert ",".join([*particular(visible, numbers, here).values()][:most]) == chosen


def test_sharing_by_deepspeed_needs_its_package(golden_message):
    recipe, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options(["distribution=zero2"]))
    machine = replace(WELL, packages=WELL.packages | {"deepspeed": None})
    lines = [str(finding) for finding in doctor.packages(machine, recipe, None)]
    golden_message("\n".join(line for line in lines if "deepspeed" in line))


def test_a_recipe_in_bf16_fits_an_a100():
    machine = replace(WELL, cards=(A100,) * 8)
    said = found(machine, "machines.gpu=NVIDIA-A100-SXM4-80GB")
    assert said[doctor.PROBLEM] == [] and said[doctor.WARNING] == []


@pytest.mark.parametrize("name", ["seven-b", "survival"])
def test_the_disk_that_a_run_takes_is_the_plan_s(name, recipe_command):
    recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml")
    plan = translate(recipe, kubernetes.place(recipe))
    found = json.loads(
        recipe_command("plan", ROOT / "recipes" / f"{name}.yaml", "--format", "json").stdout
    )
    entries = [
        *found["before_training_bytes"],
        *(entry for stage in found["stages"] for entry in stage["disk_bytes"]),
    ]
    once = {(entry["what"], entry["folder"]): entry["size"] for entry in entries}
    assert doctor.needed_gib(recipe, plan) == pytest.approx(sum(once.values()) / 2**30)
    assert doctor.needed_gib(None, None) == 0


def test_an_8_bit_optimizer_needs_its_package():
    machine = replace(WELL, packages=WELL.packages | {"bitsandbytes": None})
    assert found(machine)[doctor.PROBLEM] == []
    assert any(
        "`optimizer: adamw_bnb_8bit`" in line
        for line in found(machine, "stages.0.train.optimizer=adamw_bnb_8bit")[doctor.PROBLEM]
    )


def test_the_command_looks_at_this_machine(recipe_command):
    done = recipe_command(
        "doctor", "recipes/seven-b.yaml", env={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "problem  GPU" in done.stdout and "HF_HUB_OFFLINE is set" in done.stdout
    without = recipe_command("doctor", env={"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert without.returncode == 0, without.stdout + without.stderr
    assert "warning  GPU" in without.stdout
