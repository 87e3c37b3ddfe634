"""What the page proposes, explains and writes: from the schema, at a place of a text, with every
comment kept."""

from __future__ import annotations

import shutil
from io import BytesIO

import pytest
from PIL import Image

from runner import catalog
from runner.check import by_schema
from runner.check.validate import examine
from runner.parts.editor import form, judging
from runner.parts.editor.judging import Opened
from runner.recipe import reading
from runner.tools.problem import Stop, errors_of
from tests.conftest import RECIPES, ROOT, STARTERS

IDS = {"ids": lambda path: f"{path.parent.name}-{path.stem}"}


def proposed(text: str) -> set[str]:
    """At the `|` of a text."""
    before = text[: text.index("|")]
    line = before.count("\n")
    return {
        one.label
        for one in judging.proposals(text.replace("|", ""), line, len(before.rpartition("\n")[2]))
    }


def test_settings_of_the_section_are_proposed_that_are_not_there_yet():
    text = "scenario: lora\ntrain:\n  epochs: 3\n  |\n  seed: 1\ndata:\n  path: x\n"
    known = set(by_schema.schema("lora")["properties"]["train"]["properties"])
    assert proposed(text) == known - {"epochs", "seed"}
    assert proposed("scenario: lora\n|\nname: x\n") == set(
        by_schema.schema("lora")["properties"]
    ) - {
        "scenario",
        "name",
    }
    assert "patience" in proposed("scenario: lora\ntrain:\n  early_stopping:\n    pa|\n")


def test_lists_of_sections_are_followed():
    item = by_schema.schema("lora")["properties"]["data"]["properties"]["sets"]["items"][
        "properties"
    ]
    start = "scenario: lora\ndata:\n  sets:\n"
    assert proposed(f"{start}    - |\n") == set(item)
    assert proposed(f"{start}    - path: a\n    - |\n") == set(item)
    assert proposed(f"{start}    - path: a\n      |\n") == set(item) - {"path"}
    assert proposed(f"{start}  - path: a\n  - hub: b\n    |\n") == set(item) - {"hub"}


def test_values_are_proposed_and_nothing_within_comments():
    assert proposed("scenario: lora\nmachines:\n  gpu: |\n") >= set(catalog.gpu_names())
    assert proposed("scenario: lora\nmodel:\n  base: Qw|\n") >= set(catalog.model_ids())
    assert proposed("scenario: lora\nmodel:\n  gradient_checkpointing: |\n") == {"true", "false"}
    assert "last-layers" in proposed("scenario: |\n")
    assert proposed("|") == {"scenario"}
    assert proposed("scenario: lora\nmodel:  # gp|\n") == set()
    assert proposed("scenario: lora\nnonsense:\n  |\n") == set()


@pytest.mark.parametrize("path", STARTERS, **IDS)
def test_every_setting_of_a_starter_is_explained_at_its_line(path):
    document = reading.read(path)
    schema = by_schema.schema(document.data["scenario"])
    looked_at = 0
    for where, place in document.keys.items():
        part = schema
        for key in where:
            part = (
                part.get("items", {})
                if isinstance(key, int)
                else part.get("properties", {}).get(key, {})
            )
        # Settings in braces share their line, which is explained by what begins it.
        first = not document.text.splitlines()[place.line - 1][: place.column - 1].strip(" -")
        if part and first:
            found = judging.meaning(document.text, place.line - 1)
            assert found and found["title"] == part["title"], f"line {place.line}: {found}"
            assert found["says"].startswith(part["description"])
            looked_at += 1
    assert looked_at > 5
    assert judging.meaning("# nothing", 0) is None


@pytest.mark.parametrize("path", RECIPES, **IDS)
def test_each_field_shows_its_setting_and_writes_it_with_the_comments_kept(path):
    document = reading.read(path)
    comments = [
        line.partition(" #")[2].strip() for line in document.text.splitlines() if " #" in line
    ]
    fields = [field for section in form.sections(document) for field in section.fields]
    assert len(fields) > 50
    written = 0
    for field in fields:
        assert field.value == document.lookup(field.path)
        value = {"whole": 7, "number": 0.5, "yes": not field.value, "lines": ["a", "b: c"]}.get(
            field.kind, "x y"
        )
        text = form.changed(document, field.path, value)
        made = reading.parse("a recipe", text)
        assert made.lookup(field.path) == value
        # A comment within a list that is written anew goes with it.
        kept = [line.partition(" #")[2].strip() for line in text.splitlines() if " #" in line]
        assert field.kind == "lines" or set(kept) >= set(comments) - {""}, field.path
        assert form.changed(made, field.path, None).count("\n") <= text.count("\n")
        written += 1
    assert written == len(fields)


