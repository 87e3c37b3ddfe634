"""What a real API server, operator and scheduler answer in bad moments: each is a sentence, and
what passes is outlived."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from runner.check.validate import load
from runner.commands import cli
from runner.parts.openshift import client, errors, file_server, helper_pod, jobs, status, watch
from runner.parts.openshift.client import connect
from runner.parts.openshift.diagnose import reasons
from runner.parts.openshift.errors import Refused, TryAgain
from runner.parts.openshift.jobs import render_job
from runner.recipe.overrides import from_options
from runner.scenarios import planned
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.openshift import api
from tests.parts.openshift.api import TESTS, stamp
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.test_watching import (
    SURVIVAL,
    finish,
    job_below,
    looked,
    train_to,
    trainjob_alone,
    unscheduled,
    why,
)

RIGHT = 'pytorchjobs.kubeflow.org is forbidden: User "ann" cannot patch resource "pytorchjobs" in API group "kubeflow.org"'
HOOK = 'admission webhook "hook.example" denied the request: '


@pytest.mark.parametrize(
    ("status", "message", "words", "remedy"),
    [
        (403, RIGHT, "You may not do this in the namespace `lab`", "role `recipe-user`"),
        (
            403,
            'pods is forbidden: User "system:anonymous" cannot list',
            "You are not logged in",
            "`oc login`",
        ),
        (
            403,
            f"{HOOK}no recipes on Sundays",
            "webhook `hook.example`) refuses Job `j`: no recipes",
            "admin knows the rule",
        ),
        (
            403,
            f"{HOOK}missing required label kueue.x-k8s.io/queue-name",
            "only through a queue",
            "`openshift.queue`",
        ),
        (
            403,
            'jobs "j" is forbidden: exceeded quota: q, requested: a=1, used: a=2, limited: a=2',
            "quota `q`",
            "Ask for",
        ),
        (
            403,
            'pods "j" is forbidden: violates PodSecurity "restricted:latest"',
            "rules for pods",
            "restricted-v2",
        ),
        (
            403,
            "unable to create new content in namespace lab because it is being terminated",
            "being deleted",
            "Wait",
        ),
        (403, "something else", "does not allow Job `j`", "admin"),
        (
            500,
            'Internal error occurred: failed calling webhook "v.pytorchjob.x": no endpoints',
            "`v.pytorchjob.x`",
            "is down",
        ),
        (401, "Unauthorized", "Your login to https://api has expired", "`oc login`"),
    ],
    ids=[
        "no right",
        "anonymous",
        "webhook",
        "queue",
        "quota",
        "pods",
        "namespace",
        "other",
        "no webhook",
        "login",
    ],
)
def test_a_refusal_is_explained_by_what_it_is(status, message, words, remedy, golden_message):
    stop = Refused(status, message, "https://api").stop("Job", "lab", "j")
    assert words in stop.text and remedy in stop.text
    assert ("edit" in stop.text) is False, "the role `edit` has no rights to training jobs"
    golden_message(stop.text)


@in_process
def test_the_readmes_own_way_into_a_namespace_of_kueues_names_the_setting(site, capsys):
    """OpenShift AI's webhook refuses a job without a queue there."""
    site.api.busy_at, site.api.busy = "/pytorchjobs/survival", [404, 403]
    site.api.says = (
        f"{HOOK}Kubeflow PyTorchJob survival: missing required label kueue.x-k8s.io/queue-name"
    )
    assert site.recipe("submit") == 1
    said = capsys.readouterr().err
    assert "only through a queue of Kueue" in said and "`openshift.queue`" in said


