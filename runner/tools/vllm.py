"""vLLM: which adapters it serves beside their base model, judged by PEFT's facts about them.

Names and limits are those of vLLM 0.21 and 0.32 (`vllm/config/lora.py`,
`vllm/lora/peft_helper.py`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.tools.files import read_record
from runner.tools.problem import listed

SERVER = "vllm.entrypoints.openai.api_server"  # the module of the server
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the ranks that it supports (MaxLoRARanks)
# Layers that may have an adapter. vLLM ignores unknown names without a message (vllm, issue 55193).
LAYERS = {
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
}


# The half for text of a model that also sees, in the names of its class in transformers, which vLLM
# has other names for (`hf_to_vllm_mapper` of qwen3_vl.py, gemma3_mm.py, gemma4_mm.py, mistral3.py
# and mllama4.py). It ignores adapters for layers with other names (issue 48019).
HALVES_FOR_TEXT = ("model.language_model.", "language_model.model.")


def ignored(layers: Iterable[str]) -> list[str]:
    """Those of an adapter's layers that vLLM would ignore in a model that also sees."""
    return [layer for layer in layers if not layer.startswith(HALVES_FOR_TEXT)]


def names_in_pattern(pattern: str) -> list[str]:
    """The names of layers at the end of a pattern, `…(?:q_proj|v_proj)`; empty without them."""
    names = re.search(r"\(\?:([\w|]+)\)$", pattern)
    if names and pattern.startswith(tuple(map(re.escape, HALVES_FOR_TEXT))):
        return names[1].split("|")
    return []


def room_for(rank: int) -> int | None:
    """The smallest supported rank that is large enough, for `--max-lora-rank`, or None."""
    for room in RANKS:
        if rank <= room:
            return room
    return None


def rank_of(adapter: Mapping[str, Any]) -> int:
    """The largest rank in an adapter."""
    return int(max([adapter.get("r") or 1, *(adapter.get("rank_pattern") or {}).values()]))


def refusals(adapter: Mapping[str, Any]) -> Iterator[str]:
    """The reasons why vLLM cannot serve an adapter beside its base model, each a sentence without a
    full stop. adapter: PEFT's facts, as in `adapter_config.json`."""
    if room_for(rank := rank_of(adapter)) is None:
        yield f"its rank is {rank}, and vLLM serves ranks up to {RANKS[-1]}"
    layers = adapter.get("modules_to_save")
    if layers:
        yield f"it contains whole layers ({listed(layers)}, `modules_to_save`), which vLLM does not load with an adapter"
    bias = adapter.get("bias", "none")
    if bias != "none":
        yield f"it contains biases (`bias: {bias}`), which vLLM does not load with an adapter"
    if adapter.get("use_dora"):
        yield "it is a DoRA adapter, which vLLM does not support"


def saved(folder: Path) -> dict[str, Any]:
    """PEFT's facts about the adapter in a folder."""
    return read_record(folder / "adapter_config.json")
