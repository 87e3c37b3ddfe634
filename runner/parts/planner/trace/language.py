"""Exact: the real model, built as its trainer builds it, takes training steps on fake tensors;
every byte is counted.

There are no weights, no GPU and no data: PyTorch's FakeTensorMode has only shapes and dtypes. Code
for GPUs alone (FlashAttention, 4-bit layers, 8-bit Adam) is replaced by stand-ins that allocate the
same memory."""

import gc
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from runner import parts
from runner.parts.planner import parameters
from runner.parts.planner.formulas import Traced
from runner.parts.planner.trace import stand_ins
from runner.parts.planner.workload import Adapter, Run, Workload
from runner.tools.model_classes import language_class
from runner.tools.problem import Stop, listed
from runner.tools.process import without_gpu_kernels
from runner.trainer import seeing

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def trace(run: Run, operations: bool = True) -> Traced:
    """A step and an evaluation on one GPU, without ZeRO and offloading. Raises ValueError if no
    model can be built."""
    if isinstance(run, Workload):
        return _measured(run, partial(build, run), partial(forward, run), operations)
    parts.require("images")
    from runner.parts.images import network
    from runner.parts.images.formulas import Images

    assert isinstance(run, Images)
    image_size = run.image_size
    mixed = run.precision != "fp32"
    if mixed:
        half = DTYPES[run.precision]
    else:
        half = torch.bfloat16
    built = partial(network.build, run.architecture, run.width, run.classes)

    def loss(model: Any, rows: int, reference: None) -> torch.Tensor:
        pixels = torch.zeros((rows, 3, image_size, image_size))
        with torch.autocast("cpu", dtype=half, enabled=mixed):
            return model(pixel_values=pixels, labels=torch.zeros(rows, dtype=torch.long)).loss

    return _measured(run, lambda: built().train(), loss)


def _measured(
    run: Run,
    build: Callable[[], Any],
    forward: Callable[..., torch.Tensor],
    operations: bool = True,
) -> Traced:
    """Two micro batches at most, a step and an evaluation. forward: gives the loss of a model on a
    number of rows. operations: whether to count them too, which takes half as long again."""
    started = time.monotonic()
    live = stand_ins.Live()
    mesh = pretended_mesh(run)
    reference = None
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        live,
        live.resizing(),
        stand_ins.plain_kernels(),
    ):
        model = build()
        counts = _counts(model)
        buckets = spread(run, model, mesh)
        in_buckets = sum(map(_size, buckets))
        if isinstance(run, Workload) and run.passes_beside and not run.adapter:
            # The frozen model that preference training compares with is split like the trained one.
            reference = build().requires_grad_(False)
            spread(run, reference, mesh)
            reference.eval()
        loss_of = partial(forward, model, reference=reference)
        gc.collect()
        optimizer = optimizer_of(run, model)
        weights = live.bytes - in_buckets
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        # The optimizer has its state after an empty step, as in every step but the first.
        _finish(optimizer)
        held = live.bytes
        live.reset()
        for _ in range(min(2, run.accumulation)):
            before = live.bytes
            loss = loss_of(run.micro_batch_size)
            activations = live.bytes - before
            _backward(run, loss)
            del loss
        gc.collect()
        gradients = sum(
            _size(parameter.grad) for parameter in trained if parameter.grad is not None
        )
        torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
        _finish(optimizer)
        peak = live.peak
        peak_at = live.at
        model.eval()
        live.reset()
        with torch.no_grad():
            loss_of(run.evaluation_batch_size)
        evaluation = live.peak
        model.train()
        flops = 0
        if operations:
            stand_ins.counted.clear()
            with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
                _backward(run, loss_of(run.micro_batch_size))
            flops = counter.get_total_flops() + sum(stand_ins.counted)
    return Traced(
        *counts,
        weights=weights,
        gradients=gradients,
        optimizer=held - weights - in_buckets,
        activations=activations,
        peak=peak,
        peak_at=peak_at,
        evaluation_peak=evaluation,
        flops=flops,
        seconds=round(time.monotonic() - started, 1),
    )


