"""How a table is laid out: the encoding of its text, its separator, and which line names the
columns. Files of people have titles above their tables, or no line with names at all."""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import TextIO

from runner.data.columns import (
    ANSWER_NAMES,
    QUESTION_NAMES,
    USUAL_NAMES,
    asks_and_answers,
    holds_no_text,
    is_number_or_date,
)
from runner.tools import packaged
from runner.tools.files import once_per_file

# Enough to see wrong bytes and the columns, and little enough for each check.
SAMPLED_BYTES = 1_000_000
SAMPLED_RECORDS = 30
SAMPLED_CHARACTERS = 300_000
SAMPLED_LINES = 5_000
SEPARATORS = ",;\t|"
MARKS_OF_TABLES = "\t;|"
SURE = 1.8  # of 2, as `_regularity` gives it
BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
WRONG_BYTE = re.compile("[\udc80-\udcff]")  # that is not UTF-8, as Python keeps it
# Bytes of zero in this share of a text are halves of letters in UTF-16.
MOST_ZEROS = 0.2
COMMENT = re.compile(r"#[a-z ]+:\S", re.I)
# Of Anki's notes: what a column holds beside the sides of the cards.
CARD_COLUMN = re.compile(r"#(?P<name>[a-z ]+) column:(?P<number>\d{1,3})\s*$", re.I)
CARD_SIDES = ("question", "answer")
# Words that a card hides, with its number, and a hint to them.
CLOZE = re.compile(r"\{\{c(?P<number>\d+)::(?P<words>.*?)(?:::(?P<hint>[^{}]*?))?\}\}", re.DOTALL)
# Of the cells of a column, those with such words.
LEAST_CLOZE = 0.5
GAP = "____"
# What stands for a sound in a card, and the marks around words that are read aloud.
SOUND_MARK = re.compile(r"[ \t]*\[(?:sound:[^\[\]\n]+|/?anki:(?:play|tts)[^\[\]\n]*)\]")
# The beginning of a comment in Jira's export.
STAMP = re.compile(
    r"\d{1,4}[/. -](?:\w{3}|\d{1,2})[/. -]\d{2,4} \d{1,2}:\d{2}(?: [AP]M)?;[^;\n]{3,80};\s*", re.I
)
# At most this many lines above a table are its titles.
MOST_TITLES = 10
# In a wider table, a line with one filled cell is a title, however long it is; in one of pairs, it
# may be a question without an answer.
MOST_CELLS_OF_PAIRS = 2
# Fewer questions with labels may be chance.
LEAST_LABELLED = 3
# Of the lines of a table, those that continue the answer above them, if its author writes so.
LEAST_CONTINUED = 0.2
# A line of merged titles has at least this many columns below it, whose texts are so much longer
# than their names.
LEAST_MERGED, MUCH_LONGER = 3, 2
# In a table of pairs, a name has fewer words.
WORDS_OF_A_VALUE = 6
# A name is shorter, and a sentence has more words.
MOST_NAME_CHARACTERS = 60
SENTENCE_WORDS = 3
SENTENCE_END = re.compile(r"[.?!…。？！]['\"”»)]*$")
_ENCODINGS = packaged.toml(__file__, "encodings.toml")
LATIN_LETTERS: dict[str, str] = _ENCODINGS["latin"]
OTHER_SCRIPTS: list[str] = _ENCODINGS["scripts"]
EAST_ASIAN_LETTERS: dict[str, str] = _ENCODINGS["east_asian"]
# A text in the right one has at least this share of usual letters, and in a wrong one hardly any.
LEAST_USUAL_SHARE = 0.3
THAI_ENCODING = "cp874"
THAI_LETTERS: str = _ENCODINGS["thai_letters"]
# In another encoding of letters of one byte, fewer are.
LEAST_THAI_SHARE = 0.85
# The escapes with which mails in Japanese begin their letters.
ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
USUAL_LEGACY_ENCODING = "cp1252"  # of Windows in western countries
# How much less orderly than the likeliest one an encoding may be, in charset-normalizer's measure.
AS_ORDERLY = 0.05

Record = Sequence[object]  # the cells of a line; None or an empty text for an empty one


