"""The cluster that the tests run against: the one of `RECIPE_TEST_KUBECONFIG`, else a small API on
this machine."""

from __future__ import annotations

import json
import os
import re
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.commands import cli
from runner.parts.openshift import errors, helper_pod
from runner.parts.openshift.client import Cluster, address, connect
from runner.parts.openshift.errors import Refused
from runner.parts.openshift.jobs import POD_LABEL
from tests.conftest import ROOT, words
from tests.parts.openshift.api import TESTS, Api

REAL = os.environ.get("RECIPE_TEST_KUBECONFIG")
# The version of OpenShift AI whose TrainJob that cluster has.
VERSION = os.environ.get("RECIPE_TEST_OPENSHIFT_AI", "3.5")
in_process = pytest.mark.skipif(
    bool(REAL),
    reason="this cluster lacks the people, kubelets and faults that the tests' own API plays",
)


class Site:
    """The cluster of a test. api: the one on this machine, or None; namespace: one of its own;
    runs_jobs: whether a controller makes the pods of plain Jobs, and ends Jobs by their pods; else
    the tests play it."""

    def __init__(
        self, namespace: str, cluster: Cluster, api: Api | None, runs_jobs: bool = False
    ) -> None:
        self.namespace, self.cluster, self.api, self.runs_jobs = namespace, cluster, api, runs_jobs

    @property
    def changes(self) -> tuple[str, ...]:
        """What the commands change of a recipe here. A cluster of one's own need not have Kueue,
        nor the site."""
        return (f"openshift.namespace={self.namespace}", *(("openshift.queue=",) if REAL else ()))

    def require(self, kind: str) -> None:
        """Skips the test where the cluster does not have this kind of objects."""
        if not self.cluster.knows(kind, self.namespace):
            pytest.skip(f"this cluster lacks the custom resource {kind}")

    def recipe(self, *arguments: str, path: str = "recipes/survival.yaml") -> int:
        """Runs `recipe VERB PATH …` in this process; gives the exit code."""
        verb, *rest = arguments
        changes = [
            one
            for one in self.changes
            if "queue" not in one or "openshift.queue" not in " ".join(rest)
        ]
        sets = [word for change in changes for word in ("--set", change)]
        return cli._code([verb, str(ROOT / path), *sets, *rest])

    def becomes(self, person: str, monkeypatch) -> None:
        """From now on the commands are this person's, at a machine of their own."""
        token = f"sha256~the-token-of-{person}"
        self.api.people[token] = person
        file = self.api.kubeconfig(
            Path(f"kubeconfig-{person}").absolute(), self.namespace, token, person
        )
        monkeypatch.setenv("KUBECONFIG", str(file))
        monkeypatch.setattr("socket.gethostname", lambda: f"{person}s-desk")

    def pods(self, job: str = "survival", count: int = 4) -> list[dict[str, Any]]:
        """The pods that the operator has made, waited for."""
        for _ in range(300):
            found = self.cluster.list(
                "Pod", self.namespace, {"training.kubeflow.org/job-name": job}
            )
            if len(found) == count:
                return sorted(found, key=lambda pod: pod["metadata"]["name"])
            time.sleep(0.1)
        raise AssertionError(f"{len(found)} pods of {job}, and {count} were expected")

    def set_status(self, kind: str, name: str, status: dict[str, Any]) -> None:
        """What a kubelet or an operator would write."""
        path = f"{address(kind, self.namespace, name)}/status"
        self.cluster.request(
            "PATCH", path, body={"status": status}, content="application/merge-patch+json"
        )

    def claim(self, name: str, mode: str = "ReadWriteMany", size: str = "3Ti") -> None:
        """A claim that an earlier submit has made."""
        spec = {"accessModes": [mode], "resources": {"requests": {"storage": size}}}
        meta = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec}
        self.cluster.request("POST", address("PersistentVolumeClaim", self.namespace), body=body)

    def event(
        self,
        kind: str,
        name: str,
        reason: str,
        message: str,
        *,
        type: str = "Warning",
        seconds: float = 0,
        uid: str = "",
    ) -> None:
        """An event about an object, seen last so many seconds ago. uid: of one of that name that is
        not there any more."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - seconds))
        uid = uid or self.cluster.get(kind, self.namespace, name)["metadata"]["uid"]
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{name}.{uuid.uuid4().hex[:8]}", "namespace": self.namespace},
            "involvedObject": {
                "kind": kind,
                "name": name,
                "namespace": self.namespace,
                "uid": uid,
            },
            "type": type,
            "reason": reason,
            "message": message,
            "lastTimestamp": at,
            "firstTimestamp": at,
            "source": {"component": "tests"},
        }
        self.cluster.request("POST", address("Event", self.namespace), body=body)

    def pod(
        self, name: str, owner: dict[str, Any], labels: dict[str, str], **status: Any
    ) -> dict[str, Any]:
        """A pod as an operator makes it for its owner."""
        owners = [
            {"apiVersion": owner["apiVersion"], "kind": owner["kind"]}
            | {key: owner["metadata"][key] for key in ("name", "uid")}
        ]
        spec = {"containers": [{"name": "node", "image": "x"}], "restartPolicy": "Never"}
        meta = {
            "name": name,
            "namespace": self.namespace,
            "labels": labels,
            "ownerReferences": owners,
        }
        self.cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        if status:
            self.set_status("Pod", name, status)
        return self.cluster.get("Pod", self.namespace, name)

    def job(self, kind: str = "PyTorchJob", name: str = "survival") -> dict[str, Any] | None:
        return self.cluster.get(kind, self.namespace, name)


@pytest.fixture
def golden_message(golden_message):
    """Without the namespace and the address, which are each test's own."""

    def compare(text: object, case: str = "") -> None:
        said = re.sub(r"\brecipe-test-[0-9a-f]{8}\b", "<namespace>", words(text))
        golden_message(re.sub(r"http://127\.0\.0\.1:\d+", "<address>", said), case)

    return compare


