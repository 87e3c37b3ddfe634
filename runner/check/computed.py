"""Values that a recipe does not write, because they follow from its lines."""

from collections.abc import Iterator

from runner import parts
from runner.check.origins import Computed
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.problem import counted


def computed_values(recipe: Recipe) -> Iterator[tuple[Path_, Computed]]:
    """Values that follow from several lines: batches, learning rates, layers, and requests to a
    cluster."""
    gpus = common.replicas(recipe)
    if gpus == common.world_size(recipe):
        unit = "GPU"
    else:
        unit = "group"
    many = counted(gpus, unit)
    train = recipe.sections.get("train")
    if train:
        micro = train["micro_batch_size"]
        accumulation = train["gradient_accumulation_steps"]
        batch = Computed(micro * accumulation * gpus, f"{micro} × {accumulation} × {many}")
        yield ("train", "effective_batch_size"), batch
        if train.get("learning_rate_scaling") == "linear":
            rate = Computed(common.learning_rate(recipe), f"times {many}")
            yield ("train", "learning_rate"), rate
        has_layers = train.get("lora_layers") is not None or train.get("lora_pattern")
        if train.knows("lora_layers") and not has_layers:
            layers = Computed(list(recipe.facts.linear), "every linear layer of the base model")
            yield ("train", "lora_layers"), layers
    if parts.has("jobs"):
        from runner.parts.jobs import kubernetes

        yield from kubernetes.computed(recipe)
