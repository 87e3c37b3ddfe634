"""The sources of rows: files, folders, datasets on the hub; and the hub's facts about its
datasets."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from runner.data import object_store
from runner.data.hub_failures import hub_failure
from runner.data.row_files import LINES_OF_SHEET, OF_WORKBOOKS, DataRow, Unreadable
from runner.data.tokenizers import Pretrained
from runner.tools.files import content_of, remote
from runner.tools.problem import Stop, Unreachable

# UTF-8 bytes per token of English text, for vocabularies of 50,000 tokens and more. Other scripts
# have fewer letters per token and more bytes per letter.
BYTES_A_TOKEN = 4.2


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """The source of rows: the file or folder `path`, else the dataset `hub` or its `files`, subset,
    split and revision. sheet: of a spreadsheet."""

    hub: str | None
    revision: str | None
    subset: str | None
    split: str | None
    path: str | None
    files: tuple[str, ...] | None = None
    sheet: str | None = None

    @property
    def name(self) -> str:
        return self.path or f"{self.hub} on the hub"

    @property
    def file(self) -> Path | None:
        """The file or folder; the first question after one at an `s3://` address copies it to this
        machine."""
        if remote(self.path):
            return object_store.local(str(self.path))
        if self.path:
            return Path(self.path)
        return None

    @property
    def content(self) -> str:
        """The hash of the file or folder; empty for a dataset, which has a revision."""
        if self.file and self.file.exists():
            return content_of(self.file)
        return ""


@dataclass(frozen=True, kw_only=True)
class DataSet(DataSource):
    """One of the data sets of a recipe. share: the part of its rows that is taken, above 0 and up
    to 1."""

    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class DataSets:
    """The training data of a recipe, one data set or several. seed: of all draws of rows."""

    sets: tuple[DataSet, ...]
    seed: int

    @property
    def name(self) -> str:
        return ", ".join(data_set.name for data_set in self.sets)

    @property
    def content(self) -> list[str]:
        return [data_set.content for data_set in self.sets]

    @property
    def size(self) -> int | None:
        """Bytes of all files together; None if one is not a file."""
        files = []
        for data_set in self.sets:
            if data_set.file and data_set.file.is_file():
                files.append(data_set.file)
        if len(files) == len(self.sets):
            return sum(file.stat().st_size for file in files)
        return None


@dataclass(frozen=True, kw_only=True)
class SplitDataSets(DataSets):
    """Rows that a draw by `seed` splits. validation_share: of the rows, 0 (none) to 1.
    max_lost_share: the share of rows that may be bad or too long, 0 to 1."""

    validation_share: float
    max_lost_share: float = 0.01


@dataclass(frozen=True, kw_only=True)
class TextSet(DataSet):
    """Documents in the column `text`."""

    text: str


@dataclass(frozen=True, kw_only=True)
class PlainText(DataSets):
    """Documents for blocks of `sequence_len` tokens. validation_sets, validation_share (of the
    documents, 0 to 1): at most one of them. max_lost_share: the share of rows that may give no
    document. effective_batch_size (blocks), epochs, warmup_steps, eval_steps: of training, for the
    report."""

    kind: Literal["plain-text"] = "plain-text"
    sets: tuple[TextSet, ...]
    validation_sets: tuple[TextSet, ...] = ()
    validation_share: float | None
    max_lost_share: float = 0.01
    tokenizer: Pretrained
    sequence_len: int
    effective_batch_size: int
    epochs: float
    warmup_steps: int
    eval_steps: int | None


Where = (
    int | str
)  # a row's place, after the word `line`: its number, and its set if there are several


# Settings that came later: unwritten, they are no part of a request, so that the rows of older runs
# still count.
LATER = (
    "drop_system",
    "thinking_field",
    "files",
    "sheet",
    "strip_html",
    "answered_by",
    "system_turn",
)


def stated(fields: Iterable[tuple[str, object]], later: Sequence[str] = LATER) -> dict[str, Any]:
    """The fields of a request, without settings of `later` that are not written."""
    return {name: value for name, value in fields if value is not None or name not in later}


def where(sources: DataSets, index: int, number: int) -> Where:
    place = place_in_file(sources.sets[index], number)
    if len(sources.sets) == 1:
        return place
    return f"{place} of {set_name(index)}"


def place_in_file(data_set: DataSource, number: int) -> Where:
    """The line of a row, with its sheet if the rows are of several."""
    name = data_set.path or ""
    if number < LINES_OF_SHEET and not name.lower().endswith(OF_WORKBOOKS):
        return number
    from runner.data import spreadsheets  # which reads rows, as this module's users do

    file = data_set.file
    assert file is not None
    try:
        return spreadsheets.line_in_sheet(file, data_set.sheet, number)
    except (Unreadable, OSError):
        return number % LINES_OF_SHEET  # of a workbook in an archive


def set_name(index: int) -> str:
    """A data set's name in messages, and in the recipe."""
    return f"sets[{index}]"


