"""Conversations, whatever form their rows have, to Parquet: columns of Arrow as they are spooled, counted in tokens and written;
no duplicates, none too long, a split that leaks no question."""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data import RenderedExample, blocks, doctor, items, rows
from runner.data.conversation_formats import (
    OWN,
    TRAINING,
    ChatData,
    ChatSet,
    Conversation,
    Conversations,
    NoConversation,
    Turn,
    rendered,
    unwritten,
)
from runner.data.items import ItemPreparer
from runner.data.lengths import Lengths
from runner.data.report import Report
from runner.data.tokenizers import TokenizerFor
from runner.recipe import templates


def prepare(
    chat: ChatData,
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
    return ChatRows(chat, chat.tokenizer).prepare(out, tokenizer_for, sample_rows)


def first(chat: ChatData) -> Iterator[RenderedExample]:
    """The rows that make a conversation, one after the other."""
    for one in map(ChatSet.told, chat.sets):
        for row in rows.good(one):
            with suppress(NoConversation, templates.NoText):
                conversation = one.conversation(chat.special_tokens.axolotl, row)
                if isinstance(conversation, Conversation):
                    yield chat.rendered(conversation)


TURN = pa.struct({"role": pa.string(), "content": pa.string(), "besides": pa.string()})
SPOOLED = pa.schema({"question": pa.int32(), "turns": pa.list_(TURN), "tools": pa.string()})


def batch(conversations: Sequence[Conversation]) -> pa.RecordBatch:
    """Conversations as they are spooled. question: the number of the turn that asks first."""
    turns = [turn for conversation in conversations for turn in conversation.turns]
    offsets = np.cumsum([0, *(len(conversation.turns) for conversation in conversations)])
    fields = [_texts(part) for part in zip(*turns, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            _numbers([conversation.asking for conversation in conversations]),
            pa.ListArray.from_arrays(_numbers(offsets), pa.StructArray.from_arrays(fields, fields=list(TURN))),
            _texts([conversation.tools for conversation in conversations]),
        ],
        schema=SPOOLED,
    )


# pa.array() would import pandas first, a quarter of a second in every process that reads rows.


def _texts(texts: Sequence[str]) -> pa.StringArray:
    joined = "".join(texts)
    ends = np.cumsum([0, *map(len, texts if joined.isascii() else map(str.encode, texts))])
    return pa.StringArray.from_buffers(len(texts), _numbers(ends).buffers()[1], pa.py_buffer(joined.encode()))


def _numbers(numbers: Sequence[int]) -> pa.Int32Array:
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(np.array(numbers, np.int32))])


def conversations(batch: pa.RecordBatch) -> Iterator[Conversation]:
    """Those of a batch, as they were spooled."""
    flat = batch["turns"].flatten()
    turns = list(map(Turn, *(flat.field(name).to_pylist() for name in Turn._fields)))
    ends = np.cumsum(pc.list_value_length(batch["turns"]).to_numpy()).tolist()
    for start, end, tools in zip([0, *ends], ends, batch["tools"].to_pylist(), strict=False):
        yield Conversation(tuple(turns[start:end]), tools)


Talk = TypeVar("Talk", bound=Conversations)


