"""Rules about where a recipe runs: cluster or plain machines, counts that agree, names that a
cluster accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from runner.catalog import hardware
from runner.check.rules import limits_can_be_meant, memory_sizes, of_section
from runner.data import object_store
from runner.parts.jobs import kubernetes, podspec
from runner.recipe import units
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.scenarios.shared.contradictions import contradictions
from runner.tools import packaged
from runner.tools.problem import Problem, listed, plural
from runner.tools.text import JOB_NAME, longest_job_name

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

_TAKEN: Mapping[str, dict[str, str]] = packaged.toml(
    __file__, "taken.toml"
)  # what pods have already
_SECRET = re.compile(r"(?i).*(token|secret|password|passwd|credentials?|_key|apikey)")


def links_are_used(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Over Ethernet, NCCL uses only the named interfaces. A name without a number at its end is a
    prefix."""
    if site.network.kind != "ethernet":
        return
    interfaces = site.network.interface.removeprefix("=").split(",")
    are_names = all(name[-1:].isdigit() for name in interfaces)
    if are_names and (site.network.links or 1) > len(interfaces):
        yield recipe.problem(
            "openshift.network.links",
            f"`links` is {site.network.links}, but pods communicate only through {listed(interfaces)}.",
            "Delete the line, and set `gbit_s` to the speed of that interface. Or name every interface, separated by commas.",
        )


