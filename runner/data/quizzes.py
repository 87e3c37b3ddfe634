"""Quizzes in tables: the columns with the options of a question and with the right one, whatever
they are called and however the right one is marked."""

import ast
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.data.column_names import TABLES
from runner.recipe.templates import value_at

# Of the column that says which of the options is right, and of a list of options.
RIGHT_NAMES: list[str] = TABLES["right"]
OPTION_NAMES: list[str] = TABLES["options"]
# The columns that a quiz's rows get: its options with letters, and the right ones of them.
LETTERED = "lettered options"
RIGHT = "right option"
LETTERS = "ABCDEFGHIJKLMNOP"
# Of the rows of a quiz, those whose right option is one of theirs.
LEAST_RIGHT = 0.9
# A quiz has at least this many options that are filled.
LEAST_OPTIONS = 2
# The name of an option: `A`, `option_b`, `choiceC`, `opd`, `ending0`, `Answer 1 (short)`.
_OPTION = (
    r"(?P<series>|.*[\s_.(-]|.*[^\W\d_](?=\d)|.*[a-z](?=[A-H])|(?:op|opt|option|choice)(?=[a-h]$))"
    r"(?P<mark>[A-Ha-h]|[0-8])(?P<end>\W.*|)"
)
# The orders of marks in the names of options.
_SERIES = ("ABCDEFGH", "12345678", "01234567")
_BETWEEN_OPTIONS = r"\s*[,;&/+]\s*|\s+and\s+|\s+"
# A mark with the words of its option behind it.
_MARK_AND_WORDS = r"\s*\(?(?P<mark>[A-Ha-h]|\d)[).:]\s*[^\W_]"
# Two texts without a comma, as numpy prints a list; Python would join them.
_WITHOUT_COMMA = r"['\"]\s+['\"]"

Row = Mapping[str, object]
# The places of the right options among those of a row; none if it does not say which.
Places = Callable[[object, Sequence[str], Sequence[str]], list[int]]


@dataclass(frozen=True)
class Quiz:
    """options: a column for each option, or one with lists of them; labels: the column with what
    each option of such a list is called, or empty; right: which one is right; places: finds it."""

    options: Sequence[str]
    labels: str
    right: str
    places: Places

    def lettered(self, row: Row) -> tuple[str, str]:
        """The options of a row with letters, and the right ones of them; empty without any."""
        options = options_of(row, self.options)
        labels = list_in(_value(row, self.labels))
        if self.places is _by_flags and len(labels) == len(options):
            # The right one is often first there, and a model would only learn to answer A.
            options, labels = _sorted(options, labels)
        places = self.places(_value(row, self.right), options, labels)
        filled_lines = []
        right_lines = []
        for place, (letter, option) in enumerate(zip(LETTERS, options, strict=False)):
            line = f"{letter}) {option}"
            if option:
                filled_lines.append(line)
            if place in places:
                right_lines.append(line)
        return "\n".join(filled_lines), "\n".join(right_lines)


