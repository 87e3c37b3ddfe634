"""What lies beside the GPUs, an own DeepSpeed or FSDP file, bucket sizes, and precision by
stage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

from runner import catalog
from runner.check.validate import examine, load
from runner.parts.planner import duration, forecast, memory, state, storage
from runner.parts.planner.planned import Planned
from runner.parts.planner.workload import Offload
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from runner.tools.problem import Stop
from tests.conftest import ROOT

SURVIVAL = ROOT / "recipes" / "survival.yaml"
SEVEN_B = ROOT / "recipes" / "seven-b.yaml"


def stage_of(*options, path=SURVIVAL, name="train"):
    recipe, _, _ = load(path, from_options(options))
    return translate(recipe, place(recipe)).stage(name)


def deepspeed(stage) -> dict:
    return json.loads(next(file.text for file in stage.files if file.path == "deepspeed.json"))


def own(tmp_path, name, text, *lines):
    """A copy of the survival recipe that names a file of its own."""
    shutil.copytree(SURVIVAL.parent / "data", tmp_path / "data")
    (tmp_path / name).write_text(text, encoding="utf-8")
    recipe = SURVIVAL.read_text("utf-8")
    recipe = recipe.replace(
        "distribution: ddp ", "\n".join([*lines, f"sharding:\n  file: {name}", "#"])
    )
    (tmp_path / "own.yaml").write_text(recipe, encoding="utf-8")
    return tmp_path / "own.yaml"


BESIDE = {
    "zero2": ("distribution=zero2", "sharding.offload_optimizer=cpu"),
    "zero3": (
        "distribution=zero3",
        "sharding.offload_optimizer=cpu",
        "sharding.offload_weights=cpu",
    ),
    "disk": (
        *("distribution=zero3", "sharding.offload_optimizer=nvme", "sharding.offload_weights=nvme"),
        "sharding.nvme_path=/tmp/offload",
    ),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_lies_beside_the_gpus_is_in_deepspeeds_file(case, golden_message):
    golden_message(
        next(file.text for file in stage_of(*BESIDE[case]).files if file.path == "deepspeed.json")
    )


def test_a_single_gpu_takes_deepspeed_where_something_lies_beside_it():
    alone = ("machines.nodes=1", "train.effective_batch_size=16", *BESIDE["zero2"])
    stage = stage_of(*alone)
    assert (
        stage.machines.world_size == 1
        and deepspeed(stage)["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    )
    with pytest.raises(Stop, match="this recipe has one"):
        load(
            SURVIVAL,
            from_options(
                ["machines.nodes=1", "train.effective_batch_size=16", "distribution=zero2"]
            ),
        )


def test_fsdp_moves_everything_or_nothing():
    both = ("sharding.offload_optimizer=cpu", "sharding.offload_weights=cpu")
    assert stage_of("distribution=fsdp", *both).config["fsdp_config"]["offload_params"] is True
    assert stage_of("distribution=fsdp").config["fsdp_config"]["offload_params"] is False


REFUSED = {
    "weights without zero3": ("distribution=zero2", "sharding.offload_weights=cpu"),
    "disk without zero3": (
        "distribution=zero2",
        "sharding.offload_optimizer=nvme",
        "sharding.nvme_path=/tmp/x",
    ),
    "disk without a folder": ("distribution=zero3", "sharding.offload_optimizer=nvme"),
    "folder on no mount": (
        "distribution=zero3",
        "sharding.offload_optimizer=nvme",
        "sharding.nvme_path=/fast",
    ),
    "folder that leaves /tmp": (
        *("distribution=zero3", "sharding.offload_optimizer=nvme"),
        "sharding.nvme_path=/tmp/../fast",
    ),
    "fsdp knows no disk": (
        *("distribution=fsdp", "sharding.offload_optimizer=nvme", "sharding.offload_weights=nvme"),
        "sharding.nvme_path=/tmp/x",
    ),
    "fsdp knows no half": ("distribution=fsdp", "sharding.offload_optimizer=cpu"),
    "weights on a disk alone": (
        "distribution=zero3",
        "sharding.offload_weights=nvme",
        "sharding.nvme_path=/tmp/x",
    ),
    "nobody reads it": ("sharding.offload_optimizer=cpu",),
    "eight bits": (
        "distribution=zero2",
        "sharding.offload_optimizer=cpu",
        "train.optimizer=paged_adamw_8bit",
    ),
    "eight bits on a disk": (
        *("distribution=zero3", "sharding.offload_optimizer=nvme", "sharding.nvme_path=/tmp/x"),
        "train.optimizer=adamw_bnb_8bit",
    ),
    "no such file": ("distribution=zero2", "sharding.file=nowhere.json"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_at_its_line(case, golden_message):
    problems = examine(SURVIVAL, from_options(REFUSED[case]))
    errors = [problem for problem in problems if problem.severity == "error"]
    assert errors and any(
        "sharding" in problem.file or "optimizer" in problem.file for problem in errors
    )
    golden_message("\n\n".join(str(problem).replace(str(ROOT), "ROOT") for problem in errors))


FILE = """{
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": false,
    "reduce_bucket_size": 200000000,
    "offload_optimizer": {"device": "cpu"}
  },
  "gradient_clipping": 0.3,
  "optimizer": {"type": "AdamW"},
  "steps_per_print": 50
}
"""


def test_an_own_file_is_the_base_and_the_recipe_s_lines_win(tmp_path, golden_message):
    path = own(tmp_path, "own.json", FILE, "distribution: zero3")
    problems = [problem for problem in examine(path) if "own.json" in problem.file]
    assert {problem.severity for problem in problems} == {"note"}
    assert [problem.line for problem in problems] == [3, 8, 9]
    golden_message("\n\n".join(str(problem).replace(str(tmp_path), "HERE") for problem in problems))
    whole = deepspeed(stage_of(path=path))
    zero = whole["zero_optimization"]
    assert zero["stage"] == 3 and whole["gradient_clipping"] == 1.0 and "optimizer" not in whole
    # What the recipe does not say is the file's, and over what the runner would take.
    assert zero["overlap_comm"] is False and zero["reduce_bucket_size"] == 200_000_000
    assert (
        zero["offload_optimizer"] == {"pin_memory": True, "device": "cpu"}
        and whole["steps_per_print"] == 50
    )
    work = forecast.of(*(lambda recipe: (recipe, translate(recipe, place(recipe))))(load(path)[0]))[
        -1
    ].workload
    assert work.offload.optimizer == "cpu" and work.bucket_bytes == 2 * 200_000_000


def test_what_deepspeed_would_pass_over_in_silence_is_refused_at_its_line(tmp_path):
    text = FILE.replace("steps_per_print", "steps_per_prnt").replace(
        '"overlap_comm": false', '"overlap_com": false'
    )
    path = own(tmp_path, "own.json", text, "distribution: zero3")
    wrong = [problem for problem in examine(path) if problem.severity == "error"]
    assert sorted((problem.line, problem.hint) for problem in wrong) == [
        (4, "Did you mean `overlap_comm`?"),
        (10, "Did you mean `steps_per_print`?"),
    ]


def test_an_own_file_for_fsdp_is_judged_by_axolotl_s_schema(tmp_path):
    text = "reshard_after_forward: false\nstate_dict_type: SHARDED_STATE_DICT\ncpu_ram_eficient_loading: true\n"
    path = own(tmp_path, "own.yaml.yml", text, "distribution: fsdp")
    said = {
        (problem.line, problem.severity)
        for problem in examine(path)
        if "own.yaml.yml" in problem.file
    }
    assert said == {(2, "note"), (3, "error")}
    (tmp_path / "own.yaml.yml").write_text(text.rpartition("cpu")[0], encoding="utf-8")
    config = stage_of(path=path).config["fsdp_config"]
    assert (
        config["reshard_after_forward"] is False and config["state_dict_type"] == "FULL_STATE_DICT"
    )


@pytest.mark.parametrize(
    ("nodes", "gpus", "bucket"), [(4, 1, 40_000_000), (16, 8, 128_000_000), (1024, 8, 500_000_000)]
)
def test_a_bucket_is_as_large_as_the_gpus_are_many(nodes, gpus, bucket, tmp_path):
    path = own(tmp_path, "none.json", "{}", "distribution: zero2")
    sizes = (
        f"machines.nodes={nodes}",
        f"machines.gpus_per_node={gpus}",
        f"train.effective_batch_size={16 * nodes * gpus}",
    )
    assert (
        deepspeed(stage_of(*sizes, path=path))["zero_optimization"]["reduce_bucket_size"] == bucket
    )
    assert stage_of("distribution=ddp").config["ddp_bucket_cap_mb"] == 25


def planned(*options):
    recipe, _, _ = load(SURVIVAL, from_options(options))
    return Planned.of(recipe, rows=2845)


def test_the_plan_moves_what_is_offloaded_from_the_gpu_to_main_memory_and_time():
    plain, beside = (
        planned("distribution=zero3", *lines).forecasts[0] for lines in ((), BESIDE["zero3"][1:])
    )
    less = plain.memory.total - beside.memory.total
    held = [getattr(plain.memory.state, name) for name in ("weights", "optimizer")]
    assert less >= sum(held) > 0
    more = sum(storage.host(beside).values()) - sum(storage.host(plain).values())
    assert more >= 16 * plain.counts.trainable / 4
    assert (
        beside.time.step_seconds
        > plain.time.step_seconds + state.stepping(beside.workload, beside.gpu) / 2
    )


def test_a_disk_holds_what_main_memory_would_and_is_slower():
    cpu, disk = (planned(*BESIDE[name]).forecasts[0] for name in ("zero3", "disk"))
    assert state.on_disk(disk.workload) > 0 == state.on_disk(cpu.workload)
    assert disk.time.step_seconds > cpu.time.step_seconds
    faster = planned(*BESIDE["disk"], "sharding.nvme_mb_s=20000").forecasts[0]
    assert faster.time.step_seconds < disk.time.step_seconds
    (entry,) = [
        entry
        for entry in storage.disk(disk, planned(*BESIDE["disk"]).plan)
        if entry.what == state.ON_DISK
    ]
    assert (entry.folder, entry.size) == ("/tmp/offload", state.on_disk(disk.workload))


def test_buffers_count_as_memory():
    work = planned("distribution=zero3").forecasts[0].workload
    base = memory.estimate(work).total
    assert memory.estimate(replace(work, prefetch=10**9)).total > base
    assert memory.estimate(replace(work, bucket_bytes=10**9)).total > base
    # What is needed again soon stays gathered: half of a long reuse is more than the head.
    assert memory.estimate(replace(work, reuse=4 * 10**9)).total > base


def test_a_step_on_the_processors_is_as_slow_as_published():
    """ZeRO-Offload of Qwen2.5-3B on two A100 and 128 cores takes 2.4 to 3.1 s a step (DeepSpeed,
    tutorial of ZeRO-Offload), of which the processors and PCIe are a part."""
    work = replace(
        planned("distribution=zero2").forecasts[0].workload,
        unfrozen=(),
        offload=Offload("cpu"),
        machines=replace(planned().forecasts[0].stage.machines, nodes=1, gpus_per_node=2, cpus=128),
    )
    assert 0.8 < state.stepping(work, catalog.gpu("NVIDIA-A100-SXM4-40GB")) < 2.4
    slower = [
        state.stepping(replace(work, optimizer=name), catalog.gpu("NVIDIA-A100-SXM4-40GB"))
        for name in ("adamw_torch", "adamw_torch_8bit", "adamw_torch_4bit")
    ]
    assert slower == sorted(slower) and slower[0] > 3 and slower[1] > 20
    small = [
        state.beside(replace(work, optimizer=name))
        for name in ("adamw_torch_4bit", "adamw_torch_8bit", "adamw_torch_fused")
    ]
    assert small == sorted(small) and small[1] == pytest.approx(
        small[2] * (8 + 2 * (1 + 4 / 256)) / 16
    )
    assert duration.updating(work, catalog.gpu("NVIDIA-A100-SXM4-40GB")) == state.stepping(
        work, catalog.gpu("NVIDIA-A100-SXM4-40GB")
    )


def test_a_stage_may_have_its_own_precision():
    plain = {name: stage_of(path=SEVEN_B, name=name).config for name in ("sft", "dpo")}
    changes = (
        "stages.1.model.precision=fp32",
        "stages.1.speed.fp8=",
        "model.attention=sdpa",
    )
    own = {name: stage_of(*changes, path=SEVEN_B, name=name).config for name in ("sft", "dpo")}
    assert plain["sft"]["bf16"] is True and own["sft"]["bf16"] is False and "fp8" not in own["sft"]
    assert own["dpo"]["bf16"] == plain["dpo"]["bf16"]
    fp8 = examine(
        SEVEN_B, from_options(["stages.1.model.precision=fp8", "machines.gpu=NVIDIA-L40S"])
    )
    assert any(
        problem.severity == "error" and "stages.1.model.precision" in problem.file
        for problem in fp8
    )


# DeepSpeed's own engine on the processor, with the emitted file; its shared-memory transport is
# compiled for minutes, and gloo does without.
TRAINING = """
import json, sys
from functools import partial
import torch, deepspeed
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
config = json.load(open(sys.argv[1]))
config |= {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1}
config["zero_optimization"] |= {"reduce_bucket_size": 1000}
config["zero_allow_untested_optimizer"] = True  # as transformers sets it
torch.manual_seed(0)
deepspeed.init_distributed("gloo")
if sys.argv[2] == "adamw_bnb_8bit":
    from bitsandbytes.optim import AdamW8bit as AdamW
