"""Conversations: the forms of their rows, the turns that each row becomes, and the text that the
model sees."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal, NamedTuple, Self, cast

from runner.catalog import ChatTemplate
from runner.data import rows
from runner.data.chat_exports import CHAT_COLUMN, EXPORTS
from runner.data.data_sets import DataSet, SplitDataSets
from runner.data.html_text import text_of_html
from runner.data.logged_turns import MESSAGES, FoundTurns
from runner.data.row_files import DataRow
from runner.data.tokenizers import MISTRAL, Pretrained
from runner.recipe import templates
from runner.recipe.templates import FORMS, NoText, text_of
from runner.tools.problem import Stop, listed
from runner.tools.text import same

Form = Literal[
    "columns",
    "messages",
    "sharegpt",
    "alpaca",
    "prompt_completion",
    "chatgpt",
    "claude",
    "chat_log",
]
COLUMNS = cast(Mapping[Form, tuple[str, ...]], FORMS)
# The forms that people write, with their columns, for messages.
WRITTEN_FORMS = "; ".join(
    f"{listed(columns)} ({form})" for form, columns in COLUMNS.items() if form not in EXPORTS
)
NO_FORM = f'Write `question: "[column]"` and `answer: "[column]"` with the names of your columns, or name your columns as one of these forms: {WRITTEN_FORMS}.'
# Axolotl's own names for roles (`ChatTemplatePrompter`, 0.19.0).
ROLES = {
    **{"human": "user", "user": "user", "assistant": "assistant", "gpt": "assistant"},
    **{"system": "system", "tool": "tool"},
}
TrainOn = Literal["assistant", "last", "all"]
# The field of a turn that Axolotl's `message_field_training` names, needed if not all turns of a
# role are learned.
TRAINING = "training"
# Axolotl's name for the template in the model's own tokenizer. The catalog's templates write only
# roles and contents.
OWN = "tokenizer_default"
# Additional fields of a turn, for templates that support them.
CALLS, REASONING, THINKING = "tool_calls", "reasoning_content", "thinking"
BESIDES = (CALLS, "tool_call_id", "name")
OF_TEMPLATES = (REASONING, THINKING, CALLS)  # the fields that some templates write


Message = dict[
    str, Any
]  # a turn as Axolotl reads it: `role`, `content`, and other fields of templates


class Turn(NamedTuple):
    """The text of one role. besides: JSON of the turn's thoughts and fields of `BESIDES`; empty if
    it has none."""

    role: str
    content: str
    besides: str = ""

    def message(self) -> Message:
        return {"role": self.role, "content": self.content} | (
            json.loads(self.besides) if self.besides else {}
        )


# Why a row with half of an exchange is left out.
EMPTY = "the question or the answer is empty"


class NoExchange(NoText):
    """A conversation of an export in which one side alone has written, or a row with neither a
    question nor an answer. It is left out, and not lost."""


# What preparation changes in conversations, in the words of its report.
QUESTION_CUT = "conversations that ended with a question; that turn is left out"
NOTES_CUT = "conversations with notes that only colleagues see; these are left out"
ROLES_JOINED = "conversations with several turns of one role in a row; they are joined"


@dataclass(frozen=True)
class Conversation:
    """turns: in order; the last one answers. tools: JSON of the functions that may be called; empty
    for none. changes: how the turns differ from those of the row, in the words of the report."""

    turns: tuple[Turn, ...]
    tools: str = ""
    changes: tuple[str, ...] = ()

    @property
    def question(self) -> str:
        """The words of the turn that asks first. Raises ValueError if there is none."""
        return self.turns[[turn.role for turn in self.turns].index("user")].content

    @property
    def asked(self) -> str:
        """All that is before the last answer."""
        return "\n".join(turn.content for turn in self.turns[:-1])

    @property
    def said(self) -> str:
        return "\n".join(turn.content for turn in self.turns if turn.role != "system")

    @property
    def key(self) -> str:
        # No real text contains this separator.
        return "\x1f".join(chain((self.tools,), *self.turns))

    @property
    def group(self) -> str:
        """Conversations of one group stay on one side of the split: those with the same first
        question."""
        return same(self.question)


def behind(system_prompt: str | None, turns: Sequence[Turn]) -> list[Message]:
    """The messages of turns, after the system prompt if they have none of their own."""
    if system_prompt and turns[0].role != "system":
        system_turns = [Turn("system", system_prompt.strip())]
    else:
        system_turns = []
    return [turn.message() for turn in (*system_turns, *turns)]


def pair(question: str, answer: str) -> tuple[Turn, Turn]:
    return Turn("user", question), Turn("assistant", answer)


@dataclass(frozen=True, kw_only=True)
class Conversations(SplitDataSets):
    """How conversations are prepared. system_prompt: for those without a system turn. train_on: the
    turns that are learned. special_tokens: of each message. sequence_len: the most tokens of a
    conversation, by `tokenizer`."""

    system_prompt: str | None
    train_on: TrainOn = "assistant"
    special_tokens: ChatTemplate
    sequence_len: int
    tokenizer: Pretrained | None = None


@dataclass(frozen=True, kw_only=True)
class ChatSet(DataSet):
    """Rows in one form. form: None if it follows from the rows. question, answer: for the form of
    columns, templates with the columns in brackets. drop_system: whether system turns are left out;
    thinking_field: of a turn's thoughts; strip_html: whether questions and answers lose their
    tags; answered_by: of a chat between people, the person who answers."""

    form: Form | None = "columns"
    question: str | None = None
    answer: str | None = None
    drop_system: bool | None = None
    thinking_field: str | None = None
    strip_html: bool | None = None
    answered_by: str | None = None

    def conversation(self, template: str, row: DataRow) -> Conversation | str:
        """The conversation of a row, or why it has none. template: Axolotl's name of its
        template."""
        assert self.form is not None
        if self.form != "columns":
            return self._of_turns(self.form, template, row)
        question = templates.fill(self.question or "", row).strip()
        answer = templates.fill(self.answer or "", row).strip()
        if self.strip_html:
            question = text_of_html(question)
            answer = text_of_html(answer)
        if question and answer:
            return Conversation(pair(question, answer))
        if not answer and self._asks_nothing(row):
            raise NoExchange("rows with neither a question nor an answer")
        return EMPTY

    def _asks_nothing(self, row: DataRow) -> bool:
        """Whether all columns of the question are empty, whatever words are around them."""
        columns = templates.columns(self.question or "")
        if not columns:
            return False
        return not any(templates.fill(f"[{column}]", row).strip() for column in columns)

    def _of_turns(self, form: Form, template: str, row: DataRow) -> Conversation:
        """The conversation of a row in a form other than columns. Raises NoText if the template
        cannot write it."""
        if not all(map(row.__contains__, COLUMNS[form])):
            row_form = told(row)
            if row_form:
                raise NoText(f"it has the form {row_form}, but the others have {form}")
        if form in EXPORTS:
            return self._of_export(form, row)
        logged = row.get(MESSAGES)
        if isinstance(logged, FoundTurns) and not logged:
            raise NoExchange("rows without an answer")
        if row.get("tools"):
            tools = as_json(row["tools"], "its `tools` are")
        else:
            tools = ""
        kept = turns(form, row, self.thinking_field or REASONING)
        if self.drop_system:
            kept = tuple(turn for turn in kept if turn.role != "system")
        conversation = learnable(kept, tools)
        if isinstance(logged, FoundTurns) and logged.notes:
            changes = (NOTES_CUT, *conversation.changes)
            conversation = replace(conversation, changes=changes)
        if template == OWN:
            return conversation
        # With mistral-common, Axolotl 0.19.0 does not train the end of a tool call.
        is_mistral = template == MISTRAL
        name = unwritten(conversation, "tools" if is_mistral else "")
        if name and is_mistral:
            raise NoText(
                f"it has `{name}`, which cannot be learned with `chat_template: {MISTRAL}`"
            )
        if name:
            raise NoText(
                f"it has `{name}`, which the chat template `{template}` does not write; `chat_template: {OWN}` uses the model's own"
            )
        return conversation

    def _of_export(self, form: Form, row: DataRow) -> Conversation:
        """The conversation of a row of an app's export. Its turns have words alone."""
        if form == CHAT_COLUMN and not self.answered_by:
            raise Stop(*no_answerer(self.name))
        exported = EXPORTS[form](row, self.answered_by)
        joined = _joined([Turn(role, text) for role, text in exported.turns], "\n")
        roles = [turn.role for turn in joined]
        if "user" not in roles or "assistant" not in roles[roles.index("user") :]:
            raise NoExchange("conversations in which only one side has written")
        conversation = learnable(joined)
        return replace(conversation, changes=(*exported.changes, *conversation.changes))

    def told(self) -> Self:
        """This data set with the form of its first recognisable row. Raises Stop if its columns
        match no form."""
        if self.form:
            return self
        columns: list[str] = []
        for row in rows.good(self):
            form = told(row)
            if form:
                return replace(self, form=form)
            columns = columns or list(row)
        if columns:
            raise Stop(
                f"The columns of {self.name} match no form. They are {listed(columns)}.", NO_FORM
            )
        # Any form fits: there are no rows, and the reader reports that.
        return replace(self, form="messages")


