"""The proof: judges an engine's rows, batches and losses before the first step."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, groupby, islice, repeat
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from axolotl.utils.dict import DictDefault
from jinja2 import TemplateError

from runner import parts
from runner.data.row_files import DataRow
from runner.parts.proof import judging
from runner.parts.proof.judging import (
    SHOWN,
    TOLERANCE,
    UNTRAINED,
    Faults,
    Reader,
    Talk,
    Tokens,
    spread,
)
from runner.tools import child_process
from runner.tools.problem import shortened
from runner.tools.text import same, tokenizer_in
from runner.trainer import seeing
from runner.trainer.records import Kind, Proof
from runner.trainer.settings import RunSettings

if TYPE_CHECKING:
    from transformers import Trainer

# The most rows to compare with the template, token by token, evenly spaced. If one row in a hundred
# is wrong, the probability that this sample misses all of them is 10^-13.
MOST_ROWS = 3000
BATCHES = 4


class AnsweredPrompt(NamedTuple):
    """The tokens of a prompt and of each answer to it."""

    prompt: list[int]
    answers: list[list[int]]


def _answered(row: DataRow) -> AnsweredPrompt:
    """The prompt of a row of TRL's DPO and KTO; its ORPO and CPO keep prompt and answer together,
    under labels."""
    if "prompt_ids" in row:
        columns = (f"{side}_ids" for side in judging.ANSWERS)
        return AnsweredPrompt(row["prompt_ids"], [row[name] for name in columns if name in row])
    answers = []
    for side in judging.ANSWERS[:2]:
        start = row[f"{side}_labels"].count(UNTRAINED)
        answers.append(row[f"{side}_input_ids"][start:])
    start = row["chosen_labels"].count(UNTRAINED)
    return AnsweredPrompt(row["chosen_input_ids"][:start], answers)


class _Rows:
    """The engine's rows by their tokens."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.numbers: dict[bytes, int] = {}
        lengths: list[int] = []
        trained: list[int] = []
        for part in dataset.with_format("arrow").iter(1000):
            ids, labels = (part[name].combine_chunks() for name in ("input_ids", "labels"))
            numbers = np.asarray(ids.flatten(), dtype=np.int64)
            marks = np.asarray(labels.flatten()) != UNTRAINED
            ends = np.cumsum(np.asarray(ids.value_lengths()))
            for begin, end in zip([0, *ends[:-1]], ends, strict=True):
                self.numbers.setdefault(numbers[begin:end].tobytes(), len(lengths))
                lengths.append(end - begin)
                trained.append(int(marks[begin:end].sum()))
        self.lengths = np.array(lengths)
        self.trained = np.array(trained)

    def number(self, tokens: Tokens) -> int | None:
        return self.numbers.get(np.array(tokens, dtype=np.int64).tobytes())


