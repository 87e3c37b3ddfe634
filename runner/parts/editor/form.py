"""Form: the settings of a recipe as fields, from its scenario's schema; changed fields change the
text."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nicegui import ui

from runner.catalog import Schema
from runner.check import by_schema, copying
from runner.parts.editor.judging import says
from runner.recipe import reading, stages
from runner.recipe.document import Document, Path_, path_of
from runner.recipe.recipe import Override
from runner.tools.problem import Problem, Stop, setting


class Field(NamedTuple):
    """A setting that the form can change. kind: `text`, `whole`, `number`, `choice`, `yes` or
    `lines` (a list of texts); choices: the values, or the catalog's proposals, as the form shows
    them; free: whether other values are allowed. value: the recipe's, None if missing; default: as
    a recipe writes it."""

    path: Path_
    title: str
    says: str
    kind: str
    choices: Mapping[Any, str]
    free: bool
    value: Any
    default: str

    @property
    def shown(self) -> Any:
        """What its element has: a choice's value, else a text."""
        if self.choices:
            return self.value
        if self.kind == "lines" and isinstance(self.value, list):
            lines = self.value
        else:
            lines = [self.value]
        if self.value is None:
            return ""
        return "\n".join(map(str, lines))


class FormSection(NamedTuple):
    """A section of a recipe, with fields in the schema's order. in_text: its lists of sections,
    which have no field."""

    name: str
    title: str
    says: str
    fields: tuple[Field, ...]
    in_text: tuple[str, ...]


def sections(document: Document) -> list[FormSection]:
    """The sections of a recipe with a known scenario; the settings outside sections are the
    first."""
    schema = by_schema.schema(document.data["scenario"])
    top_level = {
        name: part for name, part in schema["properties"].items() if "properties" not in part
    }
    parts: dict[Path_, Schema] = {
        (): {
            "title": "The recipe",
            "markdownDescription": schema["description"],
            "properties": top_level,
        }
    }
    for name, part in schema["properties"].items():
        if part.get("properties"):
            parts[(name,)] = part
    parts |= _stage_schemas(document)
    return [_form_section(document, path, part) for path, part in parts.items()]


def _stage_schemas(document: Document) -> dict[Path_, Schema]:
    """The schema of each stage of a recipe with several, with the settings of its technique."""
    item = by_schema.part(document.data["scenario"], f"{stages.STAGES}.0")
    schemas: dict[Path_, Schema] = {}
    for name, index, stage in stages.documents(document):
        settings: dict[str, Schema] = {}
        for key, part in item["properties"].items():
            stage_part = by_schema.part(stage.data["scenario"], key)
            if key == "model":
                in_stages = {
                    model_key: model_part
                    for model_key, model_part in part["properties"].items()
                    if model_key in stage_part["properties"]
                }
                stage_part = {**part, "properties": in_stages}
            if stage_part or key in (stages.NAME, stages.TECHNIQUE):
                settings[key] = stage_part or part
        schemas[(stages.STAGES, index)] = {
            **item,
            "title": f"Stage {name}",
            "properties": settings,
        }
    return schemas


def _form_section(document: Document, path: Path_, part: Schema) -> FormSection:
    in_text = [
        setting((*path, name))
        for name, setting_schema in part["properties"].items()
        if _kind(setting_schema) is None and not setting_schema.get("properties")
    ]
    return FormSection(
        name=setting(path),
        title=part["title"],
        says=says(part),
        fields=tuple(_fields(document, path, part)),
        in_text=tuple(in_text),
    )


def changed(document: Document, path: Path_, value: Any) -> str:
    """The text with one setting changed; None removes it. Comments stay. Raises Stop if the layout
    forbids it."""
    if value is None and document.lookup(path) is None and path not in document.keys:
        return document.text
    # A missing section is written with the setting.
    while len(path) > 2 and value is not None and document.lookup(path[:-1]) is None:
        path, value = path[:-1], {path[-1]: value}
    # A section is removed with its last setting, because an empty section is invalid.
    while len(path) > 1 and value is None and len(document.lookup(path[:-1])) == 1:
        path = path[:-1]
    text = copying.faithful(document, [Override(setting(path), None, value, "the form")])
    if text is None:
        raise _not_writable(setting(path))
    return text


