"""`recipe explain`: the meaning of a setting, its cost with other values, and the generated lines
that it changes."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import chain
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
from runner.recipe.document import Path_, path_of, value_at
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
        return tuple(sorted(chain.from_iterable(self.values.values())))


def named(word: str, scenarios: tuple[str, ...]) -> list[str]:
    """The full names of the settings that a word means: a full name, the end of one, or the name in
    another tool; names in `train`, which most recipes have, come first. Raises Stop with a similar
    name if there is none."""
    settings_by_name = dict[str, None]()
    of_stages = []
    for scenario in scenarios:
        settings_by_name |= dict.fromkeys(name for name, _ in by_schema.settings(scenario))
        for path, _ in schema_errors.settings(by_schema.part(scenario, "stages.0")):
            of_stages.append(name_of(("stages", 0, *path)))
    of_recipes = sorted(settings_by_name, key=lambda name: not name.startswith("train"))
    word = _in_first_entry(path_of(word.replace("[]", "[0]")))
    ends = {name.rpartition(".")[2]: name for name in reversed(of_recipes)}
    end_of_word = word.rpartition(".")[2]
    for meant in (word, tables.setting_called(end_of_word, ends) or word):
        # Settings of a stage come last, because recipes with one stage have them too.
        for names_of in (of_recipes, of_stages):
            if meant in names_of:
                return [name for name in names_of if name == meant]
            ending = [name for name in names_of if name.endswith(f".{meant}")]
            if ending:
                return ending
    by_end = ends.get(nearest(end_of_word, ends) or "")
    if "." in word:
        near = nearest(word, of_recipes) or by_end
    else:
        near = by_end or nearest(word, of_recipes)
    hint = "docs/settings.md lists all settings; `recipe explain SECTION` lists those of a section."
    if near:
        hint = f"Did you mean `{near}`? {hint}"
    raise Stop(f"There is no setting `{word}`.", hint)


def _in_first_entry(path: Path_) -> str:
    """The name of a setting in the first entries of the lists that it is in, as schemas have it."""
    return name_of(0 if isinstance(part, int) else part for part in path)


def facts(
    setting: str, scenarios: tuple[str, ...] = (), recipe: Recipe | None = None
) -> list[Explained]:
    """A setting's facts in the schemas, once for scenarios that agree. recipe: whose rows decide
    bounds and default."""
    explanations: dict[tuple[str, str], Explained] = {}
    for scenario in scenarios or names():
        part = None
        if recipe:
            part = by_schema.part_in(recipe.document, path_of(setting))
        part = part or by_schema.part(scenario, setting)
        if not part:
            continue
        title = part["title"]
        meaning = part["description"]
        properties = part.get("properties") or part.get("items", {}).get("properties") or {}
        within = tuple((name, inner["title"]) for name, inner in properties.items())
        explained = Explained(setting, title, meaning, {}, within)
        explained = explanations.setdefault((title, meaning), explained)
        values = part["markdownDescription"].removeprefix(meaning).strip()
        explained.values.setdefault(values.replace("\n\n", "\n"), []).append(scenario)
    return list(explanations.values())


def tried(explained: Explained, recipe: Recipe) -> Explained:
    """The same with a recipe's own value, and with other values."""
    path = path_of(explained.setting)
    value = value_at(recipe.settings.plain(), path)
    others = _others(recipe, explained.setting, value)
    computed = None
    if value is None:
        computed = dict(computed_values(recipe)).get(path)
    if computed:
        value = computed.value
        origin = f"computed: {computed.how}"
    else:
        origin = origins.origin(recipe.document, path)
    emitted = {}
    if others:
        emitted = _emitted(recipe)
    beside = tuple(_tried(recipe, explained.setting, other, emitted) for other in others)
    source = ""
    if origin.startswith("line "):
        source = recipe.document.problem(path, "", key=True).source.strip()
    here = _tried(recipe, explained.setting, value)
    return replace(explained, here=here, origin=origin, source=source, beside=beside)


