"""The rows in a value of JSON or YAML, wherever they are: a list, lists inside its objects, or the
keys of an object."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from runner.data import columns
from runner.data.api_descriptions import operations_in
from runner.data.logged_turns import are_turns_read_whole, holds_turns, with_messages
from runner.recipe.templates import FORMS

DEEPEST = 5  # objects inside each other whose fields are columns
LEAST_ROWS_BY_KEY = 3  # fewer objects that are alike are no list
LEAST_REPEATED = 10  # characters of a text that is surely repeated
DEEPEST_LIST = 6  # levels at which lists of rows are looked for
JUDGED_ROWS = 100  # of a list, to find out whether it has questions and answers
# Columns of conversations, which are read whole.
OF_FORMS = {name for names in FORMS.values() for name in names}
# A name in a program, such as `page.title`, which is no question.
_PROGRAM_NAME = re.compile(r"\w+([._/-]\w+)+")
# The place of each list of an object whose lists are alike, such as the questions of each subject.
_ANY_KEY = "*"
# The path of a field of a list's first object.
_IN_LIST = re.compile(r"\.[01]\.")
_EXAMPLE = re.compile(r"^\s*[-*]\s*", re.M)


ListsByPath = dict[tuple[str, ...], list[dict[str, Any]]]


class RowList(NamedTuple):
    """A list of objects. path: the names on the way to it."""

    path: tuple[str, ...]
    rows: list[dict[str, Any]]


def list_of_rows(value: object) -> list[Any] | None:
    """The rows in a value: those of a list with questions and answers, else itself or its longest
    list of objects, or its texts by their keys; None without any."""
    if isinstance(value, list) and not _are_objects(value):
        if value and all(map(_are_turns, value)):
            return [{"messages": turns} for turns in value]
        return value
    operations = operations_in(value)
    if operations:
        return operations
    if isinstance(value, dict) and holds_turns(value):
        return [with_messages(value)]
    row_lists = list(_lists_in(value, (), {}))
    if row_lists:
        return _each_wording(_likeliest(row_lists).rows)
    if not isinstance(value, dict):
        return None
    by_column = _rows_of_columns(value)
    if by_column:
        return by_column
    for field in value.values():
        if isinstance(field, dict):
            rows = list_of_rows(field)
            if rows:
                return rows
    return _answers_by_key(value)


def _are_turns(value: object) -> bool:
    """Whether a value is the turns of a conversation, without a name."""
    if not isinstance(value, list) or not _are_objects(value):
        return False
    return all({"role", "content"} <= turn.keys() for turn in value)


def _answers_by_key(value: Mapping[str, object]) -> list[Any] | None:
    """The texts of an object as answers to its keys; None if the keys are names in a program."""
    if len(value) < 2 or not all(isinstance(answer, str) for answer in value.values()):
        return None
    program_names = sum(bool(_PROGRAM_NAME.fullmatch(key)) for key in value)
    if 2 * program_names > len(value):
        return None
    return [{"question": question, "answer": answer} for question, answer in value.items()]


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _lists_in(
    value: object, path: tuple[str, ...], outer: Mapping[str, object]
) -> Iterator[RowList]:
    """The lists of objects in a value, those above others first; lists at the same place of
    several objects are one. outer: fields of the objects around it, which its rows get."""
    by_path = ListsByPath()
    _collect(value, path, outer, by_path)
    for list_path, rows in sorted(by_path.items(), key=lambda entry: len(entry[0])):
        yield RowList(list_path, rows)


def _collect(
    value: object,
    path: tuple[str, ...],
    outer: Mapping[str, object],
    by_path: ListsByPath,
) -> None:
    if len(path) > DEEPEST_LIST:
        return
    if _are_objects(value):
        assert isinstance(value, list)
        rows = by_path.setdefault(path, [])
        for row in map(with_messages, value):
            rows.append({**outer, **row} if outer else row)
            if OF_FORMS.isdisjoint(row):
                _collect_inner(row, path, {**outer, **_texts_of(row)}, by_path)
    elif isinstance(value, dict):
        rows_by_key = _rows_by_key(value)
        if rows_by_key:
            _collect(rows_by_key, path, outer, by_path)
        else:
            _collect_inner(value, path, outer, by_path)


def _rows_by_key(value: Mapping[str, object]) -> list[object]:
    """The rows of an object whose keys are their identifiers; empty for another one."""
    rows = list(value.values())
    if len(rows) < LEAST_ROWS_BY_KEY or not _are_objects(rows):
        return []
    fields = {tuple(row) for row in rows[:LEAST_ROWS_BY_KEY] if isinstance(row, dict)}
    (names, *others) = fields
    if others or all(name.isdecimal() for name in names):
        return []
    return rows


def _collect_inner(
    value: Mapping[str, object],
    path: tuple[str, ...],
    outer: Mapping[str, object],
    by_path: ListsByPath,
) -> None:
    are_alike = _have_same_columns(list(value.values()))
    for name, field in value.items():
        key = _ANY_KEY if are_alike else name
        _collect(field, (*path, key), outer, by_path)


def _have_same_columns(values: Sequence[object]) -> bool:
    """Whether values are several lists of objects with the same fields."""
    if len(values) < 2 or not all(map(_are_objects, values)):
        return False
    fields = {tuple(rows[0]) for rows in values if isinstance(rows, list)}
    return len(fields) == 1


def _texts_of(row: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if isinstance(value, str)}


def _likeliest(row_lists: Sequence[RowList]) -> RowList:
    """The list that most likely has the questions and answers: one whose columns are called so, or
    hold them; else the first, or the longest beside it."""
    beside_it = [each for each in row_lists if len(each.path) == len(row_lists[0].path)]
    longest = max(beside_it, key=lambda each: len(each.rows))
    if len(row_lists) == 1 or not OF_FORMS.isdisjoint(longest.rows[0]):
        return longest
    likeliest = max(row_lists, key=lambda each: (_likelihood(each), len(each.rows)))
    if _likelihood(likeliest) > _likelihood(longest):
        return likeliest
    return longest


def _likelihood(row_list: RowList) -> int:
    """2 if columns are called questions and answers, 1 if two of them hold such, else 0. What is in
    a list inside a row counts only for the answer."""
    names = field_paths(row_list.rows[0])
    direct_names = [name for name in names if not _IN_LIST.search(name)]
    last_names = [name.rpartition(".")[2] for name in direct_names]
    if columns.asks_and_answers(last_names):
        return 2
    asks = not {word.lower() for word in last_names}.isdisjoint(columns.QUESTION_NAMES)
    inner_names = [_IN_LIST.sub(".", name).rpartition(".")[2] for name in names]
    outer_names = {name.partition(".")[0].lower() for name in names}
    answers = not {*inner_names, *outer_names}.isdisjoint(columns.ANSWER_NAMES)
    if asks and answers:
        return 2
    sample = row_list.rows[:JUDGED_ROWS]
    pair = columns.question_and_answer(direct_names, sample)
    if pair is None or any(columns.facts_of(name, sample).is_kind for name in pair):
        return 0
    return 1


def _each_wording(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a chatbot's intents, one for each pattern with one of its responses in turn, or for
    each example with its intent; other rows as they are."""
    wordings = []
    for row in rows:
        examples = row.get("examples")
        if set(row) == {"intent", "examples"} and isinstance(examples, str):
            for example in filter(None, map(str.strip, _EXAMPLE.sub("", examples).split("\n"))):
                wordings.append({"question": example, "answer": row["intent"]})
            continue
        patterns, responses = row.get("patterns"), row.get("responses")
        if not isinstance(patterns, list) or not isinstance(responses, list) or not responses:
            return rows
        for number, pattern in enumerate(patterns):
            answer = responses[number % len(responses)]
            wordings.append({"question": pattern, "answer": answer})
    return wordings


