"""Measures on a GPU what `recipe plan` only reckons: trains a few steps of randomly initialised
full-size models and writes peak memory and speed, with GPU, versions and date, to
runner/catalog/measured/. Nothing is downloaded.

    python benchmarks/memory_on_gpu.py                     every cell that fits this GPU, about 20
    minutes
    python benchmarks/memory_on_gpu.py --cells 3           the first three
    python benchmarks/memory_on_gpu.py --device cpu --tiny one tiny model on this processor: proves
    that it runs

Commit the file that it writes: it travels in the wheel, and a plan for that GPU takes allocator
slack, CUDA context and pace from it. Until one is there, a plan's numbers rest on fake-tensor runs
alone.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# Before torch reads it: Axolotl trains so (0.19.0, utils/__init__.py), and without it slack would
# be 20 to 40 %.
os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch
from estimate_accuracy import MODELS

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from runner import __version__
from runner.catalog import gpu as gpu_facts
from runner.catalog import label_of
from runner.parts.planner import constants, duration, memory, parameters
from runner.parts.planner.workload import Adapter, Workload
from runner.plan import Machines

WARM_STEPS, TIMED_STEPS = 2, 5


@dataclass(frozen=True)
class Measured:
    """One cell on the GPU: bytes at the peak, seconds of a micro batch (the median), or why it did
    not run."""

    allocated: int = 0
    reserved: int = 0
    driver: int = 0
    micro_batch_seconds: float = 0.0
    failed: str = ""


def cells(tiny: bool, gpu: str) -> list[Workload]:
    """What is measured: each model in full, with its last layers, and with LoRA, with and without
    checkpointing."""
    machines = Machines(1, 1, gpu, 64, 8)
    if tiny:
        small = replace(
            MODELS[0], hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=1, head_dim=16, vocab_size=512, id="tiny",
        )  # fmt: skip
        return [
            Workload(
                small,
                machines=machines,
                precision="fp32",
                attention="sdpa",
                sequence_len=32,
                micro_batch_size=2,
            )
        ]
    found = []
    for model in MODELS:
        last = tuple(f"^{model.layers_path}.{model.num_hidden_layers - n}." for n in (1, 2))
        for unfrozen, adapter in ((last, None), ((), Adapter(64, model.linear, 0.05)), ((), None)):
            for rows, length, checkpointing in ((1, 2048, True), (4, 1024, True), (2, 1024, False)):
                found.append(
                    Workload(
                        model,
                        machines=machines,
                        unfrozen=unfrozen,
                        adapter=adapter,
                        attention="sdpa",
                        sequence_len=length,
                        micro_batch_size=rows,
                        evaluation_batch_size=rows,
                        checkpointing=checkpointing,
                    )
                )
    return found


def measure(workload: Workload, device: str) -> Measured:
    """Trains a workload for a few steps on `device` (`cuda` or `cpu`), as Axolotl would build
    it."""
    from runner.parts.planner.trace import language

    _empty(device)
    try:
        torch.manual_seed(0)
        with torch.device(device):
            model = language.build(workload, real=True)
        optimizer = language.optimizer_of(workload, model)
        seconds = [
            _micro_batch(workload, model, optimizer, device)
            for _ in range(WARM_STEPS + TIMED_STEPS)
        ]
    except torch.OutOfMemoryError as error:
        return Measured(failed=f"out of memory: {str(error).splitlines()[0]}")
    finally:
        model = optimizer = None
    taken = Measured(micro_batch_seconds=statistics.median(seconds[WARM_STEPS:]))
    if device == "cpu":
        return taken
    free, total = torch.cuda.mem_get_info()
    return replace(
        taken,
        allocated=torch.cuda.max_memory_allocated(),
        reserved=torch.cuda.max_memory_reserved(),
        driver=total - free,
    )


def _micro_batch(workload: Workload, model: Any, optimizer: Any, device: str) -> float:
    from runner.parts.planner.trace import language

    if device == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    language.forward(workload, model, workload.micro_batch_size, device).backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _empty(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def label(device: str) -> str:
    """This GPU's label; `cpu` for none."""
    if device == "cpu":
        return "cpu"
    return label_of(torch.cuda.get_device_name())


