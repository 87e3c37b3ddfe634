"""Held-out rows: those that training measures itself by, as its engine tokenised them, kept for whoever measures the model later."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.tools.files import replacing
from runner.tools.run_files import HELD_OUT

# Enough to tell models apart, and read in seconds.
MOST_ROWS = 512
MOST_TOKENS = 1_000_000
IN_ALL = b"rows_in_all"


@dataclass(frozen=True)
class HeldOut:
    """rows: token numbers and labels of each, -100 where a token is not trained; in_all: how many rows were held out."""

    rows: tuple[tuple[list[int], list[int]], ...]
    in_all: int


def keep(dataset: Any, folder: Path) -> None:
    """Writes rows of a tokenised data set, evenly spaced where it has too many; none where there is no such data set."""
    file = folder / HELD_OUT
    count = len(dataset) if dataset is not None and hasattr(dataset, "__getitem__") else 0
    if not count or not {"input_ids", "labels"} <= set(dataset[0]):
        file.unlink(missing_ok=True)
        return
    import pyarrow as pa
    from pyarrow import parquet

    kept: dict[str, list[Any]] = {"input_ids": [], "labels": []}
    tokens = 0
    for number in range(min(count, MOST_ROWS)):
        row = dataset[number * count // min(count, MOST_ROWS)]
        tokens += len(row["input_ids"])
        if tokens > MOST_TOKENS and number:
            break
        for name in kept:
            kept[name].append(list(map(int, row[name])))
    kind = pa.list_(pa.int32())
    table = pa.table({name: pa.array(rows, kind) for name, rows in kept.items()})
    with replacing(file) as partial:
        parquet.write_table(table.replace_schema_metadata({IN_ALL: str(count)}), partial, compression="zstd")


def read(file: Path) -> HeldOut | None:
    """The rows in a file; None where there are none."""
    if not file.is_file():
        return None
    from pyarrow import parquet

    table = parquet.read_table(file)
    rows = zip(table["input_ids"].to_pylist(), table["labels"].to_pylist(), strict=True)
    return HeldOut(tuple(rows), int(table.schema.metadata[IN_ALL]))
