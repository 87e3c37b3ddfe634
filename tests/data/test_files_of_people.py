"""Files that people have, from `tests/files`: what `recipe new` makes of each, what `check` says,
and which rows `prepare` yields."""

import shlex
import shutil
import tomllib
from pathlib import Path

import pytest

from runner import scenarios
from runner.check import data_file
from runner.commands.cli import _code
from runner.data import rows
from runner.data.archives import unpacked
from runner.data.row_files import Unreadable
from runner.data.spreadsheets import Spreadsheet
from runner.data.table_layout import Header, encoding_of, header_of
from runner.parts.start import drafting
from runner.parts.start.drafting import Answers
from runner.tools.problem import Stop
from tests.conftest import ROOT

FILES = ROOT / "tests" / "files"
EXPECTED = tomllib.loads((FILES / "expected.toml").read_text("utf-8"))


@pytest.fixture
def among_files(monkeypatch):
    monkeypatch.chdir(FILES)


def test_each_file_is_described_and_there_are_enough():
    assert {file.name for file in FILES.iterdir()} - {"expected.toml"} == set(EXPECTED)
    assert len(EXPECTED) >= 60


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.usefixtures("among_files")
def test_what_comes_of_a_file(name, tmp_path):
    expected = EXPECTED[name]
    kind = data_file.kind_of(Path(name))
    assert kind == expected.get("kind", "")
    answers = Answers(kind=kind or "questions", data=name, where="here", gpu="none")
    if "refused" in expected:
        with pytest.raises(Stop) as refusal:
            drafting.drafted("demo", answers)
        assert refusal.value.text == expected["refused"]
        return
    recipe, problems = drafting.drafted("demo", answers).judged
    said = [f"{problem.message}" for problem in problems]
    for sentence in expected.get("says", ()):
        assert any(message.endswith(sentence) for message in said), said
    refused = expected.get("rows") == 0
    assert any(problem.severity == "error" for problem in problems) == refused
    assert recipe is not None
    if kind or refused:
        return
    stages = scenarios.translate(recipe, scenarios.place(recipe)).stages
    (request,) = [dict(stage.data) | {"tokenizer": None} for stage in stages if stage.data]
    report = scenarios.prepare(request, tmp_path)
    assert report.train_rows + report.validation_rows == expected["rows"]
    assert report.lost == expected.get("lost", 0)
    assert answers.first_pair == (expected["question"], expected["answer"])


# Every fifth file; all of them take minutes.
SAMPLED = sorted(EXPECTED)[::5]


