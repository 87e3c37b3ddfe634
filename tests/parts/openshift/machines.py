"""The machines of the small API: what a Job controller, the training operator and a kubelet do,
with processes as pods.

A pod is a process of this machine: the manifest's own command and environment, config maps as
folders, and the key of its service account where it asks for one. A Job that fails is tried again
as its own policy says.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.parts.jobs import training_metrics
from runner.parts.jobs.kubernetes import CONFIG_DIR
from runner.parts.openshift.pipeline import KEYS, SERVER
from tests.conftest import ROOT
from tests.parts.openshift.api import KEY_OF, Api, free_port, stamp, value_of
from tests.parts.openshift.pods import ALONE, operators

# What a kubelet takes of a log for a pod's last words, where it has left none.
TAIL_BYTES = 2048
# The driver's own pauses would be most of a test.
HASTE = ["--pause", "0.5"]


class Machines:
    """plays: which jobs get pods; the tests end all others. processes: of each pod that runs, by
    the pod's uid; lives: how each pod of a job has ended, by the job's name."""

    def __init__(
        self, api: Api, plays: Callable[[dict[str, Any]], bool], env: dict[str, str] | None = None
    ) -> None:
        self.api, self.plays, self.env = api, plays, env or {}
        self.processes: dict[str, subprocess.Popen] = {}
        self.lives: dict[str, list[int]] = {}
        self.closed = threading.Event()
        self.threads: list[threading.Thread] = []
        api.watchers.append(self.see)

    def see(self, plural: str, space: str, manifest: dict[str, Any]) -> None:
        play = {"jobs": self._job, "pytorchjobs": self._training}.get(plural)
        if play and self.plays(manifest):
            self.threads.append(threading.Thread(target=play, args=(space, manifest), daemon=True))
            self.threads[-1].start()

    def pod_of(self, job: str) -> subprocess.Popen:
        """The process of a Job's pod, waited for. That of a Job which was replaced is not meant: it
        may live for a moment after its pod is gone."""
        for _ in range(600):
            with self.api.lock:
                objects = list(self.api.objects.items())
            job_uids = {
                found["metadata"]["uid"]
                for (plural, _, name), found in objects
                if plural == "jobs" and name == job
            }
            for (plural, _, _), pod in objects:
                owners = {owner["uid"] for owner in pod["metadata"].get("ownerReferences", ())}
                process = self.processes.get(pod["metadata"]["uid"])
                if plural == "pods" and owners & job_uids and process and process.poll() is None:
                    return process
            time.sleep(0.05)
        raise AssertionError(f"no pod of {job} runs; there were {self.lives}")

    def close(self) -> None:
        """Ends every pod and what it has started; none is tried again."""
        self.api.watchers.remove(self.see)
        self.closed.set()
        for thread in self.threads:
            thread.join()

    def _job(self, space: str, job: dict[str, Any]) -> None:
        """A Job's pods, one after the other."""
        name, spec = job["metadata"]["name"], job["spec"]
        lives, failures = self.lives.setdefault(name, []), 0
        final = {
            code
            for rule in spec.get("podFailurePolicy", {}).get("rules", ())
            if rule["action"] == "FailJob"
            for code in rule["onExitCodes"]["values"]
        }
        while True:
            meta = {
                "name": f"{name}-{len(lives):05d}",
                "labels": spec["template"]["metadata"]["labels"],
            }
            code = self._pod(
                space,
                job,
                meta | {"labels": meta["labels"] | {"job-name": name}},
                spec["template"]["spec"],
            )
            if code is None:
                return
            lives.append(code)
            failures += code != 0
            if code == 0 or code in final or failures > spec["backoffLimit"]:
                self._end(space, job, "Complete" if code == 0 else "Failed")
                return

    def _training(self, space: str, job: dict[str, Any]) -> None:
        """The pod of a PyTorchJob on one machine, which the API's own operator has made."""
        name = job["metadata"]["name"]
        pod = f"{name}-master-0"
        while ("pods", space, pod) not in self.api.objects:
            if self.closed.wait(0.02):
                return
        rendezvous = operators(job, 0, 1, free_port())
        # The pods share one machine here, and so its ports.
        rendezvous |= {
            name: str(free_port())
            for name in (training_metrics.METRICS_PORT, training_metrics.PROGRESS_PORT)
        }
        spec = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
        code = self._run(space, pod, spec, rendezvous)
        if code is not None:
            self.lives.setdefault(name, []).append(code)
            self._end(space, job, "Succeeded" if code == 0 else "Failed")

    def _pod(
        self, space: str, job: dict[str, Any], meta: dict[str, Any], spec: dict[str, Any]
    ) -> int | None:
        """Makes a pod and runs it to its end; its exit code, None where it was taken away."""
        if self.closed.is_set() or not self._there(space, job):
            return None
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": job["metadata"]["name"],
            "uid": job["metadata"]["uid"],
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": meta | {"ownerReferences": [owner]},
            "spec": spec,
        }
        self.api.put("pods", space, pod, dry=False)
        return self._run(space, meta["name"], spec, {})

    def _there(self, space: str, job: dict[str, Any]) -> bool:
        plural = {"Job": "jobs", "PyTorchJob": "pytorchjobs"}[job["kind"]]
        known = self.api.objects.get((plural, space, job["metadata"]["name"]))
        return known is not None and known["metadata"]["uid"] == job["metadata"]["uid"]

    def _run(self, space: str, name: str, spec: dict[str, Any], more: dict[str, str]) -> int | None:
        (container,) = spec["containers"]
        uid = self.api.objects[("pods", space, name)]["metadata"]["uid"]
        with tempfile.TemporaryDirectory(prefix="pod-") as scratch:
            command, env = self._command(space, container, spec, Path(scratch))
            log = Path(scratch) / "pod.log"
            with log.open("wb") as out:
                process = subprocess.Popen(
                    [sys.executable, *command[1:]] if command[0] == "python" else command,
                    env=env | more | self.env, cwd=scratch, stdout=out, stderr=out, start_new_session=True,
                )  # fmt: skip
            self.processes[uid] = process
            self._status(space, name, {"phase": "Running", "startTime": stamp()})
            while process.poll() is None:
                if self.closed.wait(0.05):
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    return None
                known = self.api.objects.get(("pods", space, name))
                if known is None or known["metadata"]["uid"] != uid:
                    # Taken away: a moment to end by itself, as the grace period gives it.
                    process.terminate()
                    process.wait(20)
                    return None
                self.api.logs[(name, "now")] = [(stamp(), line) for line in _text(log).splitlines()]
            text = _text(log)
        self.api.logs[(name, "now")] = [(stamp(), line) for line in text.splitlines()]
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        said = text[-TAIL_BYTES:] if code and container.get("terminationMessagePolicy") else ""
        end = {"exitCode": code, "reason": "Completed" if code == 0 else "Error", "message": said}
        entry = {
            "name": container["name"],
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": end},
        }
        self._status(
            space, name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [entry]}
        )
        return code

    def _command(
        self, space: str, container: dict[str, Any], spec: dict[str, Any], scratch: Path
    ) -> tuple[list[str], dict[str, str]]:
        words = {SERVER: self.api.url, "/tmp": str(scratch)}
        driver = container["name"] == "driver"
        if spec.get("automountServiceAccountToken"):
            (scratch / "keys").mkdir()
            (scratch / "keys" / "token").write_text(KEY_OF[spec["serviceAccountName"]])
            words[KEYS] = str(scratch / "keys")
        for volume in spec["volumes"]:
            if "configMap" not in volume:
                continue
            (path,) = [
                one["mountPath"]
                for one in container["volumeMounts"]
                if one["name"] == volume["name"]
            ]
            folder = scratch / Path(path).relative_to("/")
            folder.mkdir(parents=True)
            for file, text in self.api.objects[("configmaps", space, volume["configMap"]["name"])][
                "data"
            ].items():
                # Configs lie elsewhere for each pod; the driver's plan names those of the others.
                own = text if driver else text.replace(CONFIG_DIR, f"{scratch}{CONFIG_DIR}")
                (folder / file).write_text(own, encoding="utf-8")
            words[CONFIG_DIR] = f"{scratch}{CONFIG_DIR}"
        command = container["command"]
        for before, after in words.items():
            command = [part if part == "/tmp" else part.replace(before, after) for part in command]
        env = {entry["name"]: value_of(self.api, space, entry) for entry in container["env"]}
        env = {
            name: value.replace("/tmp", str(scratch)) if value.startswith("/tmp") else value
            for name, value in env.items()
        }
        search = {
            "PYTHONPATH": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        return [*command, *(HASTE if driver else [])], env | ALONE | search

    def _status(self, space: str, name: str, status: dict[str, Any]) -> None:
        with self.api.lock:
            if ("pods", space, name) in self.api.objects:
                self.api.objects[("pods", space, name)]["status"] = status

    def _end(self, space: str, job: dict[str, Any], condition: str) -> None:
        with self.api.lock:
            if self._there(space, job):
                plural = {"Job": "jobs", "PyTorchJob": "pytorchjobs"}[job["kind"]]
                last = {"type": condition, "status": "True", "lastTransitionTime": stamp()}
                self.api.objects[(plural, space, job["metadata"]["name"])]["status"] = {
                    "conditions": [last]
                }


def _text(log: Path) -> str:
    return log.read_text("utf-8", errors="replace")
