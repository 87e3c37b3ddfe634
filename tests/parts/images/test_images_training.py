"""Training of images through the real engine: rehearsal, resume, several processes, and what a run
leaves behind."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from runner.check.validate import load
from runner.parts.images import network, training
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.run.launch import ENGINES, environment
from runner.scenarios import prepare, translate
from runner.tools import child_process
from runner.tools.files import write_text
from runner.tools.run_files import COMPLETE
from tests import shapes
from tests.conftest import ROOT
from tests.listening import Listener, as_prometheus_reads, as_the_trainer_reads
from tests.parts.report import pages

pytestmark = pytest.mark.heavy

RECIPE = ROOT / "recipes" / "resnet.yaml"


def tiny(tmp_path: Path, name: str, *sets: str):
    """Stage and place of a run of a very narrow network on 200 images, prepared and ready to be
    launched."""
    images = tmp_path / "images"
    if not images.is_dir():
        drawn, labels = shapes.pictures(per_class=22)
        shapes.write(images / "train.parquet", drawn[20:], labels[20:])
        shapes.write(images / "test.parquet", drawn[:20], labels[:20])
    changes = [f"data.path={images}", "data.hub=", "data.mean=", "data.std=", "model.width=4", "train.learning_rate=0.01",
               "train.logging_steps=2", "train.optimizer=adamw_torch", *sets]  # fmt: skip
    recipe, _, _ = load(RECIPE, from_options(changes))
    run = tmp_path / name
    place = Place(f"{run}/config", f"{run}/data", str(run), f"{run}/scratch", accelerator=False)
    _, stage = translate(recipe, place).stages
    prepare(stage.data, Path(place.data_dir))
    for file in stage.files:
        write_text(Path(place.config_dir) / file.path, file.text)
    return stage, place


def start(stage, place, log: Path, **variables: str):
    env = environment(stage, place) | {"PYTHONPATH": str(ROOT)} | variables
    with log.open("a") as out:
        return subprocess.Popen(
            ENGINES["images"](stage, place), env=env, cwd=ROOT, stdout=out, stderr=out
        )


def finish(process, log: Path):
    assert process.wait(300) == 0, log.read_text()[-3000:]


def read(place, name):
    return json.loads((Path(place.run_dir) / name).read_text(encoding="utf-8"))


@pytest.mark.long
def test_a_run_that_was_killed_goes_on_and_ends_as_if_nothing_had_happened(tmp_path):
    sets = ("train.epochs=8",)
    stage, place = tiny(tmp_path, "whole", *sets)
    finish(start(stage, place, tmp_path / "whole.log"), tmp_path / "whole.log")

    stage, killed = tiny(tmp_path, "killed", *sets)
    log = tmp_path / "killed.log"
    process = start(stage, killed, log)
    checkpoints = Path(killed.checkpoints_dir)
    deadline = time.monotonic() + 200
    while not list(checkpoints.glob(f"checkpoint-*/{COMPLETE}")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    done = read(killed, "training_history.json")["epochs"][-1]["epoch"]
    assert 1 <= done < 8
    assert not (Path(killed.run_dir) / "training_summary.json").exists()
    finish(start(stage, killed, log), log)

    begins = [event for event in child_process.events(log.read_text()) if event["event"] == "begin"]
    assert [begin["step"] > 0 for begin in begins] == [False, True]
    whole, resumed = (read(where, "training_history.json") for where in (place, killed))
    assert [entry["epoch"] for entry in resumed["epochs"]] == list(range(9))
    for kind, figures in (
        ("epochs", ("train_loss", "validation_loss", "accuracy")),
        ("steps", ("loss", "learning_rate")),
    ):
        for figure in figures:
            assert [entry[figure] for entry in resumed[kind]] == pytest.approx(
                [entry[figure] for entry in whole[kind]], abs=2e-3
            ), figure
    summary = read(killed, "training_summary.json")
    assert summary["best_accuracy"] == max(entry["accuracy"] for entry in resumed["epochs"][1:])
    assert summary["test_accuracy"] is not None and summary["engine"] == "images"


@pytest.mark.long
def test_a_run_that_is_asked_to_end_in_an_epoch_ends_bit_for_bit_as_if_nothing_had_happened(
    tmp_path,
):
    """Crops and flips of the batches after the checkpoint among them, which are made ahead of
    it."""
    sets = (
        "train.epochs=4",
        "train.logging_steps=1",
        "train.micro_batch_size=8",
        "train.effective_batch_size=",
    )
    stage, place = tiny(tmp_path, "whole", *sets)
    finish(start(stage, place, tmp_path / "whole.log"), tmp_path / "whole.log")
    stage, asked = tiny(tmp_path, "asked", *sets)
    log = tmp_path / "asked.log"
    process = start(stage, asked, log)
    while (
        not any(event["event"] == "step" for event in child_process.events(log.read_text()))
        and process.poll() is None
    ):
        time.sleep(0.01)
    process.terminate()
    assert process.wait(100) == 143, log.read_text()[-3000:]
    saved = int(re.search(r"Step (\d+) is saved", log.read_text())[1])
    steps = read(place, "training_summary.json")["steps"]
    assert 0 < saved < steps and saved % (steps // 4), "it is asked in an epoch"
    finish(start(stage, asked, log), log)
    whole, resumed = (
        network.read(Path(where.run_dir) / "final_model.pth")["model"] for where in (place, asked)
    )
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    assert (
        read(asked, "training_history.json")["epochs"]
        == read(place, "training_history.json")["epochs"]
    )


@pytest.mark.long
def test_training_shows_its_metrics_where_the_pods_annotations_say(tmp_path):
    stage, place = tiny(tmp_path, "shown", "train.epochs=8")
    with Listener() as heard:
        process = start(stage, place, tmp_path / "log", **heard.env)
        while not (
            any('"loss"' in said for said in heard.answers)
            and "recipe_loss " in (heard.metrics or [""])[-1]
        ):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.01)
        process.kill()
        process.wait()
    shown = as_prometheus_reads(heard.metrics[-1])
    assert (
        shown["recipe_steps"] == 48
        and shown["recipe_loss"] > 0
        and shown["recipe_samples_per_second"] > 0
    )
    said = as_the_trainer_reads(heard.answers[-1])
    assert (said["totalSteps"], said["totalEpochs"]) == (48, 8) and 0 < said["currentStep"] < 48
    assert said["progressPercentage"] == 100 * said["currentStep"] // 48
    assert {"eval_loss", "eval_accuracy"} <= set(said["evalMetrics"]), (
        "there is one before the first step"
    )


@pytest.mark.long
def test_two_processes_share_the_images_and_end_with_one_result(tmp_path):
    stage, place = tiny(
        tmp_path,
        "two",
        "machines.gpus_per_node=2",
        "train.effective_batch_size=64",
        "train.epochs=2",
    )
    log = tmp_path / "two.log"
    finish(start(stage, place, log), log)
    summary = read(place, "training_summary.json")
    assert (summary["world_size"], summary["backend"], summary["effective_batch_size"]) == (
        2,
        "gloo",
        64,
    )
    # 180 images by 64 are 3 steps an epoch; each process alone would make 6.
    assert summary["steps"] == 6
    assert log.read_text().count('"event": "begin"') == 1


@pytest.mark.long
def test_a_broken_loss_stops_the_run_with_its_reason(tmp_path):
    tiny_std = "data.std=[1e-38,1e-38,1e-38]"
    stage, place = tiny(tmp_path, "broken", "train.epochs=1", "data.mean=[0,0,0]", tiny_std)
    process = start(stage, place, tmp_path / "log")
    assert process.wait(300) != 0
    assert "training has diverged." in read(place, "stopped.json")["message"]


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory, recipe_command):
    """The starter recipe's rehearsal, once for this file."""
    folder = tmp_path_factory.mktemp("rehearsal")
    started = time.monotonic()
    done = recipe_command("rehearse", RECIPE, "--out", folder / "run", cwd=folder, timeout=580)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder / "run", done.stdout, time.monotonic() - started


