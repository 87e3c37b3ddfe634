"""Plain text becomes blocks: documents from a file or the hub, a validation side where the recipe has one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from runner.data import RenderedExample, data_sets, doctor, rows, tokenizers
from runner.data.lengths import Lengths
from runner.data.report import (
    REPORT_FILE,
    SHOWN_BAD_LINES,
    Examined,
    numbers,
    parts_of,
    require_few,
)
from runner.data.row_files import Bad, DataRow
from runner.data.tokenizers import Pretrained, TokenizerFor
from runner.tools.names import content_hash, listed
from runner.tools.problem import Stop

SIDES = ("train", "validation")


@dataclass(frozen=True, kw_only=True)
class TextSet(data_sets.DataSet):
    """Documents in the column `text`."""

    text: str


@dataclass(frozen=True, kw_only=True)
class PlainText(data_sets.DataSets):
    """Documents for blocks of `sequence_len` tokens.

    validation_sets, validation_share: what is kept for validation, one of them at most; the share is of the documents, 0 to
    1, drawn by `seed`. max_lost_share: of the rows, that may give no document. tokenizer: cuts them.
    effective_batch_size (blocks), epochs, warmup_steps, eval_steps: of training, for saying how many steps the blocks make.
    """

    kind: Literal["plain-text"] = "plain-text"
    sets: tuple[TextSet, ...]
    validation_sets: tuple[TextSet, ...] = ()
    validation_share: float | None
    max_lost_share: float = 0.01
    tokenizer: Pretrained
    sequence_len: int
    effective_batch_size: int
    epochs: float
    warmup_steps: int
    eval_steps: int | None

    def of(self, side: str) -> PlainText:
        """Where the documents of `train` or of `validation` are read, before a share of them is drawn."""
        return self if side == "train" else replace(self, sets=self.validation_sets or self.sets)


@dataclass
class TextReport(Examined):
    """What became of the documents. key: hash of everything that the result depends on.

    train, validation: `documents`, `tokens`, `blocks`, `dropped` (tokens), validation empty where there is none.
    sets: documents to train on by data set. rows_in: that were read, which are more than made a few blocks. skipped: why a row
    gave no document, and how often.
    """

    key: str = ""
    source: str = ""
    tokenizer: str = ""
    block_len: int = 0
    train: dict[str, int] = field(default_factory=dict)
    validation: dict[str, int] = field(default_factory=dict)
    rows_in: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    sets: dict[str, int] = field(default_factory=dict)
    cut_short: bool = False
    notes: list[str] = field(default_factory=list)

    # The rows that training sees are blocks; nothing is drawn.
    sampled_from: None = None

    @property
    def lengths(self) -> Lengths:
        return Lengths(mean=self.block_len, high=self.block_len)

    @property
    def train_rows(self) -> int:
        return self.train["blocks"]

    @property
    def validation_rows(self) -> int:
        return self.validation.get("blocks", 0)

    @property
    def parts(self) -> dict[str, float]:
        """The part of the training documents that each of several data sets has, 0 to 1."""
        return parts_of(self.sets, self.train.get("documents", 0))

    def leave_out(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def left_out(self) -> Iterator[str]:
        """Rows that gave no document, and why."""
        for reason, count in self.skipped.items():
            yield f"  skipped            {count:>11,}   {reason}{numbers(self.lost_lines.get(reason, []), count)}"
        for number, reason in self.bad_lines[:SHOWN_BAD_LINES]:
            yield f"    line {number}: {reason}"

    def lines(self) -> Iterator[str]:
        """The report for a person, a line a fact."""
        yield f"from                 {self.source}"
        yield from self.left_out()
        if len(self.bad_lines) > SHOWN_BAD_LINES:
            yield f"    and {len(self.bad_lines) - SHOWN_BAD_LINES:,} more, all in {REPORT_FILE}"
        for name in SIDES:
            if side := getattr(self, name):
                yield f"{name + ' documents':<20} {side['documents']:>11,}"
                for said, count in self.sets.items() if name == "train" and len(self.sets) > 1 else ():
                    yield f"  {said.partition(' ')[0]:<18} {count:>11,}   {said.partition(' ')[2]}"
                yield f"  tokens             {side['tokens']:>11,}   with an end-of-text after each document (tokenizer of {self.tokenizer})"
                yield f"  blocks             {side['blocks']:>11,}   of {self.block_len:,} tokens"
                rest = "after the last block" if not self.cut_short else "a rehearsal takes the first blocks"
                yield f"  dropped            {side['dropped']:>11,}   tokens, {rest}"
        if not self.validation:
            yield "validation                  none   nothing is evaluated, and the last weights are the result"
        yield from self.examined()
        yield from self.notes


def prepare(
    plain_text: PlainText,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> TextReport:
    """Writes `train.parquet`, `validation.parquet` where there is validation data, and `report.json`.

    tokenizer_for: gives the tokenizer; without one there are no blocks.
    sample_rows: make at most so many blocks, the first ones.
    Raises Stop where there is no tokenizer, or too little text for one block.
    """
    from runner.data import blocks

    sides = [side for side in SIDES if side == "train" or plain_text.validation_sets or plain_text.validation_share]
    tokenizer = tokenizer_for(documents(plain_text, "train", TextReport())) if tokenizer_for else None
    if tokenizer is None or tokenizer.eos_token_id is None:
        raise Stop(
            "Text can only be cut into blocks with the base model's tokenizer, and it cannot be loaded here.",
            "Check the model's name, your network and your access to it on the hub.",
        )
    key = _key(plain_text, tokenizer, sample_rows)
    known = TextReport.read(out)
    if known and known.key == key and all((out / f"{side}.parquet").is_file() for side in sides):
        known.notes = list(_notes(plain_text, known))
        return known
    report = TextReport(
        key=key,
        source=plain_text.name,
        tokenizer=getattr(tokenizer, "said_as", str(tokenizer.name_or_path)),
        block_len=plain_text.sequence_len,
    )
    (out / "validation.parquet").unlink(missing_ok=True)
    drawn = doctor.Drawn()
    for side in sides:
        counts = blocks.write(
            documents(plain_text, side, report, drawn if side == "train" and sample_rows is None else None),
            tokenizer,
            plain_text.sequence_len,
            out / f"{side}.parquet",
            most_blocks=sample_rows,
        )
        setattr(report, side, counts.facts)
        report.cut_short |= counts.blocks == sample_rows
        require_few(report.lost, report.rows_in, plain_text.max_lost_share, report.left_out())
        if not counts.blocks:
            raise _too_little(plain_text, side, counts.tokens, report)
    if drawn.of:
        report.licence = doctor.licences(plain_text)
        doctor.examine(drawn.rows, drawn.of, report)
    report.notes = list(_notes(plain_text, report))
    report.write(out)
    return report


def _too_little(plain_text: PlainText, side: str, tokens: int, report: TextReport) -> Stop:
    name = "validation" if side == "validation" else "training"
    lines = [
        f"The {name} text has {tokens:,} tokens, too few for one block of {plain_text.sequence_len:,}.",
        *report.left_out(),
    ]
    share = side == "validation" and plain_text.validation_share
    return Stop(
        "\n".join(lines),
        f"Give more text, {'raise `data.validation_share`, ' if share else ''}or lower `model.sequence_len`.",
    )


def first(plain_text: PlainText, side: str = "train") -> Iterator[RenderedExample]:
    """The documents of a side, one after the other; the model sees them joined, in blocks."""
    return map(RenderedExample.of_document, documents(plain_text, side, TextReport()))


def documents(plain_text: PlainText, side: str, report: TextReport, drawn: doctor.Drawn | None = None) -> Iterator[str]:
    """The texts of one side, in order. A share for validation is drawn by a hash of seed and text, so that equal
    documents stay on one side, and one more document in the file does not redraw all the others. Several data sets give
    one document each in turn, so that the first blocks hold some of all. drawn: gets what the doctor is to look at."""
    source = plain_text.of(side)
    waiting = deque(_of_set(source, index, side, report, drawn) for index in range(len(source.sets)))
    while waiting:
        for text in islice(waiting[0], 1):
            yield text
            waiting.rotate(-1)
            break
        else:
            waiting.popleft()


def _of_set(source: PlainText, index: int, side: str, report: TextReport, drawn: doctor.Drawn | None) -> Iterator[str]:
    one, share = source.sets[index], source.validation_share
    # Both sides of a share read the same rows; they are counted once.
    counted = side == "train" or not share
    for number, row in rows.read(one, column=one.text):
        report.rows_in += counted
        line = data_sets.where(source, index, number)
        reason = "not a row" if isinstance(row, Bad) else _wrong(row, one.text)
        if reason and counted:
            report.lose(line, reason, row.reason if isinstance(row, Bad) else "")
        if isinstance(row, Bad) or reason:
            continue
        if not data_sets.drawn(row, one.share, source.seed):
            if counted:
                report.leave_out("beyond the `share` of its data set, drawn by the seed")
            continue
        text = row[one.text]
        if not share or (data_sets.hash_64(f"{source.seed}\n{text}") < share * 2**64) == (side == "validation"):
            if side == "train":
                said = f"{data_sets.set_name(index)} {one.name}"
                report.sets[said] = report.sets.get(said, 0) + 1
                if drawn is not None:
                    drawn.add(line, text)
            yield text


def _wrong(row: DataRow, column: str) -> str:
    if column not in row:
        return f"no column `{column}`; there are {listed(list(row)[:10])}"
    text = row[column]
    if not isinstance(text, str | None):
        return f"column `{column}` holds something else than text"
    return "" if text and text.strip() else "the text is empty"


def _key(plain_text: PlainText, tokenizer: Any, sample_rows: int | None) -> str:
    """Everything that the blocks depend on: the settings, the files' content, and the tokenizer."""
    contents = [one.content for one in (*plain_text.sets, *plain_text.validation_sets)]
    tokens = [tokenizers.content(tokenizer.name_or_path), len(tokenizer), tokenizer.eos_token_id]
    figures = ("effective_batch_size", "epochs", "warmup_steps", "eval_steps")
    settings = {name: value for name, value in asdict(plain_text).items() if name not in figures}
    return content_hash([settings, contents, tokens, sample_rows], 32)


def _notes(plain_text: PlainText, report: TextReport) -> Iterator[str]:
    """What the number of steps means for the intervals of the recipe."""
    batch, epochs, every = plain_text.effective_batch_size, plain_text.epochs, plain_text.eval_steps
    steps = int(-(-report.train["blocks"] // batch) * epochs)
    yield f"steps                {steps:>11,}   of {batch} blocks each, in {epochs:g} epochs"
    if steps <= plain_text.warmup_steps:
        yield f"  note: the learning rate still rises at the end, because `train.warmup_steps` is {plain_text.warmup_steps:,}"
    if every and steps < every:
        yield f"  note: the only evaluations are at the start and at the end, because `train.eval_steps` is {every:,}"


# The project's own text, about nothing in particular: every model is measured on it, and a twin warms up on it.
GENERAL_TEXT = Path(__file__).with_name("general_text.txt")


def general_documents() -> list[str]:
    return [part.strip() for part in GENERAL_TEXT.read_text(encoding="utf-8").split("\n%%\n")]
