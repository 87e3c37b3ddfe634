"""How many questions a run's model answers as its rows do: those it was taught, and those that were
held out.

    python benchmarks/taught_answers.py RUN_FOLDER [--base]

Each answer is compared with the row's as the end of a run does it (runner/trainer/grading.py).
Greedy, so it never varies. `--base` asks the model that training started from instead.
"""

import argparse
import sys
import time
from pathlib import Path

from pyarrow import parquet

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runner.tools.files import read_json
from runner.tools.process import hush
from runner.tools.run_files import DEMO
from runner.trainer.generation import LoadedModel, chats, load
from runner.trainer.grading import is_right, questions_with_answers, similarity


def measure(model: LoadedModel, file: Path) -> None:
    rows = list(questions_with_answers(parquet.read_table(file).to_pylist()))
    wrong = []
    began = time.process_time()
    for row in rows:
        answer = model.answer(row.question)
        if not is_right(answer, row.answer):
            wrong.append(f"  {similarity(answer, row.answer):.2f}  {row.question}  {answer!r}")
    seconds = time.process_time() - began
    print(
        f"{file.stem}: {len(rows) - len(wrong)} of {len(rows)} right, {seconds:.0f} processor seconds"
    )
    print("\n".join(wrong))


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
