"""Notes on the first rows of local files, long before `recipe prepare` reads all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.check import column_notes, data_file, sources, starters
from runner.data import columns, conversation_formats, row_files, rows
from runner.data.conversation_formats import (
    EMPTY,
    NOTES_CUT,
    OWN,
    ChatSet,
    Conversation,
    NoExchange,
)
from runner.data.data_sets import BYTES_A_TOKEN, Where, place_in_file
from runner.data.support import UNSUPPORTED_PROMPT, Support, unsupported_question
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe
from runner.recipe.templates import NoText
from runner.recipe.templates import columns as columns_of
from runner.scenarios.shared.axolotl import special_tokens
from runner.tools.problem import Problem, Severity, Stop
from runner.tools.settings import Settings

if TYPE_CHECKING:
    from runner.data import doctor

FIRST_ROWS = 200
# A new recipe allows this share by itself; if more is lost, its columns are rather wrong.
MOST_LOST_BY_ITSELF = 0.5


class Beginning(NamedTuple):
    """The first rows of a file. names: of its columns; numbered: the rows as they are; examples:
    each row's line, and its conversation or why it has none."""

    names: list[str]
    numbered: list[row_files.Numbered]
    examples: list[tuple[Where, Conversation | str]]

    @property
    def conversations(self) -> list[Conversation]:
        return [row for _, row in self.examples if isinstance(row, Conversation)]


def _beginning(data: Settings, file: Path, most: int, template: str = OWN) -> Beginning | None:
    """The first rows of a file of conversations, at most this many and one more, which shows
    whether there are more; None if they are not read at once. Another rule reports a file that
    cannot be read or lacks columns. template: Axolotl's name of the chat template."""
    if not rows.is_quick(file) or not data.knows("question"):
        return None
    source = _source(data, file)
    try:
        names = rows.columns(file, sheet=source.sheet)
        numbered = list(islice(rows.read(source), most + 1))
        examples = list(_conversations(source, numbered, names, template))
    except (row_files.Unreadable, Stop, KeyError):
        return None
    return Beginning(names, numbered, examples)


def _template_of(recipe: Recipe) -> str:
    """Axolotl's name of the chat template with which the rows are prepared."""
    data = recipe.settings.get("data") or {}
    if not recipe.model_facts or not data.get("chat_template"):
        return OWN
    tokens = special_tokens(recipe)
    if tokens is None or data["chat_template"] == OWN:
        return OWN
    return tokens.axolotl


def first_rows(recipe: Recipe) -> Iterator[Problem]:
    template = _template_of(recipe)
    for home, data, file in recipe.data_files():
        beginning = _beginning(data, file, FIRST_ROWS, template)
        if beginning is None:
            continue
        names, numbered, read = beginning
        refusal = None
        if len(numbered) <= FIRST_ROWS and home[-1] == "data" and "songs" not in data:
            refusal = _too_many_lost(recipe, home, file, read)
        if refusal:
            yield _by_template(refusal, data, file, template)
        else:
            for message, hint in _shown(file, read[:FIRST_ROWS]):
                yield recipe.note((*home, "path"), message, hint)
        yield from _too_long(recipe, home, file, beginning.conversations)
        table = [row for _, row in numbered[:FIRST_ROWS] if not isinstance(row, row_files.Bad)]
        for setting, message, hint in _wrong_columns(data, file, names, table):
            yield recipe.note((*home, setting), message, hint)
        used = _used_columns(recipe, file)
        further = columns.further_pair(names, used, table)
        if further and data.get("question"):
            message = data_file.further_sentence(*further)
            yield recipe.note((*home, "question"), f"`{file}`: {message}", data_file.FURTHER_HINT)
            used |= set(further)
        if all(data.get(setting) for setting in sources.QUESTION_ANSWER):
            for message, hint in column_notes.unread_columns(file, names, used, table):
                yield recipe.note((*home, "path"), message, hint, check="column-unread")


def _by_template(refusal: Problem, data: Settings, file: Path, template: str) -> Problem:
    """The refusal of lost rows, with the setting that solves it if the chat template alone loses
    them."""
    of_own_template = _beginning(data, file, FIRST_ROWS)
    if template == OWN or of_own_template is None:
        return refusal
    if len(of_own_template.conversations) < len(of_own_template.examples):
        return refusal
    hint = f"Write `chat_template: {OWN}`, if the model's own template writes such turns. Or leave these turns out of the file."
    return replace(refusal, hint=hint, mends=None, allows=("data.chat_template", OWN))


