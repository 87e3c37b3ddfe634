"""Rules about how GPUs share a model, what lies beside them, and a person's own DeepSpeed or FSDP file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from runner import catalog
from runner.check.advanced import AXOLOTL, DEEPSPEED, values
from runner.recipe.document import Document
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import sharding
from runner.tools.problem import Problem, Stop

# What the disk of the machine that a pod runs on is mounted at (`runner.render.podspec.volumes`).
MACHINES_OWN = "/tmp/"


def needs_gpus(recipe: Recipe) -> Iterator[Problem]:
    gpus = sum(recipe.gpu_counts)
    if gpus == 1 and recipe.settings.get("distribution", "ddp") not in ("ddp", "auto"):
        if sharding.by_zero_alone(recipe):
            return
        yield recipe.document.problem(
            ("distribution",),
            f"`{recipe.distribution}` shares the work between GPUs, and this recipe has one.",
            "Write `distribution: ddp`, or raise `machines.nodes` or `machines.gpus_per_node`.",
        )


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
            yield _at(
                recipe,
                first,
                f"With `distribution: {way}`{' on one GPU' if way == 'auto' else ''} nobody reads this line.",
                "Write `distribution: zero2` (optimizer) or `zero3` (weights too), or delete it.",
            )
        return
    if placed["weights"] and not fsdp and way != "zero3":
        yield _at(
            recipe,
            "offload_weights",
            f"`{way}` keeps all weights on each GPU; DeepSpeed moves them under zero3 alone.",
            "Write `distribution: zero3`, or `offload_weights: none`.",
        )
    if fsdp:
        yield from _fsdp(recipe, placed)
    elif placed["optimizer"] == "nvme" and way != "zero3":
        yield _at(
            recipe,
            "offload_optimizer",
            f"`{way}` knows no disk for the optimizer; DeepSpeed uses one under zero3 alone.",
            "Write `distribution: zero3`, or `offload_optimizer: cpu`.",
        )
    elif placed["weights"] == "nvme" and placed["optimizer"] == "":
        yield _at(
            recipe,
            "offload_weights",
            "Weights wait on the disk, and the optimizer's fp32 copy of them, six times as large, would stay on the GPUs.",
            "Write `offload_optimizer: nvme` or `cpu` too.",
        )


def _fsdp(recipe: Recipe, placed: Mapping[str, str]) -> Iterator[Problem]:
    for name, where in placed.items():
        if where == "nvme":
            yield _at(
                recipe,
                f"offload_{name}",
                "FSDP knows main memory alone, and no disk.",
                "Write `cpu` for optimizer and weights, or `distribution: zero3`.",
            )
            return
    if placed["optimizer"] != placed["weights"]:
        line = "offload_optimizer" if placed["optimizer"] else "offload_weights"
        yield _at(
            recipe,
            line,
            "FSDP moves weights, gradients and optimizer together, or nothing.",
            "Write `cpu` for both, or neither; DeepSpeed's zero2 and zero3 move the optimizer alone.",
        )


def disk(recipe: Recipe) -> Iterator[Problem]:
    """What lies on a disk needs a folder that the process can write to."""
    section = recipe.settings.get("sharding")
    if not section:
        return
    on_disk = [name for name, where in sharding.offloaded(recipe).items() if where == "nvme"]
    path = section.get("nvme_path")
    if on_disk and not path:
        yield _at(
            recipe,
            f"offload_{on_disk[0]}",
            "`nvme` needs a folder on the disk, and none is named.",
            "Write it below, for example `nvme_path: /tmp/offload`.",
        )
    if path and not on_disk:
        yield _at(
            recipe, "nvme_path", "Nothing is put on a disk, so that this line says nothing.", "Delete it.", "note"
        )
    if not (on_disk and path):
        return
    if "openshift" in recipe.settings and not (recipe.on_claim(path) or path.startswith(MACHINES_OWN)):
        yield _at(
            recipe,
            "nvme_path",
            f"Pods have no disk at `{path}`: it lies on none of the claims.",
            "Let it start with the mount of a claim, or with `/tmp/`, the disk of the machine that the pod runs on.",
        )
    yield _at(
        recipe,
        f"offload_{on_disk[0]}",
        "DeepSpeed compiles what it writes to disks with (async_io) when training starts: the image needs libaio's headers, a compiler "
        "and CUDA's toolkit, which the project's own has not.",
        "Use an image that has them, or `cpu`.",
        "note",
    )


def optimizer(recipe: Recipe) -> Iterator[Problem]:
    """Steps beside the GPU are AdamW's in fp32: of bitsandbytes' and torchao's 8 bits the processor knows nothing."""
    if not sharding.offloaded(recipe)["optimizer"]:
        return
    for name, part in recipe.sections.items():
        if part.get("optimizer") == "adamw_bnb_8bit":
            yield recipe.document.problem(
                (name, "optimizer"),
                "The state of this optimizer lies in 8 bits on a GPU, and `sharding.offload_optimizer` puts it beside.",
                "Write `optimizer: adamw_torch_fused`, which steps on processors too.",
            )


def own_file(recipe: Recipe) -> Iterator[Problem]:
    """An own file is read, judged by what DeepSpeed or Axolotl take, and what the recipe says otherwise is named."""
    if "sharding" not in recipe.settings:
        return
    try:
        document = sharding.own_file(recipe)
    except Stop as stop:
        (problem,) = stop.problems
        yield _at(recipe, "file", f"{problem.file}: {problem.message}", "Paths start from the recipe's own folder.")
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
        decides = sharding.decided(recipe, _precision(recipe), longest)
    yield from _overruled(document, decides)


def _precision(recipe: Recipe) -> str:
    stated = recipe.model.precision
    return "bf16" if stated in ("auto", "fp8") else str(stated)


def _overruled(document: Document, decides: Mapping[str, Any]) -> Iterator[Problem]:
    for path, said, holds in sharding.overruled(document.data, decides):
        name = ".".join(map(str, path))
        if holds is None:
            message = f"`{name}` is the recipe's own, and this section is left out."
        else:
            short = json.dumps(said) if not isinstance(said, Mapping) else "{…}"
            message = f"`{name}` is {short} here, and the recipe makes it {json.dumps(holds)}: the recipe wins."
        yield document.problem(
            path, message, "Delete the line here, or change the recipe.", key=holds is None, severity="note"
        )


def _at(recipe: Recipe, line: str, message: str, hint: str, severity: str = "error") -> Problem:
    return recipe.document.problem(("sharding", line), message, hint, severity=severity)


RULES = (needs_gpus, beside, disk, optimizer)
FILE_RULES = (own_file,)