def drawn(row: DataRow, share: float, seed: int) -> bool:
    """Whether a row is in the share of its data set that is taken, by a hash of row and seed."""
    return share >= 1 or hash_64(f"set\n{seed}\n{json.dumps(row, default=str)}") < share * 2**64


def hash_64(text: str) -> int:
    """A hash of a text, below 2^64 and the same on every machine, for draws."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "big"
    )


def is_held_out(text: str, share: float, seed: int) -> bool:
    """Whether a document is one of the share that only measures the validation loss."""
    return hash_64(f"{seed}\n{text}") < share * 2**64


@contextmanager
def from_hub(source: DataSource, stream: bool) -> Iterator[Any]:
    """A dataset on the hub. stream: its rows as they come, else after a download. Raises Stop if it
    cannot be read in the block, Unreachable if the hub does not answer; a stream asks the hub only
    when its first row is read."""
    try:
        from datasets import load_dataset

        options = {
            "split": source.split,
            "revision": source.revision,
            "data_files": source.files and list(source.files),
        }
        yield load_dataset(source.hub, source.subset, streaming=stream, **options)
    except Exception as error:
        raise no_dataset(source, error) from None


def hub_columns(source: DataSource) -> list[str]:
    """The names of a dataset's columns. Raises as `from_hub` does."""
    from datasets.utils.logging import set_verbosity_error

    set_verbosity_error()
    with from_hub(source, stream=True) as dataset:
        return list(dataset.column_names or next(iter(dataset), ()))


def name_on_hub(source: DataSource) -> str:
    """The name that a dataset has on the hub today: an old one leads to it. Raises as `from_hub`
    does."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(str(source.hub), revision=source.revision, timeout=10).id)
    except Exception as error:
        raise no_dataset(source, error) from None


def licence(source: DataSource) -> str:
    """The licence of a dataset from its page on the hub, in words; empty for a file."""
    if source.file:
        return ""
    from huggingface_hub import HfApi

    try:
        facts = HfApi().dataset_info(str(source.hub), revision=source.revision, timeout=10)
    except Exception:  # of the kinds that `hub_failure` lists
        return f"unknown, because the hub cannot be asked; read the page of {source.hub} before you publish a model"
    names = [tag.partition(":")[2] for tag in facts.tags or () if tag.startswith("license:")]
    if not names:
        return f"none on the page of {source.hub}; ask its makers before you publish a model"
    return f"{' '.join(names)}, according to {source.hub}; follow it if you publish a model"


def licences(source: DataSets) -> str:
    """The licences of all data sets, in words; empty if all are files."""
    return "; ".join(filter(None, dict.fromkeys(map(licence, source.sets))))


def no_dataset(source: DataSource, error: Exception) -> Stop:
    stop_type = Stop
    reason = reason_of(error)
    remedy = "Check `subset`, `split` and `files` of the data set."
    failure = hub_failure(error)
    if failure:
        reason = failure.reason
        remedy = failure.remedy
        if failure.temporary:
            stop_type = Unreachable
    return stop_type(
        f"The data set `{source.hub}` cannot be loaded from the hub: {reason}.",
        f"{remedy} Or download it and name it under `data.path`.",
    )


def reason_of(error: Exception) -> str:
    """An error of the library about the content of a data set, in words without a full stop."""
    text = str(error).strip()
    several = re.search(r"config name is missing.*?\[(.*?)\]", text, re.IGNORECASE | re.DOTALL)
    if several:
        return f"it has several subsets, and `subset` must name one: {several[1]}"
    return text.split("\n")[0].rstrip(".")
