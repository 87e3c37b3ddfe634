"""Judges whether rows are trained as the chat template writes them, whether batches train their
rows, whether a model separates the rows of a batch, and whether validation rows are in training."""

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from runner.data.row_files import DataRow
from runner.tools import packaged
from runner.tools.problem import shortened
from runner.tools.text import TextTokenizer, same, tokens
from runner.trainer.generation import bare
from runner.trainer.records import Proof

# The kinds of fault, each with its sentence and its remedy.
KINDS = packaged.toml(__file__, "faults.toml")
MOST_EXAMPLES = 3


@dataclass
class Faults:
    """Counts faults by kind, with a few examples of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, example: str = "", times: int = 1) -> None:
        self.counts[kind] += times
        seen = self.examples.setdefault(kind, [])
        if example and len(seen) < MOST_EXAMPLES and example not in seen:
            seen.append(example)

    def __iter__(self) -> Iterator[dict[str, str]]:
        for kind, often in self.counts.items():
            if often > 1:
                times = f" ({often:,} times)"
            else:
                times = ""
            examples = "".join(f"\n  {example}" for example in self.examples[kind])
            fault = KINDS[kind]["fault"]
            remedy = KINDS[kind]["remedy"]
            yield {"kind": kind, "message": f"{fault}{times}.{examples}\n{remedy}"}


UNTRAINED = -100
# Characters of a text that identify its row.
SHOWN = 60
# Tokens before and after a difference that a message shows.
NEAR = 8

# The columns with answers in prepared rows that are no conversations.
ANSWERS = ("chosen", "rejected", "completion")

Tokens = tuple[int, ...]


class Talk(NamedTuple):
    """A prepared row. tokens: as the template writes it. prompts: of each answer; None if the
    answer is not trained, or if the template writes the prompt differently once the conversation
    continues. trained_turns: of any role. named: the beginning of its first question, for
    messages."""

    tokens: Tokens
    prompts: tuple[Tokens | None, ...]
    trained_turns: int
    named: str


class Reader(NamedTuple):
    """Reads prepared rows by the engine's settings. tokenizer: as saved beside the trained model.
    roles: the trained ones; marked: the field of a turn that decides instead of its role. ends: the
    tokens that end an answer."""

    tokenizer: TextTokenizer
    roles: frozenset[str]
    marked: str | None
    ends: frozenset[int]

    @property
    def masks(self) -> bool:
        """Whether every row has untrained tokens."""
        return self.roles == {"assistant"}

    def talk(self, row: DataRow, field: str) -> Talk:
        shown = []
        trained = []
        for message in row[field]:
            turn = bare(message)
            mark = turn.pop(self.marked, None) if self.marked else None
            shown.append(turn)
            if mark is None:
                trained.append(turn["role"] in self.roles)
            else:
                trained.append(bool(mark))
        tools = row.get("tools")
        if isinstance(tools, str):
            tools = json.loads(tools)
        whole = tuple(tokens(self.tokenizer, shown, asking=False, tools=tools))
        prompts: list[Tokens | None] = []
        answers = [place for place, turn in enumerate(shown) if turn["role"] == "assistant"]
        for place in answers:
            prompt: Tokens | None = None
            if trained[place]:
                prompt = tuple(tokens(self.tokenizer, shown[:place], asking=True, tools=tools))
                if place != answers[-1] and whole[: len(prompt)] != prompt:
                    prompt = None
            prompts.append(prompt)
        questions = (str(turn["content"]) for turn in shown if turn["role"] == "user")
        name = shortened(next(questions, ""), SHOWN)
        return Talk(whole, tuple(prompts), sum(trained), name)

    def words(self, tokens: Sequence[int]) -> str:
        return repr(self.tokenizer.decode(list(tokens)))

    def judge(
        self, tokens: Sequence[int], labels: Sequence[int], talk: Talk, faults: Faults
    ) -> None:
        """Finds faults of a row: each answer must be trained from the end of its prompt to its own
        end."""
        runs = list(_runs(labels))
        if len(runs) < talk.trained_turns:
            faults.add("nothing_trained", f"an answer to «{talk.named}»")
        begins = []
        for prompt in talk.prompts:
            if prompt is None:
                continue
            begin = self._behind_blanks(tokens, labels, len(prompt))
            begins.append(begin)
            begins_as_asked = tuple(tokens[: len(prompt)]) == prompt
            if not begins_as_asked or begin >= len(tokens) or labels[begin] == UNTRAINED:
                faults.add("prompt_differs", self._difference(tokens, labels, prompt))
                return
        for first, after in runs:
            if tokens[after - 1] in self.ends:
                continue
            is_answer = self.masks or any(first <= begin < after for begin in begins)
            next_tokens = tokens[after : after + 1]
            # A turn of another role may have no end of its own.
            if is_answer or self.ends.intersection(next_tokens):
                fault = f"the last trained token is {self.words(tokens[after - 1 : after])}"
                if next_tokens:
                    fault += f", and {self.words(next_tokens)} behind it is not"
                faults.add("end_not_trained", fault)

    def _behind_blanks(self, tokens: Sequence[int], labels: Sequence[int], begin: int) -> int:
        """The first token after untrained blanks. Mistral's template writes a blank before an
        answer; some tokenizers make it a separate token, which Axolotl does not train and a model
        writes anyway."""
        while (
            begin < len(tokens)
            and labels[begin] == UNTRAINED
            and not self.tokenizer.decode([tokens[begin]]).strip()
        ):
            begin += 1
        return begin

    def _difference(self, tokens: Sequence[int], labels: Sequence[int], prompt: Tokens) -> str:
        length = len(prompt)
        pairs = enumerate(zip(tokens, prompt, strict=False))
        difference = next((place for place, (token, asked) in pairs if token != asked), None)
        if difference is None:
            answer = range(length, len(tokens))
            trained = (place for place in answer if labels[place] != UNTRAINED)
            end = next(trained, len(tokens))
            begin = max(0, length - NEAR)
        else:
            end = length = difference + NEAR
            begin = max(0, difference - NEAR)
        in_training = self.words(tokens[begin:end])
        when_asked = self.words(prompt[begin:length])
        return f"in training …{in_training}, when asked …{when_asked}"


def _runs(labels: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each stretch of trained tokens: its first position, and the position after it."""
    trained = [False, *(label != UNTRAINED for label in labels), False]
    edges = [place for place, (before, now) in enumerate(pairwise(trained)) if before != now]
    return zip(edges[::2], edges[1::2], strict=True)


