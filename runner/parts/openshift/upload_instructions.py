"""By hand: how the files that lie beside a recipe come to where its pods look, for whoever sends manifests without `submit`."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from runner.parts.jobs import batch, kubernetes, podspec
from runner.parts.jobs.kubernetes import Manifest
from runner.parts.openshift import site
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import data_file
from runner.tools.files import Artifact
from runner.tools.names import listed
from runner.tools.text import yaml_text

README, POD = "FILES.md", "files.yaml"
PART = "files"
# Seconds that the pod stays, unless it is deleted before.
OPEN_SECONDS = 4 * 3600


def beside_jobs(recipe: Recipe, plan: Plan) -> list[Artifact]:
    """How the files beside the recipe come to where its pods look."""
    files = {name: data_file(recipe, plan.place, name) or "" for _, name in recipe.local_files()}
    return render(plan, files, recipe.file.name)


def render(plan: Plan, files: Mapping[str, str], recipe: str) -> list[Artifact]:
    """What a person types, and the pod that this takes, where it takes one. files: where pods read each file or folder, by
    its name from the recipe's folder; recipe: the name of its file. Empty where there are no files."""
    if not files:
        return []
    comes = plan.site["data_from"]
    lines = {"claim": _claim, "image": _image, "git": _git}[comes](plan, files, recipe)
    pod = [Artifact(POD, yaml_text(manifest(plan, plan.stages[0])))] if comes == "claim" else []
    return [Artifact(README, "\n".join([f"# The files of `{plan.name}`", "", *lines]) + "\n"), *pod]


def manifest(plan: Plan, stage: Stage) -> Manifest:
    """A pod that opens the claims and waits. Its image needs `tar`, as `oc cp` does."""
    # It runs nothing of the recipe's code.
    alone = replace(plan.only(stage), code_from_git=None)
    container = batch.small(alone, PART, ["sleep", str(OPEN_SECONDS)], podspec.claim_mounts(plan))
    return batch.alone(alone, stage, PART, container, podspec.claim_volumes(plan), seconds=OPEN_SECONDS)


def _claim(plan: Plan, files: Mapping[str, str], recipe: str) -> Iterator[str]:
    name, space = manifest(plan, plan.stages[0])["metadata"]["name"], plan.site["namespace"]
    folder = plan.stages[0].folder
    homes = {file: str(PurePosixPath(there).parent) for file, there in files.items()}
    yield "Pods read them on a claim. `recipe submit` sends them there, and nothing of this is needed then. By hand, before anything"
    yield f"else is sent, in the folder of `{recipe}`:"
    yield ""
    yield f"    HERE=build/{plan.name}   # the folder that this file lies in"
    yield f'    oc create -f "$HERE/{PurePosixPath(folder, kubernetes.CLAIMS_FILE)}"   # once; it says which claims are there already'
    yield f'    oc apply -f "$HERE/{POD}"   # a pod that opens the claims'
    yield f"    oc wait --for=condition=Ready pod/{name} --namespace {space} --timeout=10m"
    for home in dict.fromkeys(homes.values()):
        yield f"    oc exec {name} --namespace {space} -- mkdir -p {shlex.quote(home)}"
    for file, home in homes.items():
        yield f"    oc cp {shlex.quote(file)} {shlex.quote(f'{space}/{name}:{home}/')}"
    yield f"    oc delete pod {name} --namespace {space}"
    yield ""
    yield "`kubectl` takes the same commands. Copy them again where they have changed."


def _image(plan: Plan, files: Mapping[str, str], recipe: str) -> Iterator[str]:
    yield "Pods have their rows in the image, made of these files when it was built. In the folder of the recipe, with the checkout"
    yield "that the image is built from in `CHECKOUT`:"
    yield ""
    yield from _copied(plan, files, recipe)
    yield '    cd "$CHECKOUT"'
    yield f"    recipe site recipes/{shlex.quote(recipe)} --out site   # its EMBED names the recipe"
    yield from (f"    {step}" for step in site.steps([plan], "site") if "claims" not in step)
    if above := [file for file in files if file.startswith("..")]:
        yield ""
        yield f"An image holds what is below `recipes/` alone: move {listed(above)} below the folder of the recipe first."


def _git(plan: Plan, files: Mapping[str, str], recipe: str) -> Iterator[str]:
    yield "Pods clone them with the code. In the folder of the recipe, with a checkout of the repository in `CHECKOUT`:"
    yield ""
    there = [f"recipes/{recipe}", *_below(plan, files).values()]
    yield from _copied(plan, files, recipe)
    yield f'    git -C "$CHECKOUT" add --force {shlex.join(there)}'
    yield f'    git -C "$CHECKOUT" commit -m "Files of {plan.name}" && git -C "$CHECKOUT" push'
    yield '    git -C "$CHECKOUT" rev-parse HEAD   # write it as `image.code_from_git.commit`, and render again'


def _below(plan: Plan, files: Mapping[str, str]) -> dict[str, str]:
    """Where each file belongs in a checkout, whose `recipes/` pods have as their folder of files."""
    return {
        file: f"recipes/{PurePosixPath(there).relative_to(plan.place.files_dir or '/')}"
        for file, there in files.items()
    }


def _copied(plan: Plan, files: Mapping[str, str], recipe: str) -> Iterator[str]:
    yield "    CHECKOUT=…"
    homes = {recipe: "recipes"} | {
        file: str(PurePosixPath(there).parent) for file, there in _below(plan, files).items()
    }
    for home in dict.fromkeys(homes.values()):
        yield f'    mkdir -p "$CHECKOUT"/{shlex.quote(home)}'
    for file, home in homes.items():
        yield f'    cp -R {shlex.quote(file)} "$CHECKOUT"/{shlex.quote(home)}/'
