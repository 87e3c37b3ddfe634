"""The data stage on a claim: model and data come first, from a hub played on this machine, and then
nothing needs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from PIL import Image

from runner import catalog
from runner.check.validate import load
from runner.data.prepared import ROOM
from runner.parts.jobs import kubernetes, podspec
from runner.parts.planner import forecast, storage
from runner.plan import Place, Plan
from runner.recipe.overrides import from_options
from runner.scenarios import planned, preparing, translate
from runner.scenarios.render import emit
from runner.scenarios.shared import twin
from runner.tools import child_process
from runner.tools.files import write_text
from runner.tools.problem import Stop
from runner.tools.run_files import FETCHED
from runner.trainer.records import Proof
from tests.conftest import ROOT
from tests.hub import COMMIT, Hub, Repository

pytestmark = pytest.mark.heavy

SURVIVAL = ROOT / "recipes" / "survival.yaml"
SMOLLM3 = "HuggingFaceTB/SmolLM3-3B"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The tiny twin's files, as a hub has them, and one that nobody needs."""
    folder = tmp_path_factory.mktemp("twin")
    recipe, _, _ = load(SURVIVAL)
    texts = [
        json.loads(line)["answer"]
        for line in (ROOT / "recipes/data/survival-sample.jsonl").read_text("utf-8").splitlines()
    ]
    facts = twin.wanted(recipe.model_facts, catalog.chat_template("chatml"), 3, 1, folder)
    twin.tokenizer_for(facts)(texts)
    twin.build(facts)
    files = {
        file.name: file.read_bytes() for file in folder.iterdir() if file.name != twin.MADE_FROM
    }
    return files | {"weights.h5": b"unused" * 100}


FROM_FILE = tuple(f"data.{name}=" for name in ("hub", "revision", "subset", "split"))


def job(
    folder: Path, path: Path, file: str, *options: str, model_dir: str | None = None
) -> tuple[str, ...]:
    """What the pod of a recipe's data stage runs, with config, claim and the image's data files
    below `folder`."""
    files = folder / "files"
    if not files.is_dir():
        shutil.copytree(ROOT / "recipes" / "data", files)
    recipe, _, _ = load(path, from_options((*FROM_FILE, f"data.path={files / file}", *options)))
    at = Place(
        str(folder / "config"), str(folder / "claim/data"), str(folder / "claim/run"), str(folder / "scratch"),
        prepared=True, on_cluster=True, model_dir=model_dir,
    )  # fmt: skip
    stage = translate(recipe, at).stage("data")
    for config in stage.files:
        write_text(folder / "config" / stage.folder / config.path, config.text)
    return stage.command


def survival(folder: Path, file: str = "survival-sample.jsonl", *options: str) -> tuple[str, ...]:
    return job(folder, SURVIVAL, file, *options, model_dir=str(folder / "claim/models/twin"))


def carried_out(folder: Path, command: tuple[str, ...], hub: Hub | None, forked=None, **env: str):
    """The finished process. In a fork, whose libraries know no other hub, it is without the guard
    of its pod, and its errors are among its output."""
    whole = {
        **os.environ,
        # What an image has around the process.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(folder / "hf"),
        "CUDA_VISIBLE_DEVICES": "",
        "AXOLOTL_DO_NOT_TRACK": "1",
        **({"HF_ENDPOINT": hub.url} if hub else {"HF_HUB_OFFLINE": "1"}),
        **env,
    }
    if forked and not hub:
        return forked([sys.executable, *command[command.index("--") + 2 :]], folder, whole)
    return subprocess.run(
        command, env=whole, cwd=folder, capture_output=True, text=True, timeout=300
    )


def prepared_by_a_job(folder: Path, model) -> tuple[Path, Hub, Path]:
    """A claim as the first prepare Job leaves it: its data, the hub that was asked, and the file
    that the rows came from."""
    hub = Hub(models={SMOLLM3: model})
    file = shutil.copytree(ROOT / "recipes" / "data", folder / "files") / "mine.jsonl"
    shutil.copy(file.with_name("survival-sample.jsonl"), file)
    done = carried_out(folder, survival(folder, "mine.jsonl"), hub)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert (
        f"Downloading HuggingFaceTB/SmolLM3-3B at {COMMIT}" in done.stdout
        and "proven in " in done.stdout
    )
    return folder / "claim/data", hub, file


