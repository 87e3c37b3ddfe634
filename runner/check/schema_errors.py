"""Explains the errors of a JSON Schema validator to the author of a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from runner.catalog import Schema, tables
from runner.recipe import reading, templates
from runner.recipe.document import Document, Path_
from runner.tools import packaged
from runner.tools.problem import Problem, did_you_mean, listed, nearest, setting, shortened
from runner.tools.text import hub_name

if TYPE_CHECKING:
    from jsonschema import ValidationError

_TABLE = packaged.toml(__file__, "schema_errors.toml")
BOUNDS = _TABLE["bounds"]
KINDS = _TABLE["kinds"]
YES_OR_NO = _TABLE["yes-or-no"]
MOST_FORMS = 12  # the most accepted forms that a hint lists


def problems(
    document: Document, schema: Schema, errors: Sequence[ValidationError]
) -> tuple[list[Problem], set[str]]:
    """The Problems behind validation errors: one for each unknown setting or misplaced section, and
    one for all missing ones. Also the sections whose opening line is missing, so that their lines
    are in another section."""
    found: list[Problem] = []
    lost: set[str] = set()
    for error in errors:
        if error.validator == "additionalProperties":
            found += _unknown_settings(document, schema, error, lost)
    # The validator has an error for each missing setting.
    lacking = {
        tuple(error.absolute_path): error for error in errors if error.validator == "required"
    }
    others = [
        error for error in errors if error.validator not in ("additionalProperties", "required")
    ]
    for path, error in lacking.items():
        # A misspelt setting is reported at its line.
        known = error.schema["properties"]
        there = {
            *error.instance,
            *(meant(key, known) for key in error.instance if key not in known),
        }
        keys = [
            key for key in error.validator_value if key not in there and (path or key not in lost)
        ]
        if keys:
            if path:
                owner = f"`{_name(path)}`"
            else:
                owner = "The recipe"
            hints = []
            for key in keys:
                example = known[key].get("examples", [None])[0]
                if isinstance(example, str | int | float) and example:
                    line = f" For example: `{key}: {example}`"
                else:
                    line = ""
                hints.append(f"Add `{key}`: {known[key]['description']}{line}")
            found.append(
                document.problem(path, f"{owner} lacks {listed(keys)}.", "\n".join(hints), key=True)
            )
    # A value of the wrong kind gets no second Problem about its bounds.
    of_another_kind = {tuple(error.absolute_path) for error in others if error.validator == "type"}
    for error in others:
        path = tuple(error.absolute_path)
        slipped = path and path[0] in lost and error.instance is None
        if slipped or (path in of_another_kind and error.validator != "type"):
            continue
        found.append(document.problem(path, *explain(document, path, error)))
    return found, lost


def _name(path: Path_) -> str:
    """The setting's name in messages: its last word, or inside a list the full name with the
    index."""
    return setting(path if any(isinstance(part, int) for part in path) else path[-1:]) or "recipe"


def _unknown_settings(
    document: Document, root: Schema, error: ValidationError, lost: set[str]
) -> Iterator[Problem]:
    path: Path_ = tuple(error.absolute_path)
    unknown = [key for key in error.instance if key not in error.schema["properties"]]
    if path:
        owner = f"`{_name(path)}`"
    else:
        owner = "the recipe's top level"
    place = document.keys.get((*path, unknown[0]))
    hidden = ""
    header = None
    if place and len(unknown) > 1:
        hidden, header = reading.hidden_header(document, place.line, f"they belong to {owner}")
    # Two unknown settings of a missing or empty section mean that the line that opens it is
    # missing.
    homes = (
        name
        for name, part in root.get("properties", {}).items()
        if document.data.get(name) is None and set(unknown) <= set(part.get("properties", {}))
    )
    if len(unknown) > 1:
        home = next(homes, None)
    else:
        home = None
    more = f"{len(unknown) - 1} line{'s' if len(unknown) > 2 else ''} below it"
    if header and hidden in root["properties"] and hidden not in document.data:
        lost.add(hidden)
        yield header
    elif home and home in document.data:
        lost.add(home)
        said = (
            f"`{unknown[0]}` and {more} belong to `{home}`, and are not indented.",
            "Indent them by two spaces.",
        )
        yield document.problem((*path, unknown[0]), *said, key=True)
    elif home and path:
        lost.add(home)
        said = (
            f"`{unknown[0]}` and {more} are settings of `{home}`, but they are in {owner}.",
            f"Write `{home}:` above them, at the beginning of a line.",
        )
        yield document.problem((*path, unknown[0]), *said, key=True)
    else:
        for key in unknown:
            yield _unknown(document, root, error.schema, path, key)


def _unknown(document: Document, root: Schema, section: Schema, path: Path_, key: str) -> Problem:
    if path:
        owner = f"`{_name(path)}`"
    else:
        owner = "a recipe"
    message = f"`{key}` is not a setting of {owner}."
    known = section["properties"]
    elsewhere = tables.setting_called(key, {str(path[-1]) for path, _ in settings(root)})
    renamed = section.get("x-renamed", {}).get(key)
    if renamed:
        hint = renamed
    elif called := tables.setting_called(key, known):
        hint = f"Here it is called `{called}`."
    elif home := _home(root, key):
        hint = f"It belongs to {home}."
    elif match := nearest(key, known):
        hint = f"Did you mean `{match}`?"
    elif elsewhere and (home := _home(root, elsewhere)):
        hint = f"Here it is called `{elsewhere}`, and it belongs to {home}."
    else:
        if path:
            hint = f"Its settings are {listed(known)}."
        else:
            hint = f"The settings of this section are {listed(known)}."
    return document.problem((*path, key), message, hint, key=True)


def meant(key: str, known: Iterable[str]) -> str | None:
    """The setting that an unknown name probably means: another tool's name for it, or the nearest
    spelling."""
    return tables.setting_called(key, known) or nearest(key, known)


def settings(section: Schema, path: Path_ = ()) -> Iterator[tuple[Path_, Schema]]:
    """Every setting and section of a schema, by its path, with its part of the schema; entries of a
    list have the index 0. Settings of stages are left out, because their own recipes have them."""
    for name, part in section.get("properties", {}).items():
        yield (*path, name), part
        yield from settings(part, (*path, name))
        if "x-own-recipe" not in (items := part.get("items", {})):
            yield from settings(items, (*path, name, 0))


def _home(schema: Schema, key: str) -> str | None:
    homes = (path[:-1] for path, _ in settings(schema) if path[-1] == key and 0 not in path)
    home = min(homes, key=len, default=None)
    if home is None:
        return None
    if home:
        return f"`{setting(home)}`"
    return "the recipe's top level, without indentation"


def explain(document: Document, path: Path_, error: ValidationError) -> tuple[str, str]:
    rule = error.validator
    allowed = error.validator_value
    value = error.instance
    part = error.schema
    name = f"`{_name(path)}`"
    means = part.get("description", "")
    if "default" in part:
        default = f", or delete the line to use the default, `{part['default']}`"
    else:
        default = ""
    if rule == "type":
        if isinstance(allowed, str):
            kind = allowed
        else:
            kind = allowed[0]
        return of_another_kind(kind, value, part, name, default, document.written(path))
    if rule in ("enum", "const"):
        if rule == "enum":
            choices = allowed
        else:
            choices = [allowed]
        hint = f"Use {listed(choices, 'or')}. {did_you_mean(str(value), map(str, choices))}"
        return f"{name} cannot be `{value}`.", hint.rstrip()
    if rule == "pattern":
        return not_of_the_form(value, part, name)
    if rule in BOUNDS:
        bound = BOUNDS[rule].format(f"{allowed:,}")
        return f"{name} must be {bound}, but it is {value:,}.", f"Write {bound}. {means}"
    if rule in ("minLength", "minItems"):
        if value:
            said = f"has {len(value)} entries, but needs {allowed}"
        else:
            said = "is empty"
        return (
            f"{name} {said}.",
            f"{f'Write {allowed}' if value else 'Fill it in'}. {means}".rstrip(),
        )
    if rule in ("maxLength", "maxItems"):
        if rule == "maxLength":
            unit = "characters"
        else:
            unit = "entries"
        return f"{name} has {len(value):,} {unit}. At most {allowed:,} are allowed.", "Shorten it."
    if rule == "uniqueItems":
        return f"{name} has an entry twice.", "Write each entry once."
    return f"{name} does not fit: {rule} {allowed}.", means


SHOWN = 40  # characters of a value that are shown
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def of_another_kind(
    allowed: str, value: Any, part: Schema, name: str, default: str, written: str
) -> tuple[str, str]:
    """Message and hint about a value of the wrong kind. name: in backticks; written: the value as
    the file has it."""
    kind = KINDS[allowed]
    setting = name.strip("`")
    said = f"it is {value}"
    hint = f"Write {kind}{default}."
    if value is None:
        return f"{name} has no value.", hint
    if allowed == "array":
        if isinstance(value, dict):
            said = "it has settings of its own"
        else:
            said = f"it is `{shortened(written, SHOWN)}`"
        inner = part.get("items", {}).get("type")
        shown = setting.rpartition(".")[2].partition("[")[0]
        hint = f"Write a list: each entry on its own line below `{shown}:`, with `- ` before it."
        if inner == "object":
            dash = "write `- ` before its first line, and spaces before the others"
            hint = f"Each entry of `{shown}` begins with a dash: {dash}."
        elif inner in ("integer", "number") and isinstance(value, str | int | float):
            hint = f"Write a list in brackets: `{shown}: {_bracketed(str(value))}`."
    elif isinstance(value, bool):
        said = f"`{str(value).lower()}` is a yes or no"
    elif isinstance(value, dict):
        said = "it has settings of its own"
        hint = f"Write {kind} after `{setting}:`."
        # `- How: so` is read as a setting `How`, although a text was meant.
        if allowed == "string" and len(value) == 1 and written and "\n" not in written:
            quoted = written.partition(" #")[0].rstrip().replace("\\", "\\\\").replace('"', '\\"')
            said = "YAML reads its `: ` as a setting"
            hint = f'Put quotes around the whole text: "{quoted}"'
    elif isinstance(value, list):
        said = "it is a list"
        hint = _single_hint(allowed, value, setting)
    elif isinstance(value, str):
        said = f"`{shortened(value, SHOWN)}` is text"
        if allowed in ("integer", "number"):
            if allowed == "integer":
                form = "such as 2"
            else:
                form = "with a point for decimals: 0.00005 or 5e-5"
            hint = next(
                _numbers(value.strip()),
                f"Write only {kind}, without quotes and without a unit, {form}.",
            )
        elif allowed == "boolean" and (meant := YES_OR_NO.get(value.lower())):
            hint = f"Write `{meant}`."
    elif allowed == "integer" and isinstance(value, float):
        said = f"{value:g} is not"
    elif allowed == "string" and "pattern" in part and not re.search(part["pattern"], written):
        return not_of_the_form(written, part, name)
    elif allowed == "string":
        said = f"`{written}` is a number"
        hint = f'Put quotes around it: "{written}".'
    return f"{name} must be {kind}, but {said}.", hint


def not_of_the_form(written: str, part: Schema, name: str) -> tuple[str, str]:
    """Message and hint about a text that its setting's pattern refuses."""
    message = f"{name} cannot be `{written}`."
    pattern = part["pattern"]
    amount = _AMOUNT.fullmatch(written.strip())
    if amount:
        for unit, words in tables.table("synonyms")["units"].items():
            if amount[2].lower() in words and re.search(pattern, meant := f"{amount[1]} {unit}"):
                return message, f"Write `{meant}`."
    named = hub_name(written)
    if named and re.search(pattern, named):
        return message, f"Write the name alone: `{named}`."
    full_name = tables.near_dataset(written)
    if full_name and re.search(pattern, full_name):
        return message, f"Write the whole name, with its owner: `{full_name}`."
    if part.get("examples"):
        example = f" For example: {part['examples'][0]}"
    else:
        example = ""
    return message, f"It must be {part.get('x-pattern-means', f'of the form {pattern}')}.{example}"


