"""The project's own text, about nothing in particular: every model is measured on it, and a twin warms up on it."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("general_text.txt")
PARTING = "%%"


def general_documents() -> list[str]:
    return [part.strip() for part in FILE.read_text(encoding="utf-8").split(f"\n{PARTING}\n")]
