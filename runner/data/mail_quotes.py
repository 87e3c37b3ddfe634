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
LEAST_QUOTING = 0.2
LEAST_ROWS = 3
# Lines below the first of a quoted mail's head, one of which has another name of it.
LINES_OF_HEAD = 4
# One line or two above a quoted mail name who wrote it.
MOST_SENTENCE_CHARACTERS = 300
_DASHES = r"\s*[-_*=]{2,}\s*(?P<title>[^-_*=]+?)\s*[-_*=]{2,}\s*$"
_RULE = r"\s*[-_=*]{5,}\s*$"
_FIELD = r"[\s>*]*(?P<name>[^\W\d_][^:：*\n]{0,20}?)\s?\*?[:：]\*?\s*\S"


class Mail(NamedTuple):
    """reply: the words of who answers; quoted: the mail that is answered, without its own quotes;
    empty without one."""

    reply: str
    quoted: str


@cache
def _names_in_mails() -> Mapping[str, Any]:
    return packaged.toml(__file__, "mail_quotes.toml")


def mail_of(text: str) -> Mail:
    """The parts of a mail. A mail without a quoted one is a reply as it is."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines):
        if _is_above_head(lines, number):
            return _mail(lines[:number], _without_head(lines[number:]))
        count = _lines_above_quote(lines, number)
        if count and line.strip():
            return _mail_with_quote(lines[:number], lines[number + count :])
    return Mail(text.strip(), "")


def _mail_with_quote(reply_lines: Sequence[str], quote_lines: Sequence[str]) -> Mail:
    """A mail with what is above and below the line that says who wrote the quoted mail. If lines
    below have marks of quoting, the other ones are the reply's too."""
    if not any(map(_is_quoted, quote_lines)):
        return _mail(reply_lines, quote_lines)
    all_reply_lines = list(reply_lines)
    quoted_lines = []
    for line in quote_lines:
        if _is_quoted(line):
            quoted_lines.append(_unquoted(line))
        else:
            all_reply_lines.append(line)
    return _mail(all_reply_lines, quoted_lines)


def _mail(reply_lines: Sequence[str], quoted_lines: Sequence[str]) -> Mail:
    while reply_lines and (re.match(_RULE, reply_lines[-1]) or not reply_lines[-1].strip()):
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
    dashes = re.match(_DASHES, lines[number])
    if dashes and dashes["title"].lower() in _names_in_mails()["original"]:
        return True
    if _name_of(lines[number]) not in _names_in_mails()["from"]:
        return False
    fields = _names_in_mails()["fields"]
    field_count = 0
    for line in lines[number + 1 : number + 1 + LINES_OF_HEAD]:
        if _name_of(line) in fields:
            field_count += 1
    return field_count > 1


def _name_of(line: str) -> str:
    """The name of a line of a mail's head, such as `from`; empty for another line."""
    field = re.match(_FIELD, line)
    if field is None:
        return ""
    return field["name"].strip().lower()


def _without_head(lines: Sequence[str]) -> list[str]:
    """A quoted mail without the lines of its head."""
    place = 0
    is_below_fields = False
    for number, line in enumerate(lines):
        if _name_of(line):
            is_below_fields = True
        elif line.strip(" >\t"):
            is_title = re.match(_DASHES, line) or re.match(_RULE, line)
            if is_below_fields or not is_title:
                break
        elif is_below_fields:
            break
        place = number + 1
    text_lines = []
    for line in lines[place:]:
        if _is_quoted(line):
            text_lines.append(_unquoted(line))
        else:
            text_lines.append(line)
    return text_lines


def _lines_above_quote(lines: Sequence[str], number: int) -> int:
    """How many lines from one on say who wrote the quoted mail: 1 or 2; 0 for none."""
    for count in (1, 2):
        sentence = " ".join(map(str.strip, lines[number : number + count])).lower()
        if len(sentence) > MOST_SENTENCE_CHARACTERS or not re.search(r"\d|@", sentence):
            return 0
        for begin, end, *verbs in _names_in_mails()["sentences"]:
            if count > 1 and not begin:
                continue  # the first of two lines may be the reply's
            has_ends = sentence.startswith(begin) and sentence.endswith(end)
            if has_ends and all(map(sentence.__contains__, verbs)):
                return count
    return 0


def without_reply_mark(subject: str) -> str:
    """A subject without `Re:` and such before it."""
    plain = subject.strip()
    while True:
        mark, colon, remaining = plain.replace("：", ":").partition(":")
        if not colon or mark.strip().lower() not in _names_in_mails()["reply"]:
            return plain
        plain = remaining.strip()


@cache
def _marks() -> re.Pattern[str]:
    """Something that each quoted mail has, so that other texts are not read line by line."""
    marks = list(_names_in_mails()["original"])
    for _, end, *verbs in _names_in_mails()["sentences"]:
        marks += verbs or [re.escape(end)]
    senders = "|".join(map(re.escape, _names_in_mails()["from"]))
    pattern = rf"{'|'.join(marks)}|^[\s>*]*(?:{senders})\s?\*?[:：]"
    return re.compile(pattern, re.IGNORECASE | re.MULTILINE)


def quoting_columns(names: Sequence[str], sample: Sequence[Mapping[str, object]]) -> list[str]:
    """The columns of a table in which many replies quote the mail they answer."""
    columns = []
    for name in names:
        quoting = 0
        filled = 0
        for row in sample:
            text = row.get(name)
            if isinstance(text, str) and text.strip():
                filled += 1
                quoting += _quotes(text)
        if quoting >= LEAST_ROWS and quoting >= LEAST_QUOTING * filled:
            columns.append(name)
    return columns


def _quotes(text: str) -> bool:
    if "\n" not in text or _marks().search(text) is None:
        return False
    return bool(mail_of(text).quoted)


def with_question(
    row: Mapping[str, object], columns: Sequence[str], subject: str | None, asks_already: bool
) -> dict[str, Any]:
    """A row with the replies alone in their columns, and with the mail that the last one quotes,
    below its subject, as the question, unless another column asks. columns: of mails; subject: the
    column of their subjects, if any."""
    changed = {**row}
    mail = Mail("", "")
    for column in columns:
        mail = mail_of(str(row.get(column) or ""))
        changed[column] = mail.reply
    if asks_already:
        return changed
    changed[QUESTION] = ""
    if mail.reply:  # a mail that is only forwarded answers nothing
        changed[QUESTION] = question_of(str(row.get(subject or "") or ""), mail)
    return changed


def question_of(subject: str, mail: Mail) -> str:
    """The quoted mail below its subject; the subject alone without one."""
    return f"{without_reply_mark(subject)}\n\n{mail.quoted}".strip()
