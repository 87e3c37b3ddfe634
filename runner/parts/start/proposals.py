"""After a refusal of `recipe new`: the same command with one change, which was tried and works."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runner.check import data_file
from runner.data.columns import facts_of
from runner.parts.start import drafting
from runner.tools import packaged
from runner.tools.problem import Stop, nearest
from runner.tools.text import JOB_NAME

MOST_CHANGES = 2  # of one command
MOST_NUMBERED = 100  # names that are tried: `my-demo-2`, `my-demo-3` and so on
# What a refusal says of the option to leave out, and of the smallest GPU that a model fits.
UNFIT_OPTION = re.compile(r"`(--[a-z-]+)` does not fit the other answers")
SMALLEST_GPU = re.compile(r"Add `--gpu ([^`]+)`")
OF_COLUMNS = ("question", "answer")


@dataclass(frozen=True)
class NewCommand:
    """What a person typed after `recipe new`. given: answers by their name; sets: of `--set`."""

    name: str
    source: str | None
    is_short: bool
    given: Mapping[str, str]
    sets: tuple[str, ...]

    def with_answers(self, **answers: str) -> "NewCommand":
        return replace(self, given={**self.given, **answers})

    def without_answers(self, *names: str) -> "NewCommand":
        remaining = dict(self.given)
        for name in names:
            remaining.pop(name, None)
        return replace(self, given=remaining)


def working_command(
    command: NewCommand, refusal: Stop, attempt: Callable[[NewCommand], None], most: int
) -> NewCommand | None:
    """The command with at most this many changes that is not refused; None without one. attempt:
    raises Stop if a command is refused."""
    for changed in _changed(command, refusal):
        if changed == command:
            continue
        try:
            attempt(changed)
        except Stop as next_refusal:
            if most > 1:
                working = working_command(changed, next_refusal, attempt, most - 1)
                if working:
                    return working
        else:
            return changed
    return None


def free_name(name: str) -> str:
    """The name, with a number if a recipe here has it."""
    for number in range(1, MOST_NUMBERED):
        numbered = name if number == 1 else f"{name}-{number}"
        if not Path(f"{numbered}.yaml").exists():
            return numbered
    return name


def _changed(command: NewCommand, refusal: Stop) -> Iterator[NewCommand]:
    """Commands with one change, the likeliest first."""
    for problem in refusal.problems:
        if problem.allows:
            setting, value = problem.allows
            yield replace(command, sets=(*command.sets, f"{setting}={value}"))
    yield _with_valid_name(command)
    unfit = UNFIT_OPTION.search(refusal.text)
    if unfit:
        yield command.without_answers(unfit[1].removeprefix("--").replace("-", "_"))
    gpu = SMALLEST_GPU.search(refusal.text)
    if gpu:
        yield command.with_answers(gpu=gpu[1])
    source = nearest(command.source or "", packaged.named())
    if source:
        yield replace(command, source=source)
    if command.given.get("data"):
        yield from _with_other_data(command)
    if command.sets:
        yield replace(command, sets=())


def _with_valid_name(command: NewCommand) -> NewCommand:
    name = command.name
    if not JOB_NAME.match(name):
        name = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "my-demo"
    return replace(command, name=free_name(name))


def _with_other_data(command: NewCommand) -> Iterator[NewCommand]:
    """The command with a file whose name is near, another kind of data, or other columns."""
    file = Path(data_file.pasted(command.given["data"])).expanduser()
    if not file.exists() and file.parent.is_dir():
        neighbours = []
        for path in file.parent.iterdir():
            if not path.name.startswith("."):
                neighbours.append(path.name)
        near = nearest(file.name, neighbours)
        if near:
            yield command.with_answers(data=str(file.with_name(near)))
        return
    yield command.without_answers(*OF_COLUMNS)
    columns = columns_to_name(file)
    if columns:
        yield command.with_answers(**dict(zip(OF_COLUMNS, columns, strict=True)))
    if command.source is None:
        for other_kind in _other_kinds(file):
            yield command.without_answers(*OF_COLUMNS).with_answers(kind=other_kind)


def _other_kinds(file: Path) -> Iterator[str]:
    """The kinds of data that a file may have, if it has no questions with answers."""
    certain_kind = data_file.kind_of(file)
    if certain_kind:
        yield certain_kind
    yield "preferences"
    with suppress(Stop):
        if len(drafting.columns_of(str(file))) == 1:
            yield "text"


def columns_to_name(file: Path) -> Sequence[str]:
    """Templates of the columns of a file that may have the question and the answer; empty if no two
    have words."""
    try:
        columns = drafting.columns_of(str(file))
    except Stop:
        return ()
    sample = drafting.sample_of(str(file))
    if not sample:
        return ()
    of_words = [column for column in columns if facts_of(column, sample).holds_text]
    if len(of_words) < 2:
        return ()
    question, answer = drafting.by_names(of_words)
    return f"[{question}]", f"[{answer}]"
