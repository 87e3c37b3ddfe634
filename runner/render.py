"""A plan as files, for the targets that parts bring."""

from runner import parts
from runner.plan import Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios import forecasting, translate
from runner.scenarios.targets import named, place, target
from runner.tools.files import Artifact
from runner.tools.names import listed
from runner.tools.problem import Stop


def render(plan: Plan, targets: tuple[str, ...]) -> list[Artifact]:
    """The engine's own configs, and the job of each target for a stage. Pure: the same plan gives the same bytes.

    A plan of several stages gets a folder for each, rendered as a plan of its own.
    """
    return [file for stage in plan.stages for file in _stage(plan.only(stage), stage, targets)]


def _stage(plan: Plan, stage: Stage, targets: tuple[str, ...]) -> list[Artifact]:
    artifacts = {file.path: file for file in stage.files}
    for name in targets:
        # The first of two targets decides what `oc apply -k` applies: a recipe must not run twice at once.
        new = {artifact.path: artifact for artifact in target(name).job(plan, stage)}
        artifacts |= {path: artifact for path, artifact in new.items() if path not in artifacts}
    below = f"{stage.folder}/" if stage.folder else ""
    return [Artifact(f"{below}{file.path}", file.text) for file in artifacts.values()]


def emit(recipe: Recipe, names: tuple[str, ...] = ()) -> list[Artifact]:
    """The files of the requested targets, or of all that the recipe names. Pure: the same recipe gives the same bytes.

    Files for plain machines name other folders than those for the cluster, and are in a folder of their own. Raises
    Stop if the recipe lacks a target's section.
    """
    names = names or named(recipe)
    if not names:
        sections = [section for section in ("openshift", "nodes") if recipe.settings.knows(section)]
        raise Stop(
            f"The recipe `{recipe.name}` is for this machine: it has no section {listed(sections, 'or')} to render for.",
            "`recipe run` needs no rendered files. For a cluster, add `openshift` with a `namespace`"
            + (", for plain machines `nodes`." if "nodes" in sections else "."),
        )
    jobs = tuple(name for name in names if hasattr(target(name), "job"))
    artifacts = []
    if jobs:
        plan = planned(recipe, jobs[0])
        artifacts = render(plan, jobs)
        artifacts += [file for beside in parts.hooks("beside_jobs") for file in beside(recipe, plan)]
    return artifacts + [file for name in names if name not in jobs for file in target(name).emitted(recipe)]


def planned(recipe: Recipe, target: str) -> Plan:
    """The plan that a target gets, with its estimated needs: sizes of claims, memory. It depends only on recipe and
    catalog, not on this machine. Raises Stop if the recipe lacks the target's section."""
    plan = translate(recipe, place(recipe, target))
    planner = forecasting()
    return planner.sized(recipe, plan) if planner else plan
