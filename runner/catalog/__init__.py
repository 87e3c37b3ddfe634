"""Facts about models and GPUs, kept as data with a source for each."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Model:
    """What the runner must know of a model to train it.

    id: hub name or folder. Sizes are counts. tied: whether embedding and LM head are one tensor.
    layers_path, embedding, lm_head: names inside the model, as `named_parameters()` gives them.
    layer_class: the class of one transformer layer, for FSDP. linear: the linear layers inside one, for LoRA.
    parameters: all parameters, tied ones once; None where nobody has counted.
    """

    id: str
    model_type: str
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    tied: bool
    layers_path: str = "model.layers"
    embedding: str = "model.embed_tokens.weight"
    lm_head: str = "lm_head.weight"
    layer_class: str = ""
    linear: tuple[str, ...] = ()
    eos_token: str = ""
    pad_token: str = ""
    parameters: int | None = None
    source: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU: its label on the cluster, memory in GiB, compute capability as NVIDIA writes it (`8.9`)."""

    name: str
    title: str
    memory_gib: int
    compute_capability: str
    source: str

    @property
    def bf16(self) -> bool:
        """bf16 and FlashAttention 2 need Ampere (8.0) or newer."""
        return self.capability >= (8, 0)

    @property
    def fp8(self) -> bool:
        """What Axolotl counts as FP8: compute capability 9.0 or newer."""
        return self.capability >= (9, 0)

    @property
    def capability(self) -> tuple[int, int]:
        major, minor = self.compute_capability.split(".")
        return int(major), int(minor)


@cache
def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))


def model_ids() -> list[str]:
    return list(_table("models"))


def gpu_names() -> list[str]:
    return list(_table("gpus"))


def gpu(name: str) -> Gpu | None:
    facts = _table("gpus").get(name)
    return Gpu(name=name, **facts) if facts else None


def model(name: str, folder: Path | None = None) -> Model | None:
    """The model of that name: from the catalog, or from `config.json` where `name` is a folder (below `folder`).

    None where it is neither.
    """
    if facts := _table("models").get(name):
        return Model(id=name, **facts | {"linear": tuple(facts["linear"])})
    config = (folder or Path()) / name / "config.json"
    try:
        return from_config(name, json.loads(config.read_text(encoding="utf-8")))
    except (OSError, KeyError, TypeError, ValueError):
        return None


def from_config(name: str, config: Mapping[str, Any]) -> Model:
    """A Model from a Hugging Face `config.json`. Names inside the model are taken from the catalog's model of that
    type, or are those of the LLaMA family.

    Raises KeyError where the config lacks a size.
    """
    kin = next((facts for facts in _table("models").values() if facts["model_type"] == config["model_type"]), {})
    heads = config["num_attention_heads"]
    inherited = ("layers_path", "embedding", "lm_head", "layer_class", "eos_token", "pad_token")
    return Model(
        id=name,
        model_type=config["model_type"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        tied=config.get("tie_word_embeddings", False),
        linear=tuple(kin.get("linear", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))),
        source=f"{name}/config.json",
        **{key: kin[key] for key in inherited if key in kin},
    )


AXOLOTL_VERSION = "0.19.0"


@cache
def axolotl_settings() -> frozenset[str]:
    """The names of every setting that the pinned Axolotl knows (tests compare them with Axolotl itself)."""
    return frozenset((HERE / "axolotl-settings.txt").read_text(encoding="utf-8").split())


@cache
def fused_loss_models() -> frozenset[str]:
    """The model types whose last layer and cross-entropy Axolotl can compute as one, through liger-kernel 0.8.1, so
    that the logits never lie in memory (tests compare them with the package itself)."""
    return frozenset((HERE / "fused-loss-models.txt").read_text(encoding="utf-8").split())