else:
    AdamW = partial(torch.optim.AdamW, fused=True)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64))
adamw = AdamW(model.parameters(), lr=1e-2)
engine, optimizer, *_ = deepspeed.initialize(model=model, optimizer=adamw, config=config)
x, losses = torch.randn(2, 64, dtype=torch.bfloat16), []
for _ in range(6):
    loss = (engine(x).float() - x.float()).pow(2).mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
print("SEEN", json.dumps({"losses": losses, "stage": engine.zero_optimization_stage(), "kind": type(optimizer.optimizer).__name__,
    "beside": bool(engine.zero_use_cpu_optimizer()), "weights": bool(engine.zero_offload_param())}))
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["adamw_torch_fused", "adamw_bnb_8bit"])
@pytest.mark.parametrize("case", ["zero2", "zero3"])
def test_deepspeed_itself_trains_by_the_emitted_file(case, name, tmp_path):
    from runner.tools.process import free_port

    emitted = deepspeed(stage_of(*BESIDE[case], f"train.optimizer={name}"))
    (tmp_path / "deepspeed.json").write_text(json.dumps(emitted), encoding="utf-8")
    alone = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ran = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path / "deepspeed.json"), name],
        env=os.environ | alone | {"DS_ACCELERATOR": "cpu"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    seen = json.loads(
        next(line for line in ran.stdout.splitlines() if line.startswith("SEEN")).removeprefix(
            "SEEN "
        )
    )
    assert seen["losses"][-1] < seen["losses"][0] / 2 and seen["beside"]
    assert seen["kind"] == {"adamw_torch_fused": "AdamW", "adamw_bnb_8bit": "AdamW8bit"}[name]
    assert (seen["stage"], seen["weights"]) == (int(case[-1]), case == "zero3")


@pytest.mark.parametrize("case", ["zero2", "zero3"])
def test_an_optimizer_in_few_bits_beside_the_gpu_is_called_slow(case, golden_message):
    found = examine(SURVIVAL, from_options([*BESIDE[case], "train.optimizer=adamw_bnb_8bit"]))
    assert not [one for one in found if one.severity == "error"]
    golden_message("\n".join(one.message for one in found if "processors" in one.message), case)


# FSDP 2 on two processors, with Axolotl's patch for frozen weights in 8 bits.
SPLIT = """
import torch, torch.distributed as dist, bitsandbytes as bnb
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from axolotl.monkeypatch import fsdp2_qlora as axolotls

class Adapted(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        weight = nn.Linear(fan_in, fan_out, bias=False).weight.data
        self.base = bnb.nn.Linear8bitLt(fan_in, fan_out, bias=False, has_fp16_weights=False, threshold=6.0)
        self.base.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
        self.base = self.base.to("cpu")  # makes the 8 bits
        self.a, self.b = nn.Linear(fan_in, 8, bias=False), nn.Linear(8, fan_out, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, given):
        return self.base(given) + self.b(self.a(given))

def network():
    torch.manual_seed(0)
    return nn.Sequential(Adapted(256, 512), nn.GELU(), Adapted(512, 256))

def losses(model):
    adamw = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=3e-3)
    given = torch.randn(16, 256, generator=torch.Generator().manual_seed(1))
    for _ in range(6):
        loss = (model(given).float() - given.flip(1)).pow(2).mean()
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        yield loss.item()

dist.init_process_group("gloo")
whole = [*losses(network())]
for patch in (axolotls.apply_init_sharded_param_patch, axolotls.apply_init_unsharded_param_patch, axolotls.apply_init_dtype_attrs_patch):
    patch()
split, mesh = network(), init_device_mesh("cpu", (2,))
for unit in (split[0], split[2], split):
    fully_shard(unit, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
kept = split[0].base.weight._local_tensor
assert kept.dtype == torch.int8 and kept.shape == (256, 256), kept
apart = max(abs(one - other) for one, other in zip(whole, losses(split)))
assert apart < 2e-4 and whole[-1] < whole[0] - 0.03, (apart, whole)
dist.destroy_process_group()
"""


@pytest.mark.long
def test_fsdp_splits_frozen_weights_in_8_bits_and_training_is_the_same(tmp_path):
    from runner.tools.process import free_port

    (tmp_path / "split.py").write_text(SPLIT, encoding="utf-8")
    launched = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--master-port",
        str(free_port()),
    ]
    ran = subprocess.run(
        [*launched, str(tmp_path / "split.py")], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
