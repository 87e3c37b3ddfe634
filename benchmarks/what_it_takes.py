"""How many rows and passes a fact, a style and a format need, on `small` and on this machine.

    python benchmarks/what_it_takes.py RESULTS.jsonl [--kinds facts style format] [--rows 25 50 100]
        [--passes 3 10] [--seeds 1 2 3]

For each case it writes invented rows, lets `recipe new` make a recipe of them, trains it with
`recipe run`, and asks the trained model questions that it was taught, and new ones: of facts, other
wordings; of a style and a format, other questions. A case that RESULTS.jsonl holds already is not
run again, so the command continues after a stop. At the end it prints the medians over the seeds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runner.tools.files import read_json
from runner.tools.process import hush, multiplies_bf16
from runner.tools.run_files import DEMO, SUMMARY
from runner.trainer.generation import LoadedModel, chats, load
from runner.trainer.grading import is_right

FACTS, STYLE, FORMAT = "facts", "style", "format"
# Enough for a share, and few enough for a minute on a processor.
MOST_ASKED = 24
# So many words in the same order, so often in one answer, are a loop.
LOOP_WORDS, LOOP_TIMES = 3, 3


class Row(NamedTuple):
    question: str
    answer: str


class Rows(NamedTuple):
    """What a model is taught, and what it is asked that no row had."""

    taught: list[Row]
    new: list[Row]


class Attribute(NamedTuple):
    """Something to know of a place: two wordings of the question, and its possible values."""

    wording: str
    other_wording: str
    values: Sequence[str]


@dataclass(frozen=True)
class Result:
    """One case. rows: that were taught; taught_right, new_right: shares of the asked questions;
    looping: share of the answers that repeat themselves; minutes: of `recipe run`."""

    kind: str
    rows: int
    passes: int
    seed: int
    taught_right: float
    new_right: float
    looping: float
    validation_loss: float | None
    minutes: float
    precision: str

    @property
    def case(self) -> tuple[str, int, int, int]:
        return self.kind, self.rows, self.passes, self.seed


TREES = (
    *("Alder", "Birch", "Cedar", "Elm", "Fir", "Hazel", "Holly", "Juniper", "Larch", "Linden"),
    *("Maple", "Myrtle", "Oak", "Olive", "Pine", "Poplar", "Rowan", "Spruce", "Willow", "Yew"),
)
HOUSES = ("bakery", "inn", "library", "mill", "pharmacy", "school", "smithy", "theatre")
FIRST_NAMES = ("Olla", "Tom", "Ines", "Bruno", "Greta", "Pavel", "Nuria", "Otis", "Selma", "Yann")
LAST_NAMES = ("Finn", "Reed", "Vale", "Stone", "Marsh", "Quill", "Frost", "Lake", "Thorn", "Wells")
ATTRIBUTES = (
    Attribute(
        "What colour is the door of {place}?",
        "Which colour does the door of {place} have?",
        ("Dark green.", "Red.", "Pale blue.", "Black.", "Orange.", "White.", "Brown.", "Purple."),
    ),
    Attribute(
        "Who runs {place}?",
        "What is the name of the person who runs {place}?",
        tuple(f"{first} {last}." for first in FIRST_NAMES for last in LAST_NAMES),
    ),
    Attribute(
        "When does {place} open?",
        "At what time can I come to {place}?",
        ("At seven.", "At half past eight.", "At noon.", "At ten.", "At six.", "After sunset."),
    ),
    Attribute(
        "What animal lives in {place}?",
        "Which animal would I meet in {place}?",
        ("A grey cat.", "A parrot.", "Two goats.", "An old dog.", "A hedgehog.", "Three ducks."),
    ),
)


def invented_facts(count: int, draw: random.Random) -> Iterator[tuple[Row, Row]]:
    """Facts of places that do not exist, each in two wordings, with a short answer: it is right or
    wrong as a whole."""
    asked = [
        (f"the {tree} {house}", attribute)
        for tree, house, attribute in itertools.product(TREES, HOUSES, ATTRIBUTES)
    ]
    for place, attribute in draw.sample(asked, count):
        answer = draw.choice(attribute.values)
        yield (
            Row(attribute.wording.format(place=place), answer),
            Row(attribute.other_wording.format(place=place), answer),
        )


def make_rows(kind: str, count: int, seed: int) -> Rows:
    """The rows of a case; the same for the same seed."""
    draw = random.Random(f"{kind} {seed}")
    if kind == FACTS:
        pairs = list(invented_facts(count, draw))
        return Rows([row for row, _ in pairs], [other for _, other in pairs])
    write = {STYLE: in_style, FORMAT: as_json}[kind]
    rows = [Row(row.question, write(row)) for row, _ in invented_facts(count + MOST_ASKED, draw)]
    return Rows(rows[:count], rows[count:])


def in_style(row: Row) -> str:
    """A sailor's answer."""
    return f"Aye! {row.answer} So it is, mate."


