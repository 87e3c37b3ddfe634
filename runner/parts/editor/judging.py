"""A recipe's text while somebody types it: its problems, its plan, its first rows, and proposals
for a place."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from runner import catalog, scenarios
from runner.catalog import Schema, UnknownArchitecture
from runner.check import by_schema, copying
from runner.check.validate import changed, examined
from runner.commands.next_step import run_here
from runner.data import RenderedExample
from runner.parts.planner import forecast
from runner.parts.planner.planned import Planned
from runner.parts.planner.view.views import verdict
from runner.recipe import reading
from runner.recipe.document import Document, Path_
from runner.recipe.recipe import Recipe
from runner.run.run import CPU, UNASKED, seconds_to_train, training_takes
from runner.run.run_folder import folder
from runner.tools.problem import Problem, Stop, report_bug


class Opened:
    """An edited file. known: its text when last read or written, with Unix line ends. Raises Stop
    if it is not a text file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read()

    def read(self) -> str:
        self.known = reading.text(self.path).replace("\r\n", "\n")
        return self.known

    def save(self, text: str, over: bool = False) -> bool:
        """Writes the text, if no other program has changed or removed the file since it was read;
        returns whether it did. over: also over such changes. Raises Stop if it cannot be
        written."""
        if self.path.is_file():
            now = reading.text(self.path)
        else:
            now = None
        if not over and (now and now.replace("\r\n", "\n")) != self.known:
            return False
        try:
            if now is None:
                self.path.touch()
            copying.write(self.path, text.replace("\n", "\r\n") if now and "\r\n" in now else text)
        except OSError as error:
            raise Stop(
                Problem(str(self.path), 0, 0, f"This file cannot be written: {error.strerror}.")
            ) from None
        self.known = text
        return True


@dataclass(frozen=True)
class JudgedText:
    """problems: errors and notes, in the order of their lines; document: None if the text is not
    YAML, or names no scenario; recipe: None if it has errors. sentences: the plan, or why there is
    none; stages: the forecast of each."""

    problems: Sequence[Problem]
    document: Document | None = None
    recipe: Recipe | None = None
    sentences: Sequence[str] = ("Fix the errors to see the plan.",)
    stages: Sequence[forecast.Forecast] = ()


def judge(text: str, file: Path, price: float | None = None, online: bool = False) -> JudgedText:
    """The problems of a text as if it were in a file, a bug of the runner too, and its plan. price:
    of a GPU hour; online: whether the hub is asked too."""
    try:
        document = reading.parse(str(file), text)
        problem = by_schema.scenario_problem(document)
        if problem:
            return JudgedText([problem])
        recipe, problems = examined(document, online)
        if recipe is None:
            return JudgedText(problems, document)
        return JudgedText(problems, document, recipe, *plan(recipe, price))
    except Stop as stop:
        return JudgedText(stop.problems or [Problem(str(file), 0, 0, stop.text)])
    except Exception:
        return JudgedText([Problem(str(file), 0, 0, report_bug())])


def plan(recipe: Recipe, price: float | None) -> tuple[Sequence[str], Sequence[forecast.Forecast]]:
    """The needs of a recipe in sentences, or why they are unknown; and the forecast of each
    stage."""
    try:
        translated = scenarios.translate(
            recipe, replace(scenarios.place(recipe), checkpoint_keys=None)
        )
        planned = Planned(recipe, translated, forecast.of(recipe, translated, price), price)
    except UnknownArchitecture:
        return (
            Stop(
                "There are no formulas for this model's architecture.",
                f"`recipe plan {recipe.document.file} --exact` measures it.",
            ).text,
        ), ()
    except Stop as stop:
        return (stop.text,), ()
    return verdict(planned, "a price per GPU hour"), planned.forecasts


@dataclass(frozen=True)
class TrainingHere:
    """How long training takes on this machine. seconds: of all stages, infinite if unknown;
    remaining: of those that are not finished; machine: its GPU or CPU, in words."""

    seconds: float
    remaining: float
    machine: str

    @property
    def sentence(self) -> str:
        return training_takes(self.seconds, self.machine)

    @property
    def question(self) -> str:
        """What to ask before training starts; empty if it takes less than an hour."""
        if self.remaining <= UNASKED:
            return ""
        return f"{training_takes(self.remaining, self.machine)} Start it?"


def training_here(recipe: Recipe) -> TrainingHere:
    """How long a recipe's training takes on this machine. Raises Stop if it cannot run here."""
    local = run_here(recipe)
    stages = list(local.plan.stages)
    predictions = local.predictions
    times = [
        predictions[stage.name].seconds
        for stage in stages
        if stage.trains and stage.name in predictions
    ]
    known = [seconds for seconds in times if seconds is not None]
    seconds = math.inf
    if known and len(known) == sum(stage.trains for stage in stages):
        seconds = sum(known)
    if local.on_processor:
        machine = CPU
    else:
        machine = f"this machine's {catalog.label_of(local.gpus[0]).replace('-', ' ')}"
    remaining = seconds_to_train(local.plan, stages, predictions)
    return TrainingHere(seconds, remaining, machine)


