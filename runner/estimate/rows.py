"""Rows: how many rows a stage trains on and how long they are, as far as that can be known without a download."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from runner import catalog, prepared
from runner.files import table, text_files
from runner.plan import Plan, Stage

# Characters a token of English text, for tokenizers with 50,000 words and more; and the tokens of a row's own marks.
CHARACTERS_A_TOKEN = 4.2
MARKS = 16


@dataclass(frozen=True)
class Rows:
    """Counts of rows, None where nobody knows. tokens: of a mean row, None where nobody has counted.

    source: where the figures come from, as a person says it.
    """

    training: int | None = None
    validation: int | None = None
    tokens: float | None = None
    source: str = "nobody has counted the rows; `--rows N` says how many there are"


def of(plan: Plan, stage: Stage, run_dir: Path | None, given: int | None = None) -> Rows:
    """What is known of a stage's rows. run_dir: the local run folder, where data may lie prepared already; None where
    nothing but recipe and catalog may be asked, so that the answer is the same on every machine.

    given: what `--rows` says; it means every stage whose rows are counted at all.
    """
    source, data = _source(plan, stage)
    if source is None:
        return known(data, run_dir and run_dir / "data", given)
    own = known(data, run_dir and run_dir / "data" / stage.name, given)
    if (share := data.get("domain_share")) and own.training and not given:
        return _mixed(own, own.training, known(source["sft"], run_dir and run_dir / "data" / "sft"), share)
    return own


def _source(plan: Plan, stage: Stage) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """What a stage's data is made from; a pipeline prepares the data of all its stages in one that trains nothing."""
    for other in plan.stages:
        if not other.trains and other.name in stage.reads and stage.name in other.config:
            return other.config, other.config[stage.name]
    return None, stage.data


def _mixed(domain: Rows, training: int, general: Rows, share: float) -> Rows:
    """A domain's `training` rows with general ones beside them, drawn from those of SFT until `share` is the domain's part."""
    lacking = round(training * (1 - share) / share)
    added = min(lacking, general.training or lacking)
    tokens = domain.tokens
    if tokens and general.tokens:
        tokens = (training * tokens + added * general.tokens) / (training + added)
    return Rows(training + added, domain.validation, tokens, f"{domain.source}, {added:,} of them SFT's")


def known(data: Mapping[str, Any], folder: Path | None, given: int | None = None) -> Rows:
    """What is known of rows: given by hand, prepared already, in the recipe, in a local file, or in the catalog.

    data: as a preparer reads it. folder: where it writes; None where no file may be opened.
    """
    share = float(data.get("validation_share") or 0)
    if given:
        sets = data.get("sets", [data])
        return _split(given, share, _mean_tokens(sets[0], data) if len(sets) == 1 else None, "`--rows`")
    # Data prepared under other settings says nothing of these.
    if folder and (made := prepared.Rows.read(folder)).train_rows and made.asked == prepared.asked(data):
        return Rows(made.train_rows, made.validation_rows, made.tokens, f"the prepared data in {folder}")
    songs = data.get("songs") or {}
    if songs.get("count"):
        return _split(songs["count"], share, None, "the recipe's `count`")
    counts = [_of_set(one, data, folder) for one in data.get("sets", [data])]
    if not counts or any(one.training is None for one in counts):
        return Rows()
    whole = sum(one.training or 0 for one in counts)
    told = [(one.training or 0) * one.tokens for one in counts if one.tokens]
    tokens = sum(told) / max(1, whole) if len(told) == len(counts) else None
    rows = _split(whole, share, tokens, " and ".join(dict.fromkeys(one.source for one in counts)))
    held_out = [_held_out(one, data, folder) for one in data.get("validation_sets", ())]
    if held_out and None not in held_out:
        return replace(rows, validation=sum(count or 0 for count in held_out))
    return replace(rows, validation=None) if held_out else rows


def _of_set(one: Mapping[str, Any], data: Mapping[str, Any], folder: Path | None) -> Rows:
    """The rows of one data set that are taken, before some are held out."""
    if path := one.get("path"):
        rows = _counted(Path(path)) if folder else Rows()
    elif facts := _catalogued(one):
        rows = Rows(facts["rows"], None, _mean_tokens(one, data), "the catalog of data sets")
    else:
        rows = Rows()
    return replace(rows, training=None if rows.training is None else round(rows.training * one.get("share", 1)))


def _held_out(one: Mapping[str, Any], data: Mapping[str, Any], folder: Path | None) -> int | None:
    """The rows of a data set that only the validation loss is measured on, or of a split of it; None where nobody knows."""
    if one.get("path"):
        return _of_set(one, data, folder).training
    return (_catalogued(one) or {}).get(f"{one.get('split')}_rows")


def _split(rows: int, share: float, tokens: float | None, source: str) -> Rows:
    validation = round(rows * share)
    return Rows(rows - validation, validation, tokens, source)


def _catalogued(data: Mapping[str, Any]) -> dict[str, Any] | None:
    hub, subset = data.get("hub") or "", data.get("subset")
    return catalog.dataset(f"{hub}:{subset}" if subset else hub)


def _mean_tokens(one: Mapping[str, Any], data: Mapping[str, Any]) -> float | None:
    facts = _catalogued(one)
    if not facts:
        return None
    characters: float = facts["characters"] + len(data.get("system_prompt") or "")
    return characters / CHARACTERS_A_TOKEN + MARKS


def _counted(path: Path) -> Rows:
    """Rows of a local file or folder, counted as the preparers read them; Parquet is not opened, because that takes a
    library that is slow to load."""
    if path.is_dir():
        return _in_folder(path)
    counters = {
        ".jsonl": ("lines", _lines),
        ".csv": ("rows", _records),
        ".tsv": ("rows", _records),
        ".txt": ("documents", _documents),
    }
    if not path.is_file() or path.suffix not in counters:
        return Rows()
    unit, counted = counters[path.suffix]
    # A byte that is no UTF-8 is still part of one row.
    with table(path, errors="replace") as (file, separator):
        count = counted(file, separator)
    tokens = path.stat().st_size / max(1, count) / CHARACTERS_A_TOKEN + MARKS
    return Rows(count, None, tokens, f"the {unit} of {path}")


def _in_folder(path: Path) -> Rows:
    """Texts of a folder, each file one document; else the images in its folders, one a class; those in `test…` are not trained on."""
    if texts := text_files(path):
        tokens = sum(text.stat().st_size for text in texts) / len(texts) / CHARACTERS_A_TOKEN + MARKS
        return Rows(len(texts), None, tokens, f"the files in {path}")
    inner = [file.relative_to(path).parts for file in path.glob("*/**/*") if file.is_file()]
    images = sum(not parts[0].startswith(("test", ".")) and not parts[-1].startswith(".") for parts in inner)
    return Rows(images, None, None, f"the files in the folders of {path}") if images else Rows()


def _lines(file: Iterable[str], _: str) -> int:
    return sum(1 for line in file if line.strip())


def _records(file: Iterable[str], separator: str) -> int:
    """Records below the line of names; quoted text may hold line ends of its own."""
    return max(0, sum(1 for record in csv.reader(file, delimiter=separator) if record) - 1)


def _documents(file: Iterable[str], _: str) -> int:
    """Documents with empty lines between them."""
    return sum(1 for text, _ in groupby(file, key=lambda line: bool(line.strip())) if text)
