"""Every optimizer of the catalog makes a step here, as Axolotl builds it: what it keeps is what the
plan counts, and it changes weights that FSDP has split, or is not offered for them."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from runner import catalog
from runner.check import by_schema
from runner.parts.planner import memory
from runner.parts.planner.workload import Workload
from runner.plan import Machines

WIDE = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2}
WIDE |= {"num_attention_heads": 4, "num_key_value_heads": 2}
ONE = Machines(1, 1, "NVIDIA-L40S", 32, 8)


def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**WIDE, tie_word_embeddings=False))


def stepped(name, built, folder, monkeypatch, mesh=None):
    """The optimizer after some steps, by Axolotl's own builder and trainer; RAdam begins with its
    sixth."""
    from axolotl.core.builders import base
    from axolotl.core.trainers.mixins.optimizer import OptimizerMixin
    from axolotl.utils.dict import DictDefault
    from transformers import TrainingArguments

    monkeypatch.setattr(base, "build_parallelism_config", lambda cfg: (None, mesh))
    given, beside = {"learning_rate": 0.01, "weight_decay": 0.01}, {}
    builder = SimpleNamespace(cfg=DictDefault(optimizer=name), model=built)
    base.TrainerBuilderBase._configure_optimizer(builder, given, beside)
    chosen = {key: given[key] for key in ("optim", "learning_rate", "weight_decay") if key in given}
    arguments = TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **chosen)
    for unknown in ("loraplus_lr_ratio", "embedding_lr_scale", "embedding_lr", "lr_groups"):
        setattr(arguments, unknown, None)
    optimizer = OptimizerMixin(model=built, args=arguments, **beside).create_optimizer()
    if hasattr(optimizer, "train"):
        optimizer.train()
    words = torch.arange(32)[None]
    for _ in range(7 if "radam" in name else 2):
        built(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def kept(optimizer) -> int:
    """Bytes of what it keeps, without its tables of quantisation, which all weights share, and its
    counts of steps."""
    size = 0
    for state in optimizer.state.values():
        for key, value in state.items():
            inner = getattr(value, "__tensor_flatten__", lambda: ([], None))()[0]
            parts = {part: getattr(value, part) for part in inner} or {key: value}
            for part, one in parts.items():
                if isinstance(one, torch.Tensor) and one.numel() > 1 and "qmap" not in part:
                    size += one.numel() * one.element_size()
    return size


@pytest.mark.long
@pytest.mark.parametrize("name", catalog.optimizers())
def test_an_optimizer_keeps_what_the_plan_counts(name, tmp_path, monkeypatch):
    built = model()
    before = {key: value.detach().clone() for key, value in built.named_parameters()}
    with torch.compiler.set_stance("force_eager"):
        optimizer = stepped(name, built, tmp_path, monkeypatch)
    assert any(not torch.equal(before[key], value) for key, value in built.named_parameters())
    facts = catalog.from_config(
        "tiny", built.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    )
    work = Workload(model=facts, machines=ONE, precision="fp32", optimizer=name)
    assert memory.estimate(work).state.optimizer == pytest.approx(kept(optimizer), rel=0.02, abs=64)


@pytest.fixture(scope="module")
def mesh():
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    if distributed.is_initialized():  # a trace has left its own
        distributed.destroy_process_group()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("dp_shard",))
    distributed.destroy_process_group()


@pytest.mark.long
@pytest.mark.parametrize("name", catalog.optimizers())
def test_an_optimizer_is_offered_for_fsdp_if_it_changes_its_shards(
    name, tmp_path, monkeypatch, mesh
):
    from torch.distributed.fsdp import fully_shard

    built, works = model(), False
    fully_shard(built, mesh=mesh)
    with torch.compiler.set_stance("force_eager"), suppress(RuntimeError, NotImplementedError):
        stepped(name, built, tmp_path, monkeypatch, mesh)
        works = True
    assert works == (catalog.optimizers()[name].sharded is True)


def test_recipes_have_every_optimizer_of_the_catalog():
    assert sorted(by_schema.part("lora", "train.optimizer")["enum"]) == sorted(catalog.optimizers())
