"""Whose a job is: who sent it, from which machine and recipe file, and that nobody else ends or
replaces it unasked."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from runner.commands import cli
from runner.parts.openshift import pipeline
from runner.parts.openshift.client import Cluster, connect
from runner.parts.openshift.errors import Refused
from runner.parts.openshift.jobs import OWNER, Owner
from runner.parts.openshift.kfp import task as kfp_task
from runner.parts.serve.cluster import SERVICE
from runner.plan import PLAN_FILE
from tests.conftest import ROOT
from tests.parts.openshift.api import KEY_OF
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.test_flows import manifests
from tests.parts.openshift.test_kfp import argo, emitted, run_of
from tests.parts.openshift.test_pipeline import ALL, claim, end, recipe
from tests.parts.openshift.test_pipeline import finish as finish_stages
from tests.parts.openshift.test_serving import READY, Serve, platform, pod_soon
from tests.parts.openshift.test_walking import DRIVER, machines, there
from tests.parts.openshift.test_watching import finish, train_to

__all__ = ["claim", "machines", "platform"]
SURVIVAL = ROOT / "recipes" / "survival.yaml"
CHANGED = ("--set", "train.epochs=2")


@pytest.fixture
def colleagues(site, monkeypatch, capsys):
    """Ann has sent survival; the commands that come now are Bob's."""
    site.becomes("ann", monkeypatch)
    assert site.recipe("submit") == 0
    site.becomes("bob", monkeypatch)
    capsys.readouterr()
    return site


def refused(site, capsys, *arguments: str) -> str:
    capsys.readouterr()
    assert site.recipe(*arguments) == 1
    return capsys.readouterr().err


@in_process
def test_a_job_records_who_sent_it_and_from_where(site, monkeypatch):
    site.becomes("ann", monkeypatch)
    assert site.recipe("submit") == 0
    assert Owner.of(site.job()) == Owner("ann", "anns-desk", str(SURVIVAL))
    assert Owner.of(site.job("Job", "survival-model")).person == "ann"


@in_process
def test_rendered_files_do_not_record_it(site, monkeypatch):
    site.becomes("ann", monkeypatch)
    assert not any(mark in str(one) for one in manifests(SURVIVAL, "pytorchjob") for mark in OWNER)


@in_process
@pytest.mark.parametrize("answers", [True, False])
def test_where_the_cluster_does_not_name_its_user_the_kubeconfig_does(site, monkeypatch, answers):
    if not answers:
        site.api.missing.add("selfsubjectreviews")
    site.becomes("ann", monkeypatch)
    site.api.people.update(dict.fromkeys(site.api.people, "system:serviceaccount:lab:ann"))
    assert site.recipe("submit") == 0
    assert Owner.of(site.job()).person == ("system:serviceaccount:lab:ann" if answers else "ann")


@in_process
def test_an_expired_login_is_no_other_person(site, capsys):
    site.api.busy_at, site.api.busy = "/selfsubjectreviews", [401]
    assert "Your login to" in refused(site, capsys, "submit")
    assert site.job() is None


@in_process
def test_stop_asks_before_it_ends_the_job_of_another_person(colleagues, capsys, golden_message):
    site = colleagues
    golden_message(refused(site, capsys, "stop"))
    for options in (("--yes",), ("--take-over", "carol"), ("--yes", "--take-over", "bob")):
        assert "--take-over ann" in refused(site, capsys, "stop", *options)
    assert site.job() is not None
    assert site.recipe("stop", "--take-over", "ann") == 0
    assert site.job() is None


@in_process
@pytest.mark.parametrize("state", ["under way", "finished"])
def test_submit_asks_before_it_replaces_the_job_of_another_person(
    colleagues, capsys, golden_message, state
):
    """A finished one too, because its results would be overwritten."""
    site, uid = colleagues, colleagues.job()["metadata"]["uid"]
    if state == "finished":
        finish(site)
    golden_message(refused(site, capsys, "submit", *CHANGED))
    assert "--take-over ann" in refused(site, capsys, "submit", *CHANGED, "--yes")
    assert site.job()["metadata"]["uid"] == uid
    assert site.recipe("submit", *CHANGED, "--take-over", "ann") == 0
    assert site.job()["metadata"]["uid"] != uid and Owner.of(site.job()).person == "bob"


