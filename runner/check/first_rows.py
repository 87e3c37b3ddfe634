"""The first rows of a local file of lines: what they say for themselves, long before `recipe prepare` looks at all of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from runner.data import conversation_formats, row_files, rows
from runner.data.conversation_formats import OWN, ChatSet
from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings
from runner.recipe.templates import NoText
from runner.tools.lengths import BYTES_A_TOKEN
from runner.tools.problem import Problem, Stop

FIRST_ROWS = 200
# Files that are read a row at a time, without a library that takes its time.
ENDINGS = (".jsonl", ".csv", ".tsv")


def first_rows(recipe: Recipe) -> Iterator[Problem]:
    """Notes, because a few rows are not all."""
    for home, data in recipe.data_sets():
        file = _lines(recipe, data)
        if not file or not data.knows("form") or data.get("songs"):
            continue
        question, answer = data.get("question"), data.get("answer")
        form = conversation_formats.stated(data["form"], question, answer)
        said = ChatSet(
            hub=None,
            revision=None,
            subset=None,
            split=None,
            path=str(file),
            form=form,
            question=question,
            answer=answer,
        )
        try:
            rows.columns(file)
            # The one more tells whether there are others.
            there = list(islice(rows.read(said), FIRST_ROWS + 1))
            notes = list(_notes(said, file, there[:FIRST_ROWS]))
        except (row_files.Unreadable, Stop, KeyError):
            # The file cannot be read, or has other columns than are named: other rules say so, with a remedy.
            continue
        for message, hint in notes:
            yield recipe.note((*home, "path"), message, hint)
        if there and (long := _too_long(recipe, home, said, file, there)):
            yield long


def _lines(recipe: Recipe, data: Settings) -> Path | None:
    """The file of a data set that is read a row at a time; None where it has none."""
    file = recipe.folder / data["path"] if data.get("path") else None
    return file if file and file.suffix in ENDINGS and file.is_file() else None


def _too_long(
    recipe: Recipe, home: Path_, source: ChatSet, file: Path, there: list[row_files.Numbered]
) -> Problem | None:
    """That rows are longer than `sequence_len`: surely, where they have as many words, and likely, by their letters."""
    where, limit = recipe.longest_row(home)
    data = recipe.document.lookup(home)
    prompt = (data.get("system_prompt") if isinstance(data, dict) else None) or ""
    told, texts = source.told(), []
    for _, row in there:
        if isinstance(row, row_files.Bad):
            continue
        try:
            conversation = told.conversation(OWN, row)
        except NoText:
            continue
        if not isinstance(conversation, str):
            texts.append(f"{prompt} {' '.join(turn.content for turn in conversation.turns)}")
    if not limit or not texts:
        return None
    whole, texts = len(texts) <= FIRST_ROWS, texts[:FIRST_ROWS]
    surely = sum(len(text.split()) > limit for text in texts)
    likely = sum(len(text.encode()) / BYTES_A_TOKEN > limit for text in texts)
    among = f"{'the' if whole else 'the first'} {len(texts):,} rows of `{file}`"
    hint = "Raise `sequence_len`; `recipe prepare` counts in tokens."
    if surely == len(texts):
        message = f"All of {among} have more than {limit:,} words, and rows of more than {limit:,} tokens are left out: none would be left."
        return recipe.problem(where, message, hint, severity="error" if whole else "note")
    if likely > len(texts) / 2:
        message = f"Of {among}, about {likely:,} are longer than {limit:,} tokens, and are left out."
        return recipe.note(where, message, hint)
    return None


def _notes(source: ChatSet, file: Path, there: list[row_files.Numbered]) -> Iterator[tuple[str, str]]:
    from runner.data import data_sets, doctor
    from runner.data.report import Report

    sources = data_sets.DataSets(sets=(source,), seed=0)
    report, good = Report.of(sources), []
    told = source.told()
    for number, row in report.whole(sources, 0, there):
        try:
            conversation = told.conversation(OWN, row)
        except NoText as error:
            report.lose(number, "no conversation", str(error))
            continue
        if isinstance(conversation, str):
            report.lose(number, "no conversation", conversation)
            continue
        good.append(doctor.ExaminedRow(number, conversation.said, conversation.turns[-1].content))
    among = f"Of the first {report.rows_in:,} rows of `{file}`"
    if report.lost:
        first, reason = report.bad_lines[0]
        yield (
            f"{among}, {report.lost:,} will be kept out; the first is line {first}: {reason}.",
            "Mend them; `recipe prepare` names all of them, and ends with 1 where they are more than `max_lost_share`.",
        )
    # What a few rows have in common says nothing; what is personal in one of them does.
    findings = doctor.quick(good) if report.rows_in >= doctor.FEW else doctor.personal(good)
    for finding in findings:
        yield f"{among}, {finding.count:,} have {finding.kind}: {finding.told_of()}.", finding.remedy
