"""Preparing on the claim: model and data come first, from a hub played on this machine, and then nothing needs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runner import catalog
from runner.execute import claim, twin
from runner.execute.data import tokenizers
from runner.plan import Place
from runner.problem import Stop
from runner.recipe.changes import from_options
from runner.recipe.check import load
from runner.scenarios import translate
from runner.targets import preparing
from tests.conftest import ROOT

SURVIVAL = ROOT / "recipes" / "survival.yaml"
COMMIT = "c0ffee" * 6 + "c0ff"


class Hub:
    """The Hugging Face hub, as far as a download of one model needs it. asked: what was asked, `VERB path`."""

    def __init__(self, files: dict[str, bytes], token: str = "") -> None:
        self.files, self.token, self.asked = files, token, []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def _handler(hub) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.asked.append(f"{self.command} {self.path}")
                path = self.path.partition("?")[0]
                if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                    return self.answer(401, b'{"error": "gated"}', {"X-Error-Code": "GatedRepo"})
                if path.startswith("/api/models/"):
                    files = [{"rfilename": name, "size": len(body)} for name, body in hub.files.items()]
                    return self.answer(200, json.dumps({"id": "a/b", "sha": COMMIT, "siblings": files}).encode())
                name = path.partition(f"/resolve/{COMMIT}/")[2]
                if name not in hub.files:
                    return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
                body = hub.files[name]
                facts = {
                    "ETag": f'"{hashlib.sha256(body).hexdigest()}"',
                    "X-Repo-Commit": COMMIT,
                    "Accept-Ranges": "bytes",
                }
                return self.answer(200, body, facts)

            do_HEAD = do_GET

            def answer(self, status, body, headers=()):
                self.send_response(status)
                for name, value in dict(headers).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        return Handler


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny twin's files, as a hub has them, and one that nobody needs."""
    folder = tmp_path_factory.mktemp("twin")
    recipe, _, _ = load(SURVIVAL)
    texts = [
        json.loads(line)["answer"]
        for line in (ROOT / "recipes/data/survival-sample.jsonl").read_text("utf-8").splitlines()
    ]
    tokenizers.train(texts, folder, recipe.model_facts, catalog.chat_template("chatml"), twin.VOCABULARY)
    twin.build(recipe.model_facts, layers=3, seed=1, folder=folder)
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()} | {
        "weights.h5": b"unused" * 100
    }


def job(folder: Path, *options: str) -> Path:
    """What the prepare Job of the survival recipe would read, with the claim's folders below `folder`."""
    recipe, _, _ = load(SURVIVAL, from_options(options))
    place = Place(
        str(folder / "config"), str(folder / "claim/data"), str(folder / "claim/run"), str(folder / "scratch"),
        prepared=True, model_dir=str(folder / "claim/models/twin"),
    )  # fmt: skip
    plan = translate(recipe, place)
    (stage,) = plan.stages
    wanted = preparing.wanted(plan, stage)
    # The image's copy of the recipes' data files.
    wanted["data"] |= {"hub": None, "path": str(ROOT / "recipes/data/survival-sample.jsonl")}
    (folder / "config").mkdir()
    for file in stage.files:
        (folder / "config" / file.path).write_text(file.text, encoding="utf-8")
    (folder / "config" / "prepare.json").write_text(json.dumps(wanted), encoding="utf-8")
    return folder / "config" / "prepare.json"