def _counts(model: torch.nn.Module) -> tuple[int, int]:
    """How many numbers all parameters have, and the trained ones; a packed parameter has more
    numbers than entries."""
    kinds = (stand_ins.FourBit, stand_ins.EightBit)
    packed = {}
    for module in model.modules():
        if isinstance(module, kinds):
            packed[module.weight] = prod(module.shape)
    everything = {}
    for parameter in model.parameters():
        everything[parameter] = packed.get(parameter, parameter.numel())
    return sum(everything.values()), sum(
        size for part, size in everything.items() if part.requires_grad
    )


def forward(
    workload: Workload,
    model: torch.nn.Module,
    rows: int,
    device: str = "cpu",
    reference: torch.nn.Module | None = None,
) -> torch.Tensor:
    """The loss, through the path that Trainer and accelerate take: autocast, and outputs raised to
    fp32. reference: the frozen model beside it in preference training; None if the adapter is
    switched off instead."""
    shape = rows * workload.answers, workload.most_tokens // workload.context
    tokens = torch.zeros(shape, dtype=torch.long, device=device)

    def output(of: torch.nn.Module, **more: object) -> Any:
        from accelerate.utils import convert_to_fp32

        mixed = workload.precision != "fp32"
        if mixed:
            half = DTYPES[workload.precision]
        else:
            half = torch.bfloat16
        with stand_ins.autocast_seen(mixed), torch.autocast(device, dtype=half, enabled=mixed):
            answer = of(input_ids=tokens, use_cache=False, **more)
        if mixed:
            return convert_to_fp32(answer)
        return answer

    if workload.generated:
        logits = output(model, logits_to_keep=workload.generated + 1).logits
        return stand_ins.own_answers(logits, tokens[:, -workload.generated :])
    if workload.objective == "reward":
        chosen, rejected = output(model).logits.squeeze(-1).chunk(2)
        return -torch.nn.functional.logsigmoid(chosen - rejected).mean()
    if workload.passes_beside:
        if workload.objective == "dpo":
            compared = stand_ins.loss
        else:
            compared = stand_ins.unpaired
        return compared(model, reference, output, tokens)
    if workload.objective != "sft":
        return stand_ins.alone(workload.objective, output(model).logits, tokens)
    return output(model, labels=tokens)["loss"]


def _grouped(
    rows_shape: Sequence[int],
    weight_shape: Sequence[int],
    *arguments: object,
    out_shape: Sequence[int],
    **options: object,
) -> int:
    """Operations of one product a group: with a weight for each of the groups that the rows fall
    into, or over the rows of each group, whose numbers are unknown before it runs; their sum is all
    rows."""
    if len(rows_shape) == 2:
        return 2 * prod(rows_shape) * weight_shape[-1]
    return 2 * prod(out_shape) * rows_shape[-1]


# PyTorch's own counter has no formula for these (2.13, torch/utils/flop_counter.py): products of a
# mixture of experts, and the attention of processors, which stands for the GPU's own.
UNCOUNTED = {
    torch.ops.aten._grouped_mm: _grouped,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda *shapes, **named: (
        sdpa_flop_count(*shapes[:3])
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda *shapes, **named: sdpa_backward_flop_count(*shapes[:4])
    ),
}


def _backward(run: Run, loss: torch.Tensor) -> None:
    """Checkpointing repeats layers under the autocast of their forward pass, which peft must see
    then too."""
    with stand_ins.autocast_seen(run.precision != "fp32"):
        loss.backward()


