"""Tracking: what a tracking server gets of a run, and that training needs no server."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from runner.parts.jobs import stage
from runner.parts.tracking import servers
from runner.parts.tracking import training as sends
from runner.parts.tracking.servers import Tracked, send_export
from runner.recipe.document import flat
from runner.run import pipeline
from runner.run.run_folder import RunFolder, StageFolder
from runner.run.run_manifest import plan_of
from runner.tools.files import read_json, read_record
from runner.trainer.settings import RunSettings
from tests.conftest import ROOT, own_time
from tests.parts.export.runs import base_of
from tests.stages import finish, leave, plan_in

FACTS = {
    "name": "small",
    "fingerprint": "f0",
    "backend": "gloo",
    "world_size": 1,
    "effective_batch_size": 8,
}
RATES = {"base_learning_rate": 0.1, "learning_rate": 0.1}


class Server:
    """A tool whose server is away, or there. The fixture makes a class of it, with all that it
    got."""

    title = "MLflow"
    there = False

    def open(self, known, name, parameters, tags):
        self.answer()
        self.opened.append((known.run, known.project, name, dict(parameters), dict(tags)))
        return Tracked(tool=known.tool, project=known.project, run=known.run or "r1")

    def log(self, step, metrics):
        self.answer()
        self.curve.append((step, dict(metrics)))

    def leave(self, tags, files, status):
        self.left.append((tags, list(files), status))

    def keep(self, folder, name):
        self.answer()
        self.left.append((folder, name))
        return f"export/{name}"

    def answer(self):
        if not self.there:
            raise ConnectionError(
                "Max retries exceeded (Caused by NewConnectionError(\"host='x': Connection refused\"))"
            )


@pytest.fixture
def training(tmp_path, monkeypatch):
    """`(server, callback, log)` of a training in a folder `small`; `log(step, **numbers)` is the
    Trainer's."""
    server, clock = (
        type("Server", (Server,), {"opened": [], "curve": [], "left": []}),
        SimpleNamespace(now=0.0),
    )
    monkeypatch.setitem(servers.TOOLS, "mlflow", server)
    own_time(monkeypatch, sends, monotonic=lambda: clock.now)
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "recipe.json").write_text(
        json.dumps({"train": {"epochs": 2}, "gates": ["perplexity < 9"]})
    )
    places = {"run_dir": str(folder), "recipe_file": str(folder / "recipe.json")}
    callback = sends.Tracking("mlflow", RunSettings.read(FACTS | RATES | places))

    def log(step, main=True, minutes=0, **numbers):
        clock.now += 60 * minutes
        callback.on_log(
            None, SimpleNamespace(is_world_process_zero=main, global_step=step), None, numbers
        )

    return server, callback, log


ENDED = SimpleNamespace(is_world_process_zero=True, global_step=4)


def test_a_server_gets_the_recipe_as_parameters_and_the_trainers_curves(training):
    server, callback, log = training
    server.there = True
    callback.on_train_begin(None, ENDED, None)
    log(2, loss=1.5, note="no number")
    known = Tracked.read(callback.folder)
    assert server.opened == [
        ("", "small", "small", {"train.epochs": "2", "gates": '["perplexity < 9"]'}, {"recipe": "small", "recipe_fingerprint": "f0"})
    ]  # fmt: skip
    assert server.curve == [(2, {"loss": 1.5})] and (known.run, known.fault) == ("r1", "")
    again = sends.Tracking("mlflow", callback.settings)
    again.on_train_begin(None, ENDED, None)
    assert server.opened[1][0] == "r1", "a resumed training continues its run"


