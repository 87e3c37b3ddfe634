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
            seen = "".join(f"\n  {example}" for example in self.examples[kind])
            known = KINDS[kind]
            yield {"kind": kind, "message": f"{known['fault']}{times}.{seen}\n{known['remedy']}"}


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
        said = [bare(message) for message in row[field]]
        marks = [message.get(self.marked) if self.marked else None for message in said]
        marked = zip(said, marks, strict=True)
        trained = []
        for message, mark in marked:
            trained.append(message["role"] in self.roles if mark is None else bool(mark))
        shown = []
        for message in said:
            shown.append({name: value for name, value in message.items() if name != self.marked})
        tools = row.get("tools")
        if isinstance(tools, str):
            tools = json.loads(tools)
        whole = tuple(tokens(self.tokenizer, shown, asking=False, tools=tools))
        prompts: list[Tokens | None] = []
        answers = [place for place, message in enumerate(shown) if message["role"] == "assistant"]
        for place in answers:
            prompt: Tokens | None = None
            if trained[place]:
                prompt = tuple(tokens(self.tokenizer, shown[:place], asking=True, tools=tools))
                if place != answers[-1] and whole[: len(prompt)] != prompt:
                    prompt = None
            prompts.append(prompt)
        asked = next(
            (str(message["content"]) for message in shown if message["role"] == "user"), ""
        )
        return Talk(whole, tuple(prompts), sum(trained), shortened(asked, SHOWN))

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
            if (
                tuple(tokens[: len(prompt)]) != prompt
                or begin >= len(tokens)
                or labels[begin] == UNTRAINED
            ):
                faults.add("prompt_differs", self._difference(tokens, labels, prompt))
                return
        for first, after in runs:
            ended = tokens[after - 1] in self.ends
            answers = self.masks or any(first <= begin < after for begin in begins)
            # A turn of another role may have no end of its own.
            if not ended and (answers or (after < len(tokens) and tokens[after] in self.ends)):
                if after < len(tokens):
                    left = f", and {self.words(tokens[after : after + 1])} behind it is not"
                else:
                    left = ""
                last = self.words(tokens[after - 1 : after])
                faults.add("end_not_trained", f"the last trained token is {last}{left}")

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
        pairs = enumerate(zip(tokens, prompt, strict=False))
        same = next((place for place, pair in pairs if pair[0] != pair[1]), None)
        if same is not None:
            first = max(0, same - NEAR)
            return f"in training …{self.words(tokens[first : same + NEAR])}, when asked …{self.words(prompt[first : same + NEAR])}"
        begin = next(
            (place for place in range(len(prompt), len(tokens)) if labels[place] != UNTRAINED),
            len(tokens),
        )
        before = max(0, len(prompt) - NEAR)
        return f"in training …{self.words(tokens[before:begin])}, when asked …{self.words(prompt[before:])}"