def served(tls: bool, tmp_path) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!DOCTYPE html><html><head><title>Log in with SSO</title></head></html>"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls:
        files = ["-keyout", tmp_path / "key", "-out", tmp_path / "cert"]
        make = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-days",
            "1",
        ]
        subprocess.run([*make, *files], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@in_process
@pytest.mark.parametrize(
    ("tls", "words", "remedy"),
    [
        (True, "is not trusted: self", "--certificate-authority=FILE"),
        (
            False,
            "answered with a web page (“Log in with SSO”), not with a cluster's API",
            "a proxy",
        ),
    ],
    ids=["certificate", "login page"],
)
def test_what_stands_before_the_api_is_said(site, tmp_path, capsys, tls, words, remedy):
    server = served(tls, tmp_path)
    file = tmp_path / "kubeconfig"
    scheme = "https" if tls else "http"
    file.write_text(
        file.read_text().replace(site.api.url, f"{scheme}://127.0.0.1:{server.server_address[1]}")
    )
    assert site.recipe("status") == 1
    server.shutdown()
    said = capsys.readouterr().err
    assert words in said and remedy in said


@in_process
@pytest.mark.parametrize("text", ["a: [b", "just words", "- a\n- b", "clusters: 7", "\tx", "{}"])
def test_a_kubeconfig_that_is_none_is_named(site, tmp_path, capsys, text):
    (tmp_path / "kubeconfig").write_text(text)
    assert site.recipe("status") == 1
    assert "`oc login`" in capsys.readouterr().err


@in_process
@pytest.mark.parametrize("follow", [False, True], ids=["status", "follow"])
def test_a_machine_that_does_not_answer_ends_nothing(site, capsys, follow):
    """The API is well; the kubelet behind one pod is not."""
    assert site.recipe("submit") == 0
    site.pods()
    train_to(site, 5)
    site.api.says = 'Get "https://10.0.0.7:10250/containerLogs/a/survival-master-0/pytorch": dial tcp: i/o timeout'
    site.api.busy_at, site.api.busy = "/log", [500] * 400
    capsys.readouterr()
    player = play(site, lambda: finish(site)) if follow else None
    assert site.recipe(*(("submit", "--follow") if follow else ("status",))) == 0
    if player:
        player.join()
    said = capsys.readouterr().out
    assert "training, 4 of 4 machines run" in said
    assert (
        "Its progress cannot be read now: The machine of Pod `survival-master-0` does not answer"
        in said
    )
    capsys.readouterr()
    if not follow:
        assert site.recipe("logs") == 1
        assert "The machine of Pod `survival-master-0` does not answer" in capsys.readouterr().err


def play(site, *steps) -> threading.Thread:
    """These things happen one after the other, each when whoever watches has seen the one
    before."""

    def run() -> None:
        while site.job() is None:
            time.sleep(0.02)
        for step in steps:
            looked(site)
            step()

    player = threading.Thread(target=run)
    player.start()
    return player


def asked(site, part: str) -> None:
    """Waits until somebody asks for what has this in its address."""
    begun, deadline = len(site.api.requests), time.monotonic() + 60
    while not any(part in line for line in site.api.requests[begun:]):
        assert time.monotonic() < deadline, site.api.requests[begun:]
        time.sleep(0.01)


def restart(site) -> None:
    """An API server that starts anew, as it answers from the first moment on: nobody, nobody known,
    no rights, no kinds of operators, then too busy."""
    for answers in ("faults", [401], [403], [404], [500, 503, 429]):
        if answers == "faults":
            site.api.faults = 3
        else:
            site.api.busy_at, site.api.busy = "", answers * 2
        deadline = time.monotonic() + 30
        while site.api.busy or site.api.faults:
            assert time.monotonic() < deadline, f"nobody asks again after {answers}"
            time.sleep(0.01)


@in_process
def test_following_outlives_an_api_server_that_starts_anew(site, capsys):
    """A user with few rights is refused until it has read who may do what, and its CRDs are not
    found."""
    player = play(site, lambda: restart(site), lambda: finish(site))
    assert site.recipe("submit", "--follow") == 0
    player.join()
    assert capsys.readouterr().out.rstrip().endswith("survival: finished")


@in_process
def test_following_a_log_outlives_an_api_server_that_starts_anew(site, capsys):
    assert site.recipe("submit") == 0
    site.pods()
    train_to(site, 5)
    player = threading.Thread(target=lambda: (asked(site, "/log"), restart(site), finish(site)))
    player.start()
    assert site.recipe("logs", "-f") == 0
    player.join()
    assert '"step": 5' in capsys.readouterr().out


@in_process
def test_a_right_that_is_taken_away_ends_the_watching(site, monkeypatch):
    """It was there a moment ago; what does not come back is no start."""
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 2.0)
    cluster = connect().once()
    assert cluster.list("Pod", site.namespace) == []
    site.api.busy = [403] * 100
    with pytest.raises(TryAgain, match="it is restarting"):
        cluster.list("Pod", site.namespace)
    time.sleep(2.1)
    with pytest.raises(Stop, match="You may not do this"):
        cluster.list("Pod", site.namespace)


