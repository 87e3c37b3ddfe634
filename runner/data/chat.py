"""Rows become conversations, whatever their form: no duplicates, none too long, a split that leaks no question."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.catalog import ChatTemplate
from runner.data import conversation_formats, data_sets, rows, split_settings
from runner.data.conversation_formats import CALLS, REASONING, Form, NoConversation, Turn
from runner.data.rendered_example import Seen
from runner.data.report import Report
from runner.data.split_settings import TokenizerFor, TwoSides
from runner.data.tokenizers import Pretrained
from runner.recipe import templates
from runner.tools.lengths import Lengths
from runner.tools.names import listed, same
from runner.tools.problem import Stop

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from runner.data.spool import Spool

TrainOn = Literal["assistant", "last", "all"]
# What Axolotl's `message_field_training` names, beside each turn where not all of a role are trained.
TRAINING = "training"
# Stands between the parts of a conversation where it is told from others, and in no text that people write.
SEPARATOR = "\x1f"
# What Axolotl calls the template in the model's own tokenizer. Those that it has itself and the catalog names write roles and
# words, and nothing else.
OWN = "tokenizer_default"


@dataclass(frozen=True, kw_only=True)
class Conversations(TwoSides):
    """What becomes of conversations, whatever is in them.

    system_prompt: for those without a system turn of their own. train_on: the turns that are learned. special_tokens: those
    around each message. sequence_len: tokens that a conversation may have; tokenizer: whose tokens those are.
    """

    system_prompt: str | None
    train_on: TrainOn = "assistant"
    special_tokens: ChatTemplate
    sequence_len: int
    tokenizer: Pretrained | None = None

    def told(self, conversation: Conversation) -> list[dict[str, Any]]:
        """A conversation's messages, behind the recipe's system prompt where it has none of its own."""
        prompt = self.system_prompt
        own = [Turn("system", prompt.strip())] if prompt and conversation.turns[0].role != "system" else []
        return [turn.message() for turn in (*own, *conversation.turns)]


@dataclass(frozen=True, kw_only=True)
class ChatSet(data_sets.DataSet):
    """Rows in one form. form: None where the rows tell it. question, answer: where they have that of columns, templates with
    the columns in brackets."""

    form: Form | None = "columns"
    question: str | None = None
    answer: str | None = None

    def conversation(self, template: str, row: Mapping[str, Any]) -> Conversation | str:
        """That of a row, or why it has none. template: what Axolotl calls the one that is to write it."""
        assert self.form is not None
        if self.form != "columns":
            if not all(map(row.__contains__, conversation_formats.COLUMNS[self.form])) and (
                other := conversation_formats.told(row)
            ):
                raise NoConversation(f"it has the form {other}, and the others {self.form}")
            tools = row.get("tools")
            conversation = Conversation(
                conversation_formats.turns(self.form, row),
                conversation_formats.as_json(tools, "its `tools` are") if tools else "",
            )
            if template != OWN and (unwritten := _unwritten(conversation, "")):
                raise NoConversation(
                    f"it has `{unwritten}`, which the chat template `{template}` does not write; `chat_template: {OWN}` takes the "
                    "model's own"
                )
            return conversation
        question = templates.fill(self.question or "", row).strip()
        answer = templates.fill(self.answer or "", row).strip()
        return Conversation(pair(question, answer)) if question and answer else "the question or the answer is empty"

    def told(self) -> ChatSet:
        """With the form of its first row that has the columns of one. Raises Stop where none has."""
        if self.form:
            return self
        columns: list[str] = []
        for _, row in rows.read(self):
            if isinstance(row, rows.Bad):
                continue
            if form := conversation_formats.told(row):
                return replace(self, form=form)
            columns = columns or list(row)
        if columns:
            raise Stop(
                f"The rows of {self.name} have the columns of no form that is known; they are {listed(columns)}.",
                conversation_formats.NO_FORM,
            )
        # Whatever the form: there is no row, which whoever reads them counts.
        return replace(self, form="messages")


@dataclass(frozen=True, kw_only=True)
class Chat(Conversations):
    """Conversations, each data set in a form of its own."""

    kind: Literal["chat"] = "chat"
    sets: tuple[ChatSet, ...]


@dataclass(frozen=True)
class Conversation:
    """turns: in order; the last one answers. tools: JSON of the functions that may be called; empty where there are none."""

    turns: tuple[Turn, ...]
    tools: str = ""

    @property
    def asking(self) -> int:
        """The number of the turn that asks first, from 0."""
        for number, turn in enumerate(self.turns):
            if turn.role == "user":
                return number
        raise ValueError("nobody asks")

    @property
    def question(self) -> str:
        return self.turns[self.asking].content

    @property
    def said(self) -> str:
        """All that is said in it but what a system prompt says."""
        return "\n".join(turn.content for turn in self.turns if turn.role != "system")

    @property
    def key(self) -> str:
        """Equal for conversations that are the same in every turn."""
        return SEPARATOR.join(chain((self.tools,), *self.turns))

    @property
    def group(self) -> str:
        """Conversations with the same group stay on one side of the split: the first question, however it is spaced or cased."""
        return same(self.question)


def pair(question: str, answer: str) -> tuple[Turn, Turn]:
    return Turn("user", question), Turn("assistant", answer)


def prepare(
    chat: Chat,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet` and `validation.parquet` (columns `full-question`, `answer`, `messages`) and `report.json`.

    tokenizer_for: where it gives a tokenizer, conversations longer than `sequence_len` tokens are left out.
    sample_rows: keep at most so many pairs, drawn by the seed.
    Raises Stop where too few rows are left to train and validate on.
    """
    report = split_settings.begin(chat, chat.tokenizer, sample_rows)
    if known := split_settings.already(out, report, tokenizer_for):
        return known
    from runner.data import split, spool, turns

    sets = [one.told() for one in chat.sets]
    said = (
        f"{one.form}{'' if stated.form else ', told from the columns'}"
        for one, stated in zip(sets, chat.sets, strict=True)
    )
    report.form = "; ".join(dict.fromkeys(said))
    kinds = [spool.Kind(partial(one.conversation, chat.special_tokens.axolotl), turns.batch) for one in sets]
    with spool.folder(out) as place:
        items, kept = split.read(chat, kinds, place, report)
        if sample_rows is not None and len(kept) > sample_rows:
            report.sampled_from = len(kept)
            kept = kept[sorted(random.Random(chat.seed).sample(range(len(kept)), sample_rows))]
        report.require_few_lost(report.lost, report.rows_in, chat.max_lost_share, out)
        if sample_rows is None:
            look_through(items, kept, chat, report)
        return finish(items, kept, chat, out, tokenizer_for, report)


