"""Leaks: what stands on both sides, and what will be asked later and has been trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runner.tools.names import same

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
