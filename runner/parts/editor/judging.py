"""A recipe's text while somebody types it: problems, plan, first rows, proposals for a place, the fields of the form."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.check import by_schema, validate
from runner.data import RenderedExample
from runner.parts.plan_view.text import verdict
from runner.parts.planner import forecast
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.planned import Planned
from runner.recipe import copying, reading, stages
from runner.recipe.document import Document, Path_
from runner.recipe.overrides import Override, apply
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.run.run_folder import folder
from runner.scenarios import translate
from runner.tools.names import setting
from runner.tools.problem import Problem, Stop, report_bug, worded


@dataclass
class ChangedElsewhere(Exception):
    """Another program has changed or removed the file since it was read. text: of the file now, None if removed."""

    text: str | None


class Opened:
    """An edited file. known: its text when last read or written, with Unix line ends. Raises Stop if it is not a text
    file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read()

    def read(self) -> str:
        self.known = reading.text(self.path).replace("\r\n", "\n")
        return self.known

    def save(self, text: str, over: bool = False) -> None:
        """Writes the text. over: also over the changes of another program. Raises ChangedElsewhere if another program
        has changed the file, and Stop if it cannot be written."""
        now = reading.text(self.path) if self.path.is_file() else None
        theirs = None if now is None else now.replace("\r\n", "\n")
        if not over and theirs != self.known:
            raise ChangedElsewhere(theirs)
        try:
            if now is None:
                self.path.touch()
            copying.write(self.path, text.replace("\n", "\r\n") if now and "\r\n" in now else text)
        except OSError as error:
            raise Stop(Problem(str(self.path), 0, 0, f"This file cannot be written: {error.strerror}.")) from None
        self.known = text


SHOWN, ROWS = 1500, 3  # the most characters of a row, and the most rows of each kind, that are shown


@dataclass(frozen=True)
class Judged:
    """document: None if the text is not YAML, or names no scenario; recipe: None if it has errors; problems: errors and
    notes, in the order of their lines."""

    document: Document | None
    recipe: Recipe | None
    problems: Sequence[Problem]


@dataclass(frozen=True)
class PlanSummary:
    """The plan in sentences, and the forecast of each stage; without forecasts, the reason why there is no plan."""

    sentences: Sequence[str]
    stages: Sequence[Forecast] = ()


WAITING = PlanSummary(("Fix the errors to see the plan.",))


def whole(text: str, file: Path, price: float | None) -> tuple[Judged, PlanSummary]:
    """The problems of a text as if it were in a file, a bug of the runner too, and its plan. price: of a GPU hour."""
    found = Judged(None, None, [])
    try:
        found = judge(text, file)
        return found, plan(found.recipe, price) if found.recipe else WAITING
    except Stop as stop:
        return found, PlanSummary((stop.text,))
    except Exception:
        return Judged(None, None, [Problem(str(file), 0, 0, report_bug())]), WAITING


def judge(text: str, file: Path, online: bool = False) -> Judged:
    """The problems of a text as if it were in a file. online: whether the hub is asked too."""
    try:
        document = reading.parse(str(file), text)
    except Stop as stop:
        return Judged(None, None, stop.problems)
    if problem := by_schema.scenario_problem(document):
        return Judged(None, None, [problem])
    return Judged(document, *validate.examined(document, online))


def plan(recipe: Recipe, price: float | None) -> PlanSummary:
    """The needs of a recipe. price: of a GPU hour. Raises Stop if they are unknown."""
    try:
        made = translate(recipe, replace(place(recipe), checkpoint_keys=None))
        planned = Planned(recipe, made, forecast.of(recipe, made, price), price)
    except UnknownArchitecture:
        raise Stop(*worded("editor.no-formulas", recipe=recipe)) from None
    return PlanSummary(verdict(planned, "a price per GPU hour"), planned.forecasts)


def rows(recipe: Recipe) -> dict[str, list[RenderedExample]]:
    """The first rows of a rehearsal, as the model sees them, by purpose. Raises Stop if this machine has none."""
    instead, _ = validate.changed(recipe, scenarios.rehearsal(recipe.scenario).before_data(recipe, None))
    stages = translate(instead, folder(recipe.name, "rehearsal").place()).stages
    kinds = {name: found for stage in stages for name, found in scenarios.first(stage).items()}
    return {
        name: [
            replace(row, text=f"{row.text[:SHOWN]} …") if len(row.text) > SHOWN else row for row in islice(found, ROWS)
        ]
        for name, found in kinds.items()
    }


# Proposals for a place in the text, and the meaning of a setting, both from the scenario's schema. The text may be
# invalid, so its lines are read by their indentation.

