"""Prepares conversations of any form as Parquet: without duplicates, none too long, with a split
that leaks no question. Also preferences (a question with a better and a worse answer, or one answer
with a label), and prompts (a question with a reference answer)."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from runner.data import RenderedExample, blocks, judged
from runner.data import conversation_formats as formats
from runner.data.items import ItemOf, ItemPreparer
from runner.data.judged import Labels, Preferences, Prompts
from runner.data.report import Report
from runner.data.tokenizers import MISTRAL, TokenizerFor
from runner.tools.problem import Stop, first_line
from runner.tools.text import TextTokenizer, tokens

Asked = formats.ChatData | Preferences | Labels | Prompts


def prepare(
    request: Asked,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet`, `validation.parquet` (columns `full-question`, `messages`, and
    `answer`, `chosen` and `rejected`, or `completion` and `label`) and `report.json`. sample_rows:
    keep at most this many rows, drawn by the seed. Raises Stop if too few rows remain."""
    return _preparer(request).prepare(out, tokenizer_for, sample_rows)


def first(request: Asked) -> Iterator[RenderedExample]:
    """The rows as the model will see them, one after the other."""
    return _preparer(request).first()


def _preparer(request: Asked) -> ItemPreparer[Any]:
    kinds: dict[str, type[ItemPreparer[Any]]] = {"chat": ChatRows, "prompts": PromptRows}
    return kinds.get(request.kind, PreferenceRows)(request)


Talk = TypeVar("Talk", bound=formats.Conversations)


class ConversationRows(ItemPreparer[Talk]):
    """Conversations as columns: `full-question`, `answer`, `messages` for Axolotl, and `tools`, if
    any."""

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of all rows, with the additional fields of turns, if any has some."""
        text = pa.string()
        tools = False
        types = [pa.schema({"role": text, "content": text})]
        for batch in self.spool.batches(np.arange(len(self.spool))):
            tools = tools or any(conversation.tools for conversation in batch)
            extra_fields = {
                turn.besides for conversation in batch for turn in conversation.turns
            } - {""}
            if extra_fields:
                # The order of a set differs from run to run, but that of columns must not.
                types.append(
                    pa.schema(
                        list(
                            pa.infer_type([json.loads(besides) for besides in sorted(extra_fields)])
                        )
                    )
                )
        fields = list(pa.unify_schemas(types, promote_options="permissive"))
        if self.asked.train_on == "last":
            fields += [pa.field(formats.TRAINING, pa.bool_())]
        columns = {"full-question": text, "answer": text, "messages": pa.list_(pa.struct(fields))}
        return pa.schema(columns | ({"tools": text} if tools else {}))

    def counted(self, kept: np.ndarray, tokenizer: TextTokenizer) -> np.ndarray:
        request = self.asked
        report = self.report
        # A twin's tokenizer gives other lengths than the model's.
        of_twin = hasattr(tokenizer, "said_as")
        template = getattr(tokenizer, "chat_template", None)
        if (
            request.special_tokens.axolotl == formats.OWN
            and isinstance(template, str)
            and not of_twin
        ):
            written = []
            for line, conversation in zip(self.where(kept), self.spool.items(kept), strict=True):
                name = formats.unwritten(conversation, template)
                written.append(name is None)
                if name:
                    report.lose(
                        line, f"`{name}`, which the tokenizer's chat template does not write"
                    )
            kept = kept[np.array(written)]
        if request.special_tokens.axolotl == MISTRAL:
            kept, lengths = self._by_mistral(kept, tokenizer)
        else:
            lengths = self.lengths(kept, tokenizer)
        if len(kept):
            return self.within(request.sequence_len, kept, lengths, tokenizer)
        return kept

    def _by_mistral(
        self, kept: np.ndarray, tokenizer: TextTokenizer
    ) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the items that mistral-common can write, and their lengths. It would stop
        training at others."""
        lengths = []
        for line, conversation in zip(self.where(kept), self.spool.items(kept), strict=True):
            *prompt, answer = formats.behind(self.asked.system_prompt, conversation.turns)
            tools = json.loads(conversation.tools or "[]")
            try:
                # It writes no complete conversation unless it trains; an answer's own end is one
                # token.
                answer_tokens = tokenizer.encode(answer["content"], add_special_tokens=False)
                lengths.append(
                    len(tokens(tokenizer, prompt, asking=True, tools=tools))
                    + len(answer_tokens)
                    + 1
                )
            except Exception as error:  # its own kinds, and pydantic's
                self.report.lose(line, "mistral-common cannot write it", first_line(error))
                lengths.append(0)
        counted = np.array(lengths)
        return kept[counted > 0], counted[counted > 0]

    def table(self, batch: list[formats.Conversation]) -> pa.Table:
        rows = []
        for conversation in batch:
            messages = formats.behind(self.asked.system_prompt, conversation.turns)
            if self.asked.train_on == "last":
                for message in messages:
                    message[formats.TRAINING] = message is messages[-1]
            rows.append(
                {
                    "full-question": conversation.question,
                    "answer": conversation.turns[-1].content,
                    "messages": messages,
                    "tools": conversation.tools or None,
                }
            )
        return pa.Table.from_pylist(rows, self.schema)


