"""vLLM: which adapters it serves beside their base model, judged from a plan or from PEFT's files.

Names and limits are those of vLLM 0.21 and 0.32 (`vllm/config/lora.py`, `vllm/lora/peft_helper.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.files import read_record
from runner.tools.names import listed

SERVER = "vllm.entrypoints.openai.api_server"  # the module of the server
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # the ranks that it supports (MaxLoRARanks)
# Layers that may have an adapter. vLLM ignores unknown names without a message (vllm, issue 55193).
LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"}


def room_for(rank: int) -> int | None:
    """The smallest supported rank that is large enough, for `--max-lora-rank`, or None."""
    return next((room for room in RANKS if rank <= room), None)


@dataclass(frozen=True)
class ServedAdapter:
    """The facts about an adapter that matter to vLLM. rank: the largest in it. whole: layers that it contains
    completely (`modules_to_save`). bias: PEFT's name for the biases in it."""

    rank: int
    whole: tuple[str, ...] = ()
    bias: str = "none"
    dora: bool = False

    def refusals(self) -> Iterator[str]:
        """The reasons why vLLM cannot serve it beside its base model, each a sentence without a full stop."""
        if room_for(self.rank) is None:
            yield f"its rank is {self.rank}, and vLLM serves ranks up to {RANKS[-1]}"
        if self.whole:
            yield f"it contains whole layers ({listed(self.whole)}, `modules_to_save`), which vLLM does not load with an adapter"
        if self.bias != "none":
            yield f"it contains biases (`bias: {self.bias}`), which vLLM does not load with an adapter"
        if self.dora:
            yield "it is a DoRA adapter, which vLLM does not support"


def planned(config: Mapping[str, Any]) -> ServedAdapter:
    """The adapter that a stage's Axolotl config describes."""
    return ServedAdapter(
        int(config["lora_r"]), tuple(config.get("lora_modules_to_save") or ()), dora=bool(config.get("peft_use_dora"))
    )


def saved(folder: Path) -> ServedAdapter:
    """The adapter in a folder, by its `adapter_config.json`."""
    facts = read_record(folder / "adapter_config.json")
    rank = max([facts.get("r") or 1, *(facts.get("rank_pattern") or {}).values()])
    whole = tuple(facts.get("modules_to_save") or ())
    return ServedAdapter(int(rank), whole, facts.get("bias", "none"), bool(facts.get("use_dora")))
