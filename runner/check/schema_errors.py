"""Explains the errors of a JSON Schema validator to the author of a recipe."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.catalog import Schema, tables
from runner.recipe import reading, templates
from runner.recipe.document import Document, Path_, dotted, setting_name
from runner.recipe.stages import STAGES
from runner.tools import packaged
from runner.tools.problem import Problem, counted, did_you_mean, listed, nearest, setting, shortened
from runner.tools.text import hub_name

if TYPE_CHECKING:
    from jsonschema import ValidationError

_TABLE = packaged.toml(__file__, "schema_errors.toml")
BOUNDS = _TABLE["bounds"]
KINDS = _TABLE["kinds"]
YES_OR_NO = _TABLE["yes-or-no"]
# The names of checks in reports, by the schema's keyword.
CHECKS = {
    "type": "wrong-kind",
    "enum": "not-a-choice",
    "const": "not-a-choice",
    "pattern": "wrong-form",
    **dict.fromkeys(BOUNDS, "out-of-range"),
    **dict.fromkeys(("minLength", "minItems"), "too-short"),
    **dict.fromkeys(("maxLength", "maxItems"), "too-long"),
    "uniqueItems": "entry-twice",
}
MOST_FORMS = 12  # the most accepted forms that a hint lists


def problems(
    document: Document, schema: Schema, errors: Sequence[ValidationError]
) -> tuple[list[Problem], set[str]]:
    """The Problems behind validation errors: one for each unknown setting or misplaced section, and
    one for all missing ones. Also the sections whose opening line is missing, so that their lines
    are in another section."""
    collected: list[Problem] = []
    unopened: set[str] = set()
    lacking: dict[Path_, ValidationError] = {}
    value_errors: list[ValidationError] = []
    for error in errors:
        if error.validator == "additionalProperties":
            collected += _unknown_settings(document, schema, error, unopened)
        elif error.validator == "required":
            # The validator has an error for each missing setting.
            lacking[tuple(error.absolute_path)] = error
        else:
            value_errors.append(error)
    for path, error in lacking.items():
        collected += _missing_settings(document, path, error, unopened)
    collected += _wrong_values(document, value_errors, unopened)
    return collected, unopened


def _wrong_values(
    document: Document, errors: Sequence[ValidationError], unopened: set[str]
) -> Iterator[Problem]:
    """One Problem for each value that is refused."""
    of_another_kind = {tuple(error.absolute_path) for error in errors if error.validator == "type"}
    for error in errors:
        path = tuple(error.absolute_path)
        if path and path[0] in unopened and error.instance is None:
            continue  # its section is reported
        if path in of_another_kind and error.validator != "type":
            continue  # a value of the wrong kind gets no second Problem about its bounds
        message, hint = explain(document, path, error)
        check = CHECKS.get(error.validator, "value-refused")
        yield document.problem(path, message, hint, check=check)


def _missing_settings(
    document: Document, path: Path_, error: ValidationError, unopened: set[str]
) -> Iterator[Problem]:
    """One Problem for all settings that the section at `path` lacks."""
    properties = error.schema["properties"]
    # A misspelt setting is reported at its line.
    misspelt = [meant(key, properties) for key in error.instance if key not in properties]
    reported = {*error.instance, *misspelt}
    if not path:
        reported |= unopened
    keys = [key for key in error.validator_value if key not in reported]
    if not keys:
        return
    if path:
        owner = f"`{_name(path)}`"
    else:
        owner = "The recipe"
    hints = []
    for key in keys:
        part = properties[key]
        hint = f"Add `{key}`: {part['description']}"
        example = part.get("examples", [None])[0]
        if isinstance(example, str | int | float) and example:
            hint += f" For example: `{key}: {example}`"
        hints.append(hint)
    yield document.problem(
        path, f"{owner} lacks {listed(keys)}.", "\n".join(hints), key=True, check="setting-missing"
    )


def _name(path: Path_) -> str:
    """The setting's name in messages: its last word, or inside a list the full name with the
    index."""
    if not path:
        return "recipe"
    in_list = any(isinstance(part, int) for part in path)
    return setting(path if in_list else path[-1:])


def _unknown_settings(
    document: Document, root: Schema, error: ValidationError, unopened: set[str]
) -> Iterator[Problem]:
    path: Path_ = tuple(error.absolute_path)
    unknown = [key for key in error.instance if key not in error.schema["properties"]]
    header = _commented_header(document, root, path, unknown)
    if header:
        unopened.add(header.setting)
        yield header
        return
    home = _unopened_section(document, root, unknown)
    if home and (path or home in document.data):
        unopened.add(home)
        yield _not_in_its_section(document, home, path, unknown)
        return
    for key in unknown:
        yield _unknown(document, root, error.schema, path, key)


def _owner(path: Path_) -> str:
    """The section at a path, in messages."""
    if path:
        return f"`{_name(path)}`"
    return "the recipe's top level"


def _commented_header(
    document: Document, root: Schema, path: Path_, unknown: list[str]
) -> Problem | None:
    """The problem that the line that opens a section is commented out, so that its settings are in
    the section above; None if it is not."""
    place = document.keys.get((*path, unknown[0]))
    if place is None or len(unknown) < 2:
        return None
    reason = f"they belong to {_owner(path)}"
    hidden, header = reading.hidden_header(document, place.line, reason)
    if header is None or hidden not in root["properties"] or hidden in document.data:
        return None
    return replace(header, setting=hidden, check="not-in-its-section")


def _not_in_its_section(document: Document, home: str, path: Path_, unknown: list[str]) -> Problem:
    """The problem that settings of the section `home` are in another one, at `path`."""
    lines = f"`{unknown[0]}` and {counted(len(unknown) - 1, 'line')} below it"
    if home in document.data:
        message = f"{lines} belong to `{home}`, and are not indented."
        remedy = "Indent them by two spaces."
    else:
        message = f"{lines} are settings of `{home}`, but they are in {_owner(path)}."
        remedy = f"Write `{home}:` above them, at the beginning of a line."
    problem = document.problem((*path, unknown[0]), message, remedy, key=True)
    return replace(problem, setting=home, check="not-in-its-section")


def _unopened_section(document: Document, root: Schema, unknown: list[str]) -> str | None:
    """The section that has all these settings, and is missing or empty in the recipe. Two of them
    mean that the line that opens it is missing."""
    if len(unknown) < 2:
        return None
    for name, part in root.get("properties", {}).items():
        is_empty = document.data.get(name) is None
        if is_empty and set(unknown) <= part.get("properties", {}).keys():
            return str(name)
    return None


def _unknown(document: Document, root: Schema, section: Schema, path: Path_, key: str) -> Problem:
    if path:
        owner = f"`{_name(path)}`"
    else:
        owner = "a recipe"
    message = f"`{key}` is not a setting of {owner}."
    hint = section.get("x-renamed", {}).get(key) or _known_name(root, section, key)
    if not hint:
        if path:
            subject = "Its settings"
        else:
            subject = "The settings of this section"
        hint = f"{subject} are {listed(section['properties'])}."
    problem = document.problem((*path, key), message, hint, key=True, check="setting-unknown")
    # Its own name is no setting, so the rule is named after the section.
    return replace(problem, setting=setting_name(path))


def _known_name(root: Schema, section: Schema, key: str) -> str:
    """The hint at the name or the section of a setting that is unknown here; empty without any."""
    properties = section["properties"]
    called = tables.setting_called(key, properties)
    if called:
        return f"Here it is called `{called}`."
    home = _home(root, key)
    if home:
        return f"It belongs to {home}."
    entry = properties.get(STAGES, {}).get("items")
    home = entry and _home(entry, key)
    if home:
        return f"It belongs to {home} of a stage, below `{STAGES}`."
    match = nearest(key, properties)
    if match:
        return f"Did you mean `{match}`?"
    all_settings = {str(path[-1]) for path, _ in settings(root)}
    elsewhere = tables.setting_called(key, all_settings)
    if not elsewhere:
        return ""
    home = _home(root, elsewhere)
    if home:
        return f"Here it is called `{elsewhere}`, and it belongs to {home}."
    return ""


def meant(key: str, names: Iterable[str]) -> str | None:
    """The setting that an unknown name probably means: another tool's name for it, or the nearest
    spelling."""
    return tables.setting_called(key, names) or nearest(key, names)


def settings(section: Schema, path: Path_ = ()) -> Iterator[tuple[Path_, Schema]]:
    """Every setting and section of a schema, by its path, with its part of the schema; entries of a
    list have the index 0. Settings of stages are left out, because their own recipes have them."""
    for name, part in section.get("properties", {}).items():
        yield (*path, name), part
        yield from settings(part, (*path, name))
        items = part.get("items", {})
        if "x-own-recipe" not in items:
            yield from settings(items, (*path, name, 0))


def _home(schema: Schema, key: str) -> str | None:
    homes = []
    for path, _ in settings(schema):
        if path[-1] == key and 0 not in path:
            homes.append(path[:-1])
    if not homes:
        return None
    home = min(homes, key=len)
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
            required_type = allowed
        else:
            required_type = allowed[0]
        return of_another_kind(required_type, value, part, name, default, document.written(path))
    if rule in ("enum", "const"):
        if rule == "enum":
            choices = allowed
        else:
            choices = [allowed]
        near = did_you_mean(str(value), map(str, choices))
        hint = f"Use {listed(choices, 'or')}. {near}"
        return f"{name} cannot be `{value}`.", hint.rstrip()
    if rule == "pattern":
        return not_of_the_form(value, part, name)
    if rule in BOUNDS:
        bound = BOUNDS[rule].format(f"{allowed:,}")
        return f"{name} must be {bound}, but it is {value:,}.", f"Write {bound}. {means}"
    if rule in ("minLength", "minItems"):
        if value:
            complaint = f"has {len(value)} entries, but needs {allowed}"
            remedy = f"Write {allowed}"
        else:
            complaint = "is empty"
            remedy = "Fill it in"
        return f"{name} {complaint}.", f"{remedy}. {means}".rstrip()
    if rule in ("maxLength", "maxItems"):
        if rule == "maxLength":
            unit = "characters"
        else:
            unit = "entries"
        message = f"{name} has {len(value):,} {unit}. At most {allowed:,} are allowed."
        return message, "Shorten it."
    if rule == "uniqueItems":
        return f"{name} has an entry twice.", "Write each entry once."
    return f"{name} does not fit: {rule} {allowed}.", means


SHOWN = 40  # characters of a value that are shown
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def of_another_kind(
    allowed: str, value: object, part: Schema, name: str, default: str, written: str
) -> tuple[str, str]:
    """Message and hint about a value of the wrong kind. name: in backticks; written: the value as
    the file has it."""
    expected = KINDS[allowed]
    setting = name.strip("`")
    usual_hint = f"Write {expected}{default}."
    hint = ""
    if value is None:
        return f"{name} has no value.", usual_hint
    if allowed == "array":
        complaint, hint = _not_a_list(value, part, setting, written)
    elif isinstance(value, bool):
        complaint = f"`{str(value).lower()}` is a yes or no"
    elif isinstance(value, dict):
        complaint, hint = _not_a_section(allowed, value, setting, written)
    elif isinstance(value, list):
        complaint = "it is a list"
        hint = _single_hint(allowed, value, setting)
    elif isinstance(value, str):
        complaint = f"`{shortened(value, SHOWN)}` is text"
        hint = _text_hint(allowed, value)
    elif allowed == "integer" and isinstance(value, float):
        complaint = f"{value:g} is not"
    elif allowed == "string":
        if "pattern" in part and not re.search(part["pattern"], written):
            return not_of_the_form(written, part, name)
        complaint = f"`{written}` is a number"
        hint = f'Put quotes around it: "{written}".'
    else:
        complaint = f"it is {value}"
    return f"{name} must be {expected}, but {complaint}.", hint or usual_hint


def _not_a_list(value: object, part: Schema, setting: str, written: str) -> tuple[str, str]:
    """Complaint and hint about a value that must be a list."""
    if isinstance(value, dict):
        complaint = "it has settings of its own"
    else:
        complaint = f"it is `{shortened(written, SHOWN)}`"
    entry_type = part.get("items", {}).get("type")
    list_name = setting.rpartition(".")[2].partition("[")[0]
    if entry_type == "object":
        dash = "write `- ` before its first line, and spaces before the others"
        return complaint, f"Each entry of `{list_name}` begins with a dash: {dash}."
    if entry_type in ("integer", "number") and isinstance(value, str | int | float):
        brackets = _bracketed(str(value))
        return complaint, f"Write a list in brackets: `{list_name}: {brackets}`."
    return (
        complaint,
        f"Write a list: each entry on its own line below `{list_name}:`, with `- ` before it.",
    )


def _not_a_section(
    allowed: str, value: dict[str, object], setting: str, written: str
) -> tuple[str, str]:
    """Complaint and hint about a section in the place of a value."""
    # `- How: so` is read as a setting `How`, although a text was meant.
    if allowed == "string" and len(value) == 1 and written and "\n" not in written:
        text = written.partition(" #")[0].rstrip()
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        hint = f'Put quotes around the whole text: "{quoted}"'
        return "YAML reads its `: ` as a setting", hint
    return "it has settings of its own", f"Write {KINDS[allowed]} after `{setting}:`."


def _text_hint(allowed: str, value: str) -> str:
    """The hint about a text in the place of a number, or of a yes or no; empty for another kind."""
    if allowed in ("integer", "number"):
        if allowed == "integer":
            form = "such as 2"
        else:
            form = "with a point for decimals: 0.00005 or 5e-5"
        usual_hint = f"Write only {KINDS[allowed]}, without quotes and without a unit, {form}."
        return next(_numbers(value.strip()), usual_hint)
    yes_or_no = YES_OR_NO.get(value.lower())
    if allowed == "boolean" and yes_or_no:
        return f"Write `{yes_or_no}`."
    return ""


def not_of_the_form(written: str, part: Schema, name: str) -> tuple[str, str]:
    """Message and hint about a text that its setting's pattern refuses."""
    message = f"{name} cannot be `{written}`."
    pattern = part["pattern"]
    amount = _AMOUNT.fullmatch(written.strip())
    if amount:
        for unit, spellings in tables.table("synonyms")["units"].items():
            corrected = f"{amount[1]} {unit}"
            if amount[2].lower() in spellings and re.search(pattern, corrected):
                return message, f"Write `{corrected}`."
    repository = hub_name(written)
    if repository and re.search(pattern, repository):
        return message, f"Write the name alone: `{repository}`."
    full_name = tables.near_dataset(written)
    if full_name and re.search(pattern, full_name):
        return message, f"Write the whole name, with its owner: `{full_name}`."
    form = part.get("x-pattern-means", f"of the form {pattern}")
    hint = f"It must be {form}."
    if part.get("examples"):
        hint += f" For example: {part['examples'][0]}"
    return message, hint