class ChatRows(ConversationRows[formats.ChatData]):
    def said(self, item: formats.Conversation) -> tuple[Any, ...]:
        return item.said, item.turns[-1].content, None, item.asked

    def items_of(self) -> Iterator[ItemOf]:
        forms = []
        for written_set in self.asked.sets:
            data_set = written_set.told()
            forms.append(
                f"{data_set.form}{'' if written_set.form else ', recognised by the columns'}"
            )
            yield partial(data_set.conversation, self.asked.special_tokens.axolotl)
        self.report.form = "; ".join(dict.fromkeys(forms))


Prompted = TypeVar("Prompted", bound=Preferences | Labels | Prompts)


class PreferenceRows(ItemPreparer[Prompted]):
    """Rows with a prompt. Training cuts preferences and labels that are too long."""

    uncounted = "the tokenizer is not here; longer rows are cut in training"

    @property
    def answers(self) -> tuple[str, ...]:
        """The columns with answers; the first is learned."""
        return {"labels": ("completion",), "prompts": ("answer",)}.get(
            self.asked.kind, ("chosen", "rejected")
        )

    def items_of(self) -> Iterator[ItemOf]:
        return (data_set.item for data_set in self.asked.sets)

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        kept = super().read(place, sample_rows)
        labels = set()
        for item in self.spool.items(kept):
            if "label" in item.answers:
                labels.add(item.answers["label"])
        if len(labels) == 1:
            (only,) = labels
            raise Stop(
                f"Every row has the label {str(only).lower()}, so there is nothing to tell apart.",
                f"Add rows with the label {str(not only).lower()}.",
            )
        return kept

    def told(self, item: judged.Answered, answer: str = "") -> str:
        """answer: the column of the one that is shown, by default the first."""
        answer_turn = formats.Turn("assistant", str(item.answers[answer or self.answers[0]]))
        return super().told(replace(item, turns=(*item.turns, answer_turn)))

    def rendered(self, item: judged.Answered) -> RenderedExample:
        name, answer_text = list(item.answers.items())[-1]
        if name == "answer":
            name = "reference"
        return RenderedExample(item.question, f"{self.told(item)}\n\n{name}: {answer_text}")

    def said(self, item: judged.Answered) -> tuple[Any, ...]:
        answers = [item.answers[name] for name in self.answers]
        return "\n".join((item.said, *map(str, answers))), answers[0], item.answers.get("label")

    def counted(self, kept: np.ndarray, tokenizer: TextTokenizer) -> np.ndarray:
        """Counts the tokens of each row's prompt with its longest answer, and the tokens that
        training cuts."""
        limit = self.asked.sequence_len
        lengths = np.stack([self.lengths(kept, tokenizer, answer=name) for name in self.answers])
        longer = lengths.max(axis=0)
        self.report.token_lengths = blocks.figures(longer)
        lost_tokens = int((lengths - limit).clip(min=0).sum())
        self.find_too_long(
            longer, limit, self.where(kept[longer > limit]), lost_tokens, "cut in training"
        )
        return kept

    def table(self, batch: list[judged.Answered]) -> pa.Table:
        messages = [formats.behind(self.asked.system_prompt, item.turns) for item in batch]
        answers = {}
        for name in batch[0].answers:
            answers[name] = [item.answers[name] for item in batch]
        return pa.table(
            {"full-question": [item.question for item in batch], "messages": messages, **answers}
        )


class PromptRows(PreferenceRows[Prompts]):
    """Rows that are prompts, without those that leave the answer too little room."""

    uncounted = ItemPreparer.uncounted

    def told(self, item: judged.Answered, answer: str = "") -> str:
        """Without the reference answer, which the model does not see."""
        return super().told(replace(item, answers={"answer": ""}))

    def counted(self, kept: np.ndarray, tokenizer: TextTokenizer) -> np.ndarray:
        room = self.asked.sequence_len - self.asked.answer_tokens
        return self.within(room, kept, self.lengths(kept, tokenizer), tokenizer)

    def table(self, batch: list[judged.Answered]) -> pa.Table:
        table = super().table(batch)
        # TRL reads the column `prompt`.
        return table.add_column(2, "prompt", table["messages"])
