"""Chat templates: the special tokens around each message of a conversation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from runner.catalog.tables import table


@dataclass(frozen=True)
class ChatTemplate:
    """The special tokens around each message of a conversation.

    axolotl: the name that Axolotl knows it by. turn: one message, with `{role}` and `{content}`, and after `{answer}` that of
    the answering role, where it is another; end: the token that ends it; assistant: what the answering role is called.
    tokens: those that the tokenizer must have as one token each. begin: what stands before the first message, where the model's own
    tokenizer writes that. system: a system prompt, as `{content}`, where it has no turn of its own: it then stands in the next
    question, before its words.
    """

    axolotl: str
    turn: str
    end: str
    tokens: tuple[str, ...]
    assistant: str = "assistant"
    begin: str = ""
    system: str = ""

    def conversation(self, messages: Iterable[tuple[str, str]]) -> str:
        """Messages, each a role and its content, as the model is to see them."""
        parts, waiting = [self.begin], ""
        for role, content in messages:
            if role == "system" and self.system:
                waiting += self.system.replace("{content}", content)
                continue
            if role == "user":
                content, waiting = waiting + content, ""
            parts.append(self.message(role, content))
        return "".join(parts)

    def turn_of(self, role: str) -> str:
        asking, _, answering = self.turn.partition("{answer}")
        return answering if role == "assistant" and answering else asking

    def message(self, role: str, content: str) -> str:
        return self.turn_of(role).replace("{role}", self._role(role)).replace("{content}", content)

    @property
    def reply(self) -> str:
        """What stands before an answer."""
        before = self.turn_of("assistant").partition("{content}")[0]
        return before.replace("{role}", self.assistant).rstrip(" ")

    def _role(self, role: str) -> str:
        return self.assistant if role == "assistant" else role


def chat_template(name: str) -> ChatTemplate:
    facts = table("templates")[name]
    return ChatTemplate(**facts | {"tokens": tuple(facts["tokens"])})
