"""Requests of helpdesks and issue trackers, with the messages on each: who asks is the user, and
the staff answers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from runner.data.html_text import text_of_html
from runner.tools import packaged


class AnsweredRequest(NamedTuple):
    """path: of the list of messages; turns: of user and assistant; notes: how many messages of
    colleagues among each other are left out."""

    path: str
    turns: list[dict[str, Any]]
    notes: int


@cache
def _names() -> Mapping[str, Any]:
    return packaged.toml(__file__, "helpdesk.toml")


def request_in(row: Mapping[str, object]) -> AnsweredRequest | None:
    """The request in a row; None for another row, or without an answer."""
    request = row
    home = ""
    fields = row.get("fields")
    if isinstance(fields, dict):  # Jira's
        request = fields
        home = "fields."
    source = request.get("source")
    if isinstance(source, dict) and source.get("author"):
        request = {**request, **source}  # Intercom's
    requester = _identity_in(request, _names()["requesters"])
    if not requester and not request.keys().isdisjoint(_names()["marks_of_issues"]):
        requester = _identity_in(request, _names()["writers"])
    for path, entries in _lists_of_messages(request):
        turns = _turns_of(request, entries, requester)
        if turns:
            return AnsweredRequest(f"{home}{path}", turns, sum(map(_is_private, entries)))
    return None


def _lists_of_messages(request: Mapping[str, object]) -> Iterator[tuple[str, list[Any]]]:
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


def _turns_of(
    request: Mapping[str, object], entries: Sequence[Mapping[str, object]], requester: str
) -> list[dict[str, Any]]:
    """The turns of a list of messages on a request, with its own words before them; none for
    another list, or without an answer. requester: who asks, or empty if the messages say it."""
    turns = list[dict[str, Any]]()
    for entry in entries:
        role = _role_in_request(entry, requester)
        if not role or entry.keys().isdisjoint(_names()["texts"]):
            return []
        text = _plain_words(entry, _names()["texts"])
        if text and not _is_private(entry):
            turns.append({"role": role, "content": text})
    if not any(turn["role"] == "assistant" for turn in turns):
        return []
    _add_opening(request, turns)
    if turns[0]["role"] != "user":
        return []
    return turns


def _plain_words(entry: Mapping[str, object], fields: Sequence[str]) -> str:
    """The first words in some fields, without the marks of HTML or of a document of Atlassian."""
    for field in fields:
        value = entry.get(field)
        if isinstance(value, str):
            return text_of_html(value).strip()
        if isinstance(value, dict) and value.get("type") == "doc":
            return _words_of_document(value).strip()
    return ""


def _words_of_document(node: Mapping[str, object]) -> str:
    """The words of a document of Atlassian; each block ends its line."""
    text = str(node.get("text") or "")
    parts = node.get("content")
    if isinstance(parts, list):
        for part in parts:
            if isinstance(part, dict):
                text += _words_of_document(part)
    if node.get("type") in _names()["blocks_of_documents"]:
        return f"{text}\n"
    return text


def _add_opening(request: Mapping[str, object], turns: list[dict[str, Any]]) -> None:
    """Puts a request's own words before the messages on it, and its subject before the first
    words."""
    opening = _plain_words(request, _names()["openings"])
    contents = [turn["content"] for turn in turns]
    if opening and opening not in contents:
        turns.insert(0, {"role": "user", "content": opening})
    first_turn = turns[0]
    subject = _plain_words(request, _names()["subjects"])
    if first_turn["role"] == "user" and subject and subject not in first_turn["content"]:
        first_turn["content"] = f"{subject}\n\n{first_turn['content']}"


def _role_in_request(entry: Mapping[str, object], requester: str) -> str:
    """The role of who wrote a message on a request; empty if it is no such message."""
    for field in _names()["incoming"]:
        is_incoming = entry.get(field)
        if isinstance(is_incoming, bool):
            return "user" if is_incoming else "assistant"
    role = _role_of_kind(entry)
    if role:
        return role
    writer = _identity_in(entry, _names()["writers"])
    if not writer or not requester:
        return ""
    if writer == requester:
        return "user"
    association = entry.get("author_association") or entry.get("authorAssociation")
    if association is None or association in _names()["maintainers"]:
        return "assistant"
    return "user"  # on an issue, other people ask too


def _role_of_kind(entry: Mapping[str, object]) -> str:
    """The role of a message that says what kind of person wrote it; empty for another message."""
    kinds = [entry.get(field) for field in _names()["kinds_of_writers"]]
    for field in _names()["writers"]:
        writer = entry.get(field)
        if isinstance(writer, dict):
            kinds.append(writer.get("type"))
            kinds.append(writer.get("role"))
    for writer_kind in kinds:
        lower_kind = str(writer_kind).strip().lower()
        if lower_kind in _names()["askers"]:
            return "user"
        if lower_kind in _names()["answerers"]:
            return "assistant"
    return ""


def _is_private(entry: Mapping[str, object]) -> bool:
    """Whether only colleagues see a message."""
    for field in _names()["private"]:
        if entry.get(field) is True:
            return True
    return any(entry.get(field) is False for field in _names()["public"])


def _identity_in(entry: Mapping[str, object], fields: Sequence[str]) -> str:
    """Who the person in the first filled field of some is; empty without one."""
    for field in fields:
        if entry.get(field):
            return _identity(entry[field])
    return ""


def _identity(person: object) -> str:
    """Who a person is, of an identifier, a name or an object with one; empty for anything else."""
    if isinstance(person, dict):
        return _identity_in(person, _names()["identities"])
    if isinstance(person, str | int):
        return str(person)
    return ""
