"""A PyTorchJob's pods as processes of this machine: the manifest's own command and environment, the
operator's beside them, mounts as folders, and the operator's restarts.

The GPUs that a pod has booked are pretended: its processes are shown as many, under names that no
driver knows, so that all is reckoned on the CPU on every machine. Every Python in a pod notes which
of them it sees.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from runner.parts.jobs import training_metrics
from runner.run.launch import WITHOUT_GPU
from runner.tools.run_files import SEAL_KEY
from tests.conftest import PROCESSOR, ROOT
from tests.parts.openshift.api import free_port

SEES = "CUDA_VISIBLE_DEVICES"
# Training on the CPU, and offline: what pods need lies on the claim. Which GPUs it sees is the
# pod's own business.
ALONE = (
    {name: value for name, value in WITHOUT_GPU.items() if name != SEES}
    | {"HF_HUB_OFFLINE": "1"}
    | PROCESSOR
)
# First on a pod's search path; its `sitecustomize` notes every Python that starts, in a folder
# beside the pod's log.
IN_PODS, PROCESSES = Path(__file__).resolve().parent / "in_pods", "processes"


@dataclass
class Pod:
    """name: as the operator gives it; env, command: with mounts mapped; gpus: that it has booked;
    restarts: so far; codes: how its lives ended."""

    name: str
    command: list[str]
    env: dict[str, str]
    log: Path
    gpus: int
    process: subprocess.Popen | None = None
    restarts: int = 0
    codes: list[int] = field(default_factory=list)

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                env=self.env,
                cwd=self.log.parent,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self) -> None:
        """As a machine that goes away: every process of the pod, at once. torchrun's own are in
        sessions of their own."""
        first = psutil.Process(self.process.pid)
        for process in (*first.children(recursive=True), first):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def end(self) -> None:
        """As a cluster that wants the machine back: SIGTERM to the first process, and nothing to
        all others."""
        self.process.send_signal(signal.SIGTERM)

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def pods(job: dict[str, Any], mounts: dict[str, Path], folder: Path) -> list[Pod]:
    """One Pod for each replica that the job asks for, the master first."""
    replicas = job["spec"]["pytorchReplicaSpecs"]
    nodes = sum(replica["replicas"] for replica in replicas.values())
    port, made = free_port(), []
    for role, replica in sorted(replicas.items()):
        for index in range(replica["replicas"]):
            rank = 0 if role == "Master" else index + 1
            name = f"{job['metadata']['name']}-{role.lower()}-{index}"
            (folder / name).mkdir(parents=True)
            here = mounts | {"/tmp": folder / name}
            (container,) = replica["template"]["spec"]["containers"]
            env = environment(container, here, folder / name)
            # The pods share one machine here, and so its ports.
            env |= {
                name: str(free_port())
                for name in (training_metrics.METRICS_PORT, training_metrics.PROGRESS_PORT)
            }
            env |= operators(job, rank, nodes, port)
            command = [mapped(part, here) for part in container["command"]]
            made.append(Pod(name, command, env, folder / name / "pod.log", booked(container)))
    return made


def indexed(job: dict[str, Any], mounts: dict[str, Path], folder: Path) -> list[Pod]:
    """One Pod for each index of an indexed Job, in order."""
    assert (
        job["spec"]["completionMode"] == "Indexed"
        and job["spec"]["parallelism"] == job["spec"]["completions"]
    )
    (container,) = job["spec"]["template"]["spec"]["containers"]
    made = []
    for index in range(job["spec"]["completions"]):
        name = f"{job['metadata']['name']}-{index}"
        (folder / name).mkdir(parents=True)
        here = mounts | {"/tmp": folder / name}
        env = environment(container, here, folder / name) | {"JOB_COMPLETION_INDEX": str(index)}
        command = [mapped(part, here) for part in container["command"]]
        made.append(Pod(name, command, env, folder / name / "pod.log", booked(container)))
    return made


def once(job: dict[str, Any], mounts: dict[str, Path], folder: Path) -> subprocess.CompletedProcess:
    """The pod of a plain Job, run to its end: the manifest's own command and environment, mounts as
    folders. What its processes saw is asked of `folder`."""
    (container,) = job["spec"]["template"]["spec"]["containers"]
    folder.mkdir(parents=True)
    here = mounts | {"/tmp": folder}
    command = [mapped(part, here) for part in container["command"]]
    env = environment(container, here, folder)
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)


def booked(container: dict[str, Any]) -> int:
    """The GPUs that a container asks for."""
    return int(container["resources"]["limits"].get("nvidia.com/gpu", 0))


def environment(container: dict[str, Any], mounts: dict[str, Path], folder: Path) -> dict[str, str]:
    """The manifest's environment, and what an image and a machine have around it; folder: the pod's
    own."""
    (folder / PROCESSES).mkdir()
    gpus = ",".join(f"GPU-pretended-{number}" for number in range(booked(container)))
    own = {
        entry["name"]: mapped(entry["value"], mounts)
        for entry in container["env"]
        if "value" in entry
    }
    # As a Secret of an earlier release has it, whose namespace goes on with the own key of whoever
    # sent first.
    own |= {
        entry["name"]: os.environ[SEAL_KEY]
        for entry in container["env"]
        if entry["name"] == SEAL_KEY
    }
    return (
        {SEES: gpus}
        | own
        | ALONE
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{IN_PODS}:{ROOT}",
            "RECIPE_TEST_PROCESSES": str(folder / PROCESSES),
        }
    )


def processes(folder: Path) -> dict[str, str | None]:
    """The Pythons that have started in the pod of this folder, in order: their command, and the
    GPUs that they see."""
    notes = [json.loads(file.read_text("utf-8")) for file in sorted((folder / PROCESSES).iterdir())]
    return {
        f"{number} {' '.join(note['command'])}": note["cuda_visible_devices"]
        for number, note in enumerate(notes)
    }


def blind(folder: Path) -> list[str]:
    """The commands of those that see no GPU; of a pod that has booked one there should be none."""
    seen = processes(folder)
    assert seen, f"no process of {folder.name} has noted anything"
    return [command for command, gpus in seen.items() if gpus == ""]


def operators(job: dict[str, Any], rank: int, nodes: int, port: int) -> dict[str, str]:
    """What the training operator appends to every container."""
    each = job["spec"]["nprocPerNode"]
    shared = {
        "MASTER_ADDR": "127.0.0.1",  # the master's service name in a cluster
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(nodes * int(each)),
        "RANK": str(rank),
        "PYTHONUNBUFFERED": "1",
    }
    return shared | {
        "PET_MASTER_ADDR": shared["MASTER_ADDR"],
        "PET_MASTER_PORT": shared["MASTER_PORT"],
        "PET_NNODES": str(nodes),
        "PET_NPROC_PER_NODE": each,
        "PET_NODE_RANK": str(rank),
    }


def mapped(text: str, mounts: dict[str, Path]) -> str:
    """A path of the pod as a path of this machine; the longest mount wins, and only at the
    beginning."""
    for mount in sorted(mounts, key=len, reverse=True):
        if text == mount or text.startswith(mount.rstrip("/") + "/"):
            return str(mounts[mount]) + text[len(mount.rstrip("/")) :]
    return text


def operate(job: dict[str, Any], running: list[Pod], each_time, timeout: float) -> None:
    """Plays kubelet and operator until every pod has ended well: under OnFailure a failed pod
    starts again in place, up to the job's backoff limit; that of an index of a Job is made anew,
    each up to its own. `each_time` is called between looks."""
    if job["kind"] == "Job":
        policy, limit = "OnFailure", len(running) * (job["spec"]["backoffLimitPerIndex"] + 1)
    else:
        policy = job["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolicy"]
        limit = job["spec"]["runPolicy"]["backoffLimit"]
    deadline = time.monotonic() + timeout
    for pod in running:
        pod.start()
    try:
        while any(pod.process.poll() != 0 for pod in running):
            assert time.monotonic() < deadline, "\n".join(
                f"== {pod.name}\n{pod.text[-3000:]}" for pod in running
            )
            for pod in running:
                if pod.process.poll() in (None, 0):
                    continue
                pod.codes.append(pod.process.returncode)
                assert policy == "OnFailure", (
                    f"{pod.name} failed under {policy}:\n{pod.text[-3000:]}"
                )
                pod.restarts += 1
                # The operator counts the restarts of all pods together.
                assert sum(one.restarts for one in running) < limit, (
                    f"{pod.name} failed:\n{pod.text[-5000:]}"
                )
                pod.start()
            each_time()
            time.sleep(0.1)
        assert [command for pod in running if pod.gpus for command in blind(pod.log.parent)] == []
    finally:
        for pod in running:
            if pod.process.poll() is None:
                pod.kill()
            pod.process.wait()
