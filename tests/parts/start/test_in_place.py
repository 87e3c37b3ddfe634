"""A recipe that exists gets other data or another model, with the settings that a copy of `recipe
new` would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.check import copying
from runner.check.validate import examined
from runner.parts.start import in_place
from runner.recipe import reading
from runner.recipe.document import Document
from runner.tools.problem import Stop, errors_of

FORTY = range(40)
ROWS = {
    "asked.csv": "topic,ask,reply\n" + "".join(f"t,How {n}?,So {n}.\n" for n in FORTY),
    "talks.jsonl": [
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"{n}"}]}
        for n in FORTY
    ],
    "pairs.jsonl": [{"prompt": f"q{n}", "chosen": "good", "rejected": "bad"} for n in FORTY],
    "judged.jsonl": [{"prompt": f"q{n}", "completion": "a", "label": True} for n in FORTY],
    "words.txt": "\n\n".join(f"A text with several words, number {n}." for n in FORTY),
    "bodies.csv": "body\n" + "".join(f"some text {n}\n" for n in FORTY),
}
FORMS = {
    "asked.csv": {"question": "[ask]", "answer": "[reply]"},
    "talks.jsonl": {"form": "messages"},
    "pairs.jsonl": {
        "form": "preferences",
        "prompt": "[prompt]",
        "chosen": "[chosen]",
        "rejected": "[rejected]",
    },
    "judged.jsonl": {
        "form": "preferences",
        "completion": "[completion]",
        "label": "[label]",
    },
    "words.txt": {"form": "text"},
    "bodies.csv": {"form": "text", "text": "body"},
}


@pytest.fixture
def museum(recipe_command, tmp_path) -> Document:
    done = recipe_command("new", "mine", "--from", "museum", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name, rows in ROWS.items():
        if isinstance(rows, list):
            text = "".join(json.dumps(row) + "\n" for row in rows)
        else:
            text = rows
        (tmp_path / "data" / name).write_text(text, encoding="utf-8")
    return reading.read(tmp_path / "mine.yaml")


def with_data(document: Document, name: str) -> Document:
    changes = in_place.other_data(document, name)
    text = copying.faithful(document, changes, copying.edited)
    assert text is not None
    return reading.parse(document.file, text)


@pytest.mark.parametrize("name", ROWS)
def test_the_columns_of_other_data_choose_form_and_columns(museum, name):
    document = with_data(museum, f"data/{name}")
    data = dict(document.data["data"])
    assert data.pop("path") == f"data/{name}"
    # Of the old data nothing about columns is left.
    assert {key: data[key] for key in data if key in in_place.OF_COLUMNS} == FORMS[name]
    assert errors_of(examined(document)[1]) == []
    # Questions about the old data are gone; the name of the recipe and its other settings stay.
    assert "questions" not in document.data["demo"]
    assert document.data["name"] == "mine" and document.data["train"]["epochs"] == 8


def test_data_of_one_form_follows_data_of_another(museum):
    document = museum
    for name in (*ROWS, *reversed(ROWS)):
        document = with_data(document, f"data/{name}")
        assert errors_of(examined(document)[1]) == []
    assert document.data["description"] == "Questions and answers of asked.csv"
    assert "objective" not in document.data["train"]


def test_data_that_cannot_be_read_changes_nothing(museum):
    with pytest.raises(Stop, match=r"The file `data/none\.csv` does not exist\."):
        in_place.other_data(museum, "data/none.csv")
    (Path(museum.file).parent / "data" / "broken.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Stop, match="cannot be read"):
        in_place.other_data(museum, "data/broken.jsonl")


def test_another_model_takes_settings_of_the_old_one_away(tmp_path, recipe_command):
    done = recipe_command("new", "mine", "--from", "survival", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "mine.yaml").read_text("utf-8")
    commit = "a" * 40
    document = reading.parse("mine.yaml", text.replace("revision: main", f"revision: {commit}", 1))
    changes = {change.setting: change.after for change in in_place.other_model(document, "small")}
    assert changes["model.base"] == "small" and changes["model.revision"] is None
    assert in_place.other_model(document, document.data["model"]["base"]) == []


def test_the_models_that_this_machine_can_train_have_their_time(museum):
    recipe = examined(museum)[0]
    assert recipe
    models = list(in_place.models_here(recipe))
    assert models[0].base == "small"
    assert all(0 < model.seconds < 24 * 3600 and model.memory > 0 for model in models)
    twice = examined(reading.parse(museum.file, museum.text.replace("epochs: 8", "epochs: 16")))[0]
    assert twice
    longer = next(in_place.models_here(twice))
    assert longer.seconds > 1.5 * models[0].seconds
