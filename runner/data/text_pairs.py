"""Text files with questions and answers: labelled (`Q: …`, `A: …`), those of quizzes, in a table of
Markdown, under lines that ask, or a pair on each line (`term – definition`)."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from runner.data import quiz_texts
from runner.data.column_names import TABLES
from runner.data.columns import ANSWER_NAMES, QUESTION_NAMES, question_and_answer
from runner.data.html_text import text_of_html
from runner.data.row_files import KEPT, NOT_UTF8, Bad, Numbered, is_encodable
from runner.data.table_layout import CLOZE, cards_of_cloze, encoding_of
from runner.tools.files import TEXTS, once_per_file

COLUMNS = ("question", "answer")
# Fewer pairs may be chance.
LEAST_PAIRS = 4
# Lines of a title above the pairs.
MOST_TITLE_LINES = 3
# In a text of questions with answers, an answer has few paragraphs.
MOST_PARAGRAPHS = 5
# In one without empty lines, it has few lines.
MOST_LINES = 3
HEAD_CHARACTERS = 100_000
MOST_TERM_CHARACTERS = 80
# Colons are in sentences too, behind more words.
MOST_TERM_WORDS, MOST_WORDS_BEFORE_COLON = 6, 3
MOST_QUESTION_CHARACTERS = 300
# This share of the lines must be pairs, and this share of their terms different: people of a chat
# repeat.
LEAST_PAIRED, LEAST_DIFFERENT = 0.9, 0.9
# Between a term and its definition, or a word and its translation, the surest first.
MARKS = (" – ", " — ", " = ", " → ", " => ", " -> ", " :: ", " - ", " : ", ": ")
# Names that people in a chat with a machine have.
OF_CHATS = ("user", "assistant")
_QUESTION_LABELS = {name for name in QUESTION_NAMES if name not in OF_CHATS}
_ANSWER_LABELS = {name for name in ANSWER_NAMES if name not in OF_CHATS}
# The time of a line in a transcript.
TIME = r"(?:[\[(]?\d{1,2}:\d{2}(?::\d{2})?[\])]?\s+)?"
_LABELLED = re.compile(
    TIME + r"[\s#*_]*(?P<label>[^\W\d_]+)\s?\d*[*_]{0,2}\s?[:.)：][*_]{0,2}\s*(?P<text>.*)"
)
# Letters are names of people too: with them, this share of the questions must ask.
LEAST_ASKING = 0.5
# Of the headings of a level, those that ask.
LEAST_ASKING_HEADINGS = 0.8
# A line below a heading in Markdown and reStructuredText.
_UNDERLINE = re.compile(r"\s*([=~^-])\1{2,}\s*$")
_DETAILS = (
    r"<details[^<>]*>\s*<summary[^<>]*>(?P<summary>.*?)</summary>(?P<answer>.*?)</details\s*>"
)
# A line of a table in Markdown, and the one below its names.
_TABLE_LINE = re.compile(r"\s*\|(?P<cells>.*)\|\s*$")
_TABLE_RULE = re.compile(r"\s*\|(\s*:?-+:?\s*\|)+\s*$")
_CELL_END = re.compile(r"(?<!\\)\|")
_HEADING = re.compile(r"#{1,6}\s+(?P<text>.*?)[\s#]*$")
_BULLET = re.compile(r"^\s*([-*•+]|\d{1,3}[.)])\s+")
_EMPHASIS = re.compile(r"^(\*\*|__)(.*)\1$")
_ASKS = re.compile(r"[?？][\"'”»)]*$")


class TextPair(NamedTuple):
    """A question and its answer, and the line where the question begins, from 1. The answer is
    empty if the text has none."""

    line: int
    question: str
    answer: str


# Finds the pairs of a text; none if it is laid out otherwise.
Layout = Callable[[Sequence[str]], list[TextPair]]


def holds_pairs(file: Path) -> bool:
    """Whether a text file begins with questions and answers."""
    return file.suffix.lower() in TEXTS and file.is_file() and _layout_of(file) is not None


def rows_of(file: Path) -> Iterator[Numbered]:
    """The pairs of a text file as rows, each with the line of its question."""
    layout = _layout_of(file)
    if layout is None:
        return
    with file.open(encoding=encoding_of(file), errors=KEPT) as content:
        lines = content.read().split("\n")
    for line, question, answer in layout(lines):
        if is_encodable(question) and is_encodable(answer):
            yield line, {"question": question, "answer": answer}
        else:
            yield line, Bad(NOT_UTF8)


@once_per_file
def _layout_of(file: Path) -> Layout | None:
    """The layout of a text's pairs, by its beginning; None without pairs."""
    with file.open(encoding=encoding_of(file), errors=KEPT) as content:
        lines = content.read(HEAD_CHARACTERS).split("\n")
    for layout in LAYOUTS:
        if len(layout(lines)) >= LEAST_PAIRS:
            return layout
    return None


