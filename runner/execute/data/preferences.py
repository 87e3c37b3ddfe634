"""Preferences: questions with a better and a worse answer, as DPO reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.execute.data import sides
from runner.execute.data.report import Report
from runner.training.answers import messages


@dataclass(frozen=True)
class Preference:
    prompt: str
    chosen: str
    rejected: str

    @property
    def group(self) -> str:
        """Rows with the same group stay on one side of the split: the prompt, however it is spaced or cased."""
        return sides.same(self.prompt)


def prepare(wanted: Mapping[str, Any], out: Path, **_: Any) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `messages`, `chosen`, `rejected`) and `report.json`.

    Raises Stop where too few rows are left to train and validate on.
    """
    report = sides.begin(wanted)
    if known := sides.already(out, report):
        return known
    kept = sides.collect(wanted, ("prompt", "chosen", "rejected"), _preference, report)
    report.tokenizer = "longer rows are cut in training"
    return sides.finish(kept, lambda side: _columns(side, wanted["system_prompt"]), wanted, out, report)


def _preference(prompt: str, chosen: str, rejected: str) -> Preference | str:
    if not prompt or not chosen or not rejected:
        return "a part is empty"
    return Preference(prompt, chosen, rejected) if chosen != rejected else "both answers are the same"


def _columns(side: list[Preference], system_prompt: str | None) -> dict[str, list[Any]]:
    return {
        "messages": [messages(system_prompt, one.prompt) for one in side],
        "chosen": [one.chosen for one in side],
        "rejected": [one.rejected for one in side],
    }
