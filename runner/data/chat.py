"""Prepares conversations of any form as Parquet: without duplicates, none too long, with a split that leaks no
question. Also preferences (a question with a better and a worse answer, or one answer with a label), and prompts (a
question with a reference answer)."""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runner.data import RenderedExample, blocks
from runner.data import conversation_formats as formats
from runner.data.conversation_formats import ChatData, Conversation, Conversations, Labels, Preferences, Prompts, Turn
from runner.data.items import ItemOf, ItemPreparer
from runner.data.report import Report, too_long
from runner.data.tokenizers import MISTRAL, TokenizerFor
from runner.tools.problem import Stop, first_line, worded
from runner.trainer.generation import tokens

Asked = ChatData | Preferences | Labels | Prompts


def prepare(
    asked: Asked, out: Path, *, tokenizer_for: TokenizerFor | None = None, sample_rows: int | None = None
) -> Report:
    """Writes `train.parquet`, `validation.parquet` (columns `full-question`, `messages`, and `answer`, `chosen` and
    `rejected`, or `completion` and `label`) and `report.json`. sample_rows: keep at most this many rows, drawn by the
    seed. Raises Stop if too few rows remain."""
    return _preparer(asked).prepare(out, tokenizer_for, sample_rows)


def first(asked: Asked) -> Iterator[RenderedExample]:
    """The rows as the model will see them, one after the other."""
    return _preparer(asked).first()


def _preparer(asked: Asked) -> ItemPreparer[Any]:
    kinds: dict[str, type[ItemPreparer[Any]]] = {"chat": ChatRows, "prompts": PromptRows}
    return kinds.get(asked.kind, PreferenceRows)(asked)


TURN = pa.struct({"role": pa.string(), "content": pa.string(), "besides": pa.string()})
SPOOLED = pa.schema({"question": pa.int32(), "turns": pa.list_(TURN), "tools": pa.string()})