def row(workload: Workload, found: Measured) -> dict[str, Any]:
    """A cell's entry in the results file: what was asked, what was measured, what the plan says.
    Bytes and seconds."""
    card, planned = gpu_facts(workload.machines.gpu), memory.estimate(workload)
    tokens = workload.micro_batch_size * workload.sequence_len
    kind = "lora" if workload.adapter else "last" if workload.unfrozen else "full"
    return {
        "model": workload.model.id,
        "trained": kind,
        "parameters": parameters.total(workload.model),
        "trainable_parameters": parameters.trainable(workload),
        "sequence_len": workload.sequence_len,
        "micro_batch_size": workload.micro_batch_size,
        "checkpointing": workload.checkpointing,
        "attention": workload.attention,
        "precision": workload.precision,
        "measured": {
            "allocated_bytes": found.allocated,
            "reserved_bytes": found.reserved,
            "driver_bytes": found.driver,
            "micro_batch_seconds": found.micro_batch_seconds,
            "tokens_per_second": tokens / found.micro_batch_seconds
            if found.micro_batch_seconds
            else None,
            "failed": found.failed or None,
        },
        "planned": {
            "allocated_bytes": planned.tensors,
            "total_bytes": planned.total,
            # What is timed is a whole step, and before anything measured corrects it.
            "micro_batch_seconds": duration.pass_seconds(workload, card, workload.micro_batch_size)
            / constants.constants(card.name).slowness
            + duration.updating(workload, card)
            if card
            else None,
        },
    }


def summary(rows: list[dict[str, Any]], where: str, versions: str) -> dict[str, Any]:
    """What a plan reads: the constants of the card, by the cells that ran; empty if none did."""
    ran = [(entry["measured"], entry["planned"]["micro_batch_seconds"]) for entry in rows]
    ran = [(taken, planned) for taken, planned in ran if taken["allocated_bytes"]]
    if not ran:
        return {}
    found = constants.measured(
        [taken["reserved_bytes"] / taken["allocated_bytes"] - 1 for taken, _ in ran],
        [taken["driver_bytes"] - taken["reserved_bytes"] for taken, _ in ran],
        [taken["micro_batch_seconds"] / planned for taken, planned in ran if planned],
    )
    return asdict(replace(found, source=f"{where}, {len(ran)} cells, {versions}"))


def report(gpu: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    import accelerate
    import peft
    import transformers

    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return {
        "gpu": gpu,
        "date": date,
        "constants": summary(rows, f"{gpu}, {date}", versions),
        "versions": {
            "recipe-runner": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "transformers": transformers.__version__,
            "peft": peft.__version__,
            "accelerate": accelerate.__version__,
        },
        "allocator": os.environ["PYTORCH_ALLOC_CONF"],
        "cells": rows,
    }


def fits(workload: Workload) -> bool:
    card = gpu_facts(workload.machines.gpu)
    return card is None or memory.estimate(workload).total <= memory.usable(card)


def differences(rows: list[dict[str, Any]]) -> list[float]:
    """How far the plan's tensors are from what was measured, as shares; cells that ran alone."""
    return [
        entry["planned"]["allocated_bytes"] / entry["measured"]["allocated_bytes"] - 1
        for entry in rows
        if entry["measured"]["allocated_bytes"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cells", type=int)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        print(
            "There is no GPU here. `--device cpu --tiny` proves that this program runs.",
            file=sys.stderr,
        )
        return 2
    gpu, rows = label(asked.device), []
    out = asked.out or constants.FOLDER / f"memory-{gpu}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    for workload in [cell for cell in cells(asked.tiny, gpu) if asked.tiny or fits(cell)][
        : asked.cells
    ]:
        entry = row(workload, measure(workload, asked.device))
        rows.append(entry)
        # After each cell, because a borrowed machine may end before the last one.
        out.write_text(json.dumps(report(gpu, rows), indent=2) + "\n", encoding="utf-8")
        got = entry["measured"]
        shown = (
            got["failed"]
            or f"{got['allocated_bytes'] / 2**30:.2f} GiB, {got['tokens_per_second']:,.0f} tokens/s"
        )
        print(
            f"{entry['model']} {entry['trained']} {entry['micro_batch_size']} × {entry['sequence_len']}: {shown}",
            flush=True,
        )
    if shares := differences(rows):
        print(
            f"memory: median {statistics.median(map(abs, shares)):.1%}, lowest {min(shares):+.1%}, highest {max(shares):+.1%}"
        )
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
