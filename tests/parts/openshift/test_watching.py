"""Watching a job and bringing home what it leaves: words for every trouble, logs over restarts,
results by hash."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import socket
import threading
import time
import urllib.request
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runner.check.validate import load
from runner.parts.jobs import kubernetes, podspec
from runner.parts.openshift import client, errors, helper_pod, jobs, status, submit, transfer, watch
from runner.parts.openshift.diagnose import reasons
from runner.parts.openshift.errors import Refused, TryAgain, patiently
from runner.parts.openshift.jobs import render_job
from runner.parts.openshift.status import FAILED, QUEUED, TRAINING, WAITING, JobState
from runner.recipe.overrides import from_options
from runner.scenarios import planned, translate
from runner.trainer import merging
from tests.conftest import ROOT
from tests.parts.openshift import api
from tests.parts.openshift.api import stamp
from tests.parts.openshift.conftest import VERSION, in_process
from tests.parts.openshift.judging import core_refusals

SURVIVAL = ROOT / "recipes" / "survival.yaml"


def job(**status) -> dict:
    recipe, _, _ = load(SURVIVAL, from_options(("openshift.queue=default",)))
    plan = planned(recipe, "pytorchjob")
    return render_job(plan, plan.stages[-1]).job | {"status": status}


def a_pod(role: str = "master", index: int = 0, **status) -> dict:
    template = job()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    labels = {
        "training.kubeflow.org/replica-type": role,
        "training.kubeflow.org/replica-index": str(index),
    }
    return {
        "metadata": {
            "name": f"survival-{role}-{index}",
            "labels": labels,
            "uid": f"uid-{role}-{index}",
        },
        "spec": template["spec"],
        "status": {"phase": "Pending", **status},
    }


def unscheduled(message: str) -> dict:
    return a_pod(conditions=[{"type": "PodScheduled", "status": "False", "message": message}])


def container(**entry) -> dict:
    return a_pod(
        containerStatuses=[
            {"name": "pytorch", "restartCount": 0, "image": "registry/image:1", **entry}
        ]
    )


def waiting(reason: str, message: str = "") -> dict:
    return container(state={"waiting": {"reason": reason, "message": message}})


def warning(kind: str, name: str, reason: str, message: str) -> dict:
    about = {"kind": kind, "name": name, "uid": name.replace("survival", "uid")}
    return {"involvedObject": about, "type": "Warning", "reason": reason, "message": message}


def why(pods=(), events=(), workload=None, log="", phase=WAITING, **status) -> str:
    return "\n".join(
        reasons(
            JobState(phase, job(**status), list(pods), list(events), workload), lambda _pod: log
        )
    )


def test_no_pods_made(golden_message):
    said = why(
        events=[
            warning(
                "PyTorchJob", "survival", "FailedCreatePod", "pods is forbidden: exceeded quota: q"
            )
        ]
    )
    assert "exceeded quota: q." in said and "`machines`" in said
    golden_message(said)


def trainjob(site, name: str = "survival") -> tuple[dict, dict]:
    """A TrainJob and the Job of its JobSet, as Trainer makes them; gives both."""
    return trainjob_alone(site), job_below(site, name)


def trainjob_alone(site, *sets: str) -> dict:
    options = (f"openshift.namespace={site.namespace}", f"openshift.version={VERSION}", *sets)
    plan = planned(load(SURVIVAL, from_options(options))[0], "trainjob")
    return site.cluster.apply(render_job(plan, plan.stages[-1], "trainjob").job)


def job_below(site, name: str = "survival") -> dict:
    template = {"spec": {"containers": [{"name": "node", "image": "x"}], "restartPolicy": "Never"}}
    meta = {
        "name": f"{name}-node-0",
        "namespace": site.namespace,
        "labels": {jobs.POD_LABEL["TrainJob"]: name},
    }
    below = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {"template": template, "suspend": True},
    }
    return site.cluster.apply(below)


@in_process
def test_no_pods_made_for_a_trainjob(site):
    """Its pods are made by a job below it, and so the event is that one's."""
    made, _ = trainjob(site)
    site.event(
        "Job",
        "survival-node-0",
        "FailedCreate",
        'pods "survival-node-0-0" is forbidden: exceeded quota: gpus',
    )
    found = status.read_state(site.cluster, made)
    assert "No pods exist: " in "\n".join(reasons(found, lambda _pod: ""))


@in_process
def test_the_pods_of_an_earlier_trainjob_are_not_shown_as_its_own(site):
    """It was deleted and sent anew; until they have ended, its pods carry the same label."""
    _, old = trainjob(site)
    labels = {jobs.POD_LABEL["TrainJob"]: "survival"}
    site.pod("survival-node-0-0-aaaaa", old, labels, phase="Running")
    site.api.logs[("survival-node-0-0-aaaaa", "now")] = [
        (stamp(), '[recipe] {"event": "step", "step": 9, "steps": 9}')
    ]
    site.event("Pod", "survival-node-0-0-aaaaa", "FailedMount", "of before")
    # The Job and its pod are still ending.
    del site.api.objects["trainjobs", site.namespace, "survival"]
    now = trainjob_alone(site)
    state = status.read_state(site.cluster, now)
    assert (state.pods, state.progress.latest, state.events, state.phase) == ([], None, [], WAITING)
    del site.api.objects["jobs", site.namespace, "survival-node-0"]
    below = job_below(site)
    site.pod("survival-node-0-0-bbbbb", below, labels)
    assert [pod["metadata"]["name"] for pod in jobs.pods_of(site.cluster, now)] == [
        "survival-node-0-0-bbbbb"
    ]


def test_what_happened_to_another_object_of_that_name_is_not_told(site):
    """Of an earlier job, and of a job of another kind."""
    assert site.recipe("submit") == 0
    site.pods()
    said = 'pods "survival-master-0" is forbidden: exceeded quota: gpus'
    site.event(
        "PyTorchJob", "survival", "FailedCreatePod", said, uid="of-an-earlier-one", seconds=900
    )
    site.event("Job", "survival", "FailedCreate", said, uid="of-another-kind")
    assert said not in told(site)


def told(site) -> list[str]:
    return [event["message"] for event in status.read_state(site.cluster, site.job()).events]


def test_what_went_well_since_is_not_told(site):
    assert site.recipe("submit") == 0
    site.pods()
    about = ("Pod", "survival-master-0")
    site.event(*about, "FailedMount", "the server does not answer", seconds=900)
    assert "the server does not answer" in told(site)
    site.event(*about, "Pulling", "Pulling image", type="Normal", seconds=60)
    assert "the server does not answer" not in told(site)
    site.event(*about, "FailedMount", "it does not answer again")
    assert "it does not answer again" in told(site)


def test_waiting_for_quota_in_the_queue(golden_message):
    refused = {
        "type": "QuotaReserved",
        "status": "False",
        "message": "couldn't assign flavors: insufficient quota for nvidia.com/gpu",
    }
    said = why(workload={"status": {"conditions": [refused]}}, phase=QUEUED)
    assert "queue `default`" in said and refused["message"] in said
    golden_message(said)