@in_process
def test_a_dry_run_says_whose_job_would_be_replaced(colleagues, capsys, golden_message):
    site, uid = colleagues, colleagues.job()["metadata"]["uid"]
    assert site.recipe("submit", *CHANGED, "--dry-run") == 0
    golden_message(capsys.readouterr().out)
    assert site.job()["metadata"]["uid"] == uid


@in_process
def test_on_a_terminal_yes_is_not_enough_either(colleagues, monkeypatch):
    site, asked = colleagues, []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda question: asked.append(question) or len(asked) > 2)
    assert site.recipe("submit", *CHANGED, "--yes") == site.recipe("stop", "--yes") == 1
    assert (
        site.job() is not None
        and len(asked) == 2
        and all("ann sent it" in question for question in asked)
    )
    assert site.recipe("stop", "--yes") == 0
    assert site.job() is None


@in_process
def test_the_same_recipe_from_two_people_is_one_job_and_says_whose(
    colleagues, capsys, golden_message
):
    site, uid = colleagues, colleagues.job()["metadata"]["uid"]
    assert site.recipe("submit") == 0
    golden_message(capsys.readouterr().out.partition("Watch it")[0])
    assert site.job()["metadata"]["uid"] == uid and Owner.of(site.job()).person == "ann"


@in_process
def test_status_and_all_who_read_name_the_owner(colleagues, capsys, golden_message):
    site = colleagues
    train_to(site, 50)
    assert site.recipe("status") == 0
    golden_message(capsys.readouterr().out, "status")
    assert site.recipe("status", *CHANGED) == 0
    assert "  Made from another version of the recipe or its data." in capsys.readouterr().out
    assert cli._code(["status", "-n", site.namespace]) == 0
    titles, *rows = capsys.readouterr().out.splitlines()
    assert titles.endswith("sent by") and all(row.endswith("ann") for row in rows)
    whose = f"ann sent it from anns-desk, with the recipe file `{SURVIVAL}`."
    assert site.recipe("logs") == 0
    assert capsys.readouterr().err.startswith(whose)
    assert cli._code(["why", str(SURVIVAL), "--set", f"openshift.namespace={site.namespace}"]) == 0
    assert whose in capsys.readouterr().out
    site.recipe("fetch")
    assert whose in capsys.readouterr().out


@in_process
def test_ones_own_job_is_ended_without_a_question_and_one_from_another_file_with_one(
    site, capsys, golden_message, monkeypatch, tmp_path
):
    site.becomes("ann", monkeypatch)
    copy = tmp_path / "copy" / "survival.yaml"
    copy.parent.mkdir()
    (copy.parent / "data").symlink_to(SURVIVAL.parent / "data")
    copy.write_bytes(SURVIVAL.read_bytes())
    for options in ((), ("--yes",)):
        assert site.recipe("submit", path=str(copy)) == 0
        if options:
            capsys.readouterr()
            assert site.recipe("status") == 0 and f"`{copy}`" in capsys.readouterr().out
            golden_message(refused(site, capsys, "stop"))
        assert site.recipe("stop", *options, path=str(copy) if not options else str(SURVIVAL)) == 0
        assert site.job() is None


@in_process
def test_a_job_that_records_nobody_is_ended_after_a_yes(site, capsys, golden_message):
    """Sent by an older version, or by `oc apply`."""
    assert site.recipe("submit") == 0
    meta = site.api.objects["pytorchjobs", site.namespace, "survival"]["metadata"]
    meta["annotations"] = {
        name: text for name, text in meta["annotations"].items() if name not in OWNER
    }
    capsys.readouterr()
    assert site.recipe("status") == 0
    assert "sent" not in next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("train")
    )
    golden_message(refused(site, capsys, "stop"), "stop")
    golden_message(refused(site, capsys, "submit", *CHANGED), "submit")
    assert site.recipe("submit", *CHANGED, "--yes") == 0
    assert Owner.of(site.job()).person == "ann"


