"""`python -m runner.trainer.demo RUN_DIR`: the demo's questions, or some of the validation rows, put to the original and to the
tuned model."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from runner.tools.files import read_json, write_json, write_text
from runner.tools.process import hush, without_scikit_learn
from runner.tools.run_files import ANSWERS, BEST_MODEL, DEMO, DEMO_OUTPUTS
from runner.trainer import parent_watch
from runner.trainer.generation import answers, chats
from runner.trainer.settings import Demo


def main(run_dir: Path) -> None:
    """Writes `demo_outputs/answers.json` and, for people, `demo_outputs/answers.md`."""
    parent_watch.start()
    hush()
    without_scikit_learn()
    demo = read_json(run_dir / DEMO)
    before, after = (list(answers(chat, demo["questions"])) for chat in chats(run_dir, demo))
    categories = demo.get("categories") or {}
    rows = [
        ({"category": categories[question]} if question in categories else {})
        | {"question": question, "before": old, "after": new}
        for question, old, new in zip(demo["questions"], before, after, strict=True)
    ]
    write_json(run_dir / ANSWERS, rows)
    text = [f"# Before and after: {demo['base_model']}", ""]
    last = None
    for row in rows:
        if (category := row.get("category")) != last:
            text += [f"## {category}", ""]
            last = category
        text += [
            f"{'###' if category else '##'} {row['question']}",
            "",
            "**Before**",
            "",
            row["before"],
            "",
            "**After**",
            "",
            row["after"],
            "",
        ]
    write_text(run_dir / DEMO_OUTPUTS / "answers.md", "\n".join(text))


if __name__ == "__main__":
    main(Path(sys.argv[1]))


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
