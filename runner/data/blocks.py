"""Plain text as blocks: rows of exactly N tokens, streamed to a Parquet file for each side.

Each document is tokenised whole and followed by the end-of-text token. The resulting sequence is
cut every N tokens; only tokens after the last whole block are dropped. Memory depends on the batch,
not on the text.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from runner.data import Made, RenderedExample, data_sets, rows, tokenizers
from runner.data.data_sets import PlainText
from runner.data.examining import Examiner, examiners
from runner.data.prepared import Lengths
from runner.data.report import Examined, lines_of, parts_of, require_few
from runner.data.row_files import Bad, DataRow
from runner.data.tokenizers import TokenizerFor
from runner.tools.files import content_hash, replacing
from runner.tools.problem import Stop, listed
from runner.tools.process import cores
from runner.tools.text import TextTokenizer

SIDES: tuple[str, ...] = ("train", "validation")
# Characters in a batch of documents: enough to keep a thread busy, and little memory.
BATCH_CHARACTERS = 64 * 1024
GROUP_TOKENS = 512 * 1024  # tokens in a group of written rows, 2 MB


@dataclass
class TextReport(Examined):
    """How the documents were used. key: hash of everything that the result depends on. train,
    validation: counts of `documents`, `tokens`, `blocks`, `dropped` (tokens); validation is empty
    if there is none. skipped: rows that gave no document, by reason. sets: training documents by
    data set."""

    KIND, LEFT_OUT = "text", "skipped"
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

    sampled_from: None = None  # blocks are never sampled

    @property
    def facts(self) -> dict[str, Any]:
        train, validation = (side.get("blocks", 0) for side in (self.train, self.validation))
        lengths = Lengths(mean=self.block_len, high=self.block_len)
        sets = parts_of(self.sets, self.train["documents"])
        return {
            "train_rows": train,
            "validation_rows": validation,
            "lengths": lengths,
            "sets": sets,
        }


def prepare(
    plain_text: PlainText,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> TextReport:
    """Writes `train.parquet`, `validation.parquet` if there is validation data, and `report.json`.
    sample_rows: make at most this many blocks, the first ones. Raises Stop if there is no
    tokenizer, or too little text for one block."""
    sides = ["train"]
    if plain_text.validation_sets or plain_text.validation_share:
        sides.append("validation")
    tokenizer = _tokenizer(plain_text, tokenizer_for)
    key = _key(plain_text, tokenizer, sample_rows)
    existing = TextReport.read(out)
    are_written = all((out / f"{side}.parquet").is_file() for side in sides)
    if existing and existing.key == key and are_written:
        existing.notes = lines_of("text_notes", plain_text, existing)
        return existing
    said_as = getattr(tokenizer, "said_as", str(tokenizer.name_or_path))
    report = TextReport(
        key=key, source=plain_text.name, tokenizer=said_as, block_len=plain_text.sequence_len
    )
    (out / "validation.parquet").unlink(missing_ok=True)
    if sample_rows is None:
        examining = examiners(report)
    else:
        examining = []
    for side in sides:
        texts = documents(plain_text, side, report, examining if side == "train" else ())
        file = out / f"{side}.parquet"
        counts = write(texts, tokenizer, plain_text.sequence_len, file, most_blocks=sample_rows)
        setattr(report, side, vars(counts))
        report.cut_short |= counts.blocks == sample_rows
        require_few(
            report.lost, report.rows_in, plain_text.max_lost_share, report.lines("left_out")
        )
        if not counts.blocks:
            raise _no_block(plain_text, side, counts, report)
    if sample_rows is None:
        report.licence = data_sets.licences(plain_text)
    for examiner in examining:
        examiner.end()
    report.notes = lines_of("text_notes", plain_text, report)
    report.write(out)
    return report


def _tokenizer(plain_text: PlainText, tokenizer_for: TokenizerFor | None) -> Any:
    """The tokenizer that cuts the text. Raises Stop if there is none with an end-of-text token."""
    if tokenizer_for:
        tokenizer = tokenizer_for(documents(plain_text, "train", TextReport()))
    else:
        tokenizer = None
    if tokenizer is None or tokenizer.eos_token_id is None:
        raise Stop(
            "Text can only be cut into blocks with the base model's tokenizer, but it cannot be loaded here.",
            "Check the model's name, your network and your access to it on the hub.",
        )
    return tokenizer


def _key(plain_text: PlainText, tokenizer: TextTokenizer, sample_rows: int | None) -> str:
    """The hash of everything that the blocks depend on."""
    contents = [data_set.content for data_set in (*plain_text.sets, *plain_text.validation_sets)]
    tokens = [tokenizers.content(tokenizer.name_or_path), len(tokenizer), tokenizer.eos_token_id]
    settings = asdict(plain_text, dict_factory=data_sets.stated)
    for figure in ("effective_batch_size", "epochs", "warmup_steps", "eval_steps"):
        settings.pop(figure, None)
    return content_hash([settings, contents, tokens, sample_rows], 32)


def first(plain_text: PlainText, side: str = "train") -> Iterator[RenderedExample]:
    """The documents of a side, one after the other; the model sees them joined, in blocks."""
    return map(RenderedExample.of_document, documents(plain_text, side, TextReport()))


def documents(
    plain_text: PlainText, side: str, report: TextReport, examining: Sequence[Examiner] = ()
) -> Iterator[str]:
    """The texts of one side, in order. A hash of seed and text draws the share for validation, so
    that equal documents are on the same side, and a new document moves no other. Several data sets
    give one document each in turn, so that the first blocks have some of all. examining: examiners
    that get the training rows."""
    if side == "validation":
        validation_sets = plain_text.validation_sets
    else:
        validation_sets = ()
    source = replace(plain_text, sets=validation_sets or plain_text.sets)
    waiting = deque(
        _of_set(source, index, side, report, examining) for index in range(len(source.sets))
    )
    while waiting:
        text = next(waiting[0], None)
        if text is None:
            waiting.popleft()
        else:
            yield text
            waiting.rotate(-1)


def _of_set(
    source: PlainText, index: int, side: str, report: TextReport, examining: Sequence[Examiner]
) -> Iterator[str]:
    data_set = source.sets[index]
    share = source.validation_share
    # Both sides of a share read the same rows; they are counted once.
    counted = side == "train" or not share
    for number, row in rows.read(data_set, column=data_set.text):
        report.rows_in += counted
        line = data_sets.where(source, index, number)
        if isinstance(row, Bad):
            reason = "not a row"
        else:
            reason = _wrong(row, data_set.text)
        if reason and counted:
            report.lose(line, reason, row.reason if isinstance(row, Bad) else "")
        if isinstance(row, Bad) or reason:
            continue
        if not data_sets.drawn(row, data_set.share, source.seed):
            if counted:
                report.leave_out("beyond the `share` of its data set, drawn by the seed")
            continue
        text = row[data_set.text]
        if not share or data_sets.is_held_out(text, share, source.seed) == (side == "validation"):
            if side == "train":
                label = f"{data_sets.set_name(index)} {data_set.name}"
                report.sets[label] = report.sets.get(label, 0) + 1
                for examiner in examining:
                    examiner.add(line, text)
            yield text


def _wrong(row: DataRow, column: str) -> str:
    if column not in row:
        return f"no column `{column}`; the row has {listed(list(row)[:10])}"
    text = row[column]
    if not isinstance(text, str | None):
        return f"column `{column}` is not text"
    if text and text.strip():
        return ""
    return "the text is empty"


@dataclass
class BlockCounts:
    """How the text was used. tokens counts the end-of-text tokens too; dropped: the tokens outside
    blocks."""

    documents: int = 0
    tokens: int = 0
    blocks: int = 0
    dropped: int = 0


def _no_block(plain_text: PlainText, side: str, counts: BlockCounts, report: TextReport) -> Stop:
    """The refusal of too little text for one block."""
    if side == "train":
        side_name = "training"
    else:
        side_name = side
    if side == "validation" and plain_text.validation_share:
        share = "raise `data.validation_share`, "
    else:
        share = ""
    lines = "".join(f"\n{line}" for line in report.lines("left_out"))
    return Stop(
        f"The {side_name} text has {counts.tokens:,} tokens, too few for one block of {report.block_len:,}.{lines}",
        f"Give more text, {share}or lower `model.sequence_len`.",
    )


COLUMNS = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "labels": pa.list_(pa.int32()),
        "attention_mask": pa.list_(pa.int8()),
    }
)


def write(
    documents: Iterable[str],
    tokenizer: TextTokenizer,
    block_len: int,
    file: Path,
    *,
    most_blocks: int | None = None,
) -> BlockCounts:
    """Writes `file` (Parquet: `input_ids`, `labels`, `attention_mask`, each `block_len` numbers a
    row), which appears when it is complete. documents: are read once. most_blocks: stop after this
    many. tokenizer: has an end-of-text token."""
    counts = BlockCounts()
    assert tokenizer.eos_token_id is not None
    tokenised = tokenise(documents, tokenizer, tokenizer.eos_token_id)
    with (
        replacing(file) as partial,
        parquet.ParquetWriter(partial, COLUMNS, compression="lz4", use_dictionary=False) as out,
    ):
        for group in cut(tokenised, block_len, counts, most_blocks):
            offsets = pa.array(np.arange(len(group) + 1, dtype=np.int32) * block_len)
            tokens = pa.ListArray.from_arrays(offsets, pa.array(group.reshape(-1)))
            mask = pa.ListArray.from_arrays(offsets, pa.array(np.ones(group.size, np.int8)))
            out.write_table(pa.Table.from_arrays([tokens, tokens, mask], schema=COLUMNS))
    return counts


def cut(
    documents: Iterable[np.ndarray],
    length: int,
    counts: BlockCounts,
    most_blocks: int | None = None,
) -> Iterator[np.ndarray]:
    """Whole blocks of the sequence of tokens: arrays (blocks, `length`) of about GROUP_TOKENS, each
    valid until the next. documents: the tokens of each. counts: is filled. most_blocks: stop after
    this many."""
    if most_blocks is None:
        room = None
    else:
        room = most_blocks * length
    buffer = np.empty((max(1, GROUP_TOKENS // length), length), np.int32)
    line = buffer.reshape(-1)
    filled = 0
    for tokens in documents:
        counts.documents += 1
        counts.tokens += len(tokens)
        remaining = tokens[:room]
        if room is not None:
            room -= len(remaining)
        while len(remaining):
            part = remaining[: len(line) - filled]
            line[filled : filled + len(part)] = part
            filled = filled + len(part)
            remaining = remaining[len(part) :]
            if filled == len(line):
                counts.blocks += len(buffer)
                yield buffer
                filled = 0
        if room == 0:
            break
    whole_blocks = filled // length
    counts.blocks += whole_blocks
    counts.dropped = counts.tokens - counts.blocks * length
    if whole_blocks:
        yield buffer[:whole_blocks]


def tokenise(
    documents: Iterable[str], tokenizer: TextTokenizer, end_of_text: int
) -> Iterator[np.ndarray]:
    """Each document's tokens (int32, `end_of_text` last), in order, without the tokenizer's own
    special tokens."""
    encode = _encoder(tokenizer)

    def encoded(texts: list[str]) -> list[np.ndarray]:
        return [
            np.array([*getattr(encoding, "ids", encoding), end_of_text], np.int32)
            for encoding in encode(texts)
        ]

    return in_threads(documents, encoded)


def lengths(documents: Iterable[str], tokenizer: TextTokenizer) -> np.ndarray:
    """The number of tokens of each document, without the tokenizer's own special tokens around each
    text."""
    encode = _encoder(tokenizer)
    return np.fromiter(in_threads(documents, lambda texts: list(map(len, encode(texts)))), np.int64)


def histogram(counts: np.ndarray) -> list[tuple[int, int, int]]:
    """At most 24 bins of equal width: the first and the last number of each, and the number of
    counts in it."""
    lowest = int(counts.min())
    width = -(-(int(counts.max()) - lowest + 1) // 24)
    in_bins = np.bincount((counts - lowest) // width)
    return [
        (lowest + width * bin, lowest + width * (bin + 1) - 1, int(rows))
        for bin, rows in enumerate(in_bins)
    ]


def figures(counts: np.ndarray) -> dict[str, int]:
    ordered = np.sort(counts)
    return {
        "min": int(ordered[0]),
        "median": round(float(np.median(ordered))),
        "p95": int(ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]),
        "max": int(ordered[-1]),
    }


def in_threads(documents: Iterable[str], work: Callable[[list[str]], list[Made]]) -> Iterator[Made]:
    """The results of `work` for batches of documents, in order, with a thread for each core: the
    tokenizer's Rust code releases the interpreter's lock. At most two batches a thread are pending,
    so slow readers take little memory."""
    threads = cores()
    theirs = os.environ.get("TOKENIZERS_PARALLELISM")
    # The tokenizer would divide every batch over the cores again, and compete with these threads (a
    # quarter slower).
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    waiting: deque[Future[list[Made]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for batch in in_groups(documents, len, BATCH_CHARACTERS):
            waiting.append(pool.submit(work, batch))
            if len(waiting) >= 2 * threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if theirs is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = theirs


def in_groups(
    items: Iterable[Made], size: Callable[[Made], int], enough: int
) -> Iterator[list[Made]]:
    """Lists of items in order. A list ends as soon as its sizes add up to `enough`; the last one
    has the rest."""
    group = list[Made]()
    together = 0
    for item in items:
        group.append(item)
        together += size(item)
        if together >= enough:
            yield group
            group = []
            together = 0
    if group:
        yield group


def _encoder(tokenizer: TextTokenizer) -> Callable[[list[str]], Any]:
    """Texts to tokens, as lists or as Encodings of tokenizers."""
    rust = getattr(getattr(tokenizer, "backend_tokenizer", None), "encode_batch_fast", None)
    if rust:
        return partial(
            rust, add_special_tokens=False
        )  # without offsets and masks, which are not needed here
    return lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]
