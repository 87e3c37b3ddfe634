"""A pipeline that walks by itself: the driver is a real process with its account's rights alone."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from runner.check.validate import load
from runner.parts.openshift import client, pipeline
from runner.parts.openshift.jobs import render_job
from runner.parts.openshift.status import ended
from runner.parts.openshift.submit import Sending, send_next_part
from runner.plan import PLAN_FILE
from runner.scenarios import planned
from runner.tools.problem import Stop
from tests.conftest import ON_CLUSTER
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.machines import Machines
from tests.parts.openshift.test_pipeline import (
    ALL,
    TABLE,
    WHO,
    claim,
    end,
    finish,
    plan_of,
    recipe,
    uid,
)

__all__ = ["claim"]
DRIVER = "seven-b-driver"


@pytest.fixture
def machines(site):
    made = Machines(site.api, lambda job: job["metadata"]["name"] == DRIVER)
    yield made
    made.close()


def when(look, what: str, seconds: float = 120):
    """What is seen, once it is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not seen: {what}")


def there(site, name: str, kind: str = "PyTorchJob", other_than: str = ""):
    def look():
        job = site.job(kind, name)
        return job if job and job["metadata"]["uid"] != other_than else None

    return when(look, f"{kind} {name}")


def over(site) -> str:
    """How the driver has ended."""
    return when(lambda: ended(site.job("Job", DRIVER) or {"status": {}}), "the driver's end")


@pytest.mark.long
@in_process
def test_it_walks_dies_goes_on_ends_at_a_closed_gate_and_goes_on_after_a_promotion(
    site, capsys, claim, machines
):
    finish(site, *ALL[:4])
    assert recipe(site, "submit", "--all") == 0
    said = capsys.readouterr().out
    assert "PyTorchJob `seven-b-pretrain-2048` to" in said and f"Job `{DRIVER}` to" in said
    first = uid(site, "pretrain-2048")

    # It dies while a stage trains, and the next one finds that stage at work.
    machines.pod_of(DRIVER).send_signal(signal.SIGKILL)
    when(lambda: machines.lives.get(DRIVER), "its death")
    machines.pod_of(DRIVER)
    assert recipe(site, "submit", "--all") == 0
    assert (
        f"Job `{DRIVER}` already exists and continues by itself. Nothing changes."
        in capsys.readouterr().out
    )
    assert recipe(site, "status") == 0
    shown = capsys.readouterr().out
    assert "pretrain-2048: waiting for machines" in shown and "driver: continues by itself" in shown

    # A stage, its gate, the next stage, without anybody, and through an API server that starts
    # anew.
    site.api.busy = [503] * 9
    when(lambda: not site.api.busy, "its patience")
    end(site, "seven-b-pretrain-2048")
    there(site, "seven-b-pretrain-2048-gate", "Job")
    assert uid(site, "pretrain-2048") == first and machines.lives[DRIVER] == [137]
    end(site, "seven-b-pretrain-2048-gate", kind="Job")
    there(site, "seven-b-sft")
    end(site, "seven-b-sft")
    there(site, "seven-b-sft-gate", "Job")

    # A closed gate ends it, once and for all, with its reason.
    end(site, "seven-b-sft-gate", well=False, kind="Job", message=TABLE)
    assert over(site) == "failed" and machines.lives[DRIVER] == [137, 3]
    assert site.job(name="seven-b-dpo") is None
    assert recipe(site, "status") == 0
    shown = capsys.readouterr().out
    assert (
        "driver: has ended" in shown
        and "gate after `sft` is closed, so later stages do not start." in shown
    )
    assert "perplexity  < 15      99.2      MISSED" in shown.partition("driver:")[2]
    assert recipe(site, "submit", "--all") == 1
    assert "gate after `sft` is closed" in capsys.readouterr().err

    # A person's word wakes it.
    assert recipe(site, "promote", "sft", *WHO) == 0
    assert f"Job `{DRIVER}` to" in capsys.readouterr().out
    for stage in ("dpo", "lora"):
        there(site, f"seven-b-{stage}")
        end(site, f"seven-b-{stage}")
        there(site, f"seven-b-{stage}-gate", "Job")
        end(site, f"seven-b-{stage}-gate", kind="Job")
    assert over(site) == "finished"
    capsys.readouterr()
    assert recipe(site, "status") == 0
    assert "driver: done" in capsys.readouterr().out
    assert recipe(site, "submit", "--all") == 0
    assert "Every stage of `seven-b` is finished" in capsys.readouterr().out


