"""Looking through prepared rows for problems."""

from __future__ import annotations

from typing import Protocol

from runner.data.data_sets import Where
from runner.data.report import Examined


class Examiner(Protocol):
    """Looks for problems in rows, and adds findings to a report at the end. answer: the part of the
    text that is learned; label: whether that is good; asked: all that is before the answer, empty
    if rows may well have several answers to it."""

    def add(
        self,
        line: Where,
        text: str,
        answer: str | None = None,
        label: bool | None = None,
        asked: str = "",
    ) -> None: ...
    def end(self) -> None: ...


def examiners(report: Examined) -> list[Examiner]:
    """Those of a report."""
    from runner.data import doctor

    return [doctor.DrawingExaminer(report)]
