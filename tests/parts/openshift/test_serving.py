"""A server of the trained model on the cluster: sent, waited for, explained, brought to this
machine, removed."""

from __future__ import annotations

import copy
import json
import re
import threading
import time
import urllib.request
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.parts.openshift import client
from runner.parts.openshift.jobs import render_job
from runner.parts.serve import cluster
from runner.parts.serve import kserve as target
from runner.parts.serve.cluster import FORMS, LLM, SERVICE, ServerState, reasons
from runner.parts.serve.kserve import served
from runner.plan import Plan
from runner.recipe.overrides import from_options
from runner.tools.process import bound_port
from tests.conftest import ROOT
from tests.parts.openshift import kserve
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.judging import core_refusals
from tests.parts.serve.test_kserve import sharing

pytestmark = in_process
LYRICS = "recipes/lyrics.yaml"
TOLD: list[str] = []


@pytest.fixture
def platform(site):
    """The site with the platform's serving runtime in its namespace, and survival trained there."""
    runtime = kserve.PLATFORM | {
        "metadata": kserve.PLATFORM["metadata"] | {"namespace": site.namespace}
    }
    site.cluster.create(runtime)
    trained(site)
    return site


@cache
def plan_and_server(path: str = "recipes/survival.yaml"):
    recipe, _, _ = load(ROOT / path, from_options(("serve={}", "openshift.queue=gpus")))
    plan, server = served(recipe)
    return plan, server


def trained(site, end: str | None = "Succeeded", plan: Plan | None = None) -> None:
    """The claims and the job that `recipe submit` sends, at its end."""
    plan = plan or plan_and_server()[0]
    for claim in plan.site.claims:
        if site.job("PersistentVolumeClaim", claim["name"]) is None:
            site.claim(claim["name"])
    job = copy.deepcopy(render_job(plan, plan.stages[-1]).job)
    job["metadata"]["namespace"] = site.namespace
    site.api.put("pytorchjobs", site.namespace, job, dry=False)
    if end:
        site.set_status(
            "PyTorchJob", job["metadata"]["name"], {"conditions": [{"type": end, "status": "True"}]}
        )


def pods(site, name: str = "survival") -> list[dict]:
    return site.cluster.list("Pod", site.namespace, {FORMS[SERVICE]["name"]: name})


def pod_soon(site, name: str = "survival") -> dict:
    for _ in range(200):
        if found := [pod for pod in pods(site, name) if "deletionTimestamp" not in pod["metadata"]]:
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no pod of the server")


def running(**entry) -> dict:
    return {
        "phase": "Running",
        "containerStatuses": [{"name": "kserve-container", "restartCount": 0, **entry}],
    }


READY = running(state={"running": {}}) | {"conditions": [{"type": "Ready", "status": "True"}]}


class Serve(threading.Thread):
    """`recipe serve --cluster` at work; code: its exit code, once it has one. It ends at the
    port-forward."""

    def __init__(
        self, site, monkeypatch, *options: str, path: str = "recipes/survival.yaml"
    ) -> None:
        super().__init__(daemon=True)
        self.site, self.options, self.path, self.code = site, options, path, None
        monkeypatch.setattr(client, "forward", lambda *given: given[-1](given[-2]))
        self.start()

    def run(self) -> None:
        self.code = self.site.recipe(
            "serve", "--cluster", "--port", "0", *self.options, path=self.path
        )

    def ended(self) -> int:
        self.join(30)
        assert self.code is not None, "it still waits"
        return self.code


def heard(capsys, *words: str) -> str:
    """What is said until all of these words are in it."""
    text = ""
    for _ in range(300):
        said = capsys.readouterr()
        text += said.out + said.err
        if all(word in text for word in words):
            return text
        time.sleep(0.05)
    raise AssertionError(f"{words} were not said, but:\n{text}")