@in_process
def test_a_right_that_was_never_there_is_said_at_once(site):
    site.api.busy = [403]
    with pytest.raises(Stop, match="You may not do this"):
        connect().list("Pod", site.namespace)


def test_without_a_cluster_nothing_waits_for_it(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert cli._code(["status", str(SURVIVAL)]) == 1


@in_process
def test_machines_that_a_quota_leaves_out_are_told(site, capsys):
    """Of four pods the operator may make one; the job itself says that all is well."""
    assert site.recipe("submit") == 0
    pods = site.pods()
    for pod in pods[1:]:
        site.cluster.delete("Pod", site.namespace, pod["metadata"]["name"], grace_seconds=0)
    site.event(
        "PyTorchJob",
        "survival",
        "SuccessfulCreatePod",
        "Created pod: survival-master-0",
        type="Normal",
    )
    site.event(
        "PyTorchJob",
        "survival",
        "FailedCreatePod",
        'pods "survival-worker-0" is forbidden: exceeded quota: gpus',
    )
    running = {"phase": "Running", "containerStatuses": [status_of("running", {})]}
    site.set_status("Pod", "survival-master-0", running)
    capsys.readouterr()
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert "train: waiting for machines, 1 of 4 machines run" in said
    assert "Only 1 of 4 pods exist: " in said and "Ask for a larger quota" in said


def status_of(state: str, how: dict, **more) -> dict:
    """What a kubelet says of the container that trains."""
    what = {
        "name": "pytorch",
        "image": "x",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {state: how},
    }
    return what | more


@in_process
def test_a_job_that_nobody_takes_up_is_told(site, capsys, monkeypatch):
    monkeypatch.setattr(api, "operate", lambda *_: None)
    assert site.recipe("submit") == 0
    old = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 200))
    site.api.objects["pytorchjobs", site.namespace, "survival"]["metadata"]["creationTimestamp"] = (
        old
    )
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert (
        "No operator has picked up the PyTorchJob for 3 min; the training operator may be down."
        in said
    )


@in_process
def test_a_plain_job_that_nobody_takes_up_is_not_the_training_operators(site, capsys):
    made = job_below(site) | {"kind": "Job"}
    made["metadata"]["creationTimestamp"] = time.strftime(
        "%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 200)
    )
    state = status.JobState(status.WAITING, made, [], now=datetime.now(UTC))
    assert reasons(state, lambda _pod: "") == [
        "No controller has picked up the Job for 3 min; the cluster's own for Jobs may be down. Ask the cluster's admin whether it runs."
    ]


@in_process
def test_a_crash_loop_shows_no_step_of_the_life_before(site, capsys, golden_message):
    """As a kubelet and the operator go through it: the container ends, waits, and after the last
    restart all pods go."""
    assert site.recipe("submit") == 0
    site.pods()
    train_to(site, 10)
    died = {"exitCode": 1, "message": "ValueError: a bad row"}
    loop = status_of(
        "waiting", {"reason": "CrashLoopBackOff"}, lastState={"terminated": died}, restartCount=3
    )
    site.set_status("Pod", "survival-master-0", {"phase": "Running", "containerStatuses": [loop]})
    capsys.readouterr()
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert "train: restarting after a failure, 3 of 4 machines run" in said and "step" not in said
    assert "ended, and was restarted (3 times so far). It reported: ValueError: a bad row" in said
    for pod in site.pods():
        site.cluster.delete("Pod", site.namespace, pod["metadata"]["name"], grace_seconds=0)
    over = "PyTorchJob survival has failed because it has reached the specified backoff limit"
    site.set_status(
        "PyTorchJob",
        "survival",
        {"conditions": [{"type": "Failed", "status": "True", "message": over}]},
    )
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert (
        "more often than `openshift.backoff_limit` allows" in said
        and "`recipe fetch RECIPE`" in said
    )
    assert site.recipe("logs") == 1
    said = capsys.readouterr().err
    assert "`recipe fetch RECIPE`" in said and "recipe status" not in said
    golden_message(said)
    assert site.recipe("submit", "--follow") == 1
    said = capsys.readouterr()
    assert (
        "has failed" in said.err
        and "`recipe stop RECIPE`" in said.err
        and "Watch it" not in said.out
    )