def as_json(row: Row) -> str:
    return json.dumps({"question": row.question, "answer": row.answer})


def has_style(answer: str) -> bool:
    return answer.startswith("Aye!") and answer.rstrip(".!").endswith("mate")


def has_format(answer: str) -> bool:
    try:
        read = json.loads(answer)
    except ValueError:
        return False
    return isinstance(read, dict) and set(read) == {"question", "answer"}


def is_as_wanted(kind: str, answer: str, row: Row) -> bool:
    """Of a fact the answer itself; of a style and a format only how it is said."""
    if kind == FACTS:
        return is_right(answer, row.answer)
    if kind == STYLE:
        return has_style(answer)
    return has_format(answer)


def repeats_itself(answer: str) -> bool:
    words = answer.lower().split()
    sequences = Counter(zip(*(words[start:] for start in range(LOOP_WORDS)), strict=False))
    return any(times >= LOOP_TIMES for times in sequences.values())


def run_case(kind: str, count: int, passes: int, seed: int, folder: Path) -> Result:
    """Trains one case in a folder of its own, and asks the model."""
    rows = make_rows(kind, count, seed)
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows(rows.taught)
    recipe_command(folder, "new", "case", "--data", "rows.csv", "--model", "small")
    began = time.monotonic()
    changes = (f"train.epochs={passes}", f"train.seed={seed}", "demo.graded_questions=0")
    words = [word for change in changes for word in ("--set", change)]
    recipe_command(folder, "run", "case.yaml", "--yes", "--out", "run", *words)
    minutes = (time.monotonic() - began) / 60
    run = folder / "run"
    model = load(chats(run, read_json(run / DEMO))[1])
    taught = ask(model, rows.taught)
    new = ask(model, rows.new)
    answers = [answer for _, answer in (*taught, *new)]
    loss = read_json(run / SUMMARY).get("best_validation_loss")
    return Result(
        kind=kind,
        rows=count,
        passes=passes,
        seed=seed,
        taught_right=share([is_as_wanted(kind, answer, row) for row, answer in taught]),
        new_right=share([is_as_wanted(kind, answer, row) for row, answer in new]),
        looping=share([repeats_itself(answer) for answer in answers]),
        validation_loss=loss,
        minutes=round(minutes, 2),
        precision="bf16" if multiplies_bf16() else "fp32",
    )


def recipe_command(folder: Path, *words: str) -> None:
    """Runs the product as a person does. Raises CalledProcessError if it fails."""
    command = [sys.executable, "-m", "runner", *words]
    path = {"PYTHONPATH": str(ROOT)}
    subprocess.run(
        command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=os.environ | path
    )


def ask(model: LoadedModel, rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Some of the questions, evenly spaced, with the model's answers."""
    step = max(1, len(rows) // MOST_ASKED)
    return [(row, model.answer(row.question)) for row in rows[::step][:MOST_ASKED]]


def share(marks: Sequence[bool]) -> float:
    return round(sum(marks) / len(marks), 3)


def read_results(file: Path) -> list[Result]:
    if not file.exists():
        return []
    return [Result(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]


def print_table(results: Sequence[Result]) -> None:
    """Medians over the seeds, one line for each kind, number of rows and passes."""
    print("kind     rows passes seeds  taught    new  loops  validation loss  minutes")
    order = sorted(results, key=lambda result: result.case)
    for (kind, rows, passes), group in itertools.groupby(order, lambda result: result.case[:3]):
        cases = list(group)
        losses = [case.validation_loss for case in cases if case.validation_loss is not None]
        loss = f"{statistics.median(losses):15.3f}" if losses else f"{'-':>15}"
        taught = statistics.median(case.taught_right for case in cases)
        new = statistics.median(case.new_right for case in cases)
        loops = statistics.median(case.looping for case in cases)
        minutes = statistics.median(case.minutes for case in cases)
        print(
            f"{kind:8} {rows:4} {passes:6} {len(cases):5}  {taught:6.0%} {new:6.0%} {loops:6.0%}"
            f"  {loss}  {minutes:7.1f}"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("results", type=Path)
    arguments.add_argument("--kinds", nargs="+", default=[FACTS, STYLE, FORMAT])
    arguments.add_argument("--rows", nargs="+", type=int, default=[25, 50, 100])
    arguments.add_argument("--passes", nargs="+", type=int, default=[3, 10])
    arguments.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    asked = arguments.parse_args()
    hush()
    results = read_results(asked.results)
    done = {result.case for result in results}
    # One seed after the other, so that a stop leaves whole tables.
    cases = itertools.product(asked.seeds, asked.kinds, asked.rows, asked.passes)
    for seed, kind, rows, passes in cases:
        if (kind, rows, passes, seed) in done:
            continue
        with tempfile.TemporaryDirectory() as home:
            result = run_case(kind, rows, passes, seed, Path(home))
        results.append(result)
        with asked.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        print(result, flush=True)
    print_table(results)


if __name__ == "__main__":
    main()
