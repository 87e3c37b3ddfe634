"""The stage `data` of a recipe with stages: it prepares the rows of every training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.data import RenderedExample
from runner.data.report import PreparedRows
from runner.data.tokenizers import Pretrained
from runner.entrypoints import prepare

Tell = Callable[[str], None]


def data(work: Mapping[str, Any], tell: Tell) -> None:
    """Prepares the rows of each training in a folder of its name; the first brings the model that all start from."""
    if work["model"]:
        prepare.fetch_model(work["model"], tell)
    out, twin = Path(work["out"]), work.get("twin")
    each: list[PreparedRows] = []
    for name, rows in _rows(work).items():
        tell(f"{name}:")
        one = {**work, "out": str(out / name), "data": rows, "twin": None if each else twin}
        if twin and each:
            # The rows of later stages are read with the words of the same twin.
            one["data"] = rows | {"tokenizer": asdict(Pretrained(twin["folder"], "main", False))}
        prepare.write_rows(one, lambda line: tell(f"  {line}"))
        each.append(PreparedRows.read(out / name) or PreparedRows())
    drawn = [rows.sampled_from or rows.train_rows + rows.validation_rows for rows in each]
    PreparedRows(
        sum(rows.train_rows for rows in each),
        sum(rows.validation_rows for rows in each),
        sum(drawn) if any(rows.sampled_from for rows in each) else None,
    ).write(out)


def _rows(work: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: dict(part) for name, part in work.items() if isinstance(part, Mapping) and "kind" in part}


def _seen(work: Mapping[str, Any]) -> dict[str, Iterator[RenderedExample]]:
    shown = {name: scenarios.seen(rows) for name, rows in _rows(work).items()}
    return {name: rows for name, rows in shown.items() if rows}


# What shows the rows that a function here prepares (see `runner.scenarios.first`).
FIRST = {"data": _seen}
