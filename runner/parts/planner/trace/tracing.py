"""Trace: the real model takes training steps on fake tensors, and every byte is counted. torch is
imported late."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.planner import memory, parameters
from runner.parts.planner.forecast import Forecast, named
from runner.parts.planner.formulas import Traced, left_out
from runner.parts.planner.workload import Run, Workload
from runner.plan import Plan
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools import packaged
from runner.tools.problem import Stop, first_line
from runner.tools.process import hush
from runner.tools.text import json_text, template


def trace(run: Run, operations: bool = True) -> Traced:
    """A training step and an evaluation of a run on one GPU. operations: whether to count them too,
    which takes half as long again. Raises Stop without the packages for it, ValueError where they
    cannot build the model."""
    traced: Traced = _language().trace(run, operations)
    return traced


def _language() -> ModuleType:
    """The module that traces. Raises Stop without the packages for it, which are installed
    together."""
    hush()
    try:
        from runner.parts.planner.trace import language
    except ImportError:
        raise Stop(
            "`--exact` needs packages that are not installed.", packaged.install("train")
        ) from None
    return language


def any_architecture(run: Workload, folder: Path | None) -> Traced:
    """The trace of a model without formulas, of the catalog, or by `config.json` in a folder or the
    hub's cache. Raises Stop if that file is not here, transformers would not train the model, or
    fake tensors cannot follow its code."""
    language = _language()
    name = str(folder or run.model.id)
    model_type = run.model.model_type
    try:
        from transformers import AutoConfig

        in_catalog = run.model.parameters is not None
        if in_catalog:
            config = language.hf_config(run)
        else:
            config = AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception as error:  # each class judges its own settings, in its own way
        raise Stop(
            f"`{run.model.id}` has the type `{model_type}`, and building it needs its own `config.json`: {_said(error)}",
            "Run this on a machine that has the model, in its folder or in the hub's cache.",
        ) from None
    try:
        able = language.attentions(config)
    except KeyError:
        raise Stop(
            f"transformers has no causal language model of type `{model_type}`, so it cannot be trained here.",
            "`recipe models` lists the known ones.",
        ) from None
    if run.attention not in able:
        raise Stop(
            f"transformers has no `{run.attention}` for models of type `{model_type}`, so training would not start.",
            f"Write `attention: {able[0]}` under `model`.",
        )
    try:
        return trace(replace(run, model=replace(run.model, id=name)))
    except Stop:
        raise
    except Exception as error:  # any code of any architecture
        raise Stop(
            f"Models of type `{model_type}` cannot be traced: {_said(error)}",
            "`recipe rehearse` shows whether it trains, and a short run on the GPU shows how much it needs. `recipe models` lists the known models.",
        ) from None


def _said(error: Exception) -> str:
    """The first line of an error; an error of fake tensors in words."""
    reasons: Mapping[str, str] = packaged.toml(__file__, "reasons.toml")
    sentences = (
        reasons[error_class.__name__]
        for error_class in type(error).__mro__
        if error_class.__name__ in reasons
    )
    function = str(getattr(error, "func", "")).removesuffix(".default")
    return next(sentences, "{line}").format(line=first_line(error), function=function)


BASIS = "Measured on fake tensors; CUDA context and allocator slack are assumed. The model runs in plain PyTorch; with kernels for its layers, a GPU needs less."


def plan_by_trace(recipe: Recipe, plan: Plan, forecasts: Sequence[Forecast], as_json: bool) -> int:
    """Prints the traces of models without formulas in the form of `recipe plan`; 1 if one does not
    fit."""
    stages = []
    for forecast in forecasts:
        if isinstance(run := forecast.workload, Workload):
            traced = any_architecture(run, recipe.base_folder)
            needed = memory.whole(run, max(traced.peak, traced.evaluation_peak))
            untraced = sorted(left_out(run))
            if forecast.usable is None:
                fits = None
            else:
                fits = needed <= forecast.usable
            seeing = parameters.tower(run.model).whole
            figures = {
                "one": forecast,
                "run": run,
                "traced": traced,
                "needed": needed,
                "seeing": seeing,
            }
            more = SimpleNamespace(**figures, fits=fits, time=None, without=untraced)
            stages.append(named(packaged.toml(__file__, "stage.toml"), more))
            if not as_json:
                title = f"Stage {forecast.stage.name}, by trace alone"
                if untraced:
                    caption = "ZeRO and offloading are not traced; what they save is subtracted."
                else:
                    caption = None
                table = Table(title=title, caption=caption, title_justify="left", show_header=False)
                rows = template(Path(__file__).with_name("stage.txt.jinja"), units=units).render(
                    figures
                )
                for row in rows.splitlines():
                    table.add_row(*row.split(" | "))
                Console(width=120).print(table)
    if as_json:
        traced_stages = [stage["stage"] for stage in stages]
        other_stages = [stage.name for stage in plan.stages if stage.name not in traced_stages]
        report = {
            "name": recipe.name,
            "basis": BASIS,
            "stages": stages,
            "without_formulas": other_stages,
        }
        say(json_text(report | {"problems": [], "notes": []}))
    else:
        say(BASIS)
    return int(any(stage["fits"] is False for stage in stages))
