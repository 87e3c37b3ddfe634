"""GPUs: what their makers say of them, and what PyTorch can have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from runner.catalog.tables import table
from runner.tools.names import nearest

# PCIe with 16 lanes, one direction, 10^9 bytes a second, by the compute capability of cards that talk over NVLink: NVIDIA's
# data sheets of V100 (Gen3), A100 (Gen4), H100 and B200 (Gen5).
_PCIE = (((9, 0), 64.0), ((8, 0), 32.0), ((0, 0), 16.0))


@dataclass(frozen=True)
class Gpu:
    """A GPU: its label on the cluster, memory in GiB, compute capability as NVIDIA writes it (`8.9`).

    usable_gib: what PyTorch can have of it. memory_gb_s: its memory's bandwidth, 10^9 bytes a second. bf16_tflops and its
    kin: dense rates, 10^12 operations a second, 0 for none. link: nvlink, pcie or host; link_gb_s: one direction of it.
    """

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
    fp8_tflops: float = 0

    @property
    def bf16(self) -> bool:
        """bf16 and FlashAttention 2 need Ampere (8.0) or newer."""
        return self.capability >= (8, 0)

    @property
    def fp8(self) -> bool:
        """What Axolotl counts as FP8: compute capability 9.0 or newer."""
        return self.capability >= (9, 0)

    def precision(self, fp16: bool) -> str:
        """The smallest number format that training is sound in on it. fp16: whether the model stays within that one."""
        return "bf16" if self.bf16 else "fp16" if fp16 else "fp32"

    @property
    def pcie_gb_s(self) -> float:
        """What its data sheet says of the way to main memory, one direction, 10^9 bytes a second."""
        if self.link != "nvlink":
            return self.link_gb_s
        return next(rate for least, rate in _PCIE if self.capability >= least)

    @property
    def capability(self) -> tuple[int, int]:
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)


def gpu_names() -> list[str]:
    return list(table("gpus"))


def alike(name: str) -> list[str]:
    """The labels that somebody may mean who writes `name`; empty where none is near."""
    known = gpu_names()
    bare = name.replace(" ", "-").lower()
    near = nearest(name, known)
    return [label for label in known if bare in label.lower()] or ([near] if near else [])


def label_of(name: str) -> str:
    """A GPU's label on a cluster, by the name that its driver gives it."""
    return name.replace(" ", "-")


@cache
def gpu(name: str) -> Gpu | None:
    facts = table("gpus").get(name)
    return Gpu(name=name, **facts) if facts else None
