"""Chats between people, as their apps export them: WhatsApp, Telegram, Slack, Discord, any log with
`Name: text` on each line, and tables with a column of senders and one of messages. A chat is cut
into conversations at its pauses; each is a row."""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from runner.data import chat_texts, text_pairs
from runner.data.archives import is_packed, unpacked
from runner.data.chat_exports import CHAT_COLUMN
from runner.data.columns import SUBJECT_NAMES, asks_and_answers
from runner.data.reshaping import Reshaping
from runner.data.row_files import (
    FIRST_BYTES,
    KEPT,
    NOT_UTF8,
    OF_TABLES,
    OF_WORKBOOKS,
    Bad,
    FilePart,
    JsonLines,
    JsonList,
    Numbered,
    RowFile,
    Table,
    Unreadable,
    ending_of,
    is_encodable,
    is_no_text,
    value_of_json,
)
from runner.data.table_layout import encoding_of, is_table, open_table
from runner.tools import packaged
from runner.tools.files import is_hidden, is_text_file, once_per_file, text_files
from runner.tools.problem import Stop, plural

# A longer pause begins a new conversation. An answer often comes the next morning, so a night is no
# end; after a day without a message, people begin another subject.
PAUSE_SECONDS = 12 * 3600
# A longer conversation is cut at its longest pauses: about 1,000 tokens, which fit into the usual
# `sequence_len`.
MOST_CHARACTERS = 4000
# Of a log without times and gaps, the messages that are taken together; and of the only
# conversation of a chat with times, the most between two cuts.
MESSAGES_OF_A_PART = 10
MOST_MESSAGES_OF_A_PART = 20
CUT_WITHOUT_TIMES = f"Its messages have no times, so nothing shows where a conversation ends. Each {MESSAGES_OF_A_PART} of them are read as one."
CUT_WHERE_ONE_ASKS = f"It is cut where `{{name}}` speaks, into parts of about {MESSAGES_OF_A_PART} turns. What a person says until the other one speaks is one turn."
# Of the texts of a folder of chats, those that are chats; these many are looked at first.
LEAST_CHATS_SHARE = 0.8
SAMPLED_CHATS = 20
PEOPLE_OF_A_TALK = 2
# A cut leaves at least this share of the messages on both sides, so that no side is a scrap.
LEAST_SIDE = 0.25
# The lines of a text file by which it is recognised, and the share of them that must begin with a
# name, if they have no times.
FIRST_LINES, NAMED_SHARE = 200, 0.8
HEAD_CHARACTERS = 100_000
# Lines with names in the head of a transcript.
MOST_HEAD_NAMES = 10
NO_ROWS = "it is plain text, without questions and answers, a chat or a table."
NO_TEXT_HINT = "Open it with the program that wrote it, and save it as text (.txt) or as CSV."
TEXTS_HINT = "Questions and answers are lines such as `Q: …` and `A: …`, and a chat has `Name: text` on each line. Plain text needs `form: text`."

_WORDS = packaged.toml(__file__, "chat_logs.toml")
_MEDIA = frozenset(_WORDS["media"])
_NOTICES = frozenset(_WORDS["notices"])
ANSWERERS = frozenset(_WORDS["answerers"])
_CONVERSATION_COLUMNS = frozenset(_WORDS["columns"]["conversation"])
_FIELDS: Mapping[str, Sequence[str]] = _WORDS["fields"]
# Rows of a log that are messages, and the owner's name where an app leaves it out.
LEAST_MESSAGES_SHARE = 0.8
OWNER = "Me"
# People of a table that says by true or false whether somebody wrote a message who answers.
STAFF = {
    **dict.fromkeys(("true", "1", "yes", "y", "t", "ja", "wahr", "outbound", "outgoing"), "agent"),
    **dict.fromkeys(("false", "0", "no", "n", "f", "nein", "falsch", "inbound"), "customer"),
    "incoming": "customer",
}
LEAST_OF_OWNER = 0.2
_LONGEST_WORDS = max(map(len, _MEDIA | _NOTICES)) + 1
# Marks of the direction of writing, which WhatsApp puts before its own words.
_MARKS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff"
_OWN_WORDS = "\u200e"
_DATE = r"(?P<first>\d{1,4})[./-]\s?(?P<second>\d{1,2})[./-]\s?(?P<third>\d{1,4})\.?"
_CLOCK = (
    r"(?:(?P<before>上午|下午|오전|오후|午前|午後)\s?)?(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.]\d{2})?"
    r"(?:\s?(?P<after>[aApP]\.?\s?[mM]\.?))?"
)
_WHEN = rf"{_DATE},?(?:\s(?:à|at|um|alle|às|a las))?\s{_CLOCK}"
# Android's and the iPhone's lines.
_HEADER = re.compile(rf"(?:{_WHEN}\s[-–]\s|\[{_WHEN.replace('?P<', '?P<i_')}\]\s)(?P<rest>.*)")
# Names have no quotation marks; notices such as "Anna named the group “Bees: a club”" do.
_SENDER = re.compile(r"(?P<name>[^:\n\"“”„«»]{1,100}):(?: (?P<text>.*)|$)")
_AFTERNOON = ("p", "下午", "오후", "午後")
# WhatsApp's words in the place of a picture, in any language; and at the end of an edited message.
_IN_BRACKETS = re.compile(r"<[^<>\n]{3,60}>")
_EDITED = re.compile(r"[\u200e ]<[^<>\n]*\s[^<>\n]*>$")
# The signs that Slack escapes; `&` last, because it begins the others.
_SLACK_ESCAPES = {"&lt;": "<", "&gt;": ">", "&amp;": "&"}
# The name of a day's file in Slack's export.
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_DAY_FIRST = re.compile(r"^(\d{2})\.(\d{2})\.(\d{4}),?")
# A person who is spoken to.
_MENTION = re.compile(r"<@(\w+)>")
# A name at the beginning of a line: up to four words, the first with a letter.
_NAMED_LINE = re.compile(
    text_pairs.TIME + r"(?P<name>[^\W\d_][\w.'’-]*(?: [\w.'’()-]+){0,3}):(?:\s+(?P<text>.*)|$)"
)


