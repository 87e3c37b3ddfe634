"""Mails in files: `.mbox`, as Thunderbird, Google and Apple write a folder of mails, and `.eml`. A
reply that quotes the mail it answers is a row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.data.html_text import text_of_html
from runner.data.mail_quotes import mail_of, question_of
from runner.data.row_files import FilePart, Numbered, RowFile, Unreadable
from runner.tools.files import once_per_file

if TYPE_CHECKING:
    from email.message import EmailMessage

COLUMNS = ("question", "answer")
ENDINGS = (".mbox", ".eml")


class MailBox(RowFile):
    """The replies in a file of mails, each with the number of its mail."""

    def columns(self, file: Path) -> list[str]:
        if not holds_replies(file):
            raise Unreadable("none of its mails quotes the mail that it answers.")
        return list(COLUMNS)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        for number, mail in enumerate(_mails_in(file), 1):
            question, answer = _reply_of(mail)
            if question and answer:
                yield number, {"question": question, "answer": answer}


def holds_replies(file: Path) -> bool:
    """Whether a file has mails that quote the mail they answer."""
    return counts_of(file).replies > 0


class MailCounts(NamedTuple):
    """The mails of a file, and those that quote the mail they answer."""

    mails: int
    replies: int


@once_per_file
def counts_of(file: Path) -> MailCounts:
    mails = 0
    replies = 0
    for mail in _mails_in(file):
        mails += 1
        replies += all(_reply_of(mail))
    return MailCounts(mails, replies)


def _mails_in(file: Path) -> Iterable[EmailMessage]:
    if file.suffix.lower() == ".eml":
        yield _mail_of(file.read_bytes())
        return
    import mailbox  # few checks read mails

    box = mailbox.mbox(file, create=False)
    try:
        for key in box.iterkeys():
            yield _mail_of(box.get_bytes(key))
    finally:
        box.close()


def _mail_of(content: bytes) -> EmailMessage:
    from email import message_from_bytes, policy

    return message_from_bytes(content, policy=policy.default)


def _reply_of(mail: EmailMessage) -> tuple[str, str]:
    """What a reply answers, below its subject, and its own words; empty without a quoted mail, or
    for a mail that is not written as the standard says."""
    try:
        body = mail.get_body(("plain", "html"))
        text = ""
        if body:
            text = body.get_content()
        subject = str(mail.get("Subject", ""))
    except (LookupError, ValueError, AttributeError, IndexError):
        return "", ""  # an unknown encoding, or a broken head
    parts = mail_of(text_of_html(str(text)))
    if not parts.quoted:
        return "", ""
    return question_of(subject, parts), parts.reply
