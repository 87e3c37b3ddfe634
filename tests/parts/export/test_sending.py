"""Pushing and registering: the real clients against small servers on this machine that speak what
the real ones ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner.parts.export import exporting, sending, trained_model
from runner.parts.export.sending import Pushed
from runner.run.run_folder import RunFolder
from runner.tools.files import read_record, sha256
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.export import servers
from tests.parts.export.runs import run_of, stage_of
from tests.stages import measured

TOKEN = "hf_SomebodysOwn"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> RunFolder:
    return run_of(tmp_path_factory.mktemp("sent") / "run")


@pytest.fixture
def run(trained, tmp_path) -> RunFolder:
    """A copy of the run, with what a test leaves in it."""
    shutil.copytree(trained.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


@pytest.fixture
def hub():
    with servers.running(servers.Hub(TOKEN)) as server:
        yield server


@pytest.fixture
def pushing(hub, tmp_path, monkeypatch):
    """Pushes to the small hub; what the client reads of its environment at import is put in its
    place."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)

    def push(
        run: RunFolder,
        name: str = "somebody/survival",
        form: str = "safetensors",
        public: bool = False,
    ):
        told: list[str] = []
        return sending.push(trained_model.of(run), name, form, None, public, told.append), told

    return push


def test_a_model_is_pushed_private_with_its_card_and_the_token_is_written_nowhere(
    run, hub, pushing
):
    address, told = pushing(run)
    known = hub.repositories["somebody/survival"]
    assert (
        address == f"{hub.address}/somebody/survival"
        and known["private"]
        and "you and those" in told[-1]
    )
    folder = run.path / "export" / "safetensors"
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {
        name: content for name, content in known["files"].items() if name != ".gitattributes"
    } == files
    assert b"# survival" in files["README.md"] and run.state.id in known["message"]
    assert Pushed.read(run.path / "export").commit == known["commit"]
    assert ("POST", "/api/validate-yaml", f"Bearer {TOKEN}") in hub.seen
    assert not [
        file
        for file in run.path.rglob("*")
        if file.is_file() and TOKEN.encode() in file.read_bytes()
    ]
    # What lies ready is sent again as it is; what is no more there is taken away.
    known["files"]["old.bin"] = b""
    made = sha256(folder / "export.json")
    pushing(run)
    assert (
        sha256(folder / "export.json") == made
        and "old.bin" not in known["files"]
        and known["private"]
    )
    # What was measured meanwhile goes along.
    measured(stage_of(run), metrics={"perplexity": 3.25})
    pushing(run)
    assert b"| perplexity | 3.25 |" in known["files"]["README.md"]
    assert known["files"]["model.safetensors"] == files["model.safetensors"]


def test_public_is_what_somebody_says(run, hub, pushing):
    _, told = pushing(run, public=True)
    assert not hub.repositories["somebody/survival"]["private"] and "by everybody" in told[-1]
    with pytest.raises(Stop, match="is public"):
        pushing(run)


def test_another_model_on_the_hub_stays(run, hub, pushing):
    files = {"model.safetensors": b"theirs"}
    hub.repositories["somebody/survival"] = {
        "private": True,
        "files": dict(files),
        "commit": "1" * 40,
    }
    with pytest.raises(Stop, match="contains another model"):
        pushing(run)
    assert hub.repositories["somebody/survival"]["files"] == files and not hub.stored


def test_what_arrives_otherwise_is_no_push(run, hub, pushing):
    hub.spoil = True
    with pytest.raises(Stop, match=r"the hub has another `model\.safetensors`"):
        pushing(run)
    assert not Pushed.read(run.path / "export")


