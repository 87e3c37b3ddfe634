"""Rules about the machines and limits that a recipe states: sizes that some machine has, and a place that has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift


def counted_here(recipe: Recipe) -> Iterator[Problem]:
    """A recipe that names no place is for this machine, which is one."""
    named = any(section in recipe.settings for section in ("openshift", "nodes"))
    if not named and recipe.machines.nodes > 1:
        yield recipe.document.problem(
            ("machines", "nodes"),
            f"`nodes` is {recipe.machines.nodes}, and without a section that says where they are, training uses this machine alone.",
            "Write `nodes: 1`, or add the section `openshift` (a cluster) or `nodes` (plain machines).",
            severity="note",
        )


# No machine has less or more; whoever writes it meant another unit.
LEAST_MEMORY, MOST_MEMORY = 2**30, 64 * 2**40


LONGEST_SECONDS = 365 * 86400


def memory_sizes(recipe: Recipe) -> Iterator[Problem]:
    """Sizes that no machine and no pod has: a unit was mistaken, or a digit."""
    site: Openshift | None = recipe.settings.get("openshift")
    stated: dict[tuple[str, ...], str | None] = {("machines",): recipe.machines.memory}
    if site is not None:
        stated |= {("openshift", "requests"): site.requests.memory, ("openshift", "limits"): site.limits.memory}
    for section, memory in stated.items():
        if memory and not LEAST_MEMORY <= units.size(memory) <= MOST_MEMORY:
            yield recipe.document.problem(
                (*section, "memory"),
                f"A {'pod' if len(section) > 1 else 'machine'} with {memory} of main memory cannot be meant.",
                "Write between 1 GiB and 64 TiB, with its unit: `memory: 32 GB`.",
            )


def limits_can_be_meant(recipe: Recipe) -> Iterator[Problem]:
    """A limit of nothing would end training after its first step, and call it finished."""
    limits = recipe.settings.get("limits") or {}
    if (time := limits.get("time")) and not 1 <= units.seconds(time) <= LONGEST_SECONDS:
        hint = "Write between 1 s and 365 d, with its unit: `time: 5 min`."
        yield recipe.document.problem(("limits", "time"), f"A time limit of {time[:40]} cannot be meant.", hint)
    if (memory := limits.get("gpu_memory")) and not 0 < units.size(memory) <= MOST_MEMORY:
        hint = "Write what a GPU has, or less, with its unit: `gpu_memory: 45 GB`."
        yield recipe.document.problem(
            ("limits", "gpu_memory"), f"A limit of {memory[:40]} of GPU memory cannot be meant.", hint
        )


RULES = (memory_sizes, limits_can_be_meant, counted_here)