@in_process
def test_an_evicted_pod_that_was_replaced_leaves_a_word(site, capsys):
    """The operator makes another one of the same name at once; only an event tells of the first."""
    assert site.recipe("submit") == 0
    first = site.pods()[0]["metadata"]
    why = "The node was low on resource: memory."
    site.event("Pod", first["name"], "Evicted", "of an earlier job", seconds=900, uid="long-ago")
    site.event("Pod", first["name"], "Evicted", why, seconds=-1)
    site.event("Pod", first["name"], "Killing", "Stopping container pytorch", type="Normal")
    site.cluster.delete("Pod", site.namespace, first["name"], grace_seconds=0)
    site.pod(first["name"], site.job(), first["labels"])
    train_to(site, 20)
    capsys.readouterr()
    assert site.recipe("status") == 0
    said = capsys.readouterr().out
    assert "train: step 20 of 100" in said
    assert (
        f"`{first['name']}` was removed from its machine (" in said
        and why in said
        and "an earlier job" not in said
    )


def test_a_log_without_steps_in_its_end_is_no_start():
    noise = "a line\n" * status.TAIL
    for text, begins in (
        ("a line\n", True),
        (noise, False),
        ('[recipe] {"event": "begin", "step": 0, "steps": 9}\n', False),
    ):
        assert status.progress(text, None, datetime.now(UTC)).begins is begins


def test_a_node_that_is_not_ready_is_not_closed_to_other_work():
    said = why(
        [
            unscheduled(
                "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }."
            )
        ]
    )
    assert "not ready (not-ready)" in said and "closed" not in said


def test_the_scheduler_is_heard_where_a_claim_says_nothing(golden_message):
    said = why(
        [unscheduled('0/1 nodes are available: persistentvolumeclaim "workspace-pvc" not found.')]
    )
    assert 'persistentvolumeclaim "workspace-pvc" not found' in said
    golden_message(said)


@in_process
def test_a_claims_own_reason_counts_though_it_is_no_warning(site):
    """`FailedBinding` is an ordinary event (Kubernetes' persistent volume controller)."""
    assert site.recipe("submit") == 0
    site.pods()
    told = "no persistent volumes available for this claim and no storage class is set"
    site.event(
        "PersistentVolumeClaim",
        "trained-models-pvc",
        "ProvisioningSucceeded",
        "made",
        type="Normal",
        seconds=-1,
    )
    site.set_status("PersistentVolumeClaim", "trained-models-pvc", {"phase": "Bound"})
    site.event("PersistentVolumeClaim", "workspace-pvc", "FailedBinding", told, type="Normal")
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "message": "pod has unbound immediate PersistentVolumeClaims.",
    }
    site.set_status("Pod", "survival-master-0", {"phase": "Pending", "conditions": [condition]})
    said = "\n".join(reasons(status.read_state(site.cluster, site.job()), lambda _pod: ""))
    assert f"Claim `workspace-pvc`: {told}." in said