def _single_hint(allowed: str, value: list[Any], setting: str) -> str:
    words = ", ".join(map(str, value))
    if allowed == "object":
        return "Write its settings below it, each on a line of its own."
    if allowed == "string" and value and all(isinstance(item, str) for item in value):
        if setting in templates.SETTINGS:  # `answer: [column]` is what people write first
            text = words if "[" in words else f"[{words}]"
            return f'Text with brackets needs quotes: `{setting}: "{shortened(text, SHOWN)}"`.'
        if len(value) == 1 and setting.isidentifier():
            return f"Write it without brackets or dash: `{setting}: {shortened(words, SHOWN)}`."
    return "Write a single value, without `-` or brackets."


def _bracketed(text: str) -> str:
    return f"[{', '.join(re.split(r'[ ,;]+', text.strip()))}]"


def _numbers(text: str) -> Iterator[str]:
    as_number = reading.scalar(text)
    plain = re.sub("[\u2010-\u2015\u2212]", "-", text)
    if plain != text and isinstance(reading.scalar(plain), int | float):
        yield f"Write a plain `-`; this is another character: {plain}"
    if isinstance(as_number, int | float) and not isinstance(as_number, bool):
        yield f"Write it without quotes: {text}"
    if isinstance(tidy := reading.scalar(re.sub(r"(?<=\d)[_ ](?=\d{3})", "", text)), int | float):
        yield f"Write its digits without spaces: {tidy}"
    for known in tables.table("number-forms").values():
        found = re.fullmatch(known["form"], text)
        if found:
            number = float(found.groupdict().get("number", 0))
            words = {"listed": _bracketed(text)}
            words |= {"with_point": text.replace(",", "."), "without_commas": text.replace(",", "")}
            amounts = {"share": number / 100, "thousands": number * 1000, "powers": number * 1024}
            yield known["hint"].format(**words, **amounts, **found.groupdict())


