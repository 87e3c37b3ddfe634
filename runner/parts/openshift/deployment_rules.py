"""Rules about where a recipe runs: the cluster, plain machines, or both, and that their counts agree."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.catalog import hardware
from runner.catalog.hardware import GIB
from runner.check.rules import limits_can_be_meant, memory_sizes
from runner.parts.jobs import kubernetes
from runner.parts.openshift import kubernetes_names
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.names import JOB_NAME, listed, longest_job_name
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift


def links_are_used(recipe: Recipe) -> Iterator[Problem]:
    """Over Ethernet NCCL talks through the interfaces that it is told, and through no other. A name without a number at its
    end stands for all that begin so."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None or site.network.kind != "ethernet":
        return
    named = site.network.interface.removeprefix("=").split(",")
    if (site.network.links or 1) > len(named) and all(name[-1:].isdigit() for name in named):
        message = f"`links` is {site.network.links}, and pods talk to each other through {listed(named)} alone."
        hint = (
            "Delete the line, and let `gbit_s` be what that carries; or name every interface, with commas between them."
        )
        yield recipe.problem("openshift.network.links", message, hint)


def ports_differ(recipe: Recipe) -> Iterator[Problem]:
    site: Openshift | None = recipe.settings.get("openshift")
    if site is not None and site.progress_port == site.metrics_port:
        message = f"Prometheus and the console cannot both be answered at port {site.metrics_port}; they want different words."
        hint = "Write another number, or delete the line."
        yield recipe.problem("openshift.progress_port", message, hint)


def pods_fit(recipe: Recipe) -> Iterator[Problem]:
    """A pod that requests more than its machine can give waits for ever."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None or any(memory_sizes(recipe)):
        return
    size, count, asked, most = units.size(recipe.machines.memory), recipe.machines.cpus, site.requests, site.limits
    memory = _Measure("memory", " GiB", size / GIB, hardware.memory(size) / GIB, hardware.pod_memory_gib(size))
    yield from memory.judge(recipe, common.gib(asked.memory), common.gib(most.memory))
    cpus = _Measure("cpus", " CPUs", count, hardware.cpus(count), hardware.pod_cpus(count))
    yield from cpus.judge(recipe, asked.cpus, most.cpus)


@dataclass(frozen=True)
class _Measure:
    """Memory (GiB) or CPUs of a machine: what it has, what it can give to pods, and what one can have beside the cluster's
    own. name: of the setting."""

    name: str
    unit: str
    has: float
    gives: float
    left: int

    def judge(self, recipe: Recipe, requested: float | None, limit: float | None) -> Iterator[Problem]:
        keep = "the kubelet, the system and the cluster's own pods keep the rest"
        larger = f"Where the machine has more, say so in `machines.{self.name}`."
        if self.left < 1:
            message = f"A machine with {self._shown(self.has)} has nothing left for a pod: {keep}."
            yield recipe.problem(("machines", self.name), message, "Take larger machines.")
        elif requested and requested > self.left:
            never = requested > self.gives
            yield recipe.problem(
                ("openshift", "requests", self.name),
                f"The pod {'can never' if never else 'may never'} start: it requests {self._shown(requested)}, and a machine "
                f"with {self._shown(self.has)} has about {self._shown(self.left)} for it; {keep}.",
                f"Write at most {self._shown(self.left)}, or delete the line. {larger}",
                severity="error" if never else "note",
            )
        if limit and limit > self.has:
            message = f"The limit is {self._shown(limit)}, and the machine has {self._shown(self.has)}."
            yield recipe.problem(
                ("openshift", "limits", self.name), message, f"Write less, or delete the line. {larger}"
            )
        if limit and requested and limit < requested:
            yield recipe.problem(
                ("openshift", "limits", self.name),
                f"The limit is {self._shown(limit)}, less than the {self._shown(requested)} that the pod requests.",
                f"Write at least {self._shown(requested)}, or delete the line.",
            )

    def _shown(self, amount: float) -> str:
        return f"{round(amount, 1):g}{self.unit}"


def deadline(recipe: Recipe) -> Iterator[Problem]:
    """A limit within training leaves a model; the cluster's deadline leaves none. A pipeline's limit is over all its jobs."""
    limit: str | None = (recipe.settings.get("limits") or {}).get("time")
    site: Openshift | None = recipe.settings.get("openshift")
    deadline_hours = site.deadline_hours if site else None
    if not limit or "pretrain" in recipe.settings or deadline_hours is None or any(limits_can_be_meant(recipe)):
        return
    hours = units.seconds(limit) / 3600
    if deadline_hours <= hours:
        message = f"The job is ended after {deadline_hours:g} hours, before training could stop at its limit of {limit} and save."
        hint = f"Write {math.ceil(hours * 1.1) + 1} or more: starting, loading and the last saving count too."
        yield recipe.note("openshift.deadline_hours", message, hint, mending=math.ceil(hours * 1.1) + 1)


def data_place(recipe: Recipe) -> Iterator[Problem]:
    """What the cluster prepares needs a claim to lie on, and what is not sent must come from somewhere."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    if site.data_from == "git" and recipe.code_from_git is None:
        message = "The data is to come with a clone, and `image.code_from_git` names no commit to clone."
        hint = "Add `image.code_from_git`; or write `claim`, and `recipe submit` sends the files."
        yield recipe.problem("openshift.data_from", message, hint)
    mounts = [claim.mount.rstrip("/") for claim in site.claims or ()]
    if site.data_from == "image" and "pretrain" not in recipe.settings:
        return  # prepared when the image was built, or, where `data_dir` lies on a claim, there
    named = "data_dir" if site.data_dir else "output_dir" if site.output_dir else "data_from"
    folder = site.data_dir or (None if site.data_from == "image" else site.output_dir or next(iter(mounts), None))
    if mounts and not (folder and recipe.on_claim(folder)):
        message = "The cluster prepares the data, and the folder for it lies on no claim."
        hint = f"Let `data_dir` start with {listed(mounts, 'or')}."
        yield recipe.problem(("openshift", named), message, hint)


