"""Asking: the questions of a demo that names none, from the rows that training keeps for validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from runner.tools.run_files import BEST_MODEL
from runner.trainer.settings import Demo

# Characters of a question that is read at a glance; words of a text's beginning, of which so many tokens are enough.
GLANCE, WORDS, TOKENS = 300, 8, 32
COLUMN = "full-question"


def with_questions(demo: Demo, config: Mapping[str, Any], run_dir: Path) -> Demo:
    """The demo with questions from the validation rows that the engine's config names, where it has none of its own; without
    them where there are no such rows."""
    if demo.questions or not demo.of_rows:
        return demo
    files = [Path(one["path"]) for one in config.get("test_datasets") or ()]
    asked = dict.fromkeys(chain.from_iterable(_asked(file, demo, run_dir) for file in files if file.is_file()))
    short = [question for question in asked if len(question) <= GLANCE]
    taken: Demo = demo.model_copy(update={"questions": evenly(short or list(asked), demo.of_rows)})
    return taken


def evenly(questions: Sequence[str], count: int) -> list[str]:
    """So many of them, from everywhere among them."""
    count = min(count, len(questions))
    return [questions[index * len(questions) // count] for index in range(count)]


def _asked(file: Path, demo: Demo, run_dir: Path) -> Iterator[str]:
    """What each row asks; of blocks of text how the documents in them begin."""
    from pyarrow import parquet

    rows = parquet.ParquetFile(file)
    if COLUMN in rows.schema_arrow.names:
        yield from filter(None, (text.strip() for text in rows.read([COLUMN])[COLUMN].to_pylist()))
    elif "input_ids" in rows.schema_arrow.names:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(run_dir / BEST_MODEL), trust_remote_code=demo.trust_remote_code)
        for block in rows.read(["input_ids"])["input_ids"].to_pylist():
            yield from _beginnings(block, tokenizer)


def _beginnings(block: Sequence[int], tokenizer: Any) -> Iterator[str]:
    ends = (index for index, token in enumerate(block) if token == tokenizer.eos_token_id)
    for start in ends:
        document = block[start + 1 : start + 1 + TOKENS]
        words = tokenizer.decode(list(document), skip_special_tokens=True).split()
        # The last word may go on in what was not read.
        if tokenizer.eos_token_id not in document and len(words) > WORDS:
            yield " ".join(words[:WORDS])
