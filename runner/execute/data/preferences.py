"""Preferences: questions with a better and a worse answer, as DPO reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.execute.data import chat, rows
from runner.execute.data.report import Report
from runner.problem import Stop
from runner.recipe import templates
from runner.training.answers import messages

PARTS = ("prompt", "chosen", "rejected")


@dataclass(frozen=True)
class Preference:
    prompt: str
    chosen: str
    rejected: str

    @property
    def group(self) -> str:
        """Rows with the same group stay on one side of the split: the prompt, however it is spaced or cased."""
        return " ".join(self.prompt.split()).casefold()


def prepare(wanted: Mapping[str, Any], out: Path, **_: Any) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `messages`, `chosen`, `rejected`) and `report.json`.

    Raises Stop where too few rows are left to train and validate on.
    """
    report = Report(source=wanted["path"] or f"{wanted['hub']} on the hub")
    kept = _preferences(wanted, report)
    train, validation = chat.split(kept, wanted["validation_share"], wanted["seed"])
    report.train_rows, report.validation_rows = len(train), len(validation)
    report.tokenizer = "longer rows are cut in training"
    if not train or not validation:
        lines = "\n".join(report.lines())
        raise Stop(f"Too few preferences are left to train and to validate on.\n{lines}")
    _write(out, {"train": train, "validation": validation}, wanted["system_prompt"], report)
    return report


def _preferences(wanted: Mapping[str, Any], report: Report) -> list[Preference]:
    found: dict[Preference, None] = {}
    for number, row in rows.read(wanted):
        report.rows_in += 1
        if isinstance(row, rows.Bad):
            report.bad_lines.append((number, row.reason))
            report.dropped["not a row, named by line below"] += 1
            continue
        try:
            one = Preference(*(templates.fill(wanted[part], row).strip() for part in PARTS))
        except KeyError as column:
            report.bad_lines.append((number, f"no column {column}"))
            report.dropped["a column is missing, named by line below"] += 1
            continue
        if not one.prompt or not one.chosen or not one.rejected:
            report.dropped["a part is empty"] += 1
        elif one.chosen == one.rejected:
            report.dropped["both answers are the same"] += 1
        elif one in found:
            report.duplicates += 1
        else:
            found[one] = None
    report.distinct_questions = len({one.group for one in found})
    return list(found)


def _write(out: Path, sides: Mapping[str, list[Preference]], system_prompt: str | None, report: Report) -> None:
    from datasets import Dataset

    out.mkdir(parents=True, exist_ok=True)
    for name, kept in sides.items():
        table = Dataset.from_dict(
            {
                "messages": [messages(system_prompt, one.prompt) for one in kept],
                "chosen": [one.chosen for one in kept],
                "rejected": [one.rejected for one in kept],
            }
        )
        partial = out / f".{name}.partial"
        table.to_parquet(str(partial))
        partial.replace(out / f"{name}.parquet")
        report.bytes_after += (out / f"{name}.parquet").stat().st_size
    report.write(out)