def _finish(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()


def _size(tensor: torch.Tensor) -> int:
    """Bytes on this GPU: of a split tensor, only this GPU's share."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.numel() * local.itemsize)


# Building: the model and the optimizer as Axolotl has them when training begins, without a weight
# being loaded.


def hf_config(workload: Workload) -> Any:
    """The model's config: a folder's or the hub cache's own if there is one, else built from the
    catalog."""
    from transformers import AutoConfig

    model = workload.model
    try:
        config = AutoConfig.from_pretrained(model.id, local_files_only=True)
        if config.model_type == model.model_type:
            return config
    except (OSError, ValueError):
        pass
    longest = {"max_position_embeddings": max(model.max_position_embeddings, workload.sequence_len)}
    tokens: dict[str, int | None] = dict.fromkeys(("bos_token_id", "eos_token_id"))
    tokens["pad_token_id"] = 0 if model.sees else None
    settings = model.class_settings({**model.sizes, **longest, **tokens})
    return AutoConfig.for_model(model.model_type, **settings)


def attentions(config: object) -> tuple[str, ...]:
    """The kinds of attention that a model of this config supports, by the names that Axolotl asks
    for; the fastest first. Raises KeyError if transformers has no causal language model of its
    type."""
    model_class = language_class(config)._model_mapping[type(config)]
    able = {
        "flash_attention_2": model_class._supports_flash_attn,
        "sdpa": model_class._supports_sdpa,
    }
    able |= {"flex_attention": model_class._supports_flex_attn, "eager": True}
    return tuple(name for name, can in able.items() if can)


def _attention(workload: Workload, config: object) -> str:
    """The attention to trace: a stand-in, or, for a class with its own, what it runs on a
    processor."""
    if workload.attention == "eager":
        return "eager"
    if language_class(config)._model_mapping[type(config)]._can_set_attn_implementation():
        # On a GPU SDPA runs kernels like FlashAttention's; on a CPU it would repeat keys and values
        # for every head.
        if parameters.repeated(workload):
            return stand_ins.PADDED
        return stand_ins.ATTENTION
    if "sdpa" in attentions(config):
        return "sdpa"
    return "eager"


def build(workload: Workload, real: bool = False) -> torch.nn.Module:
    """The model as Axolotl 0.19.0 has it when training begins: dtypes, adapter, frozen parts,
    checkpointing. real: for a GPU, with its own attention code instead of the stand-in (4-bit
    layers are stand-ins even so)."""
    from transformers import AutoModelForSequenceClassification

    without_gpu_kernels()
    config = hf_config(workload)
    model_class = language_class(config)
    if workload.objective == "reward":
        config.num_labels = 1
        config.pad_token_id = 0
        model_class = AutoModelForSequenceClassification
    if workload.in_full:
        dtype = torch.float32
    else:
        dtype = DTYPES[workload.precision]
    if real:
        attention = workload.attention
    else:
        attention = _attention(workload, config)
    model = model_class.from_config(config, dtype=dtype, attn_implementation=attention)
    model.config.use_cache = False
    if seeing.sees(model):
        seeing.compute_loss_as_for_text(model, fused=real and workload.fused_loss == "fused")
    if workload.fused_loss in ("fused", "cut") and not real:
        stand_ins.fuse_loss(model, liger=workload.fused_loss == "fused")
    # FSDP splits and gathers packed numbers as numbers of the run's own type (Axolotl 0.19.0,
    # `bnb_4bit_quant_storage`); those in 8 bits are as many bytes.
    if workload.sharding == "fsdp":
        stored = DTYPES[workload.precision]
    else:
        stored = torch.uint8
    if workload.adapter and workload.adapter.eight_bit:
        stand_ins.pack(model, 8, partial(stand_ins.EightBit, stored=stored))
    if workload.adapter and workload.adapter.four_bit:
        stand_ins.pack(model, 4, partial(stand_ins.FourBit, dtype=dtype, stored=stored))
    if workload.checkpointing:
        if not model.supports_gradient_checkpointing:
            raise Stop(
                f"transformers has no gradient checkpointing for models of type `{workload.model.model_type}`, so training would not start.",
                "Write `gradient_checkpointing: false` under `train`.",
            )
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if workload.adapter:
        model = _with_adapter(
            model, workload.adapter, real, model_class is AutoModelForSequenceClassification
        )
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = workload.trains(name)
        if workload.raised:
            _raise(model, lambda name, _: parameters.outside(name))
        if workload.masters:
            _raise(model, lambda _, parameter: parameter.requires_grad)
    return model.train()


def _raise(model: Any, concerns: Callable[[str, torch.nn.Parameter], bool]) -> None:
    """Puts the parameters that `concerns` chooses into fp32, wherever they are tied. (`module.to`
    swaps tensors, which is impossible while they are watched.)"""
    wanted = [old for name, old in model.named_parameters() if concerns(name, old)]
    raised = {old: torch.nn.Parameter(old.detach().float(), old.requires_grad) for old in wanted}
    for module in model.modules():
        for key, old in list(module._parameters.items()):
            if old in raised:
                module._parameters[key] = raised[old]


def _with_adapter(model: Any, adapter: Adapter, real: bool, scores: bool) -> Any:
    from peft import LoraConfig, get_peft_model

    linear = {}
    for name, module in model.named_modules():
        if isinstance(module, stand_ins.LINEAR):
            linear[name] = module
    names = {name.rpartition(".")[2] for name in linear}
    if scores:
        outside = model.score
    else:
        outside = model.get_output_embeddings()
    names -= {name.rpartition(".")[2] for name, module in linear.items() if module is outside}
    if adapter.pattern:
        has_targets = any(re.fullmatch(adapter.pattern, name) for name in linear)
    else:
        has_targets = bool(names & {*adapter.targets})
    if not has_targets and (adapter.pattern or adapter.targets):
        targets = adapter.pattern or listed(sorted(adapter.targets))
        raise Stop(
            f"None of the layers {targets} is in this model, so the adapter would change nothing.",
            f"Its linear layers are {listed(sorted(names))}. Write some of them as `lora_layers`.",
        )
    config = LoraConfig(
        r=adapter.rank,
        lora_dropout=adapter.dropout,
        target_modules=adapter.pattern or list(adapter.targets),
        target_parameters=list(adapter.parameters),
        use_dora=adapter.dora,
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
    )
    if real:
        return get_peft_model(model, config)
    if scores:
        # PEFT trains a copy of this layer, and copying a fake tensor damages the memory of the
        # process (PyTorch 2.13).
        outside.__deepcopy__ = lambda _: torch.nn.Linear(
            outside.in_features, outside.out_features, bias=False, dtype=outside.weight.dtype
        )
    with patch.object(torch.nn.Module, "_apply", stand_ins.applied):
        wrapped = get_peft_model(model, config)
    stand_ins.gpu_dropout(wrapped)
    return wrapped


def optimizer_of(run: Run, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the trained parameters; a stand-in for all but PyTorch's AdamW and SGD."""
    parameters_by_name = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameters_by_name[name] = parameter
    if run.optimizer == "sgd":
        return torch.optim.SGD(parameters_by_name.values())
    if run.optimizer in ("adamw_torch_fused", "adamw_torch"):
        # On a GPU plain AdamW works on lists of tensors, with temporaries as large as what it
        # updates.
        fused = run.optimizer.endswith("fused")
        return torch.optim.AdamW(parameters_by_name.values(), fused=fused, foreach=not fused)
    embeddings = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
    in_full = {parameter for module in embeddings for parameter in module.parameters()}
    # Under FSDP the optimizer is torchao's, which treats embeddings like the rest.
    if not run.rule.embeddings or run.sharding == "fsdp":
        in_full = set()
    return stand_ins.Keeping(parameters_by_name, run.rule, in_full)


def spread(run: Run, model: Any, mesh: object) -> list[torch.Tensor]:
    """Splits the model over several GPUs as the run does (ZeRO is not traced), and returns DDP's
    buckets. FSDP2 as Axolotl 0.19.0 prepares it (monkeypatch/accelerate/fsdp2.py,
    fsdp2_prepare_model): one unit for each of an adapter's two matrices, one for each layer, and
    one for the rest, all split again after the forward pass, as the recipe asks; trained weights in
    fp32, as the runner holds them."""
    if run.sharding == "ddp":
        return [
            torch.empty_like(parameter)
            for parameter in model.parameters()
            if parameter.requires_grad
        ]
    if run.sharding != "fsdp" or not isinstance(run, Workload):
        return []
    from peft.tuners.lora import LoraLayer
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = DTYPES[run.precision]
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=half)
    split = partial(fully_shard, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    _raise(model, lambda _, parameter: parameter.requires_grad and parameter.dtype != torch.float32)
    if run.adapter:
        base = model.get_base_model()
    else:
        base = model
    base.tie_weights()
    if run.model.layer_class:
        units = {run.model.layer_class}
    else:
        units = set(base._no_split_modules or ())
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
