"""Plain text becomes blocks: documents from a file or the hub, a validation side where the recipe has one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from runner.data import rows
from runner.data.report import REPORT_FILE, SHOWN_BAD_LINES
from runner.data.split import TokenizerFor
from runner.files import read_json, sha256, write_json
from runner.names import content_hash, listed
from runner.problem import Stop

SIDES = ("train", "validation")


@dataclass
class TextReport:
    """What became of the documents. key: hash of everything that the result depends on.

    train, validation: `documents`, `tokens`, `blocks`, `dropped` (tokens), validation empty where there is none.
    skipped: why a row gave no document, and how often. bad_lines: line number and why.
    """

    key: str = ""
    source: str = ""
    tokenizer: str = ""
    block_len: int = 0
    train: dict[str, int] = field(default_factory=dict)
    validation: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    bad_lines: list[tuple[int, str]] = field(default_factory=list)
    cut_short: bool = False
    notes: list[str] = field(default_factory=list)

    # The rows that training sees are blocks; nothing is drawn.
    sampled_from: None = None

    @property
    def train_rows(self) -> int:
        return self.train["blocks"]

    @property
    def validation_rows(self) -> int:
        return self.validation.get("blocks", 0)

    def left_out(self) -> Iterator[str]:
        """Rows that gave no document, and why."""
        for reason, count in self.skipped.items():
            yield f"  skipped            {count:>11,}   {reason}"
        for number, reason in self.bad_lines[:SHOWN_BAD_LINES]:
            yield f"    line {number}: {reason}"

    def lines(self) -> Iterator[str]:
        """The report for a person, a line a fact."""
        yield f"from                 {self.source}"
        yield from self.left_out()
        if len(self.bad_lines) > SHOWN_BAD_LINES:
            yield f"    and {len(self.bad_lines) - SHOWN_BAD_LINES:,} more, all in {REPORT_FILE}"
        for name in SIDES:
            if side := getattr(self, name):
                yield f"{name + ' documents':<20} {side['documents']:>11,}"
                yield f"  tokens             {side['tokens']:>11,}   with an end-of-text after each document (tokenizer of {self.tokenizer})"
                yield f"  blocks             {side['blocks']:>11,}   of {self.block_len:,} tokens"
                rest = "after the last block" if not self.cut_short else "a rehearsal takes the first blocks"
                yield f"  dropped            {side['dropped']:>11,}   tokens, {rest}"
        if not self.validation:
            yield "validation                  none   nothing is evaluated, and the last weights are the result"
        yield from self.notes


def prepare(
    wanted: Mapping[str, Any],
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> TextReport:
    """Writes `train.parquet`, `validation.parquet` where there is validation data, and `report.json`.

    tokenizer_for: gives the tokenizer; without one there are no blocks.
    sample_rows: make at most so many blocks, the first ones.
    Raises Stop where there is no tokenizer, or too little text for one block.
    """
    from runner.data import blocks

    sides = [side for side in SIDES if side == "train" or _validates(wanted)]
    tokenizer = tokenizer_for(_Texts(wanted)) if tokenizer_for else None
    if tokenizer is None or tokenizer.eos_token_id is None:
        raise Stop(
            "Text can only be cut into blocks with the base model's tokenizer, and it cannot be loaded here.",
            "Check the model's name, your network and your access to it on the hub.",
        )
    key = _key(wanted, tokenizer, sample_rows)
    known = _read(out)
    if known and known.key == key and all((out / f"{side}.parquet").is_file() for side in sides):
        known.notes = list(_notes(wanted, known))
        return known
    report = TextReport(
        key=key,
        source=wanted["path"] or f"{wanted['hub']} on the hub",
        tokenizer=getattr(tokenizer, "said_as", str(tokenizer.name_or_path)),
        block_len=wanted["sequence_len"],
    )
    (out / "validation.parquet").unlink(missing_ok=True)
    for side in sides:
        counts = blocks.write(
            documents(wanted, side, report),
            tokenizer,
            wanted["sequence_len"],
            out / f"{side}.parquet",
            most_blocks=sample_rows,
        )
        setattr(
            report,
            side,
            {
                "documents": counts.documents,
                "tokens": counts.tokens,
                "blocks": counts.blocks,
                "dropped": counts.dropped,
            },
        )
        report.cut_short |= counts.blocks == sample_rows
        if not counts.blocks:
            raise _too_little(wanted, side, counts.tokens, report)
    report.notes = list(_notes(wanted, report))
    write_json(out / REPORT_FILE, asdict(report))
    return report


def _too_little(wanted: Mapping[str, Any], side: str, tokens: int, report: TextReport) -> Stop:
    name = "validation" if side == "validation" else "training"
    lines = [
        f"The {name} text has {tokens:,} tokens, too few for one block of {wanted['sequence_len']:,}.",
        *report.left_out(),
    ]
    share = side == "validation" and wanted["validation_share"]
    return Stop(
        "\n".join(lines),
        f"Give more text, {'raise `data.validation_share`, ' if share else ''}or lower `model.sequence_len`.",
    )


def _validates(wanted: Mapping[str, Any]) -> bool:
    return any(wanted[setting] for setting in ("validation_split", "validation_path", "validation_share"))


def documents(wanted: Mapping[str, Any], side: str, report: TextReport) -> Iterator[str]:
    """The texts of one side, in order. A share for validation is drawn by a hash of seed and text, so that equal
    documents stay on one side, and one more document in the file does not redraw all the others."""
    source = dict(wanted)
    if side == "validation" and wanted["validation_split"]:
        source["split"] = wanted["validation_split"]
    if side == "validation" and wanted["validation_path"]:
        source["path"] = wanted["validation_path"]
    share = wanted["validation_share"]
    for number, row in rows.read(source):
        reason = _wrong(row, wanted["text"])
        if isinstance(row, rows.Bad) or reason:
            # Both sides of a share read the same rows; they are counted once.
            if side == "train" or not share:
                report.skipped[reason] = report.skipped.get(reason, 0) + 1
                if isinstance(row, rows.Bad):
                    report.bad_lines.append((number, row.reason))
            continue
        text = row[wanted["text"]]
        if not share or _drawn(text, wanted["seed"], share) == (side == "validation"):
            yield text


def _wrong(row: dict[str, Any] | rows.Bad, column: str) -> str:
    if isinstance(row, rows.Bad):
        return "not a row, named by line below"
    if column not in row:
        return f"no column `{column}`; there are {listed(list(row)[:10])}"
    text = row[column]
    if not isinstance(text, str | None):
        return f"column `{column}` holds something else than text"
    return "" if text and text.strip() else "the text is empty"


def _drawn(text: str, seed: int, share: float) -> bool:
    digest = hashlib.blake2b(f"{seed}\n{text}".encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


class _Texts:
    """The training documents, read anew each time they are asked for; a twin's tokenizer learns from them."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self.wanted = wanted

    def __iter__(self) -> Iterator[str]:
        return documents(self.wanted, "train", TextReport())


