"""Rows of which a model learns something else than their cells: conversations in the logs of other
programs, quizzes, whose options get letters, answers with a verdict, which become preferences, and
replies that quote a mail, which asks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from runner.data import mail_quotes, quizzes, verdicts
from runner.data.columns import QUESTION_NAMES, SUBJECT_NAMES
from runner.data.logged_turns import MESSAGES, FoundTurns, with_messages
from runner.data.row_files import Bad, DataRow, FilePart, Numbered, RowFile
from runner.data.row_lists import OF_FORMS, field_paths

# The first rows of a file, by which all of them are changed.
SAMPLED_ROWS = 50
# The first of them, in which conversations are looked for.
LOGGED_ROWS = 20

QUOTES_CUT = "The mails that its replies quote are cut out of them."


class Change(NamedTuple):
    """How each row of a file is changed. fact: what a person may not expect; empty for nothing."""

    of: Callable[[Mapping[str, object]], Any]
    fact: str = ""


def change_of(sample: Sequence[object]) -> Change | None:
    """How each row of a file is changed; None if rows stay as they are. sample: its first rows."""
    rows = [row for row in sample if isinstance(row, dict)]
    if _hold_turns(rows[:LOGGED_ROWS]):
        return Change(_with_turns)
    if not rows:
        return None
    names = field_paths(rows[0])
    judged = verdicts.change_of(names, rows)
    if judged:
        return Change(judged)
    mails = mail_quotes.quoting_columns(names, rows)
    if mails:
        return _of_mail(mails, names)
    quiz = quizzes.quiz_of(names, rows)
    if quiz is None:
        return None

    def with_letters(row: Mapping[str, object]) -> dict[str, Any]:
        lettered, right = quiz.lettered(row)
        return {**row, quizzes.LETTERED: lettered, quizzes.RIGHT: right}

    return Change(with_letters)


def _of_mail(columns: Sequence[str], names: Sequence[str]) -> Change:
    """What cuts the quoted mails out of some columns, and makes questions of them."""
    by_name = {name.lower(): name for name in reversed(names)}
    subjects = [by_name[name] for name in SUBJECT_NAMES if name in by_name]
    subject = subjects[0] if subjects else None
    asks_already = not by_name.keys().isdisjoint(QUESTION_NAMES)

    def of_mail(row: Mapping[str, object]) -> dict[str, Any]:
        return mail_quotes.with_question(row, columns, subject, asks_already)

    return Change(of_mail, QUOTES_CUT)


def _hold_turns(rows: Sequence[Mapping[str, object]]) -> bool:
    """Whether rows hold conversations that are no known form."""
    for row in rows:
        if with_messages(row) is not row:
            return True
        if not row.keys().isdisjoint(OF_FORMS):
            return False  # the others have this form, or are wrong
    return False


def _with_turns(row: Mapping[str, object]) -> Any:
    """A row of a log with its turns; without any if it has no answer."""
    changed = with_messages(row)
    if changed is row and MESSAGES not in row:
        return {**row, MESSAGES: FoundTurns([], [])}
    return changed


def reshaped(rows: Sequence[Any]) -> list[Any]:
    """Rows as a reader of their file gives them. rows: of one file."""
    change = change_of(rows[:SAMPLED_ROWS])
    if change is None:
        return list(rows)
    changed_rows = []
    for row in rows:
        if isinstance(row, dict):
            changed_rows.append(change.of(row))
        else:
            changed_rows.append(row)
    return changed_rows


class Reshaping(RowFile):
    """Rows of the class behind this one, as a model learns from them."""

    def columns(self, file: Path) -> list[str]:
        names = super().columns(file)
        change, first_row = self._change(file)
        if change is None:
            return names
        for name in change.of(first_row):
            if name not in first_row and name not in names:
                names.append(name)
        return names

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        file.stat()  # a missing file is reported as any other
        change, _ = self._change(file)
        numbered = super().rows(file, part)
        if change is None:
            yield from numbered
            return
        for number, row in numbered:
            if isinstance(row, Bad):
                yield number, row
            else:
                yield number, change.of(row)

    def fact(self, file: Path) -> str:
        """What a person may not expect of the changed rows; empty for nothing."""
        change, _ = self._change(file)
        return change.fact if change else ""

    def _change(self, file: Path) -> tuple[Change | None, DataRow]:
        """How each row is changed, and the first row."""
        facts = file.stat()
        version = facts.st_ino, facts.st_mtime_ns, facts.st_size
        return _change_of_file(self, super().rows_of_beginning, super().rows, file, *version)


@lru_cache(maxsize=4)
def _change_of_file(
    _reader: RowFile,
    rows_of_beginning: Callable[[Path, int], list[DataRow]],
    read: Callable[[Path], Iterator[Numbered]],
    file: Path,
    *_version: int,
) -> tuple[Change | None, DataRow]:
    """The change of a file's rows, which is the same until the file changes."""
    sample = rows_of_beginning(file, SAMPLED_ROWS)
    if not sample:
        for _, row in islice(read(file), SAMPLED_ROWS):
            if not isinstance(row, Bad):
                sample.append(row)
    if not sample:
        return None, {}
    return change_of(sample), sample[0]