@dataclass(frozen=True, kw_only=True)
class ChatData(Conversations):
    kind: Literal["chat"] = "chat"
    sets: tuple[ChatSet, ...]


def no_answerer(name: str) -> tuple[str, str]:
    """The message about a chat of which the recipe does not say who answers, and its hint."""
    return (
        f"`{name}` is a chat between people, and the recipe does not say who answers.",
        "Write `answered_by: NAME` beside `path`. The model learns to write like that person.",
    )


def stated(form: str, question: str | None, answer: str | None) -> Form | None:
    """The form that a recipe states, by its name or by templates of columns; None if it follows
    from the rows."""
    if form == "auto":
        if question or answer:
            return "columns"
        return None
    return cast(Form, form)


def told(columns: Collection[str]) -> Form | None:
    for form, needed in COLUMNS.items():
        if set(needed) <= set(columns):
            return form
    return None


def turns(form: Form, row: DataRow, thoughts: str = REASONING) -> tuple[Turn, ...]:
    """The turns of a row in a form other than columns. thoughts: the field with these. Raises
    KeyError with the name of a column that the row lacks, NoText if it is not a conversation."""
    messages: list[Any]
    if form == "alpaca":
        # Separated by a line end, as in Axolotl's own prompts for Alpaca.
        question = "\n".join(
            filter(
                None,
                (text_in(row["instruction"], "instruction"), text_in(row.get("input"), "input")),
            )
        )
        messages = [
            {"role": "user", "content": question},
            {"role": "assistant", "content": text_in(row["output"], "output")},
        ]
    elif form == "prompt_completion":
        messages = [
            *turns_in(row["prompt"], "prompt", "user"),
            *turns_in(row["completion"], "completion", "assistant"),
        ]
    else:
        (column,) = COLUMNS[form]
        messages = turns_in(row[column], column)
    if row.get("system") and _role(messages[0], 1) != "system":
        messages.insert(0, {"role": "system", "content": text_in(row["system"], "system")})
    kept = []
    for number, message in enumerate(messages, 1):
        turn = turn_of(message, number, thoughts)
        if turn.content or turn.besides:
            kept.append(turn)
        elif turn.role != "system":
            raise NoText(f"turn {number}, the {turn.role}'s, is empty")
    return tuple(kept)


