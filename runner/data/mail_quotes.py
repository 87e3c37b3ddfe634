"""Replies that quote the mail they answer, as programs for mail write them in many languages: the
words of the reply alone, and the quoted mail, which asks."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from runner.tools import packaged

# The question of a row of a table whose replies quote it.
QUESTION = "question"
# Of the mails of a table, those that quote another one; fewer may be chance.
LEAST_QUOTING, LEAST_ROWS = 0.2, 3
# Lines below the first of a quoted mail's head, one of which has another name of it.
LINES_OF_HEAD = 4
# A line above quoted lines may be broken once.
MOST_WROTE_CHARACTERS = 300
_DASHES = re.compile(r"\s*[-_*=]{2,}\s*(?P<words>[^-_*=]+?)\s*[-_*=]{2,}\s*$")
_RULE = re.compile(r"\s*[-_=*]{5,}\s*$")
_FIELD = re.compile(r"[\s>*]*(?P<name>[^\W\d_][^:：*\n]{0,20}?)\s?\*?[:：]\*?\s*\S")


class Mail(NamedTuple):
    """reply: the words of who answers; quoted: the mail that is answered, without its own quotes;
    empty without one."""

    reply: str
    quoted: str


@cache
def _words() -> Mapping[str, Any]:
    return packaged.toml(__file__, "mail_quotes.toml")


def mail_of(text: str) -> Mail:
    """The parts of a mail. A mail without a quoted one is a reply as it is."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines):
        if _is_above_head(lines, number):
            quoted = _without_head(lines[number:])
            return _mail(lines[:number], quoted)
        count = _lines_of_wrote(lines, number)
        if count and line.strip():
            before, below = lines[:number], lines[number + count :]
            if any(map(_is_quoted, below)):
                own = [line for line in below if not _is_quoted(line)]
                quoted = [line for line in below if _is_quoted(line)]
                return _mail([*before, *own], [_unquoted(line) for line in quoted])
            return _mail(before, below)
    return Mail(text.strip(), "")


def _mail(reply_lines: Sequence[str], quoted_lines: Sequence[str]) -> Mail:
    while reply_lines and (_RULE.match(reply_lines[-1]) or not reply_lines[-1].strip()):
        reply_lines = reply_lines[:-1]
    quoted = mail_of("\n".join(quoted_lines))
    return Mail("\n".join(reply_lines).strip(), quoted.reply)


def _is_quoted(line: str) -> bool:
    return line.lstrip().startswith(">")


def _unquoted(line: str) -> str:
    return line.lstrip().removeprefix(">").removeprefix(" ")


def _is_above_head(lines: Sequence[str], number: int) -> bool:
    """Whether a quoted mail begins at a line: it says so between dashes, or is the first one of
    a mail's head."""
    dashes = _DASHES.match(lines[number])
    if dashes and dashes["words"].lower() in _words()["original"]:
        return True
    if _name_of(lines[number]) not in _words()["from"]:
        return False
    below = lines[number + 1 : number + 1 + LINES_OF_HEAD]
    return sum(_name_of(line) in _words()["below"] for line in below) > 1


def _name_of(line: str) -> str:
    """The name of a line of a mail's head, such as `from`; empty for another line."""
    field = _FIELD.match(line)
    return field["name"].strip().lower() if field else ""


def _without_head(lines: Sequence[str]) -> list[str]:
    """A quoted mail without the lines of its head."""
    place = 0
    is_below_fields = False
    for number, line in enumerate(lines):
        if _name_of(line):
            is_below_fields = True
        elif line.strip(" >\t"):
            is_title = _DASHES.match(line) or _RULE.match(line)
            if is_below_fields or not is_title:
                break
        elif is_below_fields:
            break
        place = number + 1
    return [_unquoted(line) if _is_quoted(line) else line for line in lines[place:]]


def _lines_of_wrote(lines: Sequence[str], number: int) -> int:
    """How many lines from one on say who wrote what is quoted below: 1 or 2; 0 for none."""
    for count in (1, 2):
        words = " ".join(line.strip() for line in lines[number : number + count]).lower()
        if len(words) > MOST_WROTE_CHARACTERS or not re.search(r"\d|@", words):
            return 0
        for begin, end, *inner in _words()["wrote"]:
            if (
                words.startswith(begin)
                and words.endswith(end)
                and all(map(words.__contains__, inner))
            ):
                return count
    return 0


def without_reply_mark(subject: str) -> str:
    """A subject without `Re:` and such before it."""
    plain = subject.strip()
    while True:
        mark, colon, rest = plain.replace("：", ":").partition(":")
        if not colon or mark.strip().lower() not in _words()["reply"]:
            return plain
        plain = rest.strip()


@cache
def _marks() -> re.Pattern[str]:
    """Something that each quoted mail has, so that other texts are not read line by line."""
    words = _words()
    marks = [*words["original"], *(re.escape(end) for _, end, *_ in words["wrote"] if len(end) > 1)]
    inner = [word for _, _, *more in words["wrote"] for word in more]
    names = "|".join(map(re.escape, words["from"]))
    return re.compile(rf"{'|'.join([*marks, *inner])}|^[\s>*]*(?:{names})\s?\*?[:：]", re.I | re.M)


def quoting_columns(names: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of a table in which many replies quote the mail they answer."""
    columns = []
    for name in names:
        quoting = 0
        filled = 0
        for row in sample:
            text = row.get(name)
            if isinstance(text, str) and text.strip():
                filled += 1
                may_quote = "\n" in text and _marks().search(text)
                quoting += bool(may_quote) and bool(mail_of(text).quoted)
        if quoting >= LEAST_ROWS and quoting >= LEAST_QUOTING * filled:
            columns.append(name)
    return columns


def with_question(
    row: Mapping[str, Any], columns: Sequence[str], subject: str | None, asks_already: bool
) -> dict[str, Any]:
    """A row with the replies alone in their columns, and with the mail that the last one quotes,
    below its subject, as the question, unless another column asks. columns: of mails; subject: the
    column of theirs, if any."""
    changed = {**row}
    mail = Mail("", "")
    for column in columns:
        mail = mail_of(str(row.get(column) or ""))
        changed[column] = mail.reply
    if asks_already:
        return changed
    title = without_reply_mark(str(row.get(subject) or "")) if subject else ""
    question = "\n\n".join(part for part in (title, mail.quoted) if part)
    # A mail that is only forwarded answers nothing.
    return {**changed, QUESTION: question if mail.reply else ""}
