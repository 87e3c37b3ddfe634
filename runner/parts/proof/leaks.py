"""Leaks: what stands on both sides, and what will be asked later and has been trained on."""

import hashlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runner.parts.proof.showing import Faults
from runner.tools.names import same
from runner.trainer.records import Proof

# Tokens of text whose documents are looked at.
MOST_TOKENS = 20_000_000
READ = ("messages", "chosen", "rejected")


def conversations(files: Iterable[Path]) -> Iterator[Mapping[str, Any]]:
    """Prepared conversations, a batch in memory at a time."""
    from pyarrow import parquet

    for file in files:
        with parquet.ParquetFile(file) as table:
            columns = [name for name in table.schema_arrow.names if name in READ]
            for batch in table.iter_batches(1000, columns=columns):
                yield from batch.to_pylist()


def words(row: Mapping[str, Any]) -> str:
    """Equal for conversations that differ in nothing but space, case and system prompt."""
    said = [
        f"{same(str(turn['content'] or ''))}{turn.get('tool_calls') or ''}"
        for turn in row["messages"]
        if turn["role"] != "system"
    ]
    return "\n".join([*said, *(same(row[name]) for name in ("chosen", "rejected") if isinstance(row.get(name), str))])


def questions(row: Mapping[str, Any]) -> Iterator[str]:
    return (same(str(turn["content"] or "")) for turn in row["messages"] if turn["role"] == "user")


def documents(blocks: Iterable[np.ndarray], ends: frozenset[int], tokenizer: Any) -> Iterator[str]:
    """The documents that blocks were cut from, put together again; those at both edges may be parts."""
    rest: list[np.ndarray] = []
    seen = 0
    for block in blocks:
        seen += len(block)
        stops = np.flatnonzero(np.isin(block, list(ends)))
        begin = 0
        for stop in stops:
            document = np.concatenate([*rest, block[begin:stop]])
            rest, begin = [], int(stop) + 1
            if len(document):
                yield same(tokenizer.decode(document.tolist()))
        rest.append(block[begin:])
        if seen > MOST_TOKENS:
            return


def images(files: Mapping[str, Path], taken_out: int = 0) -> Proof:
    """Judges prepared images (Parquet, column `image`, pixels as bytes). files: by split, `train` among them. taken_out: images that
    were in training and in the test, and are no longer."""
    begun = time.monotonic()
    faults, judged = Faults(), 0
    train = {digest: number for number, digest in _digests(files["train"])}
    for split, file in files.items():
        if split == "train":
            continue
        for number, digest in _digests(file):
            judged += 1
            if digest in train:
                faults.add("image_leak", f"image {number} of {split} is image {train[digest]} of training")
    noted = f"{taken_out:,} images of the test were training images too, and were taken out of training"
    return Proof(
        kind="images",
        rows=len(train),
        judged=judged,
        notes=(noted,) if taken_out else (),
        faults=tuple(faults),
        seconds=round(time.monotonic() - begun, 1),
    )


def _digests(file: Path) -> Iterator[tuple[int, bytes]]:
    """The number of each image, from 1, and a hash of its pixels."""
    from pyarrow import parquet

    number = 0
    with parquet.ParquetFile(file) as table:
        for batch in table.iter_batches(256, columns=["image"]):
            for image in batch.column(0).to_pylist():
                number += 1
                yield number, hashlib.sha256(image).digest()