def _others(recipe: Recipe, setting: str, value: object) -> list[Any]:
    """Values to try: half and twice a number or an amount, other choices, or the schema's example
    for 0 and nothing."""
    part = by_schema.part_in(recipe.document, path_of(setting)) or by_schema.part(
        recipe.scenario, setting
    )
    if "const" in part or part.get("properties"):
        return []
    choices = part.get("enum", [])
    if part.get("type") == "boolean":
        choices = choices or [True, False]
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
        is_whole = part.get("type") == "integer"
        rounded: list[int | float] = []
        for number in halves:
            if is_whole or float(number).is_integer():
                rounded.append(round(number))
            else:
                rounded.append(float(f"{number:.12g}"))
        return [number for number in rounded if number != value and by_schema.fits(part, number)]
    amount = isinstance(value, str) and _AMOUNT.match(value)
    if amount:
        count = float(amount[1])
        return [f"{count * factor:g}{amount[2]}" for factor in (0.5, 2)]
    if part.get("x-offers") in OFFERED:
        offered = OFFERED[part["x-offers"]]()
    else:
        offered = part.get("examples", [])
    others = [other for other in offered if other != value]
    # Without another value, a similar name is tried, or the setting is left out.
    if isinstance(value, str) and not others:
        others = [f"{value}2"]
    step = max(1, len(others) // MOST_TRIED)
    return others[::step][:MOST_TRIED] or [None]


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
        refused = stop.text.partition("\n")[0]
        if stop.problems:
            problem = stop.problems[0]
            refused = f"{problem.message} {problem.hint}"
        return Tried(value, refused=refused)
    except UnknownArchitecture:
        return Tried(value, changed=_differing(before, other))
    # Full rows show the cost of `sequence_len`.
    stages = planned.forecasts
    if setting.endswith("sequence_len"):
        stages = [stage.full for stage in stages]
    need = max((stage.memory.total for stage in stages), default=None)
    refused = ""
    if before is not None and planned.problems:
        refused = planned.problems[0].message
    return Tried(value, need, planned.seconds, refused, _differing(before, other))


def _differing(
    before: Mapping[str, str] | None, other: Recipe
) -> dict[str, tuple[str, ...]] | None:
    """The new lines in another recipe's generated files, without hashes; COPIES' only if all others
    are equal."""
    if before is None:
        return None
    after = _emitted(other)
    different = {}
    for path, text in after.items():
        lines = tuple(dict.fromkeys(_changed(before.get(path, ""), text)))
        if lines:
            different[path] = lines
    for path in before:
        if path not in after:
            different[path] = ("(a file less)",)
    originals = {}
    for path, lines in different.items():
        if path.rpartition("/")[2] not in COPIES:
            originals[path] = lines
    return originals or different


def _changed(before: str, after: str) -> Iterator[str]:
    old = _HASH.sub("…", before).splitlines()
    new = _HASH.sub("…", after).splitlines()
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, first, last, new_first, new_last in matcher.get_opcodes():
        if kind in ("replace", "insert"):
            for line in new[new_first:new_last]:
                yield line.strip()
        elif kind == "delete":
            for line in old[first:last]:
                yield f"(no {line.strip()})"


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
    if _in_first_entry(typed) == first:
        first = name_of(typed)
    explanations = facts(first, scenarios, recipe)
    name = explanations[0].setting
    if recipe and path:
        tried_on = recipe
        title = path
    else:
        tried_on, title = _starter(name, sets)
    for index, explained in enumerate(explanations):
        if tried_on.scenario in explained.scenarios and not explained.within:
            explanations[index] = tried(explained, tried_on)
    if style == "json":
        entries = []
        for explained in explanations:
            entry = asdict(explained)
            entry["tried_on"] = title if explained.here else None
            entries.append(entry)
        say(json_text(entries))
        return
    for explained in explanations:
        _show(explained, title)
    if others:
        say(f"Other settings with that name: {', '.join(_name(other) for other in others)}.")
    if recipe and not by_schema.part_in(recipe.document, path_of(name)):
        end(f"`{name}` is not for the rows of {path}.", "explain", name)
    elif explanations[0].within:
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


def _show(explained: Explained, tried_on: str) -> None:
    sentences = macros(Path(__file__).with_name("explain.jinja"), name=_name)
    say(sentences.meaning(explained))
    if explained.within:
        table([(f"  {name}", title) for name, title in explained.within])
        say()
    if not explained.here:
        return
    say(sentences.here(explained, tried_on))
    if not explained.beside:
        return
    tried_values = (explained.here, *explained.beside)
    needs = set()
    for value in tried_values:
        if value.memory_bytes is not None:
            needs.add((value.memory_bytes, value.seconds))
    are_equal = len(needs) <= 1
    if not are_equal:
        rows = [("VALUE", "MEMORY", "TIME", "")]
        for value in tried_values:
            memory = time = "-"
            if value.memory_bytes is not None:
                memory = units.gib(value.memory_bytes)
            if value.seconds:
                time = units.duration(value.seconds)
            remark = value.refused
            if value is explained.here:
                remark = "current value"
            rows.append((value.shown, memory, time, remark))
        table(rows)
        say()
    say(sentences.others(explained, are_equal).rstrip())
