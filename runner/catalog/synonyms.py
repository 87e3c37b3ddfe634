"""What other tools call settings and commands, as synonyms.toml has it."""

from __future__ import annotations

from collections.abc import Iterable

from runner.catalog.tables import table


def setting(word: str, known: Iterable[str]) -> str | None:
    """The first of the `known` settings that somebody else's name for one may mean; None where none is known by it."""
    meant: list[str] = table("synonyms")["settings"].get(word.lower().replace("-", "_"), [])
    there = set(known)
    return next((name for name in meant if name in there), None)


def command(word: str) -> str | None:
    """The command that somebody else's name for one means."""
    found: str | None = table("synonyms")["commands"].get(word.lower().replace("_", "-"))
    return found
