"""Questions and answers become conversations: filled templates, no duplicates, a split that leaks no question."""

from __future__ import annotations

import hashlib
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.catalog import ChatTemplate
from runner.execute.data import rows
from runner.execute.data.report import Report
from runner.names import content_hash
from runner.problem import Stop
from runner.recipe import templates
from runner.training.answers import messages


@dataclass(frozen=True)
class Pair:
    question: str
    answer: str

    @property
    def group(self) -> str:
        """Pairs with the same group stay on one side of the split: the question, however it is spaced or cased."""
        return " ".join(self.question.split()).casefold()


# Given the conversations' texts, the tokenizer to count them with; None where there is none on this machine.
TokenizerFor = Callable[[list[str]], Any]


def prepare(
    wanted: Mapping[str, Any],
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `full-question`, `answer`, `messages`) and `report.json`.

    tokenizer_for: where it gives a tokenizer, conversations longer than `sequence_len` tokens are left out.
    sample_rows: keep at most so many pairs, drawn by the seed.
    Raises Stop where too few rows are left to train and validate on.
    """
    report = begin(wanted, sample_rows)
    if known := already(out, report, tokenizer_for):
        return known
    pairs = _pairs(wanted, report)
    if sample_rows is not None and len(pairs) > sample_rows:
        report.sampled_from = len(pairs)
        kept = sorted(random.Random(wanted["seed"]).sample(range(len(pairs)), sample_rows))
        pairs = [pairs[index] for index in kept]
    return finish(pairs, wanted, out, tokenizer_for, report)


def begin(wanted: Mapping[str, Any], sample_rows: int | None) -> Report:
    """An empty report, whose key says what the result depends on."""
    file = Path(wanted["path"]) if wanted["path"] else None
    content = ""
    if file and file.is_file():
        with file.open("rb") as source:
            content = hashlib.file_digest(source, "sha256").hexdigest()
    return Report(
        key=content_hash([dict(wanted), content, sample_rows], 32),
        source=wanted["path"] or f"{wanted['hub']} on the hub",
        bytes_before=file.stat().st_size if content else None,
    )


def already(out: Path, report: Report, tokenizer_for: TokenizerFor | None) -> Report | None:
    """The report of the same preparation, where both sides lie in `out`; what could not be counted for want of a
    tokenizer is tried again.

    Raises Stop where `out` holds Parquet files that this program did not prepare: somebody's own.
    """
    known = Report.read(out)
    if known is None and any(out.glob("*.parquet")):
        raise Stop(
            f"`{out}` holds Parquet files that the runner did not make.", "Name another folder for prepared data."
        )
    there = all((out / f"{side}.parquet").is_file() for side in ("train", "validation"))
    counted = known is not None and (bool(known.token_lengths) or tokenizer_for is None)
    return known if known and known.key == report.key and there and counted else None


def finish(
    pairs: Sequence[Pair], wanted: Mapping[str, Any], out: Path, tokenizer_for: TokenizerFor | None, report: Report
) -> Report:
    """Leaves out what is too long, splits, and writes. Raises Stop where too few rows are left."""
    pairs = _within_length(pairs, wanted, tokenizer_for, report)
    train, validation = split(pairs, wanted["validation_share"], wanted["seed"])
    report.train_rows, report.validation_rows = len(train), len(validation)
    if not train or not validation:
        raise Stop(_too_few(report))
    _write(out, {"train": train, "validation": validation}, wanted, report)
    return report


def _pairs(wanted: Mapping[str, Any], report: Report) -> list[Pair]:
    """Every row's question and answer, once each, in the order of the file."""
    pairs: dict[Pair, None] = {}
    for number, row in rows.read(wanted):
        report.rows_in += 1
        if isinstance(row, rows.Bad):
            report.bad_lines.append((number, row.reason))
            report.dropped["not a row, named by line below"] += 1
            continue
        try:
            pair = Pair(*(templates.fill(wanted[part], row).strip() for part in ("question", "answer")))
        except KeyError as column:
            report.bad_lines.append((number, f"no column {column}"))
            report.dropped["a column is missing, named by line below"] += 1
            continue
        if not pair.question or not pair.answer:
            report.dropped["the question or the answer is empty"] += 1
        elif pair in pairs:
            report.duplicates += 1
        else:
            pairs[pair] = None
    report.distinct = len({pair.group for pair in pairs})
    return list(pairs)


