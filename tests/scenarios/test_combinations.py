"""Every technique on every kind of rows, at every place: checked, planned, accepted by Axolotl and,
with a twin, trained."""

import json
import shutil
from itertools import product
from pathlib import Path

import pytest

from runner import catalog, scenarios
from runner.check.validate import examine, load
from runner.recipe.recipe import CONVERSATIONS, LABELS, PREFERENCES, PROMPTS, SONGS, TEXT
from runner.scenarios import place
from runner.scenarios.render import emit
from runner.tools.text import yaml_text
from tests.catalog.axolotls_own import unknown_keys, validated
from tests.conftest import ROOT

SAMPLES = ROOT / "recipes" / "data"
TECHNIQUES = {
    "lora": {"scenario": "lora"},
    "qlora": {"scenario": "lora", "train": {"adapter": "qlora"}},
    "last-layers": {"scenario": "last-layers"},
    "full": {"scenario": "full"},
    "causal-lm": {"scenario": "causal-lm"},
}
ROWS = {
    CONVERSATIONS: {
        "path": "survival-sample.jsonl",
        "question": "[question]",
        "answer": "[answer]",
    },
    SONGS: {
        "path": "lyrics-sample.jsonl",
        "songs": {"count": 120, "instruction": "Instruction", "lyrics": "Label"},
    },
    PREFERENCES: {
        "path": "seven-b-preferences.jsonl",
        "form": "preferences",
        "prompt": "[question]",
    },
    LABELS: {"path": "labels.jsonl", "form": "preferences", "label": "[label]"},
    PROMPTS: {"path": "arithmetic.jsonl", "form": "prompts", "prompt": "[problem]"},
    TEXT: {"path": "gemma-sample.txt", "form": "text", "validation_share": 0.1},
}
PLACES = {
    "here": {},
    "PyTorchJob": {"openshift": {"namespace": "me", "version": "3.2"}},
    "TrainJob": {"openshift": {"namespace": "me", "version": "3.6"}},
    "machines": {
        "nodes": {
            "machines": [
                {"address": "10.0.0.1", "gpus": [0]},
                {"address": "10.0.0.2", "gpus": [0]},
            ],
            "output_dir": "/shared/models/out",
        }
    },
}
CELLS = list(product(TECHNIQUES, ROWS, PLACES))
# 4-bit weights need a GPU: a rehearsal puts `lora` in its place.
TRAINED = [cell for cell in product(TECHNIQUES, ROWS) if cell[0] != "qlora"]


def rows_in(folder: Path, name: str) -> None:
    """A file of rows: a sample, or its pairs of answers as answers with labels."""
    if name != ROWS[LABELS]["path"]:
        shutil.copy(SAMPLES / name, folder)
        return
    pairs = [
        json.loads(line)
        for line in (SAMPLES / ROWS[PREFERENCES]["path"]).read_text("utf-8").splitlines()
    ]
    rows = [
        {"prompt": pair["question"], "completion": pair[answer], "label": answer == "chosen"}
        for pair in pairs
        for answer in ("chosen", "rejected")
    ]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def written(
    folder: Path, technique: str, rows: str, where: str = "here", features: bool = False
) -> Path:
    data = ROWS[rows]
    rows_in(folder, data["path"])
    recipe = {
        "name": "cell",
        "model": {"base": "HuggingFaceTB/SmolLM2-360M-Instruct"},
        **TECHNIQUES[technique],
        "data": data,
        **({"rewards": {"number": {}}} if rows == PROMPTS and not features else {}),
        "machines": {"gpu": "NVIDIA-L40S", "nodes": 2 if where == "machines" else 1},
        **PLACES[where],
    }
    if features:
        recipe["train"] = {**recipe.get("train", {}), "objective": "ebft"}
        recipe["ebft"] = {"use_whitening": True}
    path = folder / "cell.yaml"
    path.write_text(yaml_text(recipe), encoding="utf-8")
    return path


@pytest.mark.parametrize("technique", ["lora", "full"])
def test_features_are_compared_by_every_technique(technique, tmp_path):
    path = written(tmp_path, technique, PROMPTS, features=True)
    assert [problem.message for problem in examine(path) if problem.severity == "error"] == []
    recipe, _, _ = load(path)
    plan = scenarios.translate(recipe, place(recipe))
    (stage,) = [stage for stage in plan.stages if stage.trains]
    (told,) = scenarios.forecasting().predictions(recipe, plan)
    assert 0 < told.memory < 46 * 2**30 and told.seconds > 0
    checked = validated(dict(stage.config), catalog.gpu("NVIDIA-L40S"), 1)
    assert unknown_keys(dict(stage.config)) == []
    assert (checked["rl"], checked["ebft"]["mode"]) == ("ebft", "structured")
    assert checked["metric_for_best_model"] == "eval_reward"


def test_features_are_not_compared_by_last_layers(tmp_path):
    (problem,) = examine(written(tmp_path, "last-layers", PROMPTS, features=True))
    assert "did not come nearer" in problem.message and problem.severity == "error"