@in_process
def test_a_changed_recipe_replaces_it_and_stop_ends_it_too(site, capsys, machines):
    finish(site, *ALL[:4])
    assert recipe(site, "submit", "--all") == 0
    machines.pod_of(DRIVER)
    before, stage = site.job("Job", DRIVER)["metadata"]["uid"], uid(site, "pretrain-2048")
    assert recipe(site, "submit", "--all", "--set", "stages.3.train.lora_rank=32") == 0
    there(site, DRIVER, "Job", other_than=before)
    assert uid(site, "pretrain-2048") == stage, "what runs is the same in both"
    maps = site.cluster.list("ConfigMap", site.namespace, {"recipe-runner/stage": "driver"})
    assert len(maps) == 1, "that of the one before is gone"
    process = machines.pod_of(DRIVER)
    capsys.readouterr()
    assert recipe(site, "stop", "--stage", "lroa") != 0
    assert "lroa" in capsys.readouterr().err and process.poll() is None
    assert site.job("Job", DRIVER), "a misspelled stage stops nothing"
    assert recipe(site, "stop") == 0
    said = capsys.readouterr().out
    assert f"Stopped Job `{DRIVER}`, PyTorchJob `seven-b-pretrain-2048`." in said
    process.wait(30)
    assert site.job("Job", DRIVER) is None and site.job(name="seven-b-pretrain-2048") is None


@in_process
def test_what_is_sent_of_a_changed_recipe_ends_a_driver_that_would_undo_it(site, capsys, machines):
    finish(site, *ALL[:4])
    assert recipe(site, "submit", "--all") == 0
    process = machines.pod_of(DRIVER)
    capsys.readouterr()
    changed = ("--set", "stages.0.train.learning_rate=1e-4")
    assert recipe(site, "submit", *changed) == 1
    assert "`seven-b-pretrain-2048` is running" in capsys.readouterr().err
    assert process.poll() is None, "nothing is done before a yes"
    assert recipe(site, "submit", *changed, "--yes") == 0
    assert f"Job `{DRIVER}`: deleted" in capsys.readouterr().out
    process.wait(30)
    assert site.job("Job", DRIVER) is None


@in_process
def test_a_failed_stage_ends_it_and_is_not_tried_again_by_itself(site, capsys, machines):
    finish(site, *ALL[:1])
    assert recipe(site, "submit", "--all") == 0
    first = uid(site, "init")
    end(site, "seven-b-init", well=False, kind="Job", message="No room on the disk.")
    assert over(site) == "failed"
    assert uid(site, "init") == first and machines.lives[DRIVER] == [3]
    capsys.readouterr()
    assert recipe(site, "status") == 0
    assert "No room on the disk." in capsys.readouterr().out.partition("driver:")[2]
    assert recipe(site, "submit", "--all") == 0
    there(site, "seven-b-init", "Job", other_than=first)


@in_process
def test_what_fails_while_it_looks_is_not_tried_again_either(site):
    finish(site, *ALL[:1])
    options = Sending(print, lambda *_: False, unattended=True)
    assert send_next_part(site.cluster, plan_of(site), None, options).name == "seven-b-init"
    first = uid(site, "init")
    end(site, "seven-b-init", well=False, kind="Job", message="No room on the disk.")
    with pytest.raises(
        Stop, match=r"`init` has failed, so later stages do not start\..*No room on the disk"
    ):
        send_next_part(site.cluster, plan_of(site), None, options)
    assert uid(site, "init") == first


