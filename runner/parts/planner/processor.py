"""Processor: how fast this machine's own trains, measured in a second and stored, so that plans
treat it as a card."""

import os
import platform
import subprocess
import sys
import time
import timeit
from collections.abc import Callable
from dataclasses import asdict

from runner import catalog
from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu
from runner.run.launch import WITHOUT_GPU
from runner.tools.files import cache_folder, write_json
from runner.tools.problem import counted
from runner.tools.process import memory_gib, multiplies_bf16, processor_lines, threads
from runner.trainer import fork_server

# How often each is measured; the fastest counts, because other programs only slow it down.
TIMES = 20
# So long a measurement counts as the current one: a search plans up to 32 trials.
FRESH_SECONDS = 60
# The width of a product, and the count of numbers in a sum: 16 MiB, as activations of small models
# have. From 32 MiB on the C library returns memory each time, and adding takes five times as long.
WIDE, NUMBERS = 1024, 2**22


def measure() -> None:
    """Measures the processor in a process like that of training, and stores its best pace so far;
    not if it has been measured with as many threads in the last minute."""
    file = cache_folder() / MEASURED
    card = catalog.gpu(PROCESSOR)
    if (
        card
        and card.title.endswith(_with_threads())
        and time.time() - file.stat().st_mtime < FRESH_SECONDS
    ):
        return
    env = os.environ | WITHOUT_GPU | {"OMP_NUM_THREADS": str(threads())}
    command = [sys.executable, "-m", __name__]
    # If it fails, the time of training is unknown. A fork has imported PyTorch already.
    forked = fork_server.fork(command, env)
    if forked:
        forked.wait()
    else:
        subprocess.run(command, env=env, stderr=subprocess.DEVNULL, check=False)


def _measured() -> None:
    """The work of that process. The best pace with as many threads and this PyTorch counts."""
    import torch

    count = threads()
    earlier = catalog.gpu(PROCESSOR)
    torch.set_num_threads(count)
    factor = torch.randn(WIDE, WIDE)
    other_factor = torch.randn(WIDE, WIDE)
    numbers = torch.randn(NUMBERS)
    # Two operations a weight; adding reads two numbers of four bytes and writes one.
    product_seconds = _seconds(lambda: factor @ other_factor)
    tflops = 2 * WIDE**3 / product_seconds / 1e12
    bf16_tflops = 0.0
    if multiplies_bf16():
        half_factor = factor.bfloat16()
        other_half_factor = other_factor.bfloat16()
        half_product_seconds = _seconds(lambda: half_factor @ other_half_factor)
        bf16_tflops = 2 * WIDE**3 / half_product_seconds / 1e12
    sum_seconds = _seconds(lambda: numbers + numbers)
    moved = 3 * 4 * NUMBERS / sum_seconds / 1e9
    # The processor as its maker calls it (Linux), else its architecture.
    names = (
        line.partition(":")[2].strip()
        for line in processor_lines()
        if line.startswith("model name")
    )
    name = next(names, "") or platform.machine()
    source = f"torch {torch.__version__}"
    title = f"{name}{_with_threads()}"
    if earlier and (earlier.title, earlier.source) == (title, source):
        tflops = max(tflops, earlier.fp32_tflops)
        bf16_tflops = max(bf16_tflops, earlier.bf16_tflops)
        moved = max(moved, earlier.memory_gb_s)
    gib = memory_gib()
    cache_folder().mkdir(parents=True, exist_ok=True)
    card = Gpu(
        PROCESSOR,
        title,
        round(gib),
        gib,
        "0.0",
        moved,
        "host",
        1.0,
        source,
        bf16_tflops=bf16_tflops,
        fp32_tflops=tflops,
    )
    write_json(cache_folder() / MEASURED, asdict(card))


def _with_threads() -> str:
    return f" with {counted(threads(), 'thread')}"


def _seconds(work: Callable[[], object]) -> float:
    return min(timeit.repeat(work, repeat=TIMES + 1, number=1)[1:])  # the first one warms up


if __name__ == "__main__":
    _measured()
