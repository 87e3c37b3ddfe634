"""Conversations in rows of other programs: logs of requests to a model with its responses, and rows
whose turns have other names than `role` and `content`. Such a row gets its turns as `messages`."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from typing import Any, NamedTuple

from runner.data.html_text import text_of_html
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
# Of a request: the fields with who asks, the fields of a message on it with who wrote it and with
# its words, and the request's own words above these messages; the likeliest first.
_REQUESTERS = (
    *("requester_id", "requester", "customer_id", "customer", "reporter", "caller", "caller_id"),
    *("contact_id", "contact", "client_id", "client", "end_user", "submitter_id"),
)
_WRITERS = ("author_id", "author", "sender_id", "sender", "from", "user_id", "user", "created_by")
_WORDS_OF_MESSAGES = ("body_text", "body", "text", "content", "message", "comment", "plain_body")
_SUBJECTS = ("subject", "title", "summary", "short_description")
_OPENINGS = ("description_text", "description", "body", "question")
# Of a person that is an object, the field that says who it is.
_IDENTITIES = ("id", "accountId", "login", "email", "name", "username", "display_name")
# Fields of a message with the kind of person who wrote it, and what these kinds are.
_KINDS_OF_WRITERS = ("author_type", "authorType", "sender_type", "senderType", "role")
_ROLES_OF_KINDS = {
    **dict.fromkeys(("user", "customer", "client", "lead", "contact", "visitor"), "user"),
    **dict.fromkeys(("end-user", "end_user", "requester", "guest", "patient"), "user"),
    **dict.fromkeys(("admin", "agent", "staff", "operator", "support", "team"), "assistant"),
    **dict.fromkeys(("bot", "teammate", "employee"), "assistant"),
}
# Of an issue, whose author asks, and of those whose words answer there.
_MARKS_OF_ISSUES = ("author_association", "authorAssociation", "state", "number", "iid")
_MAINTAINERS = ("OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR")
# What ends a line in Atlassian's documents.
_BLOCKS_OF_DOCUMENTS = ("paragraph", "heading", "codeBlock", "hardBreak")
# How a cell with an object or a list of objects begins.
_BEGINNINGS_OF_JSON = ('{"', "[{", "{'", "[[{", "{\n", "[\n")
# Fields of a message that say by true or false that colleagues alone see it, that everybody does,
# or that it came in.
_PRIVATE = ("private", "is_private", "internal", "is_internal")
_PUBLIC = ("public", "is_public", "jsdPublic")
_INCOMING = ("incoming", "is_incoming", "inbound")

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
    request = _turns_of_request(parsed)
    if request:
        return {**row, MESSAGES: request}
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


def _with_json_read(row: Mapping[str, Any]) -> Mapping[str, Any]:
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


def _turns_of_request(row: Mapping[str, Any]) -> FoundTurns | None:
    """The turns of a request and of the messages on it, such as a ticket's comments: who asks is
    the user, and the others answer. None for another row, or without an answer."""
    fields = row.get("fields")
    request = fields if isinstance(fields, dict) else row  # Jira's
    source = request.get("source")
    if isinstance(source, dict) and source.get("author"):
        request = {**request, **source}  # Intercom's
    requester = next((_identity(request[field]) for field in _REQUESTERS if request.get(field)), "")
    if not requester and _is_issue(request):
        requester = _writer_of(request)
    for path, entries in _lists_of_messages(request):
        turns = _turns_of_messages(request, entries, requester)
        if turns:
            home = "fields." if request is fields else ""
            return FoundTurns(turns, [f"{home}{path}"], sum(map(_is_private, entries)))
    return None


def _is_issue(request: Mapping[str, Any]) -> bool:
    """Whether a request is an issue of GitHub or GitLab, or a conversation, whose author asks."""
    return not request.keys().isdisjoint(_MARKS_OF_ISSUES)


def _lists_of_messages(request: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """The lists of objects in a request, with their paths."""
    for name, value in request.items():
        if isinstance(value, list) and _are_objects(value):
            yield name, value
        elif isinstance(value, dict):
            for inner_name, inner_value in value.items():
                if isinstance(inner_value, list) and _are_objects(inner_value):
                    yield f"{name}.{inner_name}", inner_value


def _are_objects(values: Sequence[object]) -> bool:
    return bool(values) and all(isinstance(value, dict) for value in values)


def _turns_of_messages(
    request: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], requester: str
) -> Turns:
    """The turns of a list of messages on a request, with its own words before them; none for
    another list, or without an answer. requester: who asks, or empty if the messages say it."""
    turns = Turns()
    for entry in entries:
        role = _role_in_request(entry, requester)
        if not role or entry.keys().isdisjoint(_WORDS_OF_MESSAGES):
            return []
        text = _plain_words(entry, _WORDS_OF_MESSAGES)
        if text and not _is_private(entry):
            turns.append({"role": role, "content": text})
    if not any(turn["role"] == "assistant" for turn in turns):
        return []
    _add_opening(request, turns)
    if turns[0]["role"] != "user":
        return []
    return turns


def _plain_words(entry: Mapping[str, Any], fields: Sequence[str]) -> str:
    """The first words in some fields, without the marks of HTML or of a document of Atlassian."""
    for field in fields:
        value = entry.get(field)
        if isinstance(value, str):
            return text_of_html(value).strip()
        if isinstance(value, dict) and value.get("type") == "doc":
            return _words_of_document(value).strip()
    return ""


def _words_of_document(node: Mapping[str, Any]) -> str:
    """The words of a document of Atlassian; each block ends its line."""
    text = str(node.get("text") or "")
    for inner in node.get("content") or ():
        if isinstance(inner, dict):
            text += _words_of_document(inner)
    if node.get("type") in _BLOCKS_OF_DOCUMENTS:
        return f"{text}\n"
    return text


def _add_opening(row: Mapping[str, object], turns: Turns) -> None:
    """Puts a request's own words before the messages on it, and its subject before the first
    words."""
    opening = _plain_words(row, _OPENINGS)
    if opening and all(opening != turn["content"] for turn in turns):
        turns.insert(0, {"role": "user", "content": opening})
    subject = (_first_text(row, _SUBJECTS) or "").strip()
    first = turns[0]
    if first["role"] == "user" and subject and subject not in first["content"]:
        first["content"] = f"{subject}\n\n{first['content']}"


def _role_in_request(entry: Mapping[str, Any], requester: str) -> str:
    """The role of who wrote a message on a request; empty if it is no such message."""
    for field in _INCOMING:
        if isinstance(entry.get(field), bool):
            return "user" if entry[field] else "assistant"
    role = _role_of_kind(entry)
    if role:
        return role
    writer = _writer_of(entry)
    if not writer or not requester:
        return ""
    if writer == requester:
        return "user"
    # On an issue, other people ask too.
    association = entry.get("author_association") or entry.get("authorAssociation")
    return "assistant" if association in (None, *_MAINTAINERS) else "user"


def _role_of_kind(entry: Mapping[str, Any]) -> str:
    """The role of a message that says what kind of person wrote it; empty for another message."""
    kinds = [entry.get(field) for field in _KINDS_OF_WRITERS]
    for field in _WRITERS:
        writer = entry.get(field)
        if isinstance(writer, dict):
            kinds += [writer.get("type"), writer.get("role")]
    for kind in kinds:
        if isinstance(kind, str) and kind.strip().lower() in _ROLES_OF_KINDS:
            return _ROLES_OF_KINDS[kind.strip().lower()]
    return ""


def _writer_of(entry: Mapping[str, Any]) -> str:
    return next((_identity(entry[field]) for field in _WRITERS if entry.get(field)), "")


def _is_private(entry: Mapping[str, object]) -> bool:
    """Whether only colleagues see a message."""
    is_hidden = any(entry.get(field) is True for field in _PRIVATE)
    return is_hidden or any(entry.get(field) is False for field in _PUBLIC)


def _identity(person: object) -> str:
    """Who a person is, of an identifier, a name or an object with one; empty for anything else."""
    if isinstance(person, dict):
        person = next((person[field] for field in _IDENTITIES if person.get(field)), None)
    if isinstance(person, str | int):
        return str(person)
    return ""


def _first_text(row: Mapping[str, object], fields: Sequence[str]) -> str | None:
    """The first of some fields that is a text."""
    for field in fields:
        text = row.get(field)
        if isinstance(text, str):
            return text
    return None


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
