"""The tables of the catalog, read once, and lookups in the small ones."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from runner.tools import packaged
from runner.tools.problem import ALIKE, nearest
from runner.tools.settings import Schema

HERE = Path(__file__).parent
# A row of a table; the keys vary.
Facts = dict[str, Any]
AXOLOTL_VERSION = "0.19.0"
AXOLOTL_SETTINGS_FILE = HERE / "axolotl-settings.json"
DEEPSPEED_VERSION = "0.18.9"
DEEPSPEED_SETTINGS_FILE = HERE / "deepspeed-settings.json"
# Basic blocks in each of the four stages of a network for images: 18 layers with weights, counting
# stem and classifier.
DEPTHS = {"resnet18": (2, 2, 2, 2)}
# The most blocks of validation text that are saved and evaluated; more would only make every
# evaluation slower.
VALIDATION_BLOCKS = 1024


@cache
def table(name: str) -> Mapping[str, Facts]:
    return packaged.toml(__file__, f"{name}.toml")


@dataclass(frozen=True)
class Optimizer:
    """A row of optimizers.toml, which explains each entry."""

    moments: int
    matrices: int
    factored: bool = False
    bits: int = 0
    group: int = 0
    embeddings: bool = False
    lists: int = 0
    largest: int = 0
    products: int = 0
    package: str = ""
    gpu: bool = False
    beside: int = 0
    least: float = 0.0
    whole: str = ""
    sharded: str | bool = True
    rows: bool = True
    rate: float = 1.0

    def kept(self, wide: float) -> float:
        """Bytes of each number that it stores for a weight of `wide` bytes, with its part of a
        scale."""
        stored = self.bits / 8 or wide
        if self.group:
            return stored + 4 / self.group
        return stored


@cache
def optimizers() -> dict[str, Optimizer]:
    all_optimizers = {}
    for name, facts in table("optimizers").items():
        all_optimizers[name] = Optimizer(**{"matrices": facts["moments"], **facts})
    return all_optimizers


def dataset(name: str | None, subset: str | None = None) -> Facts:
    """The facts of a data set on the hub, or of its subset, as datasets.toml has them; empty if it
    is not there."""
    if subset:
        name = f"{name}:{subset}"
    return table("datasets").get(name or "", {})


def dataset_of(data: Mapping[str, Any]) -> Facts:
    """The same for a recipe's section with a data set; nothing is known of single files of it."""
    if data.get("files"):
        return {}
    return dataset(data.get("hub"), data.get("subset"))


def near_dataset(name: str) -> str | None:
    """The data set of the catalog that a misspelt name means, or one without its owner; None for an
    exact name, or without a similar one."""
    full_names = {full_names.partition(":")[0] for full_names in table("datasets")}
    if name in full_names:
        return None
    if "/" in name:
        return nearest(name, full_names, ALIKE)
    without_owner = {full_name.partition("/")[2]: full_name for full_name in full_names}
    near = nearest(name, without_owner, ALIKE)
    if near:
        return without_owner[near]
    return None


def setting_called(word: str, names: Iterable[str]) -> str | None:
    """The first of these settings that another tool's name may mean, or None."""
    term = word.lower().replace("-", "_")
    candidates: list[str] = table("synonyms")["settings"].get(term, [])
    existing = set(names)
    for name in candidates:
        if name in existing:
            return name
    return None


@cache
def axolotl_settings() -> Schema:
    """The settings of the pinned Axolotl, as a JSON Schema; `plugins` has those of each plug-in.
    Written by `schemas/axolotl_settings.py`; tests compare it with Axolotl itself."""
    return cast(Schema, json.loads(AXOLOTL_SETTINGS_FILE.read_text(encoding="utf-8")))


@cache
def deepspeed_settings() -> Schema:
    """The same for DeepSpeed's file, with every value of `zero_optimization`, by
    `schemas/deepspeed_settings.py`."""
    return cast(Schema, json.loads(DEEPSPEED_SETTINGS_FILE.read_text(encoding="utf-8")))


@cache
def fused_loss_models() -> frozenset[str]:
    """The model types whose last layer and cross-entropy Axolotl can compute as one, through
    liger-kernel 0.8.1, so that memory never holds the logits. Tests compare them with the package
    itself."""
    return frozenset((HERE / "fused-loss-models.txt").read_text(encoding="utf-8").split())
