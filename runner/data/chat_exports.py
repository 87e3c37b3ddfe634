"""Exports of conversations: the turns of a row of ChatGPT's or Claude's export, and of a row that
`chat_logs` has cut from a chat between people."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from runner.data.row_files import DataRow
from runner.recipe.templates import NoText

# What is left out of conversations, in the words of the report.
MEDIA_CUT = "conversations with pictures, files, voice messages or calls; these are left out"
NOTICES_CUT = "conversations with deleted messages or notices of the app; these are left out"
TOOLS_CUT = (
    "conversations with images, files, code, thoughts or output of tools; these are left out"
)
ANSWER_CUT = "conversations that began with an answer; that turn is left out"
# The name of a person's messages in a row that `chat_logs` makes, and the kinds of those that are
# left out of it.
CHAT_COLUMN = "chat_log"
LEFT_OUT = {"media": MEDIA_CUT, "notice": NOTICES_CUT}
# ChatGPT's marks of a source, which only its page shows: its own signs around words, or brackets.
_CITATION = re.compile("\ue200[^\ue201]*\ue201|【[^【】]*†[^【】]*】")
# What ChatGPT never shows: a person's own instructions, which come as a turn.
_HIDDEN_CONTENT = ("user_editable_context", "model_editable_context")


class Exported(NamedTuple):
    """turns: of user and assistant, each role with its text. changes: what is left out, in the
    words of the report."""

    turns: list[tuple[str, str]]
    changes: tuple[str, ...]


def chatgpt(row: DataRow, _answered_by: str | None) -> Exported:
    """The branch of a conversation that ends at `current_node`: an edited question starts another
    branch. Raises NoText if its nodes are not ChatGPT's."""
    nodes = _parsed(row["mapping"], "mapping")
    if not isinstance(nodes, Mapping):
        raise NoText("`mapping` is not an object of messages")
    turns = []
    changes = dict[str, None]()
    for message in _branch(nodes, row.get("current_node")):
        if not isinstance(message, Mapping):
            continue  # the first node has none
        role = _field(_field(message, "author"), "role")
        is_hidden = _field(_field(message, "metadata"), "is_visually_hidden_from_conversation")
        content = _field(message, "content")
        if is_hidden or role == "system" or _field(content, "content_type") in _HIDDEN_CONTENT:
            continue
        text, is_whole = _chatgpt_text(content)
        # Words for a tool, such as a search, are no answer.
        is_for_tool = _field(message, "recipient") not in (None, "all")
        if role not in ("user", "assistant") or is_for_tool:
            changes[TOOLS_CUT] = None
            continue
        if not is_whole:
            changes[TOOLS_CUT] = None
        if text:
            turns.append((str(role), text))
    return Exported(turns, tuple(changes))


def _branch(nodes: Mapping[str, Any], current: object) -> list[Any]:
    """The messages from the first to the current one, or to the last one without answers."""
    if not isinstance(current, str) or current not in nodes:
        current = None
        for name, node in nodes.items():
            if not _field(node, "children"):
                current = name
    messages = []
    seen = set()
    while isinstance(current, str) and current in nodes and current not in seen:
        seen.add(current)
        messages.append(_field(nodes[current], "message"))
        current = _field(nodes[current], "parent")
    return messages[::-1]


def _chatgpt_text(content: object) -> tuple[str, bool]:
    """The text of a message, and whether that is all of it."""
    parts = _field(content, "parts")
    if _field(content, "content_type") not in ("text", "multimodal_text"):
        return "", content is None
    if not isinstance(parts, list):
        return "", False
    texts = []
    is_whole = True
    for part in parts:
        if _field(part, "content_type") == "audio_transcription":
            part = _field(part, "text")
        if isinstance(part, str):
            texts.append(part)
        else:
            is_whole = False
    return _CITATION.sub("", "\n".join(texts)).strip(), is_whole


def claude(row: DataRow, _answered_by: str | None) -> Exported:
    """Raises NoText if its messages are not Claude's."""
    messages = _parsed(row["chat_messages"], "chat_messages")
    if not isinstance(messages, list):
        raise NoText("`chat_messages` is not a list of messages")
    turns = []
    changes = dict[str, None]()
    for number, message in enumerate(messages, 1):
        sender = _field(message, "sender")
        if sender not in ("human", "assistant"):
            raise NoText(f"message {number} has the sender `{sender}`; use `human` or `assistant`")
        text, is_whole = _claude_text(message)
        if not is_whole or _field(message, "attachments") or _field(message, "files"):
            changes[TOOLS_CUT] = None
        if text:
            turns.append(("user" if sender == "human" else "assistant", text))
    return Exported(turns, tuple(changes))


def _claude_text(message: object) -> tuple[str, bool]:
    """The text of a message, and whether that is all of it. Its `text` has placeholders for tools,
    so the parts count where they are."""
    parts = _field(message, "content")
    if not isinstance(parts, list) or not parts:
        text = _field(message, "text")
        return str(text or "").strip(), True
    texts = []
    for part in parts:
        text = _field(part, "text")
        if _field(part, "type") == "text" and isinstance(text, str):
            texts.append(text)
    return "\n".join(texts).strip(), len(texts) == len(parts)


def chat_log(row: DataRow, answered_by: str | None) -> Exported:
    """One conversation of a chat, as `chat_logs` cuts it. The others' messages are the user's; in a
    group, with their names. Raises NoText if it has another form."""
    messages = _parsed(row[CHAT_COLUMN], CHAT_COLUMN)
    if not isinstance(messages, list):
        raise NoText(f"`{CHAT_COLUMN}` is not a list of messages")
    turns = list[tuple[str, str]]()
    changes = dict[str, None]()
    kinds = row.get("left_out")
    for kind, change in LEFT_OUT.items():
        if isinstance(kinds, list) and kind in kinds:
            changes[change] = None
    for number, message in enumerate(messages, 1):
        name = _field(message, "name")
        text = _field(message, "text")
        if not isinstance(name, str) or not isinstance(text, str):
            raise NoText(f"message {number} has no `name` and `text`")
        if name == answered_by:
            turns.append(("assistant", text))
        elif row.get("group"):
            turns.append(("user", f"{name}: {text}"))
        else:
            turns.append(("user", text))
    if len(turns) > 1 and turns[0][0] == "assistant":
        changes[ANSWER_CUT] = None
        while turns and turns[0][0] == "assistant":
            turns.pop(0)
    return Exported(turns, tuple(changes))


def _parsed(value: object, column: str) -> object:
    """A value, which is JSON in a table."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise NoText(f"`{column}` is text that is not JSON") from None


def _field(value: object, name: str) -> Any:
    """A field of an object; None if it is no object, or lacks it."""
    if isinstance(value, Mapping):
        return value.get(name)
    return None


# The turns of a row of each export, by the name of its form. Raises NoText.
EXPORTS: dict[str, Callable[[DataRow, str | None], Exported]] = {
    "chatgpt": chatgpt,
    "claude": claude,
    CHAT_COLUMN: chat_log,
}