def _runs(labels: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each stretch of trained tokens: its first position, and the position after it."""
    trained = [False, *(label != UNTRAINED for label in labels), False]
    edges = [place for place, (before, now) in enumerate(pairwise(trained)) if before != now]
    return zip(edges[::2], edges[1::2], strict=True)


def spread(count: int, most: int) -> range:
    """At most `most` of `count` numbers, evenly spaced."""
    return range(0, count, -(-count // most) if count > most else 1)


# The first loss must be the same for one batch of this many rows and for as many batches of one
# row.
ROWS = 8
# The tolerance of losses, in nats, and of logits. Sums in another order differ by about 1e-7.
TOLERANCE = 1e-5
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
        size = self.trainer.args.per_device_train_batch_size
        later = (list(range(begin, begin + size)) for begin in count(self.first, size))
        for batch in islice(later if self.first else self.loader.batch_sampler, most):
            nested = bool(batch) and isinstance(batch[0], list)
            if nested:
                flat = list(chain.from_iterable(batch))
            else:
                flat = list(batch)
            rows: list[Any]
            if nested:
                rows = [self.rows(inner) for inner in batch]
            else:
                rows = self.rows(flat)
            yield flat, self.loader.collate_fn(rows)

    def batch(self, rows: Sequence[Row], joined: bool = False) -> Row:
        """One micro batch of these rows. joined: as close together as training ever packs rows."""
        copies = [dict(row) for row in rows]
        if not self.packs:
            return dict(self.loader.collate_fn(copies))
        apart = self.trainer.args.multipack_real_batches and not joined
        return dict(self.loader.collate_fn([[row] for row in copies] if apart else [copies]))


def places(
    lines: Sequence[Sequence[int]], rows: Sequence[Sequence[int]]
) -> list[tuple[int, int] | None]:
    """The beginning of each row in a batch, as (line, token), in order; None for a missing row."""
    begins: list[tuple[int, int] | None] = []
    line = token = 0
    for row in rows:
        found = (
            (number, begin)
            for number in range(line, len(lines))
            for begin in range(token if number == line else 0, len(lines[number]) - len(row) + 1)
            if lines[number][begin] == row[0]
            and list(lines[number][begin : begin + len(row)]) == list(row)
        )
        place = next(found, None)
        begins.append(place)
        if place:
            line = place[0]
            token = place[1] + len(row)
    return begins


def judge(
    batch: Mapping[str, Any], rows: Sequence[Row], ends: frozenset[int], faults: Faults
) -> int:
    """Finds faults of a batch, which must have its rows' labels and no others. Returns its number
    of padding tokens."""
    lines = batch["input_ids"].tolist()
    labels = batch["labels"].tolist()
    for row, place in zip(rows, places(lines, [row["input_ids"] for row in rows]), strict=True):
        if place is None:
            faults.add("labels_changed", "a row's tokens are not in its batch as they were")
            return 0
        line, begin = place
        for token, (number, label) in enumerate(zip(row["input_ids"], row["labels"], strict=True)):
            kept = labels[line][begin + token]
            # The first token has no context, so no loss contains it.
            if kept != label and not (token == 0 and kept == UNTRAINED):
                if kept == UNTRAINED and number in ends:
                    fault = "end_not_trained"
                else:
                    fault = "labels_changed"
                faults.add(fault, "the engine's collator has removed its label")
            labels[line][begin + token] = None
    padding = [label for line in labels for label in line if label is not None]
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
    other = dict(first) | {"input_ids": [(token + 1) % vocabulary for token in first["input_ids"]]}
    return float((_logits(engine, (first, second)) - _logits(engine, (other, second))).abs().max())


def _logits(engine: Engine, rows: Sequence[Row]) -> torch.Tensor:
    """The logits of the last of these rows in one batch."""
    trainer = engine.trainer
    batch = engine.batch(rows, joined=True)
    place = places(batch["input_ids"].tolist(), [row["input_ids"] for row in rows])[-1]
    assert place is not None
    _, outputs = trainer.compute_loss(
        trainer.model, trainer._prepare_inputs(batch), return_outputs=True
    )
    logits: torch.Tensor = outputs["logits"]
    return logits[place[0], place[1] : place[1] + len(rows[-1]["input_ids"])].float()


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
        if (
            not trainer.model_accepts_loss_kwargs or items is None
        ) and trainer.compute_loss_func is None:
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
            known = [name for name in table.schema_arrow.names if name in columns]
            yield from table.iter_batches(size, columns=known or None)


def conversations(files: Iterable[Path]) -> Iterator[DataRow]:
    for batch in batches(files, 1000, ("messages", *ANSWERS)):
        yield from batch.to_pylist()


def words(row: DataRow) -> str:
    """A text that is the same for conversations that differ only in space, case and system
    prompt."""
    turns = (turn for turn in row["messages"] if turn["role"] != "system")
    said = [f"{same(str(turn['content'] or ''))}{turn.get('tool_calls') or ''}" for turn in turns]
    return "\n".join(
        [*said, *(same(row[name]) for name in ANSWERS if isinstance(row.get(name), str))]
    )


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
    measured = [
        (split, *image)
        for split, file in files.items()
        if split != "train"
        for image in _digests(file)
    ]
    for split, number, digest in measured:
        if digest in train:
            faults.add(
                "image_leak", f"image {number} of {split} is image {train[digest]} of training"
            )
    noted = (
        f"{taken_out:,} images of the test were training images too, and were removed from training"
    )
    return Proof(
        kind="images",
        rows=len(train),
        judged=len(measured),
        notes=(noted,) if taken_out else (),
        faults=tuple(faults),
        seconds=round(time.monotonic() - begun, 1),
    )


def _digests(file: Path) -> Iterator[tuple[int, bytes]]:
    """The number of each image, from 1, and a hash of its pixels."""
    images = chain.from_iterable(
        batch.column(0).to_pylist() for batch in batches([file], 256, ("image",))
    )
    return ((number, hashlib.sha256(image).digest()) for number, image in enumerate(images, 1))
