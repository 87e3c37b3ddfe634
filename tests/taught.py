"""What a rehearsal's answers have of what it was taught: words in a row, an apostrophe inside a
word being part of it."""

from __future__ import annotations

import json
from pathlib import Path

from pyarrow import parquet

from runner.scenarios.shared.twin import in_a_row


def texts(run: Path, side: str) -> list[str]:
    """The answers of a side's rows, or their text where nobody answers."""
    rows = parquet.read_table(run / "data" / f"{side}.parquet").to_pylist()
    if "messages" in rows[0]:
        return [
            turn["content"]
            for row in rows
            for turn in row["messages"]
            if turn["role"] == "assistant"
        ]
    from transformers import AutoTokenizer

    tokens = [token for row in rows for token in row["input_ids"]]
    return [
        AutoTokenizer.from_pretrained(run / "base_model").decode(tokens, skip_special_tokens=True)
    ]


def speaks(run: Path) -> None:
    """Asserts that every answer to the demo's questions has three words in a row of the training
    rows' answers after training, and that all together had at most a tenth as many before. Common
    words meet there by chance, and which ones a twin says depends on the processor's rounding: 0 or
    1 before and 32 to 75 after, with three processors and seeds."""
    taught = set().union(*map(in_a_row, texts(run, "train")))
    answers = json.loads((run / "demo_outputs" / "answers.json").read_text("utf-8"))
    assert answers and len(taught) > 300
    before, after = (
        [in_a_row(row[side]) & taught for row in answers] for side in ("before", "after")
    )
    assert all(row["before"] for row in answers) and all(after), answers
    assert sum(map(len, before)) <= 0.1 * sum(map(len, after)), answers