@pytest.mark.long
def test_model_and_data_come_onto_the_claim_and_a_second_time_does_nothing(tmp_path, model):
    data, hub, _ = prepared_by_a_job(tmp_path, model)
    there = {file.name for file in (tmp_path / "claim/models/twin").iterdir() if file.is_file()}
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
    } <= there and "weights.h5" not in there
    assert (data / "train.parquet").is_file() and list((data / "tokenised").rglob("*.arrow"))
    proof = Proof.read(data / "proof")
    assert not proof.faults and 0 < proof.rows <= tokenised(data)
    assert proof.logits_moved == 0 and proof.loss_at_once == pytest.approx(
        proof.loss_accumulated, abs=1e-5
    )
    record = json.loads((tmp_path / "claim/run/data/stage.json").read_text("utf-8"))
    assert record["status"] == "finished" and {"train.parquet", "validation.parquet"} <= set(
        record["outputs"]
    )
    hub.asked.clear()
    again = carried_out(tmp_path, survival(tmp_path, "mine.jsonl"), hub)
    assert (again.returncode, again.stdout.strip()) == (0, "data: done already")
    assert hub.asked == []


@pytest.mark.long
def test_other_data_under_the_same_name_is_prepared_and_tokenised_anew(tmp_path, model):
    """The model lies there and stays."""
    data, _, file = prepared_by_a_job(tmp_path, model)
    rows, lines = tokenised(data), file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[: len(lines) // 2]), encoding="utf-8")
    done = carried_out(tmp_path, survival(tmp_path, "mine.jsonl"), None)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert rows > tokenised(data) > 0
    done = carried_out(tmp_path, survival(tmp_path, "mine.jsonl"), None)
    assert done.returncode == 0 and done.stdout.strip() == "data: done already"


def tokenised(data: Path) -> int:
    """How many rows the only tokenised dataset for training has."""
    from datasets import load_from_disk

    return sum(
        len(load_from_disk(str(file.parent)))
        for file in (data / "tokenised").rglob("dataset_info.json")
    )


def test_a_claim_without_room_is_said_before_anything_is_written(
    tmp_path, monkeypatch, golden_message
):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**12, 10**12, 5 * 2**30)
    )
    with pytest.raises(Stop, match=r"5\.0 GiB free, .* a/b needs 7\.0 GiB") as stop:
        preparing.require_space(tmp_path / "not" / "there", 7 * 2**30, "the model a/b")
    golden_message(stop.value, "model")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Stop, match=r"Files that are already there stay\.") as stop:
        # Said after the model has been fetched, too.
        preparing.require_space(tmp_path, 7 * 2**30, "the prepared data")
    golden_message(stop.value, "data")
    preparing.require_space(tmp_path, 4 * 2**30, "the model a/b")


def test_a_model_that_needs_consent_names_the_secret(tmp_path, model):
    hub = Hub(models={SMOLLM3: Repository(model, gated=True)}, token="hf_right")
    done = carried_out(tmp_path, survival(tmp_path), hub, HF_TOKEN="hf_wrong_one")
    assert done.returncode == 3
    assert "`HuggingFaceTB/SmolLM3-3B` at `main` cannot" in done.stderr
    assert "`openshift.hub_token_secret`" in done.stderr
    assert "hf_wrong_one" not in done.stdout + done.stderr and "Traceback" not in done.stderr
    # What the hub says of a gated model is public, so its folder is begun.
    assert not [
        file
        for file in (tmp_path / "claim/models").rglob("*")
        if file.suffix in (".json", ".safetensors")
    ]
    assert not (tmp_path / "claim" / "data").exists()


def test_a_data_file_that_is_not_in_the_image_is_named(tmp_path, forked):
    command = survival(tmp_path)
    (tmp_path / "files" / "survival-sample.jsonl").unlink()
    (tmp_path / "claim/models/twin").mkdir(parents=True)
    fetched = {"base": "HuggingFaceTB/SmolLM3-3B", "revision": "main", "commit": COMMIT}
    (tmp_path / "claim/models/twin" / FETCHED).write_text(json.dumps(fetched), encoding="utf-8")
    done = carried_out(tmp_path, command, None, forked)
    assert done.returncode == 3
    assert (
        f"The data file or folder `{tmp_path}/files/survival-sample.jsonl` is not here."
        in done.stdout
    )
    assert (
        "In a pod: with `openshift.data_from: claim`" in done.stdout
        and "Traceback" not in done.stdout
    )