def test_it_is_sent_waited_for_and_forwarded(platform, monkeypatch, capsys, golden_message):
    at_work = Serve(platform, monkeypatch)
    pod = pod_soon(platform)
    platform.set_status("Pod", pod["metadata"]["name"], READY)
    assert at_work.ended() == 0
    service = platform.job(SERVICE)
    (serves,) = pod["spec"]["containers"]
    assert serves["name"] == "kserve-container"
    assert serves["args"][:3] == [
        "--port=8080",
        "--model=/mnt/models",
        "--served-model-name=survival",
    ]
    mount = next(mount for mount in serves["volumeMounts"] if mount["mountPath"] == "/mnt/models")
    assert mount["subPath"] == "survival/best_model" and mount["readOnly"]
    assert (
        service["metadata"]["annotations"]["recipe-runner/trained-by"]
        == platform.job()["metadata"]["uid"]
    )
    said = capsys.readouterr().out
    assert "The server answers at" in said
    golden_message(
        "\n".join(
            line for line in said.splitlines() if "waiting" not in line and "pulling" not in line
        )
    )


def test_sent_twice_it_stays_as_it_is(platform, monkeypatch, capsys):
    for words in ("InferenceService `survival` to", "Nothing changes"):
        at_work = Serve(platform, monkeypatch)
        platform.set_status("Pod", pod_soon(platform)["metadata"]["name"], READY)
        assert at_work.ended() == 0
        assert words in capsys.readouterr().out
    assert len(pods(platform)) == 1


def test_a_model_trained_again_is_loaded_by_another_pod(platform, monkeypatch):
    first = Serve(platform, monkeypatch)
    before = pod_soon(platform)["metadata"]["name"]
    platform.set_status("Pod", before, READY)
    assert first.ended() == 0
    platform.cluster.delete("PyTorchJob", platform.namespace, "survival")
    trained(platform)
    again = Serve(platform, monkeypatch)
    for _ in range(200):
        if (now := pod_soon(platform)["metadata"]["name"]) != before:
            break
        time.sleep(0.05)
    assert now != before
    # The one of before has answered all the time; it does not count.
    platform.set_status("Pod", now, READY)
    assert again.ended() == 0


def test_an_older_pod_that_still_answers_is_not_taken_for_the_new_one(platform, monkeypatch):
    first = Serve(platform, monkeypatch)
    pod = pod_soon(platform)
    platform.set_status("Pod", pod["metadata"]["name"], READY)
    assert first.ended() == 0
    service = platform.job(SERVICE)
    assert cluster.look(platform.cluster, service).ready == pod["metadata"]["name"]
    service["metadata"]["annotations"]["recipe-runner/content"] = "another"
    assert cluster.look(platform.cluster, service).ready is None


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ([{"type": "Running", "status": "True"}], "is still running"),
        ([{"type": "Failed", "status": "True"}], "has failed"),
    ],
    ids=["under way", "failed"],
)
def test_a_model_that_is_not_trained_is_not_served(
    platform, capsys, golden_message, conditions, words
):
    platform.set_status("PyTorchJob", "survival", {"conditions": conditions})
    assert platform.recipe("serve", "--cluster", "--port", "0") == 1
    said = capsys.readouterr().err
    assert words in said
    golden_message(said)
    assert platform.job(SERVICE) is None


GATE = "gates=['improvement.perplexity >= 0.1']"


def test_a_model_whose_gate_is_not_open_is_not_served(platform, capsys):
    """Whoever deletes a closed gate's Job opens nothing by that."""
    assert platform.recipe("serve", "--cluster", "--port", "0", "--set", GATE) == 1
    assert "is not sent yet, and the model is served once it is open" in capsys.readouterr().err
    recipe, _, _ = load(ROOT / "recipes/survival.yaml", from_options(("serve={}", GATE)))
    plan, _ = served(recipe)
    job = copy.deepcopy(render_job(plan, plan.stages[-1], of_gate=True).job)
    job["metadata"]["namespace"] = platform.namespace
    platform.api.put("jobs", platform.namespace, job, dry=False)
    platform.set_status(
        "Job", job["metadata"]["name"], {"conditions": [{"type": "Failed", "status": "True"}]}
    )
    assert platform.recipe("serve", "--cluster", "--port", "0", "--set", GATE) == 1
    assert "The gate after `train` is closed" in capsys.readouterr().err
    assert platform.job(SERVICE) is None
    platform.set_status(
        "Job", job["metadata"]["name"], {"conditions": [{"type": "Complete", "status": "True"}]}
    )
    assert platform.recipe("serve", "--cluster", "--dry-run", "--set", GATE) == 0


def test_a_model_on_a_claim_that_is_gone_is_not_served(platform, capsys):
    for name in ("trained-models-pvc", "workspace-pvc"):
        platform.cluster.delete("PersistentVolumeClaim", platform.namespace, name)
        platform.claim(name)
    assert platform.recipe("serve", "--cluster", "--port", "0") == 1
    assert "its claim has been replaced" in capsys.readouterr().err
    assert platform.job(SERVICE) is None