def test_a_closed_queue(golden_message):
    closed = {
        "type": "QuotaReserved",
        "status": "False",
        "message": "LocalQueue default doesn't exist",
    }
    said = why(workload={"status": {"conditions": [closed]}}, phase=QUEUED)
    assert "queue `default` does not take jobs" in said
    golden_message(said)


def test_no_machine_with_that_gpu(golden_message):
    said = why(
        [
            unscheduled(
                "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."
            )
        ]
    )
    assert "(`survival-master-0`)" in said and "GPU `NVIDIA-L40S`" in said
    golden_message(said)


def test_what_keeps_several_machines_waiting_is_told_once():
    said = "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."
    pods = [
        a_pod(*role, **unscheduled(said)["status"])
        for role in (("master", 0), ("worker", 0), ("worker", 1))
    ]
    (line,) = why(pods).splitlines()
    assert line.startswith("Machines 0 to 2: no machine with the GPU `NVIDIA-L40S` is free.")
    pods[1]["status"] |= waiting("ErrImagePull", "manifest unknown")["status"] | {"conditions": []}
    first, second = why(pods).splitlines()
    assert first.startswith("Machines 0 and 2: no machine") and second.startswith(
        "Machine 1 (`survival-worker-0`): the"
    )


def test_a_claim_that_lies_on_another_machine(golden_message):
    """Volumes of one machine (RWO) are found by a node affinity of their own, which names no
    GPU."""
    said = why(
        [
            unscheduled(
                "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had volume node affinity conflict."
            )
        ]
    )
    assert "no free machine can reach its claims" in said and "GPU" not in said
    golden_message(said)


def test_a_pod_that_asks_for_no_gpu_is_not_told_of_one():
    pod = unscheduled(
        "0/6 nodes are available: 6 node(s) didn't match Pod's node affinity/selector."
    )
    pod["spec"] = pod["spec"] | {"nodeSelector": {}}
    assert "GPU" not in why([pod]) and "node affinity/selector" in why([pod])


def test_machines_that_are_full(golden_message):
    said = why(
        [
            unscheduled(
                "0/6 nodes are available: 2 Insufficient nvidia.com/gpu, 4 Insufficient memory."
            )
        ]
    )
    assert "nvidia.com/gpu, memory." in said
    golden_message(said)


def test_a_claim_that_is_pending_with_the_storages_own_reason(golden_message):
    event = warning(
        "PersistentVolumeClaim",
        "trained-models-pvc",
        "ProvisioningFailed",
        "access mode not supported",
    )
    said = why(
        [unscheduled("0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims.")],
        [event],
    )
    assert "`trained-models-pvc`: access mode not supported" in said
    assert "`openshift.claims[].storage_class`" in said
    golden_message(said)


def test_an_image_that_cannot_be_fetched(golden_message):
    said = why([waiting("ImagePullBackOff", "manifest unknown")])
    assert "`registry/image:1` cannot be pulled" in said and "manifest unknown" in said
    assert "oc start-build recipe-runner" in said
    golden_message(said)


def test_a_secret_that_is_not_there(golden_message):
    said = why([waiting("CreateContainerConfigError", 'secret "hub-token" not found')])
    assert 'secret "hub-token" not found' in said and "`oc create secret generic" in said
    golden_message(said)


def test_a_volume_that_cannot_be_attached(golden_message):
    event = warning(
        "Pod", "survival-master-0", "FailedAttachVolume", "Multi-Attach error for volume pvc-1"
    )
    said = why([waiting("ContainerCreating")], [event])
    assert event["message"] in said and "`openshift.claims[].storage_class`" in said
    golden_message(said, "already attached elsewhere")
    event = warning("Pod", "survival-master-0", "FailedMount", "the server does not answer")
    said = why([waiting("ContainerCreating")], [event])
    assert said.endswith(f": {event['message']}"), (
        "storage for several machines would not mend this"
    )
    golden_message(said, "another reason")


def test_main_memory_used_up_with_what_the_plan_had_said(golden_message):
    said = why([container(state={"terminated": {"exitCode": 137, "reason": "OOMKilled"}})])
    assert "22Gi, 5Gi" in said and " 16.0 GiB" in said and "`openshift.limits.memory`" in said
    golden_message(said)


def test_main_memory_used_up_before_the_last_restart(golden_message):
    entry = container(
        state={"running": {}},
        lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        restartCount=2,
    )
    said = why([entry], phase=TRAINING)
    assert "restarted (2 times" in said
    golden_message(said)


def test_machines_that_wait_for_each_other_in_vain(golden_message):
    log = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    said = why([container(state={"terminated": {"exitCode": 1}})], log=log)
    assert "until NCCL gave up" in said and "`openshift.network`" in said
    golden_message(said)


WAITED = "[rank%d]:[E1] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"


def of_four(logs: dict[str, str], **entry) -> list[str]:
    """Reasons of a job of four machines with a GPU each, all of which have ended, by the log of
    each."""
    roles = (("master", 0), *(("worker", index) for index in range(3)))
    end = {"name": "pytorch", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}
    pods = [a_pod(role, index, containerStatuses=[end]) for role, index in roles]
    return reasons(
        JobState(TRAINING, job(), pods, [], None), lambda pod: logs[pod["metadata"]["name"]]
    )


def test_the_rank_that_came_late_is_found_on_the_logs_of_all_machines(golden_message):
    logs = {
        f"survival-worker-{rank - 1}" if rank else "survival-master-0": WAITED % (rank, rank)
        for rank in range(4)
    }
    logs["survival-worker-1"] = "Killed by nobody"
    said = of_four(logs)
    assert sum("Rank 2 came late or never: ranks 0, 1 and 3 waited" in line for line in said) == 3
    golden_message("\n".join(said))


def test_the_machine_that_failed_first_is_told_first():
    logs = {
        f"survival-worker-{rank - 1}" if rank else "survival-master-0": WAITED % (rank, rank)
        for rank in range(4)
    }
    logs["survival-worker-1"] = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    )
    said = of_four(logs)
    assert (
        said[0].startswith("Machine 2 (`survival-worker-1`)")
        and "memory is too small" in said[0]
        and len(said) == 4
    )


def test_gpu_memory_used_up_reads_as_on_this_machine(golden_message):
    said = why(
        [container(state={"terminated": {"exitCode": 1}})],
        log="torch.OutOfMemoryError: CUDA out of memory.",
    )
    assert "exit code 1" in said and "GPU's memory is too small" in said
    assert said.endswith(" 29.7 GiB for each GPU. (gpu-memory)")
    golden_message(said)


def test_another_error_says_nothing_of_the_plan():
    said = why(
        [container(state={"terminated": {"exitCode": 1}})], log="RuntimeError: something else"
    )
    assert "The log says: RuntimeError: something else" in said and "recipe plan" not in said


