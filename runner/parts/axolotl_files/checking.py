"""The faults of an Axolotl file, by Axolotl's own schema and validation, without importing
Axolotl."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner import catalog
from runner.check import schema_errors
from runner.check.rules import AXOLOTL, BELOW_ZERO
from runner.recipe.document import Document, Path_, applies, named, value_at
from runner.recipe.reading import scalar
from runner.tools import packaged
from runner.tools.problem import Problem, nearest

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
    problems_by_path = list(_settings(document))
    refused = [problem for path, problem in problems_by_path if path is None]
    return [*refused, *contradictions(document)], {
        path: problem for path, problem in problems_by_path if path is not None
    }


# A problem, and the path of the line if Axolotl drops it; None if it refuses the line.
Found = tuple[Path_ | None, Problem]


def _settings(document: Document) -> Iterator[Found]:
    schema = catalog.axolotl_settings()
    plugins = loaded(document)
    plugin_of = {key: name for name, settings in schema["plugins"].items() for key in settings}
    available = schema["properties"] | {
        key: schema["plugins"][name][key] for key, name in plugin_of.items() if name in plugins
    }
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
    name = ".".join(map(str, path))
    value = as_axolotl_reads(document, path, value)
    if isinstance(value, int | float) and value < 0 and path[0] not in BELOW_ZERO:
        yield None, document.problem(path, f"`{name}` cannot be `{value:g}`.", "Write 0 or more.")
    elif path == ("fsdp_config",) and isinstance(value, dict):
        yield from _section(document, path, definitions["FSDPConfig"]["properties"], value)
    elif path[0] in DATA_SETS and len(path) == 1 and isinstance(value, list):
        parts: dict[str, list[catalog.Schema]] = {}
        for definition in table()["data_sets"]:
            for key, schema in definitions[definition]["properties"].items():
                parts.setdefault(key, []).append(schema)
        schemas = {key: {"anyOf": forms} for key, forms in parts.items()}
        for index, entry in enumerate(value):
            yield from _section(document, (*path, index), schemas, entry)
    else:
        part = {**part, "$defs": definitions}
        problems = list(schema_errors.values(document, path, part, value, AXOLOTL, name))
        # Axolotl turns texts and switches into numbers where it needs numbers.
        if problems and list(
            schema_errors.values(document, path, part, _as_numbers(value), AXOLOTL, name)
        ):
            yield from ((None, problem) for problem in problems)


def _section(
    document: Document, path: Path_, schemas: Mapping[str, catalog.Schema], value: object
) -> Iterator[Found]:
    """The problems of settings in a section. schemas: of each; FSDP's also have old names, with
    `fsdp_` before them."""
    if not isinstance(value, dict):
        yield (
            None,
            document.problem(
                path,
                "A data set of Axolotl is a section.",
                "Write `- path: …`, and `type: …` below it.",
            ),
        )
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
    if len(path) > 1:
        home = f" under `{path[0]}`"
    else:
        home = ""
    near = nearest(key, settings, cutoff=0.75)
    if near:
        remedy = f"Did you mean `{near}`?"
    else:
        remedy = "Delete the line. Axolotl's own documentation lists its settings."
    message = f"{AXOLOTL} has no setting `{key}`{home}, and drops it without a message."
    empty = value_at(document.data, path) is None
    hint = table()["called"].get(key) or remedy
    return path, document.problem(
        path, message, hint, key=True, severity="note" if empty else "error"
    )


def _as_numbers(value: object) -> Any:
    """A value in which texts of numbers, and switches, are numbers."""
    if isinstance(value, dict):
        return {key: _as_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_numbers(item) for item in value]
    if isinstance(value, bool):
        return int(value)
    try:
        if isinstance(value, str) and float(value) is not None:
            return scalar(value.replace("_", ""))
        return value
    except ValueError:
        return value


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
    homes = {name.rpartition(".")[0]: name for name in catalog.axolotl_settings()["plugins"]}
    if isinstance(written, list):
        texts = [text for text in written if isinstance(text, str)]
    else:
        texts = []
    # Axolotl finds a plug-in's class in its package or in the package's module `plugin`.
    loaded_modules = []
    for text in texts:
        loaded_modules.append(
            next((homes[home] for home in homes if text.startswith(f"{home}.")), text)
        )
    return loaded_modules


def table(name: str = "contradictions") -> Mapping[str, Any]:
    """One of this part's tables."""
    return packaged.toml(__file__, f"{name}.toml")


def contradictions(document: Document) -> Iterator[Problem]:
    """Combinations that Axolotl's validation refuses although each line is valid by itself."""
    for row in table()["refused"]:
        if applies(document.data, row["when"], row.get("unless", ())):
            yield document.problem(named(row["when"][0]), row["says"], row["do"], key=True)
