"""Two sides: what every kind of rows has in common, from the rows of a file to `train.parquet` and `validation.parquet`."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from runner.data import rows
from runner.data.forms import NoConversation
from runner.data.report import Report, SetCounts
from runner.data.tokenizers import Pretrained
from runner.files import replacing, sha256
from runner.names import content_hash, listed
from runner.problem import Stop

SIDES = ("train", "validation")

# Given texts, the tokenizer to count them with; None where there is none on this machine.
TokenizerFor = Callable[[Iterable[str]], Any]


@dataclass(frozen=True, kw_only=True)
class TwoSides(rows.DataSets):
    """Rows, and the `validation_share` of them, 0 to 1, that a draw by `seed` keeps for validation."""

    validation_share: float


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Something to learn from; equal items are learned once, and those of one group stay on one side of the split.

    origin: the number of the data set that it was first read from, which makes no two items differ.
    """

    origin: int = field(default=0, compare=False)

    @property
    def group(self) -> str:
        raise NotImplementedError


Item = TypeVar("Item", bound=Grouped)


def same(text: str) -> str:
    """Equal for texts that differ in nothing but space and case."""
    return " ".join(text.split()).casefold()


def begin(source: TwoSides, tokenizer: Pretrained | None = None, sample_rows: int | None = None) -> Report:
    """An empty report, whose key says what the result depends on: settings, the rows' file, and the file of the tokenizer
    whose tokens are counted, where it lies in a folder."""
    words = Path(tokenizer.base) / "tokenizer.json" if tokenizer else None
    tokens = [sha256(words)] if words and words.is_file() else []
    return Report(
        key=content_hash([asdict(source), source.content, tokens, sample_rows], 32),
        source=source.name,
        sets=[SetCounts(one.name, one.share) for one in source.sets],
        bytes_before=source.size,
    )


def already(out: Path, report: Report, tokenizer_for: TokenizerFor | None = None) -> Report | None:
    """The report of the same preparation, where both sides lie in `out`; what could not be counted for want of a
    tokenizer is tried again.

    Raises Stop where `out` holds Parquet files that this program did not prepare: somebody's own.
    """
    known = Report.read(out)
    if known is None and any(out.glob("*.parquet")):
        raise Stop(
            f"`{out}` holds Parquet files that the runner did not make.", "Name another folder for prepared data."
        )
    there = all((out / f"{side}.parquet").is_file() for side in SIDES)
    counted = known is not None and (bool(known.token_lengths) or tokenizer_for is None)
    return known if known and known.key == report.key and there and counted else None


def whole_rows(
    sources: rows.DataSets, report: Report, stream: bool = False
) -> Iterator[tuple[int, rows.Where, dict[str, Any]]]:
    """Every row that is taken, with the number of its data set and where it stands there; all are counted. A line that is
    no row goes into the report and is left out."""
    for index, one in enumerate(sources.sets):
        for number, row in rows.read(one, stream=stream):
            report.rows_in += 1
            report.sets[index].rows_in += 1
            where = rows.where(sources, index, number)
            if isinstance(row, rows.Bad):
                report.bad_lines.append((where, row.reason))
                report.dropped["not a row, named by line below"] += 1
            elif rows.drawn(row, one.share, sources.seed):
                yield index, where, row
            else:
                report.not_taken += 1


def collect(
    sources: rows.DataSets, makers: Sequence[Callable[[Mapping[str, Any]], Item | str]], report: Report
) -> list[Item]:
    """What is made of every row, once each, in the order of the data sets.

    makers: one for each data set; it gives a reason instead to drop a row, and raises KeyError with a column that the row
    lacks, NoConversation where the row is to be named with a reason of its own.
    """
    distinct: dict[Item, None] = {}
    for index, where, row in whole_rows(sources, report):
        try:
            item = makers[index](row)
        except KeyError as column:
            report.bad_lines.append((where, f"no column `{column.args[0]}`; there are {listed(list(row)[:10])}"))
            report.dropped["a column is missing, named by line below"] += 1
            continue
        except NoConversation as reason:
            report.bad_lines.append((where, str(reason)))
            report.dropped["no conversation, named by line below"] += 1
            continue
        if isinstance(item, str):
            report.dropped[item] += 1
        elif item in distinct:
            report.duplicates += 1
        else:
            distinct[replace(item, origin=index) if index else item] = None
    report.distinct = len({item.group for item in distinct})
    return list(distinct)


def split(items: Sequence[Item], share: float, seed: int) -> tuple[list[Item], list[Item]]:
    """Training and validation side. Groups are drawn in an order that the seed fixes until `share` of all is reached;
    all of a group go to the same side. Both sides keep the order they came in."""
    sizes: dict[str, int] = {}
    for item in items:
        sizes[item.group] = sizes.get(item.group, 0) + 1
    # A hash, so that one more row in the file does not redraw all the others.
    drawn = sorted(sizes, key=lambda group: hashlib.sha256(f"{seed}\n{group}".encode()).digest())
    target, taken = max(1, round(share * len(items))), 0
    chosen: set[str] = set()
    for group in drawn:
        if taken >= target or len(chosen) == len(sizes) - 1:
            break
        if chosen and taken + sizes[group] > target:
            continue
        chosen.add(group)
        taken += sizes[group]
    return [item for item in items if item.group not in chosen], [item for item in items if item.group in chosen]


def finish(
    items: Sequence[Item],
    columns: Callable[[list[Item]], Mapping[str, list[Any]]],
    source: TwoSides,
    out: Path,
    report: Report,
) -> Report:
    """Splits, and writes both sides and the report. columns: a side's columns, by name.

    Raises Stop where too few rows are left.
    """
    train, validation = split(items, source.validation_share, source.seed)
    report.train_rows, report.validation_rows = len(train), len(validation)
    for index, count in Counter(item.origin for item in train).items():
        report.sets[index].train_rows = count
    if not train or not validation:
        lines = "\n".join(report.lines())
        raise Stop(
            f"Too few rows are left to train and to validate on.\n{lines}\n"
            f"At least two different {report.unit}s are needed."
        )
    from datasets import Dataset
    from datasets.utils.logging import disable_progress_bar

    disable_progress_bar()
    out.mkdir(parents=True, exist_ok=True)
    for name, side in zip(SIDES, (train, validation), strict=True):
        with replacing(out / f"{name}.parquet") as partial:
            Dataset.from_dict(dict(columns(side))).to_parquet(str(partial))
        report.bytes_after += (out / f"{name}.parquet").stat().st_size
    report.write(out)
    return report