def _single_hint(allowed: str, value: list[object], setting: str) -> str:
    joined = ", ".join(map(str, value))
    if allowed == "object":
        return "Write its settings below it, each on a line of its own."
    if allowed == "string" and value and all(isinstance(item, str) for item in value):
        if setting in templates.SETTINGS:  # `answer: [column]` is what people write first
            text = joined if "[" in joined else f"[{joined}]"
            return f'Text with brackets needs quotes: `{setting}: "{shortened(text, SHOWN)}"`.'
        if len(value) == 1 and setting.isidentifier():
            return f"Write it without brackets or dash: `{setting}: {shortened(joined, SHOWN)}`."
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
    without_groups = reading.scalar(re.sub(r"(?<=\d)[_ ](?=\d{3})", "", text))
    if isinstance(without_groups, int | float):
        yield f"Write its digits without spaces: {without_groups}"
    for number_form in tables.table("number-forms").values():
        match = re.fullmatch(number_form["form"], text)
        if match:
            groups = match.groupdict()
            number = float(groups.get("number", 0))
            yield number_form["hint"].format(
                listed=_bracketed(text),
                with_point=text.replace(",", "."),
                without_commas=text.replace(",", ""),
                share=number / 100,
                thousands=number * 1000,
                powers=number * 1024,
                **groups,
            )


