"""Fused kernels: those that a recipe gets compute what PyTorch computes, and the others are left
out."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest

from runner import catalog
from runner.catalog.tables import table
from runner.check.validate import load
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from runner.tools.process import without_gpu_kernels
from tests.conftest import ROOT

KERNELS = ("liger_rope", "liger_rms_norm", "liger_glu_activation")


def config(name: str, *options: str, accelerator: bool = True) -> dict:
    recipe, _, _ = load(ROOT / "recipes" / f"{name}.yaml", from_options(options))
    at = place(recipe) if accelerator else Place("/c", "/d", "/r", "/s", accelerator=False)
    return dict(translate(recipe, at).stages[-1].config)


def kernels(name: str, *options: str, accelerator: bool = True) -> tuple[bool, ...]:
    made = config(name, *options, accelerator=accelerator)
    return tuple(bool(made.get(kernel)) for kernel in KERNELS)


def test_every_kernel_that_the_model_has_is_on():
    assert kernels("survival") == kernels("gemma") == (True, True, True)
    # Phi-4-mini turns three quarters of each head, which the kernel does not know.
    assert kernels("lyrics") == (False, True, True)


@pytest.mark.parametrize("name", ["survival", "lyrics", "gemma"])
def test_none_leaves_them_out_and_so_does_a_machine_without_gpu(name):
    assert (
        kernels(name, "train.kernels=none")
        == kernels(name, accelerator=False)
        == (False, False, False)
    )


def test_without_any_the_plugin_is_left_out_too():
    assert (
        "axolotl.integrations.liger.LigerPlugin"
        not in config("survival", "train.kernels=none")["plugins"]
    )
    assert not [key for key in config("survival", "train.kernels=none") if key.startswith("liger")]


def test_a_feed_forward_part_unlike_its_familys_keeps_its_own_code(tmp_path):
    """Liger's has no biases, and would drop those of the weights without a word."""
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
    }
    sizes |= {"vocab_size": 101, "max_position_embeddings": 4096}

    def of(**more) -> tuple[bool, ...]:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **sizes, **more}))
        return kernels("survival", f"model.base={tmp_path}", "data.chat_template=auto")

    assert of() == of(hidden_act="silu") == (True, True, True)
    assert of(mlp_bias=True) == of(hidden_act="gelu") == (True, True, False)
    assert of(model_type="starcoder2") == (False, False, False), "nobody has looked"


# Types whose kernels nobody has compared with PyTorch's own; for them the catalog names none.
NOT_LOOKED_AT = {
    *("apertus", "gpt_oss", "granitemoehybrid", "lfm2", "lfm2_moe"),
    *("olmo3", "qwen3_moe", "qwen3_next", "seed_oss"),
    *("gemma3", "gemma4", "glm4v", "glm4v_moe", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe"),
}


def test_liger_has_every_kernel_that_the_catalog_names():
    from importlib.metadata import version

    # Liger imports classes that would keep the kernels which they find first.
    without_gpu_kernels()
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as known

    assert version("liger_kernel") == "0.8.1"
    for kind, named in table("fused-kernels").items():
        takes = inspect.signature(known[kind]).parameters
        assert {"rope", "rms_norm"} <= set(takes) and {"swiglu", "geglu"} & set(takes), kind
        assert set(named) == {"rope", "rms_norm", "glu"}
    types = {catalog.model(name).model_type for name in catalog.model_ids()}
    assert types - NOT_LOOKED_AT == set(table("fused-kernels"))


@pytest.mark.long
def test_every_kernel_computes_what_pytorch_computes():
    """Logits and every gradient of a tiny model of each type, in Triton's interpreter; a kernel
    that is wrong is seen."""
    wrong = "phi3:partial_rotary_factor=0.75"
    kinds = [*table("fused-kernels"), wrong]
    done = subprocess.run(
        [sys.executable, "-m", "tests.scenarios.side_by_side", *kinds],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report[wrong]["rope"]["fp32"] > 0.1, "a head that is turned in part"
    for kind, named in table("fused-kernels").items():
        for part, on in named.items():
            if on:
                apart = report[kind][part]
                assert apart["fp32"] < 1e-5, (kind, part)
                # In half precision no further from fp32 than PyTorch's own is.
                assert apart["fp16"] < 1.5 * report[kind]["pytorch"]["fp16"], (kind, part)
