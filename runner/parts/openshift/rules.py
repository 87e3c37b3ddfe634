"""Rules about where a recipe runs: cluster or plain machines, counts that agree, names that a cluster accepts."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.catalog import hardware
from runner.catalog.hardware import GIB
from runner.check.rules import limits_can_be_meant, memory_sizes
from runner.parts.jobs import code, kubernetes
from runner.recipe import units
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.names import JOB_NAME, listed, longest_job_name
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

# Folders of a pod that are something else already.
_TAKEN = {
    "/dev/shm": "shared memory",
    "/tmp": "scratch",
    kubernetes.CONFIG_DIR: "the configs",
    "/opt/recipe-runner": "the code and its data",
    code.MOUNT: "the code by git",
}
_SYSTEM = dict.fromkeys(("/usr/bin", "/usr/lib", "/usr/local", "/bin", "/lib", "/lib64", "/proc", "/sys"), "the system")
# Those that have room for a claim in a folder of its own; code and configs lose what is there.
_ROOMY = ("/dev/shm", "/tmp", *_SYSTEM)
_SECRET = re.compile(r"(?i).*(token|secret|password|passwd|credentials?|_key|apikey)")
# Where the machines of a job meet: PyTorchJob's and TrainJob's own.
_MEETING = (23456, 29500)
# How pods come by this machine's files, and what to do about it.
_BY_HAND = "FILES.md in the folder that `recipe render` writes has the commands for doing it manually."
_OTHERWISE = f"Write `openshift.data_from: claim`, and `recipe submit` uploads it. {_BY_HAND}"
_COMES = {
    "claim": ("as it is when `recipe submit` uploads it", _BY_HAND),
    "image": ("as it was when their image was built", _OTHERWISE),
    "git": ("as it is in the commit that they clone", _OTHERWISE),
}


def _of_site(rule: Callable[[Recipe, Openshift], Iterator[Problem]]) -> Callable[[Recipe], Iterator[Problem]]:
    """A rule about the section `openshift`; a recipe without it has nothing to judge."""

    @wraps(rule)
    def judge(recipe: Recipe) -> Iterator[Problem]:
        site: Openshift | None = recipe.settings.get("openshift")
        return rule(recipe, site) if site is not None else iter(())

    return judge


@_of_site
def links_are_used(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Over Ethernet, NCCL uses only the interfaces that are named. A name without a number at its end means all that
    begin with it."""
    if site.network.kind != "ethernet":
        return
    named = site.network.interface.removeprefix("=").split(",")
    if (site.network.links or 1) > len(named) and all(name[-1:].isdigit() for name in named):
        message = f"`links` is {site.network.links}, but pods communicate only through {listed(named)}."
        hint = "Delete the line, and set `gbit_s` to the speed of that interface. Or name every interface, separated by commas."
        yield recipe.problem("openshift.network.links", message, hint)


