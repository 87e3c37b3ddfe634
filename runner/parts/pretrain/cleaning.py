"""Cleaning text: datatrove's filters, then exact and near duplicates out; kept documents stay as they are.

Each step is datatrove's own and leaves its work on disk, so that a stopped run goes on with the parts that are missing.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runner.data.doctor import quiet_datatrove
from runner.data.report import require_few
from runner.parts.pretrain import cleaning_steps as steps
from runner.parts.pretrain import executors
from runner.parts.pretrain.stages import Cleaning, Corpus
from runner.tools.files import read_json, write_json
from runner.tools.names import content_hash
from runner.tools.problem import Stop

REPORT_FILE = "cleaning.json"

# What datatrove calls its reasons, in words; the numbers are those of Gopher (arXiv 2112.11446).
REASONS = {
    "bad_line": "not a row, see `dropped/`",
    "no_text": "the text is empty or its column is missing",
    "not_taken": "beyond the `share` of their data set, drawn by the seed",
    "gopher_short_doc": "too few words",
    "gopher_long_doc": "too many words",
    "gopher_below_avg_threshold": "words too short on average",
    "gopher_above_avg_threshold": "words too long on average",
    "gopher_too_many_hashes": "too many # signs",
    "gopher_too_many_ellipsis": "too many ellipses",
    "gopher_too_many_bullets": "almost only bullet points",
    "gopher_too_many_end_ellipsis": "lines that break off",
    "gopher_below_alpha_threshold": "too few words with letters",
    "gopher_enough_stop_words": "no running text: common words are missing",
    "dup_line_frac": "lines repeat",
    "dup_para_frac": "paragraphs repeat",
    "dup_line_char_frac": "lines repeat",
    "dup_para_char_frac": "paragraphs repeat",
    "exact": "exact duplicate of a kept document",
    "near": "near duplicate of a kept document",
}


@dataclass
class CleaningReport:
    """Counts of documents. dropped: by reason, in words. key: hash of everything that the result depends on.
    workers: parts that were worked on by themselves. missed: how many documents fewer than `data.limit` a dataset gave."""

    key: str = ""
    source: str = ""
    documents_in: int = 0
    kept: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    workers: int = 1
    missed: int = 0
    seconds: float = 0.0

    def lines(self) -> Iterator[str]:
        yield f"documents in         {self.documents_in:>11,}   from {self.source}"
        if self.missed:
            yield f"  fewer than limit   {self.missed:>11,}   files share `data.limit`, and some hold less; raise it for more"
        for reason, count in sorted(self.dropped.items(), key=lambda item: -item[1]):
            yield f"  dropped            {count:>11,}   {reason}"
        yield f"documents kept       {self.kept:>11,}   byte for byte as they came"


def clean(corpus: Corpus, folder: Path, where: Cleaning) -> CleaningReport:
    """Writes the kept documents to `folder/text/` (a `text` each) and the dropped ones to `folder/dropped/`, both in their order,
    the same bytes however many tasks have shared them.

    Raises Stop where nothing is left, and where the executor's cluster fails.
    """
    key = _key(corpus)
    if known := _known(folder, key):
        return known
    on = executors.chosen(where, _size(corpus))
    work = _work(folder, key, on)
    for stale in (folder / ".work").glob("*"):
        if stale != work:
            shutil.rmtree(stale)
    import time

    started = time.monotonic()
    last = _worked(corpus, work, on)
    report = _report(corpus, work, on.tasks)
    report.key, report.seconds = key, round(time.monotonic() - started, 1)
    if not report.kept:
        lines = "\n".join(report.lines())
        raise Stop(f"Cleaning has left no text at all.\n{lines}", "Look at `data` in the recipe, and at the text.")
    lost = sum(report.dropped.get(REASONS[reason], 0) for reason in ("bad_line", "no_text"))
    require_few(lost, report.documents_in, corpus.max_lost_share, report.lines())
    # What is on record holds no more once its text is touched.
    (folder / REPORT_FILE).unlink(missing_ok=True)
    for name in ("text", "dropped"):
        shutil.rmtree(folder / name, ignore_errors=True)
    _joined(last, folder / "text" / "documents.jsonl")
    for made in sorted((work / "dropped").glob("*")):
        _joined(made, folder / "dropped" / f"{made.name}.jsonl")
    write_json(folder / REPORT_FILE, asdict(report))
    shutil.rmtree(folder / ".work")
    return report


def help_clean(corpus: Corpus, folder: Path, where: Cleaning) -> None:
    """Does the part of this pod, one of several; the first one, in `clean`, waits for it, and does the rest."""
    if not _known(folder, key := _key(corpus)):
        on = executors.chosen(where, _size(corpus))
        _worked(corpus, _work(folder, key, on), on)


def _worked(corpus: Corpus, work: Path, on: executors.Executor) -> Path:
    """All of datatrove's steps; the folder of the kept documents, a file for each task that has some."""
    quiet_datatrove()
    last = steps.filtered(corpus, work, on)
    if corpus.deduplicate != "off":
        last = steps.without_exact(last, work, on)
    if corpus.deduplicate == "near":
        last = steps.without_near(last, work, on, corpus.language)
    return last


def _key(corpus: Corpus) -> str:
    return content_hash([asdict(corpus), corpus.content], 32)


def _known(folder: Path, key: str) -> CleaningReport | None:
    """What was said of the text that lies there, if it is that of this key."""
    known = read_json(folder / REPORT_FILE)
    fits = isinstance(known, dict) and known.get("key") == key and (folder / "text").is_dir()
    return CleaningReport(**known) if fits else None


def _work(folder: Path, key: str, on: executors.Executor) -> Path:
    """Tasks that are done count only for a run that cuts the documents into as many parts."""
    return folder / ".work" / f"{on.tasks}-{key[:12]}"


def _joined(parts: Path, file: Path) -> None:
    """The files of all tasks as one, in their order."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as whole:
        for part in sorted(parts.glob("*.jsonl")):
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, whole, 2**20)


def documents(folder: Path) -> Iterator[str]:
    """The kept documents' texts, in order."""
    for file in sorted((folder / "text").glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def _size(corpus: Corpus) -> int | None:
    """Bytes of the file, None for a stream from the hub."""
    return None if any(one.hub for one in corpus.sets) else corpus.size or 0


def _report(corpus: Corpus, work: Path, tasks: int) -> CleaningReport:
    counts = steps.counts(work)
    dropped: Counter[str] = Counter()
    for reason, count in counts.items():
        if reason not in ("documents_in", "kept"):
            words = "phrases repeat" if "gram" in reason else reason.replace("_", " ")
            dropped[REASONS.get(reason, words)] += count
    read = counts.get("documents_in", 0)
    return CleaningReport(
        source=corpus.name,
        documents_in=read,
        kept=counts.get("kept", 0),
        dropped=dict(dropped),
        workers=tasks,
        missed=max(0, sum(one.limit or 0 for one in corpus.sets) - read) if any(one.hub for one in corpus.sets) else 0,
    )