def spread(count: int, most: int) -> range:
    """At most `most` of `count` numbers, evenly spaced."""
    return range(0, count, max(1, -(-count // most)))


# The first loss must be the same for one batch of this many rows and for as many batches of one
# row.
ROWS = 8
# The tolerance of losses, in nats, and of logits. Sums in another order differ by about 1e-7.
TOLERANCE = 1e-5
# The same of a loss, as a share, in number formats of 8 and 11 binary digits. Rounding changes a
# number by at most half of its last digit, which is worth 2^-7 and 2^-10 of a number just above 1.
# Rows of other lengths are multiplied in other blocks, and each rounds.
TOLERANCE_IN_BF16 = 2**-8
TOLERANCE_IN_FP16 = 2**-11
# The most logits of a batch: 0.5 GiB in fp32.
MOST_LOGITS = 2**27

Row = Mapping[str, Any]


@dataclass
class Engine:
    """A trainer's rows and batches. first: the number of its first row."""

    trainer: Any
    first: int = 0

    @cached_property
    def loader(self) -> Any:
        """The trainer's loader, before it is divided among processes."""
        accelerator = self.trainer.accelerator
        accelerator.prepare = lambda *values, **_: values[0]
        try:
            return self.trainer.get_train_dataloader()
        finally:
            del accelerator.prepare

    @property
    def packs(self) -> bool:
        return bool(getattr(self.trainer.args, "sample_packing", False))

    def rows(self, numbers: Sequence[int]) -> list[Row]:
        return [dict(self.loader.dataset[number]) for number in numbers]

    def batches(self, most: int) -> Iterator[tuple[list[int], Any]]:
        """The first batches of training, with the numbers of their rows."""
        batches = self.loader.batch_sampler
        if self.first:
            size = self.trainer.args.per_device_train_batch_size
            batches = (list(range(begin, begin + size)) for begin in count(self.first, size))
        for batch in islice(batches, most):
            rows: list[Any]
            if batch and isinstance(batch[0], list):
                numbers = list(chain.from_iterable(batch))
                rows = [self.rows(inner) for inner in batch]
            else:
                numbers = list(batch)
                rows = self.rows(numbers)
            yield numbers, self.loader.collate_fn(rows)

    def batch(self, rows: Sequence[Row], joined: bool = False) -> Row:
        """One micro batch of these rows. joined: as close together as training ever packs rows."""
        copies = [dict(row) for row in rows]
        if not self.packs:
            return dict(self.loader.collate_fn(copies))
        if self.trainer.args.multipack_real_batches and not joined:
            packs = [[row] for row in copies]
        else:
            packs = [copies]
        return dict(self.loader.collate_fn(packs))


class Position(NamedTuple):
    """The place of a token in a batch."""

    line: int
    token: int


def places(lines: Sequence[list[int]], rows: Sequence[Row]) -> list[Position | None]:
    """The beginning of each row in a batch, in order; None for a missing row."""
    begins = []
    end = Position(0, 0)
    for row in rows:
        tokens = list(row["input_ids"])
        begin = next(_occurrences(lines, tokens, end), None)
        begins.append(begin)
        if begin:
            end = Position(begin.line, begin.token + len(tokens))
    return begins


def _occurrences(
    lines: Sequence[list[int]], tokens: list[int], start: Position
) -> Iterator[Position]:
    """Where these tokens are in a batch, from a position on."""
    for number in range(start.line, len(lines)):
        line = lines[number]
        first_token = 0
        if number == start.line:
            first_token = start.token
        for token in range(first_token, len(line) - len(tokens) + 1):
            if line[token] != tokens[0]:  # quicker than to compare them all
                continue
            if line[token : token + len(tokens)] == tokens:
                yield Position(number, token)


def judge(
    batch: Mapping[str, Any], rows: Sequence[Row], ends: frozenset[int], faults: Faults
) -> int:
    """Finds faults of a batch, which must have its rows' labels and no others. Returns its number
    of padding tokens."""
    lines = batch["input_ids"].tolist()
    labels = batch["labels"].tolist()
    for row, begin in zip(rows, places(lines, rows), strict=True):
        if begin is None:
            faults.add("labels_changed", "a row's tokens are not in its batch as they were")
            return 0
        line_labels = labels[begin.line]
        row_tokens = zip(row["input_ids"], row["labels"], strict=True)
        for place, (token, label) in enumerate(row_tokens, begin.token):
            batch_label = line_labels[place]
            line_labels[place] = None
            # The first token has no context, so no loss contains it.
            lost_first = place == begin.token and batch_label == UNTRAINED
            if batch_label != label and not lost_first:
                if batch_label == UNTRAINED and token in ends:
                    fault = "end_not_trained"
                else:
                    fault = "labels_changed"
                faults.add(fault, "the engine's collator has removed its label")
    padding = [label for label in chain.from_iterable(labels) if label is not None]
    trained = sum(label != UNTRAINED for label in padding)
    if trained:
        faults.add(
            "padding_trained",
            f"{trained:,} of {len(padding):,} tokens of padding in a batch have a label",
        )
    return len(padding)


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Restores the random states of training, and the model's mode."""
    numbers = random.getstate()
    draws = np.random.get_state()
    training = model.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        model.eval()
        try:
            yield
        finally:
            model.train(training)
            random.setstate(numbers)
            np.random.set_state(draws)


def few(engine: Engine, vocabulary: int, numbers: Sequence[int]) -> list[Row]:
    """Rows for forward passes: the shortest with trained tokens, cut to fit into memory."""
    most = max(16, MOST_LOGITS // (vocabulary * ROWS))
    fit = list[Row]()
    for whole in engine.rows(numbers):
        row = {}
        for name, value in whole.items():
            row[name] = value[:most] if isinstance(value, list) else value
        if any(label != UNTRAINED for label in row["labels"][1:]):
            fit.append(row)
    return sorted(fit, key=lambda row: len(row["input_ids"]))[:ROWS]


def moved(engine: Engine, rows: Sequence[Row], vocabulary: int) -> float:
    """The largest change of the second row's logits when the first row changes; 0 if rows do not
    see each other."""
    first, second = rows[:2]
    other_tokens = [(token + 1) % vocabulary for token in first["input_ids"]]
    other = {**first, "input_ids": other_tokens}
    change = _logits(engine, (first, second)) - _logits(engine, (other, second))
    return float(change.abs().max())


def _logits(engine: Engine, rows: Sequence[Row]) -> torch.Tensor:
    """The logits of the last of these rows in one batch."""
    trainer = engine.trainer
    batch = engine.batch(rows, joined=True)
    begin = places(batch["input_ids"].tolist(), rows)[-1]
    assert begin is not None
    inputs = trainer._prepare_inputs(batch)
    _, outputs = trainer.compute_loss(trainer.model, inputs, return_outputs=True)
    logits: torch.Tensor = outputs["logits"]
    end = begin.token + len(rows[-1]["input_ids"])
    return logits[begin.line, begin.token : end].float()


def loss_tolerance(trainer: Any) -> float:
    """How much the losses of equal rows in other batches may differ, as a share, by the number
    format that the model computes in."""
    if trainer.args.bf16:
        return TOLERANCE_IN_BF16
    if trainer.args.fp16:
        return TOLERANCE_IN_FP16
    return TOLERANCE


def first_loss(engine: Engine, batches: Sequence[Row]) -> float:
    """The trainer's loss for a step of these micro batches, as `training_step` sums it
    (transformers 5.16.1)."""
    trainer = engine.trainer
    samples, items = trainer.get_batch_samples(iter(batches), len(batches), trainer.args.device)
    whole = 0.0
    for batch in samples:
        inputs = trainer._prepare_inputs(batch)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(trainer.model, inputs, num_items_in_batch=items)
        is_sum = trainer.model_accepts_loss_kwargs and items is not None
        if not is_sum and trainer.compute_loss_func is None:
            loss = loss / len(batches)
        whole += float(loss)
    return whole


# The most tokens of text that are searched for equal documents.
MOST_DOCUMENT_TOKENS = 20_000_000


def batches(files: Iterable[Path], size: int, columns: Sequence[str] = ()) -> Iterator[Any]:
    """The rows of Parquet files, `size` at a time. columns: those to read, if present; none for
    all."""
    from pyarrow import parquet

    for file in files:
        with parquet.ParquetFile(file) as table:
            present = [name for name in table.schema_arrow.names if name in columns]
            yield from table.iter_batches(size, columns=present or None)


def conversations(files: Iterable[Path]) -> Iterator[DataRow]:
    for batch in batches(files, 1000, ("messages", *ANSWERS)):
        yield from batch.to_pylist()


def words(row: DataRow) -> str:
    """A text that is the same for conversations that differ only in space, case and system
    prompt."""
    lines = []
    for turn in row["messages"]:
        if turn["role"] != "system":
            content = same(str(turn["content"] or ""))
            lines.append(f"{content}{turn.get('tool_calls') or ''}")
    for column in ANSWERS:
        if isinstance(row.get(column), str):
            lines.append(same(row[column]))
    return "\n".join(lines)


def documents(
    blocks: Iterable[np.ndarray], ends: frozenset[int], tokenizer: TextTokenizer
) -> Iterator[str]:
    """The documents in blocks of tokens; the first and the last may be parts."""
    rest = list[np.ndarray]()
    seen = 0
    for block in blocks:
        seen += len(block)
        begin = 0
        for stop in np.flatnonzero(np.isin(block, list(ends))):
            document = np.concatenate([*rest, block[begin:stop]])
            rest = []
            begin = int(stop) + 1
            if len(document):
                yield same(tokenizer.decode(document.tolist()))
        rest.append(block[begin:])
        if seen > MOST_DOCUMENT_TOKENS:
            return


def images(files: Mapping[str, Path], taken_out: int = 0) -> Proof:
    """Judges prepared images (Parquet, column `image`, pixels as bytes). files: by split, with
    `train`. taken_out: the number of test images that were removed from training."""
    begun = time.monotonic()
    faults = Faults()
    train = {digest: number for number, digest in _digests(files["train"])}
    judged = 0
    for split, file in files.items():
        if split == "train":
            continue
        for number, digest in _digests(file):
            judged += 1
            if digest in train:
                leak = f"image {number} of {split} is image {train[digest]} of training"
                faults.add("image_leak", leak)
    notes = []
    if taken_out:
        notes.append(
            f"{taken_out:,} images of the test were training images too, and were removed from training"
        )
    return Proof(
        kind="images",
        rows=len(train),
        judged=judged,
        notes=tuple(notes),
        faults=tuple(faults),
        seconds=round(time.monotonic() - begun, 1),
    )


def _digests(file: Path) -> Iterator[tuple[int, bytes]]:
    """The number of each image, from 1, and a hash of its pixels."""
    number = 0
    for batch in batches([file], 256, ("image",)):
        for image in batch.column(0).to_pylist():
            number += 1
            yield number, hashlib.sha256(image).digest()
