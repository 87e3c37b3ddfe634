"""Trace: the real model takes training steps on fake tensors, and every byte is counted. `trace` is the way in; torch is
loaded when it is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner import extras
from runner.estimate import activations
from runner.estimate.images import Images
from runner.estimate.workload import Run, Workload
from runner.problem import Stop


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


def trace(run: Run, operations: bool = True) -> Traced:
    """A training step and an evaluation of a run on one of its GPUs. operations: whether to count them too, which takes
    half as long again.

    Raises Stop where the packages for it are not installed, ValueError where they cannot build the model.
    """
    from runner.quiet import hush

    hush()
    try:
        match run:
            case Workload():
                from runner.trace import language

                return language.trace(run, operations)
            case Images():
                from runner.trace import images

                return images.trace(run)
    except ImportError:
        raise Stop("`--exact` needs packages that are not installed.", extras.install("train")) from None
    raise TypeError(f"nothing traces {type(run).__name__}")


def any_architecture(run: Workload, folder: Path | None) -> Traced:
    """The trace of a model whose architecture nobody has looked at, by its own `config.json`: in a folder, or the hub's cache.

    Raises Stop where that is not on this machine, or the architecture does something that fake tensors cannot follow.
    """
    from runner.quiet import hush

    hush()
    try:
        from transformers import AutoConfig

        AutoConfig.from_pretrained(name := str(folder or run.model.id), local_files_only=True)
    except ImportError:
        raise Stop("`--exact` needs packages that are not installed.", extras.install("train")) from None
    except (OSError, ValueError) as error:
        raise Stop(
            f"`{run.model.id}` is of the type `{run.model.model_type}`, and its own `config.json` is needed to build it: "
            f"{str(error).splitlines()[0]}",
            "Run this where the model lies in its folder, or in the hub's cache.",
        ) from None
    try:
        return trace(replace(run, model=replace(run.model, id=name)), operations=False)
    except Stop:
        raise
    except Exception as error:  # any code of any architecture
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Stop(
            f"Models of the type `{run.model.model_type}` cannot be traced: {said}",
            "What it takes can only be tried: `recipe rehearse` shows whether it trains, and a short run on the GPU how much it "
            "needs. `recipe models` shows those that are known.",
        ) from None


def left_out(run: Run) -> dict[str, Any]:
    """The fields of a run that a trace takes otherwise: DDP and FSDP are as they are, ZeRO and offloading are not traced."""
    if not isinstance(run, Workload) or not (run.sharding.startswith("zero") or run.offload):
        return {}
    # Whole on one GPU, and in the numbers that the split ones have.
    return {"sharding": "none", "offload": False, "fp32_weights": activations.in_full(run)}