def _unwritten(conversation: Conversation, template: str) -> str | None:
    """What a conversation has beside its words that a template does not write, and that would be lost without a sign."""
    there = {
        name
        for turn in conversation.turns
        if turn.besides
        for name in json.loads(turn.besides)
        if name in (CALLS, REASONING)
    }
    return next(
        (name for name in sorted(there | ({"tools"} if conversation.tools else set())) if name not in template), None
    )


def finish(
    items: Spool,
    kept: np.ndarray,
    conversations: Conversations,
    out: Path,
    tokenizer_for: TokenizerFor | None,
    report: Report,
) -> Report:
    """Leaves out of the conversations whose numbers are `kept` what is too long, splits, and writes. Raises Stop where too few
    rows are left."""
    from runner.data import split, turns

    others = report.lost
    read, kept = len(kept), _within_length(items, kept, conversations, tokenizer_for, report)
    report.require_few_lost(report.lost - others, read, conversations.max_lost_share, out)
    return split.write(items, kept, turns.Columns(items, conversations), conversations, out, report)


def look_through(items: Spool, kept: np.ndarray, source: data_sets.DataSets, report: Report) -> None:
    """The doctor's findings about the conversations whose numbers are `kept`."""
    from runner.data import doctor

    doctor.look_through(items, kept, source, _said, report)