def _used_columns(recipe: Recipe, file: Path) -> set[str]:
    """The columns of a file that a recipe reads, in any of its data sets."""
    used = set[str]()
    for _, data, other in recipe.data_files():
        if other == file:
            for setting in sources.QUESTION_ANSWER:
                used.update(columns_of(data.get(setting) or ""))
    return used


def how_it_is_read(recipe: Recipe) -> Iterator[Problem]:
    """What a person may not expect of a file: another encoding, columns without names, sheets that
    are not read."""
    for home, data in recipe.data_sets():
        name = data.get("path")
        if not name or recipe.elsewhere(name) or data.get("image_column"):
            continue
        file = recipe.folder / name
        if not file.exists() or (file.is_file() and not rows.is_quick(file)):
            continue
        if data.get("text") and data_file.holds_plain_texts(file):
            facts = data_file.text_facts(file)
        else:
            facts = data_file.reading_facts(file, data.get("sheet"))
        for fact, hint in facts:
            yield recipe.note((*home, "path"), f"`{file}`: {fact}", hint)


def _wrong_columns(
    data: Settings, file: Path, names: list[str], sample: list[row_files.DataRow]
) -> Iterator[tuple[str, str, str]]:
    """The settings of questions and answers whose column is mostly empty, or holds no text to
    learn, while another column looks like what is meant; each with a message and a hint. names:
    of the file's columns; sample: its first rows."""
    named = {setting: columns_of(data.get(setting) or "") for setting in sources.QUESTION_ANSWER}
    used = {column for of_setting in named.values() for column in of_setting}
    messages = {}
    for setting, of_setting in named.items():
        if len(of_setting) == 1 and of_setting[0] in names:
            message = _without_text(of_setting[0], file, sample)
            if message:
                messages[setting] = message
    pair = columns.likely_pair(names, sample) if messages else None
    if pair is None:
        return
    for setting, likely in zip(sources.QUESTION_ANSWER, pair, strict=True):
        if setting in messages and not used & {*columns_of(likely)}:
            yield setting, messages[setting], f"Did you mean `{likely}`?"


def _without_text(column: str, file: Path, sample: list[row_files.DataRow]) -> str:
    """What is wrong with a column that is mostly empty or holds no text; empty for another one."""
    facts = columns.facts_of(column, sample)
    if facts.filled_share < columns.LEAST_FILLED:
        empty = round((1 - facts.filled_share) * len(sample))
        return (
            f"{empty:,} of the first {len(sample):,} rows of `{file}` have nothing in `{column}`."
        )
    if facts.holds_text:
        return ""
    values = [columns.value_of(row, column) for row in sample]
    first = next(str(value) for value in values if value is not None)
    return f"`{column}` of `{file}` holds no text to learn, for example `{first[:40]}`."


def _too_long(
    recipe: Recipe, home: Path_, file: Path, talks: list[Conversation]
) -> Iterator[Problem]:
    """Rows that are longer than `sequence_len`: certainly, by their words, or probably, by their
    bytes."""
    where, limit = recipe.longest_row(home)
    if not limit or not talks:
        return
    prompt = recipe.document.lookup((*home, "system_prompt")) or ""
    count = certain = likely = 0
    for talk in talks[:FIRST_ROWS]:
        turns = " ".join(turn.content for turn in talk.turns)
        text = f"{prompt} {turns}"
        count += 1
        if len(text.split()) > limit:
            certain += 1
        if len(text.encode()) / BYTES_A_TOKEN > limit:
            likely += 1
    severity: Severity = "note"
    rows_in_words = f"the first {count:,} rows of `{file}`"
    if len(talks) <= FIRST_ROWS:
        severity = "error"
        rows_in_words = f"the {count:,} rows of `{file}`"
    remedy = "Raise `sequence_len`; `recipe prepare` counts in tokens."
    if certain == count:
        message = f"All of {rows_in_words} have more than {limit:,} words, and rows of more than {limit:,} tokens are left out. No row would remain."
        yield recipe.problem(where, message, remedy, severity=severity, check="rows-too-long")
    elif likely > count / 2:
        message = f"Of {rows_in_words}, about {likely:,} are longer than {limit:,} tokens, and are left out."
        yield recipe.note(where, message, remedy, check="rows-too-long")