def test_a_model_whose_job_is_gone_is_served_and_said(platform, monkeypatch, capsys):
    platform.cluster.delete("PyTorchJob", platform.namespace, "survival")
    at_work = Serve(platform, monkeypatch)
    platform.set_status("Pod", pod_soon(platform)["metadata"]["name"], READY)
    assert at_work.ended() == 0
    assert "`train` is not sent yet" in capsys.readouterr().out.lower()


def test_a_dry_run_sends_nothing(platform, capsys):
    assert (
        platform.recipe("serve", "--cluster", "--dry-run", "--set", "serve.image=registry/vllm:2")
        == 0
    )
    said = capsys.readouterr().out
    assert "ServingRuntime `survival-vllm`" in said and "InferenceService `survival`" in said
    assert platform.job(SERVICE) is None and platform.job("ServingRuntime", "survival-vllm") is None


def test_a_try_of_stop_removes_nothing(platform, monkeypatch):
    at_work = Serve(platform, monkeypatch)
    platform.set_status("Pod", pod_soon(platform)["metadata"]["name"], READY)
    assert at_work.ended() == 0
    assert platform.recipe("serve", "--stop", "--dry-run") == 2
    assert platform.job(SERVICE) is not None


def test_stop_removes_the_server_and_its_own_runtime(platform, monkeypatch, capsys):
    at_work = Serve(platform, monkeypatch, "--set", "serve.image=registry/vllm:2")
    pod = pod_soon(platform)
    assert pod["spec"]["containers"][0]["image"] == "registry/vllm:2"
    platform.set_status("Pod", pod["metadata"]["name"], READY)
    assert at_work.ended() == 0
    assert platform.recipe("serve", "--stop") == 0
    said = capsys.readouterr().out
    assert (
        "InferenceService `survival` removed." in said
        and "ServingRuntime `survival-vllm` removed." in said
    )
    assert platform.job(SERVICE) is None and platform.job("ServingRuntime", "survival-vllm") is None
    assert (
        platform.job("ServingRuntime", "vllm-cuda-runtime") is not None
        and platform.job() is not None
    )
    assert platform.recipe("serve", "--stop") == 0
    assert "has no server of `survival`" in capsys.readouterr().out


def test_a_server_of_somebody_else_is_neither_changed_nor_removed(platform, capsys):
    body = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": SERVICE,
        "metadata": {
            "name": "survival",
            "namespace": platform.namespace,
            "labels": {},
            "annotations": {},
        },
        "spec": {
            "predictor": {
                "model": {
                    "name": "kserve-container",
                    "modelFormat": {"name": "vLLM"},
                    "runtime": "vllm-cuda-runtime",
                    "storageUri": "oci://registry/model:1",
                    "args": [],
                    "env": [],
                }
            }
        },
    }
    platform.cluster.create(body)
    for options in (("--cluster", "--port", "0"), ("--stop",)):
        assert platform.recipe("serve", *options) == 1
        assert "someone who did not use recipe-runner" in capsys.readouterr().err
    assert platform.job(SERVICE)["spec"] == body["spec"]


def test_without_the_platforms_runtime_the_remedy_is_named(site, capsys, golden_message):
    trained(site)
    capsys.readouterr()
    assert site.recipe("serve", "--cluster", "--port", "0") == 1
    said = capsys.readouterr().err
    assert "oc process -n redhat-ods-applications vllm-cuda-runtime-template" in said
    golden_message(said)


def test_without_kserve_the_cluster_does_not_know_it(platform, capsys, golden_message):
    platform.api.missing.add("inferenceservices")
    assert platform.recipe("serve", "--cluster", "--port", "0") == 1
    golden_message(capsys.readouterr().err)


def test_a_port_that_is_in_use_is_said_before_anything_is_sent(platform, capsys):
    with bound_port(0) as taken:
        taken.listen()
        assert platform.recipe("serve", "--cluster", "--port", str(taken.getsockname()[1])) == 1
    assert "is in use" in capsys.readouterr().err
    assert platform.job(SERVICE) is None


