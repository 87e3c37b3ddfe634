"""The table of all jobs: what each waits for, how far it is, its speed and memory beside the plan,
and what it has cost."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.commands import cli
from runner.parts.openshift import watch
from runner.parts.openshift.jobs import render_job
from runner.parts.openshift.status import (
    FAILED,
    FINISHED,
    PREPARING,
    QUEUED,
    TRAINING,
    JobProgress,
    JobState,
)
from runner.parts.openshift.watch import JobRow
from runner.recipe.overrides import from_options
from runner.scenarios import planned
from tests.parts.openshift.api import free_port
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.test_watching import (
    SURVIVAL,
    a_pod,
    finish,
    job,
    job_below,
    looked,
    train_to,
    trainjob_alone,
)

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
STEP = {"event": "step", "step": 50, "steps": 161, "loss": 1.2345, "tokens_per_second": 11800.0}
STEP |= {"samples_per_second": 30.0, "gpu_memory_gib": 19.5, "gpu_reserved_gib": 21.25}


def at(hours: float) -> str:
    return (NOW - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")


def four(hours: float = 2, **status) -> list[dict]:
    roles = [("master", 0), *(("worker", index) for index in range(3))]
    return [a_pod(*role, phase="Running", startTime=at(hours), **status) for role in roles]


def condition(type: str, status: str = "True", hours: float = 0) -> dict:
    return {"type": type, "status": status, "lastTransitionTime": at(hours)}


def priced() -> dict:
    """The job of a recipe that says what a GPU costs."""
    recipe = load(SURVIVAL, from_options(("limits.price_per_gpu_hour=2.5",)))[0]
    plan = planned(recipe, "pytorchjob")
    return render_job(plan, plan.stages[-1]).job


def test_a_job_at_work_is_held_against_its_plan():
    state = JobState(TRAINING, priced(), four(), progress=JobProgress(STEP, 60.0, 3.0))
    row = JobRow(state, gpu_hours=watch.gpu_hours(state, NOW))
    plan = state.job["metadata"]["annotations"]
    speed = f"{float(plan['recipe-runner/planned-tokens-per-second']):,.0f}"
    memory = plan["recipe-runner/planned-gpu-memory"].removesuffix(" GiB")
    assert float(memory) > 5 and speed != "0"
    assert row.cells == (
        "survival", "training", "50 of 161", "1.234", f"11,800 tokens/s (plan {speed})", f"21.2 GiB (plan {memory})",
        "1 h 51 min", "20.00", "",
    )  # fmt: skip


def test_without_a_price_gpu_hours_are_said_and_without_tokens_rows():
    latest = STEP | {"tokens_per_second": None, "gpu_reserved_gib": None}
    state = JobState(TRAINING, job(), four(), progress=JobProgress(latest))
    cells = JobRow(state, gpu_hours=watch.gpu_hours(state, NOW)).cells
    assert (
        cells[4] == "30 rows/s"
        and cells[5].startswith("19.5 GiB")
        and cells[6:8] == ("", "8.0 GPU h")
    )


@pytest.mark.parametrize(
    ("pods", "status", "phase", "hours"),
    [
        (four(3), {}, TRAINING, 12.0),
        # A pod that has ended holds its machine no longer.
        ([a_pod(phase="Failed", startTime=at(3), containerStatuses=[{"state": {"terminated": {"finishedAt": at(2)}}}])], {}, TRAINING, 1.0),
        ([a_pod(phase="Pending")], {}, QUEUED, 0.0),
        # Its pods are taken away, and what it says of itself is left.
        ([], {"startTime": at(5), "completionTime": at(3)}, FINISHED, 8.0),
        ([], {"startTime": at(5), "conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": at(4)}]}, FAILED, 4.0),
        ([], {}, QUEUED, 0.0),
        # A night in the queue, before it has run or after it was preempted.
        ([], {"startTime": at(10)}, QUEUED, 0.0),
        ([], {"startTime": at(10), "conditions": [condition("Created"), condition("Running", "False")]}, QUEUED, 0.0),
        # It was ended without a machine, or while it was suspended.
        ([], {"startTime": at(10), "conditions": [condition("Created"), condition("Failed")]}, FAILED, 0.0),
        ([], {"startTime": at(10), "conditions": [condition("Suspended"), condition("Failed")]}, FAILED, 0.0),
        # One that is taken off its machine leaves no end of its container.
        ([a_pod(phase="Failed", reason="Preempting", startTime=at(3), conditions=[condition("DisruptionTarget", hours=1)])], {}, TRAINING, 2.0),
    ],
)  # fmt: skip
def test_what_was_spent_is_what_was_held(pods, status, phase, hours):
    assert watch.gpu_hours(JobState(phase, job(**status), pods), NOW) == pytest.approx(hours)


def a_trainjob(end: str, *conditions: dict) -> dict:
    plan = planned(load(SURVIVAL, from_options(("openshift.queue=default",)))[0], "trainjob")
    ended = condition(end, hours=1)
    return render_job(plan, plan.stages[-1], "trainjob").job | {
        "status": {"conditions": [*conditions, ended]}
    }


def job_of_trainjob(name: str, gpus: int, **status) -> dict:
    """A plain Job of a TrainJob's JobSet, as a list has it."""
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    spec = {"completions": 4, "template": {"spec": {"containers": [limits]}}}
    return {"kind": "Job", "metadata": {"name": name}, "spec": spec, "status": status}


