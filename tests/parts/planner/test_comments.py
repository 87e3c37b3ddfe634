"""What a starter's comments claim, and the plan can compute, is what the plan says.

A claim is a clause of a comment with a number of GB, minutes, steps or the like, or with a word
such as "faster". CLAIMS has the sentences in which starters make them, each with the computation
that must agree. A claim in other words fails: write it in these words, or add its sentence here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from runner.check.validate import load
from runner.commands import cli
from runner.recipe.document import Path_
from tests.conftest import ROOT

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
UNIT = r"(?:GB|GiB|TB|min|minutes?|h|hours?|d|days?|steps?|tokens|%)"
IS_CLAIM = re.compile(rf"\d {UNIT}(?!\w)|\b(?:faster|fastest|fits?|as fast|estimates|more time)\b")


@dataclass(frozen=True)
class Line:
    """A line of a recipe with a setting and a comment. path: of the setting."""

    file: Path
    number: int
    path: Path_
    comment: str

    @property
    def setting(self) -> str:
        return ".".join(map(str, self.path))

    @property
    def value(self) -> Any:
        return load(self.file)[0].document.lookup(self.path)

    def plan(self, *changes: str) -> Mapping[str, Any]:
        """The plan in JSON, with changed settings (KEY=VALUE)."""
        return planned(self.file, changes)

    def stage(self, *changes: str) -> Mapping[str, Any]:
        """The stage whose section the line is in, else the one that needs most memory."""
        stages = self.plan(*changes)["stages"]
        index = self.path[1] if self.path[0] == "stages" else None
        named = [one for one in stages if str(self.path[0]) in one["stage"]]
        if isinstance(index, int):
            named = [stages[index]]
        return max(named or stages, key=lambda one: one["gpu_memory_bytes"]["total"])

    def memory_gb(self, kind: str, *changes: str) -> float:
        return self.stage(*changes)["gpu_memory_bytes"][kind] / 1e9

    def seconds(self, *changes: str) -> float:
        return self.plan(*changes)["all_stages"]["total_seconds"]


Judge = Callable[[Line, "re.Match[str]"], bool]


@cache
def planned(file: Path, changes: tuple[str, ...]) -> Mapping[str, Any]:
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    # A number that only double-checks others would contradict a changed one.
    options = [word for change in changes for word in ("--set", change)]
    if changes and load(file)[0].document.lookup(("train", "effective_batch_size")):
        options += ["--set", "train.effective_batch_size="]
    shown = StringIO()
    with redirect_stdout(shown), redirect_stderr(StringIO()):
        cli._code(["plan", str(file), *options, "--format", "json"])
    return json.loads(shown.getvalue())


def agrees(claimed: str, computed: float) -> bool:
    """Whether a number is what `claimed` rounds it to; of hundreds, 2,400 is said of 2,350 to
    2,450."""
    digits = claimed.replace(",", "")
    place = 10.0 ** -len(digits.partition(".")[2])
    if digits.endswith("00"):
        place = 100.0
    return abs(float(digits) - computed) <= place / 2 * 1.001


def other_value(line: Line, change: Callable[[Any], object]) -> tuple[str, ...]:
    """The line's setting with another value, and what goes with it: a larger micro batch keeps the
    rows of a step, where it can, and checkpoints keep to evaluations."""
    *home, name = line.path
    value = change(line.value)
    changed = {name: value}
    section = load(line.file)[0].document.lookup(tuple(home))
    accumulated = section.get("gradient_accumulation_steps", 1)
    if name == "micro_batch_size" and accumulated % 2 == 0:
        changed["gradient_accumulation_steps"] = accumulated // 2
    if name == "eval_steps" and "save_steps" in section:
        changed["save_steps"] = value
    return tuple(f"{'.'.join(map(str, (*home, one)))}={other}" for one, other in changed.items())


def takes_less_time(change: Callable[[Any], object]) -> Judge:
    """Whether the plan takes less time with another value of the line's setting."""
    return lambda line, _: line.seconds(*other_value(line, change)) < line.seconds()


def takes_more_time(change: Callable[[Any], object]) -> Judge:
    return lambda line, _: line.seconds(*other_value(line, change)) > line.seconds()


