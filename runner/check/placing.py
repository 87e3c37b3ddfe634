"""Rules about where a recipe runs: the cluster, plain machines, or both, and that their counts agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.names import listed
from runner.problem import Problem
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.targets import kubernetes

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


def data_place(recipe: Recipe) -> Iterator[Problem]:
    """What the cluster prepares needs a claim to lie on, and what is not sent must come from somewhere."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    if site.data_from == "git" and recipe.code_from_git is None:
        yield recipe.document.problem(
            ("openshift", "data_from"),
            "The data is to come with a clone, and `image.code_from_git` names no commit to clone.",
            "Add `image.code_from_git`; or write `claim`, and `recipe submit` sends the files.",
        )
    mounts = [claim.mount.rstrip("/") for claim in site.claims or ()]
    if site.data_from == "image" and "pretrain" not in recipe.settings:
        return  # prepared when the image was built, or, where `data_dir` lies on a claim, there
    named = "data_dir" if site.data_dir else "output_dir" if site.output_dir else "data_from"
    folder = site.data_dir or (None if site.data_from == "image" else site.output_dir or next(iter(mounts), None))
    if mounts and not (folder and recipe.on_claim(folder)):
        yield recipe.document.problem(
            ("openshift", named),
            "The cluster prepares the data, and the folder for it lies on no claim.",
            f"Let `data_dir` start with {listed(mounts, 'or')}.",
        )


def only_here(recipe: Recipe) -> Iterator[Problem]:
    """No rule: a recipe may run here alone. What is rendered from it is for pods, which do not see this machine's files."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    place, comes = kubernetes.place(recipe), _COMES[site.data_from]
    for setting, name in recipe.local_files():
        message = f"Pods read `{common.data_file(recipe, place, name)}`, which is `{name}` {comes[0]}."
        yield recipe.document.problem(tuple(setting.split(".")), message, comes[1], severity="note")


# How pods come by this machine's files, and what to do about it.
_OTHERWISE = "Write `openshift.data_from: claim`, and `recipe submit` sends it."
_COMES = {
    "claim": ("as it is when `recipe submit` sends it", "By hand: `oc cp` it there, through a pod with that claim."),
    "image": ("as it was when their image was built", _OTHERWISE),
    "git": ("as it is in the commit that they clone", _OTHERWISE),
}


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
