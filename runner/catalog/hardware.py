"""Hardware: the facts about GPUs, and what a machine has left for a pod."""

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from runner.catalog.tables import table
from runner.tools.files import cache_folder, read_record
from runner.tools.problem import nearest

# PCIe with 16 lanes, one direction, 10^9 bytes a second, by the compute capability of cards that
# talk over NVLink: NVIDIA's data sheets of V100 (Gen3), A100 (Gen4), H100 and B200 (Gen5).
_PCIE = ((9.0, 64.0), (8.0, 32.0), (0.0, 16.0))


@dataclass(frozen=True)
class Gpu:
    """A GPU: its label on the cluster, memory in GiB, compute capability as NVIDIA writes it
    (`8.9`). usable_gib: the part that PyTorch can use. memory_gb_s: its memory's bandwidth, 10^9
    bytes a second. …_tflops: dense rates, 10^12 operations a second, 0 for none. link: nvlink, pcie
    or host; link_gb_s: in one direction."""

    name: str
    title: str
    memory_gib: int
    usable_gib: float
    compute_capability: str
    memory_gb_s: float
    link: str
    link_gb_s: float
    source: str
    usable_source: str = ""
    bf16_tflops: float = 0
    fp16_tflops: float = 0
    fp32_tflops: float = 0

    @property
    def bf16(self) -> bool:
        """bf16 and FlashAttention 2 need Ampere (8.0) or newer. Every processor computes in bf16,
        though only some are faster in it; none runs FlashAttention."""
        return self.name == PROCESSOR or self.capability >= 8.0

    @property
    def fp8(self) -> bool:
        """Axolotl supports FP8 from compute capability 9.0."""
        return self.capability >= 9.0

    def precision(self, fp16: bool) -> str:
        """The smallest number format in which training works on it. fp16: whether the model's
        activations fit fp16."""
        if self.bf16:
            return "bf16"
        if fp16:
            return "fp16"
        return "fp32"

    @property
    def pcie_gb_s(self) -> float:
        """The data sheet's speed of the connection to main memory, one direction, 10^9 bytes a
        second."""
        if self.link != "nvlink":
            return self.link_gb_s
        return next(rate for least, rate in _PCIE if self.capability >= least)

    @property
    def capability(self) -> float:
        return float(self.compute_capability)


def gpu_names() -> list[str]:
    return list(table("gpus"))


def alike(name: str) -> list[str]:
    """The labels that `name` may mean; empty if none is similar."""
    bare = label_of(name).lower()
    labels = [label for label in gpu_names() if bare in label.lower()]
    near = nearest(name, gpu_names())
    if near and not labels:
        return [near]
    return labels


def label_of(name: str) -> str:
    """A GPU's label on a cluster, from its name in the driver."""
    return name.replace(" ", "-")


# The label of this machine's processor if it trains instead of a GPU, and the file that the planner
# writes about it.
PROCESSOR, MEASURED = "processor", "processor.json"
# What a recipe writes for `machines.gpu` to train on the processor, also where a GPU is; and what
# people write instead.
NO_GPU = "none"
LIKE_NO_GPU = ("cpu", "no", "false", "no-gpu")


def gpu(name: str) -> Gpu | None:
    """The catalog's GPU with that label, or this machine's processor as a GPU; None if unknown."""
    facts: dict[str, Any] | None
    if name == PROCESSOR:
        facts = read_record(cache_folder() / MEASURED)
    else:
        facts = table("gpus").get(name)
    # Another version may have written other facts.
    with suppress(TypeError):
        if facts:
            return Gpu(**{"name": name, **facts})
        return None
    return None


GIB = 2**30
# The oldest driver for each CUDA (NVIDIA's "minor version compatibility"); our PyTorch is built for
# the last one.
DRIVERS = {"12": 525, "13": 580}
DRIVER = DRIVERS["13"]
# The project's own image: its size in GB, and what its build takes, in layers and while it is
# pushed.
IMAGE_GB, BUILD_GIB = 10, 40
IMAGE_NEEDS = (
    f"The image has about {IMAGE_GB} GB; its build takes {BUILD_GIB} GiB of temporary storage, and machines with GPUs need "
    f"NVIDIA driver {DRIVER} or newer."
)
# Linux describes each page of 4 KiB in 64 bytes (`struct page`), and does not count those bytes as
# memory.
KERNEL = 64 / 4096


def memory(size: float) -> float:
    """Allocatable memory of a machine with `size` bytes, in bytes."""
    counted = remaining = size * (1 - KERNEL)
    reserved = 0.0
    facts = table("reserved")["memory"]
    for step, share in facts["steps"]:
        part = min(remaining, step * GIB)
        reserved = reserved + share * part
        remaining = remaining - part
    return float(counted - reserved - facts["eviction"])


def cpus(threads: int) -> float:
    """Allocatable CPUs of a machine with this number of CPU threads."""
    reserved = table("reserved")["cpus"]
    by_threads = reserved["first"] + reserved["others"] * (threads - 1)
    return float(threads - max(reserved["least"], by_threads))


def pod_memory_gib(size: float) -> int:
    """The memory for one pod beside the cluster's own pods, in whole GiB; 0 or less if nothing is
    left."""
    of_cluster = float(table("reserved")["memory"]["pods"])
    return math.floor(memory(size) / GIB - of_cluster)


def pod_cpus(threads: int) -> int:
    """The CPUs for one pod beside the cluster's own pods; 0 or less if nothing is left."""
    of_cluster = float(table("reserved")["cpus"]["pods"])
    return math.floor(cpus(threads) - of_cluster)
