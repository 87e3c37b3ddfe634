"""A file of rows, or another file that people have, in the place of a recipe: what it is, and the
command that makes a recipe of it."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

from runner.check.sources import people_of
from runner.data import (
    chat_logs,
    columns,
    conversation_formats,
    feeds,
    mail_boxes,
    rows,
    spreadsheets,
    text_pairs,
)
from runner.data.archives import unpacked
from runner.data.html_text import text_of_html
from runner.data.logged_turns import MESSAGES, FoundTurns
from runner.data.reshaping import Reshaping
from runner.data.row_files import (
    OTHER_ENDINGS,
    DataRow,
    Unreadable,
    ending_of,
    has_rules,
    holds_clippings,
    is_no_text,
)
from runner.data.table_layout import (
    encoding_of,
    first_sound,
    first_word_beyond_ascii,
    is_table,
    open_table,
)
from runner.recipe import templates
from runner.tools.files import SUBTITLES, TEXTS, is_text_file, text_files
from runner.tools.problem import Problem, Stop, listed, plural, shortened

FURTHER_HINT = "To learn these too, write two entries under `sets`, each with its `path`, `question` and `answer`."
CLIPPINGS_READ = "Each of its clippings is a text, without its book and place."
SUBTITLES_READ = "Its subtitles are read as one text, without their numbers and times."
TALKS_HINT = "For a talk of two people with answers, write `Name: text` on each line."
# A file with one of these is a recipe, or rows.
RECIPES = {".json", *rows.YAML}
# A recipe has none of these.
ENDINGS = {*rows.ENDINGS, *OTHER_ENDINGS, *TEXTS, *rows.WITHOUT_ROWS} - RECIPES
YAML_LIST = re.compile(rb"(\s*(#[^\n]*|---[^\n]*)?\n)*\s*- ")
PREFERENCES = {"chosen", "rejected"}  # the columns of the better and of the worse answer
BEGINNING = 4000  # bytes of a file, which would name the scenario of a recipe
SAMPLED_ROWS = 100
MOST_FILES = 5  # that a sentence names
# Fewer paragraphs, or longer ones, need no word.
LEAST_PARAGRAPHS = 5
SHORT_PARAGRAPH = 200
TEXT_TABLES = (".csv", ".tsv", ".txt")
USUAL_ENCODINGS = ("utf-8-sig", "utf-16")  # which say themselves what they are
MAKES_RECIPE = "`recipe new` makes a recipe of it."
ASKS_COLUMNS = (
    "`recipe new` makes a recipe of it, and asks which columns have the question and the answer."
)
SHOWN_CHARACTERS = 60
LEARNED_CHARACTERS = 120  # of a question, and of its answer
# Apps whose exports are known, by the form of their rows.
EXPORTS_OF = {"chatgpt": "ChatGPT", "claude": "Claude"}


def is_data(file: Path) -> bool:
    """Whether a file is one of data by its ending, or JSON with rows."""
    if not file.is_file():
        return False
    suffix = file.suffix.lower()
    if suffix not in RECIPES:
        return suffix in ENDINGS
    with file.open("rb") as content:
        start = content.read(BEGINNING).lstrip()
    if suffix != ".json":
        return YAML_LIST.match(start) is not None
    if start.startswith(b"["):
        return True
    return b'"scenario"' not in start and bool(_columns(file))


def problem_of(file: Path) -> Problem:
    """What a file of data is, and what to do with it."""
    message, hint = _described(file)
    return Problem(str(file), 0, 0, message, hint)


def pasted(name: str) -> str:
    """A file's name as people paste it: without quotes and `file://`, with the home folder instead
    of `~`, and with the slashes of a recipe, which somebody may copy from Windows to a cluster."""
    name = name.strip()
    if len(name) > 1 and name[0] == name[-1] and name[0] in "'\"":
        name = name[1:-1]
    if name.startswith("file://"):
        name = unquote(name.removeprefix("file://"))
    name = os.path.expanduser(name)
    if sys.platform == "win32":
        name = re.sub("^/(?=[A-Za-z]:)", "", name.replace("\\", "/"))
    return name


def kind_of(file: Path) -> str:
    """The kind of rows that a file certainly has, as `recipe new --what` names it; empty if it is
    not certain, or questions with answers."""
    if chat_logs.chat_of(file):
        return "conversations"
    if file.is_dir():
        return "text" if rows.holds_texts(file) else ""
    if not file.is_file():
        return ""
    if rows.is_archive_of_texts(file) or feeds.is_feed(file):
        return "text"
    suffix = file.suffix.lower()
    if suffix in SUBTITLES and not rows.without_rows(file):
        return "text"
    if suffix in TEXTS and is_no_text(file):
        return ""
    if suffix in TEXTS and not text_pairs.holds_pairs(file) and not is_table(file):
        return "text"
    names = {name.lower() for name in _columns(file)}
    if names >= PREFERENCES:
        return "preferences"
    if conversation_formats.told(names):
        return "conversations"
    return ""


def is_folder_of_data(folder: Path) -> bool:
    """Whether a folder has texts, tables or a chat that a model can learn from, or documents."""
    return bool(kind_of(folder) or _columns(folder) or rows.refusal_of_folder(folder))


def _described(file: Path) -> tuple[str, str]:
    """The message and its hint."""
    kind = rows.without_rows(file)
    if kind:
        return f"This is not a recipe, and {kind['holds']}.", kind["way_out"]
    if file.is_dir():
        refusal = rows.refusal_of_folder(file)
        if refusal:
            message, hint = refusal
            return f"This is a folder without a recipe: {message}", hint
    chat = chat_logs.chat_of(file)
    if chat:
        message = _described_chat(chat)
        for fact, _ in chat_facts(chat):
            message += f" {fact}"
        return message, MAKES_RECIPE
    if kind_of(file) == "text":
        return _described_text(file), MAKES_RECIPE
    try:
        names = rows.columns(file)
        form = conversation_formats.told(names)
        if form in EXPORTS_OF:
            # Its rows are not read here, because the file may be large.
            return (
                f"This is {EXPORTS_OF[form]}'s export of conversations, not a recipe.",
                MAKES_RECIPE,
            )
        sample = rows.first(file, SAMPLED_ROWS)
    except Unreadable as reason:
        return f"This is not a recipe, but data that cannot be read: {reason}", reason.hint
    except Stop as reason:
        return f"This is not a recipe, but data that cannot be read: {reason}", ""
    message, hint = _described_rows(file, names, form, sample)
    for fact, _ in reading_facts(file):
        message += f" {fact}"
    return message, hint


def _described_text(file: Path) -> str:
    message = "This is plain text, not a recipe."
    if file.is_dir():
        count = len(text_files(file))
        message = f"This is a folder of {count:,} {plural('text', count)}, not a recipe."
    if rows.is_archive_of_texts(file):
        message = "This is an archive of texts, not a recipe."
    if feeds.is_feed(file):
        message = "This is a feed of posts, not a recipe. Each is read as one text, without the marks of HTML."
    for fact, _ in text_facts(file):
        message += f" {fact}"
    return message


def _described_rows(
    file: Path, names: Sequence[str], form: str | None, sample: Sequence[DataRow]
) -> tuple[str, str]:
    """The columns of a file and what a model would learn of them, and the hint. form: of their
    conversations; sample: its first rows."""
    turns = next((row[MESSAGES] for row in sample if row.get(MESSAGES)), None)
    if isinstance(turns, FoundTurns):
        own_names = [name for name in names if name != MESSAGES or name in turns.fields]
    else:
        own_names = list(names)
    what = "a folder of files with rows" if file.is_dir() else "a file of rows"
    message = f"This is {what}, not a recipe. Its columns are {listed(own_names)}."
    if file.is_file() and text_pairs.holds_pairs(file):
        message = "This is a text of questions and answers, not a recipe."
    hint = MAKES_RECIPE
    pair = None
    if not set(names) >= PREFERENCES:
        pair = columns.likely_pair(names, sample)
    if isinstance(turns, FoundTurns):
        message += f" They hold conversations, whose turns come from {listed(turns.fields)}."
    elif form:
        message += " They hold conversations."
    elif pair:
        learned = first_pair(sample, *pair)
        if learned:
            question, answer = (shortened(text, SHOWN_CHARACTERS) for text in learned)
            message += f" A model would learn to answer “{question}” with “{answer}”."
            used = [column for template in pair for column in templates.columns(template)]
            further = columns.further_pair(names, used, sample)
            if further:
                message += f" {further_sentence(*further)}"
        else:
            message += " None of its first rows has a question and an answer."
            hint = "Compare its rows with its first line, and fix them."
    elif set(names) >= PREFERENCES:
        message += " They hold preferences: of each two answers, one is better."
    else:
        message += " No two of them look like questions and their answers."
        hint = ASKS_COLUMNS
    return message, hint


def further_sentence(question: str, answer: str) -> str:
    """What the columns of another question and its answer are, such as those of another
    language."""
    return f"It has further questions and answers, in `{question}` and `{answer}`, not read."


def reading_facts(file: Path, sheet: str | None = None) -> list[tuple[str, str]]:
    """What a person may not expect of how a table is read, each with what to do if it is wrong: its
    encoding, columns without names, sheets or files that are not read."""
    chat = chat_logs.chat_of(file)
    if chat:
        return chat_facts(chat)
    facts = []
    ending = ending_of(file)
    if ending in TEXT_TABLES and file.is_file():
        facts += _text_facts(file)
    change = _fact_of_change(file, sheet)
    if change:
        facts.append((change, "A reply is learned without the mail that it answers."))
    if ending in mail_boxes.ENDINGS:
        facts += _mail_facts(mail_boxes.counts_of(file))
    unread_tables = [] if sheet else rows.unread(file)
    if unread_tables:
        tables, remedy = "files", "To read another one, write its path."
        if ending in spreadsheets.ENDINGS:
            tables, remedy = "sheets", "To read another one, write its name as `sheet`."
        verb = "is" if len(unread_tables) == 1 else "are"
        fact = f"Its {tables} have different columns. {listed(unread_tables)} {verb} not read."
        facts.append((fact, remedy))
    unread_texts = rows.unread_texts(file)
    if unread_texts:
        fact = f"It also holds {unread_texts:,} {plural('text', unread_texts)}, not read."
        remedy = "To learn them as plain text, unpack it, and name the folder that has them."
        facts.append((fact, remedy))
    return facts


def _fact_of_change(file: Path, sheet: str | None) -> str:
    """What a person may not expect of rows that are changed when they are read; empty for nothing,
    and for a file that cannot be read, which another rule reports."""
    reader = rows.reader_of(file, sheet=sheet)
    if not isinstance(reader, Reshaping):
        return ""
    try:
        return reader.fact(file)
    except (Unreadable, Stop):
        return ""


def chat_facts(chat: chat_logs.ChatContent) -> list[tuple[str, str]]:
    """The same of a chat: how its only conversation is cut, and the files of a folder that are
    none."""
    facts = []
    if chat.cut:
        facts.append((chat.cut, "More chats, in one folder, give more rows."))
    if chat.unread:
        count = len(chat.unread)
        fact = f"It also has {count:,} {plural('file', count)} without a chat, not read: {listed(chat.unread[:MOST_FILES])}."
        facts.append((fact, "To learn from one of them, write its path."))
    return facts


def text_facts(file: Path) -> list[tuple[str, str]]:
    """The same of plain text, in a file or in a folder, whose tables are not read."""
    folder = file
    if rows.is_archive_of_texts(file):
        folder = unpacked(file)
    if not folder.is_dir():
        return [*encoding_facts(file), *_division_facts(file)]
    facts = []
    tables = rows.unread_tables(folder)
    if tables:
        fact = f"It also has {plural('table', len(tables))}, not read: {listed(tables)}."
        facts.append((fact, "To learn from a table, write its path."))
    for ending, documents in rows.documents_in(folder).items():
        count = len(documents)
        fact = f"It also has {count:,} {plural('file', count)} ending in {ending}, not read."
        facts.append((fact, f"For each file: {rows.WITHOUT_ROWS[ending]['way_out']}"))
    subtitles = [text for text in text_files(folder) if text.suffix.lower() in SUBTITLES]
    if subtitles:
        count = len(subtitles)
        fact = f"It has {count:,} {plural('file', count)} of subtitles. Each is read as one text, without its numbers and times."
        facts.append((fact, TALKS_HINT))
    return facts


def _division_facts(file: Path) -> list[tuple[str, str]]:
    """What the texts of a text file are, if that is not plain: parts between rules, or short
    paragraphs."""
    if not file.is_file() or not is_text_file(file):
        return []
    if file.suffix.lower() in SUBTITLES:
        return [(SUBTITLES_READ, TALKS_HINT)]
    if holds_clippings(file):
        return [(CLIPPINGS_READ, "To keep a title, write it into the text.")]
    texts = [row["text"] for row in rows.first(file, SAMPLED_ROWS, column="text")]
    if has_rules(file):
        fact = "Lines such as `* * *` or `---` separate its texts."
        return [(fact, "Where a text ends elsewhere, write such a line there.")]
    characters = sum(map(len, texts))
    if len(texts) < LEAST_PARAGRAPHS or characters >= SHORT_PARAGRAPH * len(texts):
        return []
    fact = f"Each paragraph is a text of its own, of {round(characters / len(texts)):,} characters on average."
    remedy = "To keep paragraphs together, write at least four lines such as `* * *` between longer texts. Or save each text as a file, in one folder."
    return [(fact, remedy)]


def holds_plain_texts(file: Path) -> bool:
    """Whether a file, a folder or an archive has plain text, if a recipe asks for it."""
    return is_text_file(file) or file.is_dir() or rows.is_archive_of_texts(file)


def encoding_facts(file: Path) -> list[tuple[str, str]]:
    """The encoding of a text file, if it is an older one; with a word by which a person sees
    whether it is right."""
    if not file.is_file():
        return []
    encoding = encoding_of(file)
    if encoding in USUAL_ENCODINGS:
        return []
    with file.open(encoding=encoding, errors="replace") as lines:
        word = first_word_beyond_ascii(lines)
    if not word:
        return []
    fact = f"It is not in UTF-8, and is read as {encoding}, for example “{word}”."
    return [(fact, "If that word is wrong, save the file again, in UTF-8.")]


def _mail_facts(counts: mail_boxes.MailCounts) -> list[tuple[str, str]]:
    others = counts.mails - counts.replies
    if not others:
        return []
    fact = f"Of its {counts.mails:,} mails, {others:,} quote no mail that they answer, and are left out."
    return [(fact, "Only a reply that quotes has a question.")]


def _text_facts(file: Path) -> list[tuple[str, str]]:
    facts = encoding_facts(file)
    with open_table(file, errors="replace") as (lines, layout):
        header = layout.header
        sound = first_sound(lines)
    if sound:
        fact = f"Its marks of sounds, such as `{sound}`, are left out."
        facts.append((fact, "A model of texts learns words alone."))
    if header and header.is_made and not text_pairs.holds_pairs(file):
        names = listed(header.names)
        fact = f"Its first line is a row, not a line of names, so its columns are called {names}."
        facts.append((fact, "If that is wrong, write a line of names above the rows."))
    return facts


def _described_chat(chat: chat_logs.ChatContent) -> str:
    count = len(chat.rows)
    conversations = f"{count:,} {plural('conversation', count)}"
    if not chat.speakers:
        return f"This is {chat.title} without messages, not a recipe."
    return f"This is {chat.title}, not a recipe. It has {conversations} of {people_of(chat)}."


def _columns(file: Path) -> list[str]:
    try:
        return rows.columns(file)
    except Unreadable:
        return []


def first_pair(
    sample: Sequence[Mapping[str, object]], question: str, answer: str
) -> tuple[str, str] | None:
    """The first question with its answer, as a model would learn them; None without a row that has
    both. sample: rows; question, answer: templates of their columns."""
    for row in sample:
        with suppress(KeyError, templates.NoText):
            asked = text_of_html(templates.fill(question, row)).strip()
            learned = text_of_html(templates.fill(answer, row)).strip()
            if asked and learned:
                return asked, learned
    return None


def text_sentence(beginning: str) -> str:
    """What the model will learn of plain text; empty without any."""
    if not beginning:
        return ""
    return (
        f"The model will learn to continue this text: “{shortened(beginning, LEARNED_CHARACTERS)}”"
    )


def learned_sentence(pair: tuple[str, str] | None) -> str:
    """What the model will learn of a row; empty without one."""
    if not pair:
        return ""
    question, answer = (shortened(text, LEARNED_CHARACTERS) for text in pair)
    return f"The model will learn: “{question}” → “{answer}”"
