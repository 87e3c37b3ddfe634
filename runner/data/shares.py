"""A file in parts that several read at once, none of them more than its own."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Share:
    """A part of a file, from start to before end: bytes of a file of lines, rows of a Parquet file. first: the number of its
    first line or row, from 1."""

    start: int
    end: int
    first: int


def shares_of(file: Path, most: int | None, count: int) -> list[Share] | None:
    """The first `most` rows of a local file, all of them where None, in `count` parts that can be read by themselves, one
    after the other the same rows as the whole; None where the kind of file has none: a line of a CSV may go on in the next,
    JSON is one value.

    Lines are counted here, once, so that a part knows its numbers; nothing is parsed. Of a Parquet file each part is whole
    row groups, so some are empty where there are fewer groups than parts.
    """
    if not file.is_file():
        return None
    if file.suffix == ".jsonl":
        return _in_parts(*_marks_of_lines(file, count, most), count)
    return _shares_of_groups(file, count, most) if file.suffix == ".parquet" else None


def _in_parts(marks: list[tuple[int, int]], end: int, count: int) -> list[Share]:
    """Parts of about equal size that begin at marks, (place, number of the line or row there), and end at `end`."""
    ends = iter([*(place for place, _ in marks if place < end), end])
    begin, parts = (0, 1), []
    numbers = dict(marks)
    place = 0
    for part in range(1, count + 1):
        while place * count < end * part:
            place = next(ends)
        parts.append(Share(begin[0], place, begin[1]))
        begin = (place, numbers.get(place, 0))
    return parts


def _marks_of_lines(file: Path, count: int, most: int | None) -> tuple[list[tuple[int, int]], int]:
    """Where lines begin, (byte, number), close enough together to cut the file there, and where its first `most` rows end."""
    size = file.stat().st_size
    if count == 1 and most is None:
        return [(0, 1)], size
    marks, place, rows = [(0, 1)], 0, 0
    apart = size // (100 * count)
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 2):
            if most is not None and (rows := rows + bool(line.strip())) > most:
                break
            place += len(line)
            if place - marks[-1][0] > apart:
                marks.append((place, number))
    return marks, place


def _shares_of_groups(file: Path, count: int, most: int | None) -> list[Share] | None:
    """Parts of a Parquet file; None where it is none, which whoever reads it will say."""
    from pyarrow import ArrowInvalid, parquet

    try:
        starts = starts_of_groups(parquet.read_metadata(file))
    except (ArrowInvalid, OSError):
        return None
    whole = starts.pop()
    return _in_parts([(start, start + 1) for start in starts], whole if most is None else min(whole, most), count)


def starts_of_groups(facts: Any) -> list[int]:
    """The number of rows before each row group of a Parquet file, and at last of all."""
    return list(accumulate((facts.row_group(index).num_rows for index in range(facts.num_row_groups)), initial=0))
