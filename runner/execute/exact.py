"""Exact: the real model, built as Axolotl builds it, takes training steps on fake tensors; every byte is counted.

No weights, no GPU, no data: PyTorch's FakeTensorMode carries shapes and dtypes alone. What needs a GPU's own code
(FlashAttention, 4-bit layers, 8-bit Adam) is replaced by stand-ins that ask for the same memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from runner.estimate.workload import Workload
from runner.execute import stand_ins
from runner.execute.live import Live

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Traced:
    """What a trace found: counts, bytes, floating-point operations of one micro batch, seconds that the trace took.

    weights, gradients, optimizer: bytes held between steps. activations: bytes alive after the forward pass beyond
    those. peak, evaluation_peak: most bytes alive in training and in evaluation. peak_at: the operation at the peak.
    """

    parameters: int
    trainable: int
    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    peak_at: str
    evaluation_peak: int
    flops: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def hf_config(workload: Workload) -> Any:
    """The model's config: a folder's or the hub cache's own where there is one, else built from the catalog."""
    from transformers import AutoConfig

    model = workload.model
    try:
        config = AutoConfig.from_pretrained(model.id, local_files_only=True)
        if config.model_type == model.model_type:
            return config
    except (OSError, ValueError):
        pass
    return AutoConfig.for_model(
        model.model_type,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
        vocab_size=model.vocab_size,
        max_position_embeddings=max(model.max_position_embeddings, workload.sequence_len),
        tie_word_embeddings=model.tied,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )


def build(workload: Workload, real: bool = False) -> torch.nn.Module:
    """The model as Axolotl 0.19.0 has it when training begins: dtypes, adapter, frozen parts, checkpointing.

    real: for a GPU, with its own attention code in place of the stand-in (4-bit layers are stand-ins even so).
    """
    from transformers import AutoModelForCausalLM

    stand_ins.register()
    dtype = _DTYPES[workload.precision]
    # On a GPU SDPA runs the same kernels; on a CPU it would repeat keys and values for every head.
    attention = workload.attention if real or workload.attention == "eager" else stand_ins.ATTENTION
    model = AutoModelForCausalLM.from_config(hf_config(workload), dtype=dtype, attn_implementation=attention)
    model.config.use_cache = False
    if workload.adapter and workload.adapter.four_bit:
        stand_ins.four_bit(model, dtype)
    if workload.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if workload.adapter:
        model = _with_adapter(model, workload, real)
    else:
        for name, parameter in model.named_parameters():
            parameter.requires_grad = workload.trains(name)
        if workload.attention != "flash_attention_2" and workload.sharding != "fsdp":
            # ModelLoader._configure_embedding_dtypes: norms and embeddings go to fp32, and back only for attention
            # code that cannot take it.
            _raise(model, lambda name: "norm" in name or "embed_tokens" in name or "lm_head" in name)
    return model.train()


def _raise(model: Any, wanted: Callable[[str], bool]) -> None:
    """Puts the parameters of the wanted modules into fp32, tied ones together. (`module.to` swaps tensors, which those
    that are watched do not allow.)"""
    made: dict[int, torch.nn.Parameter] = {}
    for name, module in model.named_modules():
        for key, old in list(module._parameters.items()):
            if old is not None and wanted(name):
                made.setdefault(id(old), torch.nn.Parameter(old.detach().float(), old.requires_grad))
                module._parameters[key] = made[id(old)]


def _with_adapter(model: Any, workload: Workload, real: bool) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=workload.adapter.rank,
        lora_dropout=workload.adapter.dropout,
        target_modules=list(workload.adapter.targets),
        task_type="CAUSAL_LM",
    )
    if real:
        return get_peft_model(model, config)
    with stand_ins.moving_by_replacing():
        wrapped = get_peft_model(model, config)
    stand_ins.gpu_dropout(wrapped)
    return wrapped


