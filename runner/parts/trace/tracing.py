"""Trace: the real model takes training steps on fake tensors, and every byte is counted. torch is
imported late."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.planner import memory
from runner.parts.planner.forecast import Forecast, named
from runner.parts.planner.formulas import Traced, left_out
from runner.parts.planner.workload import Run, Workload
from runner.plan import Plan
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools import packaged
from runner.tools.problem import Stop, first_line, worded
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
        from runner.parts.trace import language
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
    kind = run.model.model_type
    try:
        from transformers import AutoConfig

        known = run.model.parameters is not None
        if known:
            config = language.hf_config(run)
        else:
            config = AutoConfig.from_pretrained(name, local_files_only=True)
    except Exception as error:  # each class judges its own settings, in its own way
        raise Stop(*worded("trace.needs-config", run=run, kind=kind, reason=_said(error))) from None
    try:
        able = language.attentions(config)
    except KeyError:
        raise Stop(*worded("trace.no-causal-model", kind=kind)) from None
    if run.attention not in able:
        raise Stop(*worded("trace.no-attention", run=run, kind=kind, able=able))
    try:
        return trace(replace(run, model=replace(run.model, id=name)))
    except Stop:
        raise
    except Exception as error:  # any code of any architecture
        raise Stop(*worded("trace.untraceable", kind=kind, reason=_said(error))) from None


def _said(error: Exception) -> str:
    """The first line of an error; an error of fake tensors in words."""
    reasons: Mapping[str, str] = packaged.toml(__file__, "reasons.toml")
    known = (reasons[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in reasons)
    function = str(getattr(error, "func", "")).removesuffix(".default")
    return next(known, "{line}").format(line=first_line(error), function=function)


BASIS = "Measured on fake tensors; CUDA context and allocator slack are assumed. The model runs in plain PyTorch; with kernels for its layers, a GPU needs less."


def plan_by_trace(recipe: Recipe, plan: Plan, forecasts: Sequence[Forecast], as_json: bool) -> int:
    """Prints the traces of models without formulas in the form of `recipe plan`; 1 if one does not
    fit."""
    stages = []
    for forecast in forecasts:
        if isinstance(run := forecast.workload, Workload):
            traced = any_architecture(run, recipe.base_folder)
            needed = memory.whole(run, max(traced.peak, traced.evaluation_peak))
            left = sorted(left_out(run))
            if forecast.usable is None:
                fits = None
            else:
                fits = needed <= forecast.usable
            known = {"one": forecast, "run": run, "traced": traced, "needed": needed}
            more = SimpleNamespace(**known, fits=fits, time=None, without=left)
            stages.append(named(packaged.toml(__file__, "stage.toml"), more))
            if not as_json:
                title = f"Stage {forecast.stage.name}, by trace alone"
                if left:
                    caption = "ZeRO and offloading are not traced; what they save is subtracted."
                else:
                    caption = None
                table = Table(title=title, caption=caption, title_justify="left", show_header=False)
                rows = template(Path(__file__).with_name("stage.txt.jinja"), units=units).render(
                    known
                )
                for row in rows.splitlines():
                    table.add_row(*row.split(" | "))
                Console(width=120).print(table)
    if as_json:
        shown = [stage["stage"] for stage in stages]
        others = [stage.name for stage in plan.stages if stage.name not in shown]
        report = {"name": recipe.name, "basis": BASIS, "stages": stages, "without_formulas": others}
        say(json_text(report | {"problems": [], "notes": []}))
    else:
        say(BASIS)
    return int(any(stage["fits"] is False for stage in stages))