def _key(wanted: Mapping[str, Any], tokenizer: Any, sample_rows: int | None) -> str:
    """Everything that the blocks depend on: the settings, the files' content, and the tokenizer."""
    files = {
        setting: sha256(Path(wanted[setting]))
        for setting in ("path", "validation_path")
        if wanted[setting] and Path(wanted[setting]).is_file()
    }
    tokens = [tokenizer.name_or_path, len(tokenizer), tokenizer.eos_token_id]
    figures = ("effective_batch_size", "epochs", "warmup_steps", "eval_steps")
    return content_hash([{k: v for k, v in wanted.items() if k not in figures}, files, tokens, sample_rows], 32)


def _notes(wanted: Mapping[str, Any], report: TextReport) -> Iterator[str]:
    """What the number of steps means for the intervals of the recipe."""
    steps = int(-(-report.train["blocks"] // wanted["effective_batch_size"]) * wanted["epochs"])
    yield f"steps                {steps:>11,}   of {wanted['effective_batch_size']} blocks each, in {wanted['epochs']:g} epochs"
    if steps <= wanted["warmup_steps"]:
        yield f"  note: the learning rate still rises at the end, because `train.warmup_steps` is {wanted['warmup_steps']:,}"
    if wanted["eval_steps"] and steps < wanted["eval_steps"]:
        yield f"  note: the only evaluations are at the start and at the end, because `train.eval_steps` is {wanted['eval_steps']:,}"


def _read(folder: Path) -> TextReport | None:
    facts = read_json(folder / REPORT_FILE)
    try:
        return TextReport(**facts)
    except TypeError:
        return None
