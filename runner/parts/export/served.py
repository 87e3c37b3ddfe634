"""Served: what servers refuse of an adapter, or serve as the bare base model without a word, said before anything is written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.tools.files import read_record
from runner.tools.vllm import saved

WEIGHTS = "adapter_model.safetensors"
# What PEFT writes before the name of a layer, and behind it.
_PREFIX = "base_model.model."
_PART = re.compile(r"(?P<layer>.+)\.(?P<part>lora_(?:embedding_)?[AB]|lora_magnitude_vector)(?:\.weight)?\Z")


@dataclass(frozen=True)
class Adapter:
    """An adapter's folder, as PEFT writes it."""

    folder: Path

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return read_record(self.folder / "adapter_config.json")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its tensors, each from the layer's own name on."""
        from safetensors import safe_open

        with safe_open(self.folder / WEIGHTS, framework="numpy") as tensors:
            return tuple(tensors.keys())

    @cached_property
    def layers(self) -> Mapping[str, Mapping[str, str]]:
        """The layers that it changes: the name of the tensor of each part, by layer."""
        found: dict[str, dict[str, str]] = {}
        for name in self.names:
            if part := _PART.match(name.removeprefix(_PREFIX)):
                found.setdefault(part["layer"], {})[part["part"]] = name
        return found

    @property
    def follows_formula(self) -> bool:
        """Whether the merged model is base + scale · B · A, which exports are held against."""
        return not (self.config.get("use_dora") or self.config.get("modules_to_save"))

    def scale(self, layer: str) -> float:
        """What a layer's change is multiplied by: alpha by rank, or by its root (PEFT's `use_rslora`)."""
        rank = _of(self.config.get("rank_pattern") or {}, layer, self.config["r"])
        alpha = _of(self.config.get("alpha_pattern") or {}, layer, self.config["lora_alpha"])
        return float(alpha / (rank**0.5 if self.config.get("use_rslora") else rank))


def _of(pattern: Mapping[str, Any], layer: str, usual: Any) -> Any:
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", layer)), usual)


def faults(adapter: Adapter, modules: Iterable[str]) -> Iterator[str]:
    """Why servers cannot serve an adapter, a sentence without its full stop each. modules: the names of the base model's own."""
    yield from saved(adapter.folder).refusals()
    known = set(modules)
    if not adapter.layers:
        yield "it changes no layer"
    elif strange := sorted(set(adapter.layers) - known):
        others = f", and {len(strange) - 1:,} others" if len(strange) > 1 else ""
        yield (
            f"it changes `{strange[0]}`{others}, and the base model has no such layer; a server would answer as the base model "
            "does, without a word"
        )


def modules_of(base: str, revision: str | None, trust_remote_code: bool) -> set[str]:
    """The names of all modules of a model, by its config alone."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(base, revision=revision, trust_remote_code=trust_remote_code)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    return {name for name, _ in model.named_modules()}
