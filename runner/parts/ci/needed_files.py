"""Recipes that need a file: one that stays the same breaks, too, if its data, its lock file or its
schema changes or goes."""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from runner.check.copying import EDITOR_LINE
from runner.recipe import lock, reading
from runner.recipe.document import Document, Span, leaves
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, first_line, setting


def recipes_with(changed_files: Iterable[str], recipes: Iterable[str]) -> dict[str, str]:
    """The recipes that need one of these files, each with the first such file. changed_files:
    absolute, those that were deleted too."""
    first_changed = dict[str, str]()
    for file in changed_files:
        # A recipe that names a folder needs the files in it.
        for place in (file, *map(str, Path(file).parents)):
            first_changed.setdefault(place, file)
    needing = {}
    for recipe in recipes:
        try:
            document = reading.read(recipe)
        except Stop:
            continue  # this recipe was broken before
        for named_file in named_files(document):
            target = os.path.realpath(named_file)
            changed_file = first_changed.get(named_file) or first_changed.get(target)
            if changed_file:
                needing[recipe] = changed_file
                break
    return needing


def named_files(document: Document) -> Iterator[str]:
    """The absolute paths of all files and folders that a recipe may read. Each of its texts counts
    as one, so that a new setting needs no line here; most of them exist nowhere."""
    folder = os.path.dirname(os.path.abspath(document.file))
    yield os.path.join(folder, lock.LOCK)
    schema = schema_file(document)
    if schema:
        yield schema
        yield _definitions_of(schema)
    for _, value in leaves(document.data, bool):
        if isinstance(value, str) and value and value.isprintable():
            yield os.path.normpath(os.path.join(folder, value))


def schema_file(document: Document) -> str:
    """The absolute path of the schema that editors read for a recipe; empty without one here."""
    line = EDITOR_LINE.search(document.text)
    if not line:
        return ""
    name = line[0].partition("$schema=")[2].strip()
    if not name or "://" in name:
        return ""
    folder = os.path.dirname(os.path.abspath(document.file))
    return os.path.normpath(os.path.join(folder, name))


def _definitions_of(schema: str) -> str:
    """The file that a schema of our repository refers to; beside other schemas there is none."""
    return os.path.join(os.path.dirname(schema), packaged.DEFINITIONS)


def schema_problems(recipes: Iterable[str], changed_files: Collection[str]) -> Iterator[Problem]:
    """Schemas among the changed files with which editors cannot check a recipe any more. `recipe
    check` reads a copy of its own, and would not notice."""
    for recipe in recipes:
        try:
            document = reading.read(recipe)
        except Stop:
            continue  # the check reports it
        schema = schema_file(document)
        if schema not in changed_files and _definitions_of(schema) not in changed_files:
            continue
        reason = _why_unusable(Path(schema), document.data)
        line = EDITOR_LINE.search(document.text)
        if not reason or not line:
            continue
        number = document.text.count("\n", 0, line.start()) + 1
        yield document.problem_at(
            Span(number, 1, len(line[0])),
            f"Editors cannot check this recipe, because its schema `{os.path.relpath(schema)}` {reason}.",
            "Restore the schema. Or name another one in this line, or delete the line.",
        )


def _why_unusable(schema: Path, recipe: object) -> str:
    """Why a schema is of no use for a recipe, as the end of a sentence; empty if it is."""
    # Imported here, because only a changed schema needs them.
    from jsonschema import Draft202012Validator, SchemaError
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    # The registry fetches nothing.
    registry: Registry[Any] = Registry()
    definitions = Path(_definitions_of(str(schema)))
    try:
        content = json.loads(schema.read_text(encoding="utf-8"))
        if definitions.is_file():
            resource = DRAFT202012.create_resource(json.loads(definitions.read_text("utf-8")))
            registry = registry.with_resource(packaged.DEFINITIONS, resource)
    except FileNotFoundError:
        return "does not exist"
    except (OSError, ValueError) as error:
        return f"cannot be read ({first_line(error)})"
    try:
        Draft202012Validator.check_schema(content)
        validator = Draft202012Validator(content, registry=registry)
        refusal = next(validator.iter_errors(recipe), None)
    except (SchemaError, Unresolvable) as error:
        return f"is not a whole JSON Schema ({first_line(error)})"
    if refusal is None:
        return ""
    return f"refuses `{setting(refusal.absolute_path) or 'its settings'}`"