def test_a_server_that_is_away_ends_nothing_and_gets_all_once_it_is_there(
    training, capsys, golden_message
):
    server, callback, log = training
    callback.on_train_begin(None, ENDED, None)
    golden_message(capsys.readouterr().out)
    log(1, loss=3.0)
    server.there = True
    log(2, loss=2.0)
    assert not server.curve and capsys.readouterr().out == "", (
        "it is not asked at each step, and one sentence is enough"
    )
    log(3, minutes=11, loss=1.0)
    assert [step for step, _ in server.curve] == [1, 2, 3] and not Tracked.read(
        callback.folder
    ).fault
    server.there = False
    log(4, loss=0.5)
    assert "Connection refused" in Tracked.read(callback.folder).fault
    server.there = True
    callback.on_train_end(None, ENDED, None)
    assert server.curve[-1] == (4, {"loss": 0.5}) and not Tracked.read(callback.folder).fault


def test_only_the_first_process_sends(training):
    server, _, log = training
    server.there = True
    log(1, main=False, loss=3.0)
    assert not server.opened


def test_mlflow_gets_no_name_that_it_refuses():
    assert (
        servers.allowed("memory/max (GiB)") == "memory/max _GiB_"
        and servers.allowed("data.sets") == "data.sets"
    )


def test_what_a_stage_leaves_is_sent_under_the_names_of_an_exported_model(
    training, tmp_path, golden_message
):
    server, *_ = training
    plan = plan_in(tmp_path / "run", "survival", "train.report_to=mlflow")
    folder, said = StageFolder(plan, plan.stages[-1]), []
    pipeline.send(folder, said.append)
    assert not server.opened and not said, "nothing was sent of it so far"
    finish(plan)
    folder.run.mark("finished")
    (tmp_path / "run/data").joinpath("report.json").write_text('{"key": "d1"}')
    (tmp_path / "run/evaluation.json").write_text('{"metrics": {"perplexity": 3.5}}')
    Tracked(tool="mlflow", project="survival", run="r1").write(folder.path)
    pipeline.send(folder, said.append)
    golden_message("\n".join(said))
    server.there = True
    pipeline.send(folder, print)
    ((tags, files, status),) = server.left
    hashes = {
        "data_hash": "d1",
        "weights_hash": folder.model_hash(),
        "run": folder.run.state.id,
        "stage": "train",
    }
    assert (
        tags == hashes
        and status == "FINISHED"
        and server.curve == [(7, {"evaluation.perplexity": 3.5})]
    )
    assert [file.name for file in files] == ["training_summary.json", "evaluation.json"]
    elsewhere = plan_in(tmp_path / "run", "survival", "train.report_to=none")
    pipeline.send(StageFolder(elsewhere, elsewhere.stages[-1]), print)
    assert len(server.left) == 1, "the recipe asks for it no more"


def test_a_pod_makes_the_page_for_the_server(training, tmp_path, monkeypatch):
    """As a stage ends in a pod, where neither the recipe's file is nor a record of the plan."""
    server, *_ = training
    server.there = True
    plan = plan_in(tmp_path / "run", "survival", "train.report_to=mlflow")
    finish(plan, "data")
    folder, said = StageFolder(plan, plan.stages[-1]), []

    def trained(command):
        leave(plan, folder.stage)
        Tracked(tool="mlflow", project="survival", run="r1").write(folder.path)
        return 0

    monkeypatch.setattr(stage, "_child", trained)
    assert stage.run(folder, ["train"], said.append) == 0
    ((_, files, _),) = server.left
    assert "report.html" in {file.name for file in files} and any(
        "result page" in line for line in said
    )
    page = (tmp_path / "run/report.html").read_text("utf-8")
    assert "survival" in page and 'id="training"' in page and 'id="recipe"' not in page


def test_an_exported_model_is_sent_to_the_run_that_it_comes_from(
    training, tmp_path, golden_message
):
    server, *_ = training
    plan = plan_in(tmp_path / "run", "survival", "train.report_to=mlflow")
    folder, said = StageFolder(plan, plan.stages[-1]), []
    send_export(folder, tmp_path / "made", "q8_0", said.append)
    assert not said and not server.opened, "the run is at no server"
    Tracked(tool="mlflow", project="survival", run="r1").write(folder.path)
    send_export(folder, tmp_path / "made", "q8_0", said.append)
    server.there = True
    send_export(folder, tmp_path / "made", "q8_0", said.append)
    golden_message("\n".join(said))
    assert server.left == [(tmp_path / "made", "q8_0")] and server.opened[-1][0] == "r1"


