"""Judging: what a text says as a recipe while somebody types it: what is wrong at which line, what it will need, what it will see."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from runner import scenarios
from runner.check.by_schema import scenario_problem
from runner.check.validate import changed, examined
from runner.data import RenderedExample
from runner.parts.planner import forecast, screen
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.planned import Planned
from runner.recipe import copying, reading
from runner.recipe.document import Document
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.run.run_folder import folder
from runner.scenarios import translate
from runner.tools.problem import Problem, Stop, report_bug


class ChangedElsewhere(Exception):
    """The file is not as it was read: another program has written it meanwhile, or taken it away. text: its own by now, None
    where it is gone."""

    def __init__(self, text: str | None) -> None:
        super().__init__()
        self.text = text


@dataclass
class Opened:
    """path: of the file. known: its text as it was read or written last, with the line ends of an editor."""

    path: Path
    known: str = field(init=False)

    def __post_init__(self) -> None:
        """Raises Stop where the file is missing, or no text."""
        self.read()

    def read(self) -> str:
        self.known = _unix(reading.text(self.path))
        return self.known

    def save(self, text: str, over: bool = False) -> None:
        """Writes the text. over: whether also over what another program has written.

        Raises ChangedElsewhere where one has, and Stop where the file cannot be written."""
        now = reading.text(self.path) if self.path.is_file() else None
        if not over and (now is None or _unix(now) != self.known):
            raise ChangedElsewhere(None if now is None else _unix(now))
        try:
            if now is None:
                self.path.touch()
            copying.write(self.path, text.replace("\n", "\r\n") if now and "\r\n" in now else text)
        except OSError as error:
            raise Stop(Problem(str(self.path), 0, 0, f"This file cannot be written: {error.strerror}.")) from None
        self.known = text


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


# Characters that are shown of a row, and rows of each kind.
SHOWN, ROWS = 1500, 3


@dataclass(frozen=True)
class Judged:
    """document: None where the text is no YAML, or names no scenario; recipe: None where it makes no plan. problems: with the
    notes, in the order of their lines."""

    document: Document | None
    recipe: Recipe | None
    problems: Sequence[Problem]

    @property
    def errors(self) -> int:
        return sum(problem.severity == "error" for problem in self.problems)


@dataclass(frozen=True)
class Bar:
    """Memory that a stage takes of each GPU, in bytes. least, most: between which that lies in nine of ten cases; card: what
    training can have of one, None where nobody knows it."""

    stage: str
    gpu: str
    needed: int
    least: int
    most: int
    card: int | None

    @property
    def fits(self) -> bool:
        return self.card is None or self.needed <= self.card


@dataclass(frozen=True)
class Verdict:
    """What the plan says, a sentence each, and the memory of each stage; without bars, why nothing can be said."""

    sentences: Sequence[str]
    bars: Sequence[Bar] = ()


WAITING = Verdict(("The plan is made when nothing is wrong any more.",))


def whole(text: str, file: Path, price: float | None) -> tuple[Judged, Verdict]:
    """What is wrong with a text as if it stood in a file, and what it will need, a fault of the runner's own included. price: of
    a GPU hour."""
    try:
        found = judge(text, file)
        return found, plan(found.recipe, price) if found.recipe else WAITING
    except Stop as stop:
        return found, Verdict((stop.text,))
    except Exception:
        return Judged(None, None, [Problem(str(file), 0, 0, report_bug())]), WAITING


def judge(text: str, file: Path, online: bool = False) -> Judged:
    """A text as if it stood in a file. online: whether the hub is asked, too."""
    try:
        document = reading.parse(str(file), text)
    except Stop as stop:
        return Judged(None, None, stop.problems)
    if problem := scenario_problem(document):
        return Judged(None, None, [problem])
    return Judged(document, *examined(document, online))


def plan(recipe: Recipe, price: float | None) -> Verdict:
    """What a recipe will need. price: of a GPU hour. Raises Stop where nothing can be said."""
    try:
        made = translate(recipe, replace(place(recipe), checkpoint_keys=None))
        planned = Planned(recipe, made, forecast.of(recipe, made, price), price)
    except UnknownArchitecture:
        raise Stop(
            "Of this model's architecture nothing is known here.",
            f"`recipe plan {recipe.document.file} --exact` counts it.",
        ) from None
    bars = [
        Bar(
            each.stage.name,
            each.gpu.title if each.gpu else each.stage.machines.gpu,
            each.memory.total,
            *each.memory_range,
            each.usable,
        )
        for each in planned.forecasts
    ]
    return Verdict(screen.verdict(planned, "the price of one"), bars)


def rows(recipe: Recipe) -> dict[str, list[RenderedExample]]:
    """The first rows that a rehearsal trains on, as the model is to see each, by what they are for.

    Raises Stop where there are none on this machine."""
    instead, _ = changed(recipe, scenarios.rehearsal(recipe.scenario).before_data(recipe, None))
    stages = translate(instead, folder(recipe.name, "rehearsal").place()).stages
    kinds = {name: found for stage in stages for name, found in scenarios.first(stage).items()}
    return {name: list(map(_cut, islice(found, ROWS))) for name, found in kinds.items()}


def _cut(row: RenderedExample) -> RenderedExample:
    return replace(row, text=f"{row.text[:SHOWN]} …") if len(row.text) > SHOWN else row