RESUMED, SUSPENDED = condition("Suspended", "False", hours=3), condition("Suspended", hours=3)


@pytest.mark.parametrize(
    ("end", "conditions", "below", "hours"),
    [
        # Its plain Job remains. Kubernetes sets the start again when a queue lets it go on.
        ("Complete", [RESUMED], [job_of_trainjob("survival-node-0", 1, startTime=at(2.5), completionTime=at(1.5))], 4.0),
        ("Failed", [], [job_of_trainjob("survival-node-0", 1, startTime=at(2), conditions=[condition("Failed", hours=1)])], 4.0),
        # What fetches models and data before holds no GPU.
        ("Complete", [], [job_of_trainjob("survival-dataset-0", 0, startTime=at(9), completionTime=at(2)),
                          job_of_trainjob("survival-node-0", 1, startTime=at(2), completionTime=at(1))], 4.0),
        # Nothing but itself remains: a queue has let it go on at that time, after the night.
        ("Complete", [RESUMED, condition("Created", hours=12)], [], 8.0),
        ("Failed", [SUSPENDED], [], 0.0),
        # How long it waited for machines is nowhere.
        ("Complete", [], [], None),
    ],
)  # fmt: skip
def test_what_an_ended_trainjob_without_pods_has_spent(end, conditions, below, hours):
    made = a_trainjob(end, *conditions)
    state = JobState(FINISHED if end == "Complete" else FAILED, made, [], made_by=[made, *below])
    assert watch.gpu_hours(state, NOW) == (pytest.approx(hours) if hours is not None else None)
    assert JobRow(state, gpu_hours=watch.gpu_hours(state, NOW)).cells[-2] == {
        None: "unknown",
        0.0: "",
    }.get(hours, f"{hours} GPU h")