@dataclass(frozen=True)
class Header:
    """The columns of a table. names: one for each column; skipped: records above the first row, of
    titles and names; is_made: whether the file names no columns, so these names count them;
    continued: the column of answers, if a line that has nothing else continues the answer above
    it; cloze: the column whose cells have Anki's marks around hidden words; stamped: columns whose
    cells begin with a date and a person, as Jira writes comments."""

    names: tuple[str, ...]
    skipped: int
    is_made: bool = False
    continued: str = ""
    cloze: str = ""
    stamped: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextLayout:
    """A table of text. separator: between the cells of a line; is_certain: whether most lines are
    cut alike by it; header: None for an empty file."""

    encoding: str
    separator: str
    is_certain: bool
    header: Header | None


def is_filled(cell: object) -> bool:
    return cell is not None and bool(str(cell).strip())


def header_of(records: Iterable[Record]) -> Header | None:
    """The header of a table, from its first records; None without a filled cell."""
    sample = list(islice(records, SAMPLED_RECORDS))
    start = _first_of_table(sample)
    if start is None:
        return None
    first, later = sample[start], sample[start + 1 :]
    if _names_columns(first, later):
        names = _named(first, later)
        return Header(names, start + 1, continued=_continued(names, later))
    names = tuple(f"column {number}" for number in range(1, len(first) + 1))
    return Header(names, start, is_made=True)


def _first_of_table(sample: Sequence[Record]) -> int | None:
    """The number of the record that a table begins with, which may have titles above it; None if
    all are empty. It is the first with names of a question and an answer. Else it is the first that
    is half as wide as the others or has a usual name of a column, if all above it are titles or
    name columns of a smaller table; else the first filled one."""
    counts = [sum(map(is_filled, record)) for record in sample]
    filled = [number for number, count in enumerate(counts) if count]
    if not filled:
        return None
    for number in filled:
        if asks_and_answers(map(str, sample[number])):
            return number  # whatever table is above it
    width = median(counts[number] for number in filled)
    least = max(2.0, width / 2)
    if len(filled) > 2 and _is_above_names(*(sample[number] for number in filled[:2])):
        rows_below = [sample[number] for number in filled[2:]]
        if _names_columns(sample[filled[1]], rows_below) and _are_longer(
            rows_below, sample[filled[1]]
        ):
            return filled[1]
    for number in filled[:MOST_TITLES]:
        # A title has no usual name of a column.
        if counts[number] >= least or _has_usual_name(sample[number]):
            return number
        is_title = counts[number] == 1 and width > MOST_CELLS_OF_PAIRS
        if not is_title and not _names_columns(sample[number], sample[number + 1 :]):
            break
    return filled[0]


def _is_above_names(titles: Record, names: Record) -> bool:
    """Whether a line has titles of several columns each, as merged cells are written: gaps behind
    titles, above a line without gaps."""
    used = [number for number, cell in enumerate(names) if is_filled(cell)]
    if not titles or not is_filled(titles[0]) or len(used) < LEAST_MERGED:
        return False
    gaps = sum(number >= len(titles) or not is_filled(titles[number]) for number in used)
    return used == list(range(len(used))) and gaps >= len(used) / 3