def values(
    document: Document, path: Path_, schema: Schema, value: Any, owner: str, name: str
) -> Iterator[Problem]:
    """The mistakes in a value. schema: that of the tool that reads it, with `$defs`; path: its
    place in the document; name: its name in messages, empty for a whole file."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(value):
        # For a value that fits none of several forms: the error of the form that it is closest to.
        while error.context:
            inner = max(error.context, key=lambda inner: len(inner.absolute_path))
            if len(inner.absolute_path) == len(error.absolute_path) and inner.validator in (
                "type",
                "enum",
                "const",
            ):
                break
            error = inner
        place = (*path, *error.absolute_path)
        called = ".".join(map(str, (*filter(None, (name,)), *error.absolute_path)))
        if error.validator == "additionalProperties":
            known = error.schema["properties"]
            for key in error.instance.keys() - known.keys():
                yield unknown_to(document, (*place, key), known, f"`{called}`" if called else owner)
        elif error.validator == "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            yield document.problem(
                place, f"`{called}` lacks {listed(missing)}.", f"{owner} needs it."
            )
        else:
            value = error.instance
            written = shortened(
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), SHOWN
            )
            forms = list(dict.fromkeys(_accepted(error.schema, schema["$defs"])))
            either = " or ".join(filter(None, (", ".join(forms[:-1]), *forms[-1:])))
            hint = f"{owner} accepts {either} there."
            if len(forms) > MOST_FORMS:
                hint = f"{did_you_mean(written, [form.strip('`') for form in forms])}{owner} accepts {len(forms)} values there."
            yield document.problem(place, f"`{called}` cannot be `{written}`.", hint)


def _accepted(part: Schema, definitions: Schema) -> Iterator[str]:
    if "$ref" in part:
        part = definitions[part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part:
        for choice in part["anyOf"]:
            yield from _accepted(choice, definitions)
    elif "enum" in part or "const" in part:
        yield from (f"`{choice}`" for choice in part.get("enum", [part.get("const")]))
    else:
        bounds = [text.format(part[name]) for name, text in BOUNDS.items() if name in part]
        for kind in [part["type"]] if isinstance(part.get("type"), str) else part.get("type", []):
            if kind != "null":
                yield " ".join([part.get("x-pattern-means", KINDS[kind]), *bounds])


def unknown_to(document: Document, path: Path_, known: Schema, owner: str) -> Problem:
    """The problem with a setting that its engine does not have."""
    near = nearest(str(path[-1]), known)
    axolotls = owner.startswith("Axolotl")
    if axolotls:
        reader = "Axolotl's own documentation"
    else:
        reader = "the documentation of the tool that reads it"
    if near:
        hint = f"Did you mean `{near}`?"
    else:
        hint = f"Its settings are in {reader}."
    return document.problem(path, f"{owner} has no setting `{path[-1]}`.", hint, key=True)