def test_a_worker_that_waits_for_the_master(golden_message):
    pod = a_pod(
        "worker", 1, initContainerStatuses=[{"name": "init-pytorch", "state": {"running": {}}}]
    )
    said = why([pod])
    assert "(`survival-worker-1`) is waiting for the master" in said
    golden_message(said, "it waits")
    missing = {
        "name": "init-pytorch",
        "image": "alpine:3.10",
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }
    said = why([a_pod("worker", 1, initContainerStatuses=[missing])])
    assert "`alpine:3.10`" in said and "cannot be pulled" in said
    golden_message(said, "it cannot wait")


@pytest.mark.parametrize(
    ("phase", "seconds", "words"),
    [
        ("Running", 10, ""),
        ("Running", 600, "waiting for the master, although its pod has started"),
        ("Pending", 600, "waiting for the master, whose pod has not started"),
    ],
)
def test_a_worker_waits_for_a_master_that_has_not_started_or_has_no_name_yet(phase, seconds, words):
    since = (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()
    init = [{"name": "init-pytorch", "state": {"running": {"startedAt": since}}}]
    said = why([a_pod(phase=phase), a_pod("worker", 0, initContainerStatuses=init)])
    assert words in said if words else said == ""


UNBOUND = "0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims."
PROVISIONED = "Waiting for a volume to be created either by the external provisioner 'nfs.csi.k8s.io' or manually"


@pytest.mark.parametrize(
    ("seconds", "reason", "is_calm"),
    [
        (5, None, True),
        (5, "ExternalProvisioning", True),
        (600, "ExternalProvisioning", False),
        (5, "ProvisioningFailed", False),
    ],
)
def test_claims_that_are_being_created_are_no_trouble_yet(seconds, reason, is_calm):
    """Seen at everybody's first `submit`."""
    pod = unscheduled(UNBOUND)
    pod["metadata"]["creationTimestamp"] = (
        datetime.now(UTC) - timedelta(seconds=seconds)
    ).isoformat()
    events = (
        [warning("PersistentVolumeClaim", "trained-models-pvc", reason, PROVISIONED)]
        if reason
        else []
    )
    said = why([pod], events)
    assert ("its claims are being created" in said) == is_calm
    assert ("ReadWriteMany" in said) == (not is_calm)


# A kubelet 1.32 with containerd: while it tries, and while it waits to try again.
UNAUTHORIZED = (
    'failed to pull and unpack image "registry/image:1": failed to resolve reference "registry/image:1": failed to '
    "authorize: failed to fetch anonymous token: unexpected status from GET request to https://registry/token: 401 Unauthorized"
)
TRYING = ("ErrImagePull", UNAUTHORIZED)
BACKING_OFF = (
    "ImagePullBackOff",
    f'Back-off pulling image "registry/image:1": ErrImagePull: {UNAUTHORIZED}',
)


def test_an_image_is_explained_once_in_both_of_the_kubelets_wordings():
    pods = [a_pod(), a_pod("worker", 0)]
    for pod, (reason, message) in zip(pods, (TRYING, BACKING_OFF), strict=True):
        pod["status"] |= waiting(reason, message)["status"]
    (line,) = why(pods).splitlines()
    assert line.startswith(
        "Machines 0 and 1: the image `registry/image:1` cannot be pulled: failed to pull"
    )
    assert "link a pull secret" in line


def test_a_kubelet_that_only_backs_off_is_explained_by_its_last_event():
    event = warning(
        "Pod",
        "survival-master-0",
        "Failed",
        f'Failed to pull image "registry/image:1": {UNAUTHORIZED}',
    )
    said = why([waiting("ImagePullBackOff", 'Back-off pulling image "registry/image:1"')], [event])
    assert "401 Unauthorized" in said and "link a pull secret" in said


def test_an_image_that_containerd_does_not_find():
    said = why(
        [
            waiting(
                "ErrImagePull",
                'failed to resolve reference "registry/image:1": registry/image:1: not found',
            )
        ]
    )
    assert "Check its name and its tag." in said


def cloning(state: dict) -> str:
    return why(
        [a_pod(initContainerStatuses=[{"name": podspec.CLONER, "image": "stock", "state": state}])]
    )


@pytest.mark.parametrize(
    "state", [{"running": {}}, {"terminated": {"exitCode": 0}}], ids=["at work", "done"]
)
def test_nothing_is_said_of_a_pod_that_clones_its_code(state):
    assert cloning(state) == ""


def test_a_pod_that_clones_its_code_does_not_wait_for_a_machine():
    init = [{"name": podspec.CLONER, "state": {"running": {}}}]
    creating = [{"name": "pytorch", "state": {"waiting": {"reason": "PodInitializing"}}}]
    pods = [a_pod(initContainerStatuses=init, containerStatuses=creating)]
    assert status._phase(job(), pods, None) == status.PULLING
    # A worker that is waiting for the master's pod does.
    init[0]["name"] = "init-pytorch"
    assert status._phase(job(), pods, None) == status.WAITING


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"waiting": {"reason": "ImagePullBackOff"}}, "`stock` cannot be pulled: ImagePullBackOff"),
        (
            {"terminated": {"exitCode": 128, "message": "Cloning\nfatal: unable to access\n"}},
            "fatal: unable to access. Check",
        ),
    ],
    ids=["no image", "no code"],
)
def test_a_pod_that_cannot_clone_its_code(state, words, golden_message):
    said = cloning(state)
    assert words in said and "gave up waiting" not in said
    golden_message(said)


def test_the_deadline():
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "DeadlineExceeded",
        "message": "was active longer than specified deadline",
    }
    assert "It was stopped at its deadline" in why(phase=FAILED, conditions=[condition])


def test_nothing_is_said_while_all_is_well():
    assert why([container(state={"running": {}})], phase=TRAINING) == ""


BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def written(*events: tuple[int, str, int]) -> str:
    """A log with events of training, each so many seconds after the container's start."""
    lines = [
        f'{(BEGUN + timedelta(seconds=at)).isoformat()[:19]}.000000001Z [recipe] {{"event": "{event}", "step": {step}, "steps": 300, "loss": 1.25}}\n'
        for at, event, step in events
    ]
    return "".join(lines)


@pytest.mark.parametrize(
    ("events", "now", "pace", "left", "silent"),
    [
        # The time that loading takes is no pace; neither is that of the first step, which compiles.
        (((90, "begin", 100), (130, "step", 101), (140, "step", 106)), 150, 2.0, 388.0, 10.0),
        (((90, "begin", 100), (130, "step", 110)), 130, 4.0, 760.0, 0.0),
        # Since the start where nothing else is known: lines without a difference in time.
        (((100, "begin", 100), (100, "step", 150)), 100, 2.0, 300.0, 0.0),
        # After a restart of training in the same log the steps of before say nothing.
        (
            ((10, "step", 200), (60, "begin", 100), (90, "step", 110), (120, "step", 120)),
            120,
            3.0,
            540.0,
            0.0,
        ),
        (((90, "begin", 100),), 100, None, None, None),
        ((), 100, None, None, None),
    ],
)
def test_the_time_left_follows_the_pace_between_steps(events, now, pace, left, silent):
    known = status.progress(
        f"2026 noise\n{written(*events)}cut [recipe] {{", BEGUN, BEGUN + timedelta(seconds=now)
    )
    assert (known.pace, known.seconds_left, known.silent) == (pace, left, silent)
    assert (known.latest or {}).get("step") == (events[-1][2] if events else None)