def next_of(shown: str) -> list[str]:
    """The words of the command that a check proposes, without `recipe`."""
    (line,) = [line for line in shown.splitlines() if line.startswith("Next: recipe ")]
    return shlex.split(line)[2:]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLED else pytest.mark.long) for name in EXPECTED]
)  # fmt: skip
def test_the_command_that_a_check_proposes_makes_a_recipe(name, tmp_path, monkeypatch, capsys):
    if (FILES / name).is_dir():
        return  # a folder is no recipe, and its check ends otherwise
    shutil.copy(FILES / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    _code(["check", name])
    shown = capsys.readouterr()
    command = next_of(shown.err)
    if command[:1] == ["check"]:
        # YAML and JSON may be a recipe, whose check is repeated; the hint has the other way.
        if "refused" in EXPECTED[name]:
            return
        command = ["new", "my-demo", "--data", name]
        assert f"`recipe {shlex.join(command)}` makes a recipe of it" in shown.out
    if "FILE" in command:
        # It is for what a person saves first.
        assert "refused" in EXPECTED[name] or EXPECTED[name].get("rows") == 0
        return
    if "COLUMN" in command:
        first, second, *_ = rows.columns(Path(name))
        command[command.index("COLUMN")] = first
        command[command.index("COLUMN")] = second
    assert _code(command) == 0, capsys.readouterr().err
    assert Path("my-demo.yaml").exists()


def test_fifty_of_sixty_files_are_right_without_a_question_and_none_is_wrong_in_silence():
    right = [name for name, file in EXPECTED.items() if file.get("rows") or "kind" in file]
    assert len(right) >= 50
    others = [EXPECTED[name] for name in EXPECTED if name not in right]
    assert all("refused" in file or "says" in file for file in others)


QUESTION, ANSWER = "Why do bees hum?", "They move their wings quickly."


@pytest.mark.parametrize(
    ("records", "names", "skipped", "is_made"),
    [
        ([["q", "a"], [QUESTION, ANSWER]], ("q", "a"), 1, False),
        ([[QUESTION, ANSWER], ["When?", "Always."]], ("column 1", "column 2"), 0, True),
        ([["FAQ", None], [None, None], ["Ask", "Say"], [QUESTION, ANSWER]], ("Ask", "Say"), 3, False),
        # A name beside a title is no title.
        ([["question"], [QUESTION]], ("question",), 1, False),
        ([["Day", "Why did you call?"], ["2026-01-01", "Bees."]], ("Day", "Why did you call?"), 1, False),
        ([["0", "1"], [QUESTION, ANSWER]], ("0", "1"), 1, False),
        ([["", "q", "a", ""], ["1", QUESTION, ANSWER, ""]], ("column 1", "q", "a"), 1, False),
    ],
)  # fmt: skip
def test_the_header_of_a_table(records, names, skipped, is_made):
    assert header_of(records) == Header(names, skipped, is_made)


def test_an_empty_table_has_no_header():
    assert header_of([]) is None
    assert header_of([["", None], []]) is None


def test_a_few_wrong_bytes_are_no_other_encoding(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes("Blüten;Öffnung\n".encode() + b"\xff;x\n")
    assert encoding_of(file) == "utf-8-sig"


@pytest.mark.usefixtures("among_files")
def test_a_named_sheet_is_read_and_a_missing_one_is_named():
    file = Path("cover-and-stock.xlsx")
    assert Spreadsheet("Lager").columns(file) == ["Artikel", "Preis"]
    assert [row for _, row in Spreadsheet("Lager").rows(file)] == [{"Artikel": "Honig", "Preis": 5}]
    with pytest.raises(Unreadable, match="no sheet `Old` with a table"):
        Spreadsheet("Old").columns(file)
    with pytest.raises(Stop) as stop:
        list(Spreadsheet("Old").rows(file))
    assert "`FAQ` and `Lager`" in stop.value.text


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("'my bees.csv'", "my bees.csv"),
        ('"my bees.csv" ', "my bees.csv"),
        ("file:///tmp/my%20bees.csv", "/tmp/my bees.csv"),
        ("~/bees.csv", "/home/anna/bees.csv"),
    ],
)
def test_a_pasted_name(typed, name, monkeypatch):
    monkeypatch.setenv("HOME", "/home/anna")
    assert data_file.pasted(typed) == name


def test_half_a_gzip_file_is_refused_and_nothing_stays_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("runner.data.archives.cache_folder", lambda: tmp_path / "cache")
    whole = (FILES / "comma-in-gzip.csv.gz").read_bytes()
    (tmp_path / "half.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Unreadable, match="it is not a whole gzip file"):
        unpacked(tmp_path / "half.csv.gz")
    assert list((tmp_path / "cache" / "archives").iterdir()) == []


FOLDERS = sorted(path.name for path in FILES.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_data_is_described_with_the_command_for_it(name, capsys):
    assert _code(["check", str(FILES / name)]) == 1
    printed = capsys.readouterr()
    about, _, facts = printed.out.partition(": ")
    assert about == str(FILES / name)
    assert facts.startswith(("This is a folder of ", "This is a folder without a recipe: "))
    following = printed.err.splitlines()[-1].removeprefix("Next: recipe new my-demo ")
    data_is_learned = following == f"--data {FILES / name}"
    assert data_is_learned != facts.startswith("This is a folder without a recipe: ")
