"""Cleaning of text: datatrove's filters, then exact and near duplicates (MinHash); kept documents
stay as they are. Each step leaves its work on disk, so that a stopped run continues with the
missing tasks. Words are the same as datatrove's tokenizers give, in a third of the time: datatrove
0.10.1 opens a memory zone of spaCy for each document, in which spaCy's tokenizer (3.8) remembers no
word, and computes attributes that are not used."""

import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

from datatrove.data import Document
from datatrove.pipeline import dedup
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.filters import GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.readers import HuggingFaceDatasetReader, JsonlReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.word_tokenizers import (
    SpaCyTokenizer,
    WordTokenizer,
    load_word_tokenizer,
    strip_strings,
)

from runner.data import data_sets, doctor, rows
from runner.data.report import lines_of, require_few
from runner.data.row_files import Bad, DataRow, FilePart
from runner.parts.pretrain import executors
from runner.parts.pretrain.architecture import LINES, Cleaning, Corpus, CorpusSet
from runner.tools import packaged
from runner.tools.files import Record, content_hash, write_text
from runner.tools.problem import Stop
from runner.tools.process import helping_pod

# A part of a file: the values of a FilePart, or the first row, from 0, and the one after the last,
# None for the end.
Part = Sequence[Any]

TABLE = packaged.toml(__file__, "cleaning.toml")
BESIDE_COUNTS, REASONS = TABLE["beside_counts"], TABLE["reasons"]


@dataclass(frozen=True)
class CleaningReport(Record):
    """Counts of documents. dropped: by reason. key: hash of everything that the result depends on.
    workers: the number of tasks. missed: by how many documents the text falls short of
    `data.limit`."""

    FILE = "cleaning.json"
    key: str = ""
    source: str = ""
    documents_in: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    workers: int = 1
    missed: int = 0
    seconds: float = 0.0

    def lines(self) -> list[str]:
        return lines_of("cleaned", self, template=LINES)