def images(folder: Path, tool: str) -> Path:
    shutil.copy(ROOT / "recipes/data/shapes-sample.parquet", folder / "images.parquet")
    recipe = {
        "name": "small",
        "scenario": "image-classification",
        "model": {"width": 8},
        "data": {"path": "images.parquet", "image_column": "img", "label_column": "label"},
        "train": {
            "epochs": 1,
            "optimizer": "adamw_torch_fused",
            "micro_batch_size": 64,
            "report_to": tool,
        },
        "machines": {"gpu": "NVIDIA-L40S"},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "small.yaml"


def adapter(folder: Path, tool: str) -> None:
    """The same with Axolotl, on a twin."""
    base_of("survival", folder / "base")
    shutil.copy(ROOT / "recipes/data/survival-sample.jsonl", folder / "rows.jsonl")
    train = {
        "epochs": 1,
        "micro_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "lora_rank": 4,
        "report_to": tool,
    }
    recipe = {
        "name": "small",
        "scenario": "lora",
        "model": {"base": "base", "precision": "fp32", "sequence_len": 256},
        "data": {"path": "rows.jsonl", "question": "For [topic], [question]", "answer": "[answer]"},
        "train": train,
        "machines": {"gpu": "NVIDIA-L40S"},
        "demo": {"questions": ["How do I tie a knot?"], "max_new_tokens": 4},
    }
    (folder / "small.yaml").write_text(yaml.safe_dump(recipe))


def small_run(recipe_command, folder: Path, **env: str) -> tuple[str, RunFolder]:
    """What `recipe run` prints, in a folder without a GPU."""
    own = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG")}
    own |= {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    done = recipe_command("run", "small.yaml", cwd=folder, env=own | env)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, RunFolder.at(folder / "runs/small")


@contextlib.contextmanager
def mlflow_server(folder: Path):
    """The address of a real MLflow server with its own store."""
    python = os.environ.get("RECIPE_TEST_MLFLOW", "")
    if not python:
        pytest.skip(
            "RECIPE_TEST_MLFLOW names no Python with the whole of MLflow (`make test-long` installs it)"
        )
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        python,
        "-m",
        "mlflow",
        "server",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--workers",
        "1",
    ]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        f"{folder}/files",
    ]
    # As OpenShift AI's operator starts it: with workspaces, and without jobs of its own.
    command, env = (
        [*command, "--enable-workspaces"],
        os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, env=env, start_new_session=True, **quiet)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{address}/health", timeout=1),
            ):
                break
            assert server.poll() is None
            time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


