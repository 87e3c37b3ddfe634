"""How many operations PyTorch dispatches for a layer of a model: what Python has to launch, however
few tokens a row has.

    python benchmarks/launches.py        a minute on one core, without a GPU

A Llama so small that nothing is computed is trained as Axolotl trains it, and every operation that
PyTorch's dispatcher sees is counted, views too, because each takes Python's time. What a layer
takes is the difference between two depths. The counts are the same on every machine; the time of
one is not (`pace` in runner/parts/planner/tables.toml has measured ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEPTHS = (4, 8)
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
# They take no time on a GPU, nor a call of the driver.
ALLOCATING = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "set_",
    "resize_",
}
READING = {"_local_scalar_dense", "item", "lift_fresh"}


@dataclass(frozen=True)
class Training:
    """What is trained: all weights, the adapter alone, or none, as in layers that are only passed
    through."""

    name: str
    adapters: bool = False
    trained: bool = False
    checkpointing: bool = False
    backward: bool = True


CASES = (
    Training("forward alone", backward=False),
    Training("forward alone, LoRA on seven linear layers", adapters=True, backward=False),
    Training("all weights", trained=True),
    Training("all weights, checkpointing", trained=True, checkpointing=True),
    Training("frozen, checkpointing", checkpointing=True),
    Training("LoRA on seven linear layers", adapters=True),
    Training("LoRA on seven linear layers, checkpointing", adapters=True, checkpointing=True),
)


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = operation._schema.name.partition("::")[2]
        if name not in ALLOCATING | READING:
            self.count += 1
        return operation(*args, **(kwargs or {}))


def dispatched(case: Training, layers: int) -> int:
    """Operations of a micro batch."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).bfloat16()
    if case.adapters:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(
            model, LoraConfig(r=8, lora_dropout=0.05, target_modules=list(LINEAR))
        )
    elif case.backward:
        model.model.layers.requires_grad_(case.trained)
    if case.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model.enable_input_require_grads()
    model.train(case.backward)
    tokens = torch.randint(0, 256, (1, 8))

    def micro_batch() -> None:
        with torch.autocast("cpu", torch.bfloat16), torch.set_grad_enabled(case.backward):
            loss = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        if case.backward:
            loss.backward()

    micro_batch()
    with Counting() as counting:
        micro_batch()
    return counting.count


def of_a_layer(case: Training) -> float:
    few, many = (dispatched(case, layers) for layers in DEPTHS)
    return (many - few) / (DEPTHS[1] - DEPTHS[0])


def main() -> None:
    print(f"{'operations dispatched for a layer':<48}{'count':>6}")
    for case in CASES:
        print(f"{case.name:<48}{of_a_layer(case):>6.0f}", flush=True)


if __name__ == "__main__":
    main()