def learnable(row_turns: Sequence[Turn], tools: str = "") -> Conversation:
    """The conversation that a model learns from the turns of a row. Turns in a row of the user or
    of the assistant are joined, because templates such as Gemma's and Mistral's refuse them; a
    question at the end has no answer, so only that turn goes. Raises NoText if no answer
    remains."""
    changes = []
    kept = _joined(row_turns)
    if len(kept) < len(row_turns):
        changes.append(ROLES_JOINED)
    roles = [turn.role for turn in kept]
    if "user" not in roles:
        raise NoText("it has no user turn")
    if roles[-1] == "user" and "assistant" in roles[roles.index("user") :]:
        kept = kept[:-1]
        changes.append(QUESTION_CUT)
    if kept[-1].role != "assistant":
        raise NoText(f"it ends with the role `{kept[-1].role}`, but an answer must be last")
    return Conversation(tuple(kept), tools, tuple(changes))


def _joined(row_turns: Sequence[Turn], between: str = "\n\n") -> list[Turn]:
    """The turns, with those in a row of the user or of the assistant as one. A turn with other
    fields than its words stays by itself. between: what separates joined words."""
    kept = list[Turn]()
    for turn in row_turns:
        before = kept[-1] if kept else None
        is_further = before is not None and before.role == turn.role in ("user", "assistant")
        if before is not None and is_further and not before.besides and not turn.besides:
            kept[-1] = Turn(turn.role, f"{before.content}{between}{turn.content}")
        else:
            kept.append(turn)
    return kept


def text_in(value: object, column: str) -> str:
    return text_of(value, column).strip()


def turns_in(value: object, column: str, role: str | None = None) -> list[Any]:
    """The turns in a column; in a table they are JSON. role: the role of a plain text; None if that
    is not allowed."""
    turns = value
    if isinstance(value, str):
        try:
            turns = json.loads(value)
        except (ValueError, RecursionError):
            if role is None:
                raise NoText(f"`{column}` is text that is not JSON") from None
    if role and value is not None:
        entries = turns if isinstance(turns, list) else []
        if not entries or not all(
            isinstance(entry, Mapping) and entry.keys() & {"role", "from"} for entry in entries
        ):
            return [{"role": role, "content": text_of(value, column)}]
    if not isinstance(turns, list) or not turns:
        raise NoText(f"`{column}` is {('not a list of turns' if turns else 'empty')}")
    return list(turns)