def test_a_step_that_is_overdue_is_said_with_what_to_do(golden_message):
    log = written((90, "begin", 0), (100, "step", 5), (110, "step", 10))
    for after, hangs in ((600, False), (2000, True)):
        known = status.progress(log, BEGUN, BEGUN + timedelta(seconds=110 + after))
        said = reasons(
            JobState(TRAINING, job(), [a_pod(phase="Running")], progress=known), lambda _pod: ""
        )
        assert bool(said) is hangs
    assert "Its last step was 33.3 min ago, and a step takes 2 s" in said[0]
    golden_message(said[0])


# What only the API on this machine can play.


@in_process
def test_why_says_what_stands_in_the_way_of_a_recipes_job(site, capsys):
    assert site.recipe("submit") == 0
    site.pods()
    capsys.readouterr()
    site.set_status(
        "Pod", "survival-master-0", waiting("ImagePullBackOff", "manifest unknown")["status"]
    )
    assert site.recipe("why") == 0
    said = capsys.readouterr().out
    assert "PyTorchJob `survival` in" in said and "cannot be pulled: manifest unknown" in said
    train_to(site, 50)
    assert site.recipe("why") == 0
    assert "No problem was found." in capsys.readouterr().out


def train_to(site, step: int, seconds: float = 60) -> None:
    """All pods run, and the master has come to a step of 100."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))
    for pod in site.pods():
        running = {
            "name": "pytorch",
            "restartCount": 0,
            "state": {"running": {"startedAt": started}},
        }
        site.set_status(
            "Pod", pod["metadata"]["name"], {"phase": "Running", "containerStatuses": [running]}
        )
    lines = [
        '[recipe] {"event": "begin", "step": 0, "steps": 100}',
        f'[recipe] {{"event": "step", "step": {step}, "steps": 100, "loss": 1.5}}',
    ]
    site.api.logs[("survival-master-0", "now")] = [(stamp(), line) for line in lines]


def finish(site, kind: str = "Succeeded") -> None:
    site.set_status(
        "PyTorchJob",
        "survival",
        {"conditions": [{"type": kind, "status": "True", "message": "done"}]},
    )


def looked(site) -> None:
    """Waits until somebody who follows has seen all there is, and shown it: then the look after
    that has begun."""
    begun, deadline = len(site.api.requests), time.monotonic() + 60
    while (
        sum(line.startswith("GET") and line.endswith("/pods") for line in site.api.requests[begun:])
        < 3
    ):
        assert time.monotonic() < deadline, site.api.requests[begun:]
        time.sleep(0.01)


@in_process
def test_following_shows_every_phase_and_survives_a_lost_connection(site, capsys):
    def play() -> None:
        while site.job() is None:
            time.sleep(0.05)
        looked(site)
        train_to(site, 50)
        looked(site)
        site.api.faults = 6
        looked(site)
        finish(site)

    player = threading.Thread(target=play)
    player.start()
    assert site.recipe("submit", "--follow") == 0
    player.join()
    said = capsys.readouterr().out
    order = [
        "survival: waiting for machines, 0 of 4 machines run",
        "survival: step 50 of 100, loss 1.500, about 1 min left",
        "cannot be reached: it does not answer. The job continues; trying again.",
        "survival: finished",
    ]
    places = [said.find(part) for part in order]
    assert -1 not in places and places == sorted(places), said


@in_process
def test_a_job_that_ended_early_says_so_and_which_model_is_kept(site, capsys):
    patient = ("--set", "train.early_stopping.patience=2")
    assert site.recipe("submit", *patient) == 0
    train_to(site, 60)
    said = '[recipe] {"event": "early_stop", "patience": 2, "step": 60, "steps": 100, "kept": 40}'
    site.api.logs[("survival-master-0", "now")].append((stamp(), said))
    finish(site)
    capsys.readouterr()
    assert site.recipe("status", *patient) == 0
    told = capsys.readouterr().out
    assert (
        "train: finished; ended early, after step 60 of 100" in told
        and "from step 40, is saved" in told
    )
    del site.api.logs[("survival-master-0", "now")][-1]
    assert site.recipe("status", *patient) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "train: finished (sent by ann)"


def busy(site, at: str = "") -> None:
    """The cluster is busy for the next requests, whose path holds `at`; waits until it is not any
    more."""
    site.api.busy_at, site.api.busy = at, [429, 500, 502, 503, 504]
    deadline = time.monotonic() + 60
    while site.api.busy:
        assert time.monotonic() < deadline, f"nobody asks again: {site.api.requests[-5:]}"
        time.sleep(0.01)


@in_process
def test_following_survives_a_busy_cluster(site, capsys):
    def play() -> None:
        while site.job() is None:
            time.sleep(0.05)
        looked(site)
        busy(site)
        finish(site)

    player = threading.Thread(target=play)
    player.start()
    assert site.recipe("submit", "--follow") == 0
    player.join()
    said = capsys.readouterr().out
    for code_of_http in (429, 500, 502, 503, 504):
        assert f"The cluster answered {code_of_http} to " in said
    assert "The job continues; trying again." in said and said.rstrip().endswith(
        "survival: finished"
    )


@pytest.mark.parametrize(
    ("status", "message", "passes"),
    [
        (429, "too many requests", True),
        (500, "etcdserver: request timed out", True),
        (503, "shutting down", True),
        (500, "failed to create typed patch object: .spec.x: expected string", False),
        (422, "invalid", False),
        (403, "forbidden", False),
        (401, "Unauthorized", False),
    ],
)
def test_what_may_pass_is_tried_again_and_nothing_else(status, message, passes, monkeypatch):
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 0.05)
    stop, asked = Refused(status, message, "x").stop("Job", "n", "j"), []

    def ask():
        asked.append(1)
        raise stop

    assert isinstance(stop, TryAgain) is passes
    with pytest.raises(type(stop)):
        patiently(ask)
    assert (len(asked) > 1) is passes


@in_process
def test_following_a_job_that_fails_ends_with_its_reason(site, capsys):
    def play() -> None:
        while site.job() is None:
            time.sleep(0.05)
        pod = site.pods()[1]["metadata"]["name"]
        ended = {"name": "pytorch", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}
        site.api.logs[(pod, "now")] = [
            (stamp(), "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
        ]
        site.set_status("Pod", pod, {"phase": "Failed", "containerStatuses": [ended]})
        finish(site, "Failed")

    player = threading.Thread(target=play)
    player.start()
    assert site.recipe("submit", "--follow") == 1
    player.join()
    printed = capsys.readouterr()
    said = printed.err
    assert (
        "PyTorchJob `survival` failed." in said
        and "`recipe logs RECIPE --stage train --node 1`" in said
    )
    assert printed.out.splitlines()[-1] == "survival: failed", (
        "the error says why, and nothing says it twice"
    )
    assert (
        "(`survival-worker-0`) ended with exit code 1" in said
        and "GPU's memory is too small" in said
    )


@in_process
def test_logs_show_the_life_before_a_restart_too(site, capsys, golden_message):
    assert site.recipe("submit") == 0
    train_to(site, 5)
    again = {"name": "pytorch", "restartCount": 1, "state": {"running": {}}}
    site.set_status("Pod", "survival-master-0", {"containerStatuses": [again]})
    site.api.logs[("survival-master-0", "previous")] = [(stamp(), "the first life")]
    capsys.readouterr()
    assert site.recipe("logs") == 0
    lines = capsys.readouterr().out.splitlines()[1:]  # the first one says what --set changed
    assert lines[0] == "the first life" and "`survival-master-0`" in lines[1]
    golden_message(lines[1])
    assert '"step": 5' in lines[-1]


@in_process
def test_following_a_log_says_every_line_once_over_restart_and_lost_connection(site, capsys):
    assert site.recipe("submit") == 0
    train_to(site, 5)
    capsys.readouterr()
    log = site.api.logs[("survival-master-0", "now")] = []

    def play() -> None:
        for number in range(30):
            log.append((stamp(), f"line {number}"))
            if number == 10:
                site.api.faults = 4
            if number == 15:
                busy(site)
            if number == 16:
                busy(site, "/log")
            if number == 20:
                # A new container begins a new log, and the server keeps the one before.
                site.api.logs[("survival-master-0", "previous")] = list(log)
                again = {"name": "pytorch", "restartCount": 1, "state": {"running": {}}}
                log.clear()
                site.set_status("Pod", "survival-master-0", {"containerStatuses": [again]})
            time.sleep(0.05)
        finish(site)

    player = threading.Thread(target=play)
    player.start()
    assert site.recipe("logs", "-f") == 0
    player.join()
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("line")]
    assert said == [f"line {number}" for number in range(30)]


@in_process
def test_following_a_log_ends_where_waiting_would_not_help(site, capsys, monkeypatch):
    assert site.recipe("submit") == 0
    train_to(site, 5)
    # So that this test ends, whatever happens.
    end = threading.Timer(60, finish, (site,))
    end.start()
    capsys.readouterr()
    assert site.recipe("logs", "-f", "--node", "7") == 1
    said = capsys.readouterr().err
    assert "PyTorchJob `survival` has no machine 7." in said and "Its machines are 0 to 3." in said
    allowed = [rule for rule in api.ROLES["recipe-user"] if "pods/log" not in rule["resources"]]
    monkeypatch.setitem(api.ROLES, "recipe-user", allowed)
    assert site.recipe("logs", "-f") == 1
    said = capsys.readouterr().err
    assert f"You may not do this in the namespace `{site.namespace}`: pods/log is forbidden" in said
    assert status.ended(site.job()) is None, "it has waited for the job's end"
    end.cancel()


@in_process
def test_following_a_log_waits_for_a_pod_that_is_not_there_yet_and_for_a_busy_cluster(
    site, golden_message
):
    assert site.recipe("submit") == 0
    train_to(site, 5)
    site.api.logs[("survival-worker-2", "now")] = [(stamp(), "a line")]
    pod = site.api.objects.pop(("pods", site.namespace, "survival-worker-2"))
    asked, said = [], []

    def find():
        asked.append(1)
        if len(asked) == 2:
            raise Refused(503, "etcd changes its leader", "x").stop(
                "PyTorchJob", site.namespace, "survival"
            )
        if len(asked) == 3:
            site.api.objects["pods", site.namespace, "survival-worker-2"] = pod
        if len(asked) == 4:
            finish(site)
        return site.job()

    watch.follow_log(site.cluster, find, 3, said.append)
    assert (said[2:], len(asked)) == (["a line"], 4)
    golden_message("\n".join(said[:2]))


def test_machines_are_those_that_a_job_is_for():
    plan = planned(load(SURVIVAL)[0], "pytorchjob")
    made = [render_job(plan, plan.stages[-1], target) for target in jobs.KIND]
    assert [(one.kind, jobs.machines(one.job)) for one in made] == [
        ("PyTorchJob", 4),
        ("TrainJob", 4),
    ]
    assert jobs.machines({"kind": "Job", "spec": {"template": {}}}) == 1


@in_process
def test_a_pod_made_again_is_the_one_that_is_watched(site, capsys):
    """A plain Job leaves its failed pods, and names them as it likes; an earlier job's may still be
    ending."""
    data = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "survival-data", "namespace": site.namespace},
    }
    template = job()["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    data["spec"] = {"template": {"spec": template["spec"] | {"restartPolicy": "Never"}}}
    uid = site.cluster.apply(data)["metadata"]["uid"]
    entry = {"name": "prepare", "restartCount": 0}
    ended = {"terminated": {"exitCode": 1, "message": "no network"}}
    for name, owner, phase, state in (
        ("c-of-before", "another", "Running", {"running": {}}),
        ("a-failed", uid, "Failed", ended),
        ("b-now", uid, "Running", {"running": {}}),
    ):
        owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "survival-data", "uid": owner}]
        meta = {"name": name, "namespace": site.namespace, "labels": {"job-name": "survival-data"}}
        spec = template["spec"]
        site.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": meta | {"ownerReferences": owners},
                "spec": spec,
            }
        )
        site.set_status(
            "Pod", name, {"phase": phase, "containerStatuses": [entry | {"state": state}]}
        )
    there = site.job("Job", "survival-data")
    assert watch.pod_of(site.cluster, there, 0)["metadata"]["name"] == "b-now"
    state = status.read_state(site.cluster, there)
    assert watch.describe_state(state).endswith(", 1 of 1 machines run")
    (said,) = reasons(state, lambda _pod: "")
    assert "(`a-failed`, since replaced) ended. It reported: no network" in said


def record_of(path, *options: str) -> bytes:
    """What the last stage's pod has put on record in the end."""
    recipe, _, _ = load(path, from_options(options))
    stage = translate(recipe, kubernetes.place(recipe)).stages[-1]
    return json.dumps(
        {"stage": stage.name, "status": "finished", "keys": dict(stage.keys), "inputs": {}}
    ).encode()


