"""vLLM: what it serves of an adapter beside its base model, by what a plan says of one or by what PEFT has written.

Names and limits are vLLM's own, as 0.21 and 0.32 have them (`vllm/config/lora.py`, `vllm/lora/peft_helper.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.files import read_record
from runner.tools.names import listed

# The module that serves.
SERVER = "vllm.entrypoints.openai.api_server"
# The ranks that it has room for (MaxLoRARanks).
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
# Layers that it puts an adapter beside. Names that it does not know it leaves out without a message (vllm, issue 55193).
LAYERS = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj", "down_proj"}


def room_for(rank: int) -> int | None:
    """The smallest rank that an adapter has room in, `--max-lora-rank`; None where it takes none so large."""
    return next((room for room in RANKS if rank <= room), None)


@dataclass(frozen=True)
class ServedAdapter:
    """What vLLM needs to know of an adapter. rank: the largest in it. whole: layers that it holds whole
    (`modules_to_save`). bias: which biases it holds, in PEFT's word."""

    rank: int
    whole: tuple[str, ...] = ()
    bias: str = "none"
    dora: bool = False

    def refusals(self) -> Iterator[str]:
        """Why it is not served beside its base model, a sentence without its full stop each."""
        if room_for(self.rank) is None:
            yield f"its rank is {self.rank}, and vLLM serves ranks up to {RANKS[-1]}"
        if self.whole:
            yield f"it contains whole layers ({listed(self.whole)}, `modules_to_save`), which vLLM does not load with an adapter"
        if self.bias != "none":
            yield f"it contains biases (`bias: {self.bias}`), which vLLM does not load with an adapter"
        if self.dora:
            yield "it is a DoRA adapter, which vLLM does not support"


def planned(config: Mapping[str, Any]) -> ServedAdapter:
    """The adapter that a stage's configuration of Axolotl asks for."""
    return ServedAdapter(
        int(config["lora_r"]), tuple(config.get("lora_modules_to_save") or ()), dora=bool(config.get("peft_use_dora"))
    )


def saved(folder: Path) -> ServedAdapter:
    """The adapter in a folder, by its `adapter_config.json`."""
    facts = read_record(folder / "adapter_config.json")
    rank = max([facts.get("r") or 1, *(facts.get("rank_pattern") or {}).values()])
    whole = tuple(facts.get("modules_to_save") or ())
    return ServedAdapter(int(rank), whole, facts.get("bias", "none"), bool(facts.get("use_dora")))
