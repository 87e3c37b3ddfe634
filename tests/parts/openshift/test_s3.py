"""A recipe with a mirror: its Secret is looked at before anything is sent, and its results come
from the mirror."""

from __future__ import annotations

import base64
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner import catalog
from runner.check.validate import load
from runner.parts.jobs import kubernetes, mirror
from runner.parts.openshift import pipeline, transfer
from runner.parts.openshift.client import Cluster, address
from runner.recipe import lock
from runner.recipe.overrides import from_options
from runner.run.run_folder import StageFolder
from runner.scenarios import translate
from runner.tools.files import write_json, write_text
from tests import s3
from tests.conftest import ROOT
from tests.parts.openshift.api import TESTS
from tests.parts.openshift.conftest import in_process

SETS = ("openshift.connection=my-s3", "openshift.mirror=s3://team/runs")
OPTIONS = tuple(word for one in SETS for word in ("--set", one))
FILES = (
    "best_model/model.safetensors",
    "best_model/config.json",
    "training_history.json",
    "train.log",
)


@pytest.fixture
def owner(site, tmp_path, monkeypatch):
    """The commands are those of the namespace's owner, who may read Secrets."""
    file = site.api.kubeconfig(tmp_path / "owner-kubeconfig", site.namespace, TESTS)
    monkeypatch.setenv("KUBECONFIG", str(file))


def secret(site, **keys: str) -> None:
    data = {name: base64.b64encode(value.encode()).decode() for name, value in keys.items()}
    meta = {"name": "my-s3", "namespace": site.namespace}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}
    site.cluster.request("POST", address("Secret", site.namespace), body=body)


@in_process
def test_a_missing_or_incomplete_secret_is_refused_before_anything_is_sent(
    site, owner, capsys, golden_message
):
    assert site.recipe("submit", "--dry-run", *OPTIONS) == 1
    golden_message(capsys.readouterr().err.replace(site.namespace, "<namespace>"), "missing")
    secret(site, AWS_ACCESS_KEY_ID="key")
    assert site.recipe("submit", "--dry-run", *OPTIONS) == 1
    golden_message(capsys.readouterr().err.replace(site.namespace, "<namespace>"), "incomplete")
    assert not site.cluster.list("Job", site.namespace)


@in_process
def test_whoever_may_not_read_the_secret_may_still_send(site, monkeypatch, capsys):
    site.becomes("ann", monkeypatch)
    assert site.recipe("submit", "--dry-run", *OPTIONS) == 0, capsys.readouterr()


def trained(folder: Path, step: int) -> StageFolder:
    """A training of the recipe, as it is on a claim, and in the mirror."""
    places = (f"openshift.claims.0.mount={folder}", f"openshift.output_dir={folder}/survival")
    plans = []
    for sets in (SETS, (*SETS, *places)):
        recipe, _, _ = load(ROOT / "recipes" / "survival.yaml", from_options(sets))
        plans.append(translate(recipe, kubernetes.place(recipe)))
    # With the keys of the recipe itself, whose claim has another path.
    one = StageFolder(plans[1], replace(plans[1].stage("train"), keys=plans[0].stage("train").keys))
    for name in FILES:
        write_text(one.path / name, f"{name} at step {step}")
    checkpoint = Path(one.place.checkpoints_dir) / f"checkpoint-{step}"
    write_json(checkpoint / "complete.json", {"step": step})
    write_json(
        one.run.path / "run.json",
        {"id": "the-run", "kind": "run", "recipe": "survival", "status": "running"},
    )
    one.mark("begun", keys=dict(one.stage.keys))
    mirror.send(one)
    return one


@in_process
def test_results_come_from_the_mirror_without_a_helper_pod(
    site, owner, s3_server, tmp_path, monkeypatch, capsys
):
    one = trained(tmp_path / "claim", 10)
    known = {
        name: os.environ[name]
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3")
    }
    for name in known:
        monkeypatch.delenv(name)
    secret(
        site, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_S3_ENDPOINT=s3_server.url
    )
    out = tmp_path / "out"
    assert site.recipe("fetch", *OPTIONS, "--to", str(out)) == 0, capsys.readouterr()
    for name in FILES:
        assert (out / name).read_text("utf-8") == (one.path / name).read_text("utf-8")
    assert not (out / "checkpoints").exists() and not site.cluster.list("Pod", site.namespace)
    assert json.loads((out / "run.json").read_text("utf-8"))["id"] == "the-run"
    assert site.recipe("fetch", *OPTIONS, "--all", "--to", str(out)) == 0
    assert list((out / "checkpoints").rglob("complete.json"))
    assert not os.environ.keys() & known.keys(), "no program that is started later gets the keys"
    one.mark("finished", outputs=one.outputs())
    with pytest.MonkeyPatch.context() as pod:
        for name, value in known.items():
            pod.setenv(name, value)
        mirror.send(one)
    assert site.recipe("fetch", *OPTIONS, "--to", str(out)) == 0
    assert "fetched to" in capsys.readouterr().out


@in_process
def test_a_mirror_that_cannot_be_read_leaves_the_claim(site, s3_server, capsys):
    s3_server.guard(True)
    try:
        site.recipe("fetch", *OPTIONS)
    finally:
        s3_server.guard(False)
    said = capsys.readouterr()
    assert "refuses the keys" in said.out and "on the claim are fetched instead" in said.out


@in_process
def test_another_version_of_a_file_is_prepared_again(site, owner, s3_server, monkeypatch, capsys):
    """A machine that cannot read the address changes nothing."""
    s3_server.put("team/rows.jsonl", "{}")
    secret(
        site, AWS_ACCESS_KEY_ID="key", AWS_SECRET_ACCESS_KEY="secret", AWS_S3_ENDPOINT=s3_server.url
    )
    sets = (SETS[0], "data.hub=null", "data.path=s3://team/rows.jsonl", "openshift.data_from=claim")
    options = [word for one in sets for word in ("--set", one)]

    def milestone() -> pipeline.Milestone:
        s3.forget()
        recipe, _, _ = load(
            ROOT / "recipes" / "survival.yaml",
            from_options((*sets, f"openshift.namespace={space}")),
        )
        plan = translate(recipe, kubernetes.place(recipe))
        key = transfer.files(recipe, plan.place).key
        return pipeline.milestones(site.cluster, plan, key)[0]

    space = site.namespace
    assert site.recipe("submit", *options, "--stage", "data") == 0, capsys.readouterr()
    assert milestone().state == pipeline.UNDER_WAY
    s3_server.put("team/rows.jsonl", "{ }")
    assert milestone().state == pipeline.CHANGED
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert milestone().state == pipeline.UNDER_WAY


@in_process
def test_a_model_in_an_image_needs_a_newer_kubernetes(site, monkeypatch, capsys, golden_message):
    base = "oci://quay.io/team/model:1"
    model = replace(
        catalog.model("HuggingFaceTB/SmolLM3-3B"), id=base, source=f"{base}/config.json"
    )
    monkeypatch.setattr(
        lock, "find", lambda folder, name, revision: (model if name == base else None, [])
    )
    monkeypatch.setattr(Cluster, "version", lambda _: (1, 32))
    assert site.recipe("submit", "--set", f"model.base={base}") == 1
    golden_message(capsys.readouterr().err)
    assert not site.cluster.list("Job", site.namespace)