def test_no_pod_for_want_of_quota(platform, monkeypatch, capsys, golden_message):
    platform.api.quota = "exceeded quota: gpus, requested: nvidia.com/gpu=1, used: nvidia.com/gpu=4, limited: nvidia.com/gpu=4"
    platform.api.put = _only_pods(platform.api)
    Serve(platform, monkeypatch)
    said = heard(capsys, "No pod exists")
    line = next(line for line in said.splitlines() if "No pod exists" in line)
    golden_message(re.sub(r"survival-predictor-\w+-1", "<pod>", line))


def _only_pods(api):
    """A quota counts pods, when the Deployment makes them."""
    put, quota = api.put, api.quota
    api.quota = ""

    def judged(plural, *given, **how):
        api.quota = quota if plural == "pods" else ""
        return put(plural, *given, **how)

    return judged


TROUBLE = {
    "no GPU free": (
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "message": "0/6 nodes are available: 2 Insufficient nvidia.com/gpu, 4 node(s) didn't match Pod's node "
                    "affinity/selector.",
                }
            ],
        },
        "All machines that have it are in use",
    ),
    "no image": (
        {"phase": "Pending"}
        | running(
            state={"waiting": {"reason": "ImagePullBackOff", "message": "denied"}},
            image="registry/vllm:1",
        ),
        "`registry/vllm:1` cannot be pulled",
    ),
    "no image of a model": (
        {
            "phase": "Pending",
            "initContainerStatuses": [
                {
                    "name": "modelcar-init",
                    "image": "quay.io/us/model:1",
                    "state": {"waiting": {"reason": "ErrImagePull"}},
                }
            ],
        },
        "correct `serve.model`",
    ),
    "main memory": (
        running(
            restartCount=1,
            state={"running": {}},
            lastState={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        ),
        "used up its main memory",
    ),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_why_it_does_not_start(golden_message, case):
    status, words = TROUBLE[case]
    (said,) = reasons(of_one_pod(status))
    assert words in said
    golden_message(said)


def of_one_pod(status: dict, log: str = "", **more) -> ServerState:
    plan, server = plan_and_server()
    service = target.service(plan, server)
    service["metadata"] |= {"uid": "1", "generation": 1}
    pod = kserve.pod(kserve.PLATFORM, service)
    pod["metadata"] |= {"name": "survival-predictor-1", "uid": "2"}
    pod["spec"] |= more
    pod["status"] = status
    return ServerState(service, [pod], log_of=lambda _pod: log)


def test_a_server_waits_in_its_queue(platform, monkeypatch, capsys, golden_message):
    monkeypatch.setattr(kserve, "pod", _gated(platform, kserve.pod))
    at_work = Serve(platform, monkeypatch, "--set", "openshift.queue=gpus")
    name = pod_soon(platform)["metadata"]["name"]
    said = heard(capsys, "waits in the queue `gpus`")
    golden_message("\n".join(line for line in said.splitlines() if line.startswith("  ")))
    with platform.api.lock:
        del platform.api.objects[("pods", platform.namespace, name)]["spec"]["schedulingGates"]
    platform.set_status("Pod", name, READY)
    assert at_work.ended() == 0


def test_a_gpu_is_waited_for(platform, monkeypatch, capsys):
    """Nothing that a person must do; it starts when one is free."""
    at_work = Serve(platform, monkeypatch)
    name = pod_soon(platform)["metadata"]["name"]
    platform.set_status("Pod", name, TROUBLE["no GPU free"][0])
    heard(capsys, "waiting for a machine", "no machine with the GPU `NVIDIA-L40S` is free.")
    platform.set_status("Pod", name, READY)
    assert at_work.ended() == 0


def _gated(site, pod):
    """Kueue: a gate on each pod, and an entry that waits for quota."""

    def made(*given):
        manifest = pod(*given)
        manifest["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        waits = {
            "type": "QuotaReserved",
            "status": "False",
            "message": "insufficient unused quota for nvidia.com/gpu",
        }
        manifest["metadata"]["uid"] = "of-the-gated-pod"
        owner = {
            "kind": "Pod",
            "name": manifest["metadata"]["name"],
            "uid": "of-the-gated-pod",
            "apiVersion": "v1",
        }
        meta = {"name": "pod-survival", "namespace": site.namespace, "ownerReferences": [owner]}
        site.api.objects[("workloads", site.namespace, "pod-survival")] = {
            "metadata": meta,
            "status": {"conditions": [waits]},
        }
        return manifest

    return made


def test_what_happened_to_an_earlier_server_is_not_told(platform, monkeypatch):
    """Events live for an hour, and a server that is started anew has its old name."""
    first = Serve(platform, monkeypatch)
    platform.set_status("Pod", pod_soon(platform)["metadata"]["name"], READY)
    assert first.ended() == 0
    service = platform.job(SERVICE)
    replicas = ("survival-predictor-5d4f", "FailedCreate")
    for kind, name, reason, uid, seconds, counts in (
        (SERVICE, "survival", "InternalError", "of-an-earlier-one", 0, False),
        (SERVICE, "survival", "InternalError", service["metadata"]["uid"], 0, True),
        ("ReplicaSet", *replicas, "any", 900, False),
        ("ReplicaSet", *replicas, "any", 0, True),
        ("Pod", *replicas, "any", 0, False),
        ("ReplicaSet", "other-predictor-5d4f", "FailedCreate", "any", 0, False),
    ):
        platform.api.objects = {
            key: one for key, one in platform.api.objects.items() if key[0] != "events"
        }
        platform.event(kind, name, reason, "the message", uid=uid, seconds=seconds)
        assert bool(cluster.look(platform.cluster, service).events) is counts, (
            kind,
            name,
            uid,
            seconds,
        )


def test_a_machine_that_does_not_answer_has_no_log_and_ends_nothing(platform, monkeypatch):
    first = Serve(platform, monkeypatch)
    name = pod_soon(platform)["metadata"]["name"]
    platform.set_status("Pod", name, READY)
    assert first.ended() == 0
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    platform.set_status(
        "Pod", name, running(restartCount=1, state={"running": {}}, lastState=ended)
    )
    found = cluster.look(platform.cluster, platform.job(SERVICE))
    platform.api.busy_at, platform.api.busy = "/log", [500]
    assert reasons(found) == [f"`{name}` ended with exit code 1, and was restarted (once so far)."]


LOGS = {
    "no room": "ValueError: To serve at least one request with the models's max seq len (4096), 0.5 GiB KV cache is needed",
    "out of memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "an argument": "api_server.py: error: unrecognized arguments: --max-lora-rank=128",
    "another rank": "ValueError: LoRA rank 256 is greater than max_lora_rank 128.",
    # As vLLM 0.32 said it of empty folders.
    "no model": "  Value error, Invalid repository ID or local directory specified: '/mnt/models'.",
    "no adapter": "RuntimeError: Worker failed with error 'Loading lora lyrics failed: No adapter found for /mnt/trained/lora_adapter'",
    "an architecture": "ValidationError: Model architectures ['OtherForCausalLM'] are not supported for now.",
    "something else": "INFO starting\nRuntimeError: Engine core initialization failed.\nINFO done",
}


@pytest.mark.parametrize("case", LOGS)
def test_what_vllm_says_in_the_end_is_explained(golden_message, case):
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    loop = running(
        restartCount=3, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended
    )
    found = of_one_pod(loop, LOGS[case])
    assert found.hopeless and found.phase == "restarted"
    (said,) = reasons(found)
    golden_message(said)


def test_a_server_that_ends_again_and_again_is_given_up(platform, monkeypatch, capsys):
    at_work = Serve(platform, monkeypatch)
    name = pod_soon(platform)["metadata"]["name"]
    platform.api.logs[(name, "previous")] = [("2026-11-22T10:00:00Z", LOGS["no model"])]
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    loop = running(
        restartCount=3, state={"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended
    )
    platform.set_status("Pod", name, loop)
    assert at_work.ended() == 1
    said = capsys.readouterr().err
    assert (
        "does not start" in said
        and "training has finished" in said
        and "--stop` removes it" in said
    )


def test_one_end_is_waited_out(platform, monkeypatch, capsys):
    """A disk may be slow once; the pod is started again by itself."""
    at_work = Serve(platform, monkeypatch)
    name = pod_soon(platform)["metadata"]["name"]
    ended = {"terminated": {"exitCode": 1, "reason": "Error"}}
    platform.set_status(
        "Pod", name, running(restartCount=1, state={"running": {}}, lastState=ended)
    )
    heard(capsys, "ended with exit code 1, and was restarted (once so far)")
    platform.set_status("Pod", name, READY)
    assert at_work.ended() == 0


def test_started_again_while_it_is_being_deleted(platform, monkeypatch, capsys):
    first = Serve(platform, monkeypatch)
    before = pod_soon(platform)
    platform.set_status("Pod", before["metadata"]["name"], READY)
    assert first.ended() == 0
    uid = platform.job(SERVICE)["metadata"]["uid"]
    platform.api.ending_seconds = 1.0
    platform.cluster.delete(SERVICE, platform.namespace, "survival")
    assert "deletionTimestamp" in platform.job(SERVICE)["metadata"]
    platform.api.ending_seconds = 0.0
    capsys.readouterr()
    again = Serve(platform, monkeypatch)
    heard(capsys, "is being deleted. Waiting until it is gone", "^C leaves the server running")
    assert platform.job(SERVICE)["metadata"]["uid"] != uid
    platform.set_status("Pod", pod_soon(platform)["metadata"]["name"], READY)
    assert again.ended() == 0


def test_taken_away_while_it_is_waited_for(platform, monkeypatch, capsys):
    at_work = Serve(platform, monkeypatch)
    pod_soon(platform)
    heard(capsys, "Waiting until it is ready")
    platform.cluster.delete(SERVICE, platform.namespace, "survival")
    assert at_work.ended() == 1
    assert "someone deleted it" in capsys.readouterr().err


def test_being_deleted_while_it_is_waited_for(platform, monkeypatch, capsys):
    at_work = Serve(platform, monkeypatch)
    pod_soon(platform)
    heard(capsys, "Waiting until it is ready")
    platform.api.ending_seconds = 5.0
    platform.cluster.delete(SERVICE, platform.namespace, "survival")
    assert at_work.ended() == 1
    assert "is being deleted; someone has stopped it" in capsys.readouterr().err


def test_changed_by_a_colleague_while_it_is_waited_for(platform, monkeypatch, capsys):
    at_work = Serve(platform, monkeypatch)
    pod_soon(platform)
    heard(capsys, "Waiting until it is ready")
    changed = platform.job(SERVICE)
    changed["metadata"]["annotations"]["recipe-runner/content"] = "another"
    with platform.api.lock:
        platform.api.objects[("inferenceservices", platform.namespace, "survival")] = changed
    assert at_work.ended() == 1
    assert "was changed meanwhile" in capsys.readouterr().err


def test_a_cluster_that_does_not_answer_for_a_while_is_survived(platform, monkeypatch, capsys):
    at_work = Serve(platform, monkeypatch)
    name = pod_soon(platform)["metadata"]["name"]
    heard(capsys, "Waiting until it is ready")
    platform.api.busy_at, platform.api.busy = "inferenceservices", [503, 429]
    heard(capsys, "trying again")
    platform.set_status("Pod", name, READY)
    assert at_work.ended() == 0


def test_its_port_is_brought_to_this_machine(platform, capsys):
    """From the command to a server behind the pod's port and back."""

    class Models(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps({"object": "list", "data": [{"id": "survival"}]}).encode()
            self.send_response(200 if self.path == "/v1/models" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    thread = threading.Thread(
        target=lambda: platform.recipe("serve", "--cluster", "--port", "0"), daemon=True
    )
    thread.start()
    name = pod_soon(platform)["metadata"]["name"]
    platform.api.ports[(name, 8080)] = server.server_address[1]
    platform.set_status("Pod", name, READY)
    said = heard(capsys, "The server answers at")
    address = next(
        word for word in said.split() if word.startswith("http://127.0.0.1:") and "/v1" in word
    ).rstrip(",")
    with urllib.request.urlopen(f"{address}/models", timeout=20) as answer:
        assert json.load(answer)["data"][0]["id"] == "survival"
    # Its machine goes away, and the Deployment makes another pod.
    with platform.api.lock:
        other = copy.deepcopy(platform.api.objects.pop(("pods", platform.namespace, name)))
        other["metadata"]["name"] = f"{name}-2"
        platform.api.objects[("pods", platform.namespace, f"{name}-2")] = other
        platform.api.ports[(f"{name}-2", 8080)] = platform.api.ports.pop((name, 8080))
    with urllib.request.urlopen(f"{address}/models", timeout=20) as answer:
        assert json.load(answer)["data"][0]["id"] == "survival"
    server.shutdown()


def test_an_adapter_is_mounted_beside_its_base_model(platform):
    """KServe takes the object of a recipe with two claims, and its pod is one that a cluster
    takes."""
    assert platform.recipe("serve", "--cluster", "--dry-run", path=LYRICS) == 0
    plan, server = plan_and_server(LYRICS)
    service = target.service(plan, server)
    service["metadata"] |= {"uid": "1", "generation": 1}
    made = kserve.pod(kserve.PLATFORM, service)
    assert core_refusals(made) == []
    (serves,) = made["spec"]["containers"]
    assert {mount["mountPath"]: mount["subPath"] for mount in serves["volumeMounts"]} == {
        "/mnt/models": "base-models/microsoft-Phi-4-mini-instruct-8047205c",
        "/mnt/trained": "lyrics",
    }


def test_a_server_of_several_recipes_waits_for_each_of_them(platform, tmp_path, capsys):
    file = sharing(tmp_path)
    other = tmp_path / "songs.yaml"
    other.write_text(
        other.read_text("utf-8").replace("lyrical-professor", platform.namespace), "utf-8"
    )
    songs, _ = served(load(other, look=False)[0])
    trained(platform, None, songs)
    here = ("--set", f"openshift.namespace={platform.namespace}")
    assert platform.recipe("serve", "--cluster", "--dry-run", *here, path=str(file)) == 1
    assert "still running, so there is no finished model" in capsys.readouterr().err
    platform.set_status(
        "PyTorchJob", "songs", {"conditions": [{"type": "Succeeded", "status": "True"}]}
    )
    assert platform.recipe("serve", "--cluster", "--dry-run", *here, path=str(file)) == 0, (
        capsys.readouterr().err
    )
    recipe, _, _ = load(file, from_options(here[1:]), look=False)
    plan, server = served(recipe)
    manifests = cluster.objects(platform.cluster, target.sharing(recipe, plan), server, TOLD.append)
    uid = platform.job("PyTorchJob", "songs")["metadata"]["uid"]
    assert (
        manifests[-1]["metadata"]["annotations"]["recipe-runner/trained-by"].split(",")[-1] == uid
    )


# The same as an LLMInferenceService, for recipes whose adapters are on claims of their own.

LYRICS_JOB = "llm-music-finetuning"


@pytest.fixture
def alone(platform, tmp_path):
    """Options of `recipe serve` for two recipes, both trained; only one of their servers is to be
    sent."""
    file = sharing(tmp_path, __output_dir="/shared/workspace/songs", __namespace=platform.namespace)
    here = (f"openshift.namespace={platform.namespace}",)
    for path in (file.with_name("songs.yaml"), file):
        plan, _ = served(load(path, from_options(here), look=False)[0])
        trained(platform, plan=plan)
    platform.here = ("--set", here[0])
    platform.file = str(file)
    return platform


def gateway(site, ready: bool = True) -> None:
    """What KServe writes once the platform's gateway leads to the server, or while it does not."""
    said = {
        "type": "RouterReady",
        "status": str(ready),
        "message": "Gateway openshift-ai-inference is not ready",
    }
    conditions = [said, {"type": "Ready", "status": str(ready)}]
    url = {"url": f"https://gateway.example/{site.namespace}/{LYRICS_JOB}"} if ready else {}
    site.set_status(LLM, LYRICS_JOB, {"conditions": conditions, **url})


def llm_pod_soon(site) -> str:
    for _ in range(200):
        labels = {"app.kubernetes.io/component": "llminferenceservice-workload"}
        if found := site.cluster.list("Pod", site.namespace, labels):
            return found[0]["metadata"]["name"]
        time.sleep(0.05)
    raise AssertionError("no pod of the server")


def test_several_recipes_are_served_behind_the_platforms_gateway(
    alone, monkeypatch, capsys, golden_message
):
    at_work = Serve(alone, monkeypatch, *alone.here, path=alone.file)
    pod = llm_pod_soon(alone)
    alone.set_status(
        "Pod", pod, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    )
    gateway(alone, ready=False)
    said = heard(capsys, "waiting for the gateway", "Gateway openshift-ai-inference is not ready")
    gateway(alone)
    assert at_work.ended() == 0
    said += capsys.readouterr().out
    # Which phases are seen depends on the moment of each look.
    phases = ("waiting", "no pod", "pulling")
    golden_message(
        "\n".join(line for line in said.splitlines() if not any(phase in line for phase in phases))
    )
    service = alone.job(LLM, LYRICS_JOB)
    assert [one["name"] for one in service["spec"]["model"]["lora"]["adapters"]] == [
        "lyrics",
        "songs",
    ]
    uids = ",".join(
        alone.job("PyTorchJob", name)["metadata"]["uid"] for name in (LYRICS_JOB, "songs")
    )
    assert service["metadata"]["annotations"]["recipe-runner/trained-by"] == uids
    assert alone.job(SERVICE, LYRICS_JOB) is None
    # Sent again it stays; without the other recipe it is another server, which replaces this one.
    assert alone.recipe("serve", "--cluster", "--port", "0", *alone.here, path=alone.file) == 0
    assert "Nothing changes" in capsys.readouterr().out
    uid = service["metadata"]["uid"]
    again = Serve(
        alone,
        monkeypatch,
        *alone.here,
        "--set",
        "serve={kind: LLMInferenceService}",
        path=alone.file,
    )
    while (there := alone.job(LLM, LYRICS_JOB)) is None or there["metadata"]["uid"] == uid:
        assert again.is_alive()
        time.sleep(0.05)
    alone.set_status("Pod", llm_pod_soon(alone), READY)
    gateway(alone)
    assert again.ended() == 0
    assert alone.recipe("serve", "--stop", *alone.here, path=alone.file) == 0
    assert (
        f"LLMInferenceService `{LYRICS_JOB}` removed." in capsys.readouterr().out
        and alone.job(LLM, LYRICS_JOB) is None
    )


@pytest.mark.parametrize("why", ["unknown", "forbidden", "one claim", "runtime"])
def test_elsewhere_they_are_served_by_an_inference_service(alone, capsys, why, monkeypatch):
    more: tuple[str, ...] = ()
    if why == "unknown":
        alone.api.missing.add("llminferenceservices")
    elif why == "forbidden":
        monkeypatch.setattr(client.Cluster, "knows", lambda *_, usable=False: not usable)
    elif why == "runtime":
        more = ("--set", "serve.runtime=vllm-cuda-runtime")
    else:
        songs = Path(alone.file).with_name("songs.yaml")
        songs.write_text(
            songs.read_text("utf-8").replace("/shared/workspace/", "/shared/models/"), "utf-8"
        )
        alone.cluster.delete("PyTorchJob", alone.namespace, "songs")
    assert alone.recipe("serve", "--cluster", "--dry-run", *alone.here, *more, path=alone.file) == 0
    said = capsys.readouterr().out
    assert f"would accept InferenceService `{LYRICS_JOB}`" in said
    assert ("two of its models are on one claim" in said) == (why == "one claim")


def test_one_recipe_has_one_server_of_one_kind(alone, capsys, golden_message):
    plan, server = served(load(Path(alone.file), from_options((alone.here[1],)), look=False)[0])
    alone.cluster.create(target.service(plan, server))
    assert alone.recipe("serve", "--cluster", "--dry-run", *alone.here, path=alone.file) == 0
    assert "would accept InferenceService" in capsys.readouterr().out, (
        "it keeps the kind that is there"
    )
    kind = ("--set", "serve.kind=LLMInferenceService")
    assert alone.recipe("serve", "--cluster", "--dry-run", *alone.here, *kind, path=alone.file) == 1
    golden_message(capsys.readouterr().err)


def test_without_llm_inference_services_that_kind_is_refused(alone, capsys, golden_message):
    alone.api.missing.add("llminferenceservices")
    kind = ("--set", "serve.kind=LLMInferenceService")
    assert (
        alone.recipe("serve", "--cluster", "--port", "0", *alone.here, *kind, path=alone.file) == 1
    )
    golden_message(capsys.readouterr().err)


def test_a_template_of_the_platform_that_does_not_fit_is_told(golden_message):
    plan, server = plan_and_server.__wrapped__()
    server.kind = LLM
    service = target.service(plan, server)
    refused = {
        "type": "PresetsCombined",
        "status": "False",
        "reason": "Error",
        "message": "no template `main`.",
    }
    (said,) = reasons(ServerState(service | {"status": {"conditions": [refused]}}, []))
    golden_message(said)


def test_a_recipe_that_trains_no_language_model_is_told_so(platform, capsys):
    assert platform.recipe("serve", "--cluster", path="recipes/resnet.yaml") == 1
    assert "train no language model" in capsys.readouterr().err