@in_process
def test_the_driver_sends_for_the_person_who_sent_it(site, capsys, claim, machines, monkeypatch):
    finish_stages(site, *ALL[:3])
    site.becomes("ann", monkeypatch)
    assert recipe(site, "submit", "--all") == 0
    assert Owner.of(site.job("Job", DRIVER)).person == "ann"
    end(site, "seven-b-pretrain-1024")
    assert Owner.of(there(site, "seven-b-pretrain-2048")) == Owner.of(site.job("Job", DRIVER))
    site.becomes("bob", monkeypatch)
    for verb in (
        ("stop", "--yes"),
        ("submit", "--all", "--set", "stages.0.train.learning_rate=1e-4", "--yes"),
    ):
        capsys.readouterr()
        assert recipe(site, *verb) == 1
        assert "--take-over ann" in capsys.readouterr().err
    assert (
        site.job("Job", DRIVER) is not None and site.job(name="seven-b-pretrain-2048") is not None
    )
    assert recipe(site, "stop", "--take-over", "ann") == 0
    assert site.job("Job", DRIVER) is None and site.job(name="seven-b-pretrain-2048") is None


@in_process
def test_a_run_of_kubeflow_pipelines_ends_nothing_of_another_person(colleagues, capsys):
    """The question comes before anything has ended."""
    run = run_of(colleagues)
    assert "--take-over ann" in refused(colleagues, capsys, "stop")
    assert "activeDeadlineSeconds" not in colleagues.job("Workflow", run)["spec"]


@in_process
def test_a_run_of_kubeflow_pipelines_is_its_owners(site, capsys, monkeypatch, golden_message):
    site.becomes("ann", monkeypatch)
    run = run_of(site)
    site.becomes("bob", monkeypatch)
    capsys.readouterr()
    assert site.recipe("status") == 0
    assert (
        f"run `{run}` of Kubeflow Pipelines: continues by itself (sent by ann)"
        in capsys.readouterr().out
    )
    golden_message(refused(site, capsys, "stop").replace(run, "<run>"))
    for verb in (("stop", "--yes"), ("submit", *CHANGED, "--yes")):
        assert "--take-over ann" in refused(site, capsys, *verb)
    assert "activeDeadlineSeconds" not in site.job("Workflow", run)["spec"] and site.job() is None
    controller = threading.Thread(target=argo, args=(site, run), daemon=True)
    controller.start()
    assert site.recipe("stop", "--take-over", "ann") == 0
    controller.join(30)
    assert site.job("Workflow", run)["spec"]["activeDeadlineSeconds"] == 0


@in_process
@pytest.mark.parametrize("person", ["ann", ""])
def test_a_run_sends_for_the_person_who_sent_its_plan(site, monkeypatch, person):
    """Its tasks are an account of the namespace, which may read no config map but by a list."""
    site.becomes("ann", monkeypatch)
    owner = Owner("ann", "anns-desk", str(SURVIVAL)) if person else Owner()
    run_of(site, owner=owner)
    _, _, config = emitted(SURVIVAL, f"openshift.namespace={site.namespace}")
    plan = pipeline.read_plan_text(yaml.safe_load(config)["data"][PLAN_FILE])
    site.api.kubeconfig(Path("kubeconfig-driver"), site.namespace, KEY_OF[pipeline.ACCOUNT])
    monkeypatch.setenv("KUBECONFIG", "kubeconfig-driver")
    for one in plan.site.claims:
        site.claim(one["name"])
    kfp_task.stage(connect(), plan, plan.stages[0])
    assert Owner.of(site.job("Job", "survival-model")) == owner


@in_process
def test_a_run_that_records_nobody_is_ended_after_a_yes(site, capsys):
    run = run_of(site, owner=Owner())
    assert "Who sent it is not recorded" in refused(site, capsys, "stop")
    assert "activeDeadlineSeconds" not in site.job("Workflow", run)["spec"]


