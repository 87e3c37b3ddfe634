"""Preparing data: a plan's data section becomes Parquet files. A kind of data is one module with `prepare`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runner.execute.data import chat, images, plain_text
from runner.execute.data.report import Report

Preparer = Callable[..., Report]

# A new kind of data costs one line here; a scenario names it under `kind`.
PREPARERS: dict[str, Preparer] = {
    "chat": chat.prepare,
    "images": images.prepare,
    "plain-text": plain_text.prepare,
}


def prepare(wanted: Mapping[str, Any], out: Path, **options: Any) -> Report:
    """Writes what a stage's `data` asks for into `out`; a no-op where it already lies there."""
    return PREPARERS[wanted["kind"]](wanted, out, **options)
