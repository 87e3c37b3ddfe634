"""Building: the model and the optimizer as Axolotl has them when training begins, without a weight being loaded."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from runner.parts.planner import parameters
from runner.parts.planner.workload import Adapter, Run, Workload
from runner.parts.trace import stand_ins
from runner.tools.names import listed
from runner.tools.problem import Stop, worded
from runner.tools.process import without_gpu_kernels

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def hf_config(workload: Workload) -> Any:
    """The model's config: a folder's or the hub cache's own if there is one, else built from the catalog."""
    from transformers import AutoConfig

    model = workload.model
    try:
        config = AutoConfig.from_pretrained(model.id, local_files_only=True)
        if config.model_type == model.model_type:
            return config
    except (OSError, ValueError):
        pass
    longest = {"max_position_embeddings": max(model.max_position_embeddings, workload.sequence_len)}
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return AutoConfig.for_model(model.model_type, **{**model.sizes, **longest, **tokens})


def attentions(config: Any) -> tuple[str, ...]:
    """The kinds of attention that a model of this config supports, by the names that Axolotl asks for; the fastest
    first. Raises KeyError if transformers has no causal language model of its type."""
    from transformers import AutoModelForCausalLM

    known = AutoModelForCausalLM._model_mapping[type(config)]
    able = {"flash_attention_2": known._supports_flash_attn, "sdpa": known._supports_sdpa}
    able |= {"flex_attention": known._supports_flex_attn, "eager": True}
    return tuple(name for name, can in able.items() if can)


def _attention(workload: Workload, config: Any) -> str:
    """The attention to trace: a stand-in, or, for a class with its own, what it runs on a processor."""
    from transformers import AutoModelForCausalLM

    if workload.attention == "eager":
        return "eager"
    if AutoModelForCausalLM._model_mapping[type(config)]._can_set_attn_implementation():
        # On a GPU SDPA runs kernels like FlashAttention's; on a CPU it would repeat keys and values for every head.
        return stand_ins.PADDED if parameters.repeated(workload) else stand_ins.ATTENTION
    return "sdpa" if "sdpa" in attentions(config) else "eager"


def build(workload: Workload, real: bool = False) -> torch.nn.Module:
    """The model as Axolotl 0.19.0 has it when training begins: dtypes, adapter, frozen parts, checkpointing.
    real: for a GPU, with its own attention code instead of the stand-in (4-bit layers are stand-ins even so)."""
    from transformers import AutoModelForCausalLM

    without_gpu_kernels()
    config = hf_config(workload)
    dtype = torch.float32 if workload.in_full else DTYPES[workload.precision]
    attention = workload.attention if real else _attention(workload, config)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model.config.use_cache = False
    if workload.fused_loss in ("fused", "cut") and not real:
        stand_ins.fuse_loss(model, liger=workload.fused_loss == "fused")
    if workload.adapter and workload.adapter.eight_bit:
        stand_ins.pack(model, 8, stand_ins.EightBit)
    if workload.adapter and workload.adapter.four_bit:
        # FSDP splits and gathers packed numbers as numbers of the run's own type (Axolotl 0.19.0,
        # `bnb_4bit_quant_storage`).
        stored = DTYPES[workload.precision] if workload.sharding == "fsdp" else torch.uint8
        stand_ins.pack(model, 4, partial(stand_ins.FourBit, dtype=dtype, stored=stored))
    if workload.checkpointing:
        if not model.supports_gradient_checkpointing:
            raise Stop(*worded("trace.no-checkpointing", workload=workload))
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if workload.adapter:
        model = _with_adapter(model, workload.adapter, real)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = workload.trains(name)
        if workload.raised:
            _raise(model, lambda name, _: parameters.outside(name))
        if workload.masters:
            _raise(model, lambda _, parameter: parameter.requires_grad)
    return model.train()