def _role(message: object, number: int) -> str:
    if not isinstance(message, dict):
        raise NoText(f"turn {number} is not an object with role and content")
    role_name = message.get("role") or message.get("from")
    if role_name is None:
        raise NoText(f"turn {number} has no role (`role`, or `from`)")
    if not isinstance(role_name, str) or role_name not in ROLES:
        raise NoText(f"turn {number} has the role `{role_name}`; use {listed(ROLES, 'or')}")
    return ROLES[role_name]


def turn_of(message: Any, number: int, thoughts: str = REASONING) -> Turn:
    role = _role(message, number)
    content = message.get("content", message.get("value"))
    fields = (thoughts, *BESIDES)
    if isinstance(content, str) and message.keys().isdisjoint(fields):
        return Turn(role, content.strip())
    besides = {name: message[name] for name in fields if message.get(name)}
    if CALLS in besides:
        besides[CALLS] = [_call(call, number) for call in turns_in(besides[CALLS], CALLS)]
    if isinstance(content, list):
        content = _text_of_parts(content, number)
    if content is None and not besides:
        raise NoText(f"turn {number} has no content (`content`, or `value`)")
    for name, value in ({"content": content or ""} | besides).items():
        if name != CALLS and not isinstance(value, str):
            raise NoText(f"`{name}` of turn {number} is not text")
    if besides:
        more = json.dumps(besides, ensure_ascii=False, sort_keys=True)
    else:
        more = ""
    return Turn(role, (content or "").strip(), more)


# The type of a part of a turn that is not a text, such as `image_url` or `input_audio`.
MEDIUM = re.compile("image|video|audio")
# Columns of data sets with images or sound beside their conversations.
MEDIA_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")


def _text_of_parts(parts: list[object], number: int) -> str:
    """The text of a turn's parts, each `{type: text, text: …}`."""
    texts = []
    for part in parts:
        if not isinstance(part, Mapping):
            raise NoText(f"turn {number} contains something other than text")
        if MEDIUM.search(str(part.get("type"))):
            raise NoText(
                f"turn {number} has an image or sound, and training on these is not possible yet"
            )
        if not isinstance(part.get("text"), str):
            raise NoText(f"turn {number} contains something other than text")
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Any, number: int) -> Message:
    """A tool call with its arguments as JSON, which Axolotl reads."""
    if isinstance(call, Mapping):
        function = call.get("function")
    else:
        function = None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise NoText(
            f"a tool call of turn {number} names no function (`function`, with `name` and `arguments`)"
        )
    arguments = as_json(
        function.get("arguments") or {}, f"the arguments of a tool call of turn {number} are"
    )
    plain = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return plain | ({"id": str(call["id"])} if call.get("id") else {})


def as_json(value: object, subject: str) -> str:
    """A value of any shape as JSON, so that different rows fit into one column; text is JSON
    already."""
    if not isinstance(value, str):
        return json.dumps(_without_nulls(value), ensure_ascii=False)
    try:
        json.loads(value)
    except (ValueError, RecursionError):
        raise NoText(f"{subject} text that is not JSON") from None
    return value


def _without_nulls(value: object) -> Any:
    """A value without the nulls that Parquet adds for fields of other rows."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def unwritten(conversation: Conversation, template: str) -> str | None:
    """A field of a conversation that a template would drop silently, or None."""
    names = set[str]()
    for turn in conversation.turns:
        if turn.besides:
            names.update(json.loads(turn.besides))
    names &= {*OF_TEMPLATES}
    if conversation.tools:
        names.add("tools")
    for name in sorted(names):
        if name not in template:
            return name
    return None


def rendered(template: ChatTemplate, conversation: list[Message]) -> str:
    """A conversation as the model will see it. A turn's additional fields come before its words,
    about as long as the model's own template writes them."""
    return template.conversation((turn["role"], _with_fields(turn)) for turn in conversation)


def _with_fields(turn: Message) -> str:
    """A turn's words, after its additional fields as JSON."""
    values = [turn[name] for name in OF_TEMPLATES if turn.get(name)]
    fields = "".join(json.dumps(value, ensure_ascii=False) for value in values)
    return f"{fields}{turn['content']}"