def rewritten(document: Document, changes: Sequence[Override]) -> str:
    """The text with several settings changed, and comments that are still true. Raises Stop if the
    layout forbids it."""
    text = copying.faithful(document, changes, copying.edited)
    if text is None:
        raise _not_writable(changes[0].setting)
    return text


def _not_writable(name: str) -> Stop:
    return Stop(f"The form cannot write `{name}` into a text like this.", "Write it in the text.")


def field_of(document: Document, name: str, title: str) -> Field | None:
    """The field for a setting, under another title; None if the scenario has no such setting."""
    scenario = document.data["scenario"]
    if not by_schema.has(scenario, name):
        return None
    return _field(document, path_of(name), by_schema.part(scenario, name), title)


def _fields(document: Document, path: Path_, part: Schema, title: str = "") -> Iterator[Field]:
    for name, setting_schema in part["properties"].items():
        setting_path = (*path, name)
        full_title = f"{title}{setting_schema['title']}"
        if setting_schema.get("properties"):
            yield from _fields(document, setting_path, setting_schema, f"{full_title} · ")
        elif setting_path != ("scenario",) and _kind(setting_schema):
            yield _field(document, setting_path, setting_schema, full_title)


def _field(document: Document, path: Path_, setting_schema: Schema, title: str) -> Field:
    field_kind = _kind(setting_schema) or "text"
    choices: dict[Any, str] = {}
    if field_kind == "yes":
        choices = {True: "true", False: "false"}
    for value in map(str, setting_schema.get("enum", ())):
        choices[value] = value
    for snippet in setting_schema.get("defaultSnippets", ()):
        body_and_description = filter(None, (snippet["body"], snippet["description"]))
        choices[snippet["body"]] = "   ".join(body_and_description)
    default = ""
    if setting_schema.get("x-default-twice"):
        default = f"twice {setting_schema['x-default-twice']}"
    elif "default" in setting_schema:
        default = reading.written(setting_schema["default"])
    return Field(
        path=path,
        title=title,
        says=says(setting_schema),
        kind=field_kind,
        choices=choices,
        free=field_kind == "choice" and "enum" not in setting_schema,
        value=document.lookup(path),
        default=default,
    )


def _kind(part: Schema) -> str | None:
    """The kind of field for a setting; None for a section, and for lists of anything but texts."""
    if part.get("items", {}).get("type") == "string":
        return "lines"
    if "enum" in part or "defaultSnippets" in part:
        return "choice"
    return {"string": "text", "integer": "whole", "number": "number", "boolean": "yes"}.get(
        part.get("type", "string")
    )


class FieldElements:
    """The elements of some fields, which write what a person enters. write: called with a setting
    and its new value, None for an empty field."""

    def __init__(self, write: Callable[[Path_, Any], Awaitable[None]]) -> None:
        self.write = write
        self.fields: dict[Path_, tuple[Field, Any]] = {}

    def add(self, field: Field, hint: str = "") -> Any:
        """Draws the element of a field where the page is being built. hint: the text below it
        instead of the setting's name."""
        hint = hint or setting(field.path)
        if field.choices:
            element = self._choice(field)
        elif field.kind == "lines":
            element = ui.textarea(field.title, value=field.shown).props("autogrow rows=1")
            hint += ", one per line"
        else:
            element = ui.input(field.title, value=field.shown).on(
                "keydown.enter", lambda: self._typed(field.path)
            )
        if not field.choices:
            element.on("blur", lambda: self._typed(field.path))
        element.props("dense outlined hide-bottom-space").classes("recipe-field")
        element.props["hint"] = hint
        if field.default:
            element.props("stack-label")
            element.props["placeholder"] = field.default
        with element:
            tooltip = ui.tooltip("").classes("recipe-meaning").props("delay=500 max-width=24rem")
            tooltip.text = field.says.replace("`", "")
        self.fields[field.path] = (field, element)
        return element

    def show(self, field: Field, error: str | None) -> None:
        """Shows a field's value in its element. An unchanged field keeps the text that somebody is
        typing there."""
        drawn, element = self.fields[field.path]
        self.fields[field.path] = (field, element)
        if field.value != drawn.value or element.value is None:
            element.set_value(field.shown)
        element.error = error

    def _choice(self, field: Field) -> Any:
        choices = dict(field.choices)
        if field.value is not None:
            choices.setdefault(field.value, str(field.value))
        free_text = {"with_input": True, "new_value_mode": "add-unique"} if field.free else {}
        element = ui.select(
            choices, label=field.title, value=field.value, clearable=True, **free_text
        )
        element.on_value_change(lambda event: self._set(field.path, event.value))
        return element.props("options-dense")

    async def _typed(self, path: Path_) -> None:
        """Writes the typed value. If it is not of the field's kind, the check of the text reports
        it."""
        field, element = self.fields[path]
        text = str(element.value or "")
        if text == field.shown:
            return
        value: Any = None
        if field.kind == "lines":
            value = [line.strip() for line in text.split("\n") if line.strip()] or None
        elif text.strip():
            if field.kind == "text":
                value = text
            else:
                value = reading.scalar(text.strip())
        await self._set(path, value)

    async def _set(self, path: Path_, value: Any) -> None:
        if value != self.fields[path][0].value:
            await self.write(path, value)


