"""Renders a plan as files for targets, the places where a recipe can run. Targets belong to
parts."""

from typing import cast

from runner import parts
from runner.parts.contract import FileTarget, JobTarget
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.scenarios import planned, target
from runner.tools.files import Artifact
from runner.tools.problem import Stop, listed

NAMES = tuple(parts.table("targets"))  # all targets of `recipe render`


def named(recipe: Recipe) -> tuple[str, ...]:
    """The targets that the recipe has a section for."""
    return tuple(name for name in NAMES if target(name).named(recipe))


def render(plan: Plan, targets: tuple[str, ...]) -> list[Artifact]:
    """The engine's own configs, and the job of each target for a stage. Pure: the same plan gives
    the same bytes. A plan of several stages gets a folder for each, rendered as a plan of its
    own."""
    rendered: list[Artifact] = []
    for stage in plan.stages:
        alone = plan.only(stage)
        artifacts = {file.path: file for file in stage.files}
        for name in targets:
            # The first of two targets decides what `oc apply -k` applies: a recipe must not run
            # twice at once.
            job_target = cast(JobTarget, target(name))
            new = {artifact.path: artifact for artifact in job_target.job(alone, stage)}
            artifacts |= {path: artifact for path, artifact in new.items() if path not in artifacts}
        if stage.folder:
            prefix = f"{stage.folder}/"
        else:
            prefix = ""
        for file in artifacts.values():
            rendered.append(Artifact(f"{prefix}{file.path}", file.text))
    return rendered


def _possible_sections(recipe: Recipe) -> list[str]:
    """The sections of targets that the recipe may have; a pretraining may not have all of them."""
    all_recipes = (recipe, *recipe.stage_recipes.values())
    sections = []
    for section in ("openshift", "nodes"):
        if all(each.settings.knows(section) for each in all_recipes):
            sections.append(section)
    return sections


def emit(recipe: Recipe, names: tuple[str, ...] = ()) -> list[Artifact]:
    """The files of the requested targets, or of all that the recipe names; the same recipe gives
    the same bytes. Those for plain machines have a folder of their own, and name other folders.
    Raises Stop without a target's section."""
    names = names or named(recipe)
    if not names:
        sections = _possible_sections(recipe)
        lacks = f"it has no section {listed(sections, 'or')} to render for"
        if "nodes" in sections:
            plain = ", for plain machines `nodes`"
        else:
            plain = ""
        hint = f"`recipe run` needs no rendered files. For a cluster, add `openshift` with a `namespace`{plain}."
        raise Stop(f"The recipe `{recipe.name}` is for this machine: {lacks}.", hint)
    jobs = tuple(name for name in names if isinstance(target(name), JobTarget))
    artifacts = list[Artifact]()
    if jobs:
        plan = planned(recipe, jobs[0])
        artifacts += render(plan, jobs)
        if parts.has("openshift"):
            from runner.parts.openshift import site

            artifacts += site.beside_jobs(recipe, plan)
    for name in names:
        file_target = target(name)
        if isinstance(file_target, FileTarget):
            artifacts += file_target.emitted(recipe)
    return artifacts
