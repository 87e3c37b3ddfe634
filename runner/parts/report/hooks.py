"""The page of a run, left in its folder at its end."""

from __future__ import annotations

from runner.parts.report.page import at_the_end

__all__ = ["at_the_end"]
