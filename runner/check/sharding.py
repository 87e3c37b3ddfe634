"""Rules about how GPUs share a model, what lies beside them, and a person's own DeepSpeed or FSDP file."""

import json
from collections.abc import Iterator, Mapping

from runner import catalog
from runner.check.advanced import AXOLOTL, DEEPSPEED, values
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import sharding
from runner.tools.problem import Problem, Stop

# What the disk of the machine that a pod runs on is mounted at (`runner.render.podspec.volumes`).
MACHINES_OWN = "/tmp/"


def needs_gpus(recipe: Recipe) -> Iterator[Problem]:
    alone = sum(recipe.gpu_counts) == 1 and recipe.settings.get("distribution", "ddp") not in ("ddp", "auto")
    if alone and not sharding.by_zero_alone(recipe):
        message = f"`{recipe.distribution}` shares the work between GPUs, and this recipe has one."
        hint = "Write `distribution: ddp`, or raise `machines.nodes` or `machines.gpus_per_node`."
        yield recipe.problem("distribution", message, hint)


def beside(recipe: Recipe) -> Iterator[Problem]:
    """What cannot lie beside the GPUs: each way of sharing knows its own places."""
    section = recipe.settings.get("sharding")
    if not section:
        return
    way, placed = recipe.distribution, sharding.offloaded(recipe)
    fsdp = sharding.by_fsdp(recipe)
    first = next((f"offload_{name}" for name, where in placed.items() if where), "file" if section.get("file") else "")
    if not fsdp and not way.startswith("zero"):
        if first:
            message = f"With `distribution: {way}`{' on one GPU' if way == 'auto' else ''} nobody reads this line."
            hint = "Write `distribution: zero2` (optimizer) or `zero3` (weights too), or delete it."
            yield recipe.problem(f"sharding.{first}", message, hint)
        return
    if placed["weights"] and not fsdp and way != "zero3":
        message = f"`{way}` keeps all weights on each GPU; DeepSpeed moves them under zero3 alone."
        hint = "Write `distribution: zero3`, or `offload_weights: none`."
        yield recipe.problem("sharding.offload_weights", message, hint)
    if fsdp:
        yield from _fsdp(recipe, placed)
    elif placed["optimizer"] == "nvme" and way != "zero3":
        message = f"`{way}` knows no disk for the optimizer; DeepSpeed uses one under zero3 alone."
        hint = "Write `distribution: zero3`, or `offload_optimizer: cpu`."
        yield recipe.problem("sharding.offload_optimizer", message, hint)
    elif placed["weights"] == "nvme" and placed["optimizer"] == "":
        message = "Weights wait on the disk, and the optimizer's fp32 copy of them, six times as large, would stay on the GPUs."
        hint = "Write `offload_optimizer: nvme` or `cpu` too."
        yield recipe.problem("sharding.offload_weights", message, hint)


def _fsdp(recipe: Recipe, placed: Mapping[str, str]) -> Iterator[Problem]:
    for name, where in placed.items():
        if where == "nvme":
            message = "FSDP knows main memory alone, and no disk."
            hint = "Write `cpu` for optimizer and weights, or `distribution: zero3`."
            yield recipe.problem(f"sharding.offload_{name}", message, hint)
            return
    if placed["optimizer"] != placed["weights"]:
        line = "offload_optimizer" if placed["optimizer"] else "offload_weights"
        message = "FSDP moves weights, gradients and optimizer together, or nothing."
        hint = "Write `cpu` for both, or neither; DeepSpeed's zero2 and zero3 move the optimizer alone."
        yield recipe.problem(f"sharding.{line}", message, hint)


def disk(recipe: Recipe) -> Iterator[Problem]:
    """What lies on a disk needs a folder that the process can write to."""
    section = recipe.settings.get("sharding")
    if not section:
        return
    on_disk = [name for name, where in sharding.offloaded(recipe).items() if where == "nvme"]
    path = section.get("nvme_path")
    if on_disk and not path:
        message = "`nvme` needs a folder on the disk, and none is named."
        hint = "Write it below, for example `nvme_path: /tmp/offload`."
        yield recipe.problem(f"sharding.offload_{on_disk[0]}", message, hint)
    if path and not on_disk:
        message = "Nothing is put on a disk, so that this line says nothing."
        yield recipe.note("sharding.nvme_path", message, "Delete it.")
    if not (on_disk and path):
        return
    if "openshift" in recipe.settings and not (recipe.on_claim(path) or path.startswith(MACHINES_OWN)):
        message = f"Pods have no disk at `{path}`: it lies on none of the claims."
        hint = "Let it start with the mount of a claim, or with `/tmp/`, the disk of the machine that the pod runs on."
        yield recipe.problem("sharding.nvme_path", message, hint)
    message = (
        "DeepSpeed compiles what it writes to disks with (async_io) when training starts: the image needs libaio's headers, a compiler "
        "and CUDA's toolkit, which the project's own has not."
    )
    hint = "Use an image that has them, or `cpu`."
    yield recipe.note(f"sharding.offload_{on_disk[0]}", message, hint)


def optimizer(recipe: Recipe) -> Iterator[Problem]:
    """Steps beside the GPU are AdamW's in fp32: of bitsandbytes' and torchao's 8 bits the processor knows nothing."""
    if not sharding.offloaded(recipe)["optimizer"]:
        return
    for name, part in recipe.sections.items():
        if part.get("optimizer") == "adamw_bnb_8bit":
            message = (
                "The state of this optimizer lies in 8 bits on a GPU, and `sharding.offload_optimizer` puts it beside."
            )
            hint = "Write `optimizer: adamw_torch_fused`, which steps on processors too."
            yield recipe.problem((name, "optimizer"), message, hint)


def own_file(recipe: Recipe) -> Iterator[Problem]:
    """An own file is read, judged by what DeepSpeed or Axolotl take, and what the recipe says otherwise is named."""
    if "sharding" not in recipe.settings:
        return
    try:
        document = sharding.own_file(recipe)
    except Stop as stop:
        (problem,) = stop.problems
        message = f"{problem.file}: {problem.message}"
        yield recipe.problem("sharding.file", message, "Paths start from the recipe's own folder.")
        return
    if document is None or not (sharding.by_fsdp(recipe) or recipe.distribution.startswith("zero")):
        return
    if sharding.by_fsdp(recipe):
        schema = catalog.axolotl_settings()
        section = schema["$defs"]["FSDPConfig"]
        yield from values(document, (), section, document.data, schema["$defs"], AXOLOTL, "fsdp_config")
        decides = sharding.fsdp_decided(recipe)
    else:
        schema = catalog.deepspeed_settings()
        yield from values(document, (), schema, document.data, schema["$defs"], DEEPSPEED, "")
        train = recipe.settings.get("train") or {}
        longest = train.get("max_grad_norm") or (recipe.settings.get("sft") or {}).get("max_grad_norm") or 1.0
        stated = recipe.model.precision
        decides = sharding.decided(recipe, "bf16" if stated in ("auto", "fp8") else str(stated), longest)
    for path, said, holds in sharding.overruled(document.data, decides):
        name = ".".join(map(str, path))
        if holds is None:
            message = f"`{name}` is the recipe's own, and this section is left out."
        else:
            short = json.dumps(said) if not isinstance(said, Mapping) else "{…}"
            message = f"`{name}` is {short} here, and the recipe makes it {json.dumps(holds)}: the recipe wins."
        hint = "Delete the line here, or change the recipe."
        yield document.problem(path, message, hint, key=holds is None, severity="note")


RULES = (needs_gpus, beside, disk, optimizer)
FILE_RULES = (own_file,)