@pytest.fixture
def results(site, tmp_path):
    """A run on the claim behind the pods' mount: a model large enough to be cut, and what does not
    come along."""
    claim = tmp_path / "claim"
    run = claim / "survival"
    files = {
        "best_model/model.safetensors": bytes(range(256)) * 4096 * 3,
        "training_summary.json": b"{}",
        "stage.json": record_of(SURVIVAL),
        "run.json": b'{"id": "0123", "kind": "run", "status": "running", "recipe": "survival"}',
        "demo_outputs/answers with blanks.json": b"[]",
        "checkpoints/checkpoint-9/optimizer.pt": b"large",
        ".best_model.partial/half": b"half",
    }
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    site.api.mounts["/shared/models"] = claim
    for name in ("trained-models-pvc", "workspace-pvc"):
        site.claim(name)
    return files


def helpers(site) -> list:
    return site.cluster.list("Pod", site.namespace, {"recipe-runner/part": "fetch"})


@in_process
def test_results_come_home_and_the_helper_goes_away(site, results, tmp_path, capsys):
    assert site.recipe("fetch") == 0
    home = tmp_path / "runs" / "survival"
    for name in (
        "best_model/model.safetensors",
        "training_summary.json",
        "demo_outputs/answers with blanks.json",
    ):
        assert (home / name).read_bytes() == results[name], name
    assert not (home / "checkpoints").exists() and not (home / ".best_model.partial").exists()
    assert helpers(site) == []
    state = json.loads((home / "run.json").read_text())
    assert (state["status"], state["id"], state["origin"]) == ("finished", "0123", "cluster")
    assert "4 files fetched" in capsys.readouterr().out
    assert site.recipe("fetch") == 0
    assert "0 files fetched" in capsys.readouterr().out
    assert site.recipe("fetch", "--all") == 0
    assert (home / "checkpoints/checkpoint-9/optimizer.pt").read_bytes() == b"large"


