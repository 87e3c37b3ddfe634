"""Trace: the real model takes training steps on fake tensors, and every byte is counted. `trace` is the way in; torch is
loaded when it is called."""

from dataclasses import replace
from pathlib import Path

from runner.parts.planner.formulas import Traced
from runner.parts.planner.workload import Run, Workload
from runner.tools import packaged
from runner.tools.problem import Stop


def trace(run: Run, operations: bool = True) -> Traced:
    """A training step and an evaluation of a run on one of its GPUs. operations: whether to count them too, which takes
    half as long again.

    Raises Stop where the packages for it are not installed, ValueError where they cannot build the model.
    """
    from runner.tools.process import hush

    hush()
    try:
        if isinstance(run, Workload):
            from runner.parts.trace import language

            return language.trace(run, operations)
        from runner.parts.trace import images

        return images.trace(run)
    except ImportError:
        raise Stop("`--exact` needs packages that are not installed.", packaged.install("train")) from None


def any_architecture(run: Workload, folder: Path | None) -> Traced:
    """The trace of a model whose architecture nobody has looked at, by its own `config.json`: in a folder, or the hub's cache.

    Raises Stop where that is not on this machine, transformers would not train the model so, or the architecture does something
    that fake tensors cannot follow.
    """
    from runner.tools.process import hush

    hush()
    name, kind = str(folder or run.model.id), run.model.model_type
    try:
        from transformers import AutoConfig

        from runner.parts.trace import language
        from runner.parts.trace.building import attentions

        config = AutoConfig.from_pretrained(name, local_files_only=True)
    except ImportError:
        raise Stop("`--exact` needs packages that are not installed.", packaged.install("train")) from None
    except Exception as error:  # each class judges its own settings, in its own way
        raise Stop(
            f"`{run.model.id}` is of the type `{kind}`, and its own `config.json` is needed to build it: {_said(error)}",
            "Run this where the model lies in its folder, or in the hub's cache.",
        ) from None
    try:
        able = attentions(config)
    except KeyError:
        raise Stop(
            f"transformers has no causal language model of the type `{kind}`, so it cannot be trained here.",
            "`recipe models` shows those that are known.",
        ) from None
    if run.attention not in able:
        raise Stop(
            f"Models of the type `{kind}` have no `{run.attention}` in transformers, so training would not start.",
            f"Write `attention: {able[0]}` under `model`.",
        )
    try:
        return language.trace(replace(run, model=replace(run.model, id=name)))
    except Stop:
        raise
    except Exception as error:  # any code of any architecture
        raise Stop(
            f"Models of the type `{kind}` cannot be traced: {_said(error)}",
            "What it takes can only be tried: `recipe rehearse` shows whether it trains, and a short run on the GPU how much it "
            "needs. `recipe models` shows those that are known.",
        ) from None


def _said(error: Exception) -> str:
    """The first line of what an error says, which may be many of its own; of a fake tensor's in words."""
    if isinstance(error, KeyError | TypeError | AttributeError | IndexError):
        # Defaults of some classes are not whole, nor is every config.json.
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return f"its code in transformers stops at {first!r}, as it does where its `config.json` lacks a setting."
    function = str(getattr(error, "func", "")).removesuffix(".default")
    match type(error).__name__:
        case "DataDependentOutputException":
            return f"its code goes on by the numbers in a tensor (`{function}`), and fake tensors have none."
        case "DynamicOutputShapeException":
            return f"how large a tensor becomes depends on the numbers in another (`{function}`), and fake tensors have none."
    return (str(error).strip() or type(error).__name__).splitlines()[0]