@in_process
def test_the_table_has_the_hours_of_a_trainjob_whose_pods_are_gone(site, capsys):
    trainjob_alone(site)
    done = {
        "conditions": [{"type": "Complete", "status": "True", "lastTransitionTime": stamped(0)}]
    }
    site.set_status("TrainJob", "survival", done)
    assert cli._code(["status", "-n", site.namespace]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["survival", "finished", "unknown"]
    job_below(site)
    spec = {
        "template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    }
    site.api.objects["jobs", site.namespace, "survival-node-0"]["spec"] = spec
    site.set_status(
        "Job", "survival-node-0", {"startTime": stamped(7200), "completionTime": stamped(3600)}
    )
    assert cli._code(["status", "-n", site.namespace]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        "survival",
        "finished",
        "2.0",
        "GPU",
        "h",
    ]


def test_a_pod_that_is_being_deleted_holds_nothing_from_then_on():
    """Its machine may be lost, and it stays for hours."""
    pod = a_pod(phase="Running", startTime=at(5))
    pod["metadata"] |= {"deletionTimestamp": at(4)}
    assert watch.gpu_hours(JobState(TRAINING, job(), [pod]), NOW) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "name", ["accumulatedPastExecutionTimeSeconds", "accumulatedPastExexcutionTimeSeconds"]
)
def test_what_ran_before_a_preemption_was_spent(name):
    """Kueue keeps it, in both of its versions' spellings; the pods are gone."""
    state = JobState(QUEUED, job(startTime=at(30)), [], workload={"status": {name: 7200}})
    assert watch.gpu_hours(state, NOW) == pytest.approx(8.0)


def test_machines_that_are_missing_are_counted_and_a_stage_without_a_gpu_costs_nothing():
    pods = [*four()[:3], a_pod("worker", 2, phase="Pending")]
    assert JobRow(JobState(TRAINING, job(), pods)).cells[1] == "training, 3 of 4 machines"
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"resources": {}}]},
        "status": {"phase": "Running", "startTime": at(2)},
    }
    alone = {"kind": "Job", "metadata": {"name": "survival-data"}, "spec": {}}
    state = JobState(PREPARING, alone, [pod])
    assert JobRow(state, gpu_hours=watch.gpu_hours(state, NOW)).cells == (
        "survival-data",
        "preparing model and data",
        *("",) * 7,
    )


def entry(uid: str, made: int, priority: int = 0, queue: str = "gpus", **spec) -> dict:
    waits = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota"}
    return {
        "metadata": {
            "ownerReferences": [{"uid": uid}],
            "creationTimestamp": f"2026-11-22T10:{made:02}:00Z",
        },
        "spec": {"queueName": queue, "priority": priority, **spec},
        "status": {"conditions": [waits]},
    }


def test_the_place_in_a_queue():
    """The most important first, then the oldest; neither who has a place already, nor another
    queue, nor who was stopped."""
    admitted = entry("f", 0) | {
        "status": {"conditions": [{"type": "QuotaReserved", "status": "True"}]}
    }
    line = [
        entry("a", 5),
        entry("b", 7),
        entry("c", 9, 100),
        entry("d", 1, queue="other"),
        admitted,
        entry("g", 2, active=False),
    ]
    named = {"metadata": {"uid": "b", "labels": {"kueue.x-k8s.io/queue-name": "gpus"}}}
    assert watch.queue_place(line, named) == "3rd of 3 here in `gpus`"
    assert watch.queue_place(line, {"metadata": {"uid": "c"}}) == "1st of 3 here in `gpus`"
    assert watch.queue_place(line, {"metadata": {"uid": "f"}}) == watch.queue_place([], named) == ""
    assert (
        JobRow(JobState(QUEUED, job(), []), place="3rd of 3 here in `gpus`").cells[1]
        == "queued, 3rd of 3 here in `gpus`"
    )


def test_ordinals():
    said = [watch.ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)]
    assert said == ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]


def test_columns_that_nobody_fills_are_left_out_and_reasons_stand_below(golden_message):
    rows = [
        JobRow(
            JobState(QUEUED, job(), []),
            ["It waits in the queue `gpus`."],
            "1st of 1 here in `gpus`",
        ),
        JobRow(JobState(FINISHED, job(), [])),
    ]
    assert watch.format_table(rows)[0].split() == ["job", "state"]
    golden_message("\n".join(watch.format_table(rows)))
    assert watch.format_table(rows, 30) == [
        "survival: queued, 1st of 1 here in `gpus`",
        f"  {rows[0].why[0]}",
        "survival: finished",
    ]


