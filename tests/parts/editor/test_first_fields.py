"""The page begins with four fields, data, model, passes and questions; everything else is under
`More`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from runner.data.rows import ENDINGS
from runner.parts.editor import uploads
from runner.parts.editor.first_fields import fields_of
from runner.recipe import reading
from runner.tools.problem import Stop, listed
from tests.conftest import RECIPES
from tests.parts.editor.browsing import editing, in_browser, needs_nicegui, tab_of

pytestmark = needs_nicegui

ALL = ["Data", "Model", "Passes", "Questions"]
FIELDS = {
    "lora": ALL,
    "last-layers": ALL,
    "full": ALL,
    "causal-lm": ALL,
    "image-classification": ["Data", "Passes"],
    "stages": ["Model"],
}
QUESTIONS = "ask,reply\n" + "".join(f"How {n}?,So {n}.\n" for n in range(40))
WORDS = "\n\n".join(f"A text with several words, number {n}." for n in range(40))
NOTICE = ".q-notification"
TIME = ".recipe-time"


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_scenario_without_such_a_setting_shows_no_field_for_it(path):
    document = reading.read(path)
    titles = [field.title for field in fields_of(document).values()]
    expected = FIELDS[document.data["scenario"]]
    if path.stem == "seven-b":
        expected = []  # its first stage makes the model
    assert titles == expected


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("rows.csv", "rows.csv"),
        ("../x.csv", "x.csv"),
        ("..\\..\\x.CSV", "x.csv"),
        ("/etc/x.jsonl", "x.jsonl"),
        ("my rows (1).csv", "my-rows-1.csv"),
        ("..csv.csv", "csv.csv"),
        ("Fragen für 2026.xlsx", "Fragen-für-2026.xlsx"),
    ],
)
def test_the_name_of_an_upload_is_safe(name, safe):
    assert uploads.safe_name(name) == safe


@pytest.mark.parametrize("name", ["x.exe", "rows", "..", ".csv", "/.csv", "../"])
def test_an_upload_that_is_no_file_of_rows_is_refused(name):
    with pytest.raises(Stop) as refused:
        uploads.safe_name(name)
    last = name.rpartition("/")[2] or name
    assert refused.value.text == (
        f"`{last}` is not a file of rows.\nIts name must end in {listed(ENDINGS, 'or')}."
    )


def test_an_upload_replaces_a_link_and_not_its_target(tmp_path):
    outside = tmp_path / "outside.csv"
    outside.write_text("theirs")
    mine = tmp_path / "mine.csv"
    mine.write_text("mine")
    target = tmp_path / "data" / "rows.csv"
    target.parent.mkdir()
    target.symlink_to(outside)
    assert uploads.differs(mine, target)
    uploads.store(mine, target)
    assert not target.is_symlink() and target.read_text() == "mine"
    assert outside.read_text() == "theirs" and not uploads.differs(mine, target)
    assert uploads.free_name(target).name == "rows-2.csv"
    (tmp_path / "data" / "rows-2.csv").touch()
    assert uploads.free_name(target).name == "rows-3.csv"


def test_an_upload_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "data").touch()
    (tmp_path / "x.csv").touch()
    with pytest.raises(Stop, match=r"^`data/x\.csv` cannot be written: "):
        uploads.store(tmp_path / "x.csv", tmp_path / "data" / "x.csv")


def test_a_large_upload_is_refused(tmp_path):
    file = tmp_path / "large.csv"
    with file.open("wb") as rows:
        rows.truncate(100_000_000)
    uploads.require_size(file)
    with file.open("wb") as rows:
        rows.truncate(100_000_001)
    with pytest.raises(Stop) as refused:
        uploads.require_size(file)
    assert refused.value.text == (
        "The page takes files of at most 100 MB.\n"
        "Copy a larger file into `data` beside the recipe, and write its path under Data."
    )


@pytest.fixture
def museum(recipe_command, tmp_path) -> Path:
    done = recipe_command("new", "mine", "--from", "museum", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "mine.yaml"


def minutes(tab) -> float:
    """The time of training here that stands below the passes."""
    tab.until(f"document.querySelector('{TIME}')?.innerText.startsWith('Training takes about ')")
    number, unit = tab.says(TIME).split()[3:5]
    return float(number) * {"s": 1 / 60, "min": 1, "h": 60}[unit]


@pytest.mark.heavy
@in_browser
def test_the_page_begins_with_four_fields_and_the_rest_is_under_more(museum, tmp_path):
    look = {"width": 1366, "height": 768, "more": False}
    with (
        editing(tmp_path, "mine.yaml") as address,
        tab_of(address, tmp_path / "profile", **look) as tab,
    ):
        seen = "Array.from(document.querySelectorAll('.q-page input, .q-page textarea')).filter((one) => one.checkVisibility({contentVisibilityAuto: true})).map((one) => one.ariaLabel).filter(Boolean)"
        tab.until(f"{seen}.length > 3")
        assert tab.value(seen) == ["Data", "Model", "Another model", "Passes", "Questions"]
        assert tab.value("document.querySelector(\"[aria-label='Data']\").value") == (
            "data/museum.csv"
        )
        # Two passes take less time than eight, here and by the plan.
        eight = minutes(tab)
        planned = tab.says(TIME).splitlines()[1]
        assert planned.startswith("It takes ") and "NVIDIA L40S" in planned
        tab.fill("Passes", "2")
        tab.until("view.state.doc.toString().includes('epochs: 2 ')")
        tab.until(f"!document.querySelector('{TIME}').innerText.includes({planned!r})")
        # Loading takes as long for two: on a quick processor, two take more than half of eight.
        assert minutes(tab) < eight
        tab.fill("Questions", "Who?\nWhere?")
        tab.until("view.state.doc.toString().includes('Where?')")
        # A mistake is told here too, and leads to the list.
        tab.fill("Passes", "-1")
        tab.until_says(".recipe-errors", "The recipe has 1 error. More shows where.")
        assert "more than 0" in tab.says(".recipe-passes .q-field__messages")
        assert not tab.value("document.querySelector('.recipe-more').open")
        tab.click(".recipe-errors")
        tab.until("document.querySelector('.recipe-problem')?.checkVisibility()")
        assert len(tab.value(seen)) > 8
        tab.fill("Passes", "3")
        tab.until("document.querySelector('.recipe-errors').classList.contains('hidden')")
        tab.click(".recipe-save")
        tab.until_says(".recipe-state", "saved")
        saved = yaml.safe_load(museum.read_text("utf-8"))
        assert saved["train"]["epochs"] == 3
        assert saved["demo"]["questions"] == ["Who?", "Where?"]
        assert tab.value("document.documentElement.scrollWidth") <= 1366
        assert tab.complaints == []


@pytest.mark.heavy
@in_browser
def test_a_model_is_chosen_with_its_minutes_or_typed(museum, tmp_path):
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        minutes(tab)
        shown = "document.querySelector('.recipe-model .q-field__native').innerText"
        tab.until(f"{shown}.startsWith('small: about ') && {shown}.endsWith(' here')")
        tab.click(".recipe-model .q-select")
        tab.until("document.querySelectorAll('.q-menu .q-item').length > 3")
        offers = tab.value(
            "Array.from(document.querySelectorAll('.q-menu .q-item')).map((one) => one.innerText)"
        )
        assert all(offer.endswith(" here") and ": about " in offer for offer in offers)
        chosen = offers[1].partition(":")[0]
        tab.push(".q-menu .q-item", offers[1])
        tab.until(f"view.state.doc.toString().includes('base: {chosen}')")
        tab.fill("Another model", "Qwen/Qwen3-0.6B")
        tab.until("view.state.doc.toString().includes('base: Qwen/Qwen3-0.6B')")
        tab.until(f"{shown}.startsWith('Qwen/Qwen3-0.6B')")
        assert tab.complaints == []


@pytest.mark.heavy
@in_browser
def test_an_upload_becomes_the_data_with_its_columns(museum, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    data = tmp_path / "data"
    (own / "my rows.csv").write_text(QUESTIONS, encoding="utf-8")
    before = museum.read_text("utf-8")
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.give(own / "my rows.csv")
        tab.until("view.state.doc.toString().includes('path: data/my-rows.csv')")
        section = yaml.safe_load(tab.text)["data"]
        assert (section["question"], section["answer"]) == ("[ask]", "[reply]")
        tab.until("document.querySelector(\"[aria-label='Data']\").value == 'data/my-rows.csv'")
        tab.until_says(".recipe-summary", "no errors")
        assert (data / "my-rows.csv").read_text("utf-8") == QUESTIONS
        assert museum.read_text("utf-8") == before  # until somebody saves
        # The same file again asks nothing; another one of that name does.
        tab.give(own / "my rows.csv")
        (own / "text.txt").write_text(WORDS, encoding="utf-8")
        tab.give(own / "text.txt")
        tab.until("view.state.doc.toString().includes('path: data/text.txt')")
        assert yaml.safe_load(tab.text)["data"]["form"] == "text"
        assert not tab.value("document.querySelector('.recipe-same-name')")
        assert sorted(file.name for file in data.iterdir()) == [
            "museum.csv",
            "my-rows.csv",
            "text.txt",
        ]
        (own / "my rows.csv").write_text(QUESTIONS.upper(), encoding="utf-8")
        tab.give(own / "my rows.csv")
        tab.until("document.querySelector('.recipe-same-name')")
        assert tab.says(".recipe-same-name").startswith(
            "The folder data has another file with the name my-rows.csv."
        )
        tab.push(".recipe-same-name button", "Cancel")
        tab.until("!document.querySelector('.recipe-same-name')")
        assert (data / "my-rows.csv").read_text("utf-8") == QUESTIONS
        tab.give(own / "my rows.csv")
        tab.push(".recipe-same-name button", "Save mine as my-rows-2.csv")
        tab.until("view.state.doc.toString().includes('path: data/my-rows-2.csv')")
        assert yaml.safe_load(tab.text)["data"]["question"] == "[ASK]"
        assert (data / "my-rows.csv").read_text("utf-8") == QUESTIONS
        tab.until("!document.querySelector('.recipe-same-name')")
        tab.give(own / "my rows.csv")
        tab.push(".recipe-same-name button", "Replace it")
        tab.until("view.state.doc.toString().includes('path: data/my-rows.csv')")
        assert (data / "my-rows.csv").read_text("utf-8") == QUESTIONS.upper()
        assert tab.complaints == []


@pytest.mark.heavy
@in_browser
def test_an_upload_that_is_refused_leaves_nothing(museum, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "program.exe").write_bytes(b"MZ")
    (own / "broken.csv").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4)
    (own / "one.csv").write_text("")
    with (own / "large.csv").open("wb") as rows:
        rows.truncate(100_000_001)
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        before = tab.text
        for name, refusal in (
            ("program.exe", "`program.exe` is not a file of rows."),
            ("large.csv", "The page takes files of at most 100 MB."),
            ("broken.csv", "`data/broken.csv` cannot be read: it is not text in UTF-8."),
        ):
            tab.give(own / name)
            tab.until(
                f"Array.from(document.querySelectorAll('{NOTICE}')).some((one) => one.innerText.includes({refusal!r}))"
            )
        assert [file.name for file in (tmp_path / "data").iterdir()] == ["museum.csv"]
        tab.fill("Data", "data/none.csv")
        tab.until(
            f"Array.from(document.querySelectorAll('{NOTICE}')).some((one) => one.innerText.includes('The file `data/none.csv` does not exist.'))"
        )
        assert tab.text == before
        assert tab.complaints == []
