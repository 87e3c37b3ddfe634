"""Steps: how far a pipeline is on the cluster, stage by stage and gate by gate, and what comes next.

What the cluster shows is for people; each stage's own pod looks at the records on the claim before it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.execute.cluster.jobs import key, names, pods_of
from runner.execute.cluster.state import FAILED, FINISHED, ended
from runner.execute.order import stage_of
from runner.execute.step import ON_CLUSTER
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.targets import gate

MISSING, CHANGED, UNDER_WAY, PROMOTED = "not sent yet", "made before the recipe changed", "under way", "promoted"
# Why somebody has overruled a gate, beside the gate's own Job; the record itself lies on the claim.
PROMOTION = "recipe-runner/promotion"


@dataclass(frozen=True)
class Step:
    """A stage (of_gate False), or the gate after it. job: what the cluster has of it, or None; state: one of MISSING,
    CHANGED, UNDER_WAY, FINISHED, FAILED and PROMOTED."""

    stage: Stage
    of_gate: bool
    job: dict[str, Any] | None
    state: str

    @property
    def done(self) -> bool:
        return self.state in (FINISHED, PROMOTED)

    @property
    def title(self) -> str:
        return f"{self}"[0].upper() + f"{self}"[1:]

    def __str__(self) -> str:
        return f"the gate after `{self.stage.name}`" if self.of_gate else f"`{self.stage.name}`"


def steps(cluster: Any, plan: Plan) -> list[Step]:
    """Every step of a pipeline, in order."""
    found = []
    for stage in plan.stages:
        job = _first(cluster, plan, stage, of_gate=False)
        found.append(Step(stage, False, job, _state(job, stage.keys[""])))
        if stage.gates:
            verdict = _first(cluster, plan, stage, of_gate=True)
            state = _state(verdict, gate.key(stage))
            if verdict and job and _made(verdict) < _made(job):
                # Since then the stage was sent again; what it has left may be something else.
                state = CHANGED
            found.append(Step(stage, True, verdict, state))
    return found


def _first(cluster: Any, plan: Plan, stage: Stage, of_gate: bool) -> dict[str, Any] | None:
    for kind, name in names(plan, stage):
        if (kind == "Job") == of_gate and (job := cluster.get(kind, plan.site["namespace"], name)):
            return job
    return None


def _state(job: dict[str, Any] | None, wanted: str) -> str:
    if job is None:
        return MISSING
    if key(job) != wanted:
        return CHANGED
    end = ended(job)
    return PROMOTED if end == FAILED and promotion(job) else end or UNDER_WAY


def _made(job: dict[str, Any]) -> str:
    return job["metadata"].get("creationTimestamp", "")


def promotion(job: dict[str, Any]) -> str:
    """Who has overruled the gate of this Job, when and why; empty where nobody has."""
    return (job["metadata"].get("annotations") or {}).get(PROMOTION, "")


def current(found: list[Step]) -> Step | None:
    """The first step that is not done; None where all are."""
    return next((step for step in found if not step.done), None)


def choose(cluster: Any, plan: Plan, name: str | None) -> Step:
    """What `recipe submit` sends: the first step that is not done, or that of the stage `name`.

    Raises Stop where nothing is left, where a step before is not done, and where the gate that comes next is closed.
    """
    found = steps(cluster, plan)
    if name is None:
        step = current(found)
        if step is None:
            raise Stop(
                f"Every stage of `{plan.name}` is finished.", "Name one with `--stage` to look at it or run it again."
            )
        _alone(found, step)
    else:
        stage = stage_of(plan, name)
        own = [step for step in found if step.stage is stage]
        waiting = current(found[: found.index(own[0])])
        if waiting is not None:
            raise _refusal(cluster, stage, waiting)
        step = current(own) or own[0]
    if step.of_gate and step.state == FAILED:
        raise Stop(closed(cluster, step))
    return step


def _alone(found: list[Step], step: Step) -> None:
    """Raises Stop where another step is at work, perhaps on what this one would make anew."""
    for other in found:
        if other is not step and other.job is not None and not ended(other.job):
            raise Stop(
                f"{step.title} comes next ({step.state}), and {other} is at work.",
                f"`recipe stop RECIPE --stage {other.stage.name}` ends it; "
                f"`recipe submit RECIPE --stage {step.stage.name}` sends this one beside it.",
            )


def _refusal(cluster: Any, stage: Stage, waiting: Step) -> Stop:
    if waiting.of_gate and waiting.state == FAILED:
        return Stop(f"`{stage.name}` does not start. {closed(cluster, waiting)}")
    return Stop(
        f"`{stage.name}` does not start: {waiting} comes first, and is {waiting.state}.",
        "`recipe submit RECIPE`, without --stage, sends what comes first; `recipe status RECIPE` shows how far all is.",
    )


def closed(cluster: Any, step: Step) -> str:
    """What a closed gate says: its table, or why it could not be measured, and what a person can do."""
    name = step.stage.name
    return "\n".join(
        [
            f"The gate after `{name}` is closed, and nothing after it starts.",
            *(f"  {line}" for line in table(cluster, step)),
            f"A person may overrule: recipe promote RECIPE {name}{ON_CLUSTER} --by NAME --reason TEXT",
            "To measure again: `recipe stop RECIPE`, then `recipe submit RECIPE`.",
        ]
    )


def table(cluster: Any, step: Step) -> list[str]:
    """What a gate's pod has said in the end; empty where it is gone."""
    meta = step.job["metadata"]
    for pod in pods_of(cluster, "Job", meta["namespace"], meta["name"]):
        for entry in pod.get("status", {}).get("containerStatuses") or []:
            end = entry.get("state", {}).get("terminated") or {}
            if entry["name"] == gate.PART and end.get("message"):
                return end["message"].strip().splitlines()
            if entry["name"] == gate.PART and end.get("reason") == "OOMKilled":
                return ["Its pod used up its main memory before it had measured anything; raise `machines.memory_gib`."]
        if text := cluster.log(meta["namespace"], pod["metadata"]["name"], gate.PART, tail=40):
            return text.strip().splitlines()
    return []