def _of_quiz(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of a quiz, each question with its options."""
    pairs = []
    for line, question, answer in quiz_texts.with_options_below(lines):
        pairs.append(TextPair(line, question, answer))
    return pairs if _are_complete(pairs) else []


def _of_gift(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of Moodle's GIFT; an essay among them has no answer."""
    pairs = [TextPair(*question) for question in quiz_texts.of_gift(lines)]
    answered = [pair for pair in pairs if pair.answer]
    return pairs if len(answered) > len(pairs) / 2 else []


def _in_table(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of the tables of Markdown in a text, by the names of their columns or what is in
    them."""
    pairs = list[TextPair]()
    for number, line in enumerate(lines):
        if not _TABLE_RULE.match(line) or not number or not _TABLE_LINE.match(lines[number - 1]):
            continue
        names = _cells_of(lines[number - 1])
        numbered = list[tuple[int, dict[str, str]]]()
        for row_number, row_line in enumerate(lines[number + 1 :], number + 2):
            if not _TABLE_LINE.match(row_line):
                break
            numbered.append((row_number, dict(zip(names, _cells_of(row_line), strict=False))))
        pair_columns = question_and_answer(names, [row for _, row in numbered])
        if pair_columns:
            question, answer = pair_columns
            for row_number, row in numbered:
                pairs.append(TextPair(row_number, row.get(question, ""), row.get(answer, "")))
    return pairs


def _cells_of(line: str) -> list[str]:
    table_line = _TABLE_LINE.match(line)
    assert table_line
    cells = _CELL_END.split(table_line["cells"])
    return [_without_emphasis(cell.replace("\\|", "|").strip()) for cell in cells]


def _labelled(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of lines such as `Q: …` and `A: …`; other lines continue the text above them."""
    pairs = _with_labels(lines, _QUESTION_LABELS, _ANSWER_LABELS)
    if pairs:
        return pairs
    for question_letter, answer_letter in TABLES["letters"]:
        pairs = _with_labels(lines, {question_letter}, {answer_letter})
        asking = sum(bool(_ASKS.search(pair.question)) for pair in pairs)
        if len(pairs) >= LEAST_PAIRS and asking >= LEAST_ASKING * len(pairs):
            return pairs
    return []


def _with_labels(
    lines: Sequence[str], question_labels: Collection[str], answer_labels: Collection[str]
) -> list[TextPair]:
    entries = list[tuple[int, bool, list[str]]]()
    for number, line in enumerate(lines, 1):
        labelled = _LABELLED.match(line)
        label = labelled["label"].lower() if labelled else ""
        if labelled and (label in question_labels or label in answer_labels):
            entries.append((number, label in question_labels, [labelled["text"]]))
        elif entries:
            entries[-1][2].append(line)
        elif number > MOST_TITLE_LINES and line.strip():
            return []
    pairs = []
    for (number, is_question, question_lines), (_, follows_question, answer_lines) in pairwise(
        entries
    ):
        if is_question and not follows_question:
            pairs.append(_pair(number, question_lines, answer_lines))
    return pairs if _are_complete(pairs) else []


def _under_questions(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of lines that ask, at the beginning of a paragraph or as headings, with all that
    stands under each; none in a text that asks now and then."""
    text_lines = [line for line in lines if line.strip()]
    has_gaps = "\n\n" in "\n".join(map(str.strip, lines)).strip()
    most_paragraphs = MOST_PARAGRAPHS
    paragraphs = sum(map(_begins_paragraph, lines, ["", *lines]))
    if not has_gaps:
        most_paragraphs = MOST_LINES
        paragraphs = len(text_lines)
    questions = _questions_with_lines(lines, has_gaps)
    if not questions or paragraphs > most_paragraphs * len(questions):
        return []
    title_lines = [line for line in lines[: questions[0][0] - 1] if line.strip()]
    labelled_count = sum(bool(_LABELLED.match(question)) for _, question, _ in questions)
    people_talk = 2 * labelled_count > len(questions)
    if len(title_lines) > MOST_TITLE_LINES or people_talk:
        return []
    pairs = [_pair(number, [question], answer) for number, question, answer in questions]
    return pairs if _are_complete(pairs) else []


class _Heading(NamedTuple):
    """line: its place, from 0; level: 1 for the largest."""

    line: int
    level: int
    question: str


def _under_asking_headings(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of headings that ask, with all that is below each, other headings too, until one of
    its level; none if other headings of that level do not ask."""
    headings = _headings_in(lines)
    levels = Counter(heading.level for heading in headings if heading.question)
    if not levels:
        return []
    ((level, asking),) = levels.most_common(1)
    questions = {}
    ends = []
    for heading in headings:
        if heading.level <= level:
            ends.append(heading.line)
        if heading.level == level:
            questions[heading.line] = heading.question
    if asking < LEAST_ASKING_HEADINGS * len(questions):
        return []
    pairs = []
    for begin, end in pairwise([*ends, len(lines)]):
        question = questions.get(begin)
        if question:
            pairs.append(_pair(begin + 1, [question], lines[begin + 1 : end]))
    return pairs if _are_complete(pairs) else []


def _headings_in(lines: Sequence[str]) -> list[_Heading]:
    """The headings of Markdown outside of code."""
    headings = []
    is_code = False
    for number, line in enumerate(lines):
        is_code ^= line.lstrip().startswith(("```", "~~~"))
        heading = _HEADING.match(line)
        if heading and not is_code:
            level = len(line) - len(line.lstrip("#"))
            headings.append(_Heading(number, level, _asked(heading["text"])))
    return headings


def _in_details(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of HTML's details, which show an answer after a click on its question."""
    pairs = []
    text = "\n".join(lines)
    for details in re.finditer(_DETAILS, text, re.IGNORECASE | re.DOTALL):
        line = text.count("\n", 0, details.start()) + 1
        question = text_of_html(details["summary"])
        pairs.append(_pair(line, [question], [text_of_html(details["answer"])]))
    return pairs if _are_complete(pairs) else []


def _of_cloze(lines: Sequence[str]) -> list[TextPair]:
    """The cards of lines with Anki's marks around hidden words."""
    filled = [line for line in lines if line.strip()]
    marked = sum(bool(CLOZE.search(line)) for line in filled)
    if not marked or marked < LEAST_PAIRED * len(filled):
        return []
    pairs = []
    for number, line in enumerate(lines, 1):
        for question, answer in cards_of_cloze(line.strip()):
            pairs.append(TextPair(number, question, answer))
    return pairs


def _begins_paragraph(line: str, line_above: str) -> bool:
    return bool(line.strip()) and not line_above.strip()


def _questions_with_lines(lines: Sequence[str], has_gaps: bool) -> list[tuple[int, str, list[str]]]:
    """The questions of a text, each with its line's number and the lines below it, but for other
    headings. has_gaps: whether empty lines separate its paragraphs."""
    questions = list[tuple[int, str, list[str]]]()
    line_above = ""
    for number, line in enumerate(lines, 1):
        heading = _HEADING.match(line)
        is_beginning = heading or not has_gaps or not line_above.strip()
        question = _asked(heading["text"] if heading else line)
        if question and is_beginning:
            questions.append((number, question, []))
        elif questions and questions[-1][0] == number - 1 and _UNDERLINE.match(line):
            pass  # of a heading
        elif questions and (not heading or _ASKS.search(line)):
            questions[-1][2].append(line)
        line_above = line
    return questions


def _on_each_line(lines: Sequence[str]) -> list[TextPair]:
    """The pairs of a text with a term, a mark and its definition on each line; none if many lines
    lack the mark, or terms repeat."""
    filled = []
    for number, line in enumerate(lines, 1):
        if line.strip() and not _HEADING.match(line):
            without_time = re.sub(f"^{TIME}", "", line.strip())
            filled.append((number, _BULLET.sub("", without_time, count=1)))
    for mark in MARKS:
        pairs = []
        for number, line in filled:
            term, _, definition = line.partition(mark)
            most_words = MOST_WORDS_BEFORE_COLON if ":" in mark else MOST_TERM_WORDS
            if len(term) > MOST_TERM_CHARACTERS or len(term.split()) > most_words:
                definition = ""
            pairs.append(_pair(number, [term], [definition]))
        if pairs and not pairs[0].answer:
            pairs = pairs[1:]  # the title
        terms = {pair.question for pair in pairs}
        if len(terms) >= LEAST_DIFFERENT * len(pairs) and _are_complete(pairs):
            return pairs
    return []


def _asked(line: str) -> str:
    """The question that a line is, without bullets and emphasis; empty for another line."""
    text = _without_emphasis(_BULLET.sub("", line, count=1).strip())
    if len(text) <= MOST_QUESTION_CHARACTERS and _ASKS.search(text):
        return text
    return ""


def _without_emphasis(text: str) -> str:
    return _EMPHASIS.sub(r"\2", text).strip()


def _pair(line: int, question_lines: Sequence[str], answer_lines: Sequence[str]) -> TextPair:
    return TextPair(
        line,
        _without_emphasis("\n".join(question_lines).strip()),
        _without_emphasis("\n".join(answer_lines).strip()),
    )


def _are_complete(pairs: Sequence[TextPair]) -> bool:
    """Whether nearly all pairs have a question and an answer."""
    complete = [pair for pair in pairs if pair.question and pair.answer]
    return len(complete) >= LEAST_PAIRED * len(pairs)


# The surest first.
LAYOUTS: Sequence[Layout] = (
    _of_gift,
    _of_quiz,
    _in_table,
    _labelled,
    _of_cloze,
    _in_details,
    _under_asking_headings,
    _under_questions,
    _on_each_line,
)
