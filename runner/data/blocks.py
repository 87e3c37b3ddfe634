"""Blocks: documents become rows of exactly N tokens, streamed to a Parquet file.

Every document is tokenised whole, followed by the end-of-text token, and the long line of tokens is cut every N tokens.
Each token is in at most one block, in its order; only the tokens after the last whole block are dropped. Memory depends
on the batch, not on the text: at any time a few batches of documents are in work, and one group of rows is being filled.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from runner.tools.files import replacing

# Documents are handed over in batches of about this many characters: enough to keep a thread busy, little to hold.
BATCH_CHARACTERS = 64 * 1024
# Rows are written in groups of about this many tokens, 2 MB of them.
GROUP_TOKENS = 512 * 1024

Made = TypeVar("Made")
Encode = Callable[[list[str]], list[np.ndarray]]


@dataclass
class BlockCounts:
    """What became of the text. tokens counts the end-of-text tokens too; dropped is what no block holds."""

    block_len: int
    documents: int = 0
    tokens: int = 0
    blocks: int = 0

    @property
    def facts(self) -> dict[str, int]:
        """That, as a report has it."""
        dropped = self.tokens - self.blocks * self.block_len
        return {"documents": self.documents, "tokens": self.tokens, "blocks": self.blocks, "dropped": dropped}


COLUMNS = pa.schema(
    {"input_ids": pa.list_(pa.int32()), "labels": pa.list_(pa.int32()), "attention_mask": pa.list_(pa.int8())}
)


def write(
    documents: Iterable[str], tokenizer: Any, block_len: int, file: Path, *, most_blocks: int | None = None
) -> BlockCounts:
    """Writes `file` (Parquet: `input_ids`, `labels`, `attention_mask`, each `block_len` numbers a row), which appears when it is
    complete.

    documents: texts, read once, in order. tokenizer: a Hugging Face tokenizer with an end-of-text token.
    block_len: tokens of a block. most_blocks: stop after so many; None for all.
    Raises ValueError where the tokenizer has no end-of-text token.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no end-of-text token")
    counts = BlockCounts(block_len)
    tokenised = tokenise(documents, encoder(tokenizer), tokenizer.eos_token_id)
    with (
        replacing(file) as partial,
        parquet.ParquetWriter(partial, COLUMNS, compression="lz4", use_dictionary=False) as out,
    ):
        for group in cut(tokenised, counts, most_blocks):
            offsets = pa.array(np.arange(len(group) + 1, dtype=np.int32) * block_len)
            tokens = pa.ListArray.from_arrays(offsets, pa.array(group.reshape(-1)))
            mask = pa.ListArray.from_arrays(offsets, pa.array(np.ones(group.size, np.int8)))
            out.write_table(pa.Table.from_arrays([tokens, tokens, mask], schema=COLUMNS))
    return counts


def cut(documents: Iterable[np.ndarray], counts: BlockCounts, most_blocks: int | None = None) -> Iterator[np.ndarray]:
    """Whole blocks of the line of tokens, arrays (blocks, `counts.block_len`) of about GROUP_TOKENS, each good until the next.

    documents: the tokens of each, of any number. counts: gets what became of them. most_blocks: stop after so many; None for all.
    """
    length = counts.block_len
    room = None if most_blocks is None else most_blocks * length
    buffer = np.empty((max(1, GROUP_TOKENS // length), length), np.int32)
    line, filled = buffer.reshape(-1), 0
    for tokens in documents:
        counts.documents += 1
        counts.tokens += len(tokens)
        left = tokens[:room]
        if room is not None:
            room -= len(left)
        while len(left):
            part = left[: len(line) - filled]
            line[filled : filled + len(part)] = part
            filled, left = filled + len(part), left[len(part) :]
            if filled == len(line):
                counts.blocks += len(buffer)
                yield buffer
                filled = 0
        if room == 0:
            break
    if whole := filled // length:
        counts.blocks += whole
        yield buffer[:whole]


def tokenise(documents: Iterable[str], encode: Encode, end_of_text: int) -> Iterator[np.ndarray]:
    """Each document's tokens (int32, `end_of_text` last), in order."""
    yield from in_threads(
        documents, lambda batch: [np.append(tokens, np.int32(end_of_text)) for tokens in encode(batch)]
    )


def lengths(documents: Iterable[str], tokenizer: Any) -> np.ndarray:
    """Tokens of each document, counts, without the tokenizer's own special tokens around each text."""
    rust: Any = getattr(tokenizer, "backend_tokenizer", None)

    def count(texts: list[str]) -> list[int]:
        if hasattr(rust, "encode_batch_fast"):
            return [len(encoding) for encoding in rust.encode_batch_fast(texts, add_special_tokens=False)]
        return [len(tokens) for tokens in tokenizer(texts, add_special_tokens=False)["input_ids"]]

    return np.fromiter(in_threads(documents, count), np.int64)


def histogram(counts: np.ndarray) -> list[tuple[int, int, int]]:
    """At most 24 bins of whole numbers, all equally wide: the first and the last number in each, and how many counts lie there."""
    first = int(counts.min())
    width = -(-(int(counts.max()) - first + 1) // 24)
    in_bins = np.bincount((counts - first) // width)
    return [(first + width * bin, first + width * (bin + 1) - 1, int(rows)) for bin, rows in enumerate(in_bins)]


def figures(counts: np.ndarray) -> dict[str, int]:
    """What a report says of rows' lengths in tokens."""
    ordered = np.sort(counts)
    return {
        "min": int(ordered[0]),
        "median": round(float(np.median(ordered))),
        "p95": int(ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]),
        "max": int(ordered[-1]),
    }


def in_threads(documents: Iterable[str], work: Callable[[list[str]], list[Made]]) -> Iterator[Made]:
    """What `work` makes of each document, in order, by one thread a core.

    The threads work at once because the tokenizer's Rust code lets go of the interpreter; at most two batches a thread
    are in work, so that a slow reader of this holds nothing up and a fast one fills no memory.
    """
    threads = len(os.sched_getaffinity(0))
    theirs = os.environ.get("TOKENIZERS_PARALLELISM")
    # The tokenizer would divide every batch over the cores again, and its threads would fight with these (a quarter slower).
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


def in_groups(things: Iterable[Made], size: Callable[[Made], int], enough: int) -> Iterator[list[Made]]:
    """Lists of things in their order, each as soon as the sizes of its own are `enough` together; the last one has the rest."""
    group: list[Made] = []
    together = 0
    for thing in things:
        group.append(thing)
        together += size(thing)
        if together >= enough:
            yield group
            group, together = [], 0
    if group:
        yield group


def encoder(tokenizer: Any) -> Encode:
    """Texts to tokens (int32), without the tokenizer's own special tokens around each text."""
    rust: Any = getattr(tokenizer, "backend_tokenizer", None)
    if hasattr(rust, "encode_batch_fast"):
        # Without offsets and masks, which nobody needs here.
        return lambda texts: [
            np.array(encoding.ids, np.int32) for encoding in rust.encode_batch_fast(texts, add_special_tokens=False)
        ]
    return lambda texts: [
        np.array(tokens, np.int32) for tokens in tokenizer(texts, add_special_tokens=False)["input_ids"]
    ]