def test_a_field_that_is_emptied_is_taken_away(edited):
    document = reading.read(edited())
    assert (
        "epochs"
        not in form.changed(document, ("train", "epochs"), None)
        .partition("train:")[2]
        .partition("data:")[0]
    )
    assert form.changed(document, ("train", "early_stopping", "patience"), None) == document.text


def test_what_the_page_judges_is_what_check_says(edited):
    path = edited(("epochs: 4", "epochs: -4"))
    judged = judging.judge(path.read_text("utf-8"), path)
    assert judged.problems == examine(path) and errors_of(judged.problems) and judged.recipe is None
    assert judging.judge("a: [", path).document is None
    assert [one.line for one in judging.judge("scenario: lorra\n", path).problems] == [1]


def test_a_refusal_without_a_place_is_a_problem_of_the_file(edited, monkeypatch):
    def refused(document, online):
        raise Stop("The hub has gone.", "Try again.")

    path = edited()
    monkeypatch.setattr(judging, "examined", refused)
    (problem,) = judging.judge(path.read_text("utf-8"), path, online=True).problems
    assert (problem.line, problem.message) == (0, "The hub has gone.\nTry again.")


def test_a_fault_of_our_own_is_a_problem_and_the_next_text_is_judged(edited, monkeypatch):
    path = edited()
    with monkeypatch.context() as broken:
        broken.setattr(judging, "plan", lambda recipe, price: 1 / 0)
        judged = judging.judge(path.read_text("utf-8"), path)
    assert "This is a bug in recipe-runner" in judged.problems[0].message
    assert judged.sentences == ("Fix the errors to see the plan.",)
    judged = judging.judge(path.read_text("utf-8"), path)
    assert judged.recipe and judged.stages


def test_what_does_not_fit_is_planned_all_the_same(edited):
    batch = (
        ("micro_batch_size: 8", "micro_batch_size: 32"),
        ("effective_batch_size: 64", "effective_batch_size: 256"),
    )
    path = edited(("gpu: NVIDIA-L40S", "gpu: NVIDIA-A10"), *batch)
    judged = judging.judge(path.read_text("utf-8"), path, 2.0)
    assert judged.recipe
    assert not judged.stages[0].fits and judged.stages[0].memory.total > (
        judged.stages[0].usable or 0
    )
    assert "does not fit" in judged.sentences[0] and "at 2" in judged.sentences[2]


def test_three_rows_are_shown_as_the_model_sees_them():
    shown = {}
    for path in RECIPES:
        recipe = judging.judge(path.read_text("utf-8"), path).recipe
        assert recipe
        shown |= {(path.stem, kind): rows for kind, rows in judging.rows(recipe).items()}
    assert {kind for kind, rows in shown.items() if len(rows) == 3} == shown.keys()
    assert {kind for name, kind in shown if name == "seven-b"} == {"pretrain", "sft", "dpo", "lora"}
    texts = {kind: [row.text for row in rows] for kind, rows in shown.items()}
    assert all(
        text.startswith("<|im_start|>system\nYou teach practical skills")
        for text in texts["survival", "train"]
    )
    assert all("<|end|>" in text for text in texts["lyrics", "train"])
    for documents in (("gemma", "train"), ("seven-b", "pretrain")):
        assert all(len(text) > 50 and "<|" not in text for text in texts[documents])
    assert all("<|im_end|>" in text and "\nrejected: " in text for text in texts["seven-b", "dpo"])
    pictures = [Image.open(BytesIO(row.picture)) for row in shown["resnet", "train"]]
    assert {picture.size for picture in pictures} == {(32, 32)}
    assert {text.split()[0] for text in texts["resnet", "train"]} <= {"disc", "square", "triangle"}


def test_a_file_that_is_changed_elsewhere_is_not_overwritten(tmp_path):
    path = tmp_path / "mine.yaml"
    shutil.copy(ROOT / "recipes" / "survival.yaml", path)
    file = Opened(path)
    assert file.save("mine: 1\n")
    assert path.read_text("utf-8") == "mine: 1\n"
    path.write_text("theirs: 1\n", encoding="utf-8")
    assert not file.save("mine: 2\n") and path.read_text("utf-8") == "theirs: 1\n"
    file.save("mine: 2\n", over=True)
    path.unlink()
    assert not file.save("mine: 3\n") and not path.exists()
    file.save("mine: 3\n", over=True)
    assert path.read_text("utf-8") == "mine: 3\n"


def test_line_ends_and_mark_of_a_file_stay(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes("\ufeffa: 1\r\nb: 2\r\n".encode())
    file = Opened(path)
    assert file.known == "a: 1\nb: 2\n"
    file.save("a: 1\nb: 3\n")
    assert path.read_bytes() == "\ufeffa: 1\r\nb: 3\r\n".encode()
    file.save("a: 1\nb: 4\n")
    with pytest.raises(Stop):
        Opened(tmp_path / "none.yaml")
