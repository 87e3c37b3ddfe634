"""A tiny model of a type, with PyTorch's own code and with Liger's kernels in Triton's interpreter:
how far apart they are.

    TRITON_INTERPRET=1 python -m tests.scenarios.side_by_side TYPE...

Prints JSON: for each type and each kernel, added one after the other, how far logits and gradients
are from PyTorch's in fp32, as a share, in fp32 and in fp16 (the interpreter's numbers are NumPy's,
which knows no bf16). A name such as `phi3:partial_rotary_factor=0.75` sets more of the model's
config.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

PARTS = ("rope", "rms_norm", "glu")
ROWS, LENGTH, WORDS = 2, 9, 101


def build(kind: str, more: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=WORDS,
        max_position_embeddings=256,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **more,
    )
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():  # norms begin as ones, and say nothing then
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def outcome(model: Any, half: bool) -> dict[str, torch.Tensor]:
    """The logits, and every gradient."""
    torch.manual_seed(1)
    ids = torch.randint(3, WORDS, (ROWS, LENGTH))
    with torch.autocast("cpu", dtype=torch.float16, enabled=half):
        answer = model(input_ids=ids, labels=ids, use_cache=False)
    answer.loss.backward()
    gradients = {
        name: part.grad for name, part in model.named_parameters() if part.grad is not None
    }
    return {"logits": answer.logits.detach().float(), **gradients}


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest distance between two that belong together, as a share of the length of the
    first."""
    return max(
        ((other[name] - one[name]).norm() / one[name].norm().clamp(min=1e-9)).item() for name in one
    )


def interpreted() -> None:
    """Puts what Triton's interpreter has in the place of CUDA's own functions, which give it
    nothing."""
    import triton.language as tl
    from liger_kernel.ops import geglu, rms_norm

    rms_norm.rsqrt = lambda number: tl.math.rsqrt(
        number
    )  # looked up late, because the interpreter swaps it
    geglu.tanh = lambda number: 2 * tl.sigmoid(2 * number) - 1


def compare(names: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    models = {name: kind_of(name) for name in names}
    # First all without: a kernel stays in its place for as long as the process lives.
    plain = {name: outcome(build(*model), False) for name, model in models.items()}
    report = {
        name: {"pytorch": {"fp16": apart(plain[name], outcome(build(*model), True))}}
        for name, model in models.items()
    }
    for name, model in models.items():
        apply = MODEL_TYPE_TO_APPLY_LIGER_FN[model[0]]
        takes = inspect.signature(apply).parameters
        switches = {key: False for key in takes if key != "model"}
        for part in PARTS:
            key = part if part in takes else "geglu" if "geglu" in takes else "swiglu"
            apply(**switches | {key: True})
            report[name][part] = {
                wide: apart(plain[name], outcome(build(*model), wide == "fp16"))
                for wide in ("fp32", "fp16")
            }
    return report


def kind_of(name: str) -> tuple[str, dict[str, float]]:
    kind, _, rest = name.partition(":")
    return kind, {
        key: float(value)
        for key, _, value in (part.partition("=") for part in rest.split(",") if part)
    }


if __name__ == "__main__":
    interpreted()
    print(json.dumps(compare(sys.argv[1:])))
