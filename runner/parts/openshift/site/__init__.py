"""The site: what a namespace needs before the first job of its recipes, from the templates beside
this file; and how files beside a recipe get to its pods without `recipe submit`.

Every object names its own namespace, because the right to pull another namespace's image belongs to
that one. The kustomization has no claims, because some may exist with another size or mode, which a
cluster refuses to change.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from runner.catalog import hardware
from runner.parts.jobs import batch, kubernetes, podspec, trainjob
from runner.parts.jobs.kubernetes import CLAIMS_FILE, IMAGE_REGISTRY, Manifest, image
from runner.parts.openshift import pipeline
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import data_file
from runner.tools import packaged
from runner.tools.files import Artifact
from runner.tools.problem import Stop, listed
from runner.tools.text import macros, template, yaml_text

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift, OpenshiftClaims

TEMPLATES = Path(__file__).parent
ACCOUNT = "recipe-runner"  # the default service account of pods, also of TensorBoard's
# Beside jobs: the instructions for files, and the pod that opens their claims.
README = "FILES.md"
POD = "files.yaml"
PART = "files"  # what that pod does for its stage
OPEN_SECONDS = 4 * 3600  # for how long it opens them
COMMENTS: Mapping[str, str] = packaged.toml(__file__, "files.toml")


def render(plans: Sequence[Plan]) -> list[Artifact]:
    """The site of the plans' namespace; of several, a folder each and a kustomization with all.
    Raises Stop if two recipes name the same image by two tags."""
    spaces = _by_namespace(plans)
    if len(spaces) == 1:
        return _site(plans, *spaces.popitem())
    sites = {space: _site(plans, space, space_plans) for space, space_plans in spaces.items()}
    files = []
    for space, artifacts in sites.items():
        for file in artifacts:
            files.append(Artifact(f"{space}/{file.path}", file.text))
    recipes = {}
    for space, space_plans in spaces.items():
        recipes[space] = listed(plan.name for plan in space_plans)
    return [
        *files,
        Artifact(
            "kustomization.yaml",
            _filled("namespaces.yaml", steps=steps(plans, "."), spaces=recipes),
        ),
    ]


def _by_namespace(plans: Iterable[Plan]) -> dict[str, list[Plan]]:
    spaces: dict[str, list[Plan]] = {}
    for plan in sorted(plans, key=lambda plan: str(plan.site.namespace)):
        spaces.setdefault(plan.site.namespace, []).append(plan)
    return spaces


def steps(plans: Sequence[Plan], folder: str) -> list[str]:
    """The commands for a site in `folder`, the last ones from the root of a checkout; then what a
    built image needs."""
    spaces = _by_namespace(plans)
    typed = [(f"oc apply -k {folder}", "applies these files; repeat it after every change")]
    for space, space_plans in spaces.items():
        names = [claim.name for plan in space_plans for claim in plan.claims]
        if len(set(names)) < len(names):
            # `submit` creates a claim of one recipe, after a look at the cluster's storage.
            if len(spaces) == 1:
                home = folder
            else:
                home = f"{folder}/{space}".removeprefix("./")
            file = f"{home}/{CLAIMS_FILE}".removeprefix("./")
            typed.append(
                (
                    f"oc create -f {file}",
                    "creates storage that several recipes share; read its first lines",
                )
            )
    built = [
        kubernetes.build_command(name, space)
        for space, space_plans in spaces.items()
        for name in _built(space, space_plans)
    ]
    for command in built:
        typed.append((command, "builds the image, from the root of a checkout"))
    width = max(len(command) for command, _ in typed if command not in built)  # Those are long.
    if built:
        needs = [f"# {hardware.IMAGE_NEEDS}"]
    else:
        needs = []
    return [*(f"{command:<{width}}   # {comment}" for command, comment in typed), *needs]


def _site(plans: Sequence[Plan], space: str, space_plans: list[Plan]) -> list[Artifact]:
    """plans: of all namespaces, because others may use the image that is built here; space_plans:
    those of this one."""
    sites = [plan.site for plan in space_plans]
    # Those that may write to MLflow.
    tracked = dict.fromkeys(
        account for plan in space_plans if (account := podspec.mlflow_account(plan))
    )
    accounts = dict.fromkeys(
        [ACCOUNT, *tracked, *(site.service_account or ACCOUNT for site in sites)]
    )
    # Every namespace already has this one.
    accounts.pop("default", None)
    images = []
    for name, tag in _built(space, space_plans).items():
        images.append(
            {
                "name": name,
                "tag": tag,
                "command": kubernetes.build_command(name, space),
                "embed": " ".join(_embedded(plans, space, name)),
            }
        )
    references = filter(None, map(_reference, space_plans))
    versions = [kubernetes.version_numbers(site.version) for site in sites]
    facts = {
        "space": space,
        "recipes": listed(plan.name for plan in space_plans),
        "steps": steps(space_plans, "."),
        "hardware": hardware,
        "queues": dict.fromkeys(site.queue for site in sites if site.queue),
        "api": _queue_api(sites),
        "accounts": accounts,
        "account": ACCOUNT,
        "driver": pipeline.ACCOUNT,
        "tracked": tracked,
        "owners": dict.fromkeys(owner for owner, _, _ in references if owner != space),
        "images": images,
        "claims": _claims(space_plans),
        "shared": kubernetes.SHARED,
        "ports": dict.fromkeys(sorted(site.metrics_port for site in sites)),
        # Versions with network policies for TrainJobs need a way through them.
        "walled": any(version >= trainjob.WALLED_SINCE for version in versions),
    }
    texts = {name: text for name in (*COMMENTS, CLAIMS_FILE) if (text := _filled(name, **facts))}
    resources = {name: comment for name, comment in COMMENTS.items() if name in texts}
    texts["kustomization.yaml"] = _filled("kustomization.yaml", **facts, resources=resources)
    return [Artifact(name, text) for name, text in texts.items()]


def _queue_api(sites: Sequence[Openshift]) -> str:
    """The group and version of queues. Kueue 0.15 added the newer version, and 0.20 removed the
    older one. Without a version of Kueue, that of OpenShift AI decides, because TrainJobs of 3.6
    need the newer one."""
    kueue_is_newer = [
        kubernetes.version_numbers(site.kueue) >= (0, 15) for site in sites if site.kueue
    ]
    if kueue_is_newer:
        newer = all(kueue_is_newer)
    else:
        newer = all(kubernetes.patched(site.version) for site in sites)
    if newer:
        return "kueue.x-k8s.io/v1beta2"
    return "kueue.x-k8s.io/v1beta1"


def _embedded(plans: Iterable[Plan], space: str, name: str) -> Iterator[str]:
    """The recipes, of any namespace, whose data is in an image of `space`."""
    for plan in plans:
        reference = _reference(plan)
        if plan.site.data_from == "image" and reference and reference[:2] == (space, name):
            yield plan.name


def _reference(plan: Plan) -> tuple[str, str, str] | None:
    """Namespace, name and tag of the recipe's image if it is in the cluster's own registry."""
    image_name = image(plan)
    # A name alone is an image stream of the namespace.
    if "/" not in image_name:
        image_name = f"{IMAGE_REGISTRY}/{plan.site.namespace}/{image_name}"
    parts = re.fullmatch(
        rf"{re.escape(IMAGE_REGISTRY)}/([^/]+)/([^/:@]+)(?::([^@]+))?(?:@.+)?", image_name
    )
    if parts:
        return (parts[1], parts[2], parts[3] or "latest")
    return None


def _built(space: str, space_plans: Iterable[Plan]) -> dict[str, str]:
    """Tags by name of the images that a namespace builds for its recipes."""
    tags: dict[str, str] = {}
    for plan in space_plans:
        owner, name, tag = _reference(plan) or ("", "", "")
        if owner == space and tags.setdefault(name, tag) != tag:
            raise Stop(
                f"The recipes of `{space}` name the image `{name}` by two tags, `{tags[name]}` and `{tag}`.",
                "One build gives one tag: name the same one in `openshift.image`, or write two sites.",
            )
    return tags


def _claims(space_plans: list[Plan]) -> list[dict[str, object]]:
    """A claim of each name: of a recipe's size, else with room for all. image: of a TensorBoard, if
    it has results."""
    users: dict[str, list[tuple[Plan, OpenshiftClaims]]] = {}
    for plan in space_plans:
        for claim in plan.claims:
            users.setdefault(claim.name, []).append((plan, claim))
    return [_claim(name, sharing) for name, sharing in users.items()]


def _claim(name: str, sharing: list[tuple[Plan, OpenshiftClaims]]) -> dict[str, object]:
    """A claim for the template. sharing: the recipes that use it, each with its claim of that
    name."""
    plans = [plan for plan, _ in sharing]
    claims = [claim for _, claim in sharing]
    written_sizes = [claim.size_gib for claim in claims if claim.size_gib]
    guessed = [plan.claim_gib(name) for plan, claim in sharing if not claim.size_gib]
    storage_classes = [claim.storage_class for claim in claims if claim.storage_class]
    results = [
        (plan, claim) for plan, claim in sharing if plan.claim_of(plan.place.run_dir) == claim
    ]
    facts: dict[str, object] = {
        "name": name,
        "mode": kubernetes.claim_mode(plans),
        "machines": kubernetes.most_machines(plans),
        "storage_class": next(iter(storage_classes), None),
        "gib": max(*written_sizes, sum(guessed), 0),
        "image": None,
        "mount": claims[0].mount,
        "of_results": bool(results),
        "recipes": listed(plan.name for plan in plans),
    }
    if results:
        plan, claim = results[0]
        facts |= {"image": image(plan), "mount": claim.mount}
        if not written_sizes:
            # Later recipes use a claim with results too.
            facts["gib"] = max(sum(guessed), 100)
    return facts


def _filled(name: str, /, **facts: object) -> str:
    """A template with the comments at the end of its lines in one column, if there is room; empty
    if nothing is left."""
    text = template(TEMPLATES / name, word=_word).render(facts).rstrip("\n")
    aligned = re.sub(r"(?m)^( *[^#\s].*?) +(# .*)$", lambda line: f"{line[1]:<47} {line[2]}", text)
    if aligned:
        return f"{aligned}\n"
    return ""


def _word(text: str) -> str:
    """A text as YAML, in quotes if it would be read as a number or as nothing."""
    return yaml_text([text])[2:].rstrip("\n")


def beside_jobs(recipe: Recipe, plan: Plan) -> list[Artifact]:
    """The instructions for files beside a recipe, and the pod that they need, if any; nothing
    without such files."""
    # The path in pods of each file or folder, by its path from the recipe's folder.
    files = {name: data_file(recipe, plan.place, name) or "" for _, name in recipe.local_files()}
    if not files:
        return []
    name = recipe.file.name
    page = macros(TEMPLATES / "files.md.jinja", shlex=shlex)
    if plan.site.data_from == "claim":
        pod = opening_pod(plan, plan.stages[0])
        claims = str(PurePosixPath(plan.stages[0].folder, CLAIMS_FILE))
        text = page.claim(plan, name, _folders(files), pod["metadata"]["name"], claims)
        return [Artifact(README, str(text)), Artifact(POD, yaml_text(pod))]
    # The path of each in a checkout, whose `recipes/` is the pods' folder of files.
    top = plan.place.files_dir or "/"
    added = {name: f"recipes/{name}"}
    added |= {
        file: f"recipes/{PurePosixPath(pod_path).relative_to(top)}"
        for file, pod_path in files.items()
    }
    typed = [step for step in steps([plan], "site") if "claims" not in step]
    outside = listed(file for file in files if file.startswith(".."))
    return [
        Artifact(
            README, str(page.checkout(plan, name, _folders(added), added.values(), typed, outside))
        )
    ]


def _folders(files: Mapping[str, str]) -> dict[str, str]:
    return {file: str(PurePosixPath(pod_path).parent) for file, pod_path in files.items()}


def opening_pod(plan: Plan, stage: Stage) -> Manifest:
    """A pod that opens the claims and waits. Its image needs `tar`, as `oc cp` does."""
    # The pod runs none of the recipe's code.
    alone = replace(plan.only(stage), code_from_git=None)
    return batch.alone(
        alone, stage, PART, ["sleep", str(OPEN_SECONDS)], podspec.claims(plan), seconds=OPEN_SECONDS
    )