def no_faster(line: Line, _: re.Match[str]) -> bool:
    change = (lambda _: "bf16") if line.path[-1] == "precision" else twice
    return line.seconds(*other_value(line, change)) >= line.seconds()


def twice(value: int) -> int:
    return 2 * value


def half(value: int) -> int:
    return value // 2


def logits_of_a_full_row(line: Line, match: re.Match[str]) -> bool:
    """What one more row takes in evaluation, for a row that fills `sequence_len`."""
    more = line.memory_gb("evaluation", f"{line.setting}={line.value + 1}") - line.memory_gb(
        "evaluation"
    )
    padded = -(-line.stage()["rows"]["longest"] // 64) * 64
    return agrees(match["size"], more * load(line.file)[0].model.sequence_len / padded)


def plain_logits(line: Line, match: re.Match[str]) -> bool:
    stage = line.stage(f"{line.setting}=plain")
    return agrees(match["size"], stage["gpu_memory_bytes"]["parts"]["logits"] / 1e9)


def quantised_weights(line: Line, match: re.Match[str]) -> bool:
    stage = line.stage()
    weights = stage["gpu_memory_bytes"]["parts"]["weights"] / 1e9
    return agrees(match["size"], weights) and agrees(match["whole"], 2 * stage["parameters"] / 1e9)


def machines_compared(line: Line, match: re.Match[str]) -> bool:
    few, many = line.seconds("machines.nodes=1"), line.seconds(f"machines.nodes={match['many']}")
    return few < many


def more_machines(line: Line, _: re.Match[str]) -> bool:
    """Whether the starter's machines are faster than one of them."""
    return line.seconds() < line.seconds("machines.nodes=1", "nodes=")


def memory_estimate(line: Line, match: re.Match[str]) -> bool:
    likely = agrees(match["likely"], line.memory_gb("total"))
    most = match["most"]
    return likely and (most is None or agrees(most, line.memory_gb("at_full_length")))


def time_estimate(line: Line, match: re.Match[str]) -> bool:
    seconds = {"min": 60, "h": 3600, "d": 86400}[str(line.value).split()[-1]]
    took = line.seconds() / seconds
    if match["most"]:
        return float(match["least"]) <= took <= float(match["most"])
    return agrees(match["least"], took)


def checkpoint_size(line: Line, match: re.Match[str]) -> bool:
    for disk in line.stage()["disk_bytes"]:
        if counted := re.fullmatch(
            r"checkpoints \((\d+) kept, (\d+) being written\)", disk["what"]
        ):
            return agrees(match["size"], disk["size"] / sum(map(int, counted.groups())) / 1e9)
    return False


def card_size(line: Line, match: re.Match[str]) -> bool:
    return agrees(match["size"], line.memory_gb("usable"))


def in_gib(line: Line, match: re.Match[str]) -> bool:
    return agrees(match["size"], float(str(line.value).split()[0]) * 1e9 / 2**30)


def trained_share(line: Line, match: re.Match[str]) -> bool:
    stage = line.stage()
    return agrees(match["share"], 100 * stage["trainable_parameters"] / stage["parameters"])


# The sentences of claims, and how the plan computes each.
CLAIMS: Mapping[str, Judge] = {
    r"one is faster than (?P<many>\d+)": machines_compared,
    r"more are faster": more_machines,
    r"\d+ are (?P<times>[\d.]+) times as fast": lambda line, match: agrees(
        match["times"], line.seconds() / line.seconds(f"machines.nodes={match[0].split()[0]}")
    ),
    r"the training does not fit on one alone": lambda line, _: (
        not all(stage["fits"] for stage in line.plan(f"{line.setting}=1")["stages"])
    ),
    r"higher is faster": takes_less_time(twice),
    r"is no faster here": no_faster,
    r"false is faster and needs more memory": takes_less_time(lambda _: "false"),
    r"lower .*takes more time": takes_more_time(half),
    r"about (?P<size>\d+) GB in all at \d": lambda line, match: agrees(
        match["size"], line.memory_gb("evaluation")
    ),
    r"(?P<size>\d+) GB per full-length row": logits_of_a_full_row,
    r"logits, which would take (?P<size>\d+) GB": plain_logits,
    r"weights take (?P<size>\d+) GB instead of (?P<whole>\d+)": quantised_weights,
    r"both models together fit one card": lambda line, _: line.stage()["fits"],
    r"says how long it takes, here about (?P<hours>\d+) hours": lambda line, match: agrees(
        match["hours"], line.seconds() / 3600
    ),
    r"shows the claim's size, about (?P<size>[\d,]+) GiB": lambda line, match: agrees(
        match["size"], line.plan()["claims_gib"]["seven-b-pvc"]
    ),
    r"the plan estimates about (?P<likely>[\d.]+)(?:, and at most (?P<most>[\d.]+))?$": lambda line, match: (
        memory_estimate(line, match)
        if line.path[-1] == "gpu_memory"
        else agrees(
            match["likely"],
            line.seconds() / {"min": 60, "h": 3600, "d": 86400}[str(line.value).split()[-1]],
        )
    ),
    r"the plan (?:estimates|says) (?P<least>\d+) to (?P<most>\d+)(?: hours)?": time_estimate,
    r"about (?P<size>[\d.]+) GB each": checkpoint_size,
    r"\d+ full rows take about (?P<likely>\d+) of the card's [\d.]+ GB": lambda line, match: agrees(
        match["likely"], line.memory_gb("at_full_length")
    ),
    r"of (?:the|each) card's (?P<size>[\d.]+) GB": card_size,
    r"main memory of (?:each|the) machine, (?P<size>[\d.]+) GiB": in_gib,
    r"(?P<share>[\d.]+) % of all weights": trained_share,
}
# Sentences about what no plan computes: the data set, the hardware's label, arithmetic that this
# line itself states.
OTHERS = (
    r"more time (?:on a broken run|to start them all)",
    r"more compare more fairly and take more time",
    r"here with 48 GB",
    r"its pod gets \d+ GiB",
    r"takes a third more time",
    r"a few short rows are as fast as a GPU's many",
    r"the same arithmetic",
    r"learns faster",
    r"blocks? of [\d, and]+ tokens",
    r"any (?:GPU )?with 4 GB (?:would|will) do",
    r"exact is faster",
    r"multiplies the remaining fp32 numbers faster",
    r"faster training with the same result",
)
assert all(re.compile(pattern) for pattern in (*CLAIMS, *OTHERS))


def commented(file: Path) -> list[Line]:
    """The lines of a recipe that have a setting and a comment behind it."""
    document = load(file)[0].document
    settings: dict[int, Path_] = {}
    for path, place in document.keys.items():
        settings.setdefault(place.line, path)
    lines = []
    for number, text in enumerate(document.text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)# (.*)", text)
        if comment and number in settings and not text.lstrip().startswith("#"):
            lines.append(Line(file, number, settings[number], comment[1]))
    return lines


def claims(line: Line) -> list[str]:
    """The clauses of a line's comment that make a claim."""
    return [
        clause.strip()
        for clause in re.split(r";|: (?!\d)", line.comment)
        if IS_CLAIM.search(clause)
    ]


@cache
def every_claim() -> tuple[tuple[Line, str], ...]:
    return tuple(
        (line, clause) for file in RECIPES for line in commented(file) for clause in claims(line)
    )


def test_starters_make_claims():
    assert len(every_claim()) > 40


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: file.stem)
def test_what_comments_claim_is_what_the_plan_says(file):
    wrong = []
    for line, clause in every_claim():
        if line.file != file:
            continue
        judged = [
            (judge, match)
            for sentence, judge in CLAIMS.items()
            if (match := re.search(sentence, clause))
        ]
        other = any(re.search(sentence, clause) for sentence in OTHERS)
        if not judged and not other:
            wrong.append(f"{line.number}: nothing computes this claim: {clause}")
        for judge, match in judged:
            if not judge(line, match):
                wrong.append(f"{line.number}: the plan says otherwise: {clause}")
    assert not wrong, "\n".join(wrong)


def test_every_sentence_is_in_a_starter():
    clauses = [clause for _, clause in every_claim()]
    unused = [
        sentence
        for sentence in (*CLAIMS, *OTHERS)
        if not any(re.search(sentence, one) for one in clauses)
    ]
    assert not unused
