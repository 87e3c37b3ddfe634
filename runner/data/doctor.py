"""Doctor: what valid rows may still do to training, with their lines and a remedy. It removes
nothing."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

from runner.data import data_sets
from runner.data.report import DataFinding, Examined
from runner.tools import packaged
from runner.tools.text import same

# The most characters that are examined, about 20 MB; of more text, a sample is.
MOST_CHARACTERS = 20_000_000
# An answer of fewer characters has hardly any content, unless it is a label or a number.
SHORT = 10
# In scripts whose characters are syllables or words, as in Chinese, Japanese and Korean.
SHORT_IN_WIDE_SCRIPTS = 4
# Answers with the same first words are reported from this share on; a share is meaningful from FEW
# rows on.
BEGINNING_WORDS = 3
BEGINNING_SHARE = 0.2
FEW = 20
# Answers are names of classes if at most this share of them differ, and each is short. One class
# may have this share of the rows.
MOST_CLASSES_SHARE, LONGEST_CLASS = 0.2, 25
MOST_OF_A_CLASS = 0.6
# If a smaller share of answers has a label, it hardly counts beside the other one.
RARE = 1 / 3
# The language of a shorter text is unknown, and one that is less certain than that is not counted.
SENTENCE = 40
SURE = 0.99


class ExaminedRow(NamedTuple):
    """line: in the file. text: all of the row. answer: what is learned; None if that is the text,
    as in documents. label: whether the answer is good; None without a label. asked: all that is
    before the answer, empty if it may well have several."""

    line: data_sets.Where
    text: str
    answer: str | None
    label: bool | None = None
    asked: str = ""

    @property
    def wanted(self) -> str | None:
        """The answer, unless the model should avoid it."""
        if self.label is False:
            return None
        return self.answer


@dataclass
class DrawingExaminer:
    """Draws rows of a stream by their hashes, with at most MOST_CHARACTERS in memory, and adds
    findings about them to the report at its end."""

    report: Examined
    of: int = 0
    limit: int = 2**64
    characters: int = 0
    held: list[tuple[int, ExaminedRow]] = field(default_factory=list)

    def add(
        self,
        line: data_sets.Where,
        text: str,
        answer: str | None = None,
        label: bool | None = None,
        asked: str = "",
    ) -> None:
        self.of += 1
        place = data_sets.hash_64(text)
        if place >= self.limit:
            return
        self.held.append((place, ExaminedRow(line, text, answer, label, asked)))
        self.characters += len(text)
        while self.characters > MOST_CHARACTERS and len(self.held) > 1:
            self.limit //= 2
            self.held = [(place, row) for place, row in self.held if place < self.limit]
            self.characters = sum(len(row.text) for _, row in self.held)

    def end(self) -> None:
        rows = [row for _, row in self.held]
        report = self.report
        report.looked_at = len(rows)
        report.looked_of = self.of
        quickly = list(quick(rows))
        try:
            report.findings += [*quickly, *languages(rows), *near_duplicates(rows)]
        except ImportError:
            missing = DataFinding.of(
                "not looked for", 0, "near duplicates and languages", packaged.install("data")
            )
            report.findings += [missing, *quickly]


def _named(
    name: str, lines: Sequence[data_sets.Where], message: str, remedy: str
) -> Iterator[DataFinding]:
    if lines:
        yield DataFinding.of(name, len(lines), message, remedy, lines)


def quick(rows: list[ExaminedRow]) -> Iterator[DataFinding]:
    short_answers = []
    short_texts = []
    for row in rows:
        if row.wanted is not None and _is_short(row.wanted):
            short_answers.append(row)
        if row.answer is None and _is_short(row.text.strip()):
            short_texts.append(row)
    yield from _short("short answers", short_answers)
    yield from _short("short texts", short_texts)
    yield from _named(
        "exact duplicates",
        _repeated(rows),
        "are exact copies of an earlier row",
        "Each is trained again. Delete them.",
    )
    answers_of_rows = [row.wanted for row in rows if row.wanted is not None]
    are_classes = _are_classes(answers_of_rows)
    beginnings = dict[str, list[data_sets.Where]]()
    count = len(answers_of_rows)
    for row in rows:
        if row.wanted is not None:
            first_words = row.wanted.split(None, BEGINNING_WORDS)[:BEGINNING_WORDS]
            beginnings.setdefault(" ".join(first_words), []).append(row.line)
    for beginning, lines in beginnings.items():
        if count >= FEW and len(lines) > BEGINNING_SHARE * count:
            if not personal_in(beginning):
                quoted = beginning
            else:
                quoted = "something personal"
            share = len(lines) / count
            if are_classes:
                if share > MOST_OF_A_CLASS:
                    yield from _named("uneven classes", lines, *_of_class(quoted, share))
                continue
            message = (
                f"begin with “{quoted[:60]}”, {share:.0%} of all",
                "The model will start every answer like this. Vary the openings, or remove them.",
            )
            yield from _named("one-sided answers", lines, *message)
    yield from labels([row for row in rows if row.label is not None])
    yield from several_answers(rows)
    yield from personal(rows)


def _is_short(text: str) -> bool:
    if text.isascii() or len(text) >= SHORT:
        return len(text) < SHORT
    wide = sum(map(_is_wide, text))
    # Two scripts in one text add up to their share of each limit.
    return wide / SHORT_IN_WIDE_SCRIPTS + (len(text) - wide) / SHORT < 1


def _is_wide(letter: str) -> bool:
    return unicodedata.east_asian_width(letter) in ("W", "F")


def _short(name: str, rows: Sequence[ExaminedRow]) -> Iterator[DataFinding]:
    limit = f"of fewer than {SHORT} characters"
    if any(map(_is_wide, "".join(row.wanted or row.text for row in rows))):
        limit += f", or {SHORT_IN_WIDE_SCRIPTS} in Chinese, Japanese or Korean"
    remedy = "Write longer ones, or delete them, unless you want a label or a number."
    yield from _named(name, [row.line for row in rows], limit, remedy)


def _are_classes(answers: Sequence[str]) -> bool:
    """Whether answers are names of classes: a few short ones, again and again."""
    different = set(answers)
    are_few = len(different) <= MOST_CLASSES_SHARE * len(answers)
    return are_few and all(len(answer) <= LONGEST_CLASS for answer in different)


def _of_class(name: str, share: float) -> tuple[str, str]:
    return (
        f"are “{name[:60]}”, {share:.0%} of all",
        "Always giving this answer would be right as often. Add rows of the other classes.",
    )


def _repeated(rows: list[ExaminedRow]) -> list[data_sets.Where]:
    """Documents that are exact copies of an earlier one; preparation has removed such rows with an
    answer."""
    digests = set()
    lines = []
    for row in rows:
        if row.answer is None:
            digest = data_sets.hash_64(row.text)
            if digest in digests:
                lines.append(row.line)
            digests.add(digest)
    return lines


def several_answers(rows: Sequence[ExaminedRow]) -> Iterator[DataFinding]:
    """Questions with different answers, of which a model can give one. Capitals and spaces do not
    make a question or an answer different."""
    rows_by_question: dict[str, list[ExaminedRow]] = {}
    for row in rows:
        if row.asked and row.answer is not None:
            rows_by_question.setdefault(same(row.asked), []).append(row)
    lines = []
    for of_question in rows_by_question.values():
        if len({same(row.answer or "") for row in of_question}) > 1:
            lines += [row.line for row in of_question]
    yield from _named(
        "several answers",
        lines,
        "to the same question, in different rows",
        "The model learns a mixture of them. Keep the answer that is right, or say in the question what differs.",
    )


def labels(rows: list[ExaminedRow]) -> Iterator[DataFinding]:
    """A rare label, with the weight that balances it (arXiv 2402.01306, equation 8), and answers
    with both labels."""
    good = sum(row.label is True for row in rows)
    rare = good
    setting = "kto_desirable_weight"
    most = 4 / 3
    if good > len(rows) - good:
        rare = len(rows) - good
        setting = "kto_undesirable_weight"
        most = 3 / 4
    if 0 < rare < RARE * len(rows):
        good_is_rare = rare == good
        lines = [row.line for row in rows if (row.label is True) == good_is_rare]
        balance = (len(rows) - rare) / rare
        low, high = sorted((balance, most * (len(rows) - rare) / rare))
        label = "good" if good_is_rare else "bad"
        part = rare / len(rows)
        message = (
            f"answers are {label}, {part:.0%} of all",
            f"Write `{setting}` from {low:.3g} to {high:.3g}, or add such answers.",
        )
        yield from _named("one-sided labels", lines, *message)
    labels_by_text: dict[str, set[bool | None]] = {}
    for row in rows:
        labels_by_text.setdefault(row.text, set()).add(row.label)
    contradictory = [row.line for row in rows if len(labels_by_text[row.text]) > 1]
    yield from _named(
        "both labels",
        contradictory,
        "have an answer that another row labels the other way",
        "Training raises and lowers them at once. Keep the row that is right.",
    )


def personal(rows: list[ExaminedRow]) -> Iterator[DataFinding]:
    """Personal data, counted and listed by line; the data itself is never printed."""
    message = (
        "probable; the model may repeat them",
        "Remove them, or replace them with invented ones, unless they are public.",
    )
    lines_by_kind: dict[str, list[data_sets.Where]] = {name: [] for name in PERSONAL}
    for row in rows:
        for name in personal_in(row.text):
            lines_by_kind[name].append(row.line)
    for name, lines in lines_by_kind.items():
        yield from _named(name, lines, *message)


# Kinds of personal data, each with its pattern.
PERSONAL = packaged.toml(__file__, "personal.toml")
PATTERNS = {
    name: re.compile("".join(kind["pattern"].splitlines())) for name, kind in PERSONAL.items()
}


def personal_in(text: str) -> list[str]:
    """The kinds of personal data in a text."""
    kinds = []
    for name, facts in PERSONAL.items():
        if facts.get("sign", "") in text and PATTERNS[name].search(text):
            kinds.append(name)
    return kinds


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def languages(rows: list[ExaminedRow]) -> Iterator[DataFinding]:
    """The language of each text that is long enough to tell. Raises ImportError if its library is
    not installed."""
    identifier = _identifier()
    clear_rows = []
    for row in rows:
        if len(row.text) >= SENTENCE:
            # More text takes time, and makes the result no more certain.
            language, sure = identifier.classify(row.text[:1000])
            if sure >= SURE:
                clear_rows.append((row.line, language))
    counts = Counter(language for _, language in clear_rows).most_common()
    if not counts:
        return
    shares = []
    for language, count in counts[:5]:
        shares.append(f"{language} {count / len(clear_rows):.1%}")
    message = f"{', '.join(shares)} of the {len(clear_rows):,} rows whose language is clear"
    remedy = ""
    main_language, _ = counts[0]
    other_lines = [line for line, language in clear_rows if language != main_language]
    if other_lines:
        message += "; others in"
        remedy = "Check the rows in other languages, and delete those that are there by mistake."
    yield DataFinding.of("languages", len(counts), message, remedy, other_lines)


# Words of any language; in scripts without spaces, characters.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+")


def near_duplicates(rows: list[ExaminedRow]) -> Iterator[DataFinding]:
    """Rows that share most phrases with an earlier one, by datatrove's MinHash. Raises ImportError
    without it."""
    import numpy as np
    from datatrove.pipeline.dedup import MinhashDedupSignature

    quiet_datatrove()
    signatures: Any = MinhashDedupSignature(".", minhash())
    signatures.word_tokenizer = SimpleNamespace(word_tokenize=_WORD.findall)
    repeated = set(_repeated(rows))
    lines = []
    buckets = []
    for row in rows:
        if row.line not in repeated:
            shingles = signatures.get_shingles(row.text)
        else:
            shingles = ()
        if len(shingles):
            lines.append(row.line)
            # One number for the eight of a bucket, because they are only compared.
            buckets.append(
                [hash(tuple(bucket_hashes)) for bucket_hashes in signatures.get_signature(shingles)]
            )
    earliest = np.arange(len(lines))
    for bucket in np.array(buckets, np.int64).T:
        _, first_rows, same = np.unique(bucket, return_index=True, return_inverse=True)
        earliest = np.minimum(earliest, first_rows[same])
    has_earlier = earliest < np.arange(len(earliest))
    repeated_lines = [lines[number] for number in np.flatnonzero(has_earlier)]
    yield from _named(
        "near duplicates",
        repeated_lines,
        "share most of their phrases with an earlier row",
        "Each repeats an earlier row. Keep only the best if they add nothing new.",
    )


def minhash() -> Any:
    """datatrove's settings for near duplicates: 14 buckets of 8 hashes over 5-grams find pairs that
    share about 72 % of them or more (its defaults)."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.utils.hashing import HashConfig

    # SHA-1, because datatrove 0.10.1's other choice passes text to xxhash, whose version 4 accepts
    # only bytes.
    return MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))


def quiet_datatrove() -> None:
    """datatrove logs to the terminal; what a person needs is in the report, and each task's log is
    a file."""
    from loguru import logger

    logger.remove()