@in_process
def test_a_helper_says_what_it_waits_for_and_goes_away_on_sigterm(site, tmp_path, monkeypatch):
    """As a program of its own, and as whoever ends it from outside sees it."""
    monkeypatch.setattr(api, "start_share", lambda *_: None)
    for name in ("trained-models-pvc", "workspace-pvc"):
        site.claim(name)
    command = [
        "fetch",
        str(SURVIVAL),
        "--set",
        f"openshift.namespace={site.namespace}",
        "--to",
        str(tmp_path / "home"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "runner", *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (
        helpers := site.cluster.list("Pod", site.namespace, {"recipe-runner/part": "fetch"})
    ):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    name = helpers[0]["metadata"]["name"]
    site.event("Pod", name, "FailedAttachVolume", "Multi-Attach error for volume pvc-1")
    creating = [
        {"name": "fetch", "image": "x", "state": {"waiting": {"reason": "ContainerCreating"}}}
    ]
    site.set_status("Pod", name, {"phase": "Pending", "containerStatuses": creating})
    end = threading.Timer(60, process.kill)  # so that this test ends, whatever happens
    end.start()
    assert any("Multi-Attach error" in line for line in process.stdout)
    end.cancel()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130
    assert site.cluster.get("Pod", site.namespace, name) is None


def config_maps(site, path: str = "survival") -> list[str]:
    """Those of the jobs that train."""
    found = site.cluster.list(
        "ConfigMap", site.namespace, {"app.kubernetes.io/managed-by": "recipe-runner"}
    )
    names = [one["metadata"]["name"] for one in found]
    return sorted(name for name in names if name.startswith(path) and "-model-" not in name)


def test_a_config_map_that_is_gone_is_made_anew(site, capsys):
    assert site.recipe("submit") == 0
    (name,) = config_maps(site)
    uid = site.job()["metadata"]["uid"]
    time.sleep(1.1)  # a cluster counts whole seconds
    site.cluster.delete("ConfigMap", site.namespace, name)
    capsys.readouterr()
    assert site.recipe("submit") == 0
    assert f"ConfigMap `{name}`, which its pods read, was missing" in capsys.readouterr().out
    assert config_maps(site) == [name] and site.job()["metadata"]["uid"] == uid


def test_config_maps_of_earlier_jobs_are_taken_away(site):
    assert site.recipe("submit", "--set", "openshift.job_name=survival-two") == 0
    assert site.recipe("submit") == 0
    before = config_maps(site)
    assert len(before) == 2
    assert site.recipe("submit", "--set", "train.epochs=2", "--yes") == 0
    now = config_maps(site)
    for _ in range(300):
        # A deleted object may remain until the cluster's garbage collector has looked at it.
        if len(now) == 2:
            break
        time.sleep(0.1)
        now = config_maps(site)
    assert len(now) == 2 and len(set(now) & set(before)) == 1
    assert [name for name in now if name.startswith("survival-two-")] == [
        name for name in before if "two" in name
    ]


def by_hand(site, *sets: str) -> None:
    """`oc apply -k` of a rendered recipe, which reads everything before it changes it."""
    recipe, _, _ = load(SURVIVAL, from_options((f"openshift.namespace={site.namespace}", *sets)))
    plan = planned(recipe, "pytorchjob")
    mine = connect()
    for what in [render_job(plan, stage) for stage in plan.stages]:
        for manifest in (*what.support, what.job):
            there = mine.get(manifest["kind"], site.namespace, manifest["metadata"]["name"])
            # A claim keeps what it is, and a Job that is done too.
            if there is None or manifest["kind"] not in ("PersistentVolumeClaim", "Job"):
                mine.apply(manifest)
    for _ in range(300):
        if site.job("Job", "survival-model").get("status", {}).get("conditions"):
            return
        time.sleep(0.1)
    raise AssertionError("the model has not come")


def test_a_changed_recipe_that_was_applied_by_hand_is_not_what_its_pods_are(site, capsys):
    """The operator changes nothing about pods that are there."""
    by_hand(site)
    site.pods()
    assert site.recipe("submit") == 0
    assert "Nothing changes" in capsys.readouterr().out
    by_hand(site, "train.epochs=2")
    changed = ("--set", "train.epochs=2")
    assert site.recipe("status", *changed) == 0
    assert "  Made from another version of the recipe or its data." in capsys.readouterr().out
    assert site.recipe("submit", *changed) == 1
    said = capsys.readouterr()
    assert (
        "is running, made from another version of this recipe." in said.err
        and "Nothing changes" not in said.out
    )
    uid = site.job()["metadata"]["uid"]
    assert site.recipe("submit", *changed, "--yes") == 0
    assert site.job()["metadata"]["uid"] != uid


def test_a_stage_at_work_that_the_recipe_has_no_more_is_shown(site, capsys):
    seven_b = "recipes/seven-b.yaml"
    recipe, _, _ = load(ROOT / seven_b, from_options((f"openshift.namespace={site.namespace}",)))
    plan = planned(recipe, "pytorchjob")
    for name in ("lora", "dpo"):
        what = render_job(plan, plan.stage(name))
        for manifest in (*what.support, what.job):
            if (
                site.cluster.get(manifest["kind"], site.namespace, manifest["metadata"]["name"])
                is None
            ):
                site.cluster.apply(manifest)
    capsys.readouterr()
    assert site.recipe("status", "--set", "stages.3=", path=seven_b) == 0
    said = capsys.readouterr().out
    assert (
        "\ndpo: waiting for machines" in said
        and "PyTorchJob `seven-b-lora`: waiting for machines" in said
    )
    assert f"oc delete pytorchjob seven-b-lora -n {site.namespace}" in said
    assert said.count("oc delete") == 1
    # Nor is it of another recipe, whatever that is called.
    assert site.recipe("status") == 0
    assert "oc delete" not in capsys.readouterr().out


def test_a_command_loads_no_models_of_the_client(tmp_path):
    """They took half of its time; who imports the client later gets the whole."""
    (tmp_path / "kubeconfig").write_text(json.dumps(KUBECONFIG))
    code = (
        "import sys; from runner.parts.openshift.client import connect; cluster = connect()\n"
        "assert cluster.server == 'https://127.0.0.1:1', cluster.server\n"
        "assert [name for name in sys.modules if name.partition('.')[0] == 'kubernetes'] == []\n"
        "assert not {'requests', 'oauthlib', 'google.auth', 'cryptography'} & set(sys.modules)\n"
        "assert not any('kubernetes/client/models' in str(getattr(one, '__file__', '')) for one in sys.modules.values())\n"
        "from kubernetes.client import ApiClient, CoreV1Api\n"
        "CoreV1Api(ApiClient(cluster.configuration))"
    )
    env = os.environ | {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_what_former_logins_need_is_there_when_it_is_used():
    """In a process of its own, because what is imported already stays."""
    code = (
        "from runner.parts.openshift.client import client_parts; config, _, rest = client_parts()\n"
        "import sys; assert 'requests_oauthlib' not in sys.modules\n"
        "assert type(config.OAuth2Session(client_id='x')).__module__ == 'requests_oauthlib.oauth2_session'\n"
        "assert issubclass(config.oauthlib.oauth2.rfc6749.errors.InvalidClientIdError, Exception)\n"
        "assert rest.should_bypass_proxies('http://a.b', no_proxy='a.b') is True"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


KUBECONFIG = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [],
}


def test_who_asks_may_be_told_by_a_program(site, tmp_path, monkeypatch):
    """As most logins of today do (client.authentication.k8s.io/v1)."""
    if site.api is None:
        pytest.skip("this cluster lacks a login for any token")
    given = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": TESTS},
    }
    program = tmp_path / "login"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(given)}'\n")
    program.chmod(0o755)
    how = {"apiVersion": given["apiVersion"], "command": str(program), "interactiveMode": "Never"}
    value = KUBECONFIG | {
        "clusters": [{"name": "a", "cluster": {"server": site.api.url}}],
        "users": [{"name": "a", "user": {"exec": how}}],
    }
    (tmp_path / "other").write_text(json.dumps(value))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "other"))
    assert connect().list("Secret", site.namespace) == [], "only the tests' own token may list them"