def _source(data: Settings, file: Path) -> ChatSet:
    templated = {setting: data.get(setting) for setting in sources.QUESTION_ANSWER}
    form = conversation_formats.stated(data.get("form") or "auto", **templated)
    return ChatSet(
        hub=None,
        revision=None,
        subset=None,
        split=None,
        path=str(file),
        sheet=data.get("sheet"),
        form=form,
        **templated,
    )


def _conversations(
    source: ChatSet, numbered: Iterable[row_files.Numbered], names: Sequence[str], template: str
) -> Iterator[tuple[Where, Conversation | str]]:
    """Each row's line, and its conversation or why it has none. names: of the file's columns.
    template: Axolotl's name of the chat template. Raises KeyError with the name of a column that
    no row has."""
    form = source.told()
    for number, row in numbered:
        line = place_in_file(source, number)
        if isinstance(row, row_files.Bad):
            yield line, row.reason
            continue
        try:
            conversation = form.conversation(template, row)
        except NoExchange:
            continue  # left out, and not lost
        except NoText as error:
            yield line, str(error)
        except KeyError as error:
            column = str(error.args[0])
            if column not in names:
                raise
            yield line, f"it has no `{column}`"
        else:
            yield line, conversation


def _too_many_lost(
    recipe: Recipe, home: Path_, file: Path, read: list[tuple[Where, Conversation | str]]
) -> Problem | None:
    """The refusal of `recipe prepare`, before it is asked; None if it accepts the rows. read: all
    rows of the file, each with its line."""
    from runner.data.report import most_lost  # as in `_shown`

    lost = [(line, reason) for line, reason in read if isinstance(reason, str)]
    share = recipe.settings["data"].get("max_lost_share") or 0
    allowed = most_lost(share, len(read))
    if len(lost) <= allowed:
        return None
    bound = "none may be lost"
    if allowed:
        bound = f"at most {allowed:,} may be lost"
    line, reason = lost[0]
    enough = math.ceil(100 * len(lost) / len(read)) / 100
    hint = "Fix them to learn them; `recipe prepare` lists all."
    if all(reason == EMPTY for _, reason in lost):
        hint = "Choose other columns, or fill in what is empty; `recipe prepare` lists all."
    if len(lost) < len(read):
        hint += f" To leave them out, allow more with `max_lost_share: {enough:g}`."
    problem = recipe.problem(
        (*home, "path"),
        f"{len(lost):,} of the {len(read):,} rows of `{file}` cannot be used, but {bound}. The first is line {line}: {reason}.",
        hint,
    )
    if len(lost) == len(read):
        return problem  # no row would remain
    if enough > MOST_LOST_BY_ITSELF:
        return replace(problem, allows=("data.max_lost_share", enough))
    return replace(problem, mends=("data.max_lost_share", enough))


def _shown(file: Path, read: list[tuple[Where, Conversation | str]]) -> Iterator[tuple[str, str]]:
    # The doctor's patterns take longer than the rest of a check.
    from runner.data import doctor
    from runner.data.report import numbers

    of_rows = f"Of the first {len(read):,} rows of `{file}`"
    unreadable = []
    good = []
    for number, row in read:
        if isinstance(row, Conversation):
            answer = row.turns[-1].content
            good.append(doctor.ExaminedRow(number, row.said, answer, asked=row.asked))
        else:
            unreadable.append((number, row))
    yield from _left_out(of_rows, unreadable)
    notes = sum(NOTES_CUT in row.changes for _, row in read if isinstance(row, Conversation))
    if notes:
        verb = "has" if notes == 1 else "have"
        yield (
            f"{of_rows}, {notes:,} {verb} notes that only colleagues see. They are left out.",
            "The model learns what the person who asks can read.",
        )
    if len(read) >= doctor.FEW:
        findings = doctor.quick(good)
    else:
        # A pattern in a few rows means nothing, but personal data in one row does.
        findings = chain(doctor.several_answers(good), doctor.personal(good))
    yield from _written_otherwise(of_rows, good)
    for finding in findings:
        verb = "has" if finding.count == 1 else "have"
        lines = numbers(finding.lines, finding.count)
        message = f"{of_rows}, {finding.count:,} {verb} {finding.kind} ({finding.said}){lines}."
        yield message, finding.remedy


