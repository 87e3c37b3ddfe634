"""The faults of an Axolotl file, by Axolotl's own schema and validation, without importing
Axolotl."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner import catalog
from runner.check import schema_errors
from runner.check.rules import AXOLOTL, BELOW_ZERO
from runner.recipe.document import Document, Path_, applies, dotted, named, value_at
from runner.recipe.reading import scalar
from runner.tools import packaged
from runner.tools.problem import Problem, Severity, nearest

DATA_SETS = ("datasets", "test_datasets", "pretraining_dataset")
# Words that PyYAML, which Axolotl uses, reads as true and false, and YAML 1.2 as text.
WORDS = dict.fromkeys(("yes", "Yes", "YES", "on", "On", "ON"), True)
WORDS |= dict.fromkeys(("no", "No", "NO", "off", "Off", "OFF"), False)


def is_axolotls(document: Document) -> bool:
    """Whether a file is Axolotl's and no recipe, by its keys."""
    return "base_model" in document.data and "scenario" not in document.data


def problems(document: Document) -> list[Problem] | None:
    """Every Problem with an Axolotl file; None for any other file."""
    if not is_axolotls(document):
        return None
    refused, dropped = faults(document)
    return sorted([*refused, *dropped.values()], key=lambda problem: (problem.line, problem.column))


def faults(document: Document) -> tuple[list[Problem], dict[Path_, Problem]]:
    """The problems that Axolotl's schema and validation refuse; and, by their paths, those of lines
    that Axolotl does not know and silently drops, which are only notes if the lines are empty."""
    refused = []
    dropped = {}
    for path, problem in _settings(document):
        if path is None:
            refused.append(problem)
        else:
            dropped[path] = problem
    return [*refused, *contradictions(document)], dropped


# A problem, and the path of the line if Axolotl drops it; None if it refuses the line.
Found = tuple[Path_ | None, Problem]


def _settings(document: Document) -> Iterator[Found]:
    schema = catalog.axolotl_settings()
    plugins = loaded(document)
    plugin_of = dict[str, str]()
    available = dict(schema["properties"])
    for name, settings in schema["plugins"].items():
        plugin_of |= dict.fromkeys(settings, name)
        if name in plugins:
            available |= settings
    # A foreign plug-in may have settings of its own.
    foreign = [name for name in plugins if name not in schema["plugins"]]
    for key, value in document.data.items():
        if key in available:
            yield from _judged(document, (key,), available[key], value)
        elif key in plugin_of and value is not None:
            message = (
                f"This file does not load the plug-in that has `{key}`, so Axolotl drops the line without a message.",
                f"Add `{plugin_of[key]}` to `plugins`, or delete the line.",
            )
            yield (key,), document.problem((key,), *message, key=True)
        elif not foreign and key not in plugin_of:
            yield _dropped(document, (key,), available)


def _judged(
    document: Document, path: Path_, part: catalog.Schema, value: object
) -> Iterator[Found]:
    """The problems of a setting that Axolotl has."""
    definitions = catalog.axolotl_settings()["$defs"]
    name = dotted(path)
    value = as_axolotl_reads(document, path, value)
    if isinstance(value, int | float) and value < 0 and path[0] not in BELOW_ZERO:
        message = f"`{name}` cannot be `{value:g}`."
        yield None, document.problem(path, message, "Write 0 or more.")
    elif path == ("fsdp_config",) and isinstance(value, dict):
        yield from _section(document, path, definitions["FSDPConfig"]["properties"], value)
    elif path[0] in DATA_SETS and len(path) == 1 and isinstance(value, list):
        forms: dict[str, list[catalog.Schema]] = {}
        for definition in table()["data_sets"]:
            for key, schema in definitions[definition]["properties"].items():
                forms.setdefault(key, []).append(schema)
        schemas = {key: {"anyOf": schemas} for key, schemas in forms.items()}
        for index, entry in enumerate(value):
            yield from _section(document, (*path, index), schemas, entry)
    else:
        part = {**part, "$defs": definitions}
        problems = list(schema_errors.values(document, path, part, value, AXOLOTL, name))
        if not problems:
            return
        # Axolotl turns texts and switches into numbers where it needs numbers.
        as_numbers = _as_numbers(value)
        if list(schema_errors.values(document, path, part, as_numbers, AXOLOTL, name)):
            for problem in problems:
                yield None, problem


