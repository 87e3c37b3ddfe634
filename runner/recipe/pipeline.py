"""What the lines of a pipeline recipe must have in common: its stages, their gates, and the rules of its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps

from runner.names import JOB_NAME, listed, nearest
from runner.problem import Problem
from runner.recipe import architecture, curriculum, gates, pipeline_files
from runner.recipe.recipe import Recipe

TRAINED = ("pretrain", *curriculum.AFTER)


def stage_names(recipe: Recipe) -> list[str]:
    """The stages of the recipe, in their order."""
    lengths = [curriculum.stage_of(part.sequence_len) for part in recipe.pretrain.curriculum]
    return ["data", "init", *lengths, *(kind for kind in curriculum.AFTER if recipe.settings.get(kind))]


def gate_metrics(recipe: Recipe) -> Iterator[Problem]:
    """Every gate names a metric that its stage can produce."""
    tasks = recipe.evaluation.tasks or ()
    before: list[str] = []
    for stage in TRAINED:
        section = recipe.settings.get(stage)
        if not section:
            continue
        known = gates.producible(stage, tasks, before)
        for index, text in enumerate(section.get("gates") or ()):
            if not isinstance(text, str):
                continue  # refused by the schema already
            try:
                metric = gates.parse(text).metric
            except ValueError:
                yield recipe.document.problem(
                    (stage, "gates", index),
                    f"`{text}` compares with a number beyond all bounds, so this gate would say nothing.",
                    "Write a finite number.",
                )
                continue
            if not gates.is_producible(metric, known):
                near = nearest(metric, known)
                yield recipe.document.problem(
                    (stage, "gates", index),
                    f"`{stage}` cannot produce the metric `{metric}`, so this gate would never open.",
                    (f"Did you mean `{near}`? " if near else "") + f"It can produce {listed(known)}.",
                )
        before = known


def stage_job_names(recipe: Recipe) -> Iterator[Problem]:
    """Each stage is a job called after recipe and stage."""
    name = recipe.openshift.job_name or recipe.name
    longest = max((f"{name}-{stage}" for stage in stage_names(recipe)), key=len)
    if not JOB_NAME.match(longest):
        yield recipe.document.problem(
            ("openshift", "job_name") if recipe.openshift.job_name else ("name",),
            f"The job `{longest}` of a stage would have a name of {len(longest)} characters, and the cluster allows 53.",
            f"Shorten `{name}`.",
        )


def _of_pipelines(rule: Callable[[Recipe], Iterator[Problem]]) -> Callable[[Recipe], Iterator[Problem]]:
    """The rule, silent about recipes that are no pipelines."""

    @wraps(rule)
    def judged(recipe: Recipe) -> Iterator[Problem]:
        return rule(recipe) if "pretrain" in recipe.settings else iter(())

    return judged


RULES = tuple(
    _of_pipelines(rule)
    for rule in (*architecture.RULES, *curriculum.RULES, gate_metrics, *pipeline_files.RULES, stage_job_names)
)