@pytest.mark.parametrize("room", [64, pytest.param(1024, marks=pytest.mark.long)])
def test_a_job_whose_longest_row_has_no_room_on_the_gpus_stops_with_the_figure(
    room, tmp_path, model, forked, golden_message
):
    """By what `render` writes into the Job of that batch; the rows are counted with the model's own
    tokenizer."""
    command = survival(tmp_path)
    batch = (
        "openshift.data_dir=/shared/models/rows",
        "train.micro_batch_size=28",
        "train.gradient_accumulation_steps=4",
    )
    job_of_batch = planned(load(SURVIVAL, from_options(batch))[0], "pytorchjob").stage("data")
    ((folders, most, *words),) = json.loads(job_of_batch.env[ROOM])
    assert 512 < most < 1024
    (tmp_path / "claim/models/twin").mkdir(parents=True)
    for name, body in model.items():
        (tmp_path / "claim/models/twin" / name).write_bytes(body)
    fetched = {"base": "HuggingFaceTB/SmolLM3-3B", "revision": "main", "commit": COMMIT}
    (tmp_path / "claim/models/twin" / FETCHED).write_text(json.dumps(fetched), encoding="utf-8")
    file = tmp_path / "config/data/work.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"proofs": None}), "utf-8")
    done = carried_out(
        tmp_path, command, None, forked, **{ROOM: json.dumps([[folders, room, *words]])}
    )
    assert "tokens a row         min" in done.stdout and "Traceback" not in done.stdout
    assert done.returncode == (3 if room == 64 else 0), done.stdout
    if room == 64:
        golden_message(done.stdout[done.stdout.index("The longest row") :])