def test_a_helper_that_nobody_asks_any_more_ends_by_itself(tmp_path, monkeypatch):
    """Whoever is killed (SIGKILL) deletes no pod."""
    monkeypatch.setattr(file_server, "IDLE_SECONDS", 2.5)
    (tmp_path / "file").write_text("text")
    server = file_server.FileServer(("127.0.0.1", 0), tmp_path, "word")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    for _ in range(6):
        time.sleep(0.6)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.server_address[1]}/word/file/file"
        ) as answer:
            assert answer.read() == b"text"
    serving.join(10)
    assert not serving.is_alive()
    server.server_close()


def test_a_helper_whose_command_hashes_a_large_file_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr(helper_pod, "ALIVE_SECONDS", 0.2)
    (tmp_path / "claim").mkdir()
    server = file_server.FileServer(("127.0.0.1", 0), tmp_path / "claim", "word")
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    share = helper_pod.Share(PlainCluster(f"http://127.0.0.1:{server.server_address[1]}"), "word")
    with helper_pod._kept_alive(share):
        before = server.alive
        time.sleep(1)
        assert server.alive > before
    time.sleep(0.3)
    after = server.alive
    time.sleep(0.6)
    assert server.alive == after, "nobody asks after the command"
    server.shutdown()
    server.server_close()