def _section(
    document: Document, path: Path_, schemas: Mapping[str, catalog.Schema], value: object
) -> Iterator[Found]:
    """The problems of settings in a section. schemas: of each; FSDP's also have old names, with
    `fsdp_` before them."""
    if not isinstance(value, dict):
        message = "A data set of Axolotl is a section."
        remedy = "Write `- path: …`, and `type: …` below it."
        yield None, document.problem(path, message, remedy)
        return
    for key, setting in value.items():
        if key in schemas or path != ("fsdp_config",):
            name = key
        else:
            name = key.removeprefix("fsdp_")
        if name in schemas:
            yield from _judged(document, (*path, key), schemas[name], setting)
        else:
            yield _dropped(document, (*path, key), schemas)


def _dropped(document: Document, path: Path_, settings: Iterable[str]) -> Found:
    key = str(path[-1])
    home = ""
    if len(path) > 1:
        home = f" under `{path[0]}`"
    message = f"{AXOLOTL} has no setting `{key}`{home}, and drops it without a message."
    near = nearest(key, settings, cutoff=0.75)
    if key in table()["called"]:
        hint = table()["called"][key]
    elif near:
        hint = f"Did you mean `{near}`?"
    else:
        hint = "Delete the line. Axolotl's own documentation lists its settings."
    severity: Severity = "error"
    if value_at(document.data, path) is None:
        severity = "note"
    return path, document.problem(path, message, hint, key=True, severity=severity)


def _as_numbers(value: object) -> Any:
    """A value in which texts of numbers, and switches, are numbers."""
    if isinstance(value, dict):
        return {key: _as_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_numbers(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    if not isinstance(value, str):
        return value
    try:
        float(value)
    except ValueError:
        return value
    return scalar(value.replace("_", ""))


def as_axolotl_reads(document: Document, path: Path_, value: object) -> Any:
    """A value as PyYAML reads it, for which `yes` is true and `500_000` a number."""
    if isinstance(value, dict):
        return {key: as_axolotl_reads(document, (*path, key), item) for key, item in value.items()}
    if isinstance(value, list):
        return [
            as_axolotl_reads(document, (*path, index), item) for index, item in enumerate(value)
        ]
    if not isinstance(value, str) or document.written(path) != value:
        return value
    if re.fullmatch("[-+]?[1-9][0-9_]*", value):
        return int(value.replace("_", ""))
    return WORDS.get(value, value)


def loaded(document: Document) -> list[str]:
    """The plug-ins that a file loads, by the names of the catalog; without ours."""
    written = document.data.get("plugins")
    if not isinstance(written, list):
        return []
    return [_plugin(text) for text in written if isinstance(text, str)]


def _plugin(text: str) -> str:
    """The catalog's name for a plug-in that a file loads; any other as it is written."""
    for name in catalog.axolotl_settings()["plugins"]:
        package = name.rpartition(".")[0]
        # Axolotl finds a plug-in's class in its package or in the package's module `plugin`.
        if text.startswith(f"{package}."):
            return str(name)
    return text


def table(name: str = "contradictions") -> Mapping[str, Any]:
    """One of this part's tables."""
    return packaged.toml(__file__, f"{name}.toml")


def contradictions(document: Document) -> Iterator[Problem]:
    """Combinations that Axolotl's validation refuses although each line is valid by itself."""
    for row in table()["refused"]:
        if applies(document.data, row["when"], row.get("unless", ())):
            yield document.problem(named(row["when"][0]), row["says"], row["do"], key=True)
