"""A recipe as YAML with every default and computed value, each with its source in a comment."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from runner.catalog import Schema
from runner.recipe.document import Document, Path_, dotted, leaves, value_at
from runner.recipe.reading import written
from runner.recipe.recipe import Recipe
from runner.tools.settings import Section

# The column of comments, and the longest list on one line.
COLUMN, SHORT = 46, 60
DEFAULT = "default"

Line = tuple[str, str]  # a line of YAML, and its comment


class Computed(NamedTuple):
    """A value that follows from other lines of a recipe, and how it is computed."""

    value: Any
    how: str


def origin(document: Document, path: Path_) -> str:
    """Where the value at `path` comes from: a line of the file, an outside source, or the schema's
    default."""
    if document.lookup(path) is None:
        return DEFAULT
    for length in range(len(path), 0, -1):
        source = document.origins.get(path[:length])
        if source:
            return source
        place = document.keys.get(path[:length]) or document.values.get(path[:length])
        if place:
            return f"line {place.line}"
    return DEFAULT


def origins(document: Document, value: object) -> dict[str, str]:
    """Every setting that is not a section, by its dotted name, and where its value comes from."""
    return {dotted(path): origin(document, path) for path, _ in leaves(value, bool)}


def as_yaml(recipe: Recipe, schema: Schema, computed: Mapping[Path_, Computed]) -> str:
    """The same recipe with every default, in the schema's order. Computed values without a line are
    comments."""
    stages = [stage.settings for stage in recipe.stage_recipes.values()]
    writer = _Writer(recipe.document, computed, stages)
    lines = []
    for text, comment in writer.section(recipe.settings.plain(), schema, (), ""):
        if comment:
            # The name of a source may have several lines.
            lines.append(f"{text:<{COLUMN - 2}}  # {' '.join(comment.split())}\n")
        else:
            lines.append(f"{text}\n")
    return "".join(lines)


class _Writer(NamedTuple):
    document: Document
    computed: Mapping[Path_, Computed]
    stages: Sequence[Section]

    def section(
        self, values: Mapping[str, object], schema: Schema, path: Path_, indent: str
    ) -> Iterator[Line]:
        properties: Schema = schema.get("properties", {})
        computed_keys = [str(where[-1]) for where in self.computed if where[:-1] == path]
        for key in dict.fromkeys([*properties, *values, *computed_keys]):
            setting_path = (*path, key)
            note = self.computed.get(setting_path)
            if key not in values:
                if note:
                    yield f"{indent}# {key}: {written(note.value)}", f"computed: {note.how}"
                continue
            value = values[key]
            if self.varies(setting_path, value):
                continue
            computation = ""
            if note:
                computation = f"; {note.how}: {written(note.value)}"
            part = properties.get(key, {})
            yield from self.setting(key, value, part, setting_path, indent, computation)

    def varies(self, path: Path_, value: object) -> bool:
        """Whether a stage has another default for a setting that no line gives. A line would be for
        all stages."""
        if isinstance(value, dict) or origin(self.document, path) != DEFAULT:
            return False
        return any(value_at(stage, path) not in (None, value) for stage in self.stages)

    def setting(
        self, key: str, value: object, schema: Schema, path: Path_, indent: str, computation: str
    ) -> Iterator[Line]:
        head = f"{indent}{written(key)}:"
        comment = origin(self.document, path) + computation
        inner_indent = f"{indent}  "
        if isinstance(value, dict):
            inner = list(self.section(value, schema, path, inner_indent))
            texts = (text.lstrip() for text, _ in inner)
            if not all(text.startswith("#") for text in texts):
                yield head, ""
            elif inner or comment != DEFAULT:
                yield f"{head} {{}}", comment
            yield from inner
        elif isinstance(value, list) and not _fits_line(value):
            yield head, ""
            items = schema.get("items", {})
            for index, item in enumerate(value):
                yield from self.item(item, items, (*path, index), inner_indent)
        elif isinstance(value, str) and _fits_block(value):
            sign = "|" if value.endswith("\n") else "|-"
            yield f"{head} {sign}", comment
            for text in value.removesuffix("\n").split("\n"):
                yield f"{inner_indent}{text}".rstrip(), ""
        else:
            yield f"{head} {written(value)}", comment

    def item(self, value: object, schema: Schema, path: Path_, indent: str) -> Iterator[Line]:
        if not isinstance(value, dict):
            yield f"{indent}- {written(value)}", origin(self.document, path)
            return
        start = f"{indent}- "
        for text, comment in self.section(value, schema, path, f"{indent}  "):
            yield start + text[len(start) :], comment
            start = ""


def _fits_line(items: list[object]) -> bool:
    if any(isinstance(item, dict) for item in items):
        return False
    return len(written(items)) <= SHORT


def _fits_block(text: str) -> bool:
    """Whether a text of several lines stays the same as a block scalar, which changes indentation
    and some spaces."""
    lines = text.removesuffix("\n").split("\n")
    if len(lines) < 2 or not lines[-1] or lines[0].startswith(" ") or not lines[0]:
        return False
    return all(line.isprintable() and line == line.rstrip() for line in lines)