def with_code_of_its_own(folder: Path, model: dict[str, bytes]) -> None:
    """The twin as it is when it has been fetched, with a tokenizer of a class that nobody but its
    makers has."""
    folder.mkdir(parents=True)
    for name, body in model.items():
        (folder / name).write_bytes(body)
    facts = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    facts |= {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(facts), "utf-8")
    (folder / "own.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n\n\nclass OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    done = {"base": "HuggingFaceTB/SmolLM3-3B", "revision": COMMIT, "commit": COMMIT}
    (folder / FETCHED).write_text(json.dumps(done), "utf-8")


@pytest.mark.parametrize("trusted", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_tokenizer_with_code_of_its_own_counts_where_the_recipe_trusts_it(
    trusted, tmp_path, model, forked
):
    options = (f"model.revision={COMMIT}", f"model.trust_remote_code={str(trusted).lower()}")
    command = survival(tmp_path, "survival-sample.jsonl", *options)
    with_code_of_its_own(tmp_path / "claim/models/twin", model)
    # The proof's tokenizer is Axolotl's, which has the setting in its config.
    file = tmp_path / "config/data/work.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"proofs": None}), "utf-8")
    done = carried_out(tmp_path, command, None, forked)
    assert done.returncode == (0 if trusted else 3), done.stdout
    assert ("tokens a row         min" in done.stdout) == trusted, done.stdout
    assert "Traceback" not in done.stdout
    assert trusted or "`trust_remote_code: true`" in done.stdout


# What the image of `recipe-runner` has, and a stock image has not.
MISSING = ("axolotl", "datatrove", "jsonschema", "kubernetes", "click", "rich")
WITHOUT = f"""
import importlib.abc, sys


class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            by = sys._getframe(1)
            while by and by.f_globals.get("__name__", "").startswith("importlib"):
                by = by.f_back
            if by and by.f_globals.get("__name__", "").startswith(("runner", "__main__")):
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)


sys.meta_path.insert(0, Missing())
"""


def test_images_are_prepared_on_the_claim_by_a_stock_image(tmp_path):
    for number in range(40):
        folder = tmp_path / "files" / "pictures" / ("cats", "dogs")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (number * 6, 0, 0)).save(folder / f"{number}.png")
    (tmp_path / "stock").mkdir()
    (tmp_path / "stock" / "sitecustomize.py").write_text(WITHOUT, encoding="utf-8")
    command = job(tmp_path, ROOT / "recipes" / "resnet.yaml", "pictures", "model.classes=2")
    done = carried_out(tmp_path, command, None, PYTHONPATH=f"{tmp_path / 'stock'}:{ROOT}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert "training images" in done.stdout
    assert (tmp_path / "claim" / "data" / "train.parquet").is_file()


def of_four_pods(folder: Path, *options: str) -> tuple[Plan, dict[str, Path]]:
    """The plan of the recipe as its pods have it, with rows in their image, below `folder`; the
    files of each stage."""
    recipe, _, _ = load(SURVIVAL, from_options(options))
    there = kubernetes.place(recipe)
    assert there.model_dir and not there.prepared
    moved = {
        name: str(folder / str(getattr(there, name)).lstrip("/"))
        for name in ("config_dir", "run_dir", "model_dir")
    }
    plan = translate(recipe, replace(there, **moved))
    configs = {stage.name: Path(plan.place_of(stage).config_dir) for stage in plan.stages}
    for stage in plan.stages:
        for file in stage.files:
            write_text(configs[stage.name] / file.path, file.text)
    return plan, configs


@pytest.mark.long
def test_four_pods_and_one_download(tmp_path, model):
    """One Job brings the base model; each of four pods looks for it, and loads it without a hub,
    and without a token."""
    locked = COMMIT[::-1]
    hub = Hub(models={SMOLLM3: Repository(model, commit=locked, gated=True)}, token="hf_mine")
    plan, configs = of_four_pods(tmp_path, f"model.revision={locked}")
    brings, trains = plan.stages
    assert (brings.name, brings.machines.world_size, trains.machines.nodes) == ("model", 0, 4)
    refused = carried_out(tmp_path, brings.command, hub)
    assert refused.returncode == child_process.DECIDED
    assert "`openshift.hub_token_secret`" in refused.stderr
    hub.asked.clear()
    hub.downloaded.clear()
    done = carried_out(tmp_path, brings.command, hub, HF_TOKEN="hf_mine")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert sum(f"/revision/{locked}" in asked for asked in hub.asked) >= 1, (
        "the revision that is written is the one that is asked for"
    )
    assert downloads(hub) == dict.fromkeys(model.keys() - {"weights.h5"}, 1)
    hub.asked.clear()
    again = carried_out(tmp_path, brings.command, hub, HF_TOKEN="hf_mine")
    assert (again.returncode, again.stdout.strip(), hub.asked) == (0, "model: done already", [])

    # In place of training, its first breath: what it loads, from where its config says.
    base = yaml.safe_load((configs["train"] / "axolotl.yaml").read_text("utf-8"))["base_model"]
    code = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "model = AutoModelForCausalLM.from_pretrained(sys.argv[1]); AutoTokenizer.from_pretrained(sys.argv[1])\n"
        "print(sum(p.numel() for p in model.parameters()), 'numbers loaded')"
    )
    split = trains.command.index("--") + 1
    env = podspec.environment(plan, trains)
    assert env["HF_HUB_OFFLINE"] == "1"
    for rank in range(4):
        breath = (*trains.command[:split], sys.executable, "-c", code, base)
        pod = carried_out(tmp_path, breath, hub, HF_HUB_OFFLINE="1", PET_NODE_RANK=str(rank))
        assert "numbers loaded" in pod.stdout, pod.stdout + pod.stderr
        # The first keeps the record, and misses what training would have left.
        assert pod.returncode == (child_process.DECIDED if rank == 0 else 0)
    assert hub.asked == []
    (Path(plan.place.model_dir) / FETCHED).unlink()
    broken = carried_out(tmp_path, breath, hub, HF_HUB_OFFLINE="1", PET_NODE_RANK="0")
    assert broken.returncode == child_process.DECIDED
    assert "of the stage `model` has changed since it was made" in broken.stderr


def downloads(hub: Hub) -> Counter[str]:
    """How often each file was fetched."""
    return Counter(hub.downloaded)


def test_who_needs_the_token_of_a_gated_model(tmp_path):
    def tokens(*options: str) -> dict[str, bool]:
        recipe, _, _ = load(SURVIVAL, from_options(("openshift.hub_token_secret=hub", *options)))
        files = {file.path: file.text for file in emit(recipe, ("pytorchjob",))}
        jobs = {
            path: text
            for path, text in files.items()
            if path.endswith(("job.yaml", "pytorchjob.yaml"))
        }
        return {path: "HF_TOKEN" in text for path, text in jobs.items()}

    assert tokens() == {"model/job.yaml": True, "pytorchjob.yaml": False}
    claim = tokens("openshift.data_from=claim")
    assert claim == {"data/job.yaml": True, "pytorchjob.yaml": False}


def test_a_model_on_the_claim_is_planned_for_once():
    recipe, _, _ = load(SURVIVAL)
    plan = planned(recipe, "pytorchjob")
    written = storage.everything(plan, forecast.of(recipe, plan, look=False))
    (model,) = [entry for entry in written if entry.what == "model download"]
    assert (
        model.folder == plan.place.model_dir
        and plan.claim_of(model.folder).name == "trained-models-pvc"
    )
