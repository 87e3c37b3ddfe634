"""Metrics of a language model on disk: its loss on rows and on general text, and the share of correct short answers."""

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.data import general_documents
from runner.parts.evaluate.metrics import ACCURACY, GENERATED, bounds
from runner.tools.names import same
from runner.trainer import generation
from runner.trainer.generation import Chat, end_tokens

TEXT_BLOCKS = 64
NEW_TOKENS = int(bounds(GENERATED)[1])
GENERAL_TOKENS = 1024
# An answer of at most this many words is right or wrong; a longer one has many correct wordings.
SHORT_WORDS = 6
MOST_ANSWERS = 200

# Token numbers and labels of a row; the label of a token that does not count is -100.
Row = tuple[Sequence[int], Sequence[int]]


class Cannot(Exception):
    """A metric cannot be measured; the message says why."""


@dataclass(frozen=True)
class ShortAnswer:
    """A row with a short answer. asked: the kinds of its question."""

    prompt: tuple[int, ...]
    answer: str
    asked: tuple[str, ...]


def load(folder: str, tokenizer: str, base: str, revision: str | None, trust: bool) -> tuple[Any, Any]:
    """Model and tokenizer, freshly loaded; an adapter on its base, whose revision is `revision`."""
    # The checkpoint of an adapter is the adapter alone; `best_model` is merged.
    adapter = bool(base) and (Path(folder) / "adapter_config.json").is_file()
    whole = base if adapter else folder
    at = None if Path(whole).is_dir() else revision
    loaded = generation.load(Chat(whole, at, tokenizer, None, NEW_TOKENS, trust_remote_code=trust))
    if not adapter:
        return loaded.model, loaded.tokenizer
    from peft import PeftModel

    return PeftModel.from_pretrained(loaded.model, folder).eval(), loaded.tokenizer


def loss(model: Any, rows: Sequence[Row]) -> tuple[float, int]:
    """Cross-entropy in nats per token, over the trained tokens of all rows, and their number. Raises Cannot at 0."""
    import torch

    total, count = 0.0, 0
    for numbers, labels in rows:
        # The first token has no prediction.
        counted = sum(label != -100 for label in labels[1:])
        if not counted:
            continue
        tokens, wanted = (torch.tensor([list(each)], device=model.device) for each in (numbers, labels))
        with torch.no_grad():
            total += float(model(input_ids=tokens, labels=wanted).loss) * counted
        count += counted
    if not count:
        raise Cannot("no token of these rows is trained")
    return total / count, count


def exponential(nats: float) -> float:
    """The perplexity of a loss."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def blocks(file: str) -> list[Row]:
    """The first held-out blocks, the same for every stage of a pipeline."""
    import numpy as np

    return [(block.tolist(), block.tolist()) for block in np.load(file, mmap_mode="r")[:TEXT_BLOCKS]]


def general_rows(tokenizer: Any) -> list[Row]:
    """The documents of the general text, each from its beginning."""
    rows = [tokenizer(document)["input_ids"][:GENERAL_TOKENS] for document in general_documents()]
    return [(row, row) for row in rows]


def generated(model: Any, tokenizer: Any, prompt: str) -> int:
    """The number of tokens with which the model continues the prompt, at most 16, without sampling."""
    numbers = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    (new,) = _greedy(model, tokenizer, [numbers], NEW_TOKENS, None)
    return len([token for token in new if token not in tokenizer.all_special_ids])


def questions(rows: Sequence[Row], tokenizer: Any, asked: Mapping[str, str], seed: int) -> list[ShortAnswer]:
    """The rows with one short answer, or a seeded sample of many. asked: kinds of questions, each with its words."""
    short = [question for row in rows if (question := _question(row, tokenizer, asked))]
    return short if len(short) <= MOST_ANSWERS else random.Random(seed).sample(short, MOST_ANSWERS)


def _question(row: Row, tokenizer: Any, asked: Mapping[str, str]) -> ShortAnswer | None:
    numbers, labels = row
    counted = [index for index, label in enumerate(labels) if label != -100]
    if not counted or not counted[0] or counted != list(range(counted[0], counted[-1] + 1)):
        return None
    answer = tokenizer.decode(numbers[counted[0] : counted[-1] + 1], skip_special_tokens=True).strip()
    if not answer or "\n" in answer or len(answer.split()) > SHORT_WORDS:
        return None
    prompt = tokenizer.decode(numbers[: counted[0]])
    kinds = tuple(name for name, words in asked.items() if words in prompt)
    return ShortAnswer(tuple(numbers[: counted[0]]), answer, kinds)


def accuracy(
    model: Any, tokenizer: Any, chosen: Sequence[ShortAnswer], batch_size: int, turn_end: str | None
) -> dict[str, float]:
    """The share of short answers that equal those in the rows, 0 to 1, in total and by kind of question, without
    sampling. Space, case and a final full stop do not count. Raises Cannot if no row has a short answer."""
    longest = answer_length(chosen, tokenizer)
    # Prompts of similar length need the least padding.
    ordered = sorted(chosen, key=lambda question: len(question.prompt))

    def said() -> Iterator[str]:
        for start in range(0, len(ordered), batch_size):
            prompts = [list(question.prompt) for question in ordered[start : start + batch_size]]
            for numbers in _greedy(model, tokenizer, prompts, longest, turn_end):
                yield tokenizer.decode(numbers, skip_special_tokens=True)

    return right(ordered, said())


def answer_length(chosen: Sequence[ShortAnswer], tokenizer: Any) -> int:
    """Enough tokens for the longest short answer. Raises Cannot if no row has a short answer."""
    if not chosen:
        raise Cannot(f"no held-out row has an answer of at most {SHORT_WORDS} words")
    return max(len(tokenizer(question.answer)["input_ids"]) for question in chosen) + 4


def right(chosen: Sequence[ShortAnswer], said: Iterable[str]) -> dict[str, float]:
    """The share of questions with the answer of the row, in total and by kind."""
    found: dict[str, list[bool]] = {ACCURACY: []}
    for question, text in zip(chosen, said, strict=True):
        is_right = same(text).removesuffix(".") == same(question.answer).removesuffix(".")
        for name in (ACCURACY, *(f"{ACCURACY}.{kind}" for kind in question.asked)):
            found.setdefault(name, []).append(is_right)
    return {name: sum(answers) / len(answers) for name, answers in found.items()}


def _greedy(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], most: int, turn_end: str | None
) -> Iterator[list[int]]:
    """The model's continuation of each prompt, in token numbers, up to the end of its turn."""
    import torch

    ends = end_tokens(tokenizer, turn_end)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else (ends or [0])[0]
    width = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    with torch.no_grad():
        output = model.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=most,
            do_sample=False,
            eos_token_id=ends or None,
            pad_token_id=pad,
        )
    for row in output[:, width:].tolist():
        end = next((index for index, token in enumerate(row) if token in ends), len(row))
        yield row[:end]
