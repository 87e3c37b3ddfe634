"""Preferences: questions with a better and a worse answer, as DPO reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.data import split
from runner.data.report import Report
from runner.data.rows import DataSet
from runner.names import same
from runner.recipe import templates
from runner.training.answers import messages

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, kw_only=True)
class PreferenceSet(DataSet):
    """A prompt and two answers, each a template with the rows' columns in brackets."""

    prompt: str
    chosen: str
    rejected: str

    def preference(self, row: Mapping[str, Any]) -> Preference | str:
        """That of a row, or why it has none."""
        prompt, chosen, rejected = (
            templates.fill(part, row).strip() for part in (self.prompt, self.chosen, self.rejected)
        )
        if not prompt or not chosen or not rejected:
            return "a part is empty"
        return Preference(prompt, chosen, rejected) if chosen != rejected else "both answers are the same"


@dataclass(frozen=True, kw_only=True)
class Preferences(split.TwoSides):
    """Preferences, and the tokens of a row (sequence_len) beyond which training cuts it."""

    kind: Literal["preferences"] = "preferences"
    sets: tuple[PreferenceSet, ...]
    system_prompt: str | None
    sequence_len: int


@dataclass(frozen=True)
class Preference:
    prompt: str
    chosen: str
    rejected: str

    @property
    def group(self) -> str:
        """Rows with the same group stay in one part of the split: the prompt, however it is spaced or cased."""
        return same(self.prompt)

    @property
    def key(self) -> str:
        """Equal for rows that are the same in every part."""
        return repr((self.prompt, self.chosen, self.rejected))


def prepare(preferences: Preferences, out: Path) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `messages`, `chosen`, `rejected`) and `report.json`.

    Raises Stop where too few rows are left to train and validate on.
    """
    report = split.begin(preferences)
    if known := split.already(out, report):
        return known
    import pyarrow as pa

    from runner.data import sides, spool

    def columns(batch: pa.RecordBatch) -> pa.Table:
        asked = [messages(preferences.system_prompt, prompt) for prompt in batch["prompt"].to_pylist()]
        return pa.table({"messages": asked, "chosen": batch["chosen"], "rejected": batch["rejected"]})

    report.tokenizer = "longer rows are cut in training"
    kinds = [spool.Kind(one.preference, _batch) for one in preferences.sets]
    with spool.folder(out) as place:
        items, kept = sides.read(preferences, kinds, place, report)
        report.require_few_lost(report.lost, report.rows_in, preferences.max_lost_share, out)
        return sides.write(items, kept, columns, preferences, out, report)


def _batch(preferences: Sequence[Preference]) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([vars(preference) for preference in preferences])