@in_process
def test_nothing_is_sent_where_the_site_has_no_account_for_it(site, capsys, golden_message):
    site.api.accounts.remove("recipe-driver")
    assert recipe(site, "submit", "--all") == 1
    golden_message(capsys.readouterr().err)
    assert site.job("Job", "seven-b-data") is None


@in_process
def test_a_dry_run_judges_the_driver_too_and_one_stage_is_not_all(site, capsys):
    finish(site, *ALL[:4])
    assert recipe(site, "submit", "--all", "--dry-run") == 0
    assert f"The cluster would accept Job `{DRIVER}`" in capsys.readouterr().out
    assert site.job("Job", DRIVER) is None and site.job(name="seven-b-pretrain-2048") is None
    assert recipe(site, "submit", "--all", "--stage", "sft") == 2


@pytest.mark.parametrize("path", ON_CLUSTER, ids=lambda path: path.stem)
def test_what_it_sends_is_what_a_person_sends(path):
    """Its plan has gone through JSON, and makes the same manifests, byte for byte."""
    plan = planned(load(path)[0], "pytorchjob")
    text = pipeline.driver_stage(plan)[1].files[0].text
    again, earlier = pipeline.read_plan_text(text), pipeline.read_plan_text(plan.as_json())
    # Each stage's own plan follows from the whole, and their recipe is there once.
    form = json.loads(text)
    assert [
        file["text"]
        for stage in form["stages"]
        for file in stage["files"]
        if file["path"] == PLAN_FILE
    ] == [None] * len(plan.stages)
    assert len(set(form["texts"])) == len(form["texts"])
    # A driver of an earlier release has a plan that repeats them, and a new pod of it may have this
    # code.
    assert [stage.files for stage in earlier.stages] == [stage.files for stage in again.stages]
    for stage in plan.stages:
        for of_gate in (False, True) if stage.gates else (False,):
            ours, its = (
                render_job(one, one.stage(stage.name), of_gate=of_gate) for one in (plan, again)
            )
            assert (yaml.safe_dump(ours.job), ours.support) == (
                yaml.safe_dump(its.job),
                its.support,
            )


def test_it_is_a_small_pod_that_holds_no_claim_and_may_ask_the_cluster(site, golden_message):
    job = pipeline.render_driver(plan_of(site), None, "").job
    pod = job["spec"]["template"]["spec"]
    assert {volume["name"] for volume in pod["volumes"]} == {"config", "tmp"}
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (
        "recipe-driver",
        True,
    )
    del job["spec"]["template"]["spec"]["containers"][0]["env"]
    job["spec"]["template"]["spec"]["volumes"] = [volume["name"] for volume in pod["volumes"]]
    golden_message(
        yaml.safe_dump({"spec": job["spec"]}).replace(plan_of(site).fingerprint, "<fingerprint>")
    )


def test_a_pod_trusts_the_clusters_own_authority_alone_and_reads_its_key_each_time(tmp_path):
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
        files = ["-keyout", tmp_path / name / "key", "-out", tmp_path / name / "ca.crt"]
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "1"]
        make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject, *files]
        subprocess.run(make, check=True, capture_output=True)
        (tmp_path / name / "token").write_text("one\n")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "here" / "ca.crt", tmp_path / "here" / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"https://127.0.0.1:{server.server_address[1]}"

    def ask(keys: Path) -> None:
        client.connect_in_pod(host, keys, "a").get("Job", "a", "b")

    ask(tmp_path / "here")
    (tmp_path / "here" / "token").write_text("two")
    ask(tmp_path / "here")
    assert asked == ["Bearer one", "Bearer two"]
    with pytest.raises(Stop, match="is not trusted"):
        ask(tmp_path / "elsewhere")
    (tmp_path / "here" / "token").unlink()
    with pytest.raises(Stop, match="has no credentials for the cluster:"):
        ask(tmp_path / "here")
    server.shutdown()
    server.server_close()
