"""Rows of a draft's data, and questions from them."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner import scenarios
from runner.data import RenderedExample, reading
from runner.tools.problem import Stop

# From this size on, files are not prepared only to find questions; this many of their rows are read instead.
LARGE, AMONG = 100_000_000, 50


def first(data: Mapping[str, Any], most: int) -> list[RenderedExample]:
    """The first rows of a stage's `data` that are learned; none of pictures. Raises Stop if they cannot be read."""
    shown = getattr(scenarios.preparer(data), "first", None)
    examples = islice(reading(shown)(data), most) if shown else ()
    return [example for example in examples if not example.picture]


def held_out(data: Mapping[str, Any]) -> list[str]:
    """The questions of the rows that preparation would hold out, or the beginnings of such documents; those of the
    first rows if the file is large. Raises Stop if the rows cannot be read."""
    beginning = [example.asked for example in first(data, AMONG)]
    files = [Path(one["path"]) for one in data.get("sets", ()) if one["path"]]
    if not beginning or sum(file.stat().st_size for file in files if file.is_file()) > LARGE:
        return beginning
    # Too few rows, or too many bad ones, are reported when they are prepared.
    with suppress(Stop):
        if data["kind"] == "plain-text":
            return [example.asked for example in reading(scenarios.preparer(data).first)(data, "validation")]
        from pyarrow import parquet

        with TemporaryDirectory() as folder:
            # A sample of all rows leaves out checks that only reports need.
            scenarios.prepare(data, Path(folder), sample_rows=sys.maxsize)
            asked = parquet.read_table(Path(folder) / "validation.parquet", columns=["full-question"])
        return [str(question) for question in asked["full-question"].to_pylist()]
    return beginning