def _sorted(options: Sequence[str], flags: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Options with their flags, in alphabetical order."""
    flag_of_option = dict(zip(options, flags, strict=True))
    sorted_options = sorted(flag_of_option, key=str.casefold)
    sorted_flags = []
    for option in sorted_options:
        sorted_flags.append(flag_of_option[option])
    return sorted_options, sorted_flags


def options_of(row: Row, columns: Sequence[str]) -> list[str]:
    """The options of a row; an empty text for an empty one."""
    if len(columns) == 1:
        values = list_in(_value(row, columns[0]))
    else:
        values = [_value(row, column) for column in columns]
    options = []
    for value in values:
        if value is None:
            options.append("")
        else:
            options.append(str(value).strip())
    return options


def list_in(value: object) -> list[Any]:
    """A list, or the one in a text, as JSON or as Python writes it; empty for another value."""
    if isinstance(value, list):
        return value
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return []
    entries: object = None
    try:
        entries = json.loads(value)
    except (ValueError, RecursionError):
        if not re.search(_WITHOUT_COMMA, value):
            entries = _literal(value)
    return entries if isinstance(entries, list) else []


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def quiz_of(names: Sequence[str], sample: Sequence[Row]) -> Quiz | None:
    """The columns of options and of the right one; None for another table."""
    for series in series_of_options(names):
        columns = list(series.values())
        filled_rows = _rows_with_options(sample, columns)
        quiz = _with_right_column(names, columns, "", filled_rows, first_number="0" in series)
        if quiz:
            return quiz
    for column in names:
        filled_rows = _rows_with_options(sample, [column])
        if not filled_rows or len(filled_rows) < LEAST_RIGHT * len(sample):
            continue
        labels = _labels_of(column, names, filled_rows)
        quiz = _with_right_column(names, [column], labels, filled_rows, first_number=False)
        if quiz:
            return quiz
    return None


def series_of_options(names: Sequence[str]) -> Iterator[dict[str, str]]:
    """Columns whose names differ in a letter or a number alone, from A, 0 or 1 on, by these
    marks."""
    all_series: dict[str, dict[str, str]] = {}
    for name in names:
        option = re.fullmatch(_OPTION, name.strip())
        if option:
            series = all_series.setdefault((option["series"] + option["end"]).lower(), {})
            series.setdefault(option["mark"].upper(), name)
    for series in all_series.values():
        marks = "".join(series)
        if len(series) > 1 and any(order.startswith(marks) for order in _SERIES):
            yield series


def _rows_with_options(sample: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    """The rows with options; the empty ones of a template may have numbers."""
    filled_rows = []
    for row in sample:
        filled_options = list(filter(None, options_of(row, columns)))
        if len(filled_options) >= LEAST_OPTIONS and _are_texts(row, columns):
            filled_rows.append(row)
    return filled_rows


def _are_texts(row: Row, columns: Sequence[str]) -> bool:
    """Whether the options of a row are texts or numbers, and no objects."""
    values = [_value(row, column) for column in columns]
    if len(columns) == 1:
        values = list_in(values[0])
    return not any(isinstance(value, dict | list) for value in values)


def _labels_of(column: str, names: Sequence[str], sample: Sequence[Row]) -> str:
    """The column beside a list of options, in the same object, that says what each is called, or
    by 0 and 1 which one is right; empty without one."""
    home, _, _ = column.rpartition(".")
    for name in names:
        if not home or name == column or name.rpartition(".")[0] != home:
            continue
        if all(_are_labels(row, name, column) for row in sample):
            return name
    return ""


def _are_labels(row: Row, name: str, column: str) -> bool:
    return len(list_in(_value(row, name))) == len(options_of(row, [column]))


def _with_right_column(
    names: Sequence[str],
    columns: Sequence[str],
    labels: str,
    sample: Sequence[Row],
    first_number: bool,
) -> Quiz | None:
    """The quiz with the column that says in nearly all rows which of their options is right; None
    without one. first_number: whether the options are counted from 0 by their names."""
    if not sample:
        return None
    if labels and _share_right(Quiz(columns, labels, labels, _by_flags), sample):
        return Quiz(columns, labels, labels, _by_flags)
    used = (*columns, labels)
    other_columns = {}
    for name in names:
        if name not in used:
            other_columns[name.rpartition(".")[2].lower()] = name
    usual = []
    for name in RIGHT_NAMES:
        if name in other_columns:
            usual.append(other_columns[name])
    usual += filter(_is_called_right, other_columns.values())
    are_called_options = len(columns) > 1 or _is_called(columns[0], OPTION_NAMES)
    for column in dict.fromkeys((*usual, *other_columns.values())):
        is_usual = column in usual
        for places in _ways_to_mark(column, columns, sample, first_number):
            if places in (_from_0, _from_1) and not is_usual:
                continue
            if places is _by_texts and not are_called_options:
                continue
            quiz = Quiz(columns, labels, column, places)
            if _share_right(quiz, sample):
                return quiz
    return None


def _ways_to_mark(
    column: str, columns: Sequence[str], sample: Sequence[Row], first_number: bool
) -> list[Places]:
    """How a column may say which option is right, the surest first."""
    numbers = set[str]()
    counts = set[str]()
    are_numbers = True
    for row in sample:
        value = _value(row, column)
        are_numbers &= isinstance(value, int)
        numbers.add(str(value).strip())
        counts.add(str(len(options_of(row, columns))))
    by_number = _from_1
    if "0" in numbers or first_number:
        by_number = _from_0
    elif len(columns) == 1 and numbers.isdisjoint(counts):
        by_number = _from_0  # no number is that of the last option
    if are_numbers:
        return [_by_labels, _by_letters, by_number, _by_texts]
    return [_by_labels, _by_letters, _by_texts, by_number]


def _share_right(quiz: Quiz, sample: Sequence[Row]) -> bool:
    right_rows = 0
    for row in sample:
        _, right_options = quiz.lettered(row)
        right_rows += bool(right_options)
    return right_rows >= LEAST_RIGHT * len(sample)


def _is_called(name: str, usual_names: Collection[str]) -> bool:
    name_words = re.split(r"[\W_\d]+", name.lower())
    return not set(name_words).isdisjoint(usual_names)


def _is_called_right(name: str) -> bool:
    """Whether a column's name has a word for what is right, or begins with one."""
    return name.lower().startswith(RIGHT_NAMES[0]) or _is_called(name, _WORDS_FOR_RIGHT)


_WORDS_FOR_RIGHT = {*RIGHT_NAMES, "gold", "target", "idx", "index", "cop"}


def _by_flags(_right: object, options: Sequence[str], flags: Sequence[str]) -> list[int]:
    """By 1 for each right option, and 0 for the others."""
    if not set(flags) <= {0, 1} or len(flags) != len(options):
        return []
    return [place for place, flag in enumerate(flags) if flag]


def _by_labels(right: object, options: Sequence[str], labels: Sequence[str]) -> list[int]:
    """By what an option of a list is called."""
    for place, label in enumerate(labels):
        if label == right:
            return [place]
    return []


def _by_letters(right: object, options: Sequence[str], _labels: Sequence[str]) -> list[int]:
    return _marked(right, [*LETTERS[: len(options)]])


def _from_0(right: object, options: Sequence[str], _labels: Sequence[str]) -> list[int]:
    return _marked(right, list(map(str, range(len(options)))))


def _from_1(right: object, options: Sequence[str], _labels: Sequence[str]) -> list[int]:
    return _marked(right, list(map(str, range(1, len(options) + 1))))


def _marked(right: object, marks: Sequence[str]) -> list[int]:
    """The places of marks in a text such as `A` or `A, C`; none if another word is in it."""
    if right is None or isinstance(right, bool):
        return []
    with_words = re.match(_MARK_AND_WORDS, str(right))
    written = str(right).strip()
    if with_words:
        written = with_words["mark"]
    places = []
    for part in re.split(_BETWEEN_OPTIONS, written):
        mark = part.strip("().").removesuffix(".0").upper()
        if mark not in marks:
            return []
        places.append(marks.index(mark))
    return places


def _by_texts(right: object, options: Sequence[str], _labels: Sequence[str]) -> list[int]:
    """By the words of the option itself."""
    if right is None:
        return []
    text = str(right).strip()
    if text not in options or not text:
        return []
    return [list(options).index(text)]


def _value(row: Row, name: str) -> Any:
    try:
        return value_at(row, name)
    except KeyError:
        return None
