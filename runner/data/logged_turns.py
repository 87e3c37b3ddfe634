"""Conversations in rows of other programs: logs of requests to a model with its responses, and rows
whose turns have other names than `role` and `content`. Such a row gets its turns as `messages`."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, NamedTuple

from runner.data import helpdesk
from runner.recipe.templates import FORMS

MESSAGES = "messages"
# Objects inside each other in which the turns of a request are looked for.
DEEPEST = 4
# Fields of a turn, the likeliest first: of who speaks, and of the words.
_ROLE_FIELDS = ("role", "from", "author", "speaker")
_TEXT_FIELDS = ("content", "value", "parts", "text", "message")
# Names of the roles, in lower case.
_ROLES = {
    **dict.fromkeys(("user", "human", "customer"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "bot", "chatbot", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function"), "tool"),
}
# LangChain calls the role of a turn its type.
_TYPES_OF_LANGCHAIN = ("human", "ai", "system")
# Roles that every reader of conversations takes.
_USUAL_ROLES = ("user", "human", "assistant", "gpt", "system", "tool")
# Fields of a row with the response to its request, and of a response those on the way to its words.
_RESPONSES = ("response", "output", "outputs", "choices", "completion", "candidates")
_WAY_TO_WORDS = (
    *("choices", "candidates", "output", "message", "content", "parts", "text", "value"),
    *("response", "output_text", "generated_text", "generations", "kwargs"),
)
# Fields of a request with the text before its turns.
_SYSTEMS = ("system", "systemInstruction", "system_instruction", "instructions", "context")
# The columns of forms that have no list of turns, and of preferences.
_OTHER_FORMS = [
    *(names for names in FORMS.values() if names not in (["messages"], ["conversations"])),
    ["chosen", "rejected"],
]
# Columns of two answers with a verdict, which are no conversation.
VERDICTS = (
    {"conversation_a", "conversation_b", "winner"},
    {"input", "preferred_output", "non_preferred_output"},
)
# Columns of which a list of texts is a conversation of two people.
_TALKS = ("dialog", "dialogue", "conversation", "utterances")

# The speakers of a transcript in a text, as Anthropic's and Guanaco's data sets have them.
_HUMAN = re.compile(r"\s*(### ?)?Human: ")
_SPEAKER = re.compile(r"(?:\n\n|\s*### ?)(Human|Assistant): ?")

LEAST_TURNS = 2
# How a cell with an object or a list of objects begins.
_BEGINNINGS_OF_JSON = ('{"', "[{", "{'", "[[{", "{\n", "[\n")

Turns = list[dict[str, Any]]


class FoundTurns(Turns):
    """The turns of a row that has no column `messages`. fields: those that they come from; notes:
    how many messages of colleagues among each other are left out."""

    def __init__(self, turns: Turns, fields: Sequence[str], notes: int = 0) -> None:
        super().__init__(turns)
        self.fields = tuple(fields)
        self.notes = notes


def with_messages(row: object) -> Any:
    """A row with its conversation as `messages`; itself if it has none, or one that is read as it
    is."""
    if not isinstance(row, dict):
        return row
    if any(row.keys() >= names for names in VERDICTS):
        return row
    transcripts = _with_transcripts_as_turns(row)
    if transcripts:
        return transcripts
    parsed = _with_json_read(row)
    if _is_read_already(parsed):
        return row
    for path, objects in _ways_to_turns(parsed):
        logged = _turns_with_response(path, objects)
        # Prompts without answers are for rewards.
        if any(turn["role"] == "assistant" for turn in logged):
            return {**row, MESSAGES: logged}
    request = helpdesk.request_in(parsed)
    if request:
        turns = FoundTurns(request.turns, [request.path], request.notes)
        return {**row, MESSAGES: turns}
    for name in _TALKS:
        texts = row.get(name)
        if isinstance(texts, list) and len(texts) > 1 and _are_texts(texts):
            return {**row, MESSAGES: FoundTurns(_alternating(texts), [name])}
    return row


def _turns_with_response(path: Sequence[str], objects: Sequence[Any]) -> FoundTurns:
    """The turns of a list with the response and the system prompt beside it. path: the names on the
    way to the list; objects: those on the way, and the list."""
    *around, entries = objects
    turns = _turns_of(entries)
    fields = [".".join(path)]
    if turns[-1]["role"] != "assistant":
        answer = _innermost(around, _RESPONSES)
        if answer:
            turns.append({"role": "assistant", "content": answer.words})
            fields.append(".".join([*path[: answer.depth], answer.name]))
    system = _innermost(around, _SYSTEMS)
    if system and turns[0]["role"] != "system":
        turns.insert(0, {"role": "system", "content": system.words})
    return FoundTurns(turns, fields)


def _with_json_read(row: Mapping[str, object]) -> Mapping[str, object]:
    """A row whose cells with objects of JSON, as a table has them, are these objects."""
    values = {}
    for name, value in row.items():
        if isinstance(value, str) and value.lstrip().startswith(_BEGINNINGS_OF_JSON):
            parsed = _object_in(value)
            if parsed is not None:
                values[name] = parsed
    return {**row, **values} if values else row


def _object_in(text: str) -> object:
    """The object or the list in a text, as JSON or as Python writes it; None for another text."""
    value: object = None
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if value is None and "'" in text:
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            value = ast.literal_eval(text)
    return value if isinstance(value, dict | list) else None


def _with_transcripts_as_turns(row: Mapping[str, object]) -> dict[str, Any]:
    """A row whose two answers, or whose only text, have the turns of a person and an assistant,
    with lists of these; empty for another row."""
    names: Sequence[str] = ("chosen", "rejected")
    if not row.keys() >= {*names}:
        names = [name for name in row if name == "text"]
    turns_by_name = {name: _turns_of_transcript(row[name]) for name in names}
    if not turns_by_name or not all(turns_by_name.values()):
        return {}
    if "text" in turns_by_name:
        return {**row, MESSAGES: turns_by_name["text"]}
    return {**row, **turns_by_name}


def _turns_of_transcript(text: object) -> Turns:
    """The turns of a text such as `Human: …` and `Assistant: …`; none for another one."""
    if not isinstance(text, str) or not _HUMAN.match(text):
        return []
    _, *pieces = _SPEAKER.split(f"\n\n{text.strip()}")
    turns = Turns()
    for speaker, words in zip(pieces[::2], pieces[1::2], strict=True):
        turns.append({"role": _ROLES[speaker.lower()], "content": words.strip()})
    if len(turns) < LEAST_TURNS:
        return []
    return turns


def are_turns_read_whole(name: str, row: Mapping[str, object]) -> bool:
    """Whether a field has turns that are read as they are, and not field by field."""
    value = row[name]
    turns = row.get(MESSAGES)
    if isinstance(turns, FoundTurns) and name in turns.fields:
        return True
    if row.keys().isdisjoint((MESSAGES, "chosen")):
        return False
    return isinstance(value, list) and bool(_turns_of(value))


def holds_turns(row: Mapping[str, object]) -> bool:
    """Whether a field of an object is a list of turns, so that the object is a conversation."""
    return any(isinstance(value, list) and _turns_of(value) for value in row.values())


def _is_read_already(row: Mapping[str, object]) -> bool:
    """Whether a row has complete turns with usual names, or another known form."""
    for name in ("messages", "conversations"):
        turns = row.get(name)
        if not isinstance(turns, list) or not turns:
            continue
        last = turns[-1]
        usual = all(_has_usual_role(turn) for turn in turns)
        is_answered = isinstance(last, dict) and (
            _role_of(last) == "assistant" or _innermost([row], _RESPONSES) is None
        )
        return usual and is_answered and isinstance(row.get("system", ""), str)
    return any(set(names) <= row.keys() for names in _OTHER_FORMS)


def _has_usual_role(turn: object) -> bool:
    if not isinstance(turn, dict):
        return False
    role = turn.get("role") or turn.get("from")
    return role in _USUAL_ROLES and ("content" in turn or "value" in turn or "tool_calls" in turn)


def _ways_to_turns(row: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], list[Any]]]:
    """The names on the way to each list of turns in a row, and the objects around it with that list
    at the end; the nearest first."""
    level: list[tuple[tuple[str, ...], list[Any]]] = [((), [row])]
    for _ in range(DEEPEST):
        deeper = []
        for path, objects in level:
            for name, value in objects[-1].items():
                if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
                    value = value[0]  # as LangChain writes a batch of one
                if isinstance(value, list) and _turns_of(value):
                    yield (*path, name), [*objects, value]
                elif isinstance(value, dict):
                    deeper.append(((*path, name), [*objects, value]))
        level = deeper


def _turns_of(entries: Sequence[object]) -> Turns:
    """The turns of a list; none if one of its entries is no turn."""
    turns = Turns()
    for entry in entries:
        if not isinstance(entry, dict):
            return []
        if "lc" in entry and isinstance(entry.get("kwargs"), dict):
            entry = entry["kwargs"]
        role = _role_of(entry)
        if not role:
            return []
        text = words_of(entry)
        has_calls = bool(entry.get("tool_calls"))
        if text is None and not has_calls:
            return []
        turn = {"role": role, "content": text or ""}
        for name in ("tool_calls", "tool_call_id", "name"):
            if entry.get(name):
                turn[name] = entry[name]
        turns.append(turn)
    return turns


def _role_of(turn: Mapping[str, object]) -> str:
    """The role of a turn; empty for an object that is no turn."""
    for name in _ROLE_FIELDS:
        role = turn.get(name)
        if isinstance(role, str):
            return _ROLES.get(role.strip().lower(), "")
    if turn.get("type") in _TYPES_OF_LANGCHAIN:
        return _ROLES[str(turn["type"])]
    return ""


def words_of(value: object) -> str | None:
    """The words in a response or a turn of any program; None without any."""
    if isinstance(value, str):
        return _words_of_text(value)
    if isinstance(value, list):
        return _words_of_list(value)
    if isinstance(value, dict):
        for name in _WAY_TO_WORDS:
            words = words_of(value.get(name))
            if words is not None:
                return words
    return None


def _words_of_text(text: str) -> str:
    """A text; of a response that is written as JSON, its words."""
    if text.lstrip().startswith(('{"', '[{"')):
        try:
            words = words_of(json.loads(text))
        except (ValueError, RecursionError):
            words = None
        if words is not None:
            return words
    return text


def _words_of_list(entries: Sequence[object]) -> str | None:
    """The words of a list: those of its parts, or of the first of several responses."""
    texts = list[str]()
    for entry in entries:
        words = words_of(entry)
        if words is None:
            continue
        is_response = isinstance(entry, dict) and ("message" in entry or "index" in entry)
        if is_response:
            return words
        texts.append(words)
    if not texts:
        return None
    return "".join(texts)


class _Beside(NamedTuple):
    """Words beside turns. depth: of the object that has them; name: their field."""

    depth: int
    name: str
    words: str


def _innermost(objects: Sequence[Mapping[str, object]], names: Sequence[str]) -> _Beside | None:
    """The words in the first of some fields that has any, in the innermost of some objects; None
    without words."""
    for depth in range(len(objects) - 1, -1, -1):
        for name in names:
            words = words_of(objects[depth].get(name))
            if words and words.strip():
                return _Beside(depth, name, words)
    return None


def _are_texts(values: Sequence[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _alternating(texts: Sequence[str]) -> Turns:
    turns = Turns()
    roles = cycle(("user", "assistant"))
    for role, text in zip(roles, texts, strict=False):
        turns.append({"role": role, "content": text.strip()})
    return turns
