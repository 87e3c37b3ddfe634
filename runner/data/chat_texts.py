"""Chats in text files that other programs write, or that people copy out of a window: a header with
a name and a time above each message, or both before it on its line."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import NamedTuple

# Fewer messages may be chance.
LEAST_MESSAGES = 4
# Lines above the first message: the name of the chat, and when it was saved.
MOST_HEAD_LINES = 12
# Of the lines that may be messages of their own, those that are.
LEAST_SHARE = 0.8
# People repeat: each has two messages or more, on average.
LEAST_REPEATED = 2

_DAY = (
    r"(?:\d{1,4}[./-]\d{1,2}(?:[./-]\d{1,4})?|\d{1,2}-[A-Za-z]{3}-\d{2,4}|[A-Za-z]{3,9}\.? \d{1,2},? \d{4}"
    r"|\d{1,2}\.? [A-Za-z]{3,9} \d{4}"
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*|Yesterday|Today|Gestern|Heute|Hier|Ayer|Ieri),?(?: at| um| à)?"
)
_CLOCK = r"(?:(?:오전|오후|上午|下午|午前|午後) ?)?\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?(?: ?[ap]\.?m\.?| ?[AP]M)?"
_WHEN = rf"(?P<when>(?:{_DAY}[ \u202fT]+)?{_CLOCK}Z?)"
# A name with a year is a day, whose clock is behind it.
_YEAR = r"\b(?:19|20)\d\d\b"
_NAME = r"(?P<name>[^\W\d_][^\n\t:;<>|\[\]{}?!]{0,40}?)"
# These patterns are compiled when the first text asks for them: that takes a tenth of the time of a
# check without any.


@cache
def _header_patterns() -> tuple[re.Pattern[str], ...]:
    """Headers that are lines of their own."""
    patterns = (
        rf"\[{_WHEN}\]\s+{_NAME}(?: \(pinned\))?\s*$",
        rf"{_NAME},?\s+\[{_WHEN}\]\s*$",
        rf"{_NAME}(?:,|\t| {{2,}}|\s+[-–|]\s+|\s)\s*{_WHEN}\s*$",
        rf"{_WHEN}\s+(?:From|Von|De|Da|Van)\s+{_NAME}\s+(?:to|an|à|a|aan)\s+[^:\n]+:\s*$",
    )
    return tuple(map(re.compile, patterns))


@cache
def _name_and_time_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Headers of two lines: one with a name, one with a time."""
    name = re.compile(rf"{_NAME}\s*$|(?P<number>\+?\d[\d ()-]{{5,20}}|\S+@\S+\.\w+)\s*$")
    when = re.compile(rf"\[?{_WHEN}\]?(?: \((?:Read|Delivered)[^()\n]*\))?\s*$")
    return name, when


@cache
def _line_patterns() -> tuple[re.Pattern[str], ...]:
    """Headers before the words, on their line."""
    patterns = (
        rf"\[?(?:{_WHEN})?\]?\s*<[ @+%&~]?(?P<name>[^\s<>]{{1,40}})>\s(?P<text>.*)$",
        rf"{_WHEN}\t[ @+%&~]?(?P<name>[^\t]{{1,40}})\t(?P<text>.*)$",
        rf"\[(?P<name>[^\[\]\n]{{1,40}})\]\s\[{_WHEN}\]\s(?P<text>.*)$",
        rf"{_WHEN}\s+(?:From|Von|De|Da|Van)\s+{_NAME}\s+(?:to|an|à|a|aan)\s+[^:\n]+?\s?:\s(?P<text>.*)$",
        r"(?P<when>\d{4}[.년] ?\d{1,2}[.월] ?\d{1,2}[.일] (?:오전|오후) ?\d{1,2}:\d{2}), (?P<name>[^:\n]{1,40}?) : (?P<text>.*)$",
    )
    return tuple(map(re.compile, patterns))


