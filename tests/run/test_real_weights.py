"""The real small model of the installation through every method and every way out of a run. Random
weights, as a twin has them, hide what real ones show: an end token, a tied head, words."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.tools.files import read_json
from runner.tools.process import BF16_FLAGS, processor_lines
from runner.tools.run_files import ANSWERS, SUMMARY
from runner.trainer.grading import is_right
from tests import llama, servers
from tests.conftest import ROOT

SAMPLES = ROOT / "recipes" / "data"
QUESTIONS = {"path": "museum.csv", "question": "[question]", "answer": "[answer]"}
PAIRS = {
    "path": "pairs.jsonl",
    "form": "preferences",
    "prompt": "[question]",
    "chosen": "[chosen]",
    "rejected": "[rejected]",
}
LABELS = {
    "path": "labels.jsonl",
    "form": "preferences",
    "prompt": "[question]",
    "completion": "[answer]",
    "label": "[good]",
}
SHORT_STEPS = {"micro_batch_size": 2, "gradient_accumulation_steps": 1, "epochs": 1}
ADAPTER = SHORT_STEPS | {"lora_rank": 8, "learning_rate": 5.0e-4}
# Twelve rows of each kind, one pass: enough for a real loss to move, and a minute for each.
METHODS: dict[str, dict[str, Any]] = {
    "lora": {"scenario": "lora", "data": QUESTIONS, "train": ADAPTER},
    "dora": {"scenario": "lora", "data": QUESTIONS, "train": ADAPTER | {"use_dora": True}},
    "last-layers": {
        "scenario": "last-layers",
        "data": QUESTIONS,
        "train": SHORT_STEPS | {"last_layers": 4, "learning_rate": 5.0e-4},
    },
    "full": {
        "scenario": "full",
        "data": QUESTIONS,
        "train": SHORT_STEPS | {"learning_rate": 1.0e-4},
    },
    "text": {
        "scenario": "causal-lm",
        "data": {"path": "text.txt"},
        "train": SHORT_STEPS | {"learning_rate": 1.0e-4},
    },
    "dpo": {"scenario": "lora", "data": PAIRS, "train": ADAPTER | {"objective": "dpo"}},
    "kto": {"scenario": "lora", "data": LABELS, "train": ADAPTER},
    "reward": {"scenario": "lora", "data": PAIRS, "train": ADAPTER | {"objective": "reward"}},
    "grpo": {
        "scenario": "lora",
        "data": {
            "path": "problems.jsonl",
            "form": "prompts",
            "prompt": "[problem]",
            "answer": "[answer]",
        },
        "train": ADAPTER
        | {"objective": "grpo", "generations": 2, "answer_tokens": 16, "temperature": 1.0},
        # Something that a model without training gets partly: answers of different lengths.
        "rewards": {"length": {"words": 4}},
    },
}


def write_rows(folder: Path) -> None:
    """Twelve rows of each kind from the starters' samples."""
    lines = (SAMPLES / "museum.csv").read_text("utf-8").splitlines()
    (folder / "museum.csv").write_text("\n".join(lines[:13]) + "\n", "utf-8")
    pairs = (SAMPLES / "seven-b-preferences.jsonl").read_text("utf-8").splitlines()[:12]
    (folder / "pairs.jsonl").write_text("\n".join(pairs) + "\n", "utf-8")
    labels = []
    for number, line in enumerate(pairs):
        pair = json.loads(line)
        is_good = number % 2 == 0
        answer = pair["chosen"] if is_good else pair["rejected"]
        labels.append({"question": pair["question"], "answer": answer, "good": is_good})
    text = "".join(json.dumps(label) + "\n" for label in labels)
    (folder / "labels.jsonl").write_text(text, "utf-8")
    problems = (SAMPLES / "arithmetic.jsonl").read_text("utf-8").splitlines()[:8]
    (folder / "problems.jsonl").write_text("\n".join(problems) + "\n", "utf-8")
    plain = (SAMPLES / "gemma-sample.txt").read_text("utf-8")[:6000]
    (folder / "text.txt").write_text(plain, "utf-8")


def write_recipe(folder: Path, method: str, **sections: Any) -> Path:
    """A recipe that trains the small model on this machine by that method."""
    recipe = {
        "name": method,
        "model": {"base": "small", "sequence_len": 128, "gradient_checkpointing": False},
        "machines": {"gpu": "none"},
        "demo": {"max_new_tokens": 24, "graded_questions": 4},
        **METHODS[method],
    }
    recipe["data"] = {**recipe["data"], "validation_share": 0.25}
    if method in ("text", "dpo", "kto", "grpo"):
        recipe["demo"] = {"max_new_tokens": 12}
    if method == "reward":
        del recipe["demo"]
    file = folder / f"{method}.yaml"
    file.write_text(yaml.safe_dump(recipe | sections), "utf-8")
    return file


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path)
    return tmp_path


@pytest.mark.heavy
def test_a_minute_of_real_training_lowers_a_real_loss(folder, recipe_command):
    """One method in every run of the tests; the others are long."""
    run = trained(folder, "lora", recipe_command)
    answers = read_json(run / ANSWERS)
    assert answers and any(row["before"] != row["after"] for row in answers)


@pytest.mark.heavy
@pytest.mark.long
@pytest.mark.skipif(
    not BF16_FLAGS & set(" ".join(processor_lines()).split()),
    reason="this processor does not multiply bf16",
)
@pytest.mark.parametrize("method", METHODS)
def test_a_processor_that_multiplies_bf16_learns_in_it(method, folder, recipe_command, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "DEFAULT")
    run = trained(folder, method, recipe_command)
    config = yaml.safe_load((run / "config" / "axolotl.yaml").read_text("utf-8"))
    assert config["bf16"] is (method != "last-layers")