@in_process
def test_the_table_of_a_namespace(site, capsys):
    assert site.recipe("submit") == 0
    train_to(site, 50)
    capsys.readouterr()
    assert cli._code(["status", "-n", site.namespace]) == 0
    titles, row, fetched = capsys.readouterr().out.splitlines()
    assert titles.split() == ["job", "state", "step", "loss", "left", "sent", "by"]
    assert row.split() == ["survival", "training", "50", "of", "100", "1.500", "1", "min", "ann"]
    assert fetched.split() == ["survival-model", "finished", "ann"]
    narrow = watch.format_table(watch.read_job_rows(site.cluster, site.namespace), 42)
    assert narrow[0].splitlines() == [
        "survival: training",
        "  step 50 of 100, loss 1.500, left 1 min,",
        "  sent by ann",
    ]
    assert narrow[1].splitlines() == ["survival-model: finished", "  sent by ann"]


@in_process
def test_jobs_are_among_the_runs_with_the_settings_that_differ(
    site, tmp_path, capsys, golden_message
):
    file = tmp_path / "survival.yaml"
    rows = f"sample: {Path(SURVIVAL).parent}/data"
    file.write_text(Path(SURVIVAL).read_text("utf-8").replace("sample: data", rows), "utf-8")
    assert site.recipe("submit", path=str(file)) == 0
    train_to(site, 50)
    for step, loss in ((20, 1.75), (40, 1.25), (50, 1.5)):
        line = f'[recipe] {{"event": "evaluation", "step": {step}, "validation_loss": {loss}}}'
        site.api.logs["survival-master-0", "now"].append((stamped(0), line))
    capsys.readouterr()
    (row,) = watch.as_runs(site.namespace)
    assert row["loss"] == 1.25 and row["settings"]["train.epochs"] == "4" and row["kind"] == "job"
    assert cli._code(["runs", "--cluster", site.namespace, "--recipe", "survival"]) == 0
    shown = capsys.readouterr()
    said = f"{shown.out}{shown.err}".replace(row["changed"], "<time>").replace(
        site.namespace, "<namespace>"
    )
    golden_message("\n".join(" ".join(line.split()) for line in said.splitlines()))
    file.write_text(file.read_text("utf-8") + "# a comment\n", "utf-8")
    (row,) = watch.as_runs(site.namespace)
    assert row["settings"], "a comment changes no setting"
    file.write_text(file.read_text("utf-8").replace("epochs: 4", "epochs: 5"), "utf-8")
    (row,) = watch.as_runs(site.namespace)
    assert row["settings"] == {}, "those of another recipe would be wrong"
    capsys.readouterr()
    assert cli._code(["runs", "--cluster", site.namespace, "--recipe", "other"]) == 1
    assert "no jobs in the namespace" in capsys.readouterr().err
    assert cli._code(["runs", "--cluster", site.namespace, "--page"]) == 1, "a job has no page"


@in_process
def test_watching_keeps_the_table_through_silence_until_all_have_ended(site, capsys):
    assert site.recipe("submit") == 0
    capsys.readouterr()

    def play() -> None:
        looked(site)
        train_to(site, 50)
        looked(site)
        site.api.busy_at, site.api.busy = "/pytorchjobs", [503]
        deadline = time.monotonic() + 60
        while site.api.busy:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        looked(site)
        finish(site)

    player = threading.Thread(target=play)
    player.start()
    assert cli._code(["status", "-n", site.namespace, "--watch"]) == 0
    player.join()
    said = capsys.readouterr().out
    order = [
        "waiting for machines, 0 of 4 machines",
        "50 of 100",
        "Trying again.",
        "survival        finished",
    ]
    places = [said.find(part) for part in order]
    assert -1 not in places and places == sorted(places), said


