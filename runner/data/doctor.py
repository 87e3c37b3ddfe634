"""Doctor: what rows that can be read may still do to training, each finding with lines and a remedy. It takes nothing out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from runner.data import data_sets
from runner.data.data_sets import DataSets, Where
from runner.data.report import DataFinding, Examined
from runner.tools import packaged

if TYPE_CHECKING:
    import numpy as np


# Characters that are looked at, about 20 MB; of more text a sample is.
MOST_CHARACTERS = 20_000_000
# An answer of fewer characters hardly says anything, unless a label or a number is meant.
SHORT = 10
# Of answers that begin with the same words, so many; and a share of so many rows says something.
BEGINNING_WORDS = 3
BEGINNING_SHARE = 0.2
FEW = 20
# A text of fewer characters tells no language, and one that is less sure than that is not counted.
SENTENCE = 40
SURE = 0.99


@dataclass(frozen=True)
class ExaminedRow:
    """line: of the file. text: all that is said in it. answer: what is to be learned to say; None where all of the text is, as
    in documents."""

    line: Where
    text: str
    answer: str | None


def too_long(lengths: np.ndarray, limit: int, lines: list[Where], lost: int, what: str = "") -> Iterator[DataFinding]:
    """What rows of more than `limit` tokens lose: `lost` of them in all. lengths: tokens of each row; lines: of those that are too
    long; what: happens to them, where they are not left out."""
    import numpy as np

    if lines:
        ordered = np.sort(lengths)
        # Of sizes that a sequence length usually has, the first that keeps all but one row of a hundred, or all.
        enough = max(int(ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]), limit + 1)
        needed = -(-enough // 256) * 256
        yield DataFinding.of(
            "too long",
            len(lines),
            f"rows{what}, and with them {lost:,} tokens, {lost / int(lengths.sum()):.1%} of all",
            f"A `sequence_len` of {needed:,} would keep all but {int((lengths > needed).sum()):,}; or shorten them.",
            lines,
        )


class RowCheck(Protocol):
    def look(self, row: ExaminedRow) -> None: ...

    def findings(self) -> Iterator[DataFinding]:
        """What there is to say of all rows that were looked at."""
        ...


def sampled(keys: np.ndarray, characters: np.ndarray) -> np.ndarray:
    """Whether each row is looked at: all, or as many as have MOST_CHARACTERS, drawn by their hashes. keys: as of spooled items."""
    import numpy as np

    share = MOST_CHARACTERS / max(1, int(characters.sum()))
    return np.ones(len(keys), bool) if share >= 1 else keys[:, 0] < np.uint64(share * 2**64)


@dataclass
class Drawn:
    """The rows of a stream that are looked at, whose length nobody knows before: by their hashes as above, and no more of them in
    memory than MOST_CHARACTERS have. Equal texts are drawn together. of: rows that have come by."""

    of: int = 0
    limit: int = 2**64
    characters: int = 0
    held: list[tuple[int, ExaminedRow]] = field(default_factory=list)

    def add(self, line: Where, text: str) -> None:
        self.of += 1
        place = data_sets.hash_64(text)
        if place >= self.limit:
            return
        self.held.append((place, ExaminedRow(line, text, None)))
        self.characters += len(text)
        while self.characters > MOST_CHARACTERS and len(self.held) > 1:
            self.limit //= 2
            self.held = [(place, row) for place, row in self.held if place < self.limit]
            self.characters = sum(len(row.text) for _, row in self.held)

    @property
    def rows(self) -> list[ExaminedRow]:
        return [row for _, row in self.held]


def licences(source: DataSets) -> str:
    """What the data sets' pages on the hub say; empty where all are files."""
    return "; ".join(filter(None, dict.fromkeys(map(data_sets.licence, source.sets))))


def examine(rows: Iterable[ExaminedRow], of: int, report: Examined) -> None:
    """Writes findings into the report. of: rows that the ones looked at are drawn from."""
    checks: list[RowCheck] = [*quick()]
    try:
        checks += [Languages(), NearDuplicates()]
    except ImportError:
        report.findings.append(
            DataFinding.of("not looked for", 0, "near duplicates and languages", packaged.install("data"))
        )
    looked = 0
    for row in rows:
        looked += 1
        for check in checks:
            check.look(row)
    report.looked_at, report.looked_of = looked, of
    report.findings += [finding for check in checks for finding in check.findings()]


