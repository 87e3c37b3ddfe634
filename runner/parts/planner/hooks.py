"""What a run took beside what was planned, told at its end."""

from __future__ import annotations

from runner.parts.planner.calibration import after as after_run
from runner.parts.planner.calibration import after_plan

__all__ = ["after_plan", "after_run"]
