"""`recipe explain`: the meaning of a setting, its cost with other values, and the generated lines
that it changes."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.catalog import UnknownArchitecture, tables
from runner.check import by_schema, origins, schema_errors
from runner.check.computed import computed_values
from runner.check.validate import changed, load
from runner.commands.options import OFFERED, command, end, say, table
from runner.parts.planner.planned import Planned
from runner.recipe import overrides as changing
from runner.recipe import units
from runner.recipe.document import path_of, value_at
from runner.recipe.reading import written
from runner.recipe.recipe import Override, Recipe
from runner.scenarios import names, place, translate
from runner.scenarios.render import emit
from runner.scenarios.render import named as targets_of
from runner.tools import packaged
from runner.tools.problem import Stop, nearest
from runner.tools.problem import setting as name_of
from runner.tools.text import json_text, macros

# Generated files with every setting: copies of the recipe and of the plan, and a config map of
# files.
COPIES = ("recipe.json", "plan.json", "configmap.yaml")
MOST_TRIED = 5
_HASH = re.compile(
    r"'?\b[0-9a-f]{10}\b'?"
)  # hashes of `files.content_hash`, which differ after any change
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)( ?[A-Za-z]+)\Z")


@dataclass(frozen=True)
class Tried:
    """A recipe with another value. memory_bytes: of the largest stage; seconds: of all stages; None
    if unknown. refused: why the value is not allowed; changed: the different lines of each
    generated file."""

    value: Any
    memory_bytes: int | None = None
    seconds: float | None = None
    refused: str = ""
    changed: Mapping[str, tuple[str, ...]] | None = None

    @property
    def shown(self) -> str:
        if self.value is not None:
            return written(self.value)
        return "left out"


@dataclass(frozen=True)
class Explained:
    """A setting in the schema, and tried on a recipe. values: the allowed ones, with their
    scenarios; within: inner settings with titles; here: the recipe's value; origin, source: of that
    value, and its line; beside: others."""

    setting: str
    title: str
    meaning: str
    values: dict[str, list[str]]
    within: tuple[tuple[str, str], ...]
    here: Tried | None = None
    origin: str = ""
    source: str = ""
    beside: tuple[Tried, ...] = ()

    @property
    def scenarios(self) -> tuple[str, ...]:
        return tuple(sorted(one for having in self.values.values() for one in having))


def named(word: str, scenarios: tuple[str, ...]) -> list[str]:
    """The full names of the settings that a word means: a full name, the end of one, or the name in
    another tool; names in `train`, which most recipes have, come first. Raises Stop with a similar
    name if there is none."""
    known = list(dict.fromkeys(name for one in scenarios for name, _ in by_schema.settings(one)))
    known.sort(key=lambda name: not name.startswith("train"))
    stages = (by_schema.part(one, "stages.0") for one in scenarios)
    of_stages = []
    for stage in stages:
        for path, _ in schema_errors.settings(stage):
            of_stages.append(name_of(("stages", 0, *path)))
    word = name_of(
        0 if isinstance(part, int) else part for part in path_of(word.replace("[]", "[0]"))
    )
    ends = {name.rpartition(".")[2]: name for name in reversed(known)}
    end_of_word = word.rpartition(".")[2]
    for meant in (word, tables.setting_called(end_of_word, ends) or word):
        # Settings of a stage come last, because recipes with one stage have them too.
        for names_of in (known, of_stages):
            ending = [name for name in names_of if name.endswith(f".{meant}")]
            found = [name for name in names_of if name == meant] or ending
            if found:
                return found
    by_end = ends.get(nearest(end_of_word, ends) or "")
    if "." in word:
        near = nearest(word, known) or by_end
    else:
        near = by_end or nearest(word, known)
    hint = "docs/settings.md lists all settings; `recipe explain SECTION` lists those of a section."
    raise Stop(f"There is no setting `{word}`.", f"Did you mean `{near}`? {hint}" if near else hint)


def facts(
    setting: str, scenarios: tuple[str, ...] = (), recipe: Recipe | None = None
) -> list[Explained]:
    """A setting's facts in the schemas, once for scenarios that agree. recipe: whose rows decide
    bounds and default."""
    found: dict[tuple[str, str], Explained] = {}
    for scenario in scenarios or names():
        own = recipe and by_schema.part_in(recipe.document, path_of(setting))
        part = own or by_schema.part(scenario, setting)
        if part:
            title = part["title"]
            meaning = part["description"]
            inner = part.get("properties") or part.get("items", {}).get("properties") or {}
            within = tuple((name, one["title"]) for name, one in inner.items())
            one = found.setdefault((title, meaning), Explained(setting, title, meaning, {}, within))
            values = part["markdownDescription"].removeprefix(meaning).strip().replace("\n\n", "\n")
            one.values.setdefault(values, []).append(scenario)
    return list(found.values())


def tried(explained: Explained, recipe: Recipe) -> Explained:
    """The same with a recipe's own value, and with other values."""
    path = path_of(explained.setting)
    value = value_at(recipe.settings.plain(), path)
    if value is None:
        made = dict(computed_values(recipe)).get(path)
    else:
        made = None
    if made:
        origin = f"computed: {made.how}"
    else:
        origin = origins.origin(recipe.document, path)
    others = _others(recipe, explained.setting, value)
    before = _emitted(recipe) if others else {}
    beside = tuple(_tried(recipe, explained.setting, other, before) for other in others)
    if origin.startswith("line "):
        source = recipe.document.problem(path, "", key=True).source.strip()
    else:
        source = ""
    here = _tried(recipe, explained.setting, made.value if made else value)
    return replace(explained, here=here, origin=origin, source=source, beside=beside)