def _raise(model: Any, concerns: Callable[[str, torch.nn.Parameter], bool]) -> None:
    """Puts the parameters that `concerns` chooses into fp32, wherever they are tied. (`module.to` swaps tensors, which
    is impossible while they are watched.)"""
    wanted = [old for name, old in model.named_parameters() if concerns(name, old)]
    made = {old: torch.nn.Parameter(old.detach().float(), old.requires_grad) for old in wanted}
    for module in model.modules():
        for key, old in list(module._parameters.items()):
            if old in made:
                module._parameters[key] = made[old]


def _with_adapter(model: Any, adapter: Adapter, real: bool) -> Any:
    from peft import LoraConfig, get_peft_model

    linear = {name: module for name, module in model.named_modules() if isinstance(module, stand_ins.LINEAR)}
    own = {name.rpartition(".")[2] for name in linear}
    own -= {name.rpartition(".")[2] for name, module in linear.items() if module is model.get_output_embeddings()}
    there = any(re.fullmatch(adapter.pattern, name) for name in linear) if adapter.pattern else own & {*adapter.targets}
    if not there:
        named = adapter.pattern or listed(sorted(adapter.targets))
        raise Stop(*worded("trace.no-such-layers", targets=named, own=listed(sorted(own))))
    config = LoraConfig(
        r=adapter.rank,
        lora_dropout=adapter.dropout,
        target_modules=adapter.pattern or list(adapter.targets),
        target_parameters=list(adapter.parameters),
        use_dora=adapter.dora,
        task_type="CAUSAL_LM",
    )
    if real:
        return get_peft_model(model, config)
    with patch.object(torch.nn.Module, "_apply", stand_ins.applied):
        wrapped = get_peft_model(model, config)
    stand_ins.gpu_dropout(wrapped)
    return wrapped


def optimizer_of(run: Run, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the trained parameters; a stand-in for all but PyTorch's AdamW and SGD."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if run.optimizer == "sgd":
        return torch.optim.SGD(named.values())
    if run.optimizer in ("adamw_torch_fused", "adamw_torch"):
        # On a GPU plain AdamW works on lists of tensors, with temporaries as large as what it updates.
        fused = run.optimizer.endswith("fused")
        return torch.optim.AdamW(named.values(), fused=fused, foreach=not fused)
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    in_full = {parameter for module in embeddings for parameter in module.parameters()}
    # Under FSDP the optimizer is torchao's, which treats embeddings like the rest.
    return stand_ins.Keeping(named, run.rule, in_full if run.rule.embeddings and run.sharding != "fsdp" else set())


def spread(run: Run, model: Any, mesh: Any) -> list[torch.Tensor]:
    """Splits the model over several GPUs as the run does (ZeRO is not traced), and returns DDP's buckets.
    FSDP2 as Axolotl 0.19.0 prepares it (monkeypatch/accelerate/fsdp2.py, fsdp2_prepare_model): one unit for each of an
    adapter's two matrices, one for each layer, and one for the rest, all split again after the forward pass, as the
    recipe asks; trained weights in fp32, as the runner holds them."""
    if run.sharding == "ddp":
        return [torch.empty_like(parameter) for parameter in model.parameters() if parameter.requires_grad]
    if run.sharding != "fsdp" or not isinstance(run, Workload):
        return []
    from peft.tuners.lora import LoraLayer
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = DTYPES[run.precision]
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=half)
    split = partial(fully_shard, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    _raise(model, lambda _, parameter: parameter.requires_grad and parameter.dtype != torch.float32)
    base = model.get_base_model() if run.adapter else model
    base.tie_weights()
    units = {run.model.layer_class} if run.model.layer_class else set(base._no_split_modules or ())
    # The innermost first, as Axolotl goes through them.
    for module in reversed(list(base.modules())):
        if isinstance(module, LoraLayer):
            for matrices in (module.lora_A, module.lora_B):
                for name in set(module.active_adapters) & set(matrices):
                    split(matrices[name])
        if type(module).__name__ in units:
            split(module)
    split(model)
    return []


def pretended_mesh(run: Run) -> Any:
    """A fake process group of as many GPUs as the run has; None if nothing is sharded."""
    if run.sharding != "fsdp":
        return None
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    count = run.machines.world_size
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    return init_device_mesh("cpu", (count,))