def batch(items: Sequence[Conversation]) -> pa.RecordBatch:
    """Conversations as they are spooled. question: the number of the turn that asks first."""
    turns = [turn for conversation in items for turn in conversation.turns]
    offsets = np.cumsum([0, *(len(conversation.turns) for conversation in items)])
    fields = [_texts(part) for part in zip(*turns, strict=True)]
    return pa.RecordBatch.from_arrays(
        [
            _numbers([conversation.asking for conversation in items]),
            pa.ListArray.from_arrays(_numbers(offsets), pa.StructArray.from_arrays(fields, fields=list(TURN))),
            _texts([conversation.tools for conversation in items]),
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
    flat = batch["turns"].flatten()
    turns = list(map(Turn, *(flat.field(name).to_pylist() for name in Turn._fields)))
    ends = np.cumsum(pc.list_value_length(batch["turns"]).to_numpy()).tolist()
    for start, end, tools in zip([0, *ends], ends, batch["tools"].to_pylist(), strict=False):
        yield Conversation(tuple(turns[start:end]), tools)


Talk = TypeVar("Talk", bound=Conversations)


class ConversationRows(ItemPreparer[Talk]):
    """Spooled conversations as columns: `full-question`, `answer`, `messages` for Axolotl, and `tools`, if any."""

    batch = staticmethod(batch)

    @cached_property
    def tools(self) -> bool:
        return any(pc.any(pc.not_equal(batch["tools"], "")).as_py() for batch in self.spool.batches())

    @cached_property
    def besides(self) -> pa.StructType | None:
        """The type of the additional fields of turns in all rows, or None."""
        types = []
        for batch in self.spool.batches():
            if there := set(batch["turns"].flatten().field("besides").to_pylist()) - {""}:
                # The order of a set differs from run to run, but that of columns must not.
                types.append(pa.schema(list(pa.infer_type([json.loads(besides) for besides in sorted(there)]))))
        return pa.struct(list(pa.unify_schemas(types, promote_options="permissive"))) if types else None

    def said(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        return ((conversation.said, conversation.turns[-1].content) for conversation in conversations(batch))

    def told(self, conversation: Conversation) -> str:
        return formats.rendered(self.asked.special_tokens, formats.behind(self.asked.system_prompt, conversation.turns))

    def texts(self, kept: np.ndarray) -> Iterator[str]:
        return map(self.told, self._conversations(kept))

    def _conversations(self, kept: np.ndarray) -> Iterator[Conversation]:
        return chain.from_iterable(map(conversations, self.spool.batches(kept)))

    def rendered(self, item: Conversation) -> RenderedExample:
        return RenderedExample(item.question, self.told(item))

    def counted(self, kept: np.ndarray, tokenizer: Any) -> np.ndarray:
        asked, report = self.asked, self.report
        # A twin's tokenizer gives other lengths than the model's.
        of_twin = hasattr(tokenizer, "said_as")
        template = getattr(tokenizer, "chat_template", None)
        if asked.special_tokens.axolotl == formats.OWN and isinstance(template, str) and not of_twin:
            written = []
            for line, conversation in zip(self.where(kept), self._conversations(kept), strict=True):
                name = formats.unwritten(conversation, template)
                written.append(name is None)
                if name:
                    report.lose(line, f"`{name}`, which the tokenizer's chat template does not write")
            kept = kept[np.array(written)]
        if not len(kept):
            return kept
        if asked.special_tokens.axolotl == MISTRAL:
            kept, lengths = self._by_mistral(kept, tokenizer)
            return self.within(asked.sequence_len, kept, lengths, tokenizer) if len(kept) else kept
        return self.within(asked.sequence_len, kept, blocks.lengths(self.texts(kept), tokenizer), tokenizer)

    def _by_mistral(self, kept: np.ndarray, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the items that mistral-common can write, and their lengths. It would stop training at others."""
        lengths = []
        for line, conversation in zip(self.where(kept), self._conversations(kept), strict=True):
            *asked, answer = formats.behind(self.asked.system_prompt, conversation.turns)
            tools = json.loads(conversation.tools or "[]")
            try:
                # It writes no complete conversation unless it trains; an answer's own end is one token.
                said = tokenizer.encode(answer["content"], add_special_tokens=False)
                lengths.append(len(tokens(tokenizer, asked, asking=True, tools=tools)) + len(said) + 1)
            except Exception as error:  # its own kinds, and pydantic's
                self.report.lose(line, "mistral-common cannot write it", first_line(error))
                lengths.append(0)
        counted = np.array(lengths)
        return kept[counted > 0], counted[counted > 0]

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        turns, lengths = batch["turns"].flatten(), pc.list_value_length(batch["turns"]).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        asking = turns.field("content").take(pa.array(offsets[:-1] + batch["question"].to_numpy()))
        answer = turns.field("content").take(pa.array(offsets[1:] - 1))
        columns = {"full-question": asking, "answer": answer, "messages": self._messages(turns, offsets)}
        tools = pc.if_else(pc.equal(batch["tools"], ""), pa.scalar(None, pa.string()), batch["tools"])
        return pa.table(columns | ({"tools": tools} if self.tools else {}))

    def _messages(self, turns: pa.StructArray, offsets: np.ndarray) -> pa.ListArray:
        if prompt := self.asked.system_prompt:
            turns, offsets = _with_system(prompt.strip(), turns, offsets)
        fields = {name: turns.field(name) for name in ("role", "content")}
        if self.besides:
            besides = [json.loads(besides) if besides else {} for besides in turns.field("besides").to_pylist()]
            more = pa.array(besides, self.besides)
            fields |= {field.name: more.field(field.name) for field in self.besides}
        if self.asked.train_on == "last":
            last = np.zeros(len(turns), bool)
            last[offsets[1:] - 1] = True
            fields[formats.TRAINING] = pa.array(last)
        messages = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), messages)


class ChatRows(ConversationRows[ChatData]):
    def items_of(self) -> Iterator[ItemOf]:
        forms = []
        for stated in self.asked.sets:
            one = stated.told()
            forms.append(f"{one.form}{'' if stated.form else ', recognised by the columns'}")
            yield partial(one.conversation, self.asked.special_tokens.axolotl)
        self.report.form = "; ".join(dict.fromkeys(forms))


Prompted = TypeVar("Prompted", bound=Preferences | Labels | Prompts)


class PreferenceRows(ItemPreparer[Prompted]):
    """Rows with a prompt. Training cuts preferences and labels that are too long."""

    uncounted = "the tokenizer is not here; longer rows are cut in training"

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns with answers; the first is learned."""
        return {"labels": ("completion",), "prompts": ("answer",)}.get(self.asked.kind, ("chosen", "rejected"))

    @staticmethod
    def batch(items: Sequence[formats.Answered]) -> pa.RecordBatch:
        plain = [{"prompt": [turn.message() for turn in item.prompt], **item.answers} for item in items]
        return pa.RecordBatch.from_pylist(plain)

    def items_of(self) -> Iterator[ItemOf]:
        return (one.item for one in self.asked.sets)

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        kept = super().read(place, sample_rows)
        seen = {label for batch in self.spool.batches(kept) for label in batch.to_pydict().get("label", ())}
        if len(seen) == 1:
            (only,) = seen
            raise Stop(*worded("data.one-label", only=str(only).lower(), other=str(not only).lower()))
        return kept

    def told(self, prompt: Sequence[Turn], answer: str) -> str:
        messages = formats.behind(self.asked.system_prompt, (*prompt, Turn("assistant", answer)))
        return formats.rendered(self.asked.special_tokens, messages)

    def rendered(self, item: formats.Answered) -> RenderedExample:
        answer, (name, beside) = str(item.answers[self.answers[0]]), list(item.answers.items())[-1]
        name = "reference" if name == "answer" else name
        return RenderedExample(item.question, f"{self.told(item.prompt, answer)}\n\n{name}: {beside}")

    def said(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        for row in batch.to_pylist():
            answers = [row[name] for name in self.answers]
            prompt = (turn["content"] for turn in row["prompt"] if turn["role"] != "system")
            yield "\n".join((*prompt, *answers)), answers[0], row.get("label")

    def texts(self, kept: np.ndarray, answer: str = "") -> Iterator[str]:
        for batch in self.spool.batches(kept):
            for row in batch.to_pylist():
                yield self.told([Turn(**turn) for turn in row["prompt"]], row[answer or self.answers[0]])

    def counted(self, kept: np.ndarray, tokenizer: Any) -> np.ndarray:
        """Counts the tokens of each row's prompt with its longest answer, and the tokens that training cuts."""
        report, limit = self.report, self.asked.sequence_len
        lengths = np.stack([blocks.lengths(self.texts(kept, name), tokenizer) for name in self.answers])
        longer = lengths.max(axis=0)
        report.token_lengths = blocks.figures(longer)
        lost = int((lengths - limit).clip(min=0).sum())
        report.findings += too_long(longer, limit, self.where(kept[longer > limit]), lost, "cut in training")
        return kept

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        prompts = [[Turn(**turn) for turn in prompt] for prompt in batch["prompt"].to_pylist()]
        asked = [next(turn.content for turn in prompt if turn.role == "user") for prompt in prompts]
        columns = {name: batch[name] for name in batch.schema.names if name != "prompt"}
        turns = [formats.behind(self.asked.system_prompt, prompt) for prompt in prompts]
        return pa.table({"full-question": asked, "messages": turns, **columns})


class PromptRows(PreferenceRows[Prompts]):
    """Rows that are prompts, without those that leave the answer too little room."""

    uncounted = ItemPreparer.uncounted

    def told(self, prompt: Sequence[Turn], answer: str) -> str:
        """Without the reference answer, which the model does not see."""
        return super().told(prompt, "")

    def counted(self, kept: np.ndarray, tokenizer: Any) -> np.ndarray:
        room = self.asked.sequence_len - self.asked.answer_tokens
        return self.within(room, kept, blocks.lengths(self.texts(kept), tokenizer), tokenizer)

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        table = super().table(batch)
        # TRL reads the column `prompt`.
        return table.add_column(2, "prompt", table["messages"])


def _with_system(prompt: str, turns: pa.StructArray, offsets: np.ndarray) -> tuple[pa.StructArray, np.ndarray]:
    """Turns, and the beginning of each conversation, with the system prompt before those without one of their own."""
    own = pc.equal(turns.field("role").take(pa.array(offsets[:-1])), "system").to_numpy(zero_copy_only=False)
    moved = offsets + np.concatenate([[0], np.cumsum(~own)])
    taken = np.ones(moved[-1], np.int64)
    taken[moved[:-1][~own]] = 0
    taken[taken > 0] = np.arange(1, len(turns) + 1)
    first = pa.array([{"role": "system", "content": prompt, "besides": ""}], TURN)
    return pa.concat_arrays([first, turns]).take(pa.array(taken)), moved
