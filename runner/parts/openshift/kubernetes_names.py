"""Rules about names, addresses and folders that a cluster, or a network, takes in one form alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from runner.parts.jobs import code, kubernetes
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

# Kubernetes' names of most objects (RFC 1123).
_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
# An image as registries take it (github.com/distribution/reference): host, path in lower case, tag, digest.
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
# Folders of a pod that are something else already.
_TAKEN = {
    "/dev/shm": "shared memory",
    "/tmp": "scratch",
    kubernetes.CONFIG_DIR: "the configs",
    "/opt/recipe-runner": "the code and its data",
    code.MOUNT: "the code by git",
}
_SYSTEM = dict.fromkeys(("/usr/bin", "/usr/lib", "/usr/local", "/bin", "/lib", "/lib64", "/proc", "/sys"), "the system")
# Those that have room for a claim in a folder of its own; code and configs lose what lies there.
_ROOMY = ("/dev/shm", "/tmp", *_SYSTEM)
# Where the machines of a job meet: PyTorchJob's and TrainJob's own.
_MEETING = (23456, 29500)


def names(recipe: Recipe) -> Iterator[Problem]:
    """What the cluster refuses when it gets it."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    if site.image and not _IMAGE.match(site.image):
        hint = "Write it as REGISTRY/PATH:TAG or REGISTRY/PATH@sha256:DIGEST: the path in lower case, no blanks."
        yield recipe.problem(("openshift", "image"), f"`{site.image}` cannot name an image.", hint)
    stated: dict[Path_, tuple[str | None, str]] = {("openshift", "queue"): (site.queue, "a queue")}
    for index, claim in enumerate(site.claims or ()):
        stated["openshift", "claims", index, "storage_class"] = (claim.storage_class, "a storage class")
    for path, (name, what) in stated.items():
        if name and not _NAME.match(name):
            hint = "Use lower-case letters, digits, `-` and `.`, as the cluster itself lists them."
            yield recipe.problem(path, f"`{name}` cannot name {what} on the cluster.", hint)
    if site.queue and len(site.queue) > 63 and _NAME.match(site.queue):
        message = f"A job names its queue in a label, which holds 63 characters, and this one has {len(site.queue)}."
        yield recipe.problem(("openshift", "queue"), message, "Name a queue with a shorter name.")


def folders(recipe: Recipe) -> Iterator[Problem]:
    """A claim hides what a pod has in a folder, and prepared rows are no results."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    for index, claim in enumerate(site.claims or ()):
        mount = claim.mount.rstrip("/") or "/"
        for taken, what in (_TAKEN | _SYSTEM).items():
            below = taken not in _ROOMY and f"{mount}/".startswith(f"{taken}/")
            if mount == "/" or f"{taken}/".startswith(f"{mount}/") or below:
                message = f"A claim at `{claim.mount}` would hide {what} of its pods, in `{taken}`."
                hint = "Mount it elsewhere, such as `/shared/models`."
                yield recipe.problem(("openshift", "claims", index, "mount"), message, hint)
                break
    if site.data_dir and site.output_dir and site.data_dir.rstrip("/") == site.output_dir.rstrip("/"):
        message = "`data_dir` and `output_dir` are one folder, and a run that begins anew would clear its own rows."
        hint = f"Write `data_dir: {site.output_dir.rstrip('/')}/data`, or delete the line."
        yield recipe.problem("openshift.data_dir", message, hint)
    elif site.data_dir and site.claims and not recipe.on_claim(site.data_dir) and site.data_from == "image":
        message = f"`{site.data_dir}` lies on none of the claims, so pods look for prepared rows there in their image."
        hint = "Let it start with a claim's mount, or delete the line; nothing to do where your image has them."
        yield recipe.note("openshift.data_dir", message, hint)


def ports(recipe: Recipe) -> Iterator[Problem]:
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    for setting in ("metrics_port", "progress_port"):
        if site[setting] in _MEETING:
            message = f"At port {site[setting]} the machines of a job meet, so nothing else can be answered there."
            hint = "Write another number, or delete the line."
            yield recipe.problem(("openshift", setting), message, hint)


def _tools(recipe: Recipe) -> Iterator[tuple[Path_, str]]:
    """Every line that names a tool for curves which is a server of its own, with its value."""
    homes: list[tuple[Path_, Any]] = [(("report_to",), recipe.settings.get("report_to"))]
    homes += [((name, "report_to"), one.get("report_to")) for name, one in recipe.sections.items()]
    return ((path, tool) for path, tool in homes if tool in ("wandb", "mlflow"))


def trackers(recipe: Recipe) -> Iterator[Problem]:
    """Pods have no key of their own to a tracking server."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None or site.get("tracking_secret"):
        return
    for path, tool in _tools(recipe):
        message = f"`report_to: {tool}` needs a key, and pods have none: `openshift.tracking_secret` names no Secret."
        hint = "Add that line; the rendered job's first lines say how the Secret is made. Or write `report_to: tensorboard`."
        yield recipe.problem(path, message, hint)


def mlflow_is_there(recipe: Recipe) -> Iterator[Problem]:
    """None of the project's extras brings MLflow, and so its own image has not got it; `wandb` comes with Axolotl."""
    site: Openshift | None = recipe.settings.get("openshift")
    for path, tool in _tools(recipe):
        if tool != "mlflow" or (site is None and find_spec(tool)):
            continue
        if site is None:
            message = "The package `mlflow` is not on this machine, and training stops where it is missing."
            yield recipe.note(path, message, "`pip install mlflow` wherever it runs.")
        elif site.image:
            message = f"The package `mlflow` comes with none of the extras, and training stops where `{site.image}` has not got it."
            hint = "Nothing to do, if that image has it. Else write `report_to: tensorboard` or `wandb`."
            yield recipe.note(path, message, hint)
        else:
            message = "The project's own image has no package `mlflow`, so training would stop when it begins."
            hint = "Write `report_to: tensorboard` or `wandb`; or name an image that has it, `openshift.image`."
            yield recipe.problem(path, message, hint)


RULES = (names, folders, ports, trackers, mlflow_is_there)