# A line with a day alone, in a chat whose messages have a clock alone.
_DAY_LINE = re.compile(
    r"\W*(?P<day>\d{4})\s?[./年년-]\s?(?P<month>\d{1,2})\s?[./月월-]\s?(?P<number>\d{1,2})(?!\d).{0,30}$"
)
# The same with the year last, as LINE writes it: `Mon, 03/04/2024`.
_DAY_LINE_YEAR_LAST = r"[^\W\d_]{2,10}\.?, ?(?P<day>\d{1,2}[/.]\d{1,2}[/.]\d{4})\s*$"
_NUMBERS = re.compile(r"\d+")
LAST_SHORT_YEAR = 99
SECONDS_OF_A_DAY = 24 * 3600
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# Subtitles: the times of a cue, its number, the mark of a file, and who speaks.
_CUE = re.compile(r"\s*(?:\d{1,2}:)?\d{1,2}:\d{2}[.,]\d{1,3}(?:\s+-->\s+|,)\d")
_CUE_NUMBER = re.compile(r"\s*[\w-]*\d[\w/-]*\s*$")
_VOICE = re.compile(r"<v(?:\.[^ >]*)? (?P<name>[^<>]+)>")
_TAG = re.compile(r"</?[a-z][^<>]*>")
_NOTES = ("WEBVTT", "NOTE", "STYLE", "Kind:", "Language:")
LEAST_CUES = 3
# Of the lines of subtitles with names: some programs write one only where another person begins.
LEAST_NAMED_CUES = 0.15
_RULE = re.compile(r"\s*[=*_-]{10,}\s*$")
_EVENT = re.compile(r"\S+\s(-!-|\*|-->|<--|--)\s")


class SpokenText(NamedTuple):
    """A message: its line, from 1, who wrote it, the words, and when, in seconds since 1970; None
    for an unknown time."""

    line: int
    name: str
    text: str
    seconds: float | None = None


# The messages of a text; none if it is laid out otherwise.
Layout = Callable[[Sequence[str]], list[SpokenText]]


class _Reader:
    """Collects messages from headers, and the lines below each."""

    def __init__(self) -> None:
        self.messages = list[SpokenText]()
        self.head_lines = 0
        self.day = ""
        self.days_passed = 0
        self.last_clock = 0.0

    def begin(self, number: int, name: str, when: str, text: str = "") -> None:
        seconds = None
        if when:
            seconds = seconds_of(when)
            if seconds is None and self.day:
                seconds = seconds_of(f"{self.day} {when}")
            elif seconds is None:
                seconds = self._since_first_day(when)
        self.messages.append(SpokenText(number, name.strip(" ,~@"), text.strip(), seconds))

    def _since_first_day(self, when: str) -> float | None:
        """The seconds of a clock without a day: where it goes back, another day begins."""
        seconds = seconds_of(f"1970-01-01 {when}")
        if seconds is None:
            return None
        if seconds < self.last_clock:
            self.days_passed += 1
        self.last_clock = seconds
        return seconds + self.days_passed * SECONDS_OF_A_DAY

    def add(self, line: str) -> None:
        """Continues the last message."""
        if not self.messages:
            self.head_lines += bool(line.strip())
            return
        last = self.messages[-1]
        self.messages[-1] = last._replace(text=f"{last.text}\n{line.strip()}")

    def finished(self) -> list[SpokenText]:
        """The messages, if they are those of people who talk; else none."""
        messages = [message._replace(text=message.text.strip()) for message in self.messages]
        names = Counter(message.name for message in messages)
        spoken = sum(bool(message.text) for message in messages)
        are_people = 2 <= len(names) <= len(messages) / LEAST_REPEATED
        is_filled = spoken >= LEAST_SHARE * len(messages)
        if len(messages) < LEAST_MESSAGES or not are_people or not is_filled:
            return []
        if self.head_lines > MOST_HEAD_LINES:
            return []
        return messages


def _with_header_lines(lines: Sequence[str]) -> list[SpokenText]:
    """The messages below headers that are lines of their own."""
    for header in _header_patterns():
        reader = _Reader()
        for number, line in enumerate(lines, 1):
            matched = header.match(line.strip())
            if matched and not re.search(_YEAR, matched["name"]):
                reader.begin(number, matched["name"], matched["when"])
            elif not _RULE.match(line):
                reader.add(line)
        messages = reader.finished()
        if messages:
            return messages
    return []


