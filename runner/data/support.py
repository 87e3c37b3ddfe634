"""Whether rows support a question or a system prompt, by the words that they share. A cheap test
for notes, not a proof."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from runner.tools.text import GENERAL_TEXT, words

# Words with the same first letters count as one: signal and signalling, milliliter and millilitre.
STEM_LETTERS = 5
# A question is supported if one row has at least this share of its words, each weighted by how few
# rows have it.
QUESTION_SHARE = 0.4
# Rare words decide only among many rows, and shorter texts have too few words to judge, as those of
# a script without spaces.
FEWEST_ROWS = 20
FEWEST_QUESTION_WORDS = 4
# A prompt is unsupported if it has this many words of a subject, and the rows have less than this
# share of them.
FEWEST_SUBJECT_WORDS = 12
SUBJECT_SHARE = 0.25


def stems(text: str) -> frozenset[str]:
    return frozenset(word[:STEM_LETTERS] for word in words(text))


@cache
def general_stems() -> frozenset[str]:
    """Of words that belong to no subject."""
    return stems(GENERAL_TEXT.read_text("utf-8"))


class Support:
    """Collects from rows the words of questions and of a prompt, and judges these at the end."""

    def __init__(self, questions: Sequence[str], prompt: str = "") -> None:
        self.questions = {question: stems(question) for question in questions}
        self.subject = stems(prompt) - general_stems()
        self.looked_for = self.subject.union(*self.questions.values())
        self.rows: list[frozenset[str]] = []

    def add(self, text: str) -> None:
        """text: all of a row."""
        self.rows.append(stems(text) & self.looked_for)

    def unsupported_questions(self) -> list[str]:
        unsupported = []
        for question, question_stems in self.questions.items():
            if self._share(question_stems) < QUESTION_SHARE:
                unsupported.append(question)
        return unsupported

    def _share(self, question_stems: frozenset[str]) -> float:
        """The share of a question's words that the best row has; 1 if that cannot be judged."""
        if len(self.rows) < FEWEST_ROWS or len(question_stems) < FEWEST_QUESTION_WORDS:
            return 1.0
        counts = Counter(stem for row in self.rows for stem in row & question_stems)
        weights = {}
        for stem in question_stems:
            weights[stem] = math.log((len(self.rows) + 1) / (counts[stem] + 1))
        total = sum(weights.values())
        best = max(sum(weights[stem] for stem in row & question_stems) for row in self.rows)
        if total:
            return best / total
        return 1.0

    def prompt_is_unsupported(self) -> bool:
        return self._can_judge_prompt() and not self._prompt_is_covered()

    def is_same_subject(self) -> bool:
        """Whether the rows certainly support all of these questions, and the prompt."""
        return (
            bool(self.questions)
            and self._can_judge_prompt()
            and self._prompt_is_covered()
            and not self.unsupported_questions()
        )

    def _can_judge_prompt(self) -> bool:
        return len(self.rows) >= FEWEST_ROWS and len(self.subject) >= FEWEST_SUBJECT_WORDS

    def _prompt_is_covered(self) -> bool:
        covered = frozenset[str]().union(*self.rows) & self.subject
        return len(covered) >= SUBJECT_SHARE * len(self.subject)

    def findings(self) -> Iterator[tuple[str, str]]:
        """What no row supports, each with a remedy."""
        for question in self.unsupported_questions():
            yield unsupported_question(question)
        if self.prompt_is_unsupported():
            yield UNSUPPORTED_PROMPT


def unsupported_question(question: str) -> tuple[str, str]:
    return (
        f"No row supports the demo question `{question}`: no single row has enough of its words.",
        "Ask about what the rows teach, or add rows about it.",
    )


UNSUPPORTED_PROMPT = (
    "No row supports the system prompt: the rows have hardly any of its words about a subject.",
    "Describe what the rows teach, or delete the prompt.",
)


def of_prepared(folder: Path, questions: Sequence[str], prompt: str) -> Support:
    """Judges the conversations in a folder of prepared rows."""
    # A check does without these.
    from pyarrow import parquet

    from runner.data.blocks import SIDES

    support = Support(questions, prompt)
    for side in SIDES:
        file = folder / f"{side}.parquet"
        if not file.is_file():
            continue  # no row is held back
        for batch in parquet.ParquetFile(file).iter_batches(1000, columns=["messages"]):
            for turns in batch["messages"].to_pylist():
                # The prompt itself supports nothing.
                support.add(
                    " ".join(turn["content"] or "" for turn in turns if turn["role"] != "system")
                )
    return support