def errors_by_path(document: Document, problems: Sequence[Problem]) -> dict[Path_, str]:
    """The message of each error, by the setting in its line."""
    lines = {place.line: path for path, place in (*document.values.items(), *document.keys.items())}
    return {
        lines[problem.line]: problem.message
        for problem in problems
        if problem.severity == "error" and problem.line in lines
    }


class Form:
    """Shows one section at a time. write: as of `FieldElements`."""

    def __init__(self, write: Callable[[Path_, Any], Awaitable[None]]) -> None:
        self.sections: list[FormSection] = []
        self.wrong: dict[Path_, str] = {}
        self.names: dict[str, Any] = {}
        # The section on the page, and its fields with their elements.
        self.shown = ""
        self.elements = FieldElements(write)
        self.unread = ui.label(
            "The form shows the recipe as soon as its text is valid YAML."
        ).classes("recipe-says")
        with ui.row().classes("recipe-form"):
            self.side = ui.column().classes("recipe-sections")
            self.panel = ui.column().classes("recipe-fields")
        self.chosen = ""

    def show(self, document: Document | None, problems: Sequence[Problem]) -> None:
        """Shows a document. While the text cannot be read, the last form is hidden."""
        self.panel.set_visibility(document is not None)
        self.unread.set_visibility(document is None)
        if document is None:
            return
        self.sections = sections(document)
        self.wrong = errors_by_path(document, problems)
        if [section.name for section in self.sections] != list(self.names):
            self.side.clear()
            self.names = {}
            with self.side:
                for section in self.sections:
                    button = ui.button(
                        section.title,
                        on_click=lambda name=section.name: self.choose(name),
                        color=None,
                    )
                    self.names[section.name] = button.props("flat dense no-caps align=left")
        self.draw()

    def choose(self, name: str) -> None:
        self.chosen = name
        self.draw()

    def draw(self) -> None:
        """Marks the shown section, missing sections, and those with an error, and shows the
        document's values."""
        chosen = next(
            (section for section in self.sections if section.name == self.chosen),
            self.sections[0],
        )
        for section in self.sections:
            self._mark(section, section is chosen)
        paths = [field.path for field in chosen.fields]
        if chosen.name != self.shown or paths != list(self.elements.fields):
            self._draw_fields(chosen)
        for field in chosen.fields:
            self.elements.show(field, self.wrong.get(field.path))

    def _mark(self, section: FormSection, is_chosen: bool) -> None:
        """Sets the look of a section's button."""
        wrong_fields = (
            field
            for field in section.fields
            for path in self.wrong
            if path[: len(field.path)] == field.path
        )
        looks = {
            "recipe-section": True,
            "recipe-chosen": is_chosen,
            "recipe-left-out": all(field.value is None for field in section.fields),
            "recipe-bad": any(wrong_fields),
        }
        self.names[section.name].classes(
            replace=" ".join(look for look, holds in looks.items() if holds)
        )

    def _draw_fields(self, section: FormSection) -> None:
        self.shown = section.name
        self.elements.fields = {}
        self.panel.clear()
        with self.panel:
            ui.label(section.says.split("\n\n")[0]).classes("recipe-says")
            for field in section.fields:
                self.elements.add(field)
            if section.in_text:
                names = ", ".join(section.in_text)
                ui.label(f"You can set these only in the text: {names}.").classes("recipe-says")