@in_process
def test_results_of_the_recipe_as_it_was_are_not_taken_for_those_of_now(
    site, results, tmp_path, capsys, golden_message
):
    changed = ("--set", "train.epochs=2")
    assert site.recipe("fetch", *changed) == 0
    (line,) = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "an older version of the recipe" in line
    ]
    golden_message(line)
    run = tmp_path / "runs" / "survival" / "run.json"
    assert json.loads(run.read_text())["status"] == "running"
    # The new run is over, and has taken their place.
    (tmp_path / "claim" / "survival" / "stage.json").write_bytes(
        record_of(SURVIVAL, "train.epochs=2")
    )
    assert site.recipe("fetch", *changed) == 0
    assert "as it was before" not in capsys.readouterr().out
    assert json.loads(run.read_text())["status"] == "finished"


@in_process
def test_a_fetch_of_another_run_leaves_nothing_of_the_one_before(site, results, tmp_path):
    """Transformers would load a whole model that lies beside the shards of a newer one."""
    claim, home = tmp_path / "claim" / "survival", tmp_path / "runs" / "survival"
    (claim / "lora_adapter").mkdir()
    (claim / "lora_adapter" / "adapter_model.safetensors").write_bytes(b"of the first run")
    assert site.recipe("fetch") == 0
    made_here = home / "best_model" / "merged_here.json"
    made_here.write_text("{}")
    # The same run again: what was made from it here stays.
    assert site.recipe("fetch") == 0 and made_here.is_file()

    # Another run has begun, and has nothing yet.
    shutil.rmtree(claim / "lora_adapter")
    shutil.rmtree(claim / "demo_outputs")
    (claim / "best_model" / "model.safetensors").rename(claim / "kept")
    (claim / "stage.json").write_bytes(b'{"stage": "train", "status": "running"}')
    assert site.recipe("fetch") == 0
    assert (home / "best_model" / "model.safetensors").is_file()

    (claim / "stage.json").write_bytes(record_of(SURVIVAL, "train.epochs=2"))
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (claim / "best_model" / name).write_bytes(b"of the second run")
    assert site.recipe("fetch") == 0
    assert {path.name for path in (home / "best_model").iterdir()} == {
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
    }
    assert not (home / "lora_adapter" / "adapter_model.safetensors").exists()
    assert (home / "training_summary.json").is_file()


@in_process
def test_a_fetch_does_not_pour_into_the_run_of_another_recipe(site, results, tmp_path, capsys):
    home = tmp_path / "home"
    home.mkdir()
    (home / "run.json").write_text(
        '{"status": "finished", "kind": "run", "origin": "cluster", "recipe": "lyrics"}'
    )
    assert site.recipe("fetch", "--to", str(home)) == 1
    said = capsys.readouterr().err
    assert "contains a run of the recipe `lyrics`." in said and "`--to`" in said
    assert [path.name for path in home.iterdir()] == ["run.json"]


@in_process
def test_a_fetched_adapter_names_its_base_as_it_is_called_away_from_the_cluster(
    site, tmp_path, capsys
):
    recipe, _, _ = load(ROOT / "recipes" / "lyrics.yaml")
    place = kubernetes.place(recipe)
    run = tmp_path / "claim" / "lyrics"
    facts = {"base_model_name_or_path": place.model_dir, "revision": None, "r": 16}
    files = {
        "lora_adapter/adapter_config.json": facts,
        "lora_adapter/adapter_model.safetensors": {},
        "best_model/model.safetensors": {},
        "demo.json": {"base_model": place.model_dir, "revision": None},
        "stage.json": json.loads(record_of(recipe.document.file)),
    }
    for name, content in files.items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text(json.dumps(content))
    site.api.mounts["/shared/models"] = tmp_path / "claim"
    for claim in recipe.openshift.claims:
        site.claim(claim.name)
    adapter = tmp_path / "runs" / "lyrics" / "lora_adapter"
    for came in (5, 2):
        # The second time what was renamed here comes again, and is renamed again.
        assert site.recipe("fetch", path="recipes/lyrics.yaml") == 0
        assert f"{came} files fetched" in capsys.readouterr().out
        assert merging.base_of(adapter) == ("microsoft/Phi-4-mini-instruct", "main")
        assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 16
        demo = json.loads((adapter.parent / "demo.json").read_text())
        assert demo == {"base_model": "microsoft/Phi-4-mini-instruct", "revision": "main"}
    # A base that lies somewhere else keeps its name.
    (run / "lora_adapter/adapter_config.json").write_text(
        json.dumps(facts | {"base_model_name_or_path": "/mine"})
    )
    assert site.recipe("fetch", path="recipes/lyrics.yaml") == 0
    assert merging.base_of(adapter) == ("/mine", None)


@in_process
def test_a_transfer_that_is_cut_goes_on_where_it_was(site, results, tmp_path):
    site.api.cut_after = 1_000_000
    assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 0
    model = (tmp_path / "home" / "best_model" / "model.safetensors").read_bytes()
    assert (
        hashlib.sha256(model).digest()
        == hashlib.sha256(results["best_model/model.safetensors"]).digest()
    )
    assert site.api.cut_after is None, "nothing was cut"
    asked = [line for line in site.api.requests if "/file/best_model" in line]
    assert len(asked) == 2


@in_process
def test_a_file_with_a_long_name_comes_home(site, results, tmp_path):
    """While it is on its way it has a longer one, and a disk takes 255 bytes."""
    name = "x" * 240 + ".json"
    (tmp_path / "claim" / "survival" / name).write_text("{}")
    assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 0
    assert (tmp_path / "home" / name).read_text() == "{}"