def clean(corpus: Corpus, folder: Path, where: Cleaning) -> CleaningReport:
    """Writes the kept documents to `folder/text/` and the dropped ones to `folder/dropped/`, in
    their order, the same bytes for any number of tasks. Of several pods, the others only do their
    part, for which the first one waits. Raises Stop if nothing is left, or the executor's cluster
    fails."""
    key = content_hash([asdict(corpus, dict_factory=data_sets.stated), corpus.content], 32)
    known = CleaningReport.read(folder)
    if known.key == key and (folder / "text").is_dir():
        return known
    on = executors.chosen(where, None if any(one.hub for one in corpus.sets) else corpus.size or 0)
    # Intermediate results of another number of tasks cannot be reused.
    work = folder / ".work" / f"{on.tasks}-{key[:12]}"
    started = time.monotonic()
    if helping_pod():
        _worked(corpus, work, on)
        return known
    for stale in (folder / ".work").glob("*"):
        if stale != work:
            shutil.rmtree(stale)
    last = _worked(corpus, work, on)
    read, kept, dropped = counts_of(work)
    whole = sum(one.limit or 0 for one in corpus.sets)
    report = CleaningReport(
        key=key,
        source=corpus.name,
        documents_in=read,
        kept=kept,
        dropped=dict(dropped),
        workers=on.tasks,
        missed=max(0, whole - read) if any(one.hub for one in corpus.sets) else 0,
        seconds=round(time.monotonic() - started, 1),
    )
    if not report.kept:
        lines = "\n".join(report.lines())
        raise Stop(
            f"Cleaning left no text at all.\n{lines}", "Check `data` in the recipe, and the text."
        )
    lost = sum(report.dropped.get(REASONS[reason], 0) for reason in ("bad_line", "no_text"))
    require_few(lost, report.documents_in, corpus.max_lost_share, report.lines())
    # The record is invalid as soon as its text changes.
    (folder / report.FILE).unlink(missing_ok=True)
    for name in ("text", "dropped"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _joined(last, folder / "text" / "documents.jsonl")
    for made in sorted((work / "dropped").glob("*")):
        _joined(made, folder / "dropped" / f"{made.name}.jsonl")
    report.write(folder)
    shutil.rmtree(folder / ".work")
    return report


def parts_of(one: CorpusSet, count: int) -> list[Part]:
    """As many parts of a file. One that cannot be cut is parsed once to count its rows."""
    if one.file and (cut := rows.parts_of_file(one.file, one.limit, count)):
        return [tuple(part) for part in cut]
    if count == 1:
        return [(0, one.limit)]
    whole = sum(1 for _ in islice(rows.read(one), one.limit))
    return [(whole * part // count, whole * (part + 1) // count) for part in range(count)]


def _worked(corpus: Corpus, work: Path, on: executors.Executor) -> Path:
    """Runs datatrove's steps; returns the folder of the kept documents, a file for each task that
    has some."""
    doctor.quiet_datatrove()
    words = words_of(corpus.language)
    dropped = work / "dropped"
    # The list of common words is English; in other languages their absence means nothing.
    english: tuple[str, ...] = ()
    if corpus.language != "en":
        english = ("min_stop_words",)
    running = GopherQualityFilter(
        min_doc_words=corpus.min_words or None,
        max_doc_words=corpus.max_words,
        language=words,
        exclusion_writer=_writer(dropped / "filters"),
        **dict.fromkeys(english if corpus.drop_low_quality else BESIDE_COUNTS),
    )
    repeats = GopherRepetitionFilter(
        language=words, exclusion_writer=_writer(dropped / "repetition")
    )
    readers = [_reader(corpus, index, work, on) for index in range(len(corpus.sets))]
    last = _run(
        "1-filtered", [*readers, running, *([repeats] if corpus.drop_repetitive else [])], work, on
    )
    if corpus.deduplicate != "off":
        marks = str(work / "exact-marks")
        found = str(work / "exact-found")
        _run("2-exact-marks", [Again(last), Marks(marks, EXACT)], work, on, writes=False)
        _run(
            "3-exact-found",
            [dedup.ExactFindDedups(marks, found, EXACT)],
            work,
            on,
            writes=False,
            tasks=1,
        )
        unlike = dedup.ExactDedupFilter(found, EXACT, exclusion_writer=_writer(dropped / "exact"))
        last = _run("4-exact", [Again(last), unlike], work, on)
    if corpus.deduplicate == "near":
        marks, pairs, groups = (str(work / f"near-{name}") for name in ("marks", "pairs", "groups"))
        signature = dedup.MinhashDedupSignature(marks, NEAR, language=words)
        _run("5-near-marks", [Again(last), signature], work, on, writes=False)
        buckets = dedup.MinhashDedupBuckets(marks, pairs, config=NEAR)
        _run("6-near-pairs", [buckets], work, on, writes=False, tasks=NEAR.num_buckets)
        _run(
            "7-near-groups",
            [dedup.MinhashDedupCluster(pairs, groups, config=NEAR)],
            work,
            on,
            writes=False,
            tasks=1,
        )
        alone = dedup.MinhashDedupFilter(groups, exclusion_writer=_writer(dropped / "near"))
        last = _run("8-near", [Again(last), alone], work, on)
    return last


def _joined(parts: Path, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as whole:
        for part in sorted(parts.glob("*.jsonl")):
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, whole, 2**20)


def documents(folder: Path) -> Iterator[str]:
    for file in sorted((folder / "text").glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


LOGS = "logs"


class CorpusRows(PipelineStep):
    """Documents of a data set in a local file; other lines are counted and listed. index: of the
    data set; parts: one for each task."""

    name = "Rows"
    type = "reader"

    def __init__(self, corpus: Corpus, index: int, dropped: Path, parts: Sequence[Part]) -> None:
        super().__init__()
        self.corpus = corpus
        self.index = index
        self.dropped = str(dropped)
        self.parts = parts
        self.source = corpus.sets[index]

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        if data:
            yield from data
        bad = []
        part = self.parts[rank]
        if len(part) == 3:
            cut = FilePart(*part)
        else:
            cut = None
        for number, row in islice(rows.read(self.source, cut), *([None] if cut else part)):
            self.stat_update("documents_in")
            if isinstance(row, Bad):
                text = None
            else:
                text = row.get(self.source.column)
            where = data_sets.where(self.corpus, self.index, number)
            if isinstance(row, Bad):
                self.stat_update("dropped_bad_line")
                bad.append({"line": where, "reason": row.reason})
            elif not isinstance(text, str) or not text.strip():
                self.stat_update("dropped_no_text")
                bad.append({"line": where, "reason": f"no text in column {self.source.column}"})
            elif not data_sets.drawn(row, self.source.share, self.corpus.seed):
                self.stat_update("dropped_not_taken")
            else:
                yield Document(text=text, id=str(where))
        if bad:
            lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in bad)
            write_text(Path(self.dropped) / f"{rank:05d}.jsonl", lines)


def whole_text(document: Document) -> str:
    """The text by which exact duplicates are found; datatrove reads its kind from this line."""
    return str(document.text)


NEAR = doctor.minhash()
EXACT = dedup.ExactDedupConfig(content_getter=whole_text, hash_config=NEAR.hash_config)


def _reader(corpus: Corpus, index: int, work: Path, on: executors.Executor) -> PipelineStep:
    """The step that reads a data set, after the documents of those before it."""
    one = corpus.sets[index]
    tasks = on.tasks
    if one.file:
        parts = executors.agreed(work / f"parts-{index}.json", lambda: parts_of(one, tasks))
        return CorpusRows(corpus, index, work / "dropped" / f"rows-{index}", parts)
    options = {"name": one.subset, "split": one.split, "revision": one.revision}
    # Asked even without a limit: a dataset that cannot be read is reported before tasks begin.
    with data_sets.from_hub(one, stream=True) as dataset:
        limit = -1
        files = dataset.n_shards
    if one.limit is not None:
        # datatrove 0.10.1 divides whole files among the tasks if there are several.
        limit = -(-one.limit // (min(tasks, files) if files > 1 else tasks))
    reader = HubRows(
        one.hub, dataset_options=options, streaming=True, text_key=one.column, limit=limit
    )
    reader.source = one
    reader.seed = corpus.seed
    return reader


class HubRows(HuggingFaceDatasetReader):
    """Documents of a dataset on the hub, as `source` describes it. seed: of the draw of its share.
    Raises Stop if the dataset cannot be read."""

    source: CorpusSet
    seed: int

    def run(self, *given: object, **named: object) -> Iterator[Document]:
        try:
            yield from super().run(*given, **named)
        except Stop:
            raise
        except Exception as error:
            raise data_sets.no_dataset(self.source, error) from None

    def _get_dataset_shard(self, dst: Any, rank: int, world_size: int) -> Any:
        """Gives each task neighbouring files, so that documents keep their order."""
        if getattr(dst, "n_shards", 1) < max(2, world_size):
            return super()._get_dataset_shard(dst, rank, world_size)
        return dst.shard(num_shards=world_size, index=rank, contiguous=True)

    def get_document_from_dict(self, data: DataRow, *place: object) -> Document | None:
        if not data_sets.drawn(data, self.source.share, self.seed):
            self.stat_update("dropped_not_taken")
            return None
        document: Document | None = super().get_document_from_dict(data, *place)
        return document


class Marks(dedup.ExactDedupSignature):
    """Keeps the first of equal documents. datatrove 0.10.1 compares places in each task's own file,
    so that another number of tasks would keep other ones."""

    rank = 0

    def run(self, data: object, rank: int = 0, world_size: int = 1) -> None:
        self.rank = rank
        super().run(data, rank, world_size)

    def get_hashes(self, doc: Document, doc_idx: int) -> list[Any]:
        # datatrove's priorities are two bytes, and begin at 1.
        return [
            (digest, 65535 - self.rank, place)
            for digest, _, place in super().get_hashes(doc, doc_idx)
        ]


class Again(JsonlReader):
    """The documents that this task kept in the step before, even if other tasks kept none."""

    def __init__(self, folder: Path) -> None:
        # The file of a document depends on the number of tasks.
        super().__init__(str(folder), add_file_path=False)

    def run(self, data: object = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        if self.data_folder.isfile(name := f"{rank:05d}.jsonl"):
            yield from self.read_files_shard([name])


def _writer(folder: Path) -> JsonlWriter:
    return JsonlWriter(str(folder), compression=None)


def _run(
    name: str,
    pipeline: list[PipelineStep],
    work: Path,
    on: executors.Executor,
    writes: bool = True,
    tasks: int = 0,
) -> Path:
    """Runs the unfinished tasks of one step, of all by default; returns the folder of its
    documents."""
    out = work / name
    on.run(
        name,
        [*pipeline, *([_writer(out)] if writes else [])],
        tasks or on.tasks,
        work / LOGS / name,
    )
    return out


def counts_of(work: Path) -> tuple[int, int, Counter[str]]:
    """The documents that were read, those that are kept, and dropped ones by reason, from each
    task's statistics."""
    read = 0
    kept = 0
    dropped = Counter[str]()
    last = max(path.name for path in (work / LOGS).iterdir())
    for file in sorted((work / LOGS).glob("*/stats/*.json")):
        folder = file.parents[1].name
        for step in json.loads(file.read_text(encoding="utf-8")):
            for name, value in step["stats"].items():
                count = round(float(value["total"] if isinstance(value, Mapping) else value))
                if name.startswith("dropped_"):
                    reason = name.removeprefix("dropped_")
                else:
                    reason = ""
                if name == "dropped" and folder in ("4-exact", "8-near"):
                    reason = folder.split("-")[1]
                if reason:
                    if "gram" in reason:
                        words = "phrases repeat"
                    else:
                        words = reason.replace("_", " ")
                    dropped[REASONS.get(reason, words)] += count
                elif name == "documents_in" or (name == "documents" and "Hugging" in step["name"]):
                    read += count
                elif (
                    name == "total"
                    and folder == last
                    and re.search("writer.*jsonl", step["name"], re.IGNORECASE)
                ):
                    kept += count
    return read, kept, dropped


# The most distinct words that a tokenizer remembers before it starts again: about 100 MB in each
# process.
MOST_WORDS = 500_000


class QuickWords(SpaCyTokenizer):
    """A tokenizer of datatrove with spaCy's plain rules; one for each language in a process, also
    where it is copied. asked: the language, of which several have the same rules."""

    _tokenizer: Any
    asked: str

    def __reduce__(self) -> tuple[Any, ...]:
        return words_of, (self.asked,)

    def word_tokenize(self, text: str) -> list[str]:
        if self._tokenizer is None or len(self._tokenizer.vocab) > MOST_WORDS:
            self._tokenizer = None  # so that `tokenizer` is a new one
            new: Any = self.tokenizer
            new.vocab.lex_attr_getters = {}
            # Chunks between two blanks whose words are remembered; spaCy's own number is 10,000.
            new.tokenizer.max_cache_size = 200_000
        # The name IS_ALPHA breaks spaCy's tokenizer; datatrove removes it too
        # (`SpaCyTokenizer._do_tokenize`).
        try:
            tokens = self._tokenizer.tokenizer(text)
        except Exception:
            tokens = self._tokenizer.tokenizer(text.replace("IS_ALPHA", ""))
        return cast(list[str], strip_strings([token.text for token in tokens]))


@cache
def words_of(language: str) -> WordTokenizer:
    """datatrove's tokenizer of a language, or a quick one instead of spaCy's plain ones."""
    from spacy.tokenizer import Tokenizer

    found = load_word_tokenizer(language)
    if type(found) is SpaCyTokenizer and type(found.tokenizer.tokenizer) is Tokenizer:
        found = QuickWords(found.language, found.config)
        found.asked = language
    return found
