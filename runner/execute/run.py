"""Run: a recipe in full size, on the GPUs of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner import catalog
from runner.execute.data import prepare
from runner.execute.order import Selection
from runner.execute.pipeline import carry_out
from runner.execute.runs import RunFolder
from runner.execute.training import Tell, Watch, place_for, train
from runner.plan import Plan
from runner.problem import Stop
from runner.recipe import placing
from runner.recipe.changes import Change
from runner.recipe.check import changed
from runner.recipe.recipe import Recipe
from runner.scenarios import shared, translate
from runner.scenarios.pipeline_numbers import FP8_STAGES

BY = "this machine"


def run(recipe: Recipe, folder: RunFolder, data_dir: str | None, tell: Tell, watch: Watch) -> dict[str, Any]:
    """Prepares and trains; returns the run's summary.

    Raises Stop where there is no GPU, and where anything fails.
    """
    gpus = gpus_here()
    if not gpus:
        raise _no_gpu(recipe)
    recipe = _on_these(recipe, gpus, tell)
    place = place_for(folder, accelerator=True, data_dir=data_dir)
    plan = translate(recipe, place)
    tell("Preparing the data")
    prepared = prepare(plan.stages[0].data, Path(place.data_dir), tokenizer_for=base_tokenizer(recipe))
    for line in prepared.lines():
        tell(f"  {line}")
    return train(plan, folder, tell, watch)


def run_stages(
    recipe: Recipe, folder: RunFolder, data_dir: str | None, chosen: Selection, tell: Tell, watch: Watch
) -> None:
    """Runs the chosen stages of a pipeline on this machine's GPUs.

    Raises Stop where there is no GPU, where anything fails, and where a gate does not open.
    """
    place, gpus = place_for(folder, accelerator=True, data_dir=data_dir), gpus_here()
    plan = translate(_on_these(recipe, gpus, tell) if gpus else recipe, place)
    if gpus:
        _compare_precision(plan, gpus, tell)
    elif any(stage.engine != "runner" for stage in chosen.of(plan)):
        raise _no_gpu(recipe)
    folder.mark("running", data_dir=data_dir)
    carry_out(plan, folder, chosen, tell, watch)


def _compare_precision(plan: Plan, gpus: list[str], tell: Tell) -> None:
    """What the recipe's GPU was planned to multiply in, and what the one that is here can."""
    here = catalog.gpu(catalog.label_of(gpus[0]))
    for kind, chosen_precision in plan.facts["precision"].items():
        able = here is None or (here.fp8 if chosen_precision == "fp8" else here.bf16 or chosen_precision == "fp32")
        if not able:
            tell(f"  {kind}: planned in {chosen_precision}, which {here.title} cannot do; set `model.precision`")
        elif here is not None and here.fp8 and chosen_precision == "bf16" and kind in FP8_STAGES:
            tell(f"  {kind}: planned in bf16; {here.title} could do fp8 with `machines.gpu: {here.name}`")


def _no_gpu(recipe: Recipe) -> Stop:
    return Stop(
        "This machine has no GPU that training could use.",
        f"`recipe rehearse {recipe.document.file}` runs all of it here with a tiny model; "
        f"`recipe render {recipe.document.file}` writes what the cluster needs.",
    )


def gpus_here() -> list[str]:
    """The names of this machine's GPUs, as the driver gives them."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _on_these(recipe: Recipe, gpus: list[str], tell: Tell) -> Recipe:
    """The recipe on the GPUs that are here, and what that changes, said aloud."""
    planned = shared.machines(recipe)
    count = min(planned.world_size, len(gpus))
    wanted = placing.on_one_machine(recipe, count, BY, f"{len(gpus)} GPUs are here")
    if count != planned.world_size and "train" in recipe.settings:
        wanted.append(Change("train.effective_batch_size", None, None, BY, "follows the GPUs"))
    if count == 1 and recipe.settings.get("distribution", "ddp") not in ("ddp", "auto"):
        wanted.append(Change("distribution", None, "ddp", BY, "one GPU has nothing to share"))
    here, made = changed(recipe, wanted)
    known = catalog.gpu(recipe.machines.gpu)
    for name in sorted(set(gpus)):
        if catalog.label_of(name) != recipe.machines.gpu:
            tell(f"The recipe is for {known.title if known else recipe.machines.gpu}, and this machine has {name}.")
    for change in made:
        tell(f"  {change}")
    for title, figure in (
        ()
        if "train" not in recipe.settings
        else (
            ("effective batch", shared.effective_batch_size),
            ("learning rate", shared.learning_rate),
        )
    ):
        if figure(recipe) != figure(here):
            tell(f"  {title}: {figure(recipe):g} → {figure(here):g}  (follows the GPUs)")
    return here


def base_tokenizer(recipe: Recipe):
    """Gives the base model's tokenizer, from this machine first and else from the hub; None where it cannot be had."""

    def load(_texts: list[str]) -> Any:
        from transformers import AutoTokenizer

        options: dict[str, Any] = {"trust_remote_code": recipe.model.trust_remote_code}
        if recipe.base_folder is None:
            options["revision"] = recipe.model.revision
        for local in (True, False):
            try:
                return AutoTokenizer.from_pretrained(recipe.base_model, local_files_only=local, **options)
            except (OSError, ValueError):
                continue
        return None

    return load
