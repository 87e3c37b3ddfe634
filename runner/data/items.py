"""Items: rows of any kind, spooled to disk, without duplicates, examined, counted in tokens, and
written as a training and a validation side. Memory holds only keys, groups and lines."""

from __future__ import annotations

import gc
import hashlib
import os
import pickle
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from runner.data import RenderedExample, blocks, conversation_formats, data_sets, rows, tokenizers
from runner.data.examining import examiners
from runner.data.judged import Judged
from runner.data.prepared import Lengths
from runner.data.report import MOST_NAMED, DataFinding, Report
from runner.data.row_files import DataRow, FilePart
from runner.recipe.templates import NoText
from runner.tools import child_process
from runner.tools.files import content_hash, replacing
from runner.tools.problem import Stop, listed
from runner.tools.process import cores
from runner.tools.text import TextTokenizer

BATCH_CHARACTERS = 2**20  # rows are put on disk in batches of about this many characters
# A separate process must read this many bytes to be worth its start, half a second.
PART_BYTES = 16 * 2**20
GROUP_BYTES = 16 * 2**20  # bytes of a row group in the written files
# Makes an item of a row, or returns the reason why it has none. Items with equal keys are learned
# once; those of one group stay on one side of the split. Raises KeyError for a column that the row
# lacks, and NoText with the reason that is listed for this line. It can be pickled.
ItemOf = Callable[[DataRow], conversation_formats.Conversation | str]
Asked = TypeVar("Asked", bound=conversation_formats.Conversations | Judged)