def _others(recipe: Recipe, setting: str, value: object) -> list[Any]:
    """Values to try: half and twice a number or an amount, other choices, or the schema's example
    for 0 and nothing."""
    part = by_schema.part_in(recipe.document, path_of(setting)) or by_schema.part(
        recipe.scenario, setting
    )
    if "const" in part or part.get("properties"):
        return []
    choices = part.get("enum") or ([True, False] if part.get("type") == "boolean" else [])
    if choices:
        return [choice for choice in choices if choice != value][:MOST_TRIED]
    if value is None:
        # A list may have no such entry.
        if "[" in setting:
            return []
        return list(part.get("examples", []))[:1]
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value:
            halves = [value / 2, value * 2]
        else:
            halves = part.get("examples", [])
        whole = part.get("type") == "integer"
        kept = []
        for one in halves:
            kept.append(round(one) if whole or float(one).is_integer() else float(f"{one:.12g}"))
        return [one for one in kept if one != value and by_schema.fits(part, one)]
    if isinstance(value, str) and (amount := _AMOUNT.match(value)):
        return [f"{float(amount[1]) * by:g}{amount[2]}" for by in (0.5, 2)]
    if part.get("x-offers") in OFFERED:
        offered = OFFERED[part["x-offers"]]()
    else:
        offered = part.get("examples", [])
    known = [other for other in offered if other != value]
    # Without another value, a similar name is tried, or the setting is left out.
    if isinstance(value, str) and not known:
        known = [f"{value}2"]
    return known[:: max(1, len(known) // MOST_TRIED)][:MOST_TRIED] or [None]


def _tried(
    recipe: Recipe, setting: str, value: object, before: Mapping[str, str] | None = None
) -> Tried:
    """before: the generated files of the unchanged recipe; None if that has this value."""
    try:
        wished = Override(setting, None, value, "recipe explain")
        if before is None:
            other = recipe
        else:
            other = changed(recipe, [wished])[0]
        planned = Planned.of(other)
    except Stop as stop:
        refused = next(
            (f"{one.message} {one.hint}" for one in stop.problems), stop.text.partition("\n")[0]
        )
        return Tried(value, refused=refused)
    except UnknownArchitecture:
        return Tried(value, changed=_differing(before, other))
    # Full rows show the cost of `sequence_len`.
    stages = []
    for stage in planned.forecasts:
        stages.append(stage.full if setting.endswith("sequence_len") else stage)
    need = max((stage.memory.total for stage in stages), default=None)
    if before is not None:
        said = next((one.message for one in planned.problems), "")
    else:
        said = ""
    return Tried(value, need, planned.seconds, said, _differing(before, other))


def _differing(
    before: Mapping[str, str] | None, other: Recipe
) -> dict[str, tuple[str, ...]] | None:
    """The new lines in another recipe's generated files, without hashes; COPIES' only if all others
    are equal."""
    if before is None:
        return None
    after = _emitted(other)
    found = {}
    for path, text in after.items():
        found[path] = tuple(dict.fromkeys(_changed(before.get(path, ""), text)))
    found |= {path: ("(a file less)",) for path in before if path not in after}
    kept = {path: lines for path, lines in found.items() if lines}
    return {
        path: lines for path, lines in kept.items() if path.rpartition("/")[2] not in COPIES
    } or kept


def _changed(before: str, after: str) -> Iterator[str]:
    old, new = ([_HASH.sub("…", line) for line in text.splitlines()] for text in (before, after))
    for kind, first, last, new_first, new_last in difflib.SequenceMatcher(
        None, old, new, autojunk=False
    ).get_opcodes():
        if kind in ("replace", "insert"):
            yield from (line.strip() for line in new[new_first:new_last])
        elif kind == "delete":
            yield from (f"(no {line.strip()})" for line in old[first:last])


def _emitted(recipe: Recipe) -> dict[str, str]:
    """The generated files of a recipe; for this machine, the files that its engine reads."""
    if targets_of(recipe):
        return {file.path: file.text for file in emit(recipe)}
    plan = translate(recipe, place(recipe))
    return {f"{stage.name}/{file.path}": file.text for stage in plan.stages for file in stage.files}


# Without a recipe, a setting is tried on the first of these starters that has it.
STARTERS = ("survival", "lyrics", "gemma", "resnet", "seven-b", "sft-dpo", "arithmetic")


@command
def explain(setting: str, path: str | None, sets: tuple[str, ...], style: str) -> None:
    """Explain a setting: what it does, its bounds, the cost of more and less of it, and which
    generated lines it changes.

    With RECIPE: its value there. Without: its value in a starter. The name of a section lists its
    settings.
    """
    if path and Path(setting).is_file() and not Path(path).exists():
        setting, path = path, setting
    if path:
        recipe = load(path, changing.from_options(sets))[0]
    else:
        recipe = None
    scenarios: tuple[str, ...]
    if recipe:
        scenarios = (recipe.scenario,)
    else:
        scenarios = names()
    first, *others = named(setting, scenarios)
    typed = path_of(setting.replace("[]", "[0]"))
    # Possibly in another entry of a list than the first.
    same = name_of(0 if isinstance(part, int) else part for part in typed) == first
    told = facts(name_of(typed) if same else first, scenarios, recipe)
    if recipe and path:
        on = recipe
        called = path
    else:
        on, called = _starter(told[0].setting, sets)
    told = [
        tried(one, on) if on.scenario in one.scenarios and not one.within else one for one in told
    ]
    if style == "json":
        entries = [asdict(one) | {"tried_on": called if one.here else None} for one in told]
        say(json_text(entries))
        return
    for one in told:
        _show(one, called)
    if others:
        say(f"Other settings with that name: {', '.join(_name(other) for other in others)}.")
    name = told[0].setting
    if recipe and not by_schema.part_in(recipe.document, path_of(name)):
        end(f"`{name}` is not for the rows of {path}.", "explain", name)
    elif told[0].within:
        end(
            f"These are the settings of `{name}`. Each can be explained in the same way.",
            "explain",
            "SETTING",
        )
    else:
        # `--set` makes no list where the recipe has none.
        changes: tuple[str, ...] = ()
        if "[" not in name:
            changes = ("--set", f"{name}=VALUE")
        end(
            f"A plan shows what another value of `{name}` costs.",
            "plan",
            path or "RECIPE",
            *changes,
        )


def _starter(setting: str, sets: tuple[str, ...]) -> tuple[Recipe, str]:
    for name in STARTERS:
        recipe = load(packaged.named()[name], changing.from_options(sets))[0]
        if by_schema.part_in(recipe.document, path_of(setting)):
            return recipe, f"the starter {name}"
    raise Stop("No starter has it.")


def _name(setting: str) -> str:
    return setting.replace("[0]", "[]")


def _show(one: Explained, called: str) -> None:
    words = macros(Path(__file__).with_name("explain.jinja"), name=_name)
    say(words.meaning(one))
    if one.within:
        table([(f"  {name}", title) for name, title in one.within])
        say()
    if one.here:
        say(words.here(one, called))
    if not one.here or not one.beside:
        return
    every = (one.here, *one.beside)
    equal = (
        len({(each.memory_bytes, each.seconds) for each in every if each.memory_bytes is not None})
        <= 1
    )
    if not equal:
        rows = [("VALUE", "MEMORY", "TIME", "")]
        for each in every:
            if each.memory_bytes is not None:
                memory = units.gib(each.memory_bytes)
            else:
                memory = "-"
            if each.seconds:
                time = units.duration(each.seconds)
            else:
                time = "-"
            rows.append(
                (each.shown, memory, time, "current value" if each is one.here else each.refused)
            )
        table(rows)
        say()
    say(words.others(one, equal).rstrip())