@_of_site
def pods_fit(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """A pod that requests more than its machine can give waits without end."""
    if any(memory_sizes(recipe)):
        return
    size, count, asked, most = units.size(recipe.machines.memory), recipe.machines.cpus, site.requests, site.limits
    memory = _Measure("memory", " GiB", size / GIB, hardware.memory(size) / GIB, hardware.pod_memory_gib(size))
    yield from memory.judge(recipe, common.gib(asked.memory), common.gib(most.memory))
    cpus = _Measure("cpus", " CPUs", count, hardware.cpus(count), hardware.pod_cpus(count))
    yield from cpus.judge(recipe, asked.cpus, most.cpus)


@dataclass(frozen=True)
class _Measure:
    """Memory (GiB) or CPUs of a machine. name: of the setting; has: all of it; gives: what pods can have; left: what
    one pod can have beside the cluster's own."""

    name: str
    unit: str
    has: float
    gives: float
    left: int

    def judge(self, recipe: Recipe, requested: float | None, limit: float | None) -> Iterator[Problem]:
        keep = "the kubelet, the system and the cluster's own pods use the rest"
        larger = f"If the machine has more, correct `machines.{self.name}`."
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
            message = f"The limit is {self._shown(limit)}, but the machine has {self._shown(self.has)}."
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


@_of_site
def deadline(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Training that stops at its own limit saves a model; the cluster's deadline saves none. A pipeline's limit is over
    all its jobs."""
    limit: str | None = (recipe.settings.get("limits") or {}).get("time")
    deadline_hours = site.deadline_hours
    if not limit or "pretrain" in recipe.settings or deadline_hours is None or any(limits_can_be_meant(recipe)):
        return
    hours = units.seconds(limit) / 3600
    if deadline_hours <= hours:
        message = f"The job is stopped after {deadline_hours:g} hours, before training could stop at its limit of {limit} and save."
        hint = f"Write {math.ceil(hours * 1.1) + 1} or more: starting, loading and the last checkpoint also take time."
        yield recipe.note("openshift.deadline_hours", message, hint, mending=math.ceil(hours * 1.1) + 1)


@_of_site
def data_place(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Data that the cluster prepares needs a claim, and files that are not sent need another source."""
    if site.data_from == "git" and recipe.code_from_git is None:
        message = "The data should come from a clone, but `image.code_from_git` names no commit."
        hint = "Add `image.code_from_git`. Or write `claim`, and `recipe submit` uploads the files."
        yield recipe.problem("openshift.data_from", message, hint)
    mounts = [claim.mount for claim in site.claims or ()]
    if site.data_from == "image" and "pretrain" not in recipe.settings:
        return  # prepared when the image was built, or, where `data_dir` is on a claim, there
    named = "data_dir" if site.data_dir else "output_dir" if site.output_dir else "data_from"
    folder = site.data_dir or (None if site.data_from == "image" else site.output_dir or next(iter(mounts), None))
    if mounts and not (folder and recipe.on_claim(folder)):
        message = "The cluster prepares the data, but the folder for it is on no claim."
        hint = f"Begin `data_dir` with {listed(mounts, 'or')}."
        yield recipe.problem(("openshift", named), message, hint)


@_of_site
def only_here(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Says where pods get the files beside a recipe. It is no rule: a recipe may run only here."""
    place, comes = kubernetes.place(recipe), _COMES[site.data_from]
    for setting, name in recipe.local_files():
        message = f"Pods read `{common.data_file(recipe, place, name)}`, which is `{name}` {comes[0]}."
        yield recipe.note(setting, message, comes[1])


def placeholder_commit(recipe: Recipe) -> Iterator[Problem]:
    """A note, because the starter holds a placeholder and works everywhere else; `submit` refuses it."""
    code = recipe.code_from_git
    if code and "openshift" in recipe.settings and not code.commit.strip("0"):
        message = "This commit is a placeholder. Pods would not find it, so `recipe submit` refuses it."
        hint = (
            "Push your copy of this project, and write its address and the commit that `git rev-parse HEAD` prints. Or delete "
            "`image` and `openshift.image`: pods then start from an image that the namespace builds."
        )
        yield recipe.note("image.code_from_git.commit", message, hint)


@_of_site
def storage(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    claims = site.claims or ()
    for setting in ("name", "mount"):
        seen: dict[str, int] = {}
        for index, claim in enumerate(claims):
            if claim[setting] in seen:
                message = f"Two claims have the {setting} `{claim[setting]}`."
                yield recipe.problem(("openshift", "claims", index, setting), message, "Give each its own.")
            seen[claim[setting]] = index
    if not claims and not site.output_dir:
        message = "`openshift` has no `claims`, so the results would be lost with the pods."
        hint = "Name a claim under `claims`, with its mount."
        yield recipe.problem("openshift", message, hint, key=True)
    if claims and site.output_dir and not recipe.on_claim(site.output_dir):
        message = (
            f"`output_dir` `{site.output_dir}` is on none of the claims, so the results would be lost with the pods."
        )
        hint = f"Begin it with {listed((claim.mount for claim in claims), 'or')}."
        yield recipe.problem("openshift.output_dir", message, hint)
    name, most = site.job_name or recipe.name, longest_job_name(recipe.machines.nodes)
    if not JOB_NAME.match(name) or len(name) > most:
        message = (
            f"`{name}` is not a valid name for a job of {recipe.machines.nodes} machines on the cluster."
            if len(name) > most
            else f"`{name}` is not a valid name for a job on the cluster."
        )
        hint = f"Use at most {most} lower-case letters, digits and `-`."
        yield recipe.problem(("openshift", "job_name") if site.job_name else ("name",), message, hint)


@_of_site
def anothers_image(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """An image of the cluster's own registry belongs to a namespace, and pods of another one need a right from there."""
    owner = re.match(rf"{re.escape(kubernetes.IMAGE_REGISTRY)}/([^/]+)/", site.image or "")
    if owner and owner[1] != site.namespace:
        message = f"The namespace `{owner[1]}` builds this image. Pods of `{site.namespace}` need a right from there to pull it."
        hint = (
            f"Delete the line, and pods start from the build of `{site.namespace}` itself. To share that image, ask somebody with "
            f"rights in `{owner[1]}` to apply `pull.yaml`, which `recipe site` writes."
        )
        yield recipe.note("openshift.image", message, hint)


@_of_site
def folders(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """A claim hides what a pod has in a folder, and prepared rows are no results."""
    for index, claim in enumerate(site.claims or ()):
        mount = claim.mount
        for taken, what in (_TAKEN | _SYSTEM).items():
            below = taken not in _ROOMY and f"{mount}/".startswith(f"{taken}/")
            if mount == "/" or f"{taken}/".startswith(f"{mount}/") or below:
                message = f"A claim at `{mount}` would hide {what} of its pods, in `{taken}`."
                hint = "Mount it elsewhere, such as `/shared/models`."
                yield recipe.problem(("openshift", "claims", index, "mount"), message, hint)
                break
    if site.data_dir and site.data_dir == site.output_dir:
        message = "`data_dir` and `output_dir` are the same folder, so a new run would delete its own rows."
        hint = f"Write `data_dir: {site.output_dir}/data`, or delete the line."
        yield recipe.problem("openshift.data_dir", message, hint)
    elif site.data_dir and site.claims and not recipe.on_claim(site.data_dir) and site.data_from == "image":
        message = f"`{site.data_dir}` is on none of the claims, so pods look for prepared rows in their image."
        hint = "Begin it with a claim's mount, or delete the line. Nothing to do if your image has the rows."
        yield recipe.note("openshift.data_dir", message, hint)


@_of_site
def ports(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    hint = "Write another number, or delete the line."
    for setting in ("metrics_port", "progress_port"):
        if site[setting] in _MEETING:
            message = f"The machines of a job meet at port {site[setting]}, so nothing else can use it."
            yield recipe.problem(("openshift", setting), message, hint)
    if site.progress_port == site.metrics_port:
        message = f"Prometheus and the console cannot share port {site.metrics_port}; they need different formats."
        yield recipe.problem("openshift.progress_port", message, hint)


@_of_site
def stated_twice(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """A variable or label that pods have already would have two values; a secret in a recipe is none."""
    every = [(section, name) for section in ("environment", "node_selector") for name in site.get(section) or ()]
    table = tomllib.loads(Path(__file__).with_name("taken.toml").read_text(encoding="utf-8")) if every else {}
    for section, name in every:
        taken = next((setting for setting, pattern in table.items() if re.fullmatch(pattern, name)), None)
        if taken is not None:
            message = (
                f"The cluster or the runner sets `{name}` for its pods, and two values would contradict each other."
            )
            hint = f"Delete the line{f', and write it as `{taken}`' if taken else ''}."
            yield recipe.problem(("openshift", section, name), message, hint, key=True)
        elif section == "environment" and _SECRET.fullmatch(name):
            message = f"`{name}` looks like a secret, and everybody who can read this recipe or its job can read it."
            hint = "Nothing to do, if it is none. `openshift.hub_token_secret` and `openshift.tracking_secret` name Secrets."
            yield recipe.note(("openshift", section, name), message, hint, key=True)


@_of_site
def secrets_beside_code(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """What pods clone can read their Secrets and send them elsewhere, and so can a server that replaces the hub."""
    secrets = [site[name] for name in ("hub_token_secret", "tracking_secret") if site.get(name)]
    whom: list[tuple[Path_, str]] = [
        (("openshift", "environment", name), f"`{name}` decides where pods send what they read, and that server")
        for name in site.environment or ()
        if re.fullmatch(r"(?i).*(ENDPOINT|BASE_URL|PROXY)", name)
    ]
    if code := recipe.code_from_git:
        whom.append((("image", "code_from_git", "url"), f"Pods run the code of `{code.url}`, and that code"))
    for path, who in whom if secrets else ():
        message = f"{who} can read the Secret{'s' if len(secrets) > 1 else ''} {listed(secrets)}."
        hint = "Nothing to do, if you trust it. Otherwise look at it before you submit the recipe."
        yield recipe.note(path, message, hint)


def _tools(recipe: Recipe) -> Iterator[tuple[Path_, str]]:
    """Every line that names a tool for curves which is a server of its own, with its value."""
    homes: list[tuple[Path_, Any]] = [(("report_to",), recipe.settings.get("report_to"))]
    homes += [((name, "report_to"), one.get("report_to")) for name, one in recipe.sections.items()]
    return ((path, tool) for path, tool in homes if tool in ("wandb", "mlflow"))


@_of_site
def trackers(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Pods have no key of their own to a tracking server."""
    if site.get("tracking_secret"):
        return
    for path, tool in _tools(recipe):
        message = f"`report_to: {tool}` needs a key, and pods have none: `openshift.tracking_secret` names no Secret."
        hint = "Add that line; the first lines of the rendered job show how to create the Secret. Or write `report_to: tensorboard`."
        yield recipe.problem(path, message, hint)


def mlflow_is_there(recipe: Recipe) -> Iterator[Problem]:
    """None of the project's extras brings MLflow, and so its own image has not got it; `wandb` comes with Axolotl."""
    site: Openshift | None = recipe.settings.get("openshift")
    for path, tool in _tools(recipe):
        if tool != "mlflow" or (site is None and find_spec(tool)):
            continue
        if site is None:
            message = "The package `mlflow` is not installed on this machine, so training would stop."
            yield recipe.note(path, message, "Run `pip install mlflow` on every machine that trains.")
        elif site.image:
            message = f"No extra installs the package `mlflow`, so training stops if `{site.image}` does not have it."
            hint = "Nothing to do if that image has it. Otherwise write `report_to: tensorboard` or `wandb`."
            yield recipe.note(path, message, hint)
        else:
            message = "The project's own image has no package `mlflow`, so training would stop at its start."
            hint = "Write `report_to: tensorboard` or `wandb`. Or name an image that has it, `openshift.image`."
            yield recipe.problem(path, message, hint)


RULES = (
    *(storage, pods_fit, links_are_used, data_place, deadline, anothers_image, folders, ports),
    *(trackers, mlflow_is_there, stated_twice, secrets_beside_code, placeholder_commit),
)
# Notes about a recipe's files for rendering and sending it, which `check` does not print.
RENDER_NOTES = (only_here,)