def test_the_page_to_show_has_the_figures_of_the_files(rehearsed):
    run, said, _ = rehearsed
    assert said.endswith("The result page is run/report.html\n")
    page = pages.read(run / "report.html")
    pages.holds_the_figures_of(page, run)
    assert "classes of images was trained on" in page.said


def test_the_rehearsal_reaches_60_percent_and_leaves_every_result(rehearsed):
    run, said, _ = rehearsed
    summary = json.loads((run / "training_summary.json").read_text("utf-8"))
    assert (
        summary["proof"]["kind"] == "images"
        and summary["proof"]["judged"] > 0
        and not summary["proof"]["faults"]
    )
    assert summary["best_accuracy"] >= 0.6
    assert f"accuracy {summary['best_accuracy']:.1%} of the validation images" in said
    for name in (
        "checkpoint_latest.pth",
        "best_model.pth",
        "final_model.pth",
        "training_history.json",
    ):
        assert (run / name).is_file(), name
    assert list((run / "tensorboard").rglob("events.out.tfevents.*"))
    epochs = json.loads((run / "training_history.json").read_text("utf-8"))["epochs"]
    assert epochs[0]["epoch"] == 0 and epochs[0]["accuracy"] < 0.4
    assert all(0 <= entry["accuracy"] <= 1 for entry in epochs)
    assert json.loads((run / "run.json").read_text("utf-8"))["status"] == "finished"


