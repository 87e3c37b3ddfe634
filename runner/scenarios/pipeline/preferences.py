"""Preferences: questions with a better and a worse answer, as DPO reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from runner.data import split
from runner.data.report import Report
from runner.data.rows import DataSet
from runner.recipe import templates
from runner.training.answers import messages


@dataclass(frozen=True, kw_only=True)
class PreferenceSet(DataSet):
    """A prompt and two answers, each a template with the rows' columns in brackets."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True, kw_only=True)
class Preferences(split.TwoSides):
    """Preferences, and the tokens of a row (sequence_len) beyond which training cuts it."""

    kind: Literal["preferences"] = "preferences"
    sets: tuple[PreferenceSet, ...]
    system_prompt: str | None
    sequence_len: int


@dataclass(frozen=True)
class Preference(split.Grouped):
    prompt: str
    chosen: str
    rejected: str

    @property
    def group(self) -> str:
        """Rows with the same group stay in one part of the split: the prompt, however it is spaced or cased."""
        return split.same(self.prompt)


def prepare(preferences: Preferences, out: Path) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `messages`, `chosen`, `rejected`) and `report.json`.

    Raises Stop where too few rows are left to train and validate on.
    """
    report = split.begin(preferences)
    if known := split.already(out, report):
        return known
    kept = split.collect(preferences, [partial(_preference, one) for one in preferences.sets], report)
    report.tokenizer = "longer rows are cut in training"
    return split.finish(kept, lambda rows: _columns(rows, preferences.system_prompt), preferences, out, report)


def _preference(rows: PreferenceSet, row: Mapping[str, Any]) -> Preference | str:
    parts = (rows.prompt, rows.chosen, rows.rejected)
    prompt, chosen, rejected = (templates.fill(part, row).strip() for part in parts)
    if not prompt or not chosen or not rejected:
        return "a part is empty"
    return Preference(prompt, chosen, rejected) if chosen != rejected else "both answers are the same"


def _columns(rows: list[Preference], system_prompt: str | None) -> dict[str, list[Any]]:
    return {
        "messages": [messages(system_prompt, row.prompt) for row in rows],
        "chosen": [row.chosen for row in rows],
        "rejected": [row.rejected for row in rows],
    }
