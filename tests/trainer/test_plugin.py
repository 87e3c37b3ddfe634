"""The plugin for Axolotl: what its hooks change, asked by Axolotl's own functions."""

from __future__ import annotations

import pytest
import torch
from axolotl.utils import environment, trainer
from axolotl.utils.dict import DictDefault
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit

from runner.trainer.plugin import RecipePlugin, keep_gradients


def test_several_processes_without_a_gpu_ask_no_driver(monkeypatch):
    """As with the CUDA build of torch on a machine without a GPU; the CPU build raises what Axolotl
    expects."""

    def no_driver(*devices: int) -> bool:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "can_device_access_peer", no_driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    # Not the trainer's, which another test's plugin may have changed already.
    monkeypatch.setattr(trainer, "check_cuda_p2p_ib_support", environment.check_cuda_p2p_ib_support)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError):
        trainer.prepare_optim_env(DictDefault({}))
    RecipePlugin().register({})
    trainer.prepare_optim_env(DictDefault({}))


def test_four_bit_weights_keep_their_gradient_after_an_evaluation_on_a_processor():
    layer = Linear4bit(64, 32, bias=False, compute_dtype=torch.float32, quant_type="nf4").to("cpu")
    rows = torch.randn(3, 64)
    keep_gradients(layer)
    with torch.no_grad():
        layer.eval()(rows)
    asked = rows.clone().requires_grad_()
    layer.train()(asked).sum().backward()
    weights = dequantize_4bit(layer.weight, layer.weight.quant_state)
    assert torch.allclose(asked.grad, weights.sum(0).expand(3, -1), atol=1e-5)