class ConversationRows(ItemPreparer[Talk]):
    """What becomes of spooled conversations. Written are `full-question`, `answer`, `messages` as Axolotl reads them, and `tools`
    where a row has some."""

    @cached_property
    def tools(self) -> bool:
        """Whether a row has some."""
        return any(pc.any(pc.not_equal(batch["tools"], "")).as_py() for batch in self.spool.batches())

    @cached_property
    def besides(self) -> pa.StructType | None:
        """The type of what turns have besides, of all rows; None where none has anything."""
        types = []
        for batch in self.spool.batches():
            there = set(batch["turns"].flatten().field("besides").to_pylist()) - {""}
            if there:
                # The order of a set differs from run to run, and that of columns may not.
                types.append(pa.schema(list(pa.infer_type([json.loads(besides) for besides in sorted(there)]))))
        return pa.struct(list(pa.unify_schemas(types, promote_options="permissive"))) if types else None

    def said(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        for conversation in conversations(batch):
            yield conversation.said, conversation.turns[-1].content

    def texts(self, kept: np.ndarray) -> Iterator[str]:
        """Conversations as the model is to see them."""
        for batch in self.spool.batches(kept):
            for conversation in conversations(batch):
                yield rendered(self.asked.special_tokens, self.asked.told(conversation))

    def measured(self, kept: np.ndarray, tokenizer_for: TokenizerFor | None) -> np.ndarray:
        """Leaves out what the model would not see whole."""
        asked, report = self.asked, self.report
        tokenizer = tokenizer_for(self.texts(kept)) if tokenizer_for and len(kept) else None
        if tokenizer is None:
            report.tokenizer = "the base model's tokenizer is not on this machine"
            return kept
        # What a twin's tokenizer makes of a row says nothing about the model's.
        of_twin = hasattr(tokenizer, "said_as")
        report.tokenizer = tokenizer.said_as if of_twin else str(tokenizer.name_or_path)
        template = getattr(tokenizer, "chat_template", None)
        if asked.special_tokens.axolotl == OWN and isinstance(template, str) and not of_twin:
            written = []
            spooled = (each for batch in self.spool.batches(kept) for each in conversations(batch))
            for line, conversation in zip(self.where(kept), spooled, strict=True):
                name = unwritten(conversation, template)
                written.append(name is None)
                if name:
                    report.lose(line, f"`{name}`, which the tokenizer's chat template does not write")
            kept = kept[np.array(written)]
        if not len(kept):
            return kept
        lengths, limit = blocks.lengths(self.texts(kept), tokenizer), asked.sequence_len
        report.token_lengths, report.length_bins = blocks.figures(lengths), blocks.histogram(lengths)
        if len(whole := lengths[lengths <= limit]):
            report.lengths = Lengths(float(whole.mean()), float(whole.std()), float(np.percentile(whole, 99)))
        too_long = self.where(kept[lengths > limit])
        for line in too_long:
            report.lose(line, f"longer than {limit} tokens")
        report.findings += doctor.too_long(lengths, limit, too_long, int(lengths[lengths > limit].sum()))
        if of_twin:
            report.lost -= len(too_long)
        return kept[lengths <= limit]

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        turns, offsets = batch["turns"].flatten(), _offsets(batch)
        asking = turns.field("content").take(pa.array(offsets[:-1] + batch["question"].to_numpy()))
        answer = turns.field("content").take(pa.array(offsets[1:] - 1))
        columns = {"full-question": asking, "answer": answer, "messages": self._messages(turns, offsets)}
        tools = pc.if_else(pc.equal(batch["tools"], ""), pa.scalar(None, pa.string()), batch["tools"])
        return pa.table(columns | ({"tools": tools} if self.tools else {}))

    def _messages(self, turns: pa.StructArray, offsets: np.ndarray) -> pa.ListArray:
        prompt = self.asked.system_prompt
        if prompt:
            turns, offsets = _behind(prompt.strip(), turns, offsets)
        fields = {name: turns.field(name) for name in ("role", "content")}
        if self.besides:
            besides = [json.loads(besides) if besides else {} for besides in turns.field("besides").to_pylist()]
            more = pa.array(besides, self.besides)
            fields |= {field.name: more.field(field.name) for field in self.besides}
        if self.asked.train_on == "last":
            last = np.zeros(len(turns), bool)
            last[offsets[1:] - 1] = True
            fields[TRAINING] = pa.array(last)
        messages = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), messages)


class ChatRows(ConversationRows[ChatData]):
    """Rows of which each is a conversation, no two the same."""

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        stated, sets = self.asked.sets, [one.told() for one in self.asked.sets]
        self.report.form = "; ".join(
            dict.fromkeys(
                f"{one.form}{'' if before.form else ', told from the columns'}"
                for one, before in zip(sets, stated, strict=True)
            )
        )
        template = self.asked.special_tokens.axolotl
        codecs = [items.RowCodec(partial(one.conversation, template), batch) for one in sets]
        return self.read_distinct(codecs, place, sample_rows)


def _offsets(batch: pa.RecordBatch) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(pc.list_value_length(batch["turns"]).to_numpy())])


def _behind(prompt: str, turns: pa.StructArray, offsets: np.ndarray) -> tuple[pa.StructArray, np.ndarray]:
    """Turns, and where each conversation begins, with the system prompt before those that have none of their own."""
    own = pc.equal(turns.field("role").take(pa.array(offsets[:-1])), "system").to_numpy(zero_copy_only=False)
    moved = offsets + np.concatenate([[0], np.cumsum(~own)])
    taken = np.ones(moved[-1], np.int64)
    taken[moved[:-1][~own]] = 0
    taken[taken > 0] = np.arange(1, len(turns) + 1)
    first = pa.array([{"role": "system", "content": prompt, "besides": ""}], TURN)
    return pa.concat_arrays([first, turns]).take(pa.array(taken)), moved
