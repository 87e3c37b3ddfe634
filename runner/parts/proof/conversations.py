"""Conversations: what the chat template writes of each prepared row, and whether the engine's labels fit it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from runner.parts.proof.showing import Faults
from runner.tools.names import shortened
from runner.trainer.generation import written

UNTRAINED = -100
# Characters of a text by which a person knows its row.
SHOWN = 60
# Tokens that a sentence shows on each side of what it is about.
NEAR = 8

Tokens = tuple[int, ...]


@dataclass(frozen=True)
class Turn:
    """An answer in a row. trained: whether it is to be learned. prompt: the tokens that a model is asked with there; None where
    the template writes what stands before it otherwise once the conversation has gone on."""

    trained: bool
    prompt: Tokens | None


@dataclass(frozen=True)
class Talk:
    """A prepared row. tokens: the whole of it, as the template writes it; answers: in order; trained_turns: of whatever
    role; named: how its first question begins, for naming it."""

    tokens: Tokens
    answers: tuple[Turn, ...]
    trained_turns: int
    named: str


@dataclass(frozen=True)
class Reader:
    """Reads prepared rows as the engine's settings for them say.

    tokenizer: as it will lie beside the trained model. roles: that are trained; marked: the field of a turn that says so instead.
    ends: the tokens that end an answer.
    """

    tokenizer: Any
    roles: frozenset[str]
    marked: str | None
    ends: frozenset[int]

    @property
    def masks(self) -> bool:
        """Whether something of every row is only seen."""
        return self.roles == {"assistant"}

    def talk(self, row: Mapping[str, Any], field: str) -> Talk:
        said = [_bare(message) for message in row[field]]
        trained = [self._trains(message) for message in said]
        shown = [{name: value for name, value in message.items() if name != self.marked} for message in said]
        tools = row.get("tools")
        tools = json.loads(tools) if isinstance(tools, str) else tools
        whole = self._tokens(written(self.tokenizer, shown, asking=False, tools=tools))
        answers = []
        for place, message in enumerate(shown):
            if message["role"] != "assistant":
                continue
            prompt: Tokens | None = None
            last = not any(other["role"] == "assistant" for other in shown[place + 1 :])
            if trained[place]:
                prompt = self._tokens(written(self.tokenizer, shown[:place], asking=True, tools=tools))
                prompt = prompt if last or whole[: len(prompt)] == prompt else None
            answers.append(Turn(trained[place], prompt))
        asked = next((str(message["content"]) for message in shown if message["role"] == "user"), "")
        return Talk(whole, tuple(answers), sum(trained), shortened(asked, SHOWN))

    def _trains(self, message: Mapping[str, Any]) -> bool:
        if self.marked and message.get(self.marked) is not None:
            return bool(message[self.marked])
        return message["role"] in self.roles

    def _tokens(self, text: str) -> Tokens:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def words(self, tokens: Sequence[int]) -> str:
        return repr(self.tokenizer.decode(list(tokens)))

    def judge(self, tokens: Sequence[int], labels: Sequence[int], talk: Talk, faults: Faults) -> None:
        """Whether a row of the engine is trained as it is to be: each answer behind the words that a model is asked with, and
        to its end."""
        runs = list(_runs(labels))
        if len(runs) < talk.trained_turns:
            faults.add("nothing_trained", f"an answer to «{talk.named}»")
        begins = []
        for answer in talk.answers:
            if answer.prompt is None:
                continue
            asked = len(answer.prompt)
            begin = self._behind_blanks(tokens, labels, asked)
            begins.append(begin)
            if tuple(tokens[:asked]) != answer.prompt or begin >= len(tokens) or labels[begin] == UNTRAINED:
                faults.add("prompt_differs", self._difference(tokens, labels, answer.prompt))
                return
        for first, after in runs:
            ended = tokens[after - 1] in self.ends
            answers = self.masks or any(first <= begin < after for begin in begins)
            # A turn of another role may have no end of its own.
            if not ended and (answers or (after < len(tokens) and tokens[after] in self.ends)):
                left = f", and {self.words(tokens[after : after + 1])} behind it is not" if after < len(tokens) else ""
                faults.add(
                    "end_not_trained", f"the last trained token is {self.words(tokens[after - 1 : after])}{left}"
                )

    def _behind_blanks(self, tokens: Sequence[int], labels: Sequence[int], begin: int) -> int:
        """Mistral's template writes a blank before an answer. A tokenizer takes it into the first word, or, where it has no such
        word, as a token of its own, which Axolotl leaves untrained and a model writes without being taught."""
        while begin < len(tokens) and labels[begin] == UNTRAINED and not self.tokenizer.decode([tokens[begin]]).strip():
            begin += 1
        return begin

    def _difference(self, tokens: Sequence[int], labels: Sequence[int], prompt: Tokens) -> str:
        same = next((place for place, pair in enumerate(zip(tokens, prompt)) if pair[0] != pair[1]), None)  # noqa: B905
        if same is not None:
            first = max(0, same - NEAR)
            return f"in training …{self.words(tokens[first : same + NEAR])}, when asked …{self.words(prompt[first : same + NEAR])}"
        begin = next((place for place in range(len(prompt), len(tokens)) if labels[place] != UNTRAINED), len(tokens))
        before = max(0, len(prompt) - NEAR)
        return f"in training …{self.words(tokens[before:begin])}, when asked …{self.words(prompt[before:])}"


def _runs(labels: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Where tokens are trained: the first of each stretch, and the one after it."""
    trained = [False, *(label != UNTRAINED for label in labels), False]
    edges = [place for place, (before, now) in enumerate(pairwise(trained)) if before != now]
    return zip(edges[::2], edges[1::2], strict=True)


def _bare(message: Mapping[str, Any]) -> dict[str, Any]:
    """A turn without what a table keeps for others, its calls as the engine hands them to the template."""
    turn = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in turn:
        turn["tool_calls"] = [_call(call) for call in turn["tool_calls"]]
    return turn


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    bare = {name: value for name, value in call.items() if value is not None}
    function = bare.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        bare["function"] = {**function, "arguments": json.loads(function["arguments"])}
    return bare


def spread(count: int, most: int) -> range:
    """At most so many of `count` numbers, evenly apart."""
    return range(0, count, -(-count // most) if count > most else 1)