def carried_out(wanted: Path, hub: Hub | None, **env: str):
    return subprocess.run(
        [sys.executable, "-m", "runner.execute.claim", str(wanted)],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_HOME": str(wanted.parent / "hf"),
            "CUDA_VISIBLE_DEVICES": "",
            "AXOLOTL_DO_NOT_TRACK": "1",
            **({"HF_ENDPOINT": hub.url} if hub else {"HF_HUB_OFFLINE": "1"}),
            **env,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_model_and_data_come_onto_the_claim_and_a_second_time_does_nothing(tmp_path, model):
    hub = Hub(model)
    wanted = job(tmp_path)
    done = carried_out(wanted, hub)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert f"Fetching HuggingFaceTB/SmolLM3-3B at {COMMIT}" in done.stdout
    there = {file.name for file in (tmp_path / "claim/models/twin").iterdir() if file.is_file()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= there and "weights.h5" not in there
    data = tmp_path / "claim/data"
    assert (data / "train.parquet").is_file() and list((data / "tokenised").rglob("*.arrow"))
    assert done.stdout.rstrip().endswith("Model and data are ready.")
    hub.asked.clear()
    again = carried_out(wanted, hub)
    assert (again.returncode, again.stdout.strip()) == (0, f"Everything lies in {data} already.")
    assert hub.asked == []
    # Other data under the same name is prepared and tokenised anew; the model lies there and stays.
    facts = json.loads(wanted.read_text(encoding="utf-8"))
    lines = Path(facts["data"]["path"]).read_text(encoding="utf-8").splitlines(keepends=True)
    file = tmp_path / "mine.jsonl"
    wanted.write_text(json.dumps(facts | {"data": facts["data"] | {"path": str(file)}}), encoding="utf-8")
    rows = []
    for kept in (lines, lines[: len(lines) // 2], lines[: len(lines) // 2]):
        file.write_text("".join(kept), encoding="utf-8")
        done = carried_out(wanted, None)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
        rows.append(tokenised(data))
    assert done.stdout.strip() == f"Everything lies in {data} already."
    assert rows[0] > rows[1] == rows[2] > 0


def tokenised(data: Path) -> int:
    """How many rows the only tokenised dataset for training has."""
    from datasets import load_from_disk

    return sum(len(load_from_disk(str(file.parent))) for file in (data / "tokenised").rglob("dataset_info.json"))


def test_a_claim_without_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 5 * 2**30))
    with pytest.raises(Stop, match=r"has 5\.0 GiB free, and the model a/b needs 7\.0 GiB\."):
        claim.require_space(tmp_path / "not" / "there", 7 * 2**30, "the model a/b")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Stop, match=r"or delete old runs from it\. What lies there already is kept\.$"):
        # Said after the model has been fetched, too.
        claim.require_space(tmp_path, 7 * 2**30, "the prepared data")
    claim.require_space(tmp_path, 4 * 2**30, "the model a/b")


def test_a_model_that_needs_consent_names_the_secret(tmp_path, model):
    hub = Hub(model, token="hf_right")
    done = carried_out(job(tmp_path), hub, HF_TOKEN="hf_wrong_one")
    assert done.returncode == 1
    assert "The model `HuggingFaceTB/SmolLM3-3B` at `main` cannot be fetched" in done.stderr
    assert "`openshift.hub_token_secret`" in done.stderr
    assert "hf_wrong_one" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "claim").exists()


def test_a_data_file_that_is_not_in_the_image_is_named(tmp_path):
    wanted = {
        "name": "x",
        "model": None,
        "data": {"kind": "chat", "path": "/nowhere/my.csv"},
        "data_dir": str(tmp_path),
        "tokenise": None,
    }
    with pytest.raises(Stop, match=r"The data file or folder `/nowhere/my\.csv` is not in the pod\."):
        claim.carry_out(wanted, lambda _line: None)


def test_a_folder_of_images_is_prepared_on_the_claim(tmp_path):
    from PIL import Image

    for number in range(40):
        folder = tmp_path / "pictures" / ("cats", "dogs")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number * 6, 0, 0)).save(folder / f"{number}.png")
    recipe, _, _ = load(ROOT / "recipes" / "resnet.yaml", from_options(["model.classes=2"]))
    place = Place(str(tmp_path / "config"), str(tmp_path / "data"), str(tmp_path / "run"), str(tmp_path / "scratch"))
    data = translate(recipe, place).stages[0].data | {"hub": None, "path": str(tmp_path / "pictures")}
    wanted = {"name": "x", "model": None, "data": data, "data_dir": str(tmp_path / "data"), "tokenise": None}
    said: list[str] = []
    assert claim.carry_out(wanted, said.append)
    assert said[-1] == "Model and data are ready."