class ChatMessage(NamedTuple):
    """line: where it begins, from 1. sender: None for a notice of the app. seconds: since some day;
    None if unknown. left_out: the kind of a message without words of a person, or empty."""

    line: int
    sender: str | None
    text: str
    seconds: float | None = None
    left_out: str = ""


@dataclass(frozen=True)
class ChatContent:
    """title: the kind, with its article. rows: of the conversations, each with the line of its
    first message. speakers: how many messages each person has written, most first; followers: how
    many of these follow another person's; answerer: who answers, if that is known. cut: how its
    only conversation is cut, in words; empty if the chat has several. unread: the files of a folder
    of chats that are none."""

    title: str
    rows: tuple[Numbered, ...]
    speakers: Mapping[str, int]
    followers: Mapping[str, int]
    cut: str = ""
    unread: tuple[str, ...] = ()
    answerer: str = ""

    @property
    def likely_answerer(self) -> str:
        """The person who is called by a word for who answers; else the one who most often follows
        another: who is asked writes second."""
        called = [name for name in self.speakers if name.strip().lower() in ANSWERERS]
        if len(called) == 1:
            return called[0]
        if self.answerer:
            return self.answerer
        return max(self.speakers, key=lambda name: self.followers.get(name, 0))


def chat_of(file: Path) -> ChatContent | None:
    """The chat in a file, or in the folder or archive of Slack's export; None if it holds none, or
    is missing."""
    try:
        if is_packed(file) and file.is_file():
            file = unpacked(file)
        if file.is_dir():
            chats = _chats_in(file)
            if chats:
                return _joined_chats(chats)
            text_chats = _text_chats_in(file)
            if text_chats:
                return text_chats
            days = sorted(day for day in file.rglob("*.json") if _DAY.fullmatch(day.stem))
            return _chat_of_days(file, tuple((day, day.stat().st_mtime_ns) for day in days))
        return _chat_of(file)
    except (FileNotFoundError, Unreadable):
        return None


def _chats_in(folder: Path) -> list[ChatContent]:
    """The chats of a folder of JSON files; none if one of them is no chat, as in Slack's export."""
    files = sorted(file for file in folder.rglob("*.json") if not _DAY.fullmatch(file.stem))
    read_chat = _chat_of if len(files) == 1 else _chat_of_several
    chats = []
    for file in files:
        chat = read_chat(file)
        if chat is None:
            return []
        chats.append(chat)
    return chats