def pods_fit(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """A pod that requests more than its machine has waits without end."""
    if any(memory_sizes(recipe)):
        return
    size = units.size(recipe.machines.memory)
    count = recipe.machines.cpus
    requests = site.requests
    most = site.limits
    keep = "the kubelet, the system and the cluster's own pods use the rest"
    # What the machine has, what it gives to all pods, and what is left for one beside the cluster's
    # own; request and limit.
    sizes = (
        size / hardware.GIB,
        hardware.memory(size) / hardware.GIB,
        hardware.pod_memory_gib(size),
    )
    memory = ("memory", "GiB", *sizes, common.gib(requests.memory), common.gib(most.memory))
    cpus = (
        "cpus",
        "CPUs",
        count,
        hardware.cpus(count),
        hardware.pod_cpus(count),
        requests.cpus,
        most.cpus,
    )
    for name, unit, has, gives, available, request, limit in (memory, cpus):
        had, room, requested, most_of = (
            _shown(amount, unit) for amount in (has, available, request, limit)
        )
        larger = f"If the machine has more, correct `machines.{name}`."
        place = ("openshift", "limits", name)
        if available < 1:
            yield recipe.problem(
                ("machines", name),
                f"A machine with {had} has nothing left for a pod: {keep}.",
                "Use larger machines.",
            )
        elif request and request > available:
            message = f"start: it requests {requested}, and a machine with {had} has about {room} for it; {keep}."
            hint = f"Write at most {room}, or delete the line. {larger}"
            request_path = ("openshift", "requests", name)
            if request > gives:
                yield recipe.problem(request_path, f"The pod can never {message}", hint)
            else:
                yield recipe.note(request_path, f"The pod may never {message}", hint)
        if limit and limit > has:
            yield recipe.problem(
                place,
                f"The limit is {most_of}, but the machine has {had}.",
                f"Write less, or delete the line. {larger}",
            )
        if limit and request and limit < request:
            yield recipe.problem(
                place,
                f"The limit is {most_of}, less than the {requested} that the pod requests.",
                f"Write at least {requested}, or delete the line.",
            )


def _shown(amount: float | None, unit: str) -> str:
    if amount == 1:
        unit = unit.removesuffix("s")
    return f"{round(amount or 0, 1):g} {unit}"


def deadline(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Training saves a model at its own limit, not at the cluster's deadline. A pipeline's limit is
    for all jobs."""
    limit: str | None = (recipe.settings.get("limits") or {}).get("time")
    deadline_hours = site.deadline_hours
    if (
        not limit
        or recipe.makes_model
        or recipe.pretrained
        or deadline_hours is None
        or any(limits_can_be_meant(recipe))
    ):
        return
    hours = units.seconds(limit) / 3600
    if deadline_hours <= hours:
        enough = math.ceil(hours * 1.1) + 1
        message = (
            f"The job is stopped after {deadline_hours:g} hours, before training could stop at its limit of {limit} and save.",
            f"Write {enough} or more: starting, loading and the last checkpoint also take time.",
        )
        yield recipe.note("openshift.deadline_hours", *message, mending=enough)


def data_place(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Rows need a folder of their own. Data that the cluster prepares needs a claim."""
    in_image = site.data_from == "image"
    if site.data_dir and site.data_dir == site.output_dir:
        yield recipe.problem(
            "openshift.data_dir",
            "`data_dir` and `output_dir` are the same folder, so a new run would delete its own rows.",
            f"Write `data_dir: {site.output_dir}/data`, or delete the line.",
        )
    elif site.data_dir and site.claims and in_image and not recipe.on_claim(site.data_dir):
        yield recipe.note(
            "openshift.data_dir",
            f"`{site.data_dir}` is on none of the claims, so pods look for prepared rows in their image.",
            "Begin it with a claim's mount, or delete the line, unless your image has the rows.",
        )
    if in_image and not recipe.is_stage and not recipe.makes_model:
        return  # The image has the rows, or `data_dir` is on a claim.
    mounts = [claim.mount for claim in site.claims or ()]
    setting, folder = _prepared_data_place(site, mounts)
    if mounts and not (folder and recipe.on_claim(folder)):
        message = (
            "The cluster prepares the data, but the folder for it is on no claim.",
            f"Begin `data_dir` with {listed(mounts, 'or')}.",
        )
        yield recipe.problem(("openshift", setting), *message)


def _prepared_data_place(site: Openshift, mounts: list[str]) -> tuple[str, str | None]:
    """The setting that decides where the cluster prepares data, and that folder, or a folder above
    it; None for a folder of the image."""
    if site.data_dir:
        return "data_dir", site.data_dir
    if site.output_dir:
        setting = "output_dir"
    else:
        setting = "data_from"
    if site.data_from == "image":
        return setting, None
    return setting, site.output_dir or next(iter(mounts), None)


def only_here(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Which version of the files beside a recipe pods read. Not among RULES, because a recipe may
    run only here."""
    place = kubernetes.place(recipe)
    comes = _TAKEN["comes"][site.data_from]
    remedy = (
        "FILES.md in the folder that `recipe render` writes has the commands for doing it manually."
    )
    if site.data_from != "claim":
        remedy = f"Write `openshift.data_from: claim`, and `recipe submit` uploads it. {remedy}"
    for setting, name in recipe.local_files():
        pod_file = common.data_file(recipe, place, name)
        message = f"Pods read `{pod_file}`, which is `{name}` {comes}."
        yield recipe.note(setting, message, remedy)


def placeholder_commit(recipe: Recipe) -> Iterator[Problem]:
    """A note, because the starter has a placeholder and works everywhere else; `submit` refuses
    it."""
    code = recipe.code_from_git
    if code and "openshift" in recipe.settings and not code.commit.strip("0"):
        yield recipe.note(
            "image.code_from_git.commit",
            "This commit is a placeholder. Pods would not find it, so `recipe submit` refuses it.",
            "Push your copy of this project, and write its address and the commit that `git rev-parse HEAD` prints. Or delete `image` and `openshift.image`: pods then start from an image that the namespace builds.",
        )


def storage(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Each claim needs its own name, and a folder that hides none of a pod's. Results need a
    claim."""
    claims = site.claims or ()
    for index, claim in enumerate(claims):
        yield from _hidden_folder(recipe, index, claim.mount)
    for setting in ("name", "mount"):
        values = [claim[setting] for claim in claims]
        for index, value in enumerate(values):
            if value in values[:index]:
                message = f"Two claims have the {setting} `{value}`."
                yield recipe.problem(
                    ("openshift", "claims", index, setting), message, "Give each its own."
                )
    if claims and site.output_dir and not recipe.on_claim(site.output_dir):
        mounts = listed((claim.mount for claim in claims), "or")
        yield recipe.problem(
            "openshift.output_dir",
            f"`output_dir` `{site.output_dir}` is on no claim, so the results would be lost with the pods.",
            f"Begin it with {mounts}.",
        )


def _hidden_folder(recipe: Recipe, index: int, mount: str) -> Iterator[Problem]:
    """The first folder of a pod that a claim would hide. index: of the claim."""
    for pod_folder, purpose in (_TAKEN["roomy"] | _TAKEN["folders"]).items():
        is_above = mount == "/" or f"{pod_folder}/".startswith(f"{mount}/")
        is_below = f"{mount}/".startswith(f"{pod_folder}/")
        if is_above or (is_below and pod_folder in _TAKEN["folders"]):
            yield recipe.problem(
                ("openshift", "claims", index, "mount"),
                f"A claim at `{mount}` would hide {purpose} of its pods, in `{pod_folder}`.",
                "Mount it elsewhere, such as `/shared/models`.",
            )
            return


def job_name(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """A job's name is also part of the names of its pods, and of their addresses."""
    if recipe.is_stage:
        return  # the rules of the whole recipe judge the names of all jobs
    name = site.job_name or recipe.name
    most = longest_job_name(recipe.machines.nodes)
    if JOB_NAME.match(name) and len(name) <= most:
        return
    of_machines = ""
    if len(name) > most:
        of_machines = f" of {recipe.machines.nodes} machines"
    setting = "openshift.job_name" if site.job_name else "name"
    yield recipe.problem(
        setting,
        f"`{name}` is not a valid name for a job{of_machines} on the cluster.",
        f"Use at most {most} lower-case letters, digits and `-`.",
    )


def anothers_image(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """An image in the cluster's registry belongs to a namespace; pods of another one need
    permission to pull it."""
    owner = re.match(rf"{re.escape(kubernetes.IMAGE_REGISTRY)}/([^/]+)/", site.image or "")
    if owner and owner[1] != site.namespace:
        yield recipe.note(
            "openshift.image",
            f"The namespace `{owner[1]}` builds this image. Pods of `{site.namespace}` need permission from there to pull it.",
            f"Delete the line, and pods start from the build of `{site.namespace}` itself. To share that image, ask somebody with permissions in `{owner[1]}` to apply `pull.yaml`, which `recipe site` writes.",
        )


def stated_twice(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """A variable or label that pods already have would have two values, and a recipe is no place
    for a secret."""
    written_names = [
        (section, name)
        for section in ("environment", "node_selector")
        for name in site.get(section) or ()
    ]
    for section, name in written_names:
        place = ("openshift", section, name)
        own_setting = next(
            (
                setting
                for setting, pattern in _TAKEN["names"].items()
                if re.fullmatch(pattern, name)
            ),
            None,
        )
        if own_setting is not None:
            if own_setting:
                instead = f", and write it as `{own_setting}`"
            else:
                instead = ""
            yield recipe.problem(
                place,
                f"The cluster or the runner sets `{name}` for its pods, and two values would contradict each other.",
                f"Delete the line{instead}.",
                key=True,
            )
        elif section == "environment" and _SECRET.fullmatch(name):
            yield recipe.note(
                place,
                f"`{name}` looks like a secret, and everybody who can read this recipe or its job can read it.",
                "If it is one, put it into a Secret, and name that under `openshift.hub_token_secret` or `openshift.tracking_secret`.",
                key=True,
            )


def secrets_beside_code(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Cloned code can read a pod's Secrets and send them elsewhere, and so can a server that
    replaces the hub."""
    secrets = []
    for name in ("hub_token_secret", "tracking_secret", "connection"):
        if site.get(name):
            secrets.append(site[name])
    whom: list[tuple[Path_, str]] = []
    for name in site.environment or ():
        if re.fullmatch(r"(?i).*(ENDPOINT|BASE_URL|PROXY)", name):
            whom.append(
                (
                    ("openshift", "environment", name),
                    f"`{name}` decides where pods send what they read, and that server",
                )
            )
    code = recipe.code_from_git
    if code:
        whom.append(
            (("image", "code_from_git", "url"), f"Pods run the code of `{code.url}`, and that code")
        )
    if not secrets:
        return
    for path, who in whom:
        message = f"{who} can read the {plural('Secret', len(secrets))} {listed(secrets)}."
        yield recipe.note(
            path, message, "If you do not trust it, read it before you submit the recipe."
        )


def trackers(recipe: Recipe) -> Iterator[Problem]:
    """Pods need a key for a tracking server, except OpenShift AI's; and MLflow its client, which
    our image has."""
    site: Openshift | None = recipe.settings.get("openshift")
    has_own_server = site and kubernetes.version_numbers(site.version) >= podspec.MLFLOW_SINCE
    path = ("train", "report_to")
    tool = (recipe.settings.get("train") or {}).get("report_to")
    # The other tools need no server.
    if tool in ("wandb", "mlflow"):
        mlflow = tool == "mlflow"
        if site and not site.get("tracking_secret") and not (mlflow and has_own_server):
            yield recipe.problem(
                path,
                f"`report_to: {tool}` needs a key, and pods have none: `openshift.tracking_secret` names no Secret.",
                "Add that line; the first lines of the rendered job show how to create the Secret. Or write `report_to: tensorboard`.",
            )
        elif mlflow and site and site.image:
            yield recipe.note(
                path,
                f"Training reports to MLflow only if `{site.image}` has the package `mlflow`.",
                "If that image lacks it, write `report_to: tensorboard` or `wandb`.",
            )
        elif mlflow and not site and not find_spec(tool):
            yield recipe.note(
                path,
                "The package `mlflow` is not installed on this machine, so training here reports to no MLflow server.",
                f"Run `{packaged.install(tool)}` on every machine that trains.",
            )


def connected(recipe: Recipe, site: Openshift) -> Iterator[Problem]:
    """Addresses of S3 need keys in the pods, and keys need an address."""
    addresses = []
    for where, name in recipe.addresses():
        if name.startswith(object_store.S3):
            addresses.append((where, name))
    served = (recipe.settings.get("serve") or {}).get("model")
    if served and served.startswith(object_store.S3):
        addresses += [(("serve", "model"), served)]
    if site.mirror:
        addresses.append((("openshift", "mirror"), site.mirror))
    if addresses and not site.connection:
        yield recipe.problem(
            addresses[0][0],
            f"Pods cannot read `{addresses[0][1]}`, because the recipe names no data connection.",
            f"Write `connection: NAME` under `openshift`. In the OpenShift AI console, Connections lists the names of `{site.namespace}`, and creates new ones.",
        )
    elif site.connection and not addresses:
        yield recipe.note(
            "openshift.connection",
            f"No address in this recipe begins with `s3://`, so no pod uses the connection `{site.connection}`.",
            "Delete the line, or name data, a model or `mirror` at such an address.",
        )
    elif site.image and addresses and addresses[0][0] != ("serve", "model"):
        yield recipe.note(
            addresses[0][0],
            f"Pods reach `s3://` addresses only if `{site.image}` has the package `s3fs`.",
            "If that image lacks it, add it there, or use files and folders on a claim.",
        )


RULES = (
    *of_section(
        "openshift",
        storage,
        job_name,
        pods_fit,
        links_are_used,
        data_place,
        deadline,
        anothers_image,
    ),
    *of_section("openshift", stated_twice, secrets_beside_code, connected),
    *(
        trackers,
        placeholder_commit,
        contradictions(__file__, base_folder=lambda recipe: recipe.base_folder),
    ),
)
RENDER_NOTES = of_section(
    "openshift", only_here
)  # for rendering and sending; `check` does not print them