def optimizer_of(workload: Workload, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer over the trained parameters; the 8-bit one is a stand-in."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if "8bit" in workload.optimizer:
        embeddings = {
            parameter
            for module in model.modules()
            if isinstance(module, torch.nn.Embedding)
            for parameter in module.parameters()
        }
        return stand_ins.EightBitAdam(trained, embeddings)
    # On a GPU the plain AdamW works on lists of tensors, and its temporaries are as large as what it updates.
    fused = workload.optimizer.endswith("fused")
    return torch.optim.AdamW(trained, fused=fused, foreach=not fused)


def trace(workload: Workload, operations: bool = True) -> Traced:
    """A training step and an evaluation of a workload on one of its GPUs; ZeRO and offloading are left out.

    operations: whether to count them too, which takes half as long again.

    Raises ValueError where transformers or peft cannot build the model.
    """
    started = time.monotonic()
    live, mesh = Live(), _mesh(workload)
    with FakeTensorMode(allow_non_fake_inputs=True), live, live.resizing():
        model = build(workload)
        counts = _counts(model)
        spread = _spread(workload, model, mesh)
        gc.collect()
        optimizer = optimizer_of(workload, model)
        weights = live.bytes - sum(bucket.untyped_storage().nbytes() for bucket in spread)
        _prime(model, optimizer)
        held = live.bytes
        live.reset()
        step = _step(workload, model, optimizer, live)
        peak, at = live.peak, live.at
        evaluation = _evaluate(workload, model, live)
        flops = _operations(workload, model) if operations else 0
    return Traced(
        *counts,
        weights=weights,
        gradients=step["gradients"],
        optimizer=held - weights - sum(bucket.untyped_storage().nbytes() for bucket in spread),
        activations=step["activations"],
        peak=peak,
        peak_at=at,
        evaluation_peak=evaluation,
        flops=flops,
        seconds=round(time.monotonic() - started, 1),
    )


def _spread(workload: Workload, model: Any, mesh: Any) -> list[torch.Tensor]:
    """What several GPUs add, and what the first of them holds: DDP's buckets, or FSDP2 over a process group that only
    pretends (ZeRO is not traced). Returns the buckets."""
    if workload.sharding == "ddp":
        return [torch.empty_like(parameter) for parameter in model.parameters() if parameter.requires_grad]
    if workload.sharding == "fsdp":
        _shard(workload, model, mesh)
    return []


def _mesh(workload: Workload) -> Any:
    """A process group that only pretends, of as many GPUs as the workload has; None where nothing is sharded."""
    if workload.sharding != "fsdp":
        return None
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    count = workload.machines.world_size
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    return init_device_mesh("cpu", (count,))


def _shard(workload: Workload, model: Any, mesh: Any) -> None:
    """FSDP2 as accelerate 1.13.0 prepares it: trained weights in fp32, one unit a layer, and the rest one unit."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    half = _DTYPES[workload.precision]
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half, output_dtype=half)
    for module in model.modules():
        for name, old in list(module._parameters.items()):
            if old is not None and old.requires_grad and old.dtype != torch.float32:
                module._parameters[name] = torch.nn.Parameter(old.detach().float())
    base = model.get_base_model() if workload.adapter else model
    base.tie_weights()
    for layer in base.get_submodule(workload.model.layers_path):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _counts(model: torch.nn.Module) -> tuple[int, int]:
    def size(parameter: torch.nn.Parameter) -> int:
        return parameter.numel() * (2 if parameter.dtype == torch.uint8 else 1)

    everything = list(model.parameters())
    return sum(map(size, everything)), sum(size(part) for part in everything if part.requires_grad)


def forward(workload: Workload, model: torch.nn.Module, rows: int, device: str = "cpu") -> torch.Tensor:
    """The loss, through the path that Trainer and accelerate take: autocast, and outputs raised to fp32."""
    from accelerate.utils import convert_to_fp32

    tokens = torch.zeros((rows, workload.sequence_len), dtype=torch.long, device=device)
    mixed = workload.precision != "fp32"
    half = _DTYPES[workload.precision] if mixed else torch.bfloat16
    with stand_ins.autocast_seen(mixed), torch.autocast(device, dtype=half, enabled=mixed):
        output = model(input_ids=tokens, labels=tokens, use_cache=False)
    return (convert_to_fp32(output) if mixed else output)["loss"]


def _operations(workload: Workload, model: torch.nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        forward(workload, model, workload.micro_batch_size).backward()
    model.zero_grad()
    return counter.get_total_flops() + _attention_flops(workload)


def _prime(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """An empty step, after which the optimizer has its state, as it has in every step but the first."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()


def _step(workload: Workload, model: Any, optimizer: Any, live: Live) -> dict[str, int]:
    found = {}
    for _ in range(min(2, workload.accumulation)):
        before = live.bytes
        loss = forward(workload, model, workload.micro_batch_size)
        found["activations"] = live.bytes - before
        loss.backward()
        del loss
    gc.collect()
    gradients = [_local(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    found["gradients"] = sum(gradient.numel() * gradient.itemsize for gradient in gradients)
    del gradients
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    return found


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)


def _evaluate(workload: Workload, model: Any, live: Live) -> int:
    model.eval()
    live.reset()
    with torch.no_grad():
        forward(workload, model, workload.evaluation_batch_size)
    model.train()
    return live.peak


def _attention_flops(workload: Workload) -> int:
    """What the stand-in for FlashAttention does not do: half of the square, forward 4 and backward 10 operations a
    pair and channel (Dao 2023, arXiv 2307.08691, section 4.1), forward twice with checkpointing."""
    if workload.attention == "eager":
        return 0
    model = workload.model
    pairs = workload.micro_batch_size * workload.sequence_len**2 // 2
    passes = 4 * (2 if workload.checkpointing else 1) + 10
    return passes * pairs * model.num_attention_heads * model.head_dim * model.num_hidden_layers