def _said(batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
    """Of each conversation of a batch all that is said in it, and its last answer."""
    from runner.data import turns

    for conversation in turns.conversations(batch):
        yield conversation.said, conversation.turns[-1].content


def _within_length(
    items: Spool,
    kept: np.ndarray,
    conversations: Conversations,
    tokenizer_for: TokenizerFor | None,
    report: Report,
) -> np.ndarray:
    """Counts tokens; leaves out what the model would not see whole."""
    import numpy as np

    from runner.data import blocks, doctor, turns

    tokenizer = tokenizer_for(turns.Texts(items, kept, conversations)) if tokenizer_for and len(kept) else None
    if tokenizer is None:
        report.tokenizer = "the base model's tokenizer is not on this machine"
        return kept
    report.tokenizer = getattr(tokenizer, "said_as", str(tokenizer.name_or_path))
    template = getattr(tokenizer, "chat_template", None)
    if conversations.special_tokens.axolotl == OWN and isinstance(template, str) and not hasattr(tokenizer, "said_as"):
        written = []
        spooled = (each for batch in items.batches(kept) for each in turns.conversations(batch))
        for line, conversation in zip(items.where(conversations, kept), spooled, strict=True):
            name = _unwritten(conversation, template)
            written.append(name is None)
            if name:
                report.lose(line, f"`{name}`, which the tokenizer's chat template does not write")
        kept = kept[np.array(written)]
    if not len(kept):
        return kept
    lengths = blocks.lengths(turns.Texts(items, kept, conversations), tokenizer)
    report.token_lengths, report.length_bins = figures(lengths), blocks.histogram(lengths)
    limit = conversations.sequence_len
    if len(whole := lengths[lengths <= limit]):
        report.lengths = Lengths(float(whole.mean()), float(whole.std()), float(np.percentile(whole, 99)))
    too_long = items.where(conversations, kept[lengths > limit])
    for line in too_long:
        report.lose(line, f"longer than {limit} tokens")
    lost = int(lengths[lengths > limit].sum())
    report.findings += doctor.too_long(lengths, limit, too_long, lost)
    if hasattr(tokenizer, "said_as"):
        # What a twin's tokenizer makes of a row says nothing about the model's.
        report.lost -= len(too_long)
    return kept[lengths <= limit]


def figures(lengths: np.ndarray) -> dict[str, int]:
    """What a report says of rows' lengths in tokens."""
    import numpy as np

    ordered = np.sort(lengths)
    return {
        "min": int(ordered[0]),
        "median": round(float(np.median(ordered))),
        "p95": int(ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]),
        "max": int(ordered[-1]),
    }


def first(chat: Chat) -> Iterator[Seen]:
    """The rows that make a conversation, one after the other."""
    for one in map(ChatSet.told, chat.sets):
        for _, row in rows.read(one):
            if isinstance(row, rows.Bad):
                continue
            with suppress(NoConversation, templates.NoText):
                conversation = one.conversation(chat.special_tokens.axolotl, row)
                if isinstance(conversation, Conversation):
                    yield as_seen(chat, conversation)


def as_seen(source: Conversations, conversation: Conversation) -> Seen:
    """A conversation as the model is to see it."""
    return Seen(conversation.question, rendered(source.special_tokens, source.told(conversation)))


def rendered(template: ChatTemplate, conversation: list[dict[str, Any]]) -> str:
    """A conversation with the special tokens around each message, as the model is to see it; what a turn has besides its
    words stands before them, about as long as the model's own template makes it."""
    return template.conversation((turn["role"], _besides(turn) + turn["content"]) for turn in conversation)


def _besides(turn: Mapping[str, Any]) -> str:
    return "".join(json.dumps(turn[name], ensure_ascii=False) for name in (REASONING, CALLS) if turn.get(name))
