"""Unproven: an export that is not what was trained."""

from __future__ import annotations

from runner.tools.problem import Stop

UNPROVEN = "Nothing was kept. This is worth a report: what was trained lies unchanged in the run."


def unproven(what: str, remedy: str = UNPROVEN) -> Stop:
    """The end of an export that could not be proven."""
    return Stop(f"The export is not what was trained: {what}.", remedy)
