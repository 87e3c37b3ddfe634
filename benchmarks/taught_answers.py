"""How many questions a run's model answers as its rows do: those it was taught, and those that were held out.

    python benchmarks/taught_answers.py RUN_FOLDER [--base]

Each answer is compared with the row's, word by word (difflib's ratio); from 0.8 on it counts as right. Greedy, so it never varies.
`--base` asks the model that training started from instead.
"""

import argparse
import difflib
import sys
import time
from pathlib import Path

from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runner.tools.files import read_json
from runner.tools.process import hush
from runner.tools.run_files import DEMO
from runner.trainer.generation import LoadedModel, chats, load

RIGHT = 0.8


def similarity(one: str, other: str) -> float:
    """The share of words that two answers have in common, in their order; 1 for the same words."""
    return difflib.SequenceMatcher(None, one.lower().split(), other.lower().split()).ratio()


def rows(file: Path) -> list[tuple[str, str]]:
    """The questions of prepared rows of one turn, each with its answer."""
    turns = [row["messages"] for row in parquet.read_table(file).to_pylist()]
    return [(one[-2]["content"], one[-1]["content"]) for one in turns]


def measure(model: LoadedModel, file: Path) -> None:
    asked = rows(file)
    right = 0
    began = time.process_time()
    for question, answer in asked:
        said = model.answer(question)
        same = similarity(said, answer)
        if same >= RIGHT:
            right += 1
        else:
            print(f"  {same:.2f}  {question}  {said!r}", flush=True)
    took = time.process_time() - began
    print(f"{file.stem}: {right} of {len(asked)} right, {took:.0f} processor seconds", flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("run", type=Path)
    arguments.add_argument("--base", action="store_true")
    asked = arguments.parse_args()
    hush()
    before, after = chats(asked.run, read_json(asked.run / DEMO))
    model = load(before if asked.base else after)
    for file in sorted((asked.run / "data").glob("*.parquet")):
        measure(model, file)


if __name__ == "__main__":
    main()
