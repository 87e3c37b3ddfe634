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
    for name, part in recipe.sections.items():
        if not part.knows("gradient_accumulation_steps"):
            continue
        micro = part["micro_batch_size"]
        accumulation = part["gradient_accumulation_steps"]
        factors = f"{micro} × {accumulation} × {many}"
        yield (name, "effective_batch_size"), Computed(micro * accumulation * gpus, factors)
        if part.get("learning_rate_scaling") == "linear":
            yield (name, "learning_rate"), Computed(common.learning_rate(recipe), f"times {many}")
        has_layers = part.get("lora_layers") is not None or part.get("lora_pattern")
        if part.knows("lora_layers") and not has_layers:
            layers = list(recipe.facts.linear)
            yield (name, "lora_layers"), Computed(layers, "every linear layer of the base model")
    if parts.has("jobs"):
        from runner.parts.jobs import kubernetes

        yield from kubernetes.computed(recipe)