class ItemPreparer(ABC, Generic[Asked]):
    """How rows of one kind become a training and a validation side. asked: the data sets. spool:
    the items, once they are read. report: how they were used. uncounted: why tokens are not counted
    without a tokenizer."""

    spool: Spool
    uncounted = "the base model's tokenizer is not on this machine"

    def __init__(self, request: Asked) -> None:
        self.asked = request
        self.report = Report.of(request)

    @abstractmethod
    def items_of(self) -> Iterator[ItemOf]:
        """For each data set, how its rows become items."""

    def told(self, item: Any) -> str:
        """An item as the model will see it."""
        messages = conversation_formats.behind(self.asked.system_prompt, item.turns)
        return conversation_formats.rendered(self.asked.special_tokens, messages)

    def rendered(self, item: Any) -> RenderedExample:
        """An item for people."""
        return RenderedExample(item.question, self.told(item))

    def said(self, item: Any) -> tuple[Any, ...]:
        """The complete text of an item, the part that is learned, and its label if it has one."""
        return item.said, item.turns[-1].content

    @abstractmethod
    def counted(self, kept: np.ndarray, tokenizer: TextTokenizer) -> np.ndarray:
        """Counts tokens; returns those of the numbers `kept` whose items are not too long."""

    @abstractmethod
    def table(self, batch: list[Any]) -> pa.Table:
        """The table to write for some items, with the same types for all of them."""

    def within(
        self, limit: int, kept: np.ndarray, lengths: np.ndarray, tokenizer: TextTokenizer
    ) -> np.ndarray:
        """Those of the numbers `kept` whose items have at most `limit` tokens. Fills in the
        report's lengths."""
        report = self.report
        report.token_lengths = blocks.figures(lengths)
        report.length_bins = blocks.histogram(lengths)
        fitting = lengths[lengths <= limit]
        if len(fitting):
            report.lengths = Lengths(
                float(fitting.mean()), float(fitting.std()), float(np.percentile(fitting, 99))
            )
            report.longest_kept = int(fitting.max())
        lines = self.where(kept[lengths > limit])
        for line in lines:
            report.lose(line, f"longer than {limit} tokens")
        self.find_too_long(lengths, limit, lines, int(lengths[lengths > limit].sum()), "left out")
        # A twin's tokenizer gives other lengths than the model's.
        if hasattr(tokenizer, "said_as"):
            report.lost -= len(lines)
        return kept[lengths <= limit]

    def find_too_long(
        self,
        lengths: np.ndarray,
        limit: int,
        lines: list[data_sets.Where],
        lost_tokens: int,
        fate: str,
    ) -> None:
        """Reports rows of more than `limit` tokens. lengths: tokens of each row; lines: of the long
        ones; lost_tokens: that they lose; fate: what happens to them."""
        if not lines:
            return
        ordered = np.sort(lengths)
        # The first multiple of 256 that keeps 99 % of the rows.
        enough = max(int(ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]), limit + 1)
        needed = -(-enough // 256) * 256
        effect = f"{fate}, which loses {lost_tokens:,} tokens, {lost_tokens / int(lengths.sum()):.1%} of all"
        still = int((lengths > needed).sum()) or "none"
        remedy = f"With `sequence_len: {needed}`, {still} would be too long. Or shorten them."
        self.report.findings.append(DataFinding.of("too long", len(lines), effect, remedy, lines))

    def first(self) -> Iterator[RenderedExample]:
        """The items of all rows, one after the other, duplicates included."""
        for data_set, item_of in zip(self.asked.sets, self.items_of(), strict=True):
            for row in rows.good(data_set, stream=getattr(self.asked, "stream", False)):
                with suppress(KeyError, NoText):
                    item = item_of(row)
                    if not isinstance(item, str):
                        yield self.rendered(item)

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        """Spools the items of all rows below `place`; returns the numbers of items without an equal
        one before them, or of a sample of these. A process for each core reads large files of lines
        or row groups."""
        report = self.report
        sets = self.asked.sets
        spools = []
        # The form of each set first, so that one without a form is reported before any is read.
        for index, item_of in enumerate(list(self.items_of())):
            file = sets[index].file
            parts = None
            if file and file.is_file():
                count = min(cores(), file.stat().st_size // PART_BYTES)
                if count > 1:
                    parts = rows.parts_of_file(file, None, count)
                else:
                    parts = None
            jobs = [
                (self.asked, index, part, item_of, place / f"{index}-{number}.arrow")
                for number, part in enumerate(parts or [None])
            ]
            with ExitStack() as opened:
                spooled: Iterator[tuple[Spool, Report]] = map(_of_rows, jobs)
                if parts:
                    # Fresh interpreters, because a fork would copy the locks of threads, but not
                    # the threads.
                    pool = ProcessPoolExecutor(
                        len(parts), get_context("spawn"), _begin, (os.getpid(),)
                    )
                    spooled = opened.enter_context(pool).map(_of_rows, jobs)
                for part, counted in spooled:
                    spools.append(part)
                    report.add(counted)
        files = tuple(file for spool in spools for file in spool.files)
        self.spool = Spool(files, np.concatenate([spool.facts for spool in spools]))
        kept = np.sort(np.unique(self.spool.facts["key"], return_index=True)[1])
        report.duplicates = len(self.spool) - len(kept)
        report.duplicate_lines = self.where(
            np.delete(np.arange(len(self.spool)), kept)[:MOST_NAMED]
        )
        report.distinct = len(np.unique(self.spool.facts["group"][kept]))
        if sample_rows is not None and len(kept) > sample_rows:
            report.sampled_from = len(kept)
            kept = kept[
                sorted(random.Random(self.asked.seed).sample(range(len(kept)), sample_rows))
            ]
        return kept

    def measured(
        self, kept: np.ndarray, tokenizer_for: tokenizers.TokenizerFor | None
    ) -> np.ndarray:
        """Counts tokens if there is a tokenizer; returns those of the numbers `kept` whose items
        are not too long."""
        if tokenizer_for and len(kept):
            tokenizer = tokenizer_for(map(self.told, self.spool.items(kept)))
        else:
            tokenizer = None
        if tokenizer is None:
            self.report.tokenizer = self.uncounted
            return kept
        from transformers.tokenization_mistral_common import MistralCommonBackend

        template = self.asked.special_tokens.axolotl
        base = str(tokenizer.name_or_path)
        # transformers takes mistral-common wherever a model has a file of it.
        message = tokenizers.unfit(template, base, isinstance(tokenizer, MistralCommonBackend))
        if message:
            raise Stop(*message)
        self.report.tokenizer = getattr(tokenizer, "said_as", base)
        return self.counted(kept, tokenizer)

    def lengths(self, kept: np.ndarray, tokenizer: TextTokenizer, **options: str) -> np.ndarray:
        """The tokens of items as the model will see them. options: of `told`."""
        return blocks.lengths(map(partial(self.told, **options), self.spool.items(kept)), tokenizer)

    def where(self, kept: np.ndarray) -> list[data_sets.Where]:
        """The places of items in the data sets, as messages name them."""
        places = []
        for place in self.spool.facts[["origin", "line"]][kept].tolist():
            places.append(data_sets.where(self.asked, *place))
        return places

    def prepare(
        self,
        out: Path,
        tokenizer_for: tokenizers.TokenizerFor | None = None,
        sample_rows: int | None = None,
    ) -> Report:
        """Writes `train.parquet`, `validation.parquet` (unless no row is held back) and
        `report.json`, unless they exist already. sample_rows: of a rehearsal, whose rows are not
        examined. Raises Stop if too few rows are left, or `out` contains Parquet files of another
        origin."""
        request = self.asked
        report = self.report
        report.key = self.key(sample_rows)
        existing = Report.read(out)
        if existing is None and any(out.glob("*.parquet")):
            raise Stop(
                f"`{out}` contains Parquet files that recipe-runner did not make.",
                "Name another folder for prepared data.",
            )
        sides = blocks.SIDES
        if not request.validation_share:
            sides = ("train",)
        are_written = all((out / f"{side}.parquet").is_file() for side in sides)
        if existing and existing.key == report.key and are_written:
            # Tokens that could not be counted without a tokenizer may be counted now.
            can_count = tokenizer_for is not None and not existing.token_lengths
            if not can_count:
                return existing
        with folder(out) as place:
            kept = self.read(place, sample_rows)
            report.require_few_lost(report.lost, report.rows_in, request.max_lost_share, out)
            if sample_rows is None:
                self.look_through(kept)
            lost_before = report.lost
            rows_before = len(kept)
            kept = self.measured(kept, tokenizer_for)
            report.require_few_lost(
                report.lost - lost_before, rows_before, request.max_lost_share, out
            )
            is_validation = drawn(self.spool.facts["group"][kept], request.validation_share)
            rows_of = {"train": kept[~is_validation], "validation": kept[is_validation]}
            report.train_rows = len(rows_of["train"])
            report.validation_rows = len(rows_of["validation"])
            for index, counts in enumerate(report.sets):
                counts.train_rows = int(
                    (self.spool.facts["origin"][rows_of["train"]] == index).sum()
                )
            if not all(len(rows_of[side]) for side in sides):
                raise self.too_few_rows()
            if not request.validation_share:
                (out / "validation.parquet").unlink(missing_ok=True)
            for side in sides:
                with replacing(out / f"{side}.parquet") as begun:
                    _write(map(self.table, self.spool.batches(rows_of[side])), begun)
                report.bytes_after += (out / f"{side}.parquet").stat().st_size
        report.write(out)
        return report

    def key(self, sample_rows: int | None) -> str:
        """The hash of everything that the prepared rows depend on."""
        request = self.asked
        if request.tokenizer:
            tokens = tokenizers.content(request.tokenizer.base)
        else:
            tokens = ""
        # Rows of before the setting `files` still count.
        unwritten = partial(data_sets.stated, later=("files", "answered_by"))
        fields = asdict(request, dict_factory=unwritten)
        return content_hash([fields, request.content, tokens, sample_rows], 32)

    def too_few_rows(self) -> Stop:
        """The refusal of rows that leave a side empty."""
        lines = "\n".join(self.report.lines())
        if not self.asked.validation_share:
            return Stop(f"No row remains to train on.\n{lines}")
        return Stop(
            f"Too few rows remain to train and to validate on.\n{lines}\nAt least two different {self.report.unit}s are needed."
        )

    def look_through(self, kept: np.ndarray) -> None:
        """Shows the items to the examiners."""
        self.report.licence = data_sets.licences(self.asked)
        for examiner in examiners(self.report):
            for line, item in zip(self.where(kept), self.spool.items(kept), strict=True):
                examiner.add(line, *self.said(item))
            examiner.end()


# For each item: its key and its group, as the first 128 bits of a hash; the line and the number of
# the data set that it came from. The seed fixes the order of groups.
FACTS = np.dtype([("key", "S16"), ("group", "S16"), ("line", np.int64), ("origin", np.int64)])


@dataclass(frozen=True)
class Spool:
    """Items on disk, in the order they came. files: pickled lists of them, one after the other.
    facts: an array of FACTS."""

    files: tuple[Path, ...]
    facts: np.ndarray

    def __len__(self) -> int:
        return len(self.facts)

    def batches(self, kept: np.ndarray) -> Iterator[list[Any]]:
        """The items whose numbers are in `kept` (sorted), in order."""
        start = 0
        for file in self.files:
            with file.open("rb") as lists:
                while lists.peek(1):
                    batch = pickle.load(lists)
                    begin, last = np.searchsorted(kept, (start, start + len(batch)))
                    if begin < last:
                        yield [batch[number] for number in (kept[begin:last] - start).tolist()]
                    start += len(batch)

    def items(self, kept: np.ndarray) -> Iterator[Any]:
        return chain.from_iterable(self.batches(kept))


def hashes(texts: Sequence[str], before: str = "") -> np.ndarray:
    """The first 128 bits of SHA-256 of `before` and each text."""
    return np.array(
        [hashlib.sha256((before + text).encode()).digest()[:16] for text in texts], "S16"
    )


@contextmanager
def folder(out: Path) -> Iterator[Path]:
    """A folder for a spool below `out`, removed at the end, or after a kill by the next process
    with this id."""
    place = out / f".rows.{os.getpid()}.partial"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def spool(
    items: Iterable[tuple[conversation_formats.Conversation, int, int]], seed: int, file: Path
) -> Spool:
    """Writes items, with their lines and data sets' numbers, into a file. seed: of the order of
    groups."""
    keyed = ((item, item.key, line, origin) for item, line, origin in items)
    facts = [np.empty(0, FACTS)]
    with file.open("wb") as lists:
        for held in blocks.in_groups(keyed, lambda entry: len(entry[1]), BATCH_CHARACTERS):
            those, keys, *places = zip(*held, strict=True)
            pickle.dump(those, lists, pickle.HIGHEST_PROTOCOL)
            part = np.empty(len(those), FACTS)
            part["key"], part["group"] = (
                hashes(keys),
                hashes([item.group for item in those], f"{seed}\n"),
            )
            part["line"], part["origin"] = places
            facts.append(part)
    return Spool((file,), np.concatenate(facts))


def _begin(parent: int) -> None:
    child_process.end_with(parent)
    # Rows form no cycles, and collecting garbage would take a fifth of the time.
    gc.disable()


def _of_rows(
    job: tuple[data_sets.DataSets, int, FilePart | None, ItemOf, Path],
) -> tuple[Spool, Report]:
    """The items of a data set, or of a part of its file, in a file; and a report with the lines
    that give none."""
    sources, index, part, item_of, file = job
    report = Report.of(sources)

    def items() -> Iterator[tuple[conversation_formats.Conversation, int, int]]:
        for number, row in report.whole(sources, index, rows.read(sources.sets[index], part)):
            try:
                item = item_of(row)
            except KeyError as column:
                reason = "a column is missing"
                detail = f"no column `{column.args[0]}`; the row has {listed(list(row)[:10])}"
            except conversation_formats.NoExchange as error:
                report.skip(data_sets.where(sources, index, number), str(error))
                continue
            except NoText as error:
                reason = "not a conversation"
                detail = str(error)
            else:
                if not isinstance(item, str):
                    for change in item.changes:
                        report.change(data_sets.where(sources, index, number), change)
                    yield item, number, index
                    continue
                reason = item
                detail = ""
            report.lose(data_sets.where(sources, index, number), reason, detail)

    return spool(items(), sources.seed, file), report


def _write(tables: Iterator[pa.Table], file: Path) -> None:
    first_table = next(tables)
    groups = blocks.in_groups(chain([first_table], tables), lambda table: table.nbytes, GROUP_BYTES)
    with (
        parquet.ParquetWriter(file, first_table.schema, compression="zstd") as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        # A group is compressed while the next is made.
        written: Future[None] | None = None
        for group in map(pa.concat_tables, groups):
            if written:
                written.result()
            written = pool.submit(writer.write_table, group)
        if written:
            written.result()


def drawn(groups: np.ndarray, share: float) -> np.ndarray:
    """Which items are for validation. Groups are drawn in order until `share` of all items is
    reached; a group stays together, and one remains for training. A share of 0 draws none."""
    if not share:
        return np.zeros(len(groups), bool)
    _, number_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    target = max(1, round(share * len(groups)))
    drawn_items = 0
    chosen = list[int]()
    for number, size in enumerate(sizes.tolist()):
        if drawn_items >= target or len(chosen) == len(sizes) - 1:
            break
        if not chosen or drawn_items + size <= target:
            chosen.append(number)
            drawn_items += size
    return np.isin(number_of, chosen)