@dataclass
class Prover:
    """Judges the rows and batches of an engine before training. cfg: the engine's present
    config."""

    cfg: Any
    trainer: Any
    settings: RunSettings
    faults: Faults = field(default_factory=Faults)
    facts: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    shown: list[Mapping[str, Any]] = field(default_factory=list)

    def prove(self) -> Proof:
        begun = time.monotonic()
        self.counts["rows"] = len(self.trainer.train_dataset) - self.engine.first
        with judging.undisturbed(self.trainer.model):
            self._parts_that_see()
            getattr(self, f"_{self.kind}")()
            if self.kind != "prompts":
                self._batches()
            if self.kind == "text":
                self._same_documents()
            else:
                self._leaks()
            # Models on GPUs may be sharded already.
            sharded = self.cfg.deepspeed or self.cfg.fsdp or self.cfg.fsdp_config
            is_whole = not torch.cuda.is_available() and not sharded
            if is_whole and self.kind in ("conversations", "text"):
                self._model()
        return Proof(
            kind=self.kind,
            notes=tuple(self.notes),
            faults=tuple(self.faults),
            shown=tuple(self.shown),
            seconds=round(time.monotonic() - begun, 1),
            **self.facts | self.counts,
        )

    def _parts_that_see(self) -> None:
        """Finds weights for images or sound that would be trained, although rows are text."""
        weights = seeing.parts_that_see(self.trainer.model)
        for name, weight in weights.items():
            if weight.requires_grad:
                self.faults.add("seeing_trained", f"`{name}`")
        self.facts["seeing"] = len(weights)

    @property
    def kind(self) -> Kind:
        if self.cfg.reward_model:
            return "scores"
        if self.cfg.rl:
            if self.settings.rewards or self.cfg.rl == "ebft":
                return "prompts"
            return "preferences"
        if str(self.cfg.datasets[0].get("type")).startswith("chat_template"):
            return "conversations"
        return "text"

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer as users of the trained model load it."""
        with tempfile.TemporaryDirectory() as folder:
            used = self.trainer.processing_class
            used.save_pretrained(folder)
            if self.cfg.tokenizer_use_mistral_common:
                return type(used).from_pretrained(folder)
            return tokenizer_in(folder, bool(self.cfg.trust_remote_code))

    @cached_property
    def ends(self) -> frozenset[int]:
        demo = self.settings.demo
        turn_ends = list(self.cfg.eot_tokens or ())
        if demo and demo.turn_end:
            turn_ends.append(demo.turn_end)
        numbers = [self.tokenizer.eos_token_id, *self.tokenizer.convert_tokens_to_ids(turn_ends)]
        return frozenset(number for number in numbers if number is not None)

    @cached_property
    def reader(self) -> Reader:
        first = self.cfg.datasets[0]
        roles = frozenset(first.get("roles_to_train") or ("assistant",))
        return Reader(self.tokenizer, roles, first.get("message_field_training"), self.ends)

    @cached_property
    def rows(self) -> _Rows:
        return _Rows(self.trainer.train_dataset)

    @cached_property
    def engine(self) -> judging.Engine:
        """The rows before its first one belong to the previous context length."""
        blocks = self.settings.blocks
        first_row = 0
        if blocks:
            first_row = blocks.first_step * self.settings.effective_batch_size
        return judging.Engine(self.trainer, first_row)

    def _files(self, side: str) -> list[Path]:
        paths = [Path(dataset["path"]) for dataset in self.cfg[side] or ()]
        return [path for path in paths if path.is_file()]

    def _prepared(self) -> Iterator[DataRow]:
        """Prepared training rows, at most MOST_ROWS, evenly spaced."""
        from pyarrow import parquet

        files = self._files("datasets")
        count = sum(parquet.read_metadata(file).num_rows for file in files)
        every = spread(count, MOST_ROWS).step
        if every > 1:
            self.notes.append(
                f"of {count:,} prepared rows every {every}th was compared with the template"
            )
        number = 0
        for batch in judging.batches(files, 1000):
            yield from batch.slice(-number % every).to_pylist()[::every]
            number += len(batch)

    def _conversations(self) -> None:
        rows = self.rows
        counts = self.counts
        limit = self.cfg.sequence_len
        name = self.cfg.datasets[0].get("field_messages") or "messages"
        for prepared in self._prepared():
            try:
                talk = self.reader.talk(prepared, name)
            except TemplateError as error:
                self.faults.add("template_fails", str(error))
                continue
            number = rows.number(talk.tokens)
            left = 0
            if number is None and len(talk.tokens) > limit:
                number = rows.number(talk.tokens[:limit])
                left = len(talk.tokens)
                if number is not None:
                    left -= limit
                counts.update(cut=left, rows_cut=1)
            if number is None:
                if not left:
                    self.faults.add(
                        "row_differs", f"the row that begins «{talk.named}» is not among them"
                    )
                continue
            counts["judged"] += 1
            labels = rows.dataset[number]["labels"]
            if not left:
                self.reader.judge(talk.tokens, labels, talk, self.faults)
            self._show(number, talk.tokens, (label != UNTRAINED for label in labels))
        whole = int((rows.trained == rows.lengths).sum())
        empty = int((rows.trained == 0).sum())
        if empty:
            self.faults.add("nothing_trained", times=empty)
        if whole and self.reader.masks:
            self.faults.add("nothing_masked", times=whole)
        trained = int(rows.trained.sum())
        counts.update(trained=trained, seen=int(rows.lengths.sum()) - trained)

    def _show(self, number: int, tokens: Sequence[int], trained: Iterable[bool]) -> None:
        """Adds one of the first rows to `Proof.shown`. number: from 0. trained: of each token; the
        engine left out the rest."""
        if len(self.shown) >= self.settings.proof.show:
            return
        kinds = chain(("trained" if each else "seen" for each in trained), repeat("cut"))
        runs = groupby(zip(kinds, tokens, strict=False), itemgetter(0))
        spans = []
        for kind, run in runs:
            spans.append((kind, [self.tokenizer.decode([int(token)]) for _, token in run]))
        self.shown.append({"row": number + 1, "tokens": len(tokens), "spans": spans})

    def _talk(self, messages: Sequence[Mapping[str, object]], answer: str = "") -> Talk:
        """A conversation that ends with an answer."""
        last = {"role": "assistant", "content": answer}
        return self.reader.talk({"messages": [*messages, last]}, "messages")

    def _prompt_differs(self, trained: Sequence[int], asked: Sequence[int]) -> None:
        in_training = self.reader.words(trained[:12])
        when_asked = self.reader.words(asked[:12])
        fault = f"in training {in_training}…, when asked {when_asked}…"
        self.faults.add("prompt_differs", fault)

    def _preferences(self) -> None:
        """Every prompt must be as in inference, and both answers must have an end; counts cut
        tokens."""
        dataset = [_answered(row) for row in self.trainer.train_dataset]
        limit = self.trainer.args.max_length
        prompts = {tuple(row.prompt) for row in dataset}
        for prepared in self._prepared():
            asked = self._talk(prepared["messages"]).prompts[-1] or ()
            self.counts["judged"] += 1
            if asked not in prompts and (limit is None or len(asked) < limit):
                trained = min(prompts, key=lambda prompt: abs(len(prompt) - len(asked)), default=())
                self._prompt_differs(trained, asked)
        for prompt, answers in dataset:
            for answer in answers:
                last = answer[-1:]
                if not self.ends.intersection(last):
                    fault = f"the last token is {self.reader.words(last)}"
                    self.faults.add("end_not_trained", fault)
                left = 0
                if limit:
                    left = max(0, len(prompt) + len(answer) - limit)
                self.counts.update(
                    seen=len(prompt), trained=len(answer) - left, cut=left, rows_cut=left > 0
                )
        for number, (prompt, answers) in enumerate(islice(dataset, self.settings.proof.show)):
            answer = answers[0]
            trained_tokens = [False] * len(prompt) + [True] * len(answer)
            self._show(number, prompt + answer, trained_tokens)

    def _scores(self) -> None:
        """Both answers of a reward model's rows must be whole conversations, as they are when it is
        asked for a score."""
        dataset = self.trainer.train_dataset
        limit = self.cfg.sequence_len
        trained = {(tuple(row["chosen_ids"]), tuple(row["rejected_ids"])) for row in dataset}
        for prepared in self._prepared():
            both = []
            for side in judging.ANSWERS[:2]:
                both.append(self._talk(prepared["messages"], prepared[side]).tokens)
            if tuple(tokens[:limit] for tokens in both) not in trained:
                last = self.reader.words(both[0][-12:])
                self.faults.add(
                    "row_differs", f"the answers that end with {last} are not among them"
                )
            lost = [max(0, len(tokens) - limit) for tokens in both]
            seen = sum(map(len, both)) - sum(lost)
            self.counts.update(judged=1, seen=seen, cut=sum(lost), rows_cut=sum(map(bool, lost)))
        for number, row in enumerate(islice(dataset, self.settings.proof.show)):
            self._show(number, row["chosen_ids"], repeat(False))

    def _prompts(self) -> None:
        """Every prompt must be as in inference; and rewards, which are tried, must see what belongs
        together."""
        dataset = self.trainer.train_dataset
        for number in spread(len(dataset), MOST_ROWS):
            row = dataset[number]
            (trained,) = self.trainer._tokenize_prompts([row["prompt"]])[0]
            prompt = self._talk(row["prompt"]).prompts[-1] or ()
            self.counts.update(judged=1, seen=len(trained))
            if tuple(trained) != prompt:
                self._prompt_differs(trained, prompt)
            self._show(number, trained, repeat(False))
        if parts.has("rewards"):
            from runner.parts.rewards import functions

            self.facts["rewards"], faults = functions.tried(self.trainer, self.settings)
            for fault in faults:
                self.faults.add(*fault)

    def _text(self) -> None:
        for place in spread(self.counts["rows"], MOST_ROWS):
            number = self.engine.first + place
            row = self.trainer.train_dataset[number]
            tokens = np.asarray(row["input_ids"])
            labels = np.asarray(row["labels"])
            trained = int((labels != UNTRAINED).sum())
            self.counts.update(judged=1, trained=trained, seen=len(labels) - trained)
            wrong = int((tokens != labels).sum())
            if wrong:
                self.faults.add("text_not_whole", f"{wrong:,} of {len(tokens):,} tokens of a row")
            self._show(number, tokens, labels != UNTRAINED)

    def _batches(self) -> None:
        """Judges the first batches of training, and one of a short and a long row, which needs
        padding."""
        batches = list(self.engine.batches(BATCHES))
        if self.kind == "conversations":
            lengths = self.rows.lengths
            pair = [int(lengths.argmin()), int(lengths.argmax())]
            batches.append((pair, self.engine.batch(self.engine.rows(pair))))
        for numbers, batch in batches:
            rows = self.engine.rows(numbers)
            if self.kind == "scores":
                rows = self._scored_answers(rows)
                batch = _with_labels(batch, batch["attention_mask"] == 0)
            elif self.kind == "preferences":
                rows = self._preferred_answers(rows)
                batch = self._preference_batch(batch)
            padding = judging.judge(batch, rows, self.ends, self.faults)
            self.counts.update(batches=1, padding=padding)

    def _scored_answers(self, rows: list[judging.Row]) -> list[judging.Row]:
        """The rows of a reward model's batch: all better answers, then all worse ones."""
        answers = list[judging.Row]()
        for side in judging.ANSWERS[:2]:
            for row in rows:
                tokens = row[f"{side}_ids"]
                answers.append({"input_ids": tokens, "labels": tokens})
        return answers

    def _preferred_answers(self, rows: list[judging.Row]) -> list[judging.Row]:
        """The rows of a batch of preferences: all better answers, then all worse ones; or those
        with a label."""
        answered = [_answered(row) for row in rows]
        limit = self.trainer.args.max_length
        answers = list[judging.Row]()
        for side in zip(*(row.answers for row in answered), strict=True):
            for row, answer in zip(answered, side, strict=True):
                tokens = row.prompt + answer
                labels = [UNTRAINED] * len(row.prompt) + answer
                answers.append({"input_ids": tokens[:limit], "labels": labels[:limit]})
        return answers

    def _preference_batch(self, batch: judging.Row) -> judging.Row:
        """A batch of preferences with labels, as one column for both sides."""
        if "chosen_input_ids" not in batch:
            return _with_labels(batch, batch["completion_mask"] == 0)
        joined = self.trainer.concatenated_inputs(batch, padding_value=self.tokenizer.pad_token_id)
        return {name.removeprefix("concatenated_"): part for name, part in joined.items()}

    def _later_questions(self) -> list[str]:
        """What the demo and the evaluation will ask."""
        questions: list[str] = []
        demo = self.settings.demo
        if demo and demo.chat:
            questions += demo.questions
        file = self.settings.proof.questions
        if file:
            lines = Path(file).read_text("utf-8").splitlines()
            questions += [json.loads(line)["question"] for line in lines if line.strip()]
        return questions

    def _leaks(self) -> None:
        """Finds validation rows, and questions of the demo and of the evaluation, in the training
        rows."""
        held_out = {
            judging.words(row): row for row in judging.conversations(self._files("test_datasets"))
        }
        self.facts["held_out"] = bool(held_out)
        asked = set[str]()
        later = {same(question): question for question in self._later_questions()}
        for row in judging.conversations(self._files("datasets")):
            held_out_row = held_out.pop(judging.words(row), None)
            questions = [turn["content"] for turn in row["messages"] if turn["role"] == "user"]
            if held_out_row is not None:
                if held_out_row["messages"] == row["messages"]:
                    likeness = "word for word"
                else:
                    likeness = "apart from spaces, case or system prompt"
                question = shortened(str(questions[0]), SHOWN)
                self.faults.add("leak", f"«{question}», {likeness}")
            # Those that are asked later alone: a set of all training questions would fill memory.
            asked |= later.keys() & {same(str(question or "")) for question in questions}
        self.facts["asked"] = tuple(text for question, text in later.items() if question in asked)

    def _same_documents(self) -> None:
        """Finds validation documents in the training text."""
        blocks = (self.cfg.recipe_runner or {}).get("blocks")
        sides: list[Iterator[np.ndarray]] = []
        if blocks:
            for side in ("train", "validation"):
                file = f"{blocks['folder']}/{side}-{blocks['sequence_len']}.npy"
                sides.append(iter(np.load(file, mmap_mode="r")))
        elif self._files("test_datasets"):
            for side in ("datasets", "test_datasets"):
                batches = judging.batches(self._files(side), 100, ("input_ids",))
                sides.append(np.asarray(batch.column(0).flatten()) for batch in batches)
        else:
            self.facts["held_out"] = False
            return
        train, validation = (judging.documents(side, self.ends, self.tokenizer) for side in sides)
        held_out = {document for document in validation if document}
        for document in train:
            if document in held_out:
                held_out.discard(document)
                self.faults.add("leak", f"the document that begins «{shortened(document, SHOWN)}»")

    def _model(self) -> None:
        """Rows of one batch must not see each other, and a loss must be the same in one batch and
        in eight."""
        trainer = self.trainer
        vocabulary = len(self.tokenizer)
        first = self.engine.first
        end = min(len(trainer.train_dataset), first + 8 * judging.ROWS)
        rows = judging.few(self.engine, vocabulary, range(first, end))
        attention = str(getattr(trainer.model.config, "_attn_implementation", ""))
        planned = self.settings.proof.planned
        if planned not in (None, attention):
            self.notes.append(
                f"{planned} needs a GPU; {attention} was judged, which tells rows apart by the same positions"
            )
        if self.engine.packs:
            joined = "packed"
        elif self.cfg.batch_flattening is True:
            joined = "flattened"
        else:
            joined = "padded"
        self.facts |= {"attention": attention, "joined": joined}
        if len(rows) < 2:
            self.notes.append(
                "there are too few rows to see whether those of one batch see each other"
            )
            return
        if self.cfg.load_in_8bit:
            # LLM.int8 (arXiv 2208.07339) looks for the largest numbers in all rows of a batch
            # together.
            self.notes.append(
                "a base model in 8 bits rounds all rows of a batch together, so they were not compared"
            )
            return
        change = judging.moved(self.engine, rows, vocabulary)
        self.facts["logits_moved"] = change
        if not change <= TOLERANCE:
            self.faults.add("rows_mixed", f"by up to {change:.2g} ({joined} rows, {attention})")
        at_once = judging.first_loss(self.engine, [self.engine.batch(rows)])
        row_batches = [self.engine.batch([row]) for row in rows]
        accumulated = judging.first_loss(self.engine, row_batches)
        self.facts |= {"loss_at_once": at_once, "loss_accumulated": accumulated}
        # Relative for losses above 1, because fp32 has seven digits.
        tolerance = judging.loss_tolerance(trainer)
        if not abs(at_once - accumulated) <= tolerance * max(1.0, at_once):
            self.faults.add("accumulation", f"{at_once:.6f} and {accumulated:.6f}")


def _with_labels(batch: judging.Row, untrained: torch.Tensor) -> judging.Row:
    return {**batch, "labels": batch["input_ids"].masked_fill(untrained, UNTRAINED)}


def prove(cfg: DictDefault, trainer: Trainer, settings: RunSettings) -> Proof:
    """Judges rows and batches in every process, because some figures need all of them; the first
    writes `proof.json`."""
    proof = Prover(cfg, trainer, settings).prove()
    if not proof.attention and settings.proof.prepared:
        earlier = Proof.read(Path(settings.proof.prepared))
        names = ("joined", "attention", "logits_moved", "loss_at_once", "loss_accumulated")
        proof = replace(proof, **{name: getattr(earlier, name) for name in names})
    if int(os.environ.get("RANK", "0")) == 0:
        folder = Path(settings.run_dir)
        proof.write(folder)
        child_process.tell("proof", folder=str(folder))
    return proof