@pytest.fixture
def site(tmp_path, monkeypatch, request):
    if "looks_into_the_image" not in request.fixturenames:
        # A pod that starts a Python each time; test_own_data looks at what it finds.
        monkeypatch.setattr(helper_pod, "require_rows", lambda *_: None)
    monkeypatch.setattr(errors, "PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(errors, "PROMPT_SECONDS", 3.0)
    # Else what is said would differ by whether this machine reaches the hub.
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    namespace = f"recipe-test-{uuid.uuid4().hex[:8]}"
    if REAL:
        yield from _real(namespace, monkeypatch)
        return
    api = Api(namespace)
    monkeypatch.setenv(
        "KUBECONFIG", str(api.kubeconfig(tmp_path / "tests-kubeconfig", namespace, TESTS))
    )
    own = connect()
    # The commands are somebody else, with the rights of the site's role alone.
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig", namespace)))
    try:
        yield Site(namespace, own, api)
    finally:
        api.close()


def job_status(well: bool = True) -> dict[str, Any]:
    """The status of a plain Job that has ended, as servers since 1.31 take it."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    kinds = ("SuccessCriteriaMet", "Complete") if well else ("FailureTarget", "Failed")
    conditions = [
        {"type": kind, "status": "True", "reason": "Tests", "lastTransitionTime": at}
        for kind in kinds
    ]
    counts = {"succeeded": 1, "completionTime": at} if well else {"failed": 1}
    return {"startTime": at, **counts, "conditions": conditions}


def pod_status(container: str, well: bool = True, message: str = "") -> dict[str, Any]:
    """The status of a pod whose container has ended, as a kubelet writes it. message: the
    container's last words."""
    state = {"terminated": {"exitCode": 0 if well else 1, "message": message}}
    entry = {
        "name": container,
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    return {"phase": "Succeeded" if well else "Failed", "containerStatuses": [entry]}


def _models_come(site: Site, over: threading.Event) -> None:
    """Ends the Jobs that fetch a model, for which `recipe submit` waits: without nodes nobody else
    does."""
    while not over.wait(0.2):
        for job in site.cluster.list("Job", site.namespace):
            if job["metadata"]["name"].endswith("-model") and not job.get("status", {}).get(
                "conditions"
            ):
                with suppress(Refused):
                    end_job_of_model(site, job)


def end_job_of_model(site: Site, job: dict[str, Any]) -> None:
    """Ends its pods, where a controller then ends the Job: it counts a pod as active, and the
    server refuses the end of a Job with active pods. Without a controller, ends the Job itself."""
    name = job["metadata"]["name"]
    if not site.runs_jobs:
        site.set_status("Job", name, job_status())
        return
    for pod in site.cluster.list("Pod", site.namespace, {POD_LABEL["Job"]: name}):
        container = pod["spec"]["containers"][0]["name"]
        site.set_status("Pod", pod["metadata"]["name"], pod_status(container))


def _runs_jobs(cluster: Cluster, namespace: str) -> bool:
    """Whether anything looks after plain Jobs: it would say of this one that it is suspended."""
    template = {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "none", "image": "none"}]}
    }
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "asked", "namespace": namespace},
    }
    cluster.create(body | {"spec": {"suspend": True, "template": template}})
    try:
        for _ in range(25):
            if cluster.get("Job", namespace, "asked").get("status", {}).get("conditions"):
                return True
            time.sleep(0.2)
        return False
    finally:
        cluster.delete("Job", namespace, "asked")


# Of the cluster of RECIPE_TEST_KUBECONFIG, once it was asked.
KNOWN: dict[str, bool] = {}


def _real(namespace: str, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(Path(REAL).resolve()))
    cluster = connect()
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    cluster.request("POST", "/api/v1/namespaces", body=body)
    # Pods are refused until the namespace's own service account is there.
    for _ in range(100):
        items = json.loads(
            cluster.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts").data
        )["items"]
        if items:
            break
        time.sleep(0.2)
    if not KNOWN:
        KNOWN["runs jobs"] = _runs_jobs(cluster, namespace)
    over, site = threading.Event(), Site(namespace, cluster, None, KNOWN["runs jobs"])
    player = threading.Thread(target=_models_come, args=(site, over), daemon=True)
    player.start()
    try:
        site.require("PyTorchJob")
        yield site
    finally:
        over.set()
        player.join()
        cluster.request("DELETE", f"/api/v1/namespaces/{namespace}")