_KEY = re.compile(r"( *)(- +)?([\w-]+):(?: |$)")
_SCENARIO = re.compile(r"^scenario:\s*([\w-]+)", re.MULTILINE)


@dataclass(frozen=True)
class Proposal:
    """A proposal for a place in the text. label: in a list; text: to insert; kind: `section`, `setting` or `value`;
    says: its meaning, Markdown of `code` and paragraphs."""

    label: str
    text: str
    kind: str
    says: str = ""


@dataclass(frozen=True)
class Meaning:
    """The meaning of a setting. says: Markdown of `code` and paragraphs."""

    title: str
    says: str


def proposals(text: str, line: int, column: int) -> list[Proposal]:
    """Proposals for a place, line and column counted from 0; empty in comments and for an unknown setting."""
    lines = text.split("\n")
    before = lines[line][:column]
    if " #" in before or before.startswith("#"):
        return []
    if value := re.fullmatch(r"( *(?:- +)?)([\w-]+): +[^\s'\"\[{]*", before):
        section, _ = _around(lines, line, len(value[1]))
        return _values(_part(text, (*section, value[2])))
    if not (key := re.fullmatch(r"( *(- +)?)([\w./-]*)", before)):
        return []
    indent = len(key[1])
    section, there = _around(lines, line, indent)
    part = _part(text, section)
    if not part.get("properties"):
        return _values(part) if key[2] else []
    found = []
    for name, one in part["properties"].items():
        section_begins = f"\n{' ' * (indent + 2)}" if one.get("properties") else ""
        kind = "section" if section_begins else "setting"
        if name not in there:
            found.append(Proposal(name, f"{name}:{section_begins or ' '}", kind, says(one)))
    return found


def meaning(text: str, line: int) -> Meaning | None:
    """The meaning of the setting in a line, counted from 0."""
    lines = text.split("\n")
    if not (found := _KEY.match(lines[line])):
        return None
    section, _ = _around(lines, line, found.start(3))
    part = _part(text, (*section, found[3]))
    return Meaning(part["title"], says(part)) if part else None


def says(part: Mapping[str, Any]) -> str:
    """The schema's description of a setting, with its allowed values."""
    choices = f"Use {', '.join(f'`{choice}`' for choice in part['enum'])}." if "enum" in part else ""
    return "\n\n".join(filter(None, (part.get("markdownDescription", ""), choices)))


def _part(text: str, path: Path_) -> Mapping[str, Any]:
    """The schema of a setting; empty if it has none. Without a scenario, only the setting `scenario` has one."""
    named, names = _SCENARIO.search(text), scenarios.names()
    part: Mapping[str, Any] = {"properties": {"scenario": {"title": "Scenario", "type": "string", "enum": names}}}
    if named and named[1] in names:
        part = by_schema.schema(named[1])
    alone = path == ("scenario",)
    return {**part["properties"]["scenario"], "enum": names} if alone else by_schema.below(part, path)


def _around(lines: Sequence[str], line: int, indent: int) -> tuple[Path_, set[str]]:
    """The section around column `indent` of a line, and the settings that the section has in other lines."""
    section: Path_ = ()
    settings: dict[Path_, set[str]] = defaultdict(set)
    items: Counter[Path_] = Counter()
    # The settings and items around a line: their column, and their name or number.
    outer: list[tuple[int, str | int]] = []
    for number, text in enumerate(lines):
        key, dash = _KEY.match(text), re.match(r" *- ", f"{text} ")
        if dash:
            column = dash.end() - 2
            # A list may begin in the column of its setting; an item ends where the next one begins.
            while outer and (outer[-1][0], isinstance(outer[-1][1], int)) >= (column, True):
                outer.pop()
            path = tuple(name for _, name in outer)
            outer.append((column, items[path]))
            items[path] += 1
        start = indent if number == line else key.start(3) if key else None
        if start is None:
            continue
        while outer and outer[-1][0] >= start:
            outer.pop()
        path = tuple(name for _, name in outer)
        if number == line:
            section = path
            outer.append((start, ""))
        elif key:
            settings[path].add(key[3])
            outer.append((start, key[3]))
    return section, settings[section]


def _values(part: Mapping[str, Any]) -> list[Proposal]:
    offered = [(snippet["body"], snippet["description"]) for snippet in part.get("defaultSnippets", ())]
    choices = [(value, "") for value in part.get("enum", [True, False] if part.get("type") == "boolean" else [])]
    others = [(part["default"], "The default.")] if "default" in part else []
    others += [(example, "An example.") for example in part.get("examples", ())]
    reasons: dict[str, str] = {}
    for value, why in (*offered, *choices, *others):
        reasons.setdefault(copying.written(value), why)
    return [Proposal(text, text, "value", why) for text, why in reasons.items()]