def _are_longer(rows: Sequence[Record], names: Record) -> bool:
    """Whether some column below a line of names has texts that are much longer than its name."""
    for number, name in enumerate(names):
        cells = [str(row[number]) for row in rows if number < len(row) and is_filled(row[number])]
        lengths = sorted(map(len, cells))
        if lengths and lengths[len(lengths) // 2] > MUCH_LONGER * len(str(name)):
            return True
    return False


def _named(first: Record, later: Sequence[Record]) -> tuple[str, ...]:
    """The names of a header, each on one line and once: a number if one is empty, but none behind
    the last filled column."""
    used = 0
    for record in (first, *later):
        for number, cell in enumerate(record, 1):
            if is_filled(cell):
                used = max(used, number)
    names = list[str]()
    for number, cell in enumerate(first[:used], 1):
        name = " ".join(str(cell).split()) if is_filled(cell) else f"column {number}"
        times = 1 + sum(earlier.partition(" (")[0] == name for earlier in names)
        if name in names:
            name = f"{name} ({times})"
        names.append(name)
    return tuple(names)


def labelled_records(records: Sequence[Record]) -> list[Record] | None:
    """The questions with their answers of a table that has the labels of both in its first column,
    each at the line of the question; None for another table."""
    labels = [str(record[0]).strip(" :").lower() if len(record) > 1 else "" for record in records]
    used_labels = {label for label in labels if label}
    if len(used_labels) != len(CARD_SIDES) or not asks_and_answers(used_labels):
        return None
    question_label = next(name for name in QUESTION_NAMES if name in used_labels)
    if labels.count(question_label) < LEAST_LABELLED:
        return None
    pairs: list[Record] = [[] for _ in records]
    question_line = 0
    for number, record in enumerate(records):
        if labels[number] == question_label:
            question_line = number
            pairs[number] = [record[1], ""]
        elif labels[number] and pairs[question_line]:
            pairs[question_line] = [pairs[question_line][0], record[1]]
    return pairs


def _continued(names: Sequence[str], later: Sequence[Record]) -> str:
    """The column of answers, if many lines have nothing else; else empty."""
    if not asks_and_answers(names):
        return ""
    lower_names = [name.lower() for name in names]
    asking = next(name for name in QUESTION_NAMES if name in lower_names)
    answers = [name for name in ANSWER_NAMES if name in lower_names and name != asking]
    if not answers:
        return ""
    place = lower_names.index(answers[0])
    filled_records = [record for record in later if any(map(is_filled, record))]
    continued = 0
    for record in filled_records:
        filled = [number for number, cell in enumerate(record) if is_filled(cell)]
        continued += filled == [place]
    if not continued or continued < LEAST_CONTINUED * len(filled_records):
        return ""
    return names[place]


def _names_columns(first: Record, later: Sequence[Record]) -> bool:
    """Whether a record names columns, and is not a row itself."""
    if _has_usual_name(first):
        return True
    if [str(cell) for cell in first] == [str(number) for number in range(len(first))]:
        return True  # as pandas writes columns without names
    for number, cell in enumerate(first):
        below = [record[number] for record in later if number < len(record)]
        values = [value for value in below if is_filled(value)]
        if values and not holds_no_text(cell) and all(map(holds_no_text, values)):
            return True  # a word above numbers or dates
    cells = [cell for cell in first if is_filled(cell)]
    if len(cells) == MOST_CELLS_OF_PAIRS and _is_long(cells[-1]):
        return False
    return not any(map(_is_value, cells))


def _is_long(cell: object) -> bool:
    """Whether a cell has more words than a name, and is no question, as names in a survey are."""
    text = str(cell)
    return len(text.split()) >= WORDS_OF_A_VALUE and "?" not in text


def _has_usual_name(record: Record) -> bool:
    return any(str(cell).strip().lower() in USUAL_NAMES for cell in record)


def _is_value(cell: object) -> bool:
    """Whether a cell is a number, a date or a sentence, and so no name."""
    if is_number_or_date(cell):
        return True
    text = str(cell).strip()
    is_sentence = len(text.split()) >= SENTENCE_WORDS and SENTENCE_END.search(text)
    return len(text) > MOST_NAME_CHARACTERS or bool(is_sentence)


@once_per_file
def encoding_of(file: Path) -> str:
    """The encoding of a text: UTF-8 if that is possible, even with a few wrong bytes, which
    readers report by line; else UTF-16, or the likeliest older one."""
    with file.open("rb") as content:
        start = content.read(SAMPLED_BYTES)
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    zeros = start.count(0)
    if zeros > MOST_ZEROS * len(start):
        if start[1::2].count(0) >= zeros / 2:
            return "utf-16-le"
        return "utf-16-be"
    if ISO_2022_JP.search(start):
        return "iso2022_jp"
    # The last character may be cut.
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    text = decoder.decode(start)
    wrong_bytes = len(WRONG_BYTE.findall(text))
    if not wrong_bytes or len(BEYOND_ASCII.findall(text)) >= 2 * wrong_bytes:
        return "utf-8-sig"
    return _legacy_encoding(start)


def _legacy_encoding(text: bytes) -> str:
    east_asian = max(EAST_ASIAN_LETTERS, key=lambda encoding: _usual_share(text, encoding))
    if _usual_share(text, east_asian) >= LEAST_USUAL_SHARE:
        return east_asian
    if _is_thai(text):
        return THAI_ENCODING
    from charset_normalizer import from_bytes  # few files need it

    matches = list(from_bytes(text, cp_isolation=[*LATIN_LETTERS, *OTHER_SCRIPTS]))
    if not matches:
        return USUAL_LEGACY_ENCODING
    likely = set[str]()
    for match in matches:
        if match.chaos <= matches[0].chaos + AS_ORDERLY:
            likely.update((match.encoding, *match.could_be_from_charset))
    latin = [encoding for encoding in LATIN_LETTERS if encoding in likely]
    if not latin or matches[0].encoding in OTHER_SCRIPTS:
        return matches[0].encoding
    return max(latin, key=lambda encoding: _usual_letters(text, encoding))


def _usual_letters(text: bytes, encoding: str) -> int:
    """How many characters beyond ASCII are usual letters, if a text is in a Latin encoding."""
    letters = LATIN_LETTERS[encoding]
    return sum(character in letters for character in text.decode(encoding, errors="replace"))


def _is_thai(text: bytes) -> bool:
    """Whether nearly all characters beyond ASCII would be usual letters of Thai, and most letters
    are such."""
    characters = text.decode(THAI_ENCODING, errors="replace")
    foreign = BEYOND_ASCII.findall(characters)
    usual = sum(character in THAI_LETTERS for character in foreign)
    ascii_letters = sum(character.isascii() and character.isalpha() for character in characters)
    return len(foreign) > ascii_letters and usual >= LEAST_THAI_SHARE * len(foreign)


def _usual_share(text: bytes, encoding: str) -> float:
    """The share of the characters beyond ASCII that are usual letters, if a text is in an encoding
    of East Asia. A byte that the encoding does not have counts as a character."""
    letters = EAST_ASIAN_LETTERS[encoding]
    characters = BEYOND_ASCII.findall(text.decode(encoding, errors="replace"))
    if not characters:
        return 0.0
    return sum(character in letters for character in characters) / len(characters)


@contextmanager
def open_table(file: Path, errors: str = "strict") -> Iterator[tuple[TextIO, TextLayout]]:
    """A table of text, open at its beginning, and its layout. errors: as for `open`. Raises
    UnicodeDecodeError if the encoding has no such bytes, if `errors` is strict."""
    csv.field_size_limit(2**31 - 1)
    encoding = encoding_of(file)
    with file.open(encoding=encoding, errors=errors, newline="") as lines:
        start = lines.read(SAMPLED_CHARACTERS).splitlines(keepends=True)
        comments = _comment_lines(start)
        separator, is_certain = _separator(start[comments:])
        header = header_of(csv.reader(start[comments:], delimiter=separator))
        if header and comments:
            header = _header_of_cards(start[:comments], header, separator, start[comments])
        if header and not is_spoken_plainly(start):
            header = _with_marks(header, csv.reader(start, delimiter=separator))
        lines.seek(0)
        yield lines, TextLayout(encoding, separator, is_certain, header)


def is_spoken_plainly(lines: Sequence[str]) -> bool:
    """Whether no cell can have marks of hidden words or stamps."""
    text = "".join(lines)
    return not CLOZE.search(text) and not STAMP.search(text)


def _with_marks(header: Header, records: Iterable[Record]) -> Header:
    """A header with the columns whose cells have marks. records: from the first line on."""
    sample = list(islice(records, header.skipped, header.skipped + SAMPLED_RECORDS))
    cloze = ""
    stamped = []
    for number, name in enumerate(header.names):
        cells = [str(record[number]) for record in sample if number < len(record)]
        filled = [cell for cell in cells if cell.strip()]
        with_clozes = sum(bool(CLOZE.search(cell)) for cell in filled)
        if not cloze and filled and with_clozes >= LEAST_CLOZE * len(filled):
            cloze = name
        if filled and all(map(STAMP.match, filled)):
            stamped.append(name)
    return replace(header, cloze=cloze, stamped=tuple(stamped))


def without_sounds(cells: list[str]) -> list[str]:
    """The cells of a line, without Anki's marks of sounds."""
    if not any("[sound:" in cell or "[anki:" in cell for cell in cells):
        return cells
    return [SOUND_MARK.sub("", cell).strip() for cell in cells]


def first_sound(lines: Iterable[str]) -> str:
    """Anki's first mark of a sound in the beginning of a text; empty without one."""
    for line in islice(lines, SAMPLED_LINES):
        mark = SOUND_MARK.search(line)
        if mark:
            return mark[0].strip()
    return ""


def cards_of_cloze(text: str) -> list[tuple[str, str]]:
    """The cards of a text with hidden words: each number gives a question with gaps, and the words
    in them."""
    cards = []
    numbers = dict.fromkeys(found["number"] for found in CLOZE.finditer(text))
    for number in numbers:
        hidden = [found["words"] for found in CLOZE.finditer(text) if found["number"] == number]
        question = CLOZE.sub(partial(_gap_or_words, number=number), text)
        cards.append((question, ", ".join(hidden)))
    return cards


def _gap_or_words(found: re.Match[str], number: str) -> str:
    if found["number"] != number:
        return found["words"]
    if found["hint"]:
        return f"{GAP} ({found['hint']})"
    return GAP


def _header_of_cards(
    comments: Sequence[str], header: Header, separator: str, first_line: str
) -> Header:
    """The header of a table below comments. Anki's cards have no line of names: the comments say
    which columns hold tags and such, and the others are front and back, in this order."""
    if not any(line.lower().startswith("#separator:") for line in comments):
        return replace(header, skipped=header.skipped + len(comments))
    (first_card,) = csv.reader([first_line], delimiter=separator)
    names = [""] * len(first_card)
    for line in comments:
        stated = CARD_COLUMN.match(line)
        if stated and 0 < int(stated["number"]) <= len(names):
            names[int(stated["number"]) - 1] = stated["name"].lower()
    sides = iter(CARD_SIDES)
    for number, name in enumerate(names):
        if not name:
            names[number] = next(sides, f"column {number + 1}")
    return Header(tuple(names), len(comments))


def _comment_lines(lines: Sequence[str]) -> int:
    """How many lines at the beginning are comments of the program that wrote the table, as Anki's
    `#separator:tab`; 0 if all lines are like that."""
    for number, line in enumerate(lines[:MOST_TITLES]):
        if not COMMENT.match(line):
            return number
    return 0


def first_word_beyond_ascii(lines: Iterable[str]) -> str:
    """The first word with a letter beyond ASCII, which a wrong encoding spoils; empty without
    one."""
    for line in lines:
        for word in re.findall(r"\w+", line):
            if not word.isascii():
                return str(word)
    return ""


def is_table(file: Path) -> bool:
    """Whether a text file has columns, and is no prose: most of its lines are cut alike by a mark
    that prose does not have."""
    with open_table(file, errors="replace") as (_, layout):
        return layout.is_certain and layout.separator in MARKS_OF_TABLES


def _separator(lines: Sequence[str]) -> tuple[str, bool]:
    """The mark that cuts the lines into columns most regularly, and whether that is certain.
    Spreadsheets write semicolons where the comma is for decimals, and answers have commas too."""
    regularities = {mark: _regularity(mark, lines) for mark in SEPARATORS}
    separator = max(SEPARATORS, key=lambda mark: regularities[mark])
    regularity, _, columns = regularities[separator]
    return separator, columns > 1 and regularity >= SURE


def _regularity(separator: str, lines: Sequence[str]) -> tuple[float, bool, int]:
    """How sure it is that a mark separates columns, from 0 to 2; whether it stands without a space
    behind it, as it seldom does in prose; and how many columns it gives."""
    reader = csv.reader(lines, delimiter=separator)
    counts = [len(record) for record in islice(reader, SAMPLED_RECORDS) if record]
    if not counts or max(counts) == 1:
        return 0, False, 1
    (usual, times), *_ = Counter(counts).most_common(1)
    regularity = times / len(counts) if usual > 1 else 0.0
    # A first line with names is more reliable than rows, in which a quote may be open.
    if counts[0] > 1:
        regularity += 1
    text = "".join(lines)
    is_tight = text.count(f"{separator} ") < text.count(separator) / 2
    return regularity, is_tight, usual