def test_without_a_token_or_with_a_wrong_one_nothing_is_sent(
    run, hub, pushing, monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(Stop, match="Invalid credentials"):
        pushing(run)
    monkeypatch.delenv("HF_TOKEN")
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(Stop, match="There is no token for the hub"):
        pushing(run)
    assert not hub.repositories and not (run.path / "export").exists()


def test_a_hub_that_is_not_there_is_said(run, hub, pushing, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Stop, match="The hub cannot be reached"):
        pushing(run)


def test_an_export_that_somebody_has_changed_is_made_anew_before_it_is_sent(run, hub, pushing):
    exporting.export(trained_model.of(run), "safetensors", None, None, lambda line: None)
    file = run.path / "export/safetensors/README.md"
    text = file.read_text("utf-8")
    file.write_text("Mine!")
    pushing(run)
    assert hub.repositories["somebody/survival"]["files"]["README.md"].decode() == text


@pytest.fixture
def models(monkeypatch):
    pytest.importorskip("model_registry", reason="the extra `registry` is not installed")
    monkeypatch.setenv(sending.TOKEN, "sha256~somebody")
    with servers.running(servers.Registry("sha256~somebody")) as server:
        yield server


def lineage_of(server: servers.Registry) -> dict:
    (version,) = server.kept["model_versions"]
    properties = version["customProperties"].items()
    return {
        name: next(value for key, value in told.items() if key.endswith("_value"))
        for name, told in properties
    }


def test_a_model_is_registered_with_where_it_comes_from(run, models):
    stage = stage_of(run)
    measured(stage, metrics={"perplexity": 3.25})
    (run.path / "planned.json").write_text(
        json.dumps(read_record(run.path / "planned.json") | {"commit": "c0ffee+"})
    )
    where = sending.register(
        trained_model.of(run), models.address, "survival", "1", "s3://bucket/survival"
    )
    assert where == "s3://bucket/survival"
    (model,), (version,), (artifact,) = models.kept.values()
    assert (
        model["name"] == "survival"
        and version["registeredModelId"] == model["id"]
        and artifact["parent"] == version["id"]
    )
    assert (artifact["uri"], artifact["modelFormatName"]) == ("s3://bucket/survival", "safetensors")
    assert (artifact["modelSourceId"], artifact["modelSourceKind"]) == (
        run.state.id,
        "recipe-runner",
    )
    told, planned = lineage_of(models), read_record(run.path / "planned.json")
    assert (
        told["recipe"] == "survival.yaml" and told["recipe_fingerprint"] == planned["fingerprint"]
    )
    assert (
        told["recipe_commit"] == "c0ffee+"
        and told["data_hash"] == "0123abcd"
        and told["evaluation.perplexity"] == 3.25
    )
    assert (
        told["weights_hash"] == stage.model_hash()
        and told["run"] == run.state.id
        and told["data_rows"] == "68"
    )
    assert "was trained" in version["description"] and all(
        seen[2] == "Bearer sha256~somebody" for seen in models.seen
    )
    with pytest.raises(Stop, match="has a version `1`"):
        sending.register(
            trained_model.of(run), models.address, "survival", "1", "s3://bucket/survival"
        )
    sending.register(trained_model.of(run), models.address, "survival", "2", "s3://bucket/two")
    assert len(models.kept["registered_models"]) == 1 and len(models.kept["model_versions"]) == 2


def test_where_a_model_lies_is_known_after_a_push_and_on_a_claim(run, models, hub, pushing):
    known = trained_model.of(run)
    with pytest.raises(Stop, match="is only on this machine"):
        sending.register(known, models.address, "survival", "1", None)
    assert not models.kept["registered_models"]
    run.mark("finished", origin="cluster")
    where = sending.register(trained_model.of(run), models.address, "survival", "1", None)
    assert where == "pvc://trained-models-pvc/survival/best_model"
    pushing(run)
    where = sending.register(trained_model.of(run), models.address, "survival", "2", None)
    assert where == f"hf://somebody/survival:{hub.repositories['somebody/survival']['commit']}"


def test_a_registry_that_refuses_forgets_or_is_not_there_is_said(run, models, monkeypatch):
    known, at = trained_model.of(run), "s3://bucket/one"
    models.forgetful = True
    with pytest.raises(Stop, match="does not report what was registered"):
        sending.register(known, models.address, "survival", "1", at)
    monkeypatch.setenv(sending.TOKEN, "wrong")
    with pytest.raises(Stop, match=r"refuses: .*Invalid credentials"):
        sending.register(known, models.address, "survival", "2", at)
    with pytest.raises(Stop, match="cannot be reached"):
        sending.register(known, "http://127.0.0.1:9", "survival", "2", at)


@pytest.mark.long
def test_push_and_register_as_commands(run, models, hub, tmp_path):
    env = {
        "HF_ENDPOINT": hub.address,
        "HF_TOKEN": TOKEN,
        "HF_HUB_OFFLINE": "0",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }

    def recipe(*arguments: str) -> str:
        paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "runner", *arguments], env=os.environ | env | {"PYTHONPATH": paths}, cwd=tmp_path,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert f"{hub.address}/somebody/mine" in recipe("push", str(run.path), "somebody/mine")
    said = recipe("register", str(run.path), "--registry", models.address, "--name", "mine")
    assert (
        "its address is hf://somebody/mine:" in said and lineage_of(models)["run"] == run.state.id
    )
    assert not [
        file
        for file in tmp_path.rglob("*")
        if file.is_file() and TOKEN.encode() in file.read_bytes()
    ]


def test_the_commit_of_a_recipe_goes_on_record(tmp_path):
    from runner.run.provenance import commit as commit_of

    file = tmp_path / "mine.yaml"
    file.write_text("a: 1\n")
    assert commit_of(file) == ""

    def git(*arguments: str) -> str:
        who = (
            "-c",
            "user.name=Somebody",
            "-c",
            "user.email=somebody@example.com",
            "-c",
            "commit.gpgsign=false",
        )
        return subprocess.run(
            ["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "--quiet")
    assert commit_of(file) == ""
    git("add", "mine.yaml")
    git("commit", "--quiet", "-m", "One.")
    commit = git("rev-parse", "HEAD")
    assert commit_of(file) == commit
    Path(tmp_path / "other.yaml").write_text("b: 2\n")
    assert commit_of(file) == commit and commit_of(tmp_path / "other.yaml") == ""
    file.write_text("a: 2\n")
    assert commit_of(file) == f"{commit}+"