@dataclass
class LineCheck:
    """Rows that something is found in, one by one. telling: whether it says something of a few rows too."""

    kind: str
    found_in: Callable[[ExaminedRow], bool]
    said: str
    remedy: str
    telling: bool = False
    lines: list[Where] = field(default_factory=list)

    def look(self, row: ExaminedRow) -> None:
        if self.found_in(row):
            self.lines.append(row.line)

    def findings(self) -> Iterator[DataFinding]:
        if self.lines:
            yield DataFinding.of(self.kind, len(self.lines), self.said, self.remedy, self.lines)


def quick() -> list[LineCheck | Beginnings]:
    """Those that need no library and look at a row in microseconds."""
    few = f"of fewer than {SHORT} characters"
    write_out = "Write them out, or delete them, unless a label or a number is meant."
    seen: set[int] = set()

    def again(row: ExaminedRow) -> bool:
        """Whether a document came before, word for word; of rows with an answer such are taken out before."""
        if row.answer is not None:
            return False
        before = len(seen)
        seen.add(data_sets.hash_64(row.text))
        return len(seen) == before

    def short(text: str | None) -> bool:
        return text is not None and len(text) < SHORT

    def personal(kind: PersonalData) -> LineCheck:
        """Counted and named by line; what it is, is said nowhere."""
        said = "rows likely hold some, which the model may say again"
        remedy = "Take them out, or put made-up ones in their place, unless they are meant for everybody."
        return LineCheck(kind.name, lambda row: kind.found_in(row.text), said, remedy, telling=True)

    return [
        LineCheck("short answers", lambda row: short(row.answer), few, write_out),
        LineCheck("short texts", lambda row: row.answer is None and short(row.text.strip()), few, write_out),
        LineCheck(
            "exact duplicates", again, "are word for word a row before them", "Each is learned again; delete them."
        ),
        Beginnings(),
        *map(personal, PERSONAL),
    ]


class Beginnings:
    """One-sided answers: many begin with the same words."""

    telling = False

    def __init__(self) -> None:
        self.rows = 0
        self.lines: dict[str, list[Where]] = {}

    def look(self, row: ExaminedRow) -> None:
        if row.answer is not None:
            self.rows += 1
            self.lines.setdefault(" ".join(row.answer.split(None, BEGINNING_WORDS)[:BEGINNING_WORDS]), []).append(
                row.line
            )

    def findings(self) -> Iterator[DataFinding]:
        for beginning, lines in self.lines.items():
            if self.rows >= FEW and len(lines) > BEGINNING_SHARE * self.rows:
                shown = beginning if not any(kind.found_in(beginning) for kind in PERSONAL) else "something personal"
                yield DataFinding.of(
                    "one-sided answers",
                    len(lines),
                    f"begin with “{shown[:60]}”, {len(lines) / self.rows:.0%} of all",
                    "The model will begin so whatever it is asked; vary them, or cut that beginning.",
                    lines,
                )


@dataclass(frozen=True)
class PersonalData:
    """A kind of personal data. sign: without that there is none, which is quickly seen."""

    name: str
    pattern: re.Pattern[str]
    sign: str = ""

    def found_in(self, text: str) -> bool:
        return self.sign in text and self.pattern.search(text) is not None


# Likely ones. Addresses are told by what streets are called in English, German, Dutch, French, Spanish, Portuguese and Italian.
_STREET = r"(?:Street|St\.|Avenue|Ave\.?|Road|Rd\.?|Lane|Ln\.?|Drive|Boulevard|Blvd\.?|Court|Square|Terrace)"
PERSONAL = (
    PersonalData(
        "mail addresses", re.compile(r"[\w.+-]+@(?!example\.)[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}\b"), "@"
    ),
    PersonalData(
        "telephone numbers",
        re.compile(
            r"(?<![\w+.,/-])(?:\+\d{1,3}[ ()./-]{0,2}(?:\d[ ()./-]{0,2}){6,12}\d"
            r"|\(0?\d{2,5}\)[ -]?\d{3,4}[ -]?\d{3,6}"
            r"|\d{3}[-. ]\d{3}[-. ]\d{4}"
            r"|0\d{2,5}[ /-]{1,3}\d{2,4}(?:[ -]?\d{2,4}){1,3})(?![\w-])"
        ),
    ),
    PersonalData(
        "postal addresses",
        re.compile(
            rf"\b\d{{1,5}}[A-Za-z]? (?:[A-Z][\w'.-]+ ){{1,3}}{_STREET}(?!\w)"
            r"|\b[A-ZÄÖÜ][\w-]*(?:straße|strasse|str\.|weg|platz|allee|gasse|straat|laan|plein) \d{1,4}\b"
            r"|\b\d{1,4},? (?:bis,? |ter,? )?(?:rue|avenue|boulevard|place|chemin|impasse) (?:de |du |des |la |l'|le )*[A-ZÀ-Ý]\w+"
            r"|\b(?:Calle|Avenida|Paseo|Rua|Via|Viale|Piazza|Corso) (?:de |del |da |do |della |di )*[A-ZÀ-Ý]\w+(?: [A-ZÀ-Ý]\w+)*,? (?:n\.? ?º? ?)?\d{1,4}\b"
        ),
    ),
)