class PlainCluster:
    """The way to a helper without an API between."""

    def __init__(self, address: str) -> None:
        self.address = address

    def request(self, _method: str, path: str, **_how: object) -> None:
        with urllib.request.urlopen(f"{self.address}/{path}", timeout=5) as answer:
            answer.read()


# Moments of change: what the API answers between two states, in the order in which a real operator
# makes them.


def seen(site, kind: str = "PyTorchJob") -> tuple[str, str]:
    """What `recipe status` says now: the line, and the reasons."""
    state = status.read_state(site.cluster, site.job(kind))
    return watch.describe_state(state), "\n".join(reasons(state, lambda _pod: ""))


def set_pod(site, name: str, phase: str, **of_container) -> None:
    entries = [
        {
            "name": "pytorch",
            "image": "x",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            **of_container,
        }
    ]
    site.set_status(
        "Pod", name, {"phase": phase, "containerStatuses": entries if of_container else []}
    )


def write(site, pod: str, *events: dict) -> None:
    site.api.logs[(pod, "now")] = [(stamp(), f"[recipe] {json.dumps(event)}") for event in events]


@in_process
def test_a_pytorchjob_is_followed_through_every_moment_of_its_life(site, monkeypatch):
    """Pods come one by one; one is evicted, goes, and comes again under its name, whose log begins
    anew."""
    monkeypatch.setattr(api, "operate", lambda *_: None)
    assert site.recipe("submit") == 0
    made = [f"survival-{name}" for name in ("master-0", "worker-0", "worker-1", "worker-2")]
    running = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "ready": True}

    def make(name: str) -> None:
        role, index = name.split("-")[1:]
        labels = {
            "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": index,
        }
        site.pod(
            name,
            site.job(),
            labels | {"training.kubeflow.org/job-name": "survival"},
            phase="Pending",
        )

    assert seen(site) == ("waiting for machines, no machine yet", "")
    site.set_status(
        "PyTorchJob", "survival", {"conditions": [{"type": "Created", "status": "True"}]}
    )
    for count, name in enumerate(made):
        make(name)
        assert seen(site) == (f"waiting for machines, 0 of {len(made)} machines run", ""), count
    for name in made:
        set_pod(site, name, "Pending", state={"waiting": {"reason": "ContainerCreating"}})
    assert seen(site)[0] == "pulling image and code, 0 of 4 machines run"
    for count, name in enumerate(made, 1):
        set_pod(site, name, "Running", **running)
        began = "starting" if count == 4 else "pulling image and code"
        assert seen(site)[0] == f"{began}, {count} of 4 machines run"
    write(
        site,
        made[0],
        {"event": "begin", "step": 0, "steps": 100},
        {"event": "step", "step": 30, "steps": 100, "loss": 1},
    )
    assert seen(site)[0].startswith("step 30 of 100")

    why = "The node was low on resource: memory."
    site.event("Pod", made[0], "Evicted", why)
    site.set_status(
        "Pod",
        made[0],
        {"phase": "Failed", "reason": "Evicted", "message": why, "containerStatuses": []},
    )
    line, said = seen(site)
    assert line == "restarting after a failure, 3 of 4 machines run" and said.count(why) == 1
    site.api.delete("pods", site.namespace, made[0], {})
    line, said = seen(site)
    assert (
        line == "waiting for machines, 3 of 4 machines run"
        and f"`{made[0]}` was removed from its machine" in said
    )
    make(made[0])
    assert seen(site)[0] == "waiting for machines, 3 of 4 machines run"
    site.api.logs.pop((made[0], "now"))
    set_pod(site, made[0], "Running", **running)
    assert seen(site)[0] == "starting, 4 of 4 machines run"
    write(site, made[0], {"event": "begin", "step": 20, "steps": 100})
    assert seen(site)[0].startswith("step 20 of 100") and why in seen(site)[1]
    for name in made:
        set_pod(site, name, "Succeeded", state={"terminated": {"exitCode": 0}})
    assert seen(site)[0].startswith("step 20 of 100"), "the operator has not seen it yet"
    finish(site)
    assert seen(site) == ("finished", "")


