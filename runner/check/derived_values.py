"""Computed: what a recipe's lines make together, for showing it beside them."""

from __future__ import annotations

from collections.abc import Iterator

from runner.recipe.document import Path_
from runner.recipe.origins import Computed
from runner.recipe.recipe import Recipe
from runner.render import kubernetes, named
from runner.render.emit import planned
from runner.scenarios.shared import common


def computed(recipe: Recipe) -> Iterator[tuple[Path_, Computed]]:
    """What the recipe's lines make together: batches, learning rates, layers, and what a cluster is asked for."""
    gpus = common.world_size(recipe)
    many = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    for name, part in recipe.sections.items():
        if not part.knows("gradient_accumulation_steps"):
            continue
        micro, accumulation = part["micro_batch_size"], part["gradient_accumulation_steps"]
        batch = Computed(micro * accumulation * gpus, f"{micro} × {accumulation} × {many}")
        yield (name, "effective_batch_size"), batch
        if part.get("learning_rate_scaling") == "linear":
            yield (name, "learning_rate"), Computed(common.learning_rate(recipe), f"times {many}")
        if part.knows("lora_layers") and not part.get("lora_layers"):
            yield (name, "lora_layers"), Computed(list(recipe.facts.linear), "every linear layer of the base model")
    if "openshift" in recipe.settings:
        yield from _on_cluster(recipe)


def _on_cluster(recipe: Recipe) -> Iterator[tuple[Path_, Computed]]:
    """What the lines of `openshift` that are left out are on the cluster."""
    plan = planned(recipe, named(recipe)[0])
    pods = common.machines(recipe, plan.place)
    left, same = "what `machines` leave for pods, within `limits`", "what is requested"
    values: dict[Path_, Computed] = {
        ("job_name",): Computed(recipe.name, "the recipe's name"),
        ("image",): Computed(kubernetes.image(plan), "the namespace's own"),
        ("data_dir",): Computed(plan.place.data_dir, "where prepared data lies"),
        ("output_dir",): Computed(plan.place.run_dir, "on the first claim"),
        ("requests", "memory"): Computed(f"{pods.requested_memory_gib:g} GiB", left),
        ("requests", "cpus"): Computed(pods.requested_cpus, left),
        ("limits", "memory"): Computed(f"{pods.memory_gib:g} GiB", same),
        ("limits", "cpus"): Computed(pods.cpus, same),
    }
    for index, claim in enumerate(plan.site.get("claims", ())):
        size = plan.claim_gib(claim["name"])
        values["claims", index, "size_gib"] = Computed(size, "what the plan needs there, and room to spare")
    for path, one in values.items():
        if recipe.document.lookup(("openshift", *path)) is None:
            yield ("openshift", *path), one