@in_process
@pytest.mark.parametrize(
    "at", ["/pods/survival-fetch", "/list", "/hash/best_model", "/file/best_model"]
)
def test_a_fetch_survives_a_busy_cluster(site, results, tmp_path, at):
    site.api.busy_at, site.api.busy = at, [429, 500, 502, 503, 504]
    assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 0
    assert site.api.busy == [], "nobody has asked for it"
    assert (tmp_path / "home/best_model/model.safetensors").read_bytes() == results[
        "best_model/model.safetensors"
    ]
    assert helpers(site) == []


@in_process
def test_a_fetch_survives_a_busy_cluster_in_the_middle_of_a_file(
    site, results, tmp_path, monkeypatch
):
    site.api.cut_after, site.api.busy_at, go_on = 2_000_000, "/file/best_model", transfer._continue
    sizes = []

    def then_busy(share, name, half, size):
        go_on(share, name, half, size)
        if "best_model" in name:
            if not sizes:
                site.api.busy = [429, 503]
            sizes.append(half.stat().st_size)

    monkeypatch.setattr(transfer, "_continue", then_busy)
    assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 0
    whole = results["best_model/model.safetensors"]
    here = sizes[0]
    assert 0 < here < len(whole) and sizes == [here, here, here, len(whole)]
    assert (tmp_path / "home/best_model/model.safetensors").read_bytes() == whole


@in_process
def test_what_has_come_of_a_file_stays_where_the_cluster_stays_busy(
    site, results, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 0.5)
    site.api.cut_after, site.api.busy_at, go_on = 2_000_000, "/file/best_model", transfer._continue

    def then_busy(*arguments):
        go_on(*arguments)
        site.api.busy = [503] * 5 if site.api.cut_after is None else []

    monkeypatch.setattr(transfer, "_continue", then_busy)
    assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 1
    assert "was downloaded only in part." in capsys.readouterr().err
    (partial,) = (tmp_path / "home/best_model").iterdir()
    assert partial.stat().st_size > 0


def test_hashing_a_large_file_shows_signs_of_life(tmp_path):
    from runner.parts.openshift.file_server import CHUNK, digest

    (tmp_path / "large").write_bytes(b"x" * CHUNK * 257)
    signs = []
    assert (
        digest(tmp_path / "large", lambda: signs.append(1))
        == hashlib.sha256(b"x" * CHUNK * 257).hexdigest()
    )
    assert len(signs) == 2


@in_process
def test_a_run_without_results_is_said_so(site, tmp_path, capsys):
    assert site.recipe("fetch") == 1
    assert "has no claim `trained-models-pvc`" in capsys.readouterr().err, (
        "no pod waits for it ten minutes"
    )
    assert site.recipe("submit") == 0
    site.api.mounts["/shared/models"] = tmp_path / "empty"
    assert site.recipe("fetch") == 1
    assert "The claim cannot be read: There is no folder" in capsys.readouterr().err
    assert helpers(site) == []


def test_where_the_code_comes_by_git_the_helper_has_it_too():
    recipe, _, _ = load(ROOT / "recipes" / "resnet.yaml", ())
    plan = translate(recipe, kubernetes.place(recipe))
    pod = helper_pod.pod(plan, plan.stages[-1], "word", "/folder")
    assert core_refusals(pod) == []
    (init,), (box,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert (init["name"], init["image"]) == (podspec.CLONER, box["image"])
    assert {"name": "PYTHONPATH", "value": podspec.CODE} in box["env"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for one in (init, box) for mount in one["volumeMounts"]} == volumes
    assert all(mount.get("readOnly") for mount in box["volumeMounts"] if mount["name"] != "tmp")


@in_process
def test_a_fetch_that_is_interrupted_leaves_no_helper(site, results, tmp_path, monkeypatch):
    def interrupted(*_arguments):
        assert len(helpers(site)) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(transfer, "_fetch_file", interrupted)
    assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 130
    assert helpers(site) == []


@in_process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_fetch_that_is_ended_from_outside_leaves_no_helper(
    site, results, tmp_path, monkeypatch, number
):
    def ended(*_arguments):
        assert len(helpers(site)) == 1
        os.kill(os.getpid(), number)
        time.sleep(5)

    # So that a signal that nobody takes care of ends this test, and not all tests.
    monkeypatch.setattr(transfer, "_fetch_file", ended)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(helper_pod.signal, "getsignal", lambda _number: signal.SIG_DFL)
        before = signal.signal(number, lambda *_: pytest.fail("nobody has taken care of it"))
        try:
            assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 130
        finally:
            signal.signal(number, before)
    assert helpers(site) == []


@in_process
def test_two_people_do_not_end_each_others_fetch(site, results, tmp_path):
    recipe, _, _ = load(SURVIVAL, from_options((f"openshift.namespace={site.namespace}",)))
    plan = translate(recipe, kubernetes.place(recipe))
    with helper_pod.open_claim(
        site.cluster, plan, plan.stages[-1], lambda _line: None, plan.place.run_dir
    ):
        uid = helpers(site)[0]["metadata"]["uid"]
        assert site.recipe("fetch", "--to", str(tmp_path / "home")) == 0
        assert [pod["metadata"]["uid"] for pod in helpers(site)] == [uid]


@in_process
def test_a_run_of_this_machine_is_not_overwritten(site, results, tmp_path, capsys):
    home = tmp_path / "runs" / "survival"
    home.mkdir(parents=True)
    (home / "run.json").write_text('{"status": "running", "kind": "run"}')
    assert site.recipe("fetch") == 1
    assert "contains a run of this machine." in capsys.readouterr().err


@in_process
def test_only_who_knows_the_word_sees_the_files(site, results):
    recipe, _, _ = load(SURVIVAL, from_options((f"openshift.namespace={site.namespace}",)))
    plan = translate(recipe, kubernetes.place(recipe))
    with helper_pod.open_claim(
        site.cluster, plan, plan.stages[-1], lambda _line: None, plan.place.run_dir
    ):
        (port,) = site.api.ports.values()
        for path in ("/list", "/wrong/list", "/wrong/file/training_summary.json"):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}{path}")


@in_process
def test_tensorboard_is_brought_to_this_machine(site):
    class Board(BaseHTTPRequestHandler):
        def do_GET(self):
            body = b"curves " * 20_000
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    board = ThreadingHTTPServer(("127.0.0.1", 0), Board)
    threading.Thread(target=board.serve_forever, daemon=True).start()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "tensorboard-1",
            "namespace": site.namespace,
            "labels": client.TENSORBOARD,
        },
        "spec": {"containers": [{"name": "tensorboard", "image": "x"}]},
    }
    site.cluster.create(pod)
    site.set_status("Pod", "tensorboard-1", {"phase": "Running"})
    site.api.ports[("tensorboard-1", 6006)] = board.server_address[1]
    ready = threading.Event()
    found: list[int] = []

    def listens(port: int) -> None:
        found.append(port)
        ready.set()

    name = client.tensorboard(site.cluster, site.namespace, "trained-models-pvc")
    threading.Thread(
        target=client.forward,
        args=(site.cluster, site.namespace, lambda: name, 6006, 0, listens),
        daemon=True,
    ).start()
    assert ready.wait(10)
    with urllib.request.urlopen(f"http://127.0.0.1:{found[0]}/", timeout=20) as page:
        assert page.read() == b"curves " * 20_000
    board.shutdown()