@in_process
def test_a_resubmitted_pytorchjob_waits_for_the_names_of_the_pods_before(site, monkeypatch):
    """They are still ending, under the very names that its own will have."""
    assert site.recipe("submit") == 0
    old = site.pods()
    train_to(site, 50)
    monkeypatch.setattr(api, "operate", lambda *_: None)
    del site.api.objects["pytorchjobs", site.namespace, "survival"]
    for pod in old:
        site.api.objects["pods", site.namespace, pod["metadata"]["name"]]["metadata"][
            "deletionTimestamp"
        ] = stamp()
    by_hand(site)
    assert seen(site) == ("waiting for machines, no machine yet", "")
    with pytest.raises(watch.NotYet):
        watch.pod_of(site.cluster, site.job(), 0)


@in_process
def test_a_trainjob_is_followed_through_every_moment_of_its_life(site):
    """First there is no JobSet, then its Job without pods, then the pod; one fails, and the Job
    makes another."""
    trainjob_alone(site, "machines.nodes=1", "train.effective_batch_size=16")
    labels = {
        jobs.POD_LABEL["TrainJob"]: "survival",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    assert seen(site, "TrainJob") == ("waiting for machines, no machine yet", "")
    below = job_below(site)
    site.event(
        "Job",
        below["metadata"]["name"],
        "FailedCreate",
        'pods "x" is forbidden: exceeded quota: gpus',
    )
    assert "No pods exist: " in seen(site, "TrainJob")[1]
    site.event(
        "Job",
        below["metadata"]["name"],
        "SuccessfulCreate",
        "Created pod",
        type="Normal",
        seconds=-1,
    )
    assert seen(site, "TrainJob") == ("waiting for machines, no machine yet", "")
    site.pod("survival-node-0-0-aaaaa", below, labels, phase="Running")
    write(site, "survival-node-0-0-aaaaa", {"event": "step", "step": 3, "steps": 9})
    assert seen(site, "TrainJob")[0].startswith("step 3 of 9")
    ended = [
        {
            "name": "node",
            "image": "x",
            "state": {"terminated": {"exitCode": 1, "message": "a bad row"}},
        }
    ]
    site.set_status(
        "Pod", "survival-node-0-0-aaaaa", {"phase": "Failed", "containerStatuses": ended}
    )
    assert seen(site, "TrainJob")[0] == "restarting after a failure, 0 of 1 machines run"
    time.sleep(0.01)
    site.pod("survival-node-0-0-bbbbb", below, labels, phase="Pending")
    line, said = seen(site, "TrainJob")
    assert (
        line == "waiting for machines, 0 of 1 machines run"
        and "since replaced) ended. It reported: a bad row" in said
    )


def test_a_forward_that_gets_no_answer_closes_quietly(tmp_path, monkeypatch):
    """The client itself stumbles there (36.0.3), in a thread whose trace nobody could use."""
    (tmp_path / "kubeconfig").write_text(json.dumps(KUBECONFIG))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    here, there = socket.socketpair()
    client._join(connect(), "a", "pod", 6006, here)
    assert there.recv(1) == b""
    there.close()