def rows(recipe: Recipe) -> dict[str, list[RenderedExample]]:
    """The first three rows of a rehearsal, as the model sees them, by purpose. Raises Stop if this
    machine has none."""
    instead, _ = changed(recipe, scenarios.rehearsal(recipe.scenario).before_data(recipe, None))
    stages = scenarios.translate(instead, folder(recipe.name, "rehearsal").place()).stages
    examples = {
        name: rendered for stage in stages for name, rendered in scenarios.first(stage).items()
    }
    return {name: list(islice(rendered, 3)) for name, rendered in examples.items()}


# Proposals for a place in the text, and the meaning of a setting, both from the scenario's schema.
# The text may be invalid, so its lines are read by their indentation.

_KEY = re.compile(r"( *)(- +)?([\w-]+):(?: |$)")
_SCENARIO = re.compile(r"^scenario:\s*([\w-]+)", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """A proposal for a place in the text. label: in a list; text: to insert; kind: `section`,
    `setting` or `value`; says: its meaning, Markdown of `code` and paragraphs."""

    label: str
    text: str
    kind: str
    says: str = ""


def proposals(text: str, line: int, column: int) -> list[Proposal]:
    """Proposals for a place, line and column counted from 0; empty in comments and for an unknown
    setting."""
    lines = text.split("\n")
    before = lines[line][:column]
    if " #" in before or before.startswith("#"):
        return []
    value = re.fullmatch(r"( *(?:- +)?)([\w-]+): +[^\s'\"\[{]*", before)
    if value:
        section, _ = _around(lines, line, len(value[1]))
        return _values(_part(text, (*section, value[2])))
    key = re.fullmatch(r"( *(- +)?)([\w./-]*)", before)
    if not key:
        return []
    indent = len(key[1])
    section, present = _around(lines, line, indent)
    part = _part(text, section)
    if not part.get("properties"):
        if key[2]:
            return _values(part)
        return []
    missing = []
    for name, setting_schema in part["properties"].items():
        if name in present:
            continue
        if setting_schema.get("properties"):
            beginning = f"{name}:\n{' ' * (indent + 2)}"
            missing.append(Proposal(name, beginning, "section", says(setting_schema)))
        else:
            missing.append(Proposal(name, f"{name}: ", "setting", says(setting_schema)))
    return missing


def meaning(text: str, line: int) -> dict[str, str] | None:
    """The `title` of the setting in a line, counted from 0, and what it `says`: Markdown of `code`
    and paragraphs."""
    lines = text.split("\n")
    key = _KEY.match(lines[line])
    if not key:
        return None
    section, _ = _around(lines, line, key.start(3))
    part = _part(text, (*section, key[3]))
    if part:
        return {"title": part["title"], "says": says(part)}
    return None


def says(part: Schema) -> str:
    """The schema's description of a setting, with its allowed values."""
    if "enum" in part:
        choices = f"Use {', '.join(f'`{choice}`' for choice in part['enum'])}."
    else:
        choices = ""
    return "\n\n".join(filter(None, (part.get("markdownDescription", ""), choices)))


def _part(text: str, path: Path_) -> Schema:
    """The schema of a setting; empty if it has none. Without a scenario, only the setting
    `scenario` has one."""
    scenario = _SCENARIO.search(text)
    names = scenarios.names()
    part: Schema = {
        "properties": {"scenario": {"title": "Scenario", "type": "string", "enum": names}}
    }
    if scenario and scenario[1] in names:
        part = by_schema.schema(scenario[1])
    alone = path == ("scenario",)
    if alone:
        return {**part["properties"]["scenario"], "enum": names}
    return by_schema.below(part, path)


def _around(lines: Sequence[str], line: int, indent: int) -> tuple[Path_, set[str]]:
    """The section around column `indent` of a line, and the settings that the section has in other
    lines."""
    section: Path_ = ()
    settings: dict[Path_, set[str]] = defaultdict(set)
    items: Counter[Path_] = Counter()
    # The settings and items around a line: their column, whether it is an item, and their name or
    # number.
    outer: list[tuple[int, bool, str | int]] = []
    for number, text in enumerate(lines):
        key = _KEY.match(text)
        dash = re.match(r" *- ", f"{text} ")
        if dash:
            begun = [(dash.end() - 2, True, "")]
        else:
            begun = []
        if number == line:
            begun += [(indent, False, "")]
        elif key:
            begun += [(key.start(3), False, key[3])]
        else:
            begun += []
        for column, item, name in begun:
            # A list may begin in the column of its setting; an item ends where the next one begins.
            while outer and outer[-1][:2] >= (column, item):
                outer.pop()
            path = tuple(name_or_number for _, _, name_or_number in outer)
            outer.append((column, item, items[path] if item else name))
            if item:
                items[path] += 1
            elif number == line:
                section = path
            else:
                settings[path].add(name)
    return section, settings[section]


def _values(part: Schema) -> list[Proposal]:
    """Values of a setting in the schema: the catalog's entries, choices, the default, examples."""
    offered = [
        (snippet["body"], snippet["description"]) for snippet in part.get("defaultSnippets", ())
    ]
    choices = [
        (value, "")
        for value in part.get("enum", [True, False] if part.get("type") == "boolean" else [])
    ]
    if "default" in part:
        usual = [(part["default"], "The default.")]
    else:
        usual = []
    usual += [(example, "An example.") for example in part.get("examples", ())]
    meanings: dict[str, str] = {}
    for value, value_meaning in (*offered, *choices, *usual):
        meanings.setdefault(reading.written(value), value_meaning)
    return [
        Proposal(text, text, "value", value_meaning) for text, value_meaning in meanings.items()
    ]
