"""This machine: the GPUs that a recipe may use here, the changes that put the recipe on them or on
the processor, and what its stages then need. `run`, `search`, `plan` and `doctor` share these
figures."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from runner import catalog
from runner.catalog.hardware import NO_GPU
from runner.check.validate import changed
from runner.plan import Plan, Prediction
from runner.recipe import overrides, units
from runner.recipe.recipe import Override, Recipe
from runner.run import inference, launch
from runner.run.pipeline import Selection
from runner.run.run_folder import RunFolder
from runner.scenarios import forecasting, translate
from runner.scenarios.shared import common, rehearsal
from runner.tools.problem import Stop

BY = "this machine"
EVERY_STAGE = Selection()


@dataclass(frozen=True)
class LocalRun:
    """A recipe as it runs on this machine.

    gpus: the driver's names of the GPUs that it may use. visible_gpus: the same GPUs as
    CUDA_VISIBLE_DEVICES names them. on_processor: whether something trains here, without a GPU.
    substitutions: the changes that this machine needs; recipe: after these changes; plan: in its
    run folder.
    """

    gpus: list[str]
    visible_gpus: str
    on_processor: bool
    substitutions: list[Override]
    recipe: Recipe
    plan: Plan

    @cached_property
    def predictions(self) -> Mapping[str, Prediction]:
        """What each stage that trains needs here, by the stage's name; empty if its model has no
        formulas."""
        if self.on_processor:
            predicted = forecasting().on_processor(self.recipe, self.plan)
        else:
            predicted = self._on_gpus()
        return {prediction.stage: prediction for prediction in predicted}

    def _on_gpus(self) -> tuple[Prediction, ...]:
        if self.gpus:
            label = catalog.label_of(self.gpus[0])
        else:
            label = ""
        if not label or catalog.gpu(label) is None:
            return forecasting().predictions(self.recipe, self.plan)
        card_here = Override("machines.gpu", None, label, BY, "the card that is here")
        on_card = changed(self.recipe, [card_here])[0]
        return forecasting().predictions(on_card, translate(on_card, self.plan.place))


def local_run(recipe: Recipe, folder: RunFolder, chosen: Selection = EVERY_STAGE) -> LocalRun:
    """The recipe on this machine's GPUs, or on its processor if it has none or the recipe names
    none. folder: of the run; chosen: the stages that run, because stages that train nothing need no
    changes."""
    gpus, visible_gpus = gpus_here(recipe)
    return _on_this_machine(recipe, folder, chosen, gpus, visible_gpus)


def processor_run(recipe: Recipe, folder: RunFolder) -> LocalRun:
    """The recipe on this machine's processor, whatever GPUs are here."""
    return _on_this_machine(recipe, folder, EVERY_STAGE, [], "")


def _on_this_machine(
    recipe: Recipe, folder: RunFolder, chosen: Selection, gpus: list[str], visible_gpus: str
) -> LocalRun:
    place = folder.place()
    trains = any(stage.trains for stage in chosen.of(inference.plan_of(recipe, folder)))
    on_processor = trains and not gpus
    if on_processor:
        place = replace(place, accelerator=False)
    if gpus or on_processor:
        substitutions = changes_for(recipe, gpus)
    else:
        substitutions = folder.overrides
    on_machine, effective = changed(recipe, substitutions)
    return LocalRun(
        gpus, visible_gpus, on_processor, effective, on_machine, translate(on_machine, place)
    )


def gpus_here(recipe: Recipe) -> tuple[list[str], str]:
    """The driver's names of the GPUs that the recipe may use here, and CUDA_VISIBLE_DEVICES;
    `nodes` can name some."""
    if recipe.machines.gpu == NO_GPU:
        return [], ""
    import torch

    os.environ.update(launch.BY_BUS | os.environ)  # before CUDA counts
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    usable = launch.particular(
        os.environ.get("CUDA_VISIBLE_DEVICES"), launch.gpus_of(recipe), len(names)
    )
    return [names[index] for index in usable], ",".join(usable.values())


def changes_for(recipe: Recipe, gpus: list[str]) -> list[Override]:
    """The changes that put a recipe on the GPUs that are here, or on the processor if none is.
    gpus: the driver's names."""
    planned = common.world_size(recipe)
    count = min(planned, len(gpus)) or 1
    numbers = launch.gpus_of(recipe)[:count]
    reason = f"{len(gpus)} GPUs are here"
    changes = overrides.on_one_machine(
        recipe, count, BY, reason, numbers if len(numbers) == count else None
    )
    if not gpus:
        changes = list(rehearsal.without_gpu(recipe, BY))
    if count != planned:
        batch = Override("train.effective_batch_size", None, None, BY, "follows the GPUs")
        changes += overrides.of_each(
            recipe, lambda name, stage_recipe: [batch] if "train" in stage_recipe.settings else []
        )
    if gpus and count % (common.world_size(recipe) // common.replicas(recipe)):
        changes.append(
            Override("sharding", None, None, BY, f"{count} GPUs cannot share rows in this way")
        )
    shared = recipe.settings.get("distribution", "ddp") not in ("ddp", "auto")
    if gpus and count == 1 and shared and not common.by_zero_alone(recipe):
        changes.append(
            Override("distribution", None, "ddp", BY, "one GPU has no other to share with")
        )
    return changes


def needs(prediction: Prediction) -> str:
    """What a stage needs on this machine's processor, as a sentence; empty if its time is
    unknown."""
    if prediction.seconds is None:
        return ""
    likely = units.between(prediction.seconds_least or 0, prediction.seconds_most or 0, "–")
    time = f"`{prediction.stage}` takes about {units.duration(prediction.seconds)} ({likely}) on the {prediction.gpu}"
    if prediction.memory is None or prediction.usable is None:
        return f"{time}."
    return f"{time}, and needs about {units.gib(prediction.memory)} of its {units.gib(prediction.usable)} of main memory."


def lacks_memory(prediction: Prediction) -> str:
    """That this machine's main memory is too small for a stage, as a sentence; else empty."""
    if not prediction.too_large:
        return ""
    need = units.gib(prediction.memory or 0)
    have = units.gib(prediction.usable or 0)
    return f"Training `{prediction.stage}` on this machine's CPU needs about {need} of main memory, but it has {have}."


def require_memory(prediction: Prediction, instead: str) -> None:
    """Raises Stop if this machine's main memory is too small for a stage. instead: another way, as
    a sentence."""
    lacks = lacks_memory(prediction)
    if lacks:
        raise Stop(
            lacks,
            f"A lower `micro_batch_size` needs less, if the model itself fits. {instead}",
        )


def download(local: LocalRun) -> str:
    """The base model that the run fetches from the hub first, as a sentence; empty if it is
    here."""
    sizes = [prediction.download or 0 for prediction in local.predictions.values()]
    if "model" in local.recipe.settings:
        base = local.recipe.model.get("base")
    else:
        base = None
    if not base or not any(sizes) or is_in_cache(base):
        return ""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = local.plan.place.model_dir or HF_HUB_CACHE
    return f"The model {base} is downloaded first: about {max(sizes) / 1e9:.1f} GB, to {folder}."


def is_in_cache(base: str) -> bool:
    """Whether the hub's cache has a model's weights, or a folder or a package has the model."""
    if catalog.packaged_model(base) or Path(base).is_dir():
        return True
    from huggingface_hub import try_to_load_from_cache

    weights = ("model.safetensors", "model.safetensors.index.json")
    return any(isinstance(try_to_load_from_cache(base, name), str) for name in weights)