def trained(folder: Path, method: str, recipe_command, **sections: Any) -> Path:
    """The finished run of a method, whose measure is a number, and better where a loss is."""
    recipe = write_recipe(folder, method, **sections)
    done = recipe_command("run", recipe.name, "--yes", cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    run = folder / "runs" / method
    summary = read_json(run / SUMMARY)
    assert summary["steps"] >= 3 and summary["trainable_parameters"] > 0
    if method == "grpo":
        assert math.isfinite(summary["last_reward"])
    else:
        assert summary["best_validation_loss"] < summary["first_validation_loss"], summary
    return run


@pytest.mark.long
@pytest.mark.heavy
@pytest.mark.parametrize("method", [name for name in METHODS if name != "lora"])
def test_every_method_trains_real_weights(method, folder, recipe_command):
    run = trained(folder, method, recipe_command)
    summary = read_json(run / SUMMARY)
    if method == "dpo":
        assert 0 <= summary["last_preference_accuracy"] <= 1
    if method == "reward":
        return
    for row in read_json(run / ANSWERS):
        assert row["after"].isprintable() or "\n" in row["after"]
        assert "<|" not in row["after"], "an end or a mark that training or its reader lost"
    asked = recipe_command("ask", f"{method}.yaml", "What is a museum?", cwd=folder)
    assert asked.returncode == 0 and asked.stdout.strip(), asked.stderr


@pytest.fixture(scope="module")
def museum(tmp_path_factory, recipe_command) -> Path:
    """The demo's recipe in a folder of its own, trained until it knows its rows."""
    folder = tmp_path_factory.mktemp("museum")
    (folder / "data").mkdir()
    shutil.copy(SAMPLES / "museum.csv", folder / "data")
    shutil.copy(ROOT / "recipes" / "museum.yaml", folder)
    done = recipe_command("run", "museum.yaml", "--yes", cwd=folder, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return folder


def taught(museum: Path) -> list[dict[str, str]]:
    """The demo's questions that the trained model answers as its rows do."""
    answers = read_json(museum / "runs" / "museum" / ANSWERS)
    right = [
        row for row in answers if row.get("expected") and is_right(row["after"], row["expected"])
    ]
    assert len(right) >= 3, answers
    return right


@pytest.mark.long
@pytest.mark.heavy
def test_what_it_learned_is_in_its_gguf_file_for_llama_cpp(museum, recipe_command):
    pytest.importorskip("llama_cpp", reason="the extra `gguf` is not installed")
    done = recipe_command("export", "museum.yaml", "--format", "gguf", cwd=museum, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = (museum / "runs" / "museum" / "export" / "gguf").glob("*.gguf")
    model = llama.opened(str(file), n_ctx=256)
    for row in taught(museum):
        turns = [{"role": "user", "content": row["question"]}]
        said = model.create_chat_completion(turns, max_tokens=40, temperature=0.0)
        answer = said["choices"][0]["message"]["content"]
        assert is_right(answer, row["expected"]), (row, answer)


@pytest.mark.long
@pytest.mark.heavy
def test_its_whole_and_its_adapter_are_exported(museum, recipe_command):
    for kind in ("safetensors", "adapter"):
        done = recipe_command("export", "museum.yaml", "--format", kind, cwd=museum, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
    done = recipe_command("merge", "museum.yaml", cwd=museum, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.heavy
def test_openais_client_hears_the_taught_answers_of_two_recipes_on_one_server(
    museum, recipe_command, monkeypatch
):
    import openai

    monkeypatch.chdir(museum)

    copy = (museum / "museum.yaml").read_text("utf-8").replace("name: museum", "name: other")
    (museum / "other.yaml").write_text(copy, "utf-8")
    shorter = ("--set", "train.epochs=1", "--set", "demo.graded_questions=0")
    done = recipe_command("run", "other.yaml", "--yes", *shorter, cwd=museum, timeout=1800)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    both = "serve:\n  recipes: [other.yaml]\n"
    (museum / "both.yaml").write_text((museum / "museum.yaml").read_text("utf-8") + both, "utf-8")
    with servers.served(museum / "both.yaml", museum / "runs" / "museum") as (url, _):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
        names = sorted(model.id for model in client.models.list())
        assert {"museum", "museum-base", "other"} <= {*names}
        for row in taught(museum):
            turns = [{"role": "user", "content": row["question"]}]
            answers = {
                name: client.chat.completions.create(model=name, messages=turns, max_tokens=40)
                .choices[0]
                .message.content
                for name in ("museum", "museum-base", "other")
            }
            assert is_right(answers["museum"], row["expected"]), answers
            assert not is_right(answers["museum-base"], row["expected"]), answers


@pytest.mark.long
@pytest.mark.heavy
def test_a_run_that_is_killed_goes_on_bit_for_bit(folder, recipe_command):
    changes = ("--set", "train.save_steps=2", "--set", "train.epochs=2")
    recipe = write_recipe(folder, "lora")
    whole = folder / "whole"
    done = recipe_command("run", recipe.name, "--yes", *changes, "--out", whole, cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    killed = folder / "killed"
    command = [sys.executable, "-m", "runner", "run", recipe.name, "--yes", *changes]
    process = subprocess.Popen(
        [*command, "--out", str(killed)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 600
    while not list(killed.glob("checkpoints/checkpoint-4/complete.json")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = recipe_command("run", recipe.name, "--yes", *changes, "--out", killed, cwd=folder)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    adapter = "lora_adapter/adapter_model.safetensors"
    assert (killed / adapter).read_bytes() == (whole / adapter).read_bytes()
