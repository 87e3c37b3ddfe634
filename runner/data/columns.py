"""Columns: which column of a table holds the questions, and which their answers, by their names and
by what is in them."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from runner.data.column_names import TABLES
from runner.data.quizzes import LETTERED, RIGHT, RIGHT_NAMES, quiz_of, series_of_options
from runner.recipe.templates import text_of_steps, value_at

QUESTION_NAMES: list[str] = TABLES["question"]
ANSWER_NAMES: list[str] = TABLES["answer"]
# Of an answer, if no column has one of those.
LIKELY_ANSWER_NAMES: list[str] = TABLES["likely_answer"]
# Of a request: its subject, what a person writes below it, and what is answered there.
SUBJECT_NAMES: list[str] = TABLES["subject"]
DETAILS_NAMES: list[str] = TABLES["details"]
REPLY_NAMES: list[str] = TABLES["reply"]
# Of the text that a question is about.
CONTEXT_NAMES: list[str] = TABLES["context"]
# Of remarks about other columns.
REMARK_NAMES: list[str] = TABLES["remark"]
# Of classes of texts, and of states, places and degrees, which a text does not say itself.
CLASS_NAMES: list[str] = TABLES["class"]
STATE_NAMES: list[str] = TABLES["state"]
# Of columns that other kinds of rows have.
OTHER_NAMES: list[str] = TABLES["other"]
# Of two statements, and of what is learned about them.
STATEMENTS = ("premise", "hypothesis", "label")
# Of ingredients and of what is done with them, which belong together.
TOGETHER: list[tuple[str, str]] = TABLES["together"]
# Of what a text is about, if no column asks.
TOPIC_NAMES: list[str] = TABLES["topic"]
# Of languages, and their codes.
LANGUAGE_NAMES = frozenset(TABLES["languages"])
# Of people.
PEOPLE_NAMES = frozenset(TABLES["people"])
# Of people who ask others.
ASKING_PEOPLE: list[str] = TABLES["asking_people"]
# Of an object inside a row that is a person.
PERSON_NAMES = frozenset(TABLES["person"])
# Of an identifier, as a name's last word.
IDENTIFIER_NAMES = frozenset(TABLES["identifier"])
USUAL_NAMES = frozenset((*QUESTION_NAMES, *ANSWER_NAMES, *LIKELY_ANSWER_NAMES, *OTHER_NAMES))
NO_TEXT = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in TABLES["no_text"].items()}
# Those that no column is called.
NUMBERS_AND_DATES = ("number", "date", "date_in_words", "time", "address")
# A column that is empty in most rows would lose most rows.
LEAST_FILLED = 0.5
# From this share of values without words on, a column holds none.
MOST_WITHOUT_TEXT = 0.5
# A column with question marks in this share holds questions, whatever it is called.
LEAST_ASKING = 0.3
# Among this many rows or more, a few short values that repeat are a kind, a state or a person.
FEW_ROWS, MOST_KINDS_SHARE, MOST_KIND_CHARACTERS = 10, 0.2, 25
MOST_KINDS_OF_FEW = 3
# From this number of values on, a column of one value says nothing about a row.
FEW_VALUES = 3
# Texts of which neither is so much longer stay in the order of the file.
LONGER = 1.3
# Two answers are compared, and some comparisons end without a better one.
MOST_RIVALS = 2
UNDECIDED = ("TIE", "BOTH", "NEITHER", "NONE", "EQUAL", "SAME", "BAD", "BOTHBAD")
# Where a new word begins in a name such as `AnswerBody`.
_NEXT_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")
# The column of an object inside a row.
_PATH = re.compile(r"\w+(\.\w+)+")
# The beginning of a name in Chinese or Japanese.
_WITHOUT_SPACES = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")
# A shorter usual name, such as `a`, is no word of a longer one.
MIN_NAME_LENGTH = 2
_ASKING_NAME = re.compile(r"[?？]\W*$")


@dataclass(frozen=True)
class ColumnFacts:
    """What the values of a column are like."""

    name: str
    filled_share: float  # of the rows, those with a value
    mean_characters: float  # of a value
    asking_share: float  # of the values, those with a question mark
    holds_text: bool  # not numbers, dates, addresses, file names or identifiers
    is_kind: bool  # few different, short values: a category, a state, a person
    different_share: float  # of the values, those that differ; 1 for a few

    @property
    def varies(self) -> bool:
        """Whether the column has not the same value in all rows."""
        return self.different_share > 0


class LikelyPair(NamedTuple):
    """Templates of the question that a model is asked, and of the answer that it learns."""

    question: str
    answer: str


def likely_pair(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> LikelyPair | None:
    """What a model most likely learns of a table; None if no columns hold questions and answers.
    The question of a quiz has its options. rows: a sample."""
    sample = list(rows)
    if RIGHT in names:
        return _pair_of_quiz(names, sample)
    entailed = _pair_of_statements(names)
    if entailed:
        return entailed
    pair = question_and_answer(names, sample)
    if pair is None:
        return None
    question, answer = pair
    return LikelyPair(_asked_with(question, answer, names, sample), _answered_with(answer, names))


def _pair_of_statements(names: Sequence[str]) -> LikelyPair | None:
    """Two statements, of which a label says whether one follows from the other; None for other
    rows."""
    by_name = {_lower(name): name for name in reversed(names)}
    columns = [by_name.get(name) for name in STATEMENTS]
    if None in columns:
        return None
    premise, hypothesis, label = columns
    return LikelyPair(f"[{premise}]\n\n[{hypothesis}]", f"[{label}]")


def _answered_with(answer: str, names: Sequence[str]) -> str:
    """The template of an answer; of a recipe for cooking, with its ingredients."""
    for ingredients, steps in TOGETHER:
        for name in names:
            if _lower(answer) == steps and _lower(name) == ingredients:
                return f"[{name}]\n\n[{answer}]"
    return f"[{answer}]"


def further_pair(
    names: Sequence[str], used: Collection[str], rows: Iterable[Mapping[str, object]]
) -> tuple[str, str] | None:
    """The columns of another question and its answer beside those that are used, such as those of
    another language; None without them. rows: a sample."""
    unused = [name for name in names if name not in used]
    if not asks_and_answers_in_words(unused):
        return None
    sample = list(rows)
    texts = []
    for name in unused:
        facts = facts_of(name, sample)
        if facts.holds_text and not facts.is_kind:
            texts.append(facts)
    question = named(texts, QUESTION_NAMES)
    answer = named([column for column in texts if column != question], ANSWER_NAMES)
    if question is None or answer is None:
        return None
    return question.name, answer.name


def _pair_of_quiz(
    names: Sequence[str], sample: Sequence[Mapping[str, object]]
) -> LikelyPair | None:
    """The question of a quiz, with its options below it, and the right one."""
    used = {LETTERED, RIGHT}
    own_names = []
    for name in names:
        if name not in used:
            own_names.append(name)
    quiz = quiz_of(own_names, sample)
    if quiz:
        used.update((*quiz.options, quiz.labels, quiz.right))
    other_names = [name for name in names if name not in used]
    columns = []
    texts = []
    for name in other_names:
        facts = facts_of(name, sample)
        columns.append(facts)
        if facts.holds_text:
            texts.append(facts)
    question = named(columns, QUESTION_NAMES) or _asking(texts) or _longest(texts)
    if question is None:
        return None
    asked = _asked_with(question.name, RIGHT, other_names, sample)
    return LikelyPair(f"{asked}\n[{LETTERED}]", f"[{RIGHT}]")


def _asked_with(
    question: str, answer: str, names: Sequence[str], sample: Sequence[Mapping[str, object]]
) -> str:
    """The template of a question, with the text that it is about, or with the details below the
    subject of a request."""
    columns = [facts_of(name, sample) for name in names if name not in (question, answer)]
    texts = [column for column in columns if column.holds_text and column.varies]
    details = _called(texts, CONTEXT_NAMES)
    is_answered = _is_named(answer, (*ANSWER_NAMES, *REPLY_NAMES))
    if details is None and is_answered:
        filled = [column for column in texts if column.filled_share >= LEAST_FILLED]
        if _lower(question) in (*SUBJECT_NAMES, *TOPIC_NAMES):
            details = named(filled, DETAILS_NAMES)
        elif _is_named(question, DETAILS_NAMES):
            subject = _called(filled, SUBJECT_NAMES)
            if subject:
                return f"[{subject.name}]\n\n[{question}]"
    if details is None:
        return f"[{question}]"
    return f"[{question}]\n\n[{details.name}]"


def asks_and_answers(names: Iterable[str]) -> bool:
    """Whether there are columns with usual names for questions and for answers."""
    lower_names = set(map(_lower, names))
    asks = not lower_names.isdisjoint(QUESTION_NAMES)
    return asks and not lower_names.isdisjoint(ANSWER_NAMES)


class Rivals(NamedTuple):
    """Two columns of answers to each question, and the column that says which one is better; or
    two, with 1 for a better first and for a better second one. options: the answers by their
    marks."""

    first_answer: str
    second_answer: str
    judge: str
    flags: tuple[str, ...]
    options: Mapping[str, str]

    def place(self, verdict: object) -> int | None:
        """The better answer of a verdict, 0 or 1; None for neither."""
        written = str(verdict or "").strip()
        answers = [self.first_answer, self.second_answer]
        if written in answers:
            return answers.index(written)
        mark = _words_of(written)[-1].upper()
        if mark in self.options:
            return answers.index(self.options[mark])
        return None


def rival_answers(names: Sequence[str], sample: Sequence[Mapping[str, object]]) -> Rivals | None:
    """Two columns of answers to each question, of which another column says which one is better;
    None without them."""
    for options in series_of_options(names):
        answers = list(options.values())
        are_answers = all(_is_named(name, ANSWER_NAMES) for name in answers)
        if len(answers) != MOST_RIVALS or not are_answers:
            continue
        flags = []
        for name in names:
            if name in answers or name in RIGHT_NAMES:
                continue
            if _judges(name, options, sample):
                return Rivals(answers[0], answers[1], name, (), options)
            if _is_flag(name, options):
                flags.append(name)
        if len(flags) == MOST_RIVALS:
            return Rivals(answers[0], answers[1], "", tuple(flags), options)
    return None


def _judges(name: str, options: Mapping[str, str], sample: Sequence[Mapping[str, object]]) -> bool:
    """Whether each value of a column is one of two answers, by its mark or its name, or neither."""
    verdicts = [str(value_of(row, name) or "").strip() for row in sample]
    for verdict in verdicts:
        mark = _words_of(verdict)[-1].upper()
        if verdict not in options.values() and mark not in (*options, *UNDECIDED):
            return False
    return any(_words_of(verdict)[-1].upper() in options for verdict in verdicts)


def _is_flag(name: str, options: Mapping[str, str]) -> bool:
    """Whether a column says of one answer whether it is better: `winner_model_a`."""
    name_words = _words_of(name)
    return name_words[0] == "winner" and name_words[-1].upper() in options


def question_and_answer(
    names: Sequence[str], rows: Iterable[Mapping[str, object]]
) -> tuple[str, str] | None:
    """The columns of the question and of its answer; None if there are not two columns for them.
    rows: a sample. A usual name counts first, where the column is filled; then question marks, and
    then length: the longest text is the answer."""
    sample = list(rows)
    known_pair = _pair_of_known_names(names, sample)
    if known_pair:
        return known_pair
    pair = _of_filled_columns(names, sample)
    if pair is None:
        full_rows = _full_rows(names, sample)
        if len(full_rows) < len(sample):
            pair = _of_filled_columns(names, full_rows)
    return pair


def _pair_of_known_names(
    names: Sequence[str], sample: Sequence[Mapping[str, object]]
) -> tuple[str, str] | None:
    """The columns of a text and of what belongs to it, such as code or a summary, by their names,
    if no column has a usual name."""
    by_name = {_lower(name): name for name in reversed(names)}
    if not by_name.keys().isdisjoint((*QUESTION_NAMES, *ANSWER_NAMES)):
        return None
    for pair in TABLES["pairs"]:
        asked_name = next(filter(by_name.__contains__, pair["asked"]), None)
        answered_name = next(filter(by_name.__contains__, pair["answered"]), None)
        if asked_name is None or answered_name is None:
            continue
        facts = facts_of(by_name[answered_name], sample)
        # The code of an article in a shop is no program.
        if facts.holds_text and facts.mean_characters > MOST_KIND_CHARACTERS:
            return by_name[asked_name], by_name[answered_name]
    return None


def _of_filled_columns(
    names: Sequence[str], sample: Sequence[Mapping[str, object]]
) -> tuple[str, str] | None:
    columns = [facts_of(name, sample) for name in names]
    filled = [column for column in columns if column.filled_share >= LEAST_FILLED]
    question, answer = _likeliest(filled)
    if question is None or answer is None or _are_apart(question, answer):
        return None
    if _repeats(question.name, answer.name, sample):
        return _of_filled_columns([name for name in names if name != answer.name], sample)
    if _is_topic_of(answer, question):
        return answer.name, question.name
    if not named([question], QUESTION_NAMES) and not named([answer], ANSWER_NAMES):
        question, answer = _in_order(question, answer, columns)
    return question.name, answer.name


def _repeats(question: str, answer: str, sample: Sequence[Mapping[str, object]]) -> bool:
    """Whether most answers are their own questions."""
    same_rows = 0
    for row in sample:
        asked, answered = value_of(row, question), value_of(row, answer)
        same_rows += asked is not None and asked == answered
    return same_rows > LEAST_FILLED * len(sample)


def _is_topic_of(answer: ColumnFacts, question: ColumnFacts) -> bool:
    """Whether one column has what the text in the other is about: a request has both, and its
    subject is no answer to it."""
    is_topic = any(_words_of(answer.name)[-1] == name for name in TOPIC_NAMES)
    return is_topic and _is_named(question.name, DETAILS_NAMES) and not answer.is_kind


def _full_rows(
    names: Sequence[str], sample: Sequence[Mapping[str, object]]
) -> list[Mapping[str, object]]:
    """The rows with most cells filled: a table of products has rows of variants, which have little
    more than a number and a price."""
    counts = []
    for row in sample:
        counts.append(sum(bool(str(value_of(row, name) or "").strip()) for name in names))
    least = max(counts, default=0) * LEAST_FILLED
    return [row for row, count in zip(sample, counts, strict=True) if count > least]


def _likeliest(
    filled: Sequence[ColumnFacts],
) -> tuple[ColumnFacts | None, ColumnFacts | None]:
    """The columns that are likeliest the question and its answer; None for one that is not
    there."""
    texts = _texts_of(filled)
    varying = [column for column in filled if column.varies]
    answer = named(varying, ANSWER_NAMES) or _reply(texts) or named(texts, LIKELY_ANSWER_NAMES)
    question = named([column for column in filled if column != answer], QUESTION_NAMES)
    unanswered = [column for column in texts if column != answer]
    question = question or _spoken_by(unanswered, ASKING_PEOPLE)
    question = question or _asking(unanswered)
    question = question or _called(unanswered, (*SUBJECT_NAMES, *TOPIC_NAMES))
    if question is None and answer is None:
        question, answer = _first_of_equals(texts)
    answer = answer or _longest([column for column in texts if column != question])
    if question is None and answer is not None:
        others = [column for column in texts if column != answer]
        if all(column.is_kind for column in others):
            question = _class_of(others)
        else:
            question = _longest(others)
    # The same answer in all rows is better than none.
    others = [column for column in filled if column != question]
    return question, answer or named(others, ANSWER_NAMES)


def _class_of(kinds: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """The column with the classes of a text, among some of few different values: one that is called
    so, or the only one that is no state, place or degree. None if nothing says which one it is."""
    called = named(kinds, CLASS_NAMES)
    if called:
        return called
    unlike_states = [column for column in kinds if not _is_named(column.name, STATE_NAMES)]
    candidates = unlike_states or kinds
    if len(candidates) == 1:
        return candidates[0]
    return None


def _spoken_by(texts: Sequence[ColumnFacts], people: Sequence[str]) -> ColumnFacts | None:
    """The column with the words of one of some people, not their names."""
    column = _called(texts, people)
    if column and column.mean_characters > MOST_KIND_CHARACTERS:
        return column
    return None


def _texts_of(filled: Sequence[ColumnFacts]) -> list[ColumnFacts]:
    """The columns with texts of their own, without people; and without remarks, unless a request is
    answered in them or they are all there is."""
    texts = []
    for column in filled:
        if column.holds_text and column.varies and not _is_person(column.name):
            texts.append(column)
    main_texts = []
    for column in texts:
        is_state = column.different_share <= MOST_KINDS_SHARE
        if not is_state and not _is_named(_lower(column.name), REMARK_NAMES):
            main_texts.append(column)
    if len(main_texts) > 1 and _reply(texts) is None:
        return main_texts
    return texts


def _reply(texts: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """The column in which a request is answered, if others have its subject and its details."""
    subject = _called(texts, SUBJECT_NAMES)
    details = named([column for column in texts if column != subject], DETAILS_NAMES)
    if subject is None or details is None:
        return None
    return named([column for column in texts if column not in (subject, details)], REPLY_NAMES)


def longest_text(names: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str | None:
    """The column with the longest texts; None without a text."""
    sample = list(rows)
    columns = [facts_of(name, sample) for name in names]
    longest = _longest([column for column in columns if column.holds_text])
    if longest is None:
        return None
    return longest.name


def asks_and_answers_in_words(names: Iterable[str]) -> bool:
    """The same, where the names may have other words beside the usual ones: `Customer question` and
    `Our answer`."""
    all_names = list(names)
    asking = [name for name in all_names if _is_named(name, QUESTION_NAMES)]
    answering = [name for name in all_names if _is_named(name, ANSWER_NAMES)]
    return bool(asking) and any(name not in asking for name in answering)


def named(columns: Iterable[ColumnFacts], usual_names: Sequence[str]) -> ColumnFacts | None:
    """The column with the likeliest of the usual names; the name of a column with texts may have
    other words beside it."""
    all_columns = list(columns)
    called = _called(all_columns, usual_names)
    if called:
        return called
    for usual_name in usual_names:
        for column in all_columns:
            is_text = column.holds_text and column.varies and not _is_language(column.name)
            if is_text and _is_named(column.name, (usual_name,)):
                return column
    return None


def _is_named(name: str, usual_names: Sequence[str]) -> bool:
    """Whether a name is one of the usual names, has it as a word, or ends with it in a script
    without spaces, where the last part says what a thing is."""
    name_words = _words_of(name)
    for usual_name in usual_names:
        if len(usual_name) < MIN_NAME_LENGTH:
            continue
        if usual_name in name_words or usual_name == _lower(name):
            return True
        if _WITHOUT_SPACES.match(usual_name) and name_words[-1].endswith(usual_name):
            return True
    return False


def _words_of(name: str) -> list[str]:
    pieces = re.split(r"[\W_]+", _NEXT_WORD.sub(" ", name).lower())
    return [piece for piece in pieces if piece] or [""]


def _is_person(name: str) -> bool:
    """Whether a column is about a person."""
    objects = name.lower().split(".")[:-1]
    return _lower(name) in PEOPLE_NAMES or not PERSON_NAMES.isdisjoint(objects)


def _called(columns: Sequence[ColumnFacts], usual_names: Sequence[str]) -> ColumnFacts | None:
    """The first column that has the likeliest of the usual names, and no other word."""
    by_name = {_lower(column.name): column for column in reversed(columns)}
    return next((by_name[name] for name in usual_names if name in by_name), None)


def _lower(name: str) -> str:
    """A column's name as the tables of usual names have it; of a path, the last name."""
    if _PATH.fullmatch(name):
        name = name.rpartition(".")[2]
    return name.lower().strip()


