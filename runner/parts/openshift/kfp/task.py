"""`python -m runner.parts.openshift.kfp.task PLAN … VERB --stage NAME …`: one task of the pipeline
of target `kfp`.

    prepare, train    sends the stage's job and waits for it; returns its uid, and after training
    model and metrics
    gate              the same for the gate after the stage; returns its verdict
    closed            ends the run at a closed gate, with the gate's message

A task writes its outputs to the launcher's `executor_output.json` (kfp 2.17's specification).
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from runner.parts.jobs.stage import say
from runner.parts.openshift import controller, pipeline
from runner.parts.openshift.client import Cluster
from runner.parts.openshift.errors import patiently, pause
from runner.parts.openshift.jobs import pods_of
from runner.parts.openshift.kfp import target
from runner.parts.openshift.status import FAILED, first_log
from runner.parts.openshift.watch import Gone
from runner.plan import Plan, Stage
from runner.tools import child_process
from runner.tools.files import write_json
from runner.tools.problem import Stop

# A row with a measured value in a gate's table (`runner.parts.evaluate.gates.table`).
ROW = re.compile(r"^(?P<metric>\S+) {2,}\S+ \S+ +(?P<got>[-+.\deE]+) {2,}")

Output = Mapping[str, float | str]


def stage(cluster: Cluster, plan: Plan, wanted: Stage) -> tuple[dict[str, str], dict[str, Output]]:
    """Parameters and artifacts' metadata of a stage, once it is done. Raises Stop if it fails."""
    done = _walked(cluster, plan, wanted)
    if done is None or done.job is None:
        raise Stop(f"The recipe has no stage `{wanted.name}`.", "Render the pipeline again.")
    uid = str(done.job["metadata"]["uid"])
    if not wanted.trains:
        return {"made": uid}, {}
    # The folder of the model, in KServe's form for a claim.
    folder = plan.place_of(wanted).best_model_dir
    place = plan.on_claim(folder)
    metadata = {
        "recipe": plan.name,
        "stage": wanted.name,
        "fingerprint": plan.fingerprint,
        "key": wanted.keys.get("", ""),
    }
    metadata |= {
        "model_uri": place.uri if place else folder,
        "job": str(done.job["metadata"]["name"]),
        "job_uid": uid,
    }
    # The last values that the job logged on its first machine.
    values: dict[str, float] = {}
    for event in child_process.events(first_log(cluster, done.job, pods_of(cluster, done.job))):
        values |= {key: float(value) for key, value in event.items() if type(value) in (int, float)}
    return {"made": uid}, {"model": metadata, "metrics": values}


def verdict(
    cluster: Cluster, plan: Plan, wanted: Stage
) -> tuple[dict[str, str], dict[str, Output]]:
    """The same for the gate after a stage, open or closed."""
    try:
        _walked(cluster, plan, wanted, of_gate=True)
        outcome = target.OPEN
        refusal = ""
    except Stop as stop:
        outcome = "closed"
        refusal = stop.text
    milestone = pipeline.milestone_of(cluster, plan, wanted, of_gate=True)
    if refusal and milestone.state != FAILED:
        # Something other than this gate caused the refusal.
        raise Stop(refusal)
    table = pipeline.last_words(cluster, milestone.job)
    values: Output = {
        row["metric"]: float(row["got"]) for line in table if (row := ROW.match(line))
    }
    return {"verdict": outcome, "said": refusal or "\n".join(table)}, {
        "metrics": {**values, "verdict": outcome}
    }


def _walked(
    cluster: Cluster, plan: Plan, wanted: Stage, of_gate: bool = False
) -> pipeline.Milestone | None:
    """As `walk`; but if somebody deletes a job and not the run (`recipe stop` ends both), the task
    waits: the pipeline server would retry a failed task, and so send the job again."""
    while True:
        try:
            return controller.walk(cluster, plan, None, "", say, wanted.name, of_gate)
        except Gone as gone:
            say(f"{gone.text}\nUntil then the run waits. `recipe stop` ends it.")
            gone_states = (pipeline.MISSING, pipeline.GOING)
            while (
                patiently(lambda: pipeline.milestone_of(cluster, plan, wanted, of_gate)).state
                in gone_states
            ):
                pause()


def leave(
    description: str, parameters: dict[str, str], metadata: dict[str, Output], model: Path | None
) -> None:
    """Writes a task's outputs. description: of the task, by the launcher; model: the file for
    the dashboard, which names the folder of the weights on the claim."""
    outputs = json.loads(description).get("outputs", {})
    artifacts = {}
    for name, place in outputs.get("artifacts", {}).items():
        artifacts[name] = {
            "artifacts": [{**place["artifacts"][0], "metadata": metadata.get(name, {})}]
        }
    if model is not None:
        write_json(model, metadata["model"])
    write_json(Path(outputs["outputFile"]), {"parameterValues": parameters, "artifacts": artifacts})


def main(arguments: list[str]) -> int:
    extra_arguments = {
        "verb": {"choices": tuple(target.kinds())},
        "--model": {"type": Path},
        "--said": {"default": ""},
    }
    extra_arguments |= {name: {"required": True} for name in ("--stage", "--executor-input")}
    parsed = controller.parse_pod_arguments(
        "runner.parts.openshift.kfp.task", arguments, extra_arguments
    )
    try:
        if parsed.verb == "closed":
            raise Stop(parsed.said)
        cluster, plan = controller.connect_and_read_plan(parsed)
        wanted = plan.stage(parsed.stage)
        leave(
            parsed.executor_input,
            *(verdict if parsed.verb == "gate" else stage)(cluster, plan, wanted),
            parsed.model,
        )
    except Stop as stop:
        print(stop.text, file=sys.stderr, flush=True)
        return child_process.DECIDED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