@pytest.fixture
def server(platform, monkeypatch, capsys):
    """Ann serves survival; the commands that come now are Bob's."""
    platform.becomes("ann", monkeypatch)
    at_work = Serve(platform, monkeypatch)
    platform.set_status("Pod", pod_soon(platform)["metadata"]["name"], READY)
    assert at_work.ended() == 0
    platform.becomes("bob", monkeypatch)
    capsys.readouterr()
    return platform


def serve(site, monkeypatch, *options: str) -> None:
    """Serves, and the server answers at once."""
    at_work = Serve(site, monkeypatch, *options)
    while at_work.code is None:
        with suppress(AssertionError, Refused, KeyError):
            site.set_status("Pod", pod_soon(site)["metadata"]["name"], READY)
        time.sleep(0.05)
    assert at_work.code == 0


LONGER = ("--set", "serve.context=512")


@in_process
def test_a_server_records_who_sent_it_and_another_person_is_asked_first(
    server, capsys, monkeypatch, golden_message
):
    there = server.job(SERVICE)
    assert Owner.of(there) == Owner("ann", "anns-desk", str(SURVIVAL))
    serve(server, monkeypatch)
    assert (
        f"ann sent it from anns-desk, with the recipe file `{SURVIVAL}`." in capsys.readouterr().out
    )
    golden_message(refused(server, capsys, "serve", "--stop"), "stop")
    golden_message(refused(server, capsys, "serve", "--cluster", "--port", "0", *LONGER), "another")
    for verb in (("--stop",), ("--cluster", "--port", "0", *LONGER)):
        for options in (("--yes",), ("--take-over", "carol"), ("--yes", "--take-over", "bob")):
            assert "--take-over ann" in refused(server, capsys, "serve", *verb, *options)
    assert server.job(SERVICE) == there
    serve(server, monkeypatch, *LONGER, "--take-over", "ann")
    assert Owner.of(server.job(SERVICE)).person == "bob"
    assert server.recipe("serve", "--stop") == 0
    assert server.job(SERVICE) is None


@in_process
def test_ones_own_server_is_replaced_and_removed_without_a_question(platform, monkeypatch):
    platform.becomes("ann", monkeypatch)
    image = ("--set", "serve.image=registry/vllm:2")
    serve(platform, monkeypatch)
    serve(platform, monkeypatch, *LONGER, *image)
    assert Owner.of(platform.job("ServingRuntime", "survival-vllm")).person == "ann"
    assert platform.recipe("serve", "--stop") == 0
    assert platform.job(SERVICE) is None and platform.job("ServingRuntime", "survival-vllm") is None


@in_process
def test_a_server_that_records_nobody_takes_a_yes(server, capsys):
    """Sent by an older version, or by `oc apply`."""
    meta = server.api.objects["inferenceservices", server.namespace, "survival"]["metadata"]
    meta["annotations"] = {
        name: text for name, text in meta["annotations"].items() if name not in OWNER
    }
    assert "add `--yes`" in refused(server, capsys, "serve", "--stop")
    assert server.recipe("serve", "--stop", "--yes") == 0
    assert server.job(SERVICE) is None


@in_process
def test_of_two_people_who_serve_at_the_same_moment_one_is_refused(platform, capsys, monkeypatch):
    platform.becomes("ann", monkeypatch)
    serve(platform, monkeypatch)
    theirs = platform.job(SERVICE)
    platform.becomes("bob", monkeypatch)
    read = Cluster.get

    def before_it_was_sent(cluster, kind, *given, **named):
        return None if kind == SERVICE else read(cluster, kind, *given, **named)

    monkeypatch.setattr(Cluster, "get", before_it_was_sent)
    assert "Someone else sent InferenceService `survival`" in refused(
        platform, capsys, "serve", "--cluster", "--port", "0", *LONGER
    )
    monkeypatch.undo()
    assert platform.job(SERVICE) == theirs