@pytest.mark.long
@pytest.mark.parametrize("technique", ["lora", "full"])
def test_features_come_nearer_in_a_rehearsal(technique, tmp_path, recipe_command):
    path = written(tmp_path, technique, PROMPTS, features=True)
    done = recipe_command("rehearse", path, "--out", tmp_path / "run", env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "mean reward" in done.stdout


@pytest.mark.parametrize(("technique", "rows", "where"), CELLS)
def test_every_cell_is_planned_and_accepted_by_axolotl(technique, rows, where, tmp_path):
    path = written(tmp_path, technique, rows, where)
    assert [problem.message for problem in examine(path) if problem.severity == "error"] == []
    recipe, _, _ = load(path)
    assert recipe.rows == rows
    plan = scenarios.translate(recipe, place(recipe))
    files = {file.path: str(file.text) for file in emit(recipe)} if where != "here" else {}
    named = {
        "PyTorchJob": "kind: PyTorchJob",
        "TrainJob": "kind: TrainJob",
        "machines": "torchrun",
    }.get(where, "")
    assert not named or any(named in text for text in files.values())
    (stage,) = [stage for stage in plan.stages if stage.trains]
    (told,) = scenarios.forecasting().predictions(recipe, plan)
    assert told.stage == stage.name and 0 < told.memory < 46 * 2**30 and told.seconds > 0
    checked = validated(dict(stage.config), catalog.gpu("NVIDIA-L40S"), 1)
    assert unknown_keys(dict(stage.config)) == []
    assert checked.get("adapter") == {"lora": "lora", "qlora": "qlora"}.get(technique)
    assert bool(checked.get("unfrozen_parameters")) == (technique == "last-layers")
    named = {
        TEXT: "",
        PROMPTS: "",
        PREFERENCES: "chat_template.default",
        LABELS: "user_defined.default",
    }
    assert checked["datasets"][0]["type"] == named.get(rows, "chat_template")
    assert checked.get("rl") == {PREFERENCES: "dpo", LABELS: "kto", PROMPTS: "grpo"}.get(rows)


@pytest.mark.long
@pytest.mark.parametrize(("technique", "rows"), TRAINED)
def test_every_cell_learns_in_a_rehearsal(technique, rows, tmp_path, recipe_command):
    path = written(tmp_path, technique, rows)
    done = recipe_command("rehearse", path, "--out", tmp_path / "run", env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    trained = {"lora": "(14", "last-layers": "(68", "full": "(100", "causal-lm": "(100"}
    assert f"parameters {trained[technique]}" in done.stdout


@pytest.mark.parametrize("technique", ["lora", "last-layers", "full", "causal-lm"])
def test_the_rows_are_what_the_data_says(technique, tmp_path):
    """Without `form`: by the other lines of `data`, and by the ending of its file."""

    def rows(**data: object) -> str:
        recipe = {
            "name": "cell",
            "model": {"base": "HuggingFaceTB/SmolLM2-360M-Instruct"},
            **TECHNIQUES[technique],
        }
        recipe |= {"rewards": {"number": {}}} if data.get("form") == PROMPTS else {}
        path = tmp_path / "cell.yaml"
        path.write_text(
            yaml_text({**recipe, "data": data, "machines": {"gpu": "NVIDIA-L40S"}}),
            encoding="utf-8",
        )
        return load(path, look=False)[0].rows

    assert rows(hub="me/rows", text="content") == TEXT
    assert rows(sets=[{"hub": "me/rows", "text": "content"}]) == TEXT
    assert rows(path="notes.txt") == TEXT
    assert rows(hub="me/rows", question="[q]", answer="[a]") == CONVERSATIONS
    assert rows(hub="me/rows", form="messages") == CONVERSATIONS
    assert rows(hub="me/rows", chosen="[better]") == PREFERENCES
    assert rows(hub="me/rows", form="preferences") == PREFERENCES
    assert rows(hub="me/rows", form="preferences", label="[good]") == LABELS
    assert rows(sets=[{"hub": "me/rows", "completion": "[answer]"}]) == LABELS
    assert rows(hub="me/rows", form="prompts", answer="[result]") == PROMPTS
    assert rows(hub="me/rows", songs={"count": 5}) == SONGS
    assert rows(hub="me/rows") == (TEXT if technique == "causal-lm" else CONVERSATIONS)


@pytest.mark.parametrize(
    ("technique", "data"),
    [
        ("lora", {**ROWS[TEXT], "question": "[q]"}),
        ("lora", {**ROWS[SONGS], "question": "[q]", "answer": "[a]"}),
        ("lora", {**ROWS[CONVERSATIONS], "validation_split": "test"}),
        ("last-layers", {**ROWS[TEXT], "system_prompt": "You are kind."}),
        ("full", {**ROWS[SONGS], "form": "messages"}),
        ("lora", {**ROWS[PREFERENCES], "train_on": "all"}),
        ("full", {**ROWS[PROMPTS], "chosen": "[answer]"}),
        ("lora", {**ROWS[LABELS], "chosen": "[good]"}),
    ],
)
def test_a_line_for_other_rows_is_refused(technique, data, tmp_path, golden_message):
    rows_in(tmp_path, data["path"])
    recipe = {
        "name": "cell",
        "model": {"base": "HuggingFaceTB/SmolLM2-360M-Instruct"},
        **TECHNIQUES[technique],
    }
    path = tmp_path / "cell.yaml"
    path.write_text(
        yaml_text({**recipe, "data": data, "machines": {"gpu": "NVIDIA-L40S"}}), encoding="utf-8"
    )
    golden_message([problem for problem in examine(path) if problem.severity == "error"])


def test_a_line_of_another_technique_is_refused(tmp_path, golden_message):
    path = written(tmp_path, "full", TEXT)
    path.write_text(
        path.read_text("utf-8") + "train:\n  lora_rank: 8\n  packing: pack\n", encoding="utf-8"
    )
    golden_message([problem for problem in examine(path) if problem.severity == "error"])