def only_here(recipe: Recipe) -> Iterator[Problem]:
    """No rule: a recipe may run here alone. What is rendered from it is for pods, which do not see this machine's files."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    place, comes = kubernetes.place(recipe), _COMES[site.data_from]
    for setting, name in recipe.local_files():
        message = f"Pods read `{common.data_file(recipe, place, name)}`, which is `{name}` {comes[0]}."
        yield recipe.note(setting, message, comes[1])


# How pods come by this machine's files, and what to do about it.
_BY_HAND = "FILES.md in the folder that `recipe render` writes has the commands for doing it by hand."
_OTHERWISE = f"Write `openshift.data_from: claim`, and `recipe submit` sends it. {_BY_HAND}"
_COMES = {
    "claim": ("as it is when `recipe submit` sends it", _BY_HAND),
    "image": ("as it was when their image was built", _OTHERWISE),
    "git": ("as it is in the commit that they clone", _OTHERWISE),
}


def placeholder_commit(recipe: Recipe) -> Iterator[Problem]:
    """No rule: the starter recipe has to hold a placeholder, and only what is rendered from it does not work."""
    code = recipe.code_from_git
    if code and not code.commit.strip("0"):
        message = "This commit is a placeholder; on the cluster, pods would not find it and would not start."
        hint = "Push your copy of this project, and write its address and what `git rev-parse HEAD` prints."
        yield recipe.note("image.code_from_git.commit", message, hint)


def storage(recipe: Recipe) -> Iterator[Problem]:
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    claims = site.claims or ()
    for setting in ("name", "mount"):
        seen: dict[str, int] = {}
        for index, claim in enumerate(claims):
            if claim[setting] in seen:
                message = f"Two claims have the {setting} `{claim[setting]}`."
                yield recipe.problem(("openshift", "claims", index, setting), message, "Give each its own.")
            seen[claim[setting]] = index
    if not claims and not site.output_dir:
        message = "`openshift` has no `claims`, so results would be lost with the pods."
        hint = "Name a claim under `claims`, with its mount."
        yield recipe.problem("openshift", message, hint, key=True)
    if claims and site.output_dir and not recipe.on_claim(site.output_dir):
        message = (
            f"`output_dir` `{site.output_dir}` lies on none of the claims, so results would be lost with the pods."
        )
        hint = f"Let it start with {listed((claim.mount for claim in claims), 'or')}."
        yield recipe.problem("openshift.output_dir", message, hint)
    name, most = site.job_name or recipe.name, longest_job_name(recipe.machines.nodes)
    if not JOB_NAME.match(name) or len(name) > most:
        message = (
            f"`{name}` cannot name a job of {recipe.machines.nodes} machines on the cluster."
            if len(name) > most
            else f"`{name}` cannot name a job on the cluster."
        )
        hint = f"Use at most {most} lower-case letters, digits and `-`."
        yield recipe.problem(("openshift", "job_name") if site.job_name else ("name",), message, hint)


RULES = (
    storage,
    pods_fit,
    links_are_used,
    ports_differ,
    data_place,
    deadline,
    *kubernetes_names.RULES,
)
# What whoever renders or sends a recipe is to know of its files, and `check` need not say.
RENDER_NOTES = (placeholder_commit, only_here)