def _left_out(of_rows: str, unreadable: list[tuple[Where, str]]) -> Iterator[tuple[str, str]]:
    """Notes on rows that are left out: those with nothing to learn, and those that are broken."""
    empty = []
    broken = []
    for line, reason in unreadable:
        if reason == EMPTY:
            empty.append((line, reason))
        else:
            broken.append((line, reason))
    hints = (
        (
            empty,
            "A model learns nothing from half an exchange. To learn them, fill in what is empty.",
        ),
        (broken, "Fix them to learn them."),
    )
    for left_out, hint in hints:
        if left_out:
            line, reason = left_out[0]
            yield (
                f"{of_rows}, {len(left_out):,} will be left out. The first is line {line}: {reason}.",
                f"{hint} `recipe prepare` lists all, and fails if `max_lost_share` allows fewer.",
            )


# A line break as a program writes it; a lower-case letter behind it is rather a path, or a formula.
WRITTEN_BREAK = re.compile(r"\\n(?![a-z\"'])")
NUMBER_OF_QUESTION = re.compile(r"\s*\(?\d{1,4}[.)]\s+\S")
# The share of rows from which on such marks are no chance.
MOST_NUMBERED, MOST_WITH_BREAKS = 0.8, 0.1


def _written_otherwise(
    of_rows: str, good: Sequence[doctor.ExaminedRow]
) -> Iterator[tuple[str, str]]:
    """Notes on marks that the model would learn with the words: line breaks that are written as
    `\\n`, and the numbers of questions."""
    from runner.data.report import numbers  # as in `_shown`

    with_breaks = [row.line for row in good if WRITTEN_BREAK.search(row.answer or "")]
    if with_breaks and len(with_breaks) >= MOST_WITH_BREAKS * len(good):
        lines = numbers(with_breaks, len(with_breaks))
        yield (
            f"{of_rows}, {len(with_breaks):,} have the characters `\\n` instead of a line break{lines}.",
            "The model would learn to write them. Replace them in the file with line breaks.",
        )
    numbered = [row.line for row in good if NUMBER_OF_QUESTION.match(row.asked)]
    if len(numbered) > 1 and len(numbered) >= MOST_NUMBERED * len(good):
        yield (
            f"{of_rows}, {len(numbered):,} have a number before the question.",
            "The model would learn to expect it. Delete the numbers, or move them into a column of their own.",
        )


# Files with more rows than this are judged by `recipe prepare` alone.
MOST_ROWS = 5000


def support(recipe: Recipe) -> Iterator[Problem]:
    """Demo questions and a system prompt that no row supports, if every row is in small files of
    questions and answers."""
    questions = [question for _, question in recipe.demo_questions]
    files = list(recipe.data_files())
    all_sets = list(recipe.data_sets())
    if not questions or len(files) != len(all_sets):
        return
    data = recipe.settings.get("data") or {}
    support = Support(questions, data.get("system_prompt") or "")
    for _, data_set, file in files:
        texts = _texts(data_set, file)
        if texts is None:
            return
        for text in texts:
            support.add(text)
    # Another rule has noted the questions that came with a starter.
    _, of_starter = starters.questions_of(recipe)
    for question in support.unsupported_questions():
        if question not in of_starter:
            yield recipe.note(recipe.place_of_question(question), *unsupported_question(question))
    if support.prompt_is_unsupported():
        yield recipe.note(("data", "system_prompt"), *UNSUPPORTED_PROMPT)


def _texts(data: Settings, file: Path) -> list[str] | None:
    """The text of every conversation of a file; None if it has too many rows, or cannot be read
    so."""
    if "songs" in data:
        return None
    beginning = _beginning(data, file, MOST_ROWS)
    if beginning is None or len(beginning.numbered) > MOST_ROWS:
        return None
    return [conversation.said for conversation in beginning.conversations]


RULES = ()
FILE_RULES = (how_it_is_read, first_rows, support)