def _with_two_lines(lines: Sequence[str]) -> list[SpokenText]:
    """The messages below headers of two lines: a name and a time, in either order."""
    name_pattern, when_pattern = _name_and_time_patterns()
    for is_name_first in (True, False):
        reader = _Reader()
        is_second_line = False
        for number, (line, next_line) in enumerate(pairwise([*lines, ""]), 1):
            if is_second_line:
                is_second_line = False
                continue
            name_line, when_line = next_line, line
            if is_name_first:
                name_line, when_line = line, next_line
            name = name_pattern.match(name_line.strip())
            when = when_pattern.match(when_line.strip())
            if name and when:
                reader.begin(number, name[0], when["when"])
                is_second_line = True
            else:
                reader.add(line)
        messages = reader.finished()
        if messages:
            return messages
    return []


def _with_names_before(lines: Sequence[str]) -> list[SpokenText]:
    """The messages with a name, and mostly a time, before the words on their line."""
    for pattern in _line_patterns():
        reader = _Reader()
        others = 0
        for number, line in enumerate(lines, 1):
            matched = pattern.match(line.strip())
            day = _day_of_line(line)
            if matched:
                when = matched["when"] or ""
                reader.begin(number, matched["name"], when, matched["text"])
            elif day:
                reader.day = day
            elif line.strip() and not _EVENT.match(line):
                others += bool(reader.messages)
                reader.add(line)
        messages = reader.finished()
        if messages and others <= len(messages):
            return messages
    return []


def _day_of_line(line: str) -> str:
    """The day that a line alone names; empty for another line."""
    year_first = _DAY_LINE.match(line)
    if year_first:
        return f"{year_first['day']}-{year_first['month']}-{year_first['number']}"
    year_last = re.match(_DAY_LINE_YEAR_LAST, line)
    return year_last["day"] if year_last else ""


def _with_days_and_clocks(lines: Sequence[str]) -> list[SpokenText]:
    """The messages below lines with a day, each with a clock and a name of one word before its
    words, as LINE for computers writes them."""
    pattern = re.compile(r"(?P<when>\d{1,2}:\d{2}) (?P<name>[^\s:]{1,40}) (?P<text>.+)$")
    reader = _Reader()
    for number, line in enumerate(lines, 1):
        matched = pattern.match(line.strip())
        day = _day_of_line(line)
        if matched and reader.day:
            reader.begin(number, matched["name"], matched["when"], matched["text"])
        elif day:
            reader.day = day
        else:
            reader.add(line)
    return _with_whole_names(reader.finished())


def _with_whole_names(messages: Sequence[SpokenText]) -> list[SpokenText]:
    """Messages in which a word that begins all words of a person belongs to the name."""
    first_words: dict[str, set[str]] = {}
    counts = Counter(message.name for message in messages)
    for message in messages:
        first_words.setdefault(message.name, set()).add(message.text.partition(" ")[0])
    used = Counter[str]()
    for words_of_person in first_words.values():
        used.update(words_of_person)
    renamed = []
    for message in messages:
        word, _, text = message.text.partition(" ")
        is_only_word = len(first_words[message.name]) == 1 and used[word] == 1
        if is_only_word and counts[message.name] > LEAST_REPEATED and text:
            message = message._replace(name=f"{message.name} {word}", text=text)
        renamed.append(message)
    return renamed


def words_of_subtitles(lines: Sequence[str]) -> list[str]:
    """The lines of subtitles without their times, numbers and marks. Where these have the names of
    people, what one says is a line with the name before it. Empty for another text."""
    turns = turns_of_subtitles(lines)
    if turns:
        return [f"{turn.name}: {turn.text}" for turn in turns]
    return [line for _, line in _lines_of_cues(lines)]