def test_a_rehearsal_is_measured_class_by_class(rehearsed, recipe_command):
    run, _, _ = rehearsed
    done = recipe_command(
        "evaluate", RECIPE, "--run", run, "--set", 'gates=["accuracy >= 0.6"]', "--format", "json"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    summary = json.loads((run / "training_summary.json").read_text("utf-8"))
    assert said["metrics"]["accuracy"] == pytest.approx(summary["best_accuracy"])
    assert said["metrics"]["validation_loss"] > 0 and said["open"]
    seen = said["confusion"]
    right = sum(row.get(name, 0) for name, row in seen.items())
    assert right / sum(map(sum, (row.values() for row in seen.values()))) == pytest.approx(
        summary["best_accuracy"]
    )
    classes = {name: row.get(name, 0) / sum(row.values()) for name, row in seen.items()}
    assert {f"accuracy.{name}": share for name, share in classes.items()} == pytest.approx(
        {name: value for name, value in said["metrics"].items() if name.startswith("accuracy.")}
    )


def test_the_best_weights_do_what_the_summary_says(rehearsed):
    run, _, _ = rehearsed
    model, content = network.load(run / "best_model.pth")
    data = training.ImageDataset(
        run / "data" / "validation.parquet", 32, content["mean"], content["std"]
    )
    batch = data.__getitems__(list(range(len(data))))
    with torch.no_grad():
        right = (
            (model(batch["pixel_values"]).logits.argmax(-1) == batch["labels"])
            .float()
            .mean()
            .item()
        )
    summary = json.loads((run / "training_summary.json").read_text("utf-8"))
    assert right == pytest.approx(summary["best_accuracy"], abs=1e-6)
    assert content["classes"] == list(shapes.CLASSES)


def test_the_latest_checkpoint_holds_what_is_needed_to_go_on(rehearsed):
    run, _, _ = rehearsed
    latest = network.read(run / "checkpoint_latest.pth")
    summary = json.loads((run / "training_summary.json").read_text("utf-8"))
    assert latest["step"] == summary["steps"]
    assert latest["optimizer"]["state"] and latest["lr_scheduler"]
    final = network.read(run / "final_model.pth")
    assert all(
        torch.equal(latest["model"][name], tensor) for name, tensor in final["model"].items()
    )


def test_a_finished_rehearsal_is_not_repeated(rehearsed, recipe_command):
    run, _, _ = rehearsed
    before = (run / "best_model.pth").stat().st_mtime_ns
    done = recipe_command("rehearse", RECIPE, "--out", run)
    assert done.returncode == 0 and "This rehearsal is already done" in done.stdout
    assert (run / "best_model.pth").stat().st_mtime_ns == before


def test_the_config_that_ran_is_in_the_run_folder(rehearsed):
    run, _, _ = rehearsed
    config = yaml.safe_load((run / "config" / "images.yaml").read_text("utf-8"))
    assert config["model"]["width"] == 16


@pytest.mark.long
def test_images_that_cannot_be_learned_end_the_rehearsal_with_exit_1(recipe_command, tmp_path):
    drawn, labels = shapes.pictures(per_class=40)
    draw = np.random.default_rng(0)
    shapes.write(tmp_path / "mixed.parquet", drawn, draw.permutation(labels))
    done = recipe_command(
        "rehearse", RECIPE, "--data", tmp_path / "mixed.parquet", "--out", tmp_path / "run"
    )
    assert done.returncode == 1, done.stdout[-2000:]
    assert "The rehearsal of `resnet` did not learn" in done.stderr
    assert "but needs 60%." in done.stderr