def facts_of(name: str, rows: Sequence[Mapping[str, object]]) -> ColumnFacts:
    values = []
    for row in rows:
        value = value_of(row, name)
        if value is not None and str(value).strip():
            values.append(value)
    if not values:
        return ColumnFacts(
            name, 0.0, 0.0, 0.0, holds_text=False, is_kind=False, different_share=0.0
        )
    texts = [str(value).strip() for value in values]
    without_text = sum(map(holds_no_text, values))
    is_identifier = _words_of(name)[-1] in IDENTIFIER_NAMES
    mean_characters = sum(map(len, texts)) / len(texts)
    most_kinds = max(MOST_KINDS_OF_FEW, MOST_KINDS_SHARE * len(texts))
    repeats = len(texts) >= FEW_ROWS and len(set(texts)) <= most_kinds
    return ColumnFacts(
        name=name,
        filled_share=len(values) / len(rows),
        mean_characters=mean_characters,
        asking_share=sum("?" in text or "？" in text for text in texts) / len(texts),
        holds_text=not is_identifier and without_text < MOST_WITHOUT_TEXT * len(values),
        is_kind=repeats and mean_characters <= MOST_KIND_CHARACTERS,
        different_share=_different_share(texts),
    )


def _different_share(texts: Sequence[str]) -> float:
    """The share of values that differ, 0 if all are the same; 1 if they are too few to say."""
    different = len(set(texts))
    if len(texts) < FEW_VALUES:
        return 1.0
    if different == 1:
        return 0.0
    return different / len(texts)


