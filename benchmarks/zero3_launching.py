"""What DeepSpeed's ZeRO-3 adds to launching a layer: its hooks run in Python before and after every
module, forward and backward.

    python benchmarks/zero3_launching.py         some minutes on one core, without a GPU

A Llama so small that nothing but Python takes time is trained on one process, with and without
ZeRO-3, as it is and with LoRA on all linear layers. What a layer takes is the difference between
two depths. Processor seconds are counted, and the least of several micro batches, because other
work on the machine changes these least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

DEPTHS, BATCHES = (4, 12), 12
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
HERE = {
    "DS_ACCELERATOR": "cpu",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "MASTER_ADDR": "127.0.0.1",
}


def measure(zero: bool, lora: bool, layers: int) -> float:
    """Processor seconds of a micro batch."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    sizes = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": layers,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).bfloat16()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=8, target_modules=list(LINEAR)))
    model.train()
    rows = torch.randint(0, 256, (1, 8))
    backward = torch.Tensor.backward
    if zero:
        import deepspeed

        trained = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
        split = {"stage": 3, "stage3_param_persistence_threshold": 640, "overlap_comm": False}
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1000,
            "zero_optimization": split,
        }
        settings |= {"bf16": {"enabled": True}, "zero_allow_untested_optimizer": True}
        model = deepspeed.initialize(model=model, optimizer=trained, config=settings)[0]
        backward = model.backward
    took = []
    for _ in range(BATCHES):
        began = time.process_time()
        backward(model(input_ids=rows, labels=rows).loss)
        took.append(time.process_time() - began)
    return min(took)


def in_a_process(*asked: object) -> float:
    command = [sys.executable, __file__, json.dumps(asked)]
    port = {"MASTER_PORT": str(29000 + os.getpid() % 1000)}
    done = subprocess.run(
        command, env=os.environ | HERE | port, capture_output=True, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    if len(sys.argv) > 1:
        print(measure(*json.loads(sys.argv[1])))
        return
    print(f"{'processor milliseconds a layer':<32}{'plain':>8}{'ZeRO-3':>8}{'more':>8}")
    for name, lora in (("all weights", False), ("LoRA on seven linear layers", True)):
        layer = {}
        for zero in (False, True):
            few, many = (in_a_process(zero, lora, layers) for layers in DEPTHS)
            layer[zero] = 1e3 * (many - few) / (DEPTHS[1] - DEPTHS[0])
        print(
            f"{name:<32}{layer[False]:>8.1f}{layer[True]:>8.1f}{layer[True] - layer[False]:>8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