def _text_chats_in(folder: Path) -> ChatContent | None:
    """The chats of a folder of texts; None if many of its texts are no chats, or if it has more
    tables."""
    texts = text_files(folder)
    sample = texts[:: max(1, len(texts) // SAMPLED_CHATS)]
    chats_in_sample = sum(map(is_text_chat, sample))
    if not texts or chats_in_sample < LEAST_CHATS_SHARE * len(sample):
        return None
    read_chat = _chat_of if len(texts) == 1 else _chat_of_several
    chats = []
    unread = []
    for text in texts:
        chat = read_chat(text)
        if chat:
            chats.append(chat)
        else:
            unread.append(str(text.relative_to(folder)))
    tables = _tables_beside(folder)
    if len(tables) >= len(chats):
        return None
    names = (*unread, *(str(table.relative_to(folder)) for table in tables))
    if len(chats) == 1:
        return replace(chats[0], unread=names)
    return replace(_joined_chats(chats), unread=names)


def _tables_beside(folder: Path) -> list[Path]:
    endings = (*OF_TABLES, *OF_WORKBOOKS, ".json", OF_LINES, ".parquet")
    files = sorted(folder.rglob("*"))
    return [
        file for file in files if file.suffix.lower() in endings and not is_hidden(file, folder)
    ]


def _joined_chats(chats: Sequence[ChatContent]) -> ChatContent:
    rows = list[Numbered]()
    speakers = Counter[str]()
    followers = Counter[str]()
    for chat in chats:
        rows += chat.rows
        speakers.update(chat.speakers)
        followers.update(chat.followers)
    title = f"a folder of {len(chats):,} {plural('chat', len(chats))}"
    return ChatContent(title, tuple(rows), dict(speakers.most_common()), followers)


@lru_cache(maxsize=16)
def _chat_of_days(folder: Path, days: tuple[tuple[Path, int], ...]) -> ChatContent | None:
    """The channels of Slack's export: a folder for each, with a file for each day. days: these
    files, each with the time of its last change."""
    by_channel: dict[Path, list[Any]] = {}
    all_encodable = True
    for day, _ in days:
        text, entries = _json_list_in(day)
        if entries and _is_slack(entries[0]):
            by_channel.setdefault(day.parent, []).extend(entries)
            all_encodable = all_encodable and is_encodable(text)
    if not by_channel:
        return None
    names = _slack_people(folder)
    channels = [_of_slack(entries, names) for entries in by_channel.values()]
    return _made("Slack's export", channels, all_encodable, is_alone=True)


def _json_list_in(file: Path) -> tuple[str, list[Any]]:
    """The text of a file, and its list; an empty one if it holds something else."""
    try:
        text = file.read_text(encoding="utf-8-sig", errors=KEPT)
        entries = json.loads(text)
    except (OSError, ValueError, RecursionError):
        return "", []
    if isinstance(entries, list):
        return text, entries
    return text, []


def _slack_people(folder: Path) -> dict[str, str]:
    """The names of Slack's people by their identifiers; none without `users.json`."""
    names = {}
    _, entries = _json_list_in(next(folder.rglob("users.json"), folder / "users.json"))
    for entry in entries:
        if isinstance(entry, dict):
            display_name = _slack_name({**entry, "user_profile": entry.get("profile")})
            names[str(entry.get("id"))] = str(display_name or entry.get("name"))
    return names


@once_per_file
def _chat_of(file: Path) -> ChatContent | None:
    return _read_chat(file, is_alone=True)


@once_per_file
def _chat_of_several(file: Path) -> ChatContent | None:
    """The chat of a file among others, which is not cut to give several rows."""
    return _read_chat(file, is_alone=False)


def _read_chat(file: Path, is_alone: bool) -> ChatContent | None:
    if is_text_file(file):
        if not is_text_chat(file):
            return None
        with file.open(encoding=encoding_of(file), errors=KEPT) as lines:
            text = lines.read()
        title, parts = _of_text(text, is_alone)
        chat = _made(title, parts.chats, is_encodable(text), is_alone)
        return replace(chat, cut=parts.cut or chat.cut, answerer=parts.answerer)
    if ending_of(file) in OF_TABLES:
        return _chat_of_table(file, is_alone)
    if not _may_be_json_chat(file):
        return None
    text = file.read_text(encoding="utf-8-sig", errors=KEPT)
    try:
        content = value_of_json(text)
    except (ValueError, RecursionError):
        return None  # the reader of rows names the line
    title, chats = _of_json(content)
    if not chats:
        title, chats = _of_message_rows(content)
    if not chats:
        return None
    # An escape such as \\ud83d may be half a character.
    all_encodable = "\\u" not in text and is_encodable(text)
    return _made(title, chats, all_encodable, is_alone)


def _chat_of_table(file: Path, is_alone: bool) -> ChatContent | None:
    """The chat in a table with a column of senders, one of messages, and one of their times or
    conversations; None for another table."""
    columns = _chat_columns(file)
    if columns is None:
        return None
    row_count = 0
    senders = set[str | None]()
    chats = dict[str, list[ChatMessage]]()  # by the conversation that their rows name
    for number, row in Table().rows(file):
        row_count += 1
        if isinstance(row, Bad):
            continue
        seconds = _seconds_of(" ".join(str(row[name]).strip() for name in columns.times))
        text = row[columns.message]
        sender = row[columns.sender]
        if columns.has_owner and not sender:
            sender = OWNER
        if columns.says_staff:
            sender = STAFF.get(str(sender).strip().lower(), sender)
        message = _message(number, sender, text, seconds, has_media=False)
        if message.text:
            senders.add(message.sender)
        conversation = "".join(row[name] for name in columns.conversations)
        chats.setdefault(conversation, []).append(message)
    if len(senders) < 2 or len(senders) > row_count / 2:
        return None
    return _made("a table of messages", list(chats.values()), True, is_alone)


class ChatColumns(NamedTuple):
    """The columns of a table of messages. times, conversations: in the order of the table; one of
    them may be empty. has_owner: whether messages without a sender are the owner's; says_staff:
    whether the sender is true for somebody who answers."""

    sender: str
    message: str
    times: list[str]
    conversations: list[str]
    has_owner: bool
    says_staff: bool


def _chat_columns(file: Path) -> ChatColumns | None:
    """The columns of a table of messages; None for another table. Mails have a subject too, and are
    no chat, unless they name their conversations."""
    try:
        with open_table(file, errors=KEPT) as (_, layout):
            header = layout.header
    except UnicodeError:
        return None
    if header is None or header.is_made:
        return None
    by_name = {_plain_name(name): name for name in reversed(header.names)}
    usual_columns = _WORDS["columns"]
    sender = next((by_name[name] for name in usual_columns["sender"] if name in by_name), None)
    message = next((by_name[name] for name in usual_columns["message"] if name in by_name), None)
    times = [by_name[name] for name in by_name if name in usual_columns["time"]]
    conversations = [name for name in header.names if _plain_name(name) in _CONVERSATION_COLUMNS]
    has_subject = not by_name.keys().isdisjoint((*SUBJECT_NAMES, "title"))
    is_other = asks_and_answers(header.names) or (has_subject and not conversations)
    if sender is None or message is None or is_other or not (times or conversations):
        return None
    times.sort(key=header.names.index)
    has_owner = _has_owner(file, header.names.index(sender))
    says_staff = _plain_name(sender) in usual_columns["staff"]
    return ChatColumns(sender, message, times, conversations, has_owner, says_staff)


def _plain_name(name: str) -> str:
    return name.lower().replace("_", " ").strip()


def _has_owner(file: Path, place: int) -> bool:
    """Whether many messages of a table have no sender, who is then its owner. place: of the
    senders' column."""
    with open_table(file, errors=KEPT) as (lines, layout):
        first_records = list(islice(csv.reader(lines, delimiter=layout.separator), FIRST_LINES))
    skipped = layout.header.skipped if layout.header else 0
    rows = [record for record in first_records[skipped:] if len(record) > place]
    without_sender = sum(not record[place].strip() for record in rows)
    return LEAST_OF_OWNER * len(rows) <= without_sender < len(rows)


def is_text_chat(file: Path) -> bool:
    """Whether a text file begins as a chat does."""
    try:
        with file.open(encoding=encoding_of(file), errors=KEPT) as content:
            lines = content.read(HEAD_CHARACTERS).split("\n")
    except OSError:
        return False
    turns = chat_texts.turns_of_subtitles(lines)
    if turns:
        # What many people say has no answers.
        return len({turn.name for turn in turns}) == PEOPLE_OF_A_TALK
    if chat_texts.words_of_subtitles(lines):
        return False
    first_lines = [line for line in lines if line.strip()][:FIRST_LINES]
    if _is_of_whatsapp(first_lines):
        return True
    all_names = list[str]()
    for line in first_lines:
        named = _NAMED_LINE.match(line)
        if named:
            all_names.append(named["name"])
    names = _without_head(all_names)
    # Headings of a text, such as `Note:`, hardly repeat; people do.
    lines_of_people = len(first_lines) - _count_of_head(first_lines, names)
    is_named = len(names) >= NAMED_SHARE * lines_of_people
    are_people = 2 <= len(set(names)) <= len(names) / 2
    if is_named and are_people:
        return not text_pairs.holds_pairs(file)
    return bool(chat_texts.messages_of(lines))


def _is_of_whatsapp(first_lines: Sequence[str]) -> bool:
    """Whether a text begins as an export of WhatsApp or Signal: with a time, and then a name behind
    some times."""
    if not first_lines or not _header_of(first_lines[0]):
        return False
    headers = filter(None, map(_header_of, first_lines))
    return any(_sender_of(header["rest"]) for header in headers)


def _without_head(names: Sequence[str]) -> Sequence[str]:
    """The names of lines from the first that comes again: a head has lines such as `Date: …`."""
    counts = Counter(names)
    for number, name in enumerate(names[:MOST_HEAD_NAMES]):
        if counts[name] > 1:
            return names[number:]
    return names


def _count_of_head(lines: Sequence[str], names: Sequence[str]) -> int:
    """How many lines are above the first one with one of some names."""
    for number, line in enumerate(lines):
        header = _NAMED_LINE.match(line)
        if header and header["name"] == names[0]:
            return number
    return 0


def _may_be_json_chat(file: Path) -> bool:
    """Whether the beginning of a JSON file may be a chat's: an object, or a list of Slack's
    messages."""
    with file.open(encoding="utf-8-sig", errors=KEPT) as content:
        head = content.read(FIRST_BYTES).lstrip()
    is_of_lines = ending_of(file) == OF_LINES
    if head.startswith("{") and not is_of_lines:
        return True
    if not is_of_lines and not head.startswith("["):
        return False
    # A log may begin with a row about itself.
    place = 0
    for _ in range(2):
        place = head.find("{", place)
        try:
            row, place = json.JSONDecoder().raw_decode(head, max(0, place))
        except (ValueError, RecursionError):
            return False
        if _is_slack(row) or _message_of_fields(1, row):
            return True
    return False


# The ending of files with an object on each line.
OF_LINES = ".jsonl"


class TextFile(Reshaping, Table):
    """A text file with questions and answers, or a chat, of which one conversation is a row, or
    else a table."""

    def columns(self, file: Path) -> list[str]:
        if is_no_text(file):
            raise Unreadable("its content is no text, whatever its name says.", hint=NO_TEXT_HINT)
        if is_text_chat(file):
            return [CHAT_COLUMN]
        if text_pairs.holds_pairs(file):
            return list(text_pairs.COLUMNS)
        if not is_table(file):
            raise Unreadable(NO_ROWS, hint=TEXTS_HINT)
        return super().columns(file)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        file.stat()  # a missing file is reported as any other
        chat = chat_of(file)
        if chat:
            yield from chat.rows
        elif text_pairs.holds_pairs(file):
            yield from text_pairs.rows_of(file)
        elif is_table(file):
            yield from super().rows(file, part)
        else:
            raise Stop(f"`{file}` cannot be used: {NO_ROWS}", TEXTS_HINT)


class MaybeChat(RowFile):
    """A file of rows of the class behind this one, unless it holds a chat."""

    def columns(self, file: Path) -> list[str]:
        if chat_of(file):
            return [CHAT_COLUMN]
        return super().columns(file)

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        file.stat()  # a missing file is reported as any other
        chat = chat_of(file)
        if chat:
            yield from chat.rows
        else:
            yield from super().rows(file, part)

    def marks(
        self, file: Path, most: int | None, count: int
    ) -> tuple[list[tuple[int, int]], int] | None:
        """None for a chat too: its conversations are no parts of the file."""
        if chat_of(file):
            return None
        return super().marks(file, most, count)


class TableFile(MaybeChat, Reshaping, Table):
    """A table, or a chat in one."""


class JsonFile(MaybeChat, Reshaping, JsonList):
    """A list of rows, or a chat."""


class JsonLinesFile(MaybeChat, Reshaping, JsonLines):
    """Rows on lines, or a chat."""


class ChatFolder(RowFile):
    """A folder of chats, or with the channels of Slack's export."""

    def columns(self, file: Path) -> list[str]:
        return [CHAT_COLUMN]

    def rows(self, file: Path, part: FilePart | None = None) -> Iterator[Numbered]:
        chat = chat_of(file)
        if chat:
            yield from chat.rows


def _made(
    title: str, chats: Sequence[Sequence[ChatMessage]], all_encodable: bool, is_alone: bool
) -> ChatContent:
    """The conversations of chats of one export. all_encodable: whether no text has half
    characters; is_alone: whether nothing else is read, so that an only conversation is cut."""
    cut = ""
    speakers = dict[str, int]()
    followers = dict[str, int]()
    rows = list[Numbered]()
    for messages in chats:
        names = set[str]()
        for message in messages:
            if message.sender is not None and message.text:
                speakers[message.sender] = speakers.get(message.sender, 0) + 1
                names.add(message.sender)
        conversations = list(_conversations(messages))
        if is_alone and len(chats) == len(conversations) == 1:
            conversations = list(_parts_of_one(conversations[0]))
            if len(conversations) > 1:
                cut = _cut_sentence(conversations)
        for conversation in conversations:
            row = _row_of(conversation, len(names) > 2)
            for before, after in pairwise(row[CHAT_COLUMN]):
                if before["name"] != after["name"]:
                    followers[after["name"]] = followers.get(after["name"], 0) + 1
            if all_encodable or is_encodable(json.dumps(row, ensure_ascii=False)):
                rows.append((conversation[0].line, row))
            else:
                rows.append((conversation[0].line, Bad(NOT_UTF8)))
    by_count = sorted(speakers.items(), key=lambda speaker: -speaker[1])
    return ChatContent(title, tuple(rows), dict(by_count), followers, cut)


def _parts_of_one(conversation: Sequence[ChatMessage]) -> Iterator[Sequence[ChatMessage]]:
    """The parts of the only conversation of a chat, if it is long: one row would teach nothing.
    They end at its longest pauses, or are of one length if it has no times."""
    if len(conversation) < 2 * MESSAGES_OF_A_PART:
        yield conversation
    elif _has_times(conversation):
        yield from _short_enough(conversation, MOST_MESSAGES_OF_A_PART)
    else:
        yield from _parts_of_one_length(conversation)


def _has_times(messages: Iterable[ChatMessage]) -> bool:
    return any(message.seconds is not None for message in messages)


def _parts_of_one_length(messages: Sequence[ChatMessage]) -> list[Sequence[ChatMessage]]:
    begins = range(0, len(messages), MESSAGES_OF_A_PART)
    return [messages[begin : begin + MESSAGES_OF_A_PART] for begin in begins]


def _cut_sentence(parts: Sequence[Sequence[ChatMessage]]) -> str:
    if not any(map(_has_times, parts)):
        return CUT_WITHOUT_TIMES
    hours = PAUSE_SECONDS // 3600
    return f"It is one conversation, without a pause of {hours} hours. One row would teach little, so it is cut into {len(parts):,}, at its longest pauses."


def _row_of(conversation: Sequence[ChatMessage], is_group: bool) -> dict[str, Any]:
    """The row of a conversation. Messages of one person in a row are joined."""
    messages = list[dict[str, str]]()
    left_out = []
    for message in conversation:
        if message.left_out:
            left_out.append(message.left_out)
        if message.sender is None or not message.text:
            continue
        if messages and messages[-1]["name"] == message.sender:
            messages[-1]["text"] += f"\n{message.text}"
        else:
            messages.append({"name": message.sender, "text": message.text})
    return {CHAT_COLUMN: messages, "group": is_group, "left_out": left_out}


def _conversations(messages: Sequence[ChatMessage]) -> Iterator[Sequence[ChatMessage]]:
    """The conversations between long pauses; those that are too long are cut further."""
    start = 0
    for number in range(1, len(messages) + 1):
        is_end = number == len(messages)
        if is_end or _pause(messages[number - 1], messages[number]) > PAUSE_SECONDS:
            yield from _short_enough(messages[start:number])
            start = number


def _short_enough(
    messages: Sequence[ChatMessage], most_messages: int | None = None
) -> Iterator[Sequence[ChatMessage]]:
    """The parts of a conversation, cut at its longest pauses until each is short enough."""
    remaining = [messages]
    while remaining:
        conversation = remaining.pop()
        count = len(conversation)
        characters = sum(len(message.text) for message in conversation)
        has_few = most_messages is None or count <= most_messages
        # One exchange stays whole, however long it is.
        if count <= 2 or (has_few and characters <= MOST_CHARACTERS):
            yield conversation
            continue
        middle = count / 2
        margin = max(1, int(LEAST_SIDE * count))
        cut = max(
            range(margin, count - margin + 1),
            key=lambda place: (
                _pause(conversation[place - 1], conversation[place]),
                -abs(place - middle),
            ),
        )
        remaining += [conversation[cut:], conversation[:cut]]


def _pause(before: ChatMessage, after: ChatMessage) -> float:
    """Seconds between two messages; 0 if unknown."""
    if before.seconds is None or after.seconds is None:
        return 0.0
    return after.seconds - before.seconds


class ChatParts(NamedTuple):
    """The chats in a text. cut: how a log without times is cut, in words; empty if it is not;
    answerer: who answers; empty if that is unknown."""

    chats: Sequence[Sequence[ChatMessage]]
    cut: str = ""
    answerer: str = ""


def _of_text(text: str, is_alone: bool) -> tuple[str, ChatParts]:
    """The kind of a chat in a text file, and its messages. is_alone: as in `_made`."""
    lines = text.split("\n")
    turns = chat_texts.turns_of_subtitles(lines)
    if turns:
        return "a transcript", _parts_of_talk(turns)
    first_line = next(filter(str.strip, lines), "")
    header = _header_of(first_line)
    first_lines = [line for line in lines if line.strip()][:FIRST_LINES]
    if header and _is_of_whatsapp(first_lines):
        # Signal's chats have days with the year first; WhatsApp's have them in few countries.
        is_year_first = len(_part(header, "first")) == len("2024")
        if is_year_first:
            return "a WhatsApp or Signal chat", ChatParts([_of_whatsapp(lines)])
        return "a WhatsApp chat", ChatParts([_of_whatsapp(lines)])
    spoken = chat_texts.messages_of(lines)
    if not spoken:
        return "a chat", _of_log(lines, is_alone)
    messages = [_message(*message, has_media=False) for message in spoken]
    if _has_times(messages):
        return "a chat", ChatParts([messages])
    return "a chat", _parts_of_log(messages, [0], is_alone)


def _parts_of_talk(turns: Sequence[chat_texts.SpokenText]) -> ChatParts:
    """What two people say, in parts that begin where one of them asks: who says less at once. No
    words of a person are cut."""
    words = Counter[str]()
    for turn in turns:
        words[turn.name] += len(turn.text)
    counts = Counter(turn.name for turn in turns)
    asker = min(counts, key=lambda name: words[name] / counts[name])
    answerer = next(name for name in counts if name != asker)
    parts = [list[ChatMessage]()]
    for turn in turns:
        part = parts[-1]
        characters = len(turn.text)
        for message in part:
            characters += len(message.text)
        is_full = len(part) >= MESSAGES_OF_A_PART
        if part and characters > MOST_CHARACTERS:
            is_full = True
        if turn.name == asker and is_full:
            part = []
            parts.append(part)
        part.append(ChatMessage(turn.line, turn.name, turn.text))
    cut = CUT_WHERE_ONE_ASKS.format(name=asker) if len(parts) > 1 else ""
    return ChatParts(parts, cut, answerer)


def _header_of(line: str) -> re.Match[str] | None:
    return _HEADER.match(line.lstrip(_MARKS))


def _sender_of(rest: str) -> re.Match[str] | None:
    return _SENDER.match(rest.lstrip(_MARKS))


def _of_whatsapp(lines: Sequence[str]) -> list[ChatMessage]:
    """The messages of WhatsApp's export. A line without a time continues the message above it."""
    entries = list[tuple[int, re.Match[str], list[str]]]()
    before = list[ChatMessage]()
    for number, line in enumerate(lines, 1):
        header = _header_of(line)
        if header:
            entries.append((number, header, [header["rest"]]))
        elif entries:
            entries[-1][2].append(line)
        elif line.strip():
            before.append(ChatMessage(number, None, "", None, "notice"))
    messages = before
    times = _times([header for _, header, _ in entries])
    for (number, header, text_lines), seconds in zip(entries, times, strict=True):
        sender = _sender_of(header["rest"])
        if sender is None:
            messages.append(ChatMessage(number, None, "", seconds, "notice"))
            continue
        text = "\n".join([sender["text"] or "", *text_lines[1:]])
        name = sender["name"].strip(_MARKS + "~\u202f\xa0 ")
        words, left_out = _words_of(text)
        messages.append(ChatMessage(number, name, words, seconds, left_out))
    return messages


def _words_of(text: str) -> tuple[str, str]:
    """A person's own words in a message of WhatsApp, and the kind of what is left out."""
    text = text.rstrip()
    # Most messages are words alone.
    if len(text) > _LONGEST_WORDS and text.isprintable() and "<" not in text:
        return text.strip(), ""
    plain = text.strip(f"{_MARKS} ")
    in_lower_case = plain.lower().rstrip(".")
    if in_lower_case in _NOTICES:
        return "", "notice"
    if in_lower_case in _MEDIA or _IN_BRACKETS.fullmatch(plain):
        return "", "media"
    if text.startswith(_OWN_WORDS):
        # A picture's name may have the person's words below it.
        _, _, below = text.partition("\n")
        return below.strip(f"{_MARKS} \n"), "media"
    text = _EDITED.sub("", text).strip(f"{_MARKS} \n") or plain
    return text, "" if text else "notice"


def _times(headers: Sequence[re.Match[str]]) -> list[float | None]:
    """The time of each message in seconds. Day or month comes first: the order in which fewer times
    go back, else the day, or with 12 hours the month, as in America."""
    orders = [("third", "second", "first"), ("third", "first", "second")]
    if any(_part(header, "after") for header in headers):
        orders.reverse()
    readings = [[_seconds(header, order) for header in headers] for order in orders]
    return min(readings, key=_faults)


def _faults(times: Sequence[float | None]) -> int:
    """How many times are no date, or earlier than the one before."""
    faults = 0
    last = 0.0
    for seconds in times:
        if seconds is None or seconds < last:
            faults += 1
        if seconds is not None:
            last = seconds
    return faults


def _part(header: re.Match[str], name: str) -> str:
    return header[name] or header[f"i_{name}"] or ""


def _seconds(header: re.Match[str], order: tuple[str, str, str]) -> float | None:
    """The time of a message; None if it is no date. order: the parts that are year, month, day."""
    if len(_part(header, "first")) == 4:
        order = ("first", "second", "third")
    year, month, day = (_part(header, name) for name in order)
    seconds = _day_seconds(year, month, day)
    if seconds is None:
        return None
    hour = int(_part(header, "hour"))
    half = (_part(header, "after") or _part(header, "before")).lower()
    if half:
        hour = hour % 12
        if half.startswith(_AFTERNOON):
            hour += 12
    return seconds + hour * 3600 + int(_part(header, "minute")) * 60


@lru_cache(maxsize=4096)
def _day_seconds(year: str, month: str, day: str) -> float | None:
    """The seconds at which a day begins; None if it is no day."""
    number_of_year = int(year)
    if number_of_year < 100:
        number_of_year += 2000
    try:
        begin = datetime(number_of_year, int(month), int(day))
    except ValueError:
        return None
    return chat_texts.since_1970(begin)


def _of_log(lines: Sequence[str], is_alone: bool) -> ChatParts:
    """The messages of a log with names alone, in parts between empty lines if these separate
    conversations. is_alone: as in `_made`."""
    messages = list[ChatMessage]()
    begins = [0]
    is_after_gap = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            is_after_gap = True
            continue
        named = _NAMED_LINE.match(line.lstrip(_MARKS))
        if named:
            if is_after_gap and messages:
                begins.append(len(messages))
            messages.append(ChatMessage(number, named["name"], (named["text"] or "").strip()))
        elif messages:
            last = messages[-1]
            gap = "\n\n" if is_after_gap else "\n"
            messages[-1] = last._replace(text=f"{last.text}{gap}{line.strip()}".strip())
        else:
            messages.append(ChatMessage(number, None, "", None, "notice"))
        is_after_gap = False
    spoken = [_without_text_as_notice(message) for message in messages]
    return _parts_of_log(spoken, begins, is_alone)


def _parts_of_log(
    messages: Sequence[ChatMessage], begins: Sequence[int], is_alone: bool
) -> ChatParts:
    """The conversations of a log, without the lines of its head. begins: the messages behind empty
    lines; is_alone: as in `_made`."""
    head = _head_lines(messages)
    messages = messages[head:]
    begins = [0, *(begin - head for begin in begins if begin > head)]
    parts = [messages[begin:end] for begin, end in pairwise([*begins, len(messages)])]
    exchanges = [part for part in parts if len({message.sender for message in part}) > 1]
    # Some logs have an empty line after each message.
    if len(parts) > 1 and 2 * len(exchanges) >= len(parts):
        return ChatParts(parts)
    if not is_alone or len(messages) <= MESSAGES_OF_A_PART:
        return ChatParts([messages])
    # Without times, nothing says where a conversation ends, and one row would teach nothing.
    return ChatParts(_parts_of_one_length(messages), CUT_WITHOUT_TIMES)


def _head_lines(messages: Sequence[ChatMessage]) -> int:
    """How many messages at the beginning are lines of a head, such as `Date: …`: their names do not
    come again."""
    counts = Counter(message.sender for message in messages)
    for number, message in enumerate(messages):
        if message.sender is not None and counts[message.sender] > 1:
            return number
    return 0


def _without_text_as_notice(message: ChatMessage) -> ChatMessage:
    if message.text or message.left_out:
        return message
    return message._replace(left_out="notice")


def _of_json(content: object) -> tuple[str, Sequence[Sequence[ChatMessage]]]:
    """The kind of a chat in JSON, and the messages of each chat in it; none if it is no chat."""
    if isinstance(content, list):
        if content and _is_slack(content[0]):
            return "a Slack chat", [_of_slack(content)]
        return "", []
    if not isinstance(content, dict):
        return "", []
    all_chats = content.get("chats")
    if isinstance(all_chats, dict) and isinstance(all_chats.get("list"), list):
        chats = [chat for chat in all_chats["list"] if _is_telegram(chat)]
        return "Telegram's chats", [_of_telegram(chat["messages"]) for chat in chats]
    if _is_telegram(content):
        return "a Telegram chat", [_of_telegram(content["messages"])]
    messages = content.get("messages")
    if not isinstance(messages, list):
        return "", []
    if any(_has(message, "author", "content") for message in messages):
        return "a Discord chat", [_of_discord(messages)]
    if any(_has(message, "creator", "created_date", "text") for message in messages):
        return "a Google Chat", [_of_google(messages)]
    if any(_has(message, "sender_name", "timestamp_ms") for message in messages):
        return "a Messenger or Instagram chat", [_of_messenger(messages)]
    return "", []


def _of_message_rows(content: object) -> tuple[str, Sequence[Sequence[ChatMessage]]]:
    """The messages of any other app: objects with a sender, words and a time; none for other rows.
    Skype has them inside its conversations."""
    row_lists = list[list[Any]]()
    if isinstance(content, list):
        row_lists.append(content)
    elif isinstance(content, dict):
        row_lists += [field for field in content.values() if isinstance(field, list)]
        for conversation in content.get("conversations") or ():
            if _has(conversation, "MessageList"):
                row_lists.append(conversation["MessageList"])
    chats = list[Sequence[ChatMessage]]()
    for rows in row_lists:
        chats += _chats_of_rows(rows)
    return "a log of messages", chats


def _chats_of_rows(rows: Sequence[object]) -> list[list[ChatMessage]]:
    """The messages in some rows of JSON by their channels, the earliest first; none for other
    rows."""
    messages = list[ChatMessage]()
    chats = dict[str, list[ChatMessage]]()
    for number, row in enumerate(rows, 1):
        found = _message_of_fields(number, row)
        if found:
            channel, message = found
            messages.append(message)
            chats.setdefault(channel, []).append(message)
    senders = {message.sender for message in messages}
    are_people = 1 < len(senders) <= len(messages) / 2
    if len(messages) < LEAST_MESSAGES_SHARE * len(rows) or not are_people:
        return []
    if all(message.seconds is not None for message in messages):
        for chat in chats.values():
            chat.sort(key=lambda message: message.seconds or 0.0)
    return list(chats.values())


def _message_of_fields(number: int, row: object) -> tuple[str, ChatMessage] | None:
    """The message in an object of any app, or in an object inside it, and its channel; None for
    another object."""
    if not isinstance(row, dict):
        return None
    for value in (row, *row.values()):
        if not isinstance(value, dict):
            continue
        fields = dict[str, object]()
        for name, field in value.items():
            fields.setdefault(name.lower(), field)
            if isinstance(field, dict):
                for inner_name, inner_field in field.items():
                    fields.setdefault(inner_name.lower(), inner_field)
        if not fields.keys().isdisjoint(_FIELDS["other"]):
            continue
        sender = _first_text(fields, _FIELDS["sender"]) or _sender_by_direction(fields)
        words = _first_text(fields, _FIELDS["message"])
        times = [fields[name] for name in _FIELDS["time"] if name in fields]
        if sender and words and times:
            seconds = _seconds_of_any(times[0])
            channel = _first_text(fields, _FIELDS["conversation"])
            return channel, _message(number, sender, words, seconds, has_media=False)
    return None


def _sender_by_direction(fields: Mapping[str, object]) -> str:
    """Who wrote a message that says whether it came in or went out; empty for another one."""
    if fields.get("type") == "outgoing":
        return OWNER
    if fields.get("type") == "incoming":
        return str(fields.get("source") or "Other")
    return ""


def _first_text(fields: Mapping[str, object], names: Sequence[str]) -> str:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return value
    return ""


def _seconds_of_any(written: object) -> float | None:
    """The seconds of a time as text, or as a number of seconds or milliseconds."""
    if isinstance(written, int | float) and not isinstance(written, bool):
        if written > MILLISECONDS:
            return written / 1000
        return float(written)
    if not isinstance(written, str):
        return None
    seconds = _seconds_of(written)
    if seconds is None:
        return chat_texts.seconds_of(written)
    return seconds


# A larger number of seconds would be in the year 5138.
MILLISECONDS = 100_000_000_000


def _has(value: object, *names: str) -> bool:
    return isinstance(value, dict) and value.keys() >= {*names}


def _is_telegram(chat: object) -> bool:
    if not isinstance(chat, dict) or not isinstance(chat.get("messages"), list):
        return False
    return any(_has(message, "type", "date", "text") for message in chat["messages"])


def _is_slack(message: object) -> bool:
    return _has(message, "type", "ts", "text")


def _of_telegram(entries: Sequence[Any]) -> list[ChatMessage]:
    messages = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            messages.append(ChatMessage(number, None, "", None, "notice"))
            continue
        seconds = _seconds_of(entry.get("date"))
        if entry.get("type") != "message":
            messages.append(ChatMessage(number, None, "", seconds, "notice"))
            continue
        pieces = entry.get("text")
        if not isinstance(pieces, list):
            pieces = [pieces]
        texts = []
        for piece in pieces:
            if isinstance(piece, dict):
                piece = piece.get("text")
            if isinstance(piece, str):
                texts.append(piece)
        has_media = any(
            entry.get(name)
            for name in (
                "media_type",
                "photo",
                "file",
                "location_information",
                "poll",
                "contact_information",
            )
        )
        # Telegram forgets the name of a deleted account.
        sender = entry.get("from") or "Deleted account"
        messages.append(_message(number, sender, "".join(texts), seconds, has_media))
    return messages


def _of_discord(entries: Sequence[Any]) -> list[ChatMessage]:
    messages = []
    for number, entry in enumerate(entries, 1):
        author = entry.get("author") if isinstance(entry, dict) else None
        if not isinstance(author, dict):
            messages.append(ChatMessage(number, None, "", None, "notice"))
            continue
        seconds = _seconds_of(entry.get("timestamp"))
        if entry.get("type", "Default") not in ("Default", "Reply"):
            messages.append(ChatMessage(number, None, "", seconds, "notice"))
            continue
        sender = author.get("nickname") or author.get("name")
        has_media = any(entry.get(name) for name in ("attachments", "embeds", "stickers"))
        messages.append(_message(number, sender, entry.get("content"), seconds, has_media))
    return messages


def _of_google(entries: Sequence[object]) -> list[ChatMessage]:
    """The messages of a chat in Google Takeout."""
    messages = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("creator"), dict):
            messages.append(ChatMessage(number, None, "", None, "notice"))
            continue
        creator = entry["creator"]
        seconds = _seconds_of_google(str(entry.get("created_date")))
        sender = creator.get("name") or creator.get("email")
        has_media = bool(entry.get("attached_files"))
        messages.append(_message(number, sender, entry.get("text"), seconds, has_media))
    return messages


def _seconds_of_google(written: str) -> float | None:
    """The seconds of a time such as `Tuesday, January 2, 2024 at 10:00:00 AM UTC`, or None."""
    parts = re.search(r"(\w+ \d{1,2}, \d{4}) at (\d{1,2}:\d{2}:\d{2})\s([AP]M)", written)
    if not parts:
        return None
    try:
        moment = datetime.strptime(" ".join(parts.groups()), "%B %d, %Y %I:%M:%S %p")
    except ValueError:
        return None
    return chat_texts.since_1970(moment)


def _of_messenger(entries: Sequence[Any]) -> list[ChatMessage]:
    """The messages of a chat in an export of Meta, the oldest first."""
    dated = [entry for entry in entries if isinstance(entry, dict)]
    dated.sort(key=lambda entry: entry.get("timestamp_ms") or 0)
    messages = []
    for number, entry in enumerate(dated, 1):
        content = entry.get("content")
        has_media = not content and any(entry.get(name) for name in MEDIA_OF_META)
        seconds = (entry.get("timestamp_ms") or 0) / 1000
        sender = _of_meta(entry.get("sender_name"))
        messages.append(_message(number, sender, _of_meta(content), seconds, has_media))
    return messages


MEDIA_OF_META = ("photos", "videos", "audio_files", "files", "gifs", "sticker", "share")


def _of_meta(text: object) -> object:
    """A text of Meta's exports, which write each byte of UTF-8 as a character of its own."""
    if not isinstance(text, str):
        return text
    with suppress(UnicodeError):
        return text.encode("latin-1").decode()
    return text


def _of_slack(
    entries: Sequence[Any], people: Mapping[str, str] = MappingProxyType({})
) -> list[ChatMessage]:
    """The messages of a channel. people: their names by identifier, if they are known."""
    messages = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict):
            messages.append(ChatMessage(number, None, "", None, "notice"))
            continue
        try:
            seconds = float(entry.get("ts") or "")
        except (TypeError, ValueError):
            seconds = None
        if entry.get("subtype") not in (
            None,
            "bot_message",
            "thread_broadcast",
            "file_share",
            "me_message",
        ):
            messages.append(ChatMessage(number, None, "", seconds, "notice"))
            continue
        text = entry.get("text")
        if isinstance(text, str):
            text = _MENTION.sub(lambda mention: f"@{people.get(mention[1], mention[1])}", text)
            for escape, sign in _SLACK_ESCAPES.items():
                text = text.replace(escape, sign)
        sender = people.get(str(entry.get("user"))) or _slack_name(entry)
        messages.append(_message(number, sender, text, seconds, bool(entry.get("files"))))
    return messages