# The form: the settings of a recipe as fields, from its scenario's schema; changed fields change the text.


@dataclass(frozen=True)
class Field:
    """A setting that the form can change. kind: `text`, `whole`, `number`, `choice`, `yes` or `lines` (a list of
    texts); choices: the values, or the catalog's proposals, with descriptions; free: whether other values are allowed.
    value: the recipe's, None if missing; default: as a recipe writes it."""

    path: Path_
    title: str
    says: str
    kind: str
    choices: Mapping[str, str]
    free: bool
    value: Any
    default: str

    @property
    def name(self) -> str:
        return setting(self.path)


@dataclass(frozen=True)
class Section:
    """A section of a recipe, with fields in the schema's order. in_text: its lists of sections, which have no field."""

    name: str
    title: str
    says: str
    fields: tuple[Field, ...]
    in_text: tuple[str, ...]


def sections(document: Document) -> list[Section]:
    """The sections of a recipe with a known scenario; the settings outside sections are the first."""
    schema = by_schema.schema(document.data["scenario"])
    plain = {name: part for name, part in schema["properties"].items() if "properties" not in part}
    whole = {"title": "The recipe", "markdownDescription": schema["description"], "properties": plain}
    parts: dict[Path_, Mapping[str, Any]] = {(): whole}
    parts |= {(name,): part for name, part in schema["properties"].items() if part.get("properties")}
    entry = by_schema.part(document.data["scenario"], f"{stages.STAGES}.0")
    for name, index, one in stages.documents(document):
        known, scenario = dict[str, Mapping[str, Any]](), one.data["scenario"]
        for key, part in entry["properties"].items():
            own = by_schema.part(scenario, setting(stages.alone((key,), one)))
            if key == "model":
                own = {**part, "properties": {n: p for n, p in part["properties"].items() if n in own["properties"]}}
            if own or key in (stages.NAME, stages.TECHNIQUE):
                known[key] = own or part
        parts[(stages.STAGES, index)] = {**entry, "title": f"Stage {name}", "properties": known}
    return [
        Section(
            name=setting(path),
            title=part["title"],
            says=says(part),
            fields=tuple(_fields(document, path, part)),
            in_text=tuple(
                setting((*path, name))
                for name, one in part["properties"].items()
                if _kind(one) is None and not one.get("properties")
            ),
        )
        for path, part in parts.items()
    ]


def changed(document: Document, path: Path_, value: Any) -> str:
    """The text with one setting changed; None removes it. Comments stay. Raises Stop if the layout forbids it."""
    if value is None and document.lookup(path) is None and path not in document.keys:
        return document.text
    # A missing section is written with the setting.
    while len(path) > 2 and value is not None and document.lookup(path[:-1]) is None:
        path, value = path[:-1], {path[-1]: value}
    # A section is removed with its last setting, because an empty section is invalid.
    while len(path) > 1 and value is None and len(document.lookup(path[:-1])) == 1:
        path = path[:-1]
    change = Override(setting(path), None, value, "the form")
    wanted, _ = apply(document, [change])
    text = copying.edit(document.text, [change])
    if reading.parse(document.file, text).data != wanted.data:
        raise Stop(f"The form cannot write `{change.setting}` into a text like this.", "Write it in the text.")
    return text


def _fields(document: Document, path: Path_, part: Mapping[str, Any], title: str = "") -> Iterator[Field]:
    for name, one in part["properties"].items():
        here, full_title = (*path, name), f"{title}{one['title']}"
        if one.get("properties"):
            yield from _fields(document, here, one, f"{full_title} · ")
        elif (kind := _kind(one)) and here != ("scenario",):
            proposed = {snippet["body"]: snippet["description"] for snippet in one.get("defaultSnippets", ())}
            default = copying.written(one["default"]) if "default" in one else ""
            yield Field(
                path=here,
                title=full_title,
                says=says(one),
                kind=kind,
                choices=dict.fromkeys(map(str, one.get("enum", ())), "") | proposed,
                free="enum" not in one,
                value=document.lookup(here),
                default=f"twice {one['x-default-twice']}" if one.get("x-default-twice") else default,
            )


def _kind(part: Mapping[str, Any]) -> str | None:
    """The kind of field for a setting; None for a section, and for lists of anything but texts."""
    if part.get("items", {}).get("type") == "string":
        return "lines"
    if "enum" in part or "defaultSnippets" in part:
        return "choice"
    return {"string": "text", "integer": "whole", "number": "number", "boolean": "yes"}.get(part.get("type", "string"))