COMMANDS = (
    ("status",),
    ("status", str(SURVIVAL)),
    ("logs", str(SURVIVAL)),
    ("logs", str(SURVIVAL), "--follow"),
    ("fetch", str(SURVIVAL)),
    ("why", str(SURVIVAL)),
    ("stop", str(SURVIVAL)),
    ("open", str(SURVIVAL), "--no-browser"),
    ("submit", str(SURVIVAL), "--yes"),
    ("runs", "--cluster"),
)


@pytest.mark.parametrize(
    "arguments", COMMANDS, ids=lambda arguments: " ".join((arguments[0], *arguments[2:]))
)
def test_a_cluster_that_cannot_be_reached_ends_every_command(tmp_path, recipe_command, arguments):
    """With the output in a pipe. Only `--watch` retries."""
    server = f"http://127.0.0.1:{free_port()}"
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "away"}
    config["clusters"] = [{"name": "away", "cluster": {"server": server}}]
    config["users"] = [{"name": "ann", "user": {"token": "sha256~not-a-real-token"}}]
    config["contexts"] = [
        {"name": "away", "context": {"cluster": "away", "user": "ann", "namespace": "demo"}}
    ]
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config), "utf-8")
    done = recipe_command(
        *arguments, cwd=tmp_path, env={"KUBECONFIG": str(file), "HF_HUB_OFFLINE": "1"}, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.count(f"The cluster at {server} cannot be reached: it does not answer.") == 1
    assert "rying again" not in done.stdout + done.stderr


@in_process
def test_watching_nothing_ends_at_once(site, capsys):
    assert cli._code(["status", "-n", site.namespace, "--watch"]) == 0
    assert "No job of recipe-runner" in capsys.readouterr().out


def stamped(ago: float) -> str:
    """A time by a clock that is ahead of this machine's by as much as the cluster's."""
    return datetime.fromtimestamp(time.time() - ago, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000000Z")


def steps(site, latest: float) -> None:
    """Training with 10 s a step, whose latest step was so many seconds ago by the cluster's
    clock."""
    train_to(site, 1, seconds=latest + 100 - site.api.clock)
    times = [
        (latest + 60, "begin", 0),
        *((latest + 10 * (5 - step), "step", step) for step in range(1, 6)),
    ]
    site.api.logs["survival-master-0", "now"] = [
        (
            stamped(ago - site.api.clock),
            f'[recipe] {{"event": "{event}", "step": {step}, "steps": 100}}',
        )
        for ago, event, step in times
    ]


@in_process
@pytest.mark.parametrize(
    "clock", [-7200.0, 0.0, 7200.0], ids=["the desk is ahead", "together", "the desk is behind"]
)
def test_time_is_the_clusters_whatever_the_clock_of_this_machine_says(site, capsys, clock):
    site.api.clock = clock
    assert site.recipe("submit") == 0
    steps(site, 15)
    capsys.readouterr()
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert "train: step 5 of 100, about 16 min left" in said and "hanging" not in said
    steps(site, 1500)
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert "train: step 5 of 100, no step for 25 min" in said and "min left" not in said
    assert "It is hanging" in said and "Its last step was 25.0 min ago" in said
    assert cli._code(["status", "-n", site.namespace]) == 0
    titles = capsys.readouterr().out.splitlines()[0].split()
    assert titles == ["job", "state", "step", "sent", "by"], "nothing is left to go"


@in_process
def test_what_is_spent_is_counted_by_the_clusters_clock(site):
    site.api.clock = 7200.0
    assert site.recipe("submit") == 0
    for pod in site.pods():
        site.set_status(
            "Pod", pod["metadata"]["name"], {"phase": "Running", "startTime": stamped(-3600)}
        )
    (row,) = [
        row
        for row in watch.read_job_rows(site.cluster, site.namespace)
        if row.state.name == "survival"
    ]
    assert row.gpu_hours == pytest.approx(4.0, abs=0.1), "an hour of four GPUs"