def _within_length(
    pairs: Sequence[Pair], wanted: Mapping[str, Any], tokenizer_for: TokenizerFor | None, report: Report
) -> list[Pair]:
    """Counts tokens; leaves out what the model would not see whole."""
    marks = ChatTemplate(**wanted["marks"])
    texts = [marked(marks, messages(wanted["system_prompt"], pair.question, pair.answer)) for pair in pairs]
    tokenizer = tokenizer_for(texts) if tokenizer_for and texts else None
    if tokenizer is None:
        report.tokenizer = "the base model's tokenizer is not on this machine"
        return pairs
    report.tokenizer = getattr(tokenizer, "said_as", str(tokenizer.name_or_path))
    lengths: list[int] = []
    # In parts, because the tokens of a hundred thousand rows take gigabytes as Python numbers.
    for start in range(0, len(texts), 1000):
        tokens = tokenizer(texts[start : start + 1000], add_special_tokens=False)["input_ids"]
        lengths += map(len, tokens)
    ordered = sorted(lengths)
    report.token_lengths = {
        "min": ordered[0],
        "median": round(statistics.median(ordered)),
        "p95": ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))],
        "max": ordered[-1],
    }
    limit = wanted["sequence_len"]
    kept = [pair for pair, length in zip(pairs, lengths, strict=True) if length <= limit]
    if len(kept) < len(pairs):
        report.dropped[f"longer than {limit} tokens"] = len(pairs) - len(kept)
    return kept


def marked(marks: ChatTemplate, conversation: list[dict[str, str]]) -> str:
    """A conversation with the marks around each message, as the model is to see it."""
    return "".join(marks.message(turn["role"], turn["content"]) for turn in conversation)


def split(pairs: Sequence[Pair], share: float, seed: int) -> tuple[list[Pair], list[Pair]]:
    """Training and validation pairs. Questions are drawn in an order that the seed fixes until `share` of the pairs is
    reached; all pairs of a question go to the same side. Both sides keep the order of `pairs`."""
    sizes: dict[str, int] = {}
    for pair in pairs:
        sizes[pair.group] = sizes.get(pair.group, 0) + 1
    # A hash, so that one more row in the file does not redraw all the others.
    drawn = sorted(sizes, key=lambda group: hashlib.sha256(f"{seed}\n{group}".encode()).digest())
    target, taken = max(1, round(share * len(pairs))), 0
    chosen: set[str] = set()
    for group in drawn:
        if taken >= target or len(chosen) == len(sizes) - 1:
            break
        if chosen and taken + sizes[group] > target:
            continue
        chosen.add(group)
        taken += sizes[group]
    return [pair for pair in pairs if pair.group not in chosen], [pair for pair in pairs if pair.group in chosen]


def _too_few(report: Report) -> str:
    lines = "\n".join(report.lines())
    return f"Too few rows are left to train and to validate on.\n{lines}\nAt least two different {report.unit}s are needed."


def _write(out: Path, sides: dict[str, list[Pair]], wanted: Mapping[str, Any], report: Report) -> None:
    from datasets import Dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    for name, pairs in sides.items():
        table = Dataset.from_dict(
            {
                "full-question": [pair.question for pair in pairs],
                "answer": [pair.answer for pair in pairs],
                "messages": [messages(wanted["system_prompt"], pair.question, pair.answer) for pair in pairs],
            }
        )
        partial = out / f".{name}.partial"
        table.to_parquet(str(partial))
        partial.replace(out / f"{name}.parquet")
        report.bytes_after += (out / f"{name}.parquet").stat().st_size
    report.write(out)
