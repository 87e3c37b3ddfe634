"""Whose a job is: who sent it, from which machine and recipe file, and that nobody else ends or replaces it unasked."""

from __future__ import annotations

import pytest

from runner.commands import cli
from runner.parts.openshift.jobs import OWNER, Owner
from tests.conftest import ROOT
from tests.parts.openshift.conftest import in_process
from tests.parts.openshift.test_flows import manifests
from tests.parts.openshift.test_kfp import run_of
from tests.parts.openshift.test_pipeline import ALL, claim, end, recipe
from tests.parts.openshift.test_pipeline import finish as finish_stages
from tests.parts.openshift.test_walking import DRIVER, machines, there
from tests.parts.openshift.test_watching import finish, train_to

__all__ = ["claim", "machines"]
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
def test_submit_asks_before_it_replaces_the_job_of_another_person(colleagues, capsys, golden_message, state):
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
def test_on_a_terminal_yes_is_not_enough_either(colleagues, monkeypatch):
    site, asked = colleagues, []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("click.confirm", lambda question: asked.append(question) or len(asked) > 2)
    assert site.recipe("submit", *CHANGED, "--yes") == site.recipe("stop", "--yes") == 1
    assert site.job() is not None and len(asked) == 2 and all("ann sent it" in question for question in asked)
    assert site.recipe("stop", "--yes") == 0
    assert site.job() is None


@in_process
def test_the_same_recipe_from_two_people_is_one_job_and_says_whose(colleagues, capsys, golden_message):
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
    meta["annotations"] = {name: text for name, text in meta["annotations"].items() if name not in OWNER}
    capsys.readouterr()
    assert site.recipe("status") == 0
    assert "sent" not in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("train"))
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
    for verb in (("stop", "--yes"), ("submit", "--all", "--set", "pretrain.learning_rate=1e-4", "--yes")):
        capsys.readouterr()
        assert recipe(site, *verb) == 1
        assert "--take-over ann" in capsys.readouterr().err
    assert site.job("Job", DRIVER) is not None and site.job(name="seven-b-pretrain-2048") is not None
    assert recipe(site, "stop", "--take-over", "ann") == 0
    assert site.job("Job", DRIVER) is None and site.job(name="seven-b-pretrain-2048") is None


@in_process
def test_a_run_of_kubeflow_pipelines_ends_nothing_of_another_person(colleagues, capsys):
    """The question comes before anything has ended."""
    run = run_of(colleagues)
    assert "--take-over ann" in refused(colleagues, capsys, "stop")
    assert "activeDeadlineSeconds" not in colleagues.job("Workflow", run)["spec"]
