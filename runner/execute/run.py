"""Run: a recipe in full size, on the GPUs of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner import catalog
from runner.execute.data import prepare
from runner.execute.runs import RunFolder
from runner.execute.training import Tell, Watch, place_for, train
from runner.problem import Stop
from runner.recipe import changes as changing
from runner.recipe import placing
from runner.recipe.changes import Change
from runner.recipe.check import judge
from runner.recipe.recipe import Recipe
from runner.scenarios import axolotl, translate

BY = "this machine"


def run(recipe: Recipe, folder: RunFolder, data_dir: str | None, tell: Tell, watch: Watch) -> dict[str, Any]:
    """Prepares and trains; returns the run's summary.

    Raises Stop where there is no GPU, and where anything fails.
    """
    gpus = gpus_here()
    if not gpus:
        raise Stop(
            "This machine has no GPU that training could use.",
            f"`recipe rehearse {recipe.document.file}` runs all of it here with a tiny model; "
            f"`recipe render {recipe.document.file}` writes what the cluster needs.",
        )
    recipe = _on_these(recipe, gpus, tell)
    place = place_for(folder, accelerator=True, data_dir=data_dir)
    plan = translate(recipe, place)
    tell("Preparing the data")
    report = prepare(plan.stages[0].data, Path(place.data_dir), tokenizer_for=base_tokenizer(recipe))
    for line in report.lines():
        tell(f"  {line}")
    return train(plan, folder, tell, watch)


def gpus_here() -> list[str]:
    """The names of this machine's GPUs, as the driver gives them."""
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _on_these(recipe: Recipe, gpus: list[str], tell: Tell) -> Recipe:
    """The recipe on the GPUs that are here, and what that changes, said aloud."""
    planned = axolotl.machines(recipe)
    count = min(planned.world_size, len(gpus))
    wanted = placing.on_one_machine(recipe, count, BY, f"{len(gpus)} GPUs are here")
    if count != planned.world_size:
        wanted.append(Change("train.effective_batch_size", None, None, BY, "follows the GPUs"))
    if count == 1 and recipe.settings.get("distribution", "ddp") != "ddp":
        wanted.append(Change("distribution", None, "ddp", BY, "one GPU has nothing to share"))
    document, made = changing.apply(recipe.document, wanted)
    changed, problems = judge(document)
    if changed is None or any(problem.severity == "error" for problem in problems):
        raise Stop(problem for problem in problems if problem.severity == "error")
    known = catalog.gpu(recipe.machines.gpu)
    for name in sorted(set(gpus)):
        if name.replace(" ", "-") != recipe.machines.gpu:
            tell(f"The recipe is for {known.title if known else recipe.machines.gpu}, and this machine has {name}.")
    for change in made:
        tell(f"  {change}")
    for title, figure in (
        ("effective batch", axolotl.effective_batch_size),
        ("learning rate", axolotl.learning_rate),
    ):
        if figure(recipe) != figure(changed):
            tell(f"  {title}: {figure(recipe):g} → {figure(changed):g}  (follows the GPUs)")
    return changed


def base_tokenizer(recipe: Recipe):
    """Gives the base model's tokenizer, from this machine first and else from the hub; None where it cannot be had."""

    def load(_texts: list[str]) -> Any:
        from transformers import AutoTokenizer

        options: Mapping[str, Any] = {} if Path(recipe.model.base).is_dir() else {"revision": recipe.model.revision}
        for local in (True, False):
            try:
                return AutoTokenizer.from_pretrained(recipe.model.base, local_files_only=local, **options)
            except (OSError, ValueError):
                continue
        return None

    return load
