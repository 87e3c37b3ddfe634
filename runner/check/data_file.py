"""A file of rows, or another file that people have, in the place of a recipe: what it is, and the
command that makes a recipe of it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.data import columns, conversation_formats, rows
from runner.data.row_files import Unreadable
from runner.tools.problem import Problem, Stop, listed, shortened

# A recipe has none of these endings; `.json` may be either.
ENDINGS = {*rows.READERS, ".txt", *rows.WITHOUT_ROWS} - {".json"}
SAMPLED_ROWS = 100
MAKES_RECIPE = "`recipe new` makes a recipe of it."
SHOWN_CHARACTERS = 60


def is_data(file: Path) -> bool:
    """Whether a file is one of data by its ending, or JSON that is a list."""
    if not file.is_file():
        return False
    if file.suffix.lower() != ".json":
        return file.suffix.lower() in ENDINGS
    with file.open("rb") as content:
        return content.read(1000).lstrip().startswith(b"[")


def problem_of(file: Path) -> Problem:
    """What a file of data is, and what to do with it."""
    message, hint = _described(file)
    return Problem(str(file), 0, 0, message, hint)


def new_recipe(file: Path) -> list[str]:
    """The command that makes a recipe of a file of data, without `recipe`; empty if none does."""
    suffix = file.suffix.lower()
    if suffix in rows.WITHOUT_ROWS:
        return []
    what = []
    if suffix == ".txt":
        what = ["--what", "text"]
    elif conversation_formats.told(_columns(file)):
        what = ["--what", "conversations"]
    return ["new", "my-demo", *what, "--data", str(file)]


def _described(file: Path) -> tuple[str, str]:
    """The message and its hint."""
    kind = rows.WITHOUT_ROWS.get(file.suffix.lower())
    if kind:
        return f"This is not a recipe, and {kind['holds']}.", kind["way_out"]
    if file.suffix.lower() == ".txt":
        return "This is plain text, not a recipe.", MAKES_RECIPE
    try:
        names = rows.columns(file)
        sample = rows.first(file, SAMPLED_ROWS)
    except Unreadable as reason:
        return f"This is not a recipe, but data that cannot be read: {reason}", reason.hint
    except Stop as reason:
        return f"This is not a recipe, but data that cannot be read: {reason}", ""
    message = f"This is a file of rows, not a recipe. Its columns are {listed(names)}."
    pair = columns.question_and_answer(names, sample)
    if conversation_formats.told(names):
        message += " They hold conversations."
    elif pair:
        question, answer = (_first_text(column, sample) for column in pair)
        message += f" A model would learn to answer “{question}” with “{answer}”."
    return message, MAKES_RECIPE


def _columns(file: Path) -> list[str]:
    try:
        return rows.columns(file)
    except Unreadable:
        return []


def _first_text(column: str, sample: Sequence[Mapping[str, object]]) -> str:
    texts = [str(row[column]) for row in sample if row.get(column)]
    return shortened(texts[0], SHOWN_CHARACTERS)
