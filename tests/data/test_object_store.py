"""Data and models at `s3://` addresses, read from an S3 server on this machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.commands import cli
from runner.data import object_store, rows
from runner.data.data_sets import DataSource
from runner.recipe.overrides import from_options
from runner.run.pipeline import decide
from runner.scenarios import preparing
from runner.tools.problem import Stop
from runner.tools.run_files import FETCHED
from tests import s3
from tests.conftest import ROOT
from tests.stages import finish, plan_in

ROWS = (ROOT / "recipes" / "data" / "survival-sample.jsonl").read_text("utf-8")


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    with s3.started() as server:
        yield server


def source(path: str) -> DataSource:
    return DataSource(hub=None, revision=None, subset=None, split=None, path=path)


def test_rows_come_from_an_address_once_for_each_version(server, tmp_path):
    server.put("team/data/rows.jsonl", ROWS)
    one = source("s3://team/data/rows.jsonl")
    assert [row for _, row in rows.read(one)] == [json.loads(line) for line in ROWS.splitlines()]
    first = one.content
    copies = list((tmp_path / "cache" / "s3").rglob("*.jsonl"))
    assert len(copies) == 1
    object_store.local.cache_clear()
    assert one.file == copies[0]
    server.put("team/data/rows.jsonl", ROWS.splitlines()[0] + "\n")
    object_store.local.cache_clear()
    assert len(list(rows.read(one))) == 1 and one.content != first


def test_a_folder_comes_whole(server):
    for name in ("a.txt", "below/b.txt"):
        server.put(f"team/texts/{name}", name)
    there = object_store.local("s3://team/texts/")
    assert sorted(str(file.relative_to(there)) for file in there.rglob("*.txt")) == [
        "a.txt",
        "below/b.txt",
    ]


def model(server, folder: Path, base: str = "s3://team/model") -> dict[str, str]:
    return {"base": base, "revision": "main", "folder": str(folder)}


def test_a_model_comes_whole_or_not_at_all(server, tmp_path, monkeypatch):
    files = {
        "config.json": b"{}",
        "model.safetensors": os.urandom(3_000_000),
        "tokenizer.json": b"{}",
        "notes.bin": b"-",
    }
    for name, content in files.items():
        server.put(f"team/model/{name}", content)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.line)
    told: list[str] = []
    folder, get = tmp_path / "model", object_store.download
    monkeypatch.setattr(
        object_store, "download", lambda store, there, to: (broken(server), get(store, there, to))
    )
    with pytest.raises(Stop, match="does not answer for"):
        preparing.fetch_model(model(server, folder), told.append)
    assert not (folder / FETCHED).exists() and not (folder / "model.safetensors").exists()
    monkeypatch.setattr(object_store, "download", get)
    server.cut = None
    preparing.fetch_model(model(server, folder), told.append)
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        FETCHED,
    }
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    preparing.fetch_model(model(server, folder), told.append)
    assert "already in" in told[-1]


def broken(server) -> None:
    """The line breaks after the next request."""
    server.cut = 600


def test_a_copy_goes_on_where_it_was_interrupted(server, tmp_path):
    for name in ("config.json", "model.safetensors"):
        server.put(f"team/model/{name}", "{}")
    folder = tmp_path / "model"
    preparing.fetch_model(model(server, folder), print)
    (folder / FETCHED).unlink()
    (folder / "config.json").unlink()
    kept = (folder / "model.safetensors").stat().st_ino
    preparing.fetch_model(model(server, folder), print)
    assert (folder / "model.safetensors").stat().st_ino == kept and (
        folder / "config.json"
    ).exists()


def test_a_folder_without_a_model_is_refused(server, tmp_path, golden_message):
    server.put("team/texts/a.txt", "")
    with pytest.raises(Stop) as stop:
        preparing.fetch_model(model(server, tmp_path, "s3://team/texts"), print)
    golden_message(stop.value)


@pytest.mark.parametrize("what", ["no-bucket", "no-object", "wrong-key", "no-keys", "no-endpoint"])
def test_what_is_wrong_is_named(server, monkeypatch, golden_message, what):
    server.put("team/data/rows.jsonl", ROWS)
    address = {"no-bucket": "s3://taem/rows.jsonl", "no-object": "s3://team/rows.jsonl"}.get(
        what, "s3://team/data/rows.jsonl"
    )
    if what == "wrong-key":
        server.guard(True)
    elif what == "no-keys":
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
    elif what == "no-endpoint":
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    try:
        with pytest.raises(Stop) as stop:
            list(rows.read(source(address)))
    finally:
        server.guard(False)
    golden_message(stop.value.text.replace(server.url, "http://server"))


def test_a_recipe_names_rows_and_a_model_at_addresses(server, tmp_path):
    sets = ("data.hub=null", "data.path=s3://team/data/rows.jsonl", "openshift.connection=my-s3")
    recipe, _, problems = load(ROOT / "recipes" / "survival.yaml", from_options(sets))
    assert recipe.data.path == "s3://team/data/rows.jsonl"
    assert any("is read when the data is prepared" in problem.message for problem in problems)
    assert [name for _, name in recipe.addresses()] == ["s3://team/data/rows.jsonl"] and not list(
        recipe.local_files()
    )


def test_another_version_of_a_file_runs_its_stage_again_where_it_can_be_read(
    server, tmp_path, monkeypatch
):
    server.put("team/rows.jsonl", ROWS)
    sets = ("data.hub=null", "data.path=s3://team/rows.jsonl", "openshift.connection=my-s3")
    plan = plan_in(tmp_path / "run", "survival", *sets)
    finish(plan)

    def decided() -> list[str]:
        s3.forget()
        return [
            f"{decision.action} {' '.join(decision.why)}".strip()
            for decision in decide(plan, plan.stages)
        ]

    assert decided() == ["keep", "keep"]
    server.put("team/rows.jsonl", ROWS.splitlines()[0])
    again = decided()
    assert again[0] == "again data.path: the file's content has changed" and len(again) == 2
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert decided() == ["keep", "keep"]


def test_a_models_facts_come_from_its_address(server, tmp_path, monkeypatch, capsys):
    shape = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes = {
        "head_dim": 16,
        "intermediate_size": 128,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    }
    server.put(
        "team/models/small/config.json", json.dumps({"model_type": "qwen3", **shape, **sizes})
    )
    server.put("team/models/small/model.safetensors", "weights")
    monkeypatch.chdir(tmp_path)
    text, base = (ROOT / "recipes" / "survival.yaml").read_text("utf-8"), "s3://team/models/small"
    text = text.replace("HuggingFaceTB/SmolLM3-3B", base).replace("data/", f"{ROOT}/recipes/data/")
    (tmp_path / "mine.yaml").write_text(text, "utf-8")
    assert cli._code(["models", "add", f"{base}er", "--recipe", "mine.yaml"]) == 1
    assert f"no file or folder `{base}er`" in capsys.readouterr().err
    assert cli._code(["models", "add", base, "--recipe", "mine.yaml"]) == 0
    recipe, _, _ = load("mine.yaml", from_options(("openshift.connection=my-s3",)))
    assert (recipe.model_facts.model_type, recipe.model_facts.hidden_size) == ("qwen3", 64)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