class Languages:
    """The language of each text that is long enough to tell. Raises ImportError where its library is not installed."""

    def __init__(self) -> None:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier

        self.identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        self.rows: list[tuple[Where, str]] = []

    def look(self, row: ExaminedRow) -> None:
        if len(row.text) >= SENTENCE:
            # More text makes it no surer, and takes time.
            language, sure = self.identifier.classify(row.text[:1000])
            if sure >= SURE:
                self.rows.append((row.line, language))

    def findings(self) -> Iterator[DataFinding]:
        counts = Counter(language for _, language in self.rows).most_common()
        if not counts:
            return
        shares = ", ".join(f"{language} {count / len(self.rows):.1%}" for language, count in counts[:5])
        others = [line for line, language in self.rows if language != counts[0][0]]
        yield DataFinding.of(
            "languages",
            len(counts),
            f"{shares} of the {len(self.rows):,} rows that tell" + (", the others in" if others else ""),
            "Look at rows in another language than you mean, and delete them where they got there by mistake."
            if others
            else "",
            others,
        )


_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|\w+")


class _AnyWords:
    """Words of any language, as datatrove asks for them; of scripts without spaces, characters."""

    def word_tokenize(self, text: str) -> list[str]:
        return _WORD.findall(text)


class NearDuplicates:
    """Rows that share most of their phrases with one before them, by datatrove's MinHash as for pretraining. Raises ImportError
    where it is not installed."""

    def __init__(self) -> None:
        from datatrove.pipeline.dedup import MinhashDedupSignature

        quiet_datatrove()
        self.minhash: Any = MinhashDedupSignature(".", minhash())
        self.minhash.word_tokenizer = _AnyWords()
        self.lines: list[Where] = []
        self.buckets: list[np.ndarray] = []
        self.seen: set[int] = set()

    def look(self, row: ExaminedRow) -> None:
        import numpy as np

        if row.answer is None:
            if (digest := data_sets.hash_64(row.text)) in self.seen:
                return  # an exact one, which is said elsewhere
            self.seen.add(digest)
        shingles = self.minhash.get_shingles(row.text)
        if len(shingles):
            self.lines.append(row.line)
            # One number for the eight of a bucket: all that is asked of them is whether they are the same.
            self.buckets.append(
                np.array([hash(tuple(each)) for each in self.minhash.get_signature(shingles)], np.int64)
            )

    def findings(self) -> Iterator[DataFinding]:
        import numpy as np

        if not self.lines:
            return
        like = np.arange(len(self.lines))
        for bucket in np.stack(self.buckets, axis=1):
            _, first, same = np.unique(bucket, return_index=True, return_inverse=True)
            like = np.minimum(like, first[same])
        again = np.flatnonzero(like < np.arange(len(like))).tolist()
        if again:
            yield DataFinding.of(
                "near duplicates",
                len(again),
                "share most of their phrases with a row before them",
                "Each counts again; keep the best of each kind where they say nothing new.",
                [self.lines[number] for number in again],
            )


def minhash() -> Any:
    """How datatrove finds near duplicates, here and in text that is cleaned: 14 buckets of 8 hashes over 5-grams find pairs that
    share about 72 % of them and more (datatrove's own defaults)."""
    from datatrove.pipeline.dedup.minhash import MinhashConfig
    from datatrove.utils.hashing import HashConfig

    # SHA-1, because datatrove 0.10.1's other choice hands text to xxhash, whose version 4 takes bytes alone.
    return MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))


def quiet_datatrove() -> None:
    """datatrove logs to the terminal; what a person needs is in the report, and each task's log is a file."""
    from loguru import logger

    logger.remove()
