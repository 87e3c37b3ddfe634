"""Rows with a prompt and its answers: two, of which one is better; one with a label; or a reference
answer for rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.catalog import ChatTemplate
from runner.data.conversation_formats import (
    BESIDES,
    REASONING,
    Conversation,
    NoExchange,
    Turn,
    text_in,
    turn_of,
    turns_in,
)
from runner.data.data_sets import DataSet, DataSets, SplitDataSets
from runner.data.row_files import DataRow
from runner.data.tokenizers import Pretrained
from runner.data.verdicts import CHOSEN, LeftOut
from runner.recipe import templates
from runner.recipe.templates import PROMPTS, NoText
from runner.tools.problem import listed


@dataclass(frozen=True)
class Answered(Conversation):
    """A prompt, whose last turn asks. answers: by column, in the columns' order: `chosen` and
    `rejected`; `completion` and whether its `label` is good; or `answer`, the reference that
    rewards compare with."""

    answers: Mapping[str, str | bool] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return repr((self.turns, *self.answers.values()))


def _asked(template: str, row: DataRow, implicit: bool) -> tuple[Turn, ...]:
    """The turns of a prompt. implicit: whether its column also has the answer, as its last turn."""
    turns = _turns_of(template, row, "user")
    turns = turns[:-1] if implicit else turns
    system_prompt = row.get("system")
    if system_prompt and turns and turns[0].role != "system":
        turns = (Turn("system", text_in(system_prompt, "system")), *turns)
    if not turns or turns[-1].role != "user":
        raise NoText(f"`{template}` has no turn of the user before the answer")
    return turns


def _answer(template: str, row: DataRow, prompt: tuple[Turn, ...]) -> str:
    """The last turn of an answer; others before it must be those of the prompt."""
    *before, answer = _turns_of(template, row, "assistant")
    if answer.role != "assistant":
        raise NoText(f"`{template}` ends with the role `{answer.role}`, but an answer must be last")
    prompt_turns, before = (
        [turn for turn in turns if turn.role != "system"] for turns in (prompt, before)
    )
    if before not in ([], prompt_turns):
        raise NoText(f"`{template}` has other turns before its answer than the prompt")
    return answer.content


def _turns_of(template: str, row: DataRow, role: str) -> tuple[Turn, ...]:
    """The turns that a template gives: those in its column, or its text as a turn of this role."""
    column = template[1:-1]
    messages = list[Any]()
    if templates.columns(template) == [column]:
        messages = turns_in(row[column], column, role)
    turns = tuple(turn_of(message, number) for number, message in enumerate(messages, 1))
    if any(turn.besides for turn in turns):
        raise NoText(
            f"`{column}` has {listed((REASONING, *BESIDES), 'or')}, which only conversations may have"
        )
    return turns or (Turn(role, templates.fill(template, row).strip()),)


@dataclass(frozen=True, kw_only=True)
class PreferenceSet(DataSet):
    """A prompt and two answers, each a template with columns in brackets. A single column may
    contain turns."""

    prompt: str
    chosen: str
    rejected: str

    def item(self, row: DataRow) -> Answered | str:
        verdict = row.get(CHOSEN)
        if isinstance(verdict, LeftOut):
            raise NoExchange(str(verdict))
        prompt = _asked(self.prompt, row, self.prompt == self.chosen)
        chosen, rejected = (_answer(answer, row, prompt) for answer in (self.chosen, self.rejected))
        if not prompt[-1].content or not chosen or not rejected:
            return "a part is empty"
        answers = {"chosen": chosen, "rejected": rejected}
        if chosen != rejected:
            return Answered(prompt, answers=answers)
        return "both answers are the same"


# How files write labels.
WRITTEN = {
    **dict.fromkeys(("true", "1", "1.0", "yes"), True),
    **dict.fromkeys(("false", "0", "0.0", "no"), False),
}


@dataclass(frozen=True, kw_only=True)
class LabelSet(DataSet):
    """A prompt, one answer and its label, as in PreferenceSet. prompt: None if the row's columns
    show it."""

    prompt: str | None = None
    completion: str
    label: str

    def item(self, row: DataRow) -> Answered | str:
        asks = self.prompt or next(
            (f"[{column}]" for column in PROMPTS if column in row), self.completion
        )
        prompt = _asked(asks, row, asks == self.completion)
        completion = _answer(self.completion, row, prompt)
        label = templates.fill(self.label, row).strip().lower()
        if not prompt[-1].content or not completion:
            return "a part is empty"
        if label not in WRITTEN:
            raise NoText(f"the label is `{label}`; use {listed(WRITTEN, 'or')}")
        return Answered(prompt, answers={"completion": completion, "label": WRITTEN[label]})


@dataclass(frozen=True, kw_only=True)
class Judged(SplitDataSets):
    """Rows with a prompt. sequence_len: the most tokens of a row; training cuts longer rows."""

    system_prompt: str | None
    sequence_len: int
    special_tokens: ChatTemplate
    tokenizer: Pretrained | None = None


@dataclass(frozen=True, kw_only=True)
class Preferences(Judged):
    kind: Literal["preferences"] = "preferences"
    sets: tuple[PreferenceSet, ...]


@dataclass(frozen=True, kw_only=True)
class Labels(Judged):
    kind: Literal["labels"] = "labels"
    sets: tuple[LabelSet, ...]


@dataclass(frozen=True, kw_only=True)
class PromptSet(DataSet):
    """A prompt as in PreferenceSet, and its reference answer, a template."""

    prompt: str
    answer: str

    def item(self, row: DataRow) -> Answered | str:
        prompt = _asked(self.prompt, row, False)
        answer = templates.fill(self.answer, row).strip()
        if prompt[-1].content and answer:
            return Answered(prompt, answers={"answer": answer})
        return "a part is empty"


@dataclass(frozen=True, kw_only=True)
class Prompts(Judged):
    """Prompts with reference answers. sequence_len: tokens of prompt and answer; answer_tokens: of
    the answer alone."""

    kind: Literal["prompts"] = "prompts"
    sets: tuple[PromptSet, ...]
    answer_tokens: int


KINDS: Mapping[str, type[DataSets]] = {
    "preferences": Preferences,
    "labels": Labels,
    "prompts": Prompts,
}