@pytest.mark.long
def test_a_real_server_has_the_run_with_its_settings_curves_gates_and_files(
    recipe_command, tmp_path, monkeypatch
):
    recipe = images(tmp_path, "mlflow")
    recipe.write_text(recipe.read_text() + "gates: [accuracy > 0.01]\n")
    with mlflow_server(tmp_path) as address:
        import mlflow

        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        mlflow.create_workspace("team-a")
        monkeypatch.setenv("MLFLOW_WORKSPACE", "team-a")
        _, run = small_run(recipe_command, tmp_path)
        client = mlflow.MlflowClient(address)
        experiment = client.get_experiment_by_name("small")
        (found,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(found.info.run_id, "loss")
        files = {file.path for file in client.list_artifacts(found.info.run_id)}
        folder = StageFolder(plan := plan_of(run), plan.stages[-1])
        (tmp_path / "made").mkdir()
        for name in ("README.md", "model.safetensors"):
            (tmp_path / "made" / name).write_text(name)
        for name in ("MLFLOW_TRACKING_URI", "MLFLOW_WORKSPACE"):  # the record of the run has both
            monkeypatch.delenv(name)
        send_export(folder, tmp_path / "made", "adapter", (said := []).append)
        kept = {file.path for file in client.list_artifacts(found.info.run_id, "export/adapter")}
        assert client.get_run(found.info.run_id).info.status == "FINISHED"
    assert said == ["The export was also uploaded to MLflow, as `export/adapter`."]
    assert kept == {"export/adapter/README.md", "export/adapter/model.safetensors"}
    assert (found.info.run_name, found.info.status) == ("small", "FINISHED") and not Tracked.read(
        run.path
    ).fault
    asked = flat(read_record(run.path / "config/recipe.json"))
    assert found.data.params == asked and asked["train.epochs"] == "1"
    steps = read_record(run.path / "training_history.json")["steps"]
    assert [(one.step, one.value) for one in history] == [
        (entry["step"], entry["loss"]) for entry in steps
    ]
    assert (
        found.data.metrics["eval_accuracy"] > 0 and found.data.metrics["evaluation.accuracy"] > 0.01
    )
    planned, tags = read_record(run.path / "planned.json"), found.data.tags
    assert tags["recipe"] == "small" and tags["recipe_fingerprint"] == planned["fingerprint"]
    assert tags["run"] == run.state.id and tags["weights_hash"] == folder.model_hash()
    assert tags["data_hash"] == read_json(run.path / "data/report.json")["key"]
    assert files == {"recipe.json", "report.html", "training_summary.json", "evaluation.json"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "tool"), [(adapter, "mlflow"), (images, "wandb")], ids=["mlflow", "wandb"]
)
def test_training_ends_well_without_a_server(
    recipe_command, tmp_path, engine, tool, golden_message
):
    if tool == "mlflow":
        pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    engine(tmp_path, tool)
    away = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "WANDB_API_KEY": "", "HOME": str(tmp_path)}
    said, run = small_run(recipe_command, tmp_path, **away)
    assert (
        read_record(run.path / "training_summary.json")["steps"] > 5
        and run.state.status == "finished"
    )
    (line,) = [line for line in said.splitlines() if "could not be sent" in line]
    golden_message(line)
    assert line in (run.path / "train.log").read_text(), "the log has it where it happened"


@pytest.mark.long
def test_mlflows_own_way_in_sends_the_pods_token_and_workspace(tmp_path, monkeypatch):
    """The server is a stand-in that keeps a request's headers; the client and its plug-in are
    MLflow's."""
    pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    from mlflow.tracking.request_auth import kubernetes_request_auth_provider as way_in

    from runner.parts.jobs import podspec
    from tests.parts.jobs.test_trainjob import SURVIVAL, plan_of

    assert str(way_in._SERVICE_ACCOUNT_TOKEN_PATH) == f"{podspec.TOKEN_FOLDER}/token"
    (tmp_path / "token").write_text("a-token\n")
    monkeypatch.setattr(way_in, "_SERVICE_ACCOUNT_TOKEN_PATH", tmp_path / "token")
    plan = plan_of(SURVIVAL, "train.report_to=mlflow")
    seen = []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, dict(self.headers)))
            self.send_response(404)
            self.end_headers()

        do_POST = do_GET

        def log_message(self, *words) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        pods = podspec.tracking(plan, plan.stages[-1])
        own = {
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{server.server_port}/mlflow",
            "MLFLOW_EXPERIMENT_NAME": "",
        }
        for name, value in ({**servers.MLFLOW, **pods} | own).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
        with pytest.raises(Exception, match="404"):
            servers.MLflow().open(Tracked(tool="mlflow", project="survival"), "survival", {}, {})
        server.shutdown()
    assert seen and all(path.startswith("/mlflow/api/") for path, _ in seen)
    headers = seen[-1][1]
    assert (
        headers["Authorization"] == "Bearer a-token"
        and headers["X-MLFLOW-WORKSPACE"] == "lyric-professor"
    )