def turns_of_subtitles(lines: Sequence[str]) -> list[SpokenText]:
    """What the people in subtitles say, one after the other, each with all cues until the next one
    speaks; none for subtitles without names, and for another text."""
    turns = list[SpokenText]()
    named_lines = 0
    cue_lines = _lines_of_cues(lines)
    for number, line in cue_lines:
        name = ""
        text = line
        speaker = _speaker_pattern().match(line)
        if speaker:
            name = speaker["name"]
            text = speaker["text"] or ""
            named_lines += 1
        if turns and name in ("", turns[-1].name):
            turns[-1] = turns[-1]._replace(text=f"{turns[-1].text} {text}".strip())
        elif name:
            turns.append(SpokenText(number, name, text))
        else:
            return []  # the first words have no name
    names = Counter(turn.name for turn in turns)
    are_people = 2 <= len(names) <= len(turns) / LEAST_REPEATED
    if not are_people or named_lines < LEAST_NAMED_CUES * len(cue_lines):
        return []
    return turns


def _lines_of_cues(lines: Sequence[str]) -> list[tuple[int, str]]:
    """The words of subtitles with the number of their line, from 1; a voice is a name before its
    words."""
    cues = {number for number, line in enumerate(lines) if _CUE.match(line)}
    if len(cues) < LEAST_CUES:
        return []
    first_cue = min(cues)
    cue_lines = []
    for number, line in enumerate(lines):
        is_number = number + 1 in cues and _CUE_NUMBER.match(line)
        if number < first_cue or number in cues or is_number or line.startswith(_NOTES):
            continue
        spoken = _TAG.sub("", _VOICE.sub(r"\g<name>: ", line)).strip()
        if spoken:
            cue_lines.append((number + 1, spoken))
    return cue_lines


@cache
def _speaker_pattern() -> re.Pattern[str]:
    """A name before what somebody says, up to four words, which may have a mark before it."""
    name = r"[^\W\d_][\w.'’-]*(?: [\w.'’()-]+){0,3}"
    return re.compile(rf"(?:>>\s*|-\s*)?(?P<name>{name}):(?:\s+(?P<text>.*)|$)")


def messages_of(lines: Sequence[str]) -> list[SpokenText]:
    """The messages of a chat in a text; none if it is no such chat."""
    for layout in LAYOUTS:
        messages = layout(lines)
        if messages:
            return messages
    return []


# The surest first.
LAYOUTS: Sequence[Layout] = (
    _with_names_before,
    _with_header_lines,
    _with_two_lines,
    _with_days_and_clocks,
)


def seconds_of(written: str) -> float | None:
    """The seconds of a time with its day, which has four digits for the year, or the year last;
    None for another one. Of two numbers for day and month, the larger than 12 is the day, and else
    the first is the month, as in America, unless dots separate them."""
    *day_words, clock = re.split(r"\s+(?=(?:[^\d\s]{2} ?)?\d{1,2}:)", written.strip(), maxsplit=1)
    day = " ".join(day_words)
    numbers = [int(number) for number in _NUMBERS.findall(day)]
    clock_numbers = [int(number) for number in _NUMBERS.findall(clock)]
    if len(clock_numbers) < 2:
        return None
    year, month, day_number = _year_month_day(day, numbers)
    hour = clock_numbers[0]
    lower_clock = clock.lower()
    if re.search(r"p\.?m|오후|下午|午後", lower_clock) and hour < 12:
        hour += 12
    try:
        moment = datetime(year, month, day_number, hour, clock_numbers[1])
    except ValueError:
        return None
    return since_1970(moment)


def since_1970(moment: datetime) -> float:
    """The seconds from the beginning of 1970, on the same clock."""
    return (moment - datetime(1970, 1, 1)) / timedelta(seconds=1)


def _year_month_day(day: str, numbers: Sequence[int]) -> tuple[int, int, int]:
    """The parts of a day; zeros for an unknown one."""
    word = re.search(r"[A-Za-z]{3,}", day)
    if word and len(numbers) == 2:
        name = word[0][:3].lower()
        if name in _MONTHS:
            return _full_year(numbers[1]), _MONTHS.index(name) + 1, numbers[0]
    if len(numbers) != 3:
        return 0, 0, 0
    first, second, third = numbers
    if first > 31:
        return first, second, third
    if "." in day or first > 12:
        return _full_year(third), second, first
    return _full_year(third), first, second


def _full_year(year: int) -> int:
    if year > LAST_SHORT_YEAR:
        return year
    return 2000 + year
