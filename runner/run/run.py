"""Run: a recipe in full size, on the GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from runner import catalog, parts
from runner.check.validate import changed
from runner.plan import Plan
from runner.recipe import overrides
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.run import hardware, inference
from runner.run.pipeline import Selection, Tell, Watch, carry_out, is_done
from runner.run.report import introduction, report
from runner.run.run_folder import RunFolder
from runner.run.run_manifest import keep
from runner.scenarios import translate
from runner.scenarios.shared import common, sharding
from runner.tools.problem import Stop

BY = "this machine"


def run(
    recipe: Recipe, folder: RunFolder, chosen: Selection, tell: Tell, watch: Watch, changes: Iterable[Override] = ()
) -> None:
    """Runs the chosen stages on this machine's GPUs, and tells what was learned. changes: what the person has changed in the
    recipe.

    Raises Stop where there is no GPU for a stage that trains, where anything fails, and where a gate does not open.
    """
    plan = inference.plan_of(recipe, folder)
    stages = chosen.of(plan)
    if is_done(plan):
        keep(folder, recipe, plan, changed(recipe, folder.overrides)[0])
        tell("This run is done already; `--fresh` repeats it.")
    else:
        gpus, devices = gpus_here(recipe)
        if not gpus and any(stage.trains for stage in stages):
            raise _no_gpu(recipe)
        made = _on_these(recipe, gpus, tell) if gpus else folder.overrides
        here = changed(recipe, made)[0]
        plan = _on_devices(translate(here, folder.place()), devices)
        if gpus:
            _compare_precision(plan, gpus, tell)
        for line in introduction(plan):
            tell(line)
        keeping = partial(keep, folder, recipe, plan, here)
        carry_out(plan, chosen.of(plan), tell, watch, folder.made_with(changes, made), keeping)
    after = (line for after_run in parts.hooks("after_run") for line in after_run(recipe, folder))
    for line in (*report(plan), *after):
        tell(line)


def _compare_precision(plan: Plan, gpus: list[str], tell: Tell) -> None:
    """What the recipe's GPU was planned to multiply in, and what the one that is here can."""
    here = catalog.gpu(catalog.label_of(gpus[0]))
    if here is None:
        return
    for kind, chosen_precision in plan.facts.get("precision", {}).items():
        able = here.fp8 if chosen_precision == "fp8" else here.bf16 or chosen_precision == "fp32"
        if not able:
            tell(f"  {kind}: planned in {chosen_precision}, which {here.title} cannot do; set `model.precision`")
        elif here.fp8 and chosen_precision == "bf16" and kind in plan.facts["fp8_stages"]:
            tell(f"  {kind}: planned in bf16; {here.title} could do fp8 with `machines.gpu: {here.name}`")


def _no_gpu(recipe: Recipe) -> Stop:
    render = f"; `recipe render {recipe.document.file}` writes what the cluster needs"
    return Stop(
        "This machine has no GPU that training could use.",
        f"`recipe rehearse {recipe.document.file}` runs all of it here with a tiny model"
        f"{render if 'openshift' in recipe.settings else ''}.",
    )


def gpus_here(recipe: Recipe) -> tuple[list[str], str]:
    """The GPUs of this machine that the recipe may use: their names as the driver gives them, and as CUDA_VISIBLE_DEVICES
    has them. Of a machine that others use too, `nodes` names particular ones."""
    import torch

    os.environ.update(hardware.BY_BUS | os.environ)  # before CUDA counts
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    visible, numbers = os.environ.get("CUDA_VISIBLE_DEVICES"), hardware.gpus_of(recipe)
    mine = hardware.particular(visible, numbers, len(names))
    return [names[index] for index in mine], hardware.visible_devices(visible, numbers, len(names), len(mine))


def _on_devices(plan: Plan, devices: str) -> Plan:
    """The plan whose processes see these GPUs alone."""
    stages = (replace(stage, env={**stage.env, "CUDA_VISIBLE_DEVICES": devices}) for stage in plan.stages)
    return replace(plan, stages=tuple(stages))


def _on_these(recipe: Recipe, gpus: list[str], tell: Tell) -> list[Override]:
    """What puts the recipe on the GPUs that are here, and what that changes, said aloud."""
    planned = common.world_size(recipe)
    count = min(planned, len(gpus))
    numbers = hardware.gpus_of(recipe)[:count]
    why = f"{len(gpus)} GPUs are here"
    changes = overrides.on_one_machine(recipe, count, BY, why, numbers if len(numbers) == count else None)
    if count != planned and "train" in recipe.settings:
        changes.append(Override("train.effective_batch_size", None, None, BY, "follows the GPUs"))
    shared = recipe.settings.get("distribution", "ddp") not in ("ddp", "auto")
    if count == 1 and shared and not sharding.by_zero_alone(recipe):
        changes.append(Override("distribution", None, "ddp", BY, "one GPU has nothing to share"))
    here, made = changed(recipe, changes)
    known = catalog.gpu(recipe.machines.gpu)
    for name in sorted(set(gpus)):
        if catalog.label_of(name) != recipe.machines.gpu:
            tell(f"The recipe is for {known.title if known else recipe.machines.gpu}, and this machine has {name}.")
    for override in made:
        tell(f"  {override}")
    for title, figure in (
        ("effective batch", common.effective_batch_size),
        ("learning rate", common.learning_rate),
    ):
        if "train" in recipe.settings and figure(recipe) != figure(here):
            tell(f"  {title}: {figure(recipe):g} → {figure(here):g}  (follows the GPUs)")
    return made