@in_process
def test_without_tensorboard_the_remedy_is_named(site, capsys):
    assert site.recipe("open", "--no-browser") == 1
    said = capsys.readouterr().err
    assert (
        "No TensorBoard for the claim `trained-models-pvc` runs in" in said
        and "recipe site" in said
    )


@in_process
def test_without_tensorboard_over_a_claim_for_one_machine_its_start_and_end_are_named(
    site, capsys, golden_message
):
    site.claim("trained-models-pvc", "ReadWriteOnce")
    assert site.recipe("open", "--no-browser") == 1
    golden_message(capsys.readouterr().err)


@in_process
def test_of_several_tensorboards_the_one_over_the_recipes_claim_is_taken(site):
    for name, labels in (
        ("other", {client.INSTANCE: "other-pvc"}),
        ("ours", {client.INSTANCE: "trained-models-pvc"}),
    ):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": site.namespace,
                "labels": client.TENSORBOARD | labels,
            },
            "spec": {"containers": [{"name": "tensorboard", "image": "x"}]},
        }
        site.cluster.create(pod)
        site.set_status("Pod", name, {"phase": "Running"})
    assert client.tensorboard(site.cluster, site.namespace, "trained-models-pvc") == "ours"
    assert client.tensorboard(site.cluster, site.namespace, "other-pvc") == "other"


@in_process
def test_a_local_port_in_use_is_named(site, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        from runner.tools.problem import Stop

        with pytest.raises(Stop, match="is in use"):
            client.forward(
                site.cluster, site.namespace, "p", 6006, taken.getsockname()[1], lambda _port: None
            )


PREPARED = ("--set", "openshift.data_dir=/shared/models/data/survival")


def job_of_data(site, ends: str, condition: dict | None = None) -> threading.Thread:
    """Ends the data stage's Job so, once it is there; `ends` as Kubernetes says it."""

    def play() -> None:
        while site.job("Job", "survival-data") is None:
            time.sleep(0.05)
        time.sleep(0.4)
        assert site.job() is None, "the training job was sent before the data was ready"
        if ends == "Failed":
            labels = {jobs.POD_LABEL["Job"]: "survival-data"}
            site.pod(
                "survival-data-abcde", site.job("Job", "survival-data"), labels, phase="Failed"
            )
        conditions = {"conditions": [{"type": ends, "status": "True", **(condition or {})}]}
        site.set_status("Job", "survival-data", conditions)

    player = threading.Thread(target=play)
    player.start()
    return player


@in_process
def test_preparing_comes_before_any_gpu_is_asked_for(site, capsys):
    player = job_of_data(site, "Complete")
    assert site.recipe("submit", *PREPARED) == 0
    player.join()
    assert site.job() is not None
    said = capsys.readouterr().out
    order = ["Job `survival-data`", "waiting for machines, no machine yet", "PyTorchJob `survival`"]
    assert [said.index(part) for part in order] == sorted(said.index(part) for part in order)
    before = len(site.api.requests)
    assert site.recipe("submit", *PREPARED) == 0
    assert not [
        line
        for line in site.api.requests[before:]
        if line.startswith("PATCH") and "dryRun" not in line
    ]
    capsys.readouterr()
    assert site.recipe("status", *PREPARED) == 0
    assert [line.partition(",")[0] for line in capsys.readouterr().out.splitlines()[-2:]] == [
        "data: finished (sent by ann)",
        "train: waiting for machines",
    ]


@in_process
def test_waiting_for_the_data_stage_survives_a_busy_cluster(site, capsys):
    def play() -> None:
        while site.job("Job", "survival-data") is None:
            time.sleep(0.05)
        looked(site)
        busy(site)
        site.set_status(
            "Job", "survival-data", {"conditions": [{"type": "Complete", "status": "True"}]}
        )

    player = threading.Thread(target=play)
    player.start()
    assert site.recipe("submit", *PREPARED) == 0
    player.join()
    assert site.job() is not None
    assert "The cluster answered 503 to " in capsys.readouterr().out


@in_process
def test_what_comes_after_a_wait_survives_a_busy_cluster(site, monkeypatch):
    """It was waited for perhaps for hours: one busy answer must not end the command then."""
    waits = submit.follow

    def then_busy(*arguments):
        state = waits(*arguments)
        site.api.busy = [503, 429]
        return state

    monkeypatch.setattr(submit, "follow", then_busy)
    player = job_of_data(site, "Complete")
    assert site.recipe("submit", *PREPARED) == 0
    player.join()
    assert site.job() is not None and site.api.busy == []


@in_process
def test_a_data_stage_that_no_longer_holds_is_sent_again(site, capsys):
    player = job_of_data(site, "Complete")
    assert site.recipe("submit", *PREPARED) == 0
    player.join()
    uid = site.job("Job", "survival-data")["metadata"]["uid"]
    finish(site)
    changed = ("--set", "model.sequence_len=512")
    assert site.recipe("submit", *PREPARED, *changed, "--stage", "data") == 0
    assert "the old Job `survival-data`: deleted" in capsys.readouterr().out
    assert site.job("Job", "survival-data")["metadata"]["uid"] != uid
    # One that is at work is ended only after a yes, and `stop` ends it.
    other = ("--set", "model.sequence_len=256")
    assert site.recipe("submit", *PREPARED, *other) == 1
    assert "Job `survival-data` is running" in capsys.readouterr().err
    assert site.recipe("stop", *PREPARED, *other) == 0
    assert site.job("Job", "survival-data") is None and site.job() is not None


@in_process
def test_preparing_that_fails_sends_no_training(site, capsys):
    reason = {
        "reason": "BackoffLimitExceeded",
        "message": "Job has reached the specified backoff limit",
    }
    player = job_of_data(site, "Failed", reason)
    assert site.recipe("submit", *PREPARED) == 1
    player.join()
    said = capsys.readouterr().err
    assert "Job `survival-data` failed." in said and "`recipe logs RECIPE --stage data`" in said
    assert site.job() is None


@in_process
def test_status_names_the_command_that_comes_next(site, capsys):
    def following() -> str:
        assert site.recipe("status") == 0
        line = capsys.readouterr().err.splitlines()[-1].removeprefix("Next: recipe ")
        return line.replace(
            f" {shlex.quote(str(SURVIVAL))} --set openshift.namespace={site.namespace}", ""
        )

    assert following() == "submit"
    assert site.recipe("submit") == 0
    capsys.readouterr()
    assert following() == "logs -f"
    finish(site)
    assert following() == "fetch"
    site.set_status(
        "PyTorchJob", "survival", {"conditions": [{"type": "Failed", "status": "True"}]}
    )
    assert following() == "why"
