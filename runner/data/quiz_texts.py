"""Text files with questions of quizzes: options below each question, and a line with the right one
or a star before it, as in Aiken and in many exams; and Moodle's GIFT, with options in braces."""

import re
from collections.abc import Sequence
from functools import cache

from runner.data.columns import ANSWER_NAMES
from runner.data.html_text import text_of_html
from runner.data.quizzes import RIGHT_NAMES

# A line, from 1; the question with its options; and the right one.
QuizQuestion = tuple[int, str, str]

LETTERS = "ABCDEFGHIJKLMNOP"
_OPTION = re.compile(r"\s*(?P<star>\*?)\s*\(?(?P<mark>[A-Ha-h])[.):]\s*(?P<text>\S.*)")
_NUMBER = re.compile(r"\s*(#+\s+)?\(?\d{1,3}[.)]\s+")
# GIFT: what separates its questions, and the parts of one. A backslash escapes its signs.
_GIFT_LINE_LEFT_OUT = re.compile(r"\s*(//|\$CATEGORY:)")
_GIFT_QUESTION = re.compile(
    r"\s*(?:::(?:\\.|[^\\])*?::)?\s*(?P<format>\[\w+\])?(?P<stem>(?:\\.|[^\\{])*)"
    r"\{(?P<answers>\s*(?=[=~#}TtFf])(?:\\.|[^\\}])*)\}(?P<rest>(?:\\.|[^\\])*)$",
    re.DOTALL,
)
_GIFT_ANSWER = re.compile(r"(?P<sign>[=~])\s*(?P<text>(?:\\.|[^\\=~])*)", re.DOTALL)
_GIFT_FEEDBACK = re.compile(r"(?<!\\)#.*", re.DOTALL)
_GIFT_WEIGHT = re.compile(r"\s*%(?P<weight>-?[\d.]+)%")
_GIFT_TRUTH = {"T": "True", "TRUE": "True", "F": "False", "FALSE": "False"}
GAP = "____"


# Few files need it, and it is large.
@cache
def _right_pattern() -> re.Pattern[str]:
    """A line with the right option of a question."""
    names = sorted({*RIGHT_NAMES, *ANSWER_NAMES}, key=len, reverse=True)
    labels = "|".join(map(re.escape, names))
    return re.compile(
        rf"[\s*_]*(?:{labels})[*_]*\s?[:：]\s*[*_]*\s*"
        r"(?P<marks>\(?[A-Ha-h]\)?(?:\s*[,;&+/]\s*\(?[A-Ha-h]\)?)*)(?:[.)\s*].*)?$",
        re.IGNORECASE,
    )


class _OptionsBelow:
    """Reads questions with options on lines of their own."""

    def __init__(self) -> None:
        self.questions = list[QuizQuestion]()
        self.number = 0
        self.question_lines = list[str]()
        self.options = dict[str, str]()
        self.starred = list[str]()

    def begin(self, number: int) -> None:
        """Begins a question in a line; the one before it ends, whose right options have stars."""
        if number and self.options and self.starred:
            self.end(self.starred)
        self.number = number
        self.question_lines = []
        self.options = {}
        self.starred = []

    def end(self, marks: Sequence[str]) -> None:
        """Ends a question. marks: of its right options."""
        question = "\n".join([*self.question_lines, *self.options.values()])
        answer = "\n".join(self.options.get(mark, mark) for mark in marks)
        self.questions.append((self.number, question, answer))
        self.begin(0)

    def add_option(self, option: re.Match[str]) -> None:
        mark = option["mark"].upper()
        self.options[mark] = f"{mark}) {option['text'].strip()}"
        if option["star"]:
            self.starred.append(mark)


def with_options_below(lines: Sequence[str]) -> list[QuizQuestion]:
    """The questions with options on lines of their own, and then the right one, or a star before
    it."""
    reader = _OptionsBelow()
    is_after_gap = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            is_after_gap = True
            continue
        option = _OPTION.match(line)
        right = _right_pattern().match(line)
        is_new = bool(_NUMBER.match(line)) or is_after_gap
        if right and reader.options:
            reader.end(re.findall("[A-H]", right["marks"].upper()))
        elif option and reader.question_lines:
            reader.add_option(option)
        elif reader.options and not is_new:
            last_mark = list(reader.options)[-1]
            reader.options[last_mark] += f" {line.strip()}"
        else:
            if is_new or not reader.question_lines:
                reader.begin(number)
            reader.question_lines.append(_NUMBER.sub("", line).strip())
        is_after_gap = False
    reader.begin(len(lines) + 1)
    return reader.questions


def of_gift(lines: Sequence[str]) -> list[QuizQuestion]:
    """The questions of a text in GIFT; one without an answer, such as an essay, has an empty
    one."""
    questions = []
    block = list[str]()
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            block.append("" if _GIFT_LINE_LEFT_OUT.match(line) else line)
            continue
        parts = _GIFT_QUESTION.match("\n".join(block).strip())
        if parts:
            question, answer = _of_gift_parts(parts)
            questions.append((number - len(block), question, answer))
        block = []
    return questions


def _of_gift_parts(parts: re.Match[str]) -> tuple[str, str]:
    """A question, with its options, and its answer."""
    stem = _plain(parts["stem"], parts["format"])
    rest = _plain(parts["rest"], parts["format"])
    if rest:
        stem = f"{stem} {GAP} {rest}"
    answers = _GIFT_FEEDBACK.sub("", parts["answers"]).strip()
    if answers.upper() in _GIFT_TRUTH:
        return stem, _GIFT_TRUTH[answers.upper()]
    if parts["answers"].strip().startswith("#"):
        number, _, _ = parts["answers"].strip(" #=\n").partition(":")
        return stem, number.strip()
    texts = list[str]()
    right_texts = list[str]()
    has_wrong_ones = False
    for entry in _GIFT_ANSWER.finditer(parts["answers"]):
        text = _GIFT_FEEDBACK.sub("", entry["text"])
        weight = _GIFT_WEIGHT.match(text)
        text = _plain(_GIFT_WEIGHT.sub("", text), parts["format"])
        texts.append(text)
        if entry["sign"] == "~":
            has_wrong_ones = True
        if entry["sign"] == "=" or (weight and float(weight["weight"]) > 0):
            right_texts.append(text)
    if has_wrong_ones:
        return _with_options(stem, texts, right_texts)
    if all("->" in text for text in right_texts):
        return stem, "\n".join(right_texts)
    return stem, right_texts[0]


def _with_options(stem: str, texts: Sequence[str], right_texts: Sequence[str]) -> tuple[str, str]:
    """A question with its options, and the right ones. The options are sorted: people write the
    right one first, because Moodle shuffles them, and a model would only learn to answer A."""
    options = []
    right_options = []
    for letter, text in zip(LETTERS, sorted(texts, key=str.casefold), strict=False):
        option = f"{letter}) {text}"
        options.append(option)
        if text in right_texts:
            right_options.append(option)
    return "\n".join([stem, *options]), "\n".join(right_options)


def _plain(text: str, text_format: str | None) -> str:
    """A text of GIFT as a person sees it."""
    unescaped = re.sub(
        r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], text
    ).strip()
    if text_format == "[html]":
        return text_of_html(unescaped)
    return unescaped