def values(
    document: Document, path: Path_, schema: Schema, value: object, owner: str, name: str
) -> Iterator[Problem]:
    """The mistakes in a value. schema: that of the tool that reads it, with `$defs`; path: its
    place in the document; name: its name in messages, empty for a whole file."""
    from jsonschema import Draft202012Validator

    for error in Draft202012Validator(schema).iter_errors(value):
        closest = _of_closest_form(error)
        full_name = dotted(tuple(closest.absolute_path))
        if name:
            full_name = dotted((name, *closest.absolute_path))
        place = (*path, *closest.absolute_path)
        if closest.validator == "additionalProperties":
            properties = closest.schema["properties"]
            section = f"`{full_name}`" if full_name else owner
            for key in closest.instance.keys() - properties.keys():
                yield unknown_to(document, (*place, key), properties, section)
        elif closest.validator == "required":
            missing = [key for key in closest.validator_value if key not in closest.instance]
            message = f"`{full_name}` lacks {listed(missing)}."
            yield document.problem(place, message, f"{owner} needs it.", check="setting-missing")
        else:
            forms = list(dict.fromkeys(_accepted(closest.schema, schema["$defs"])))
            written = shortened(_as_text(closest.instance), SHOWN)
            message = f"`{full_name}` cannot be `{written}`."
            hint = _accepted_hint(owner, forms, written)
            yield document.problem(place, message, hint, check="value-refused")