def _slack_name(entry: Mapping[str, Any]) -> object:
    """The name of the person who wrote a message of Slack; `user` is an identifier."""
    profile = entry.get("user_profile")
    if not isinstance(profile, dict):
        profile = {}
    names = (profile.get("display_name"), profile.get("real_name"), entry.get("username"))
    return next(filter(None, names), entry.get("user"))


def _message(
    number: int, sender: object, text: object, seconds: float | None, has_media: bool
) -> ChatMessage:
    """A message of an app that writes JSON. A message without words is media, or a notice."""
    words = text.strip() if isinstance(text, str) else ""
    if not isinstance(sender, str) or not sender:
        return ChatMessage(number, None, "", seconds, "notice")
    if has_media:
        return ChatMessage(number, sender, words, seconds, "media")
    return ChatMessage(number, sender, words, seconds, "" if words else "notice")


def _seconds_of(written: object) -> float | None:
    """The seconds of a time in ISO 8601, or with the day first; None for another one."""
    if not isinstance(written, str):
        return None
    with_day_first = _DAY_FIRST.sub(r"\3-\2-\1", written.strip())
    try:
        moment = datetime.fromisoformat(with_day_first)
    except ValueError:
        return None
    return chat_texts.since_1970(moment.replace(tzinfo=None))
