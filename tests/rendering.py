"""A plan rendered for a cluster, by default as the job that its version of OpenShift AI takes."""

from runner.parts.jobs import kubernetes
from runner.plan import Plan
from runner.scenarios import render as rendering
from runner.tools.files import Artifact


def render(plan: Plan, targets: tuple[str, ...] = ()) -> list[Artifact]:
    return rendering.render(plan, targets or (kubernetes.default(plan.site.version),))
