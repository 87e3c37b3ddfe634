"""`recipe show`: a recipe with all its defaults, and where each comes from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import click

from runner.check import by_schema
from runner.check.validate import load
from runner.commands.options import print_notes, recipe_path, say, set_option
from runner.emit import planned
from runner.recipe import overrides as changing
from runner.recipe import showing
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings
from runner.recipe.showing import Computed
from runner.scenarios.shared import common
from runner.targets import kubernetes, named


@click.command()
@recipe_path
@set_option
@click.option("--format", "style", type=click.Choice(["yaml", "json"]), default="yaml", help="How to print it.")
def show(path: str, sets: tuple[str, ...], style: str) -> None:
    """Show a recipe with all its defaults, and where each setting comes from, as `recipe run` would take it.

    What is printed is a recipe itself, the same one.
    """
    recipe, _, notes = load(path, changing.from_options(sets), os.environ)
    print_notes(notes)
    found = dict(computed(recipe))
    if style == "json":
        figures = {".".join(map(str, where)): {"value": one.value, "how": one.how} for where, one in found.items()}
        values = recipe.settings.plain()
        whole = {"recipe": values, "from": dict(showing.origins(recipe.document, values)), "computed": figures}
        say(json.dumps(whole, indent=2, ensure_ascii=False))
        return
    say(f"# {path} with all its settings.")
    say("# Behind each stands where it comes from: a line of that file, what changed it, or else the default.")
    say("# Lines that begin with # are computed from the others.")
    say(showing.as_yaml(recipe, by_schema.schema(recipe.scenario), found).rstrip("\n"))


def computed(recipe: Recipe) -> Iterator[tuple[Path_, Computed]]:
    """What the recipe's lines make together: batches, learning rates, layers, and what a cluster is asked for."""
    gpus = common.world_size(recipe)
    many = f"{gpus} GPU{'s' if gpus > 1 else ''}"
    for name, part in recipe.settings.items():
        if not isinstance(part, Settings) or not part.knows("gradient_accumulation_steps"):
            continue
        micro, accumulation = part["micro_batch_size"], part["gradient_accumulation_steps"]
        yield (
            (name, "effective_batch_size"),
            Computed(micro * accumulation * gpus, f"{micro} × {accumulation} × {many}"),
        )
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