def value_of(row: Mapping[str, object], name: str) -> Any:
    """The value of a column, a list of texts or of steps as one text; None if a row lacks it, and
    for a list of other objects, whose fields are columns."""
    try:
        value = value_at(row, name)
    except KeyError:
        return None
    if not isinstance(value, list):
        return value
    lines = text_of_steps(value)
    if lines is not None:
        return lines
    if all(isinstance(entry, dict) for entry in value):
        return None
    return value


def holds_no_text(value: object) -> bool:
    """Whether a value is a number, a date, an address, a file name or an identifier."""
    if not isinstance(value, str):
        return value is not None
    text = value.strip()
    return any(pattern.fullmatch(text) for pattern in NO_TEXT.values())


def is_number_or_date(value: object) -> bool:
    """Whether a value is a number, a date, a time or an address."""
    if not isinstance(value, str):
        return value is not None
    text = value.strip()
    return any(NO_TEXT[kind].fullmatch(text) for kind in NUMBERS_AND_DATES)


def _is_language(name: str) -> bool:
    """Whether a column is called as a language, or by the code of one."""
    return _lower(name) in LANGUAGE_NAMES


def _asking(columns: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """The column with most question marks, if it has many."""
    asking = [column for column in columns if column.asking_share >= LEAST_ASKING]
    return max(asking, key=lambda column: column.asking_share, default=None)


def _longest(columns: Sequence[ColumnFacts]) -> ColumnFacts | None:
    """The column with the longest texts; kinds only if there is nothing else."""
    texts = [column for column in columns if not column.is_kind]
    return max(texts or columns, key=lambda column: column.mean_characters, default=None)


def _first_of_equals(
    columns: Sequence[ColumnFacts],
) -> tuple[ColumnFacts | None, ColumnFacts | None]:
    """The first two of several columns of which none is much longer than another, as the languages
    of a glossary are; None for both otherwise."""
    texts = [column for column in columns if not column.is_kind]
    lengths = [column.mean_characters for column in texts]
    if len(texts) < 3 or max(lengths) >= LONGER * min(lengths):
        return None, None
    return texts[0], texts[1]


def _are_apart(question: ColumnFacts, answer: ColumnFacts) -> bool:
    """Whether no column answers the other: both are categories, or each answers the question that
    it is called by, as in the export of a survey."""
    if question.is_kind and answer.is_kind:
        return True
    are_questions = all(_ASKING_NAME.search(column.name) for column in (question, answer))
    return are_questions and question.asking_share < LEAST_ASKING


def _in_order(
    question: ColumnFacts, answer: ColumnFacts, columns: Sequence[ColumnFacts]
) -> tuple[ColumnFacts, ColumnFacts]:
    """Two columns without usual names: as they stand in the file, unless what they hold says
    which is which. A kind is what is learned of a text. Languages stay in their order: `the dog` is
    longer than its translation."""
    if _is_language(question.name) and _is_language(answer.name):
        first, second = sorted((question, answer), key=columns.index)
        return first, second
    if question.is_kind and not answer.is_kind:
        return answer, question
    if answer.is_kind and not question.is_kind:
        return question, answer
    asks = question.asking_share >= LEAST_ASKING > answer.asking_share
    is_longer = answer.mean_characters >= LONGER * question.mean_characters
    if asks or is_longer or columns.index(question) < columns.index(answer):
        return question, answer
    return answer, question