def _of_closest_form(error: ValidationError) -> ValidationError:
    """For a value that fits none of several forms: the error of the form that it is closest to."""
    while error.context:
        inner = max(error.context, key=lambda inner: len(inner.absolute_path))
        is_deeper = len(inner.absolute_path) > len(error.absolute_path)
        if not is_deeper and inner.validator in ("type", "enum", "const"):
            return error
        error = inner
    return error


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _accepted_hint(owner: str, forms: list[str], written: str) -> str:
    """The accepted forms of a value; of many the nearest one, and how many there are."""
    if len(forms) > MOST_FORMS:
        near = did_you_mean(written, [form.strip("`") for form in forms])
        return f"{near}{owner} accepts {len(forms)} values there."
    either = " or ".join(forms[-1:])
    if len(forms) > 1:
        either = f"{', '.join(forms[:-1])} or {forms[-1]}"
    return f"{owner} accepts {either} there."


def _accepted(part: Schema, definitions: Schema) -> Iterator[str]:
    if "$ref" in part:
        part = definitions[part["$ref"].removeprefix("#/$defs/")]
    if "anyOf" in part:
        for choice in part["anyOf"]:
            yield from _accepted(choice, definitions)
    elif "enum" in part or "const" in part:
        for choice in part.get("enum", [part.get("const")]):
            yield f"`{choice}`"
    else:
        bounds = [text.format(part[name]) for name, text in BOUNDS.items() if name in part]
        value_types = part.get("type", [])
        if isinstance(value_types, str):
            value_types = [value_types]
        for value_type in value_types:
            if value_type != "null":
                form = part.get("x-pattern-means", KINDS[value_type])
                yield " ".join([form, *bounds])


def unknown_to(document: Document, path: Path_, names: Schema, owner: str) -> Problem:
    """The problem with a setting that its engine does not have."""
    key = str(path[-1])
    near = nearest(key, names)
    if near:
        hint = f"Did you mean `{near}`?"
    elif owner.startswith("Axolotl"):
        hint = "Its settings are in Axolotl's own documentation."
    else:
        hint = "Its settings are in the documentation of the tool that reads it."
    message = f"{owner} has no setting `{key}`."
    return document.problem(path, message, hint, key=True, check="setting-unknown")
