"""Rules about where a recipe runs: the cluster, plain machines, or both, and that their counts agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from runner.check import sources
from runner.problem import Problem
from runner.recipe import units
from runner.recipe.recipe import Recipe

if TYPE_CHECKING:
    from runner.recipe.sections import Nodes, Openshift


def somewhere(recipe: Recipe) -> Iterator[Problem]:
    if "openshift" not in recipe.settings and "nodes" not in recipe.settings:
        yield recipe.document.problem(
            ("machines",),
            "The recipe says what machines it needs, and not where they are.",
            "Give the section `openshift` (a cluster), or `nodes` (plain machines), or both.",
            key=True,
        )


def counts_agree(recipe: Recipe) -> Iterator[Problem]:
    """`nodes` names the machines that `machines` counts."""
    plain: Nodes | None = recipe.settings.get("nodes")
    if plain is None:
        return
    counts, stated = recipe.gpu_counts, recipe.machines
    if len(counts) != stated.nodes:
        yield recipe.document.problem(
            ("nodes", "machines"),
            f"`nodes` names {len(counts)} machine{'s' if len(counts) > 1 else ''}, and `machines.nodes` is {stated.nodes}.",
            f"Name {stated.nodes}, or write `nodes: {len(counts)}` in `machines`.",
            key=True,
        )
    elif max(counts) != stated.gpus_per_node:
        yield recipe.document.problem(
            ("nodes", "machines"),
            f"`nodes` uses up to {max(counts)} GPUs of a machine, and `machines.gpus_per_node` is {stated.gpus_per_node}.",
            f"Write `gpus_per_node: {max(counts)}` in `machines`, or other `gpus` here.",
            key=True,
        )
    for index, machine in enumerate(plain.machines):
        if len(set(machine.gpus)) < len(machine.gpus):
            yield recipe.document.problem(
                ("nodes", "machines", index, "gpus"), "A GPU is named twice.", "Name each GPU of a machine once."
            )


def equal_on_the_cluster(recipe: Recipe) -> Iterator[Problem]:
    if "nodes" in recipe.settings and "openshift" in recipe.settings and len(set(recipe.gpu_counts)) > 1:
        shown = ", ".join(map(str, recipe.gpu_counts))
        yield recipe.document.problem(
            ("nodes", "machines"),
            f"The plain machines use {shown} GPUs, and a job on the cluster has equally many on each machine.",
            "Use equally many on each, or make two recipes, one for the cluster and one for the plain machines.",
            key=True,
        )


def limits(recipe: Recipe) -> Iterator[Problem]:
    for limit, promised, unit in (("memory_limit_gib", "memory_gib", " GiB"), ("cpus_limit", "cpus", "")):
        most, least = recipe.machines.get(limit), recipe.machines.get(promised)
        if most is not None and most < least:
            yield recipe.document.problem(
                ("machines", limit),
                f"`{limit}` is {most}{unit}, less than the {least}{unit} that `{promised}` promises.",
                f"Write at least {least}, or delete the line.",
            )


def deadline(recipe: Recipe) -> Iterator[Problem]:
    """A limit within training leaves a model; the cluster's deadline leaves none. A pipeline's limit is over all its jobs."""
    limit: str | None = (recipe.settings.get("limits") or {}).get("time")
    site: Openshift | None = recipe.settings.get("openshift")
    deadline_hours = site.deadline_hours if site else None
    if not limit or "pretrain" in recipe.settings or deadline_hours is None:
        return
    hours = units.seconds(limit) / 3600
    if deadline_hours <= hours:
        yield recipe.document.problem(
            ("openshift", "deadline_hours"),
            f"The job is ended after {deadline_hours:g} hours, before training could stop at its limit of {limit} and save.",
            f"Write {math.ceil(hours * 1.1) + 1} or more: starting, loading and the last saving count too.",
            severity="note",
        )


def only_here(recipe: Recipe) -> Iterator[Problem]:
    """No rule: a recipe may run here alone. What is rendered from it is for pods, which do not see this machine's files."""
    if "openshift" not in recipe.settings:
        return
    if "base" in recipe.settings.get("model", ()) and recipe.base_folder and not recipe.model.base.startswith("/"):
        yield recipe.document.problem(
            ("model", "base"),
            f"`{recipe.model.base}` is a folder on this machine, and the cluster's pods would look for that name on the hub.",
            "Put the model on the hub, and write its name there.",
            severity="note",
        )
    where, when = ("that commit", "it is pushed") if recipe.code_from_git else ("their image", "it is built")
    for home, data in sources.sections(recipe):
        for setting in ("path", "validation_path", "packed"):
            path = data.get(setting)
            if path and not recipe.on_claim(path):
                yield recipe.document.problem(
                    (*home.split("."), setting),
                    f"Pods do not see this machine's files; they read `recipes/data/{Path(path).name}` of {where}.",
                    f"It must lie there when {when}. Or put the data on a claim, or on the hub.",
                    severity="note",
                )


def placeholder_commit(recipe: Recipe) -> Iterator[Problem]:
    """No rule: the starter recipe has to hold a placeholder, and only what is rendered from it does not work."""
    code = recipe.code_from_git
    if code and not code.commit.strip("0"):
        yield recipe.document.problem(
            ("image", "code_from_git", "commit"),
            "This commit is a placeholder; on the cluster, pods would not find it and would not start.",
            "Push your copy of this project, and write its address and what `git rev-parse HEAD` prints.",
            severity="note",
        )