def _rows_of_columns(value: Mapping[str, object]) -> list[Any]:
    """The rows of a table that is written by column, as pandas does: lists of values, or values by
    the number of their row; empty for anything else."""
    by_name = dict[str, list[Any]]()
    for name, column in value.items():
        if isinstance(column, dict) and all(map(str.isdecimal, column)):
            by_name[name] = list(column.values())
        elif isinstance(column, list):
            by_name[name] = column
        else:
            return []
    lengths = {len(column) for column in by_name.values()}
    if len(by_name) < 2 or len(lengths) != 1:
        return []
    return [dict(zip(by_name, row, strict=True)) for row in zip(*by_name.values(), strict=True)]


def field_paths(row: Mapping[str, object], deepest: int = DEEPEST) -> list[str]:
    """The columns of an object; of an object in it each field, by its path, and of a list of
    objects those of the first, or the second if the first repeats the row."""
    names = []
    for name, value in row.items():
        if name in OF_FORMS or deepest <= 1 or are_turns_read_whole(name, row):
            names.append(name)
        elif isinstance(value, dict) and value:
            names += [f"{name}.{path}" for path in field_paths(value, deepest - 1)]
        elif isinstance(value, list) and _are_objects(value):
            place = _first_new(value, row)
            paths = field_paths(value[place], deepest - 1)
            names.append(name)
            names += [f"{name}.{place}.{path}" for path in paths]
        else:
            names.append(name)
    return names


def _first_new(entries: Sequence[Mapping[str, object]], row: Mapping[str, object]) -> int:
    """The place of the first object of a list that does not repeat a text of its row: the first
    comment on a ticket is often its description."""
    row_texts = {text.strip() for text in row.values() if isinstance(text, str)}
    for text in entries[0].values():
        is_text = isinstance(text, str) and len(text.strip()) >= LEAST_REPEATED
        if is_text and str(text).strip() in row_texts and len(entries) > 1:
            return 1
    return 0


def holds_lists(names: Sequence[str]) -> bool:
    """Whether some columns of a row are in a list of objects."""
    return any(map(_IN_LIST.search, names))
