"""Fields: the form of a recipe on the page, a section at a time, each setting with what it means and what is wrong with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import ui

from runner.parts.editor.form import Field, Section, sections
from runner.recipe.document import Document, Path_
from runner.recipe.reading import scalar
from runner.tools.problem import Problem


class Form:
    """Shows one section at a time. write: is told of a setting and its new value, None where the field was emptied."""

    def __init__(self, write: Callable[[Path_, Any], Awaitable[None]]) -> None:
        self.write = write
        self.document: Document | None = None
        self.sections: list[Section] = []
        self.wrong: dict[Path_, str] = {}
        self.names: dict[str, Any] = {}
        # What is on the page: of which section, its fields with what they show.
        self.shown = ""
        self.fields: dict[Path_, tuple[Field, Any]] = {}
        self.unread = ui.label("The form is back when the text can be read.").classes("recipe-says")
        with ui.row().classes("recipe-form"):
            self.side = ui.column().classes("recipe-sections")
            self.panel = ui.column().classes("recipe-fields")
        self.chosen = ""

    def show(self, document: Document | None, problems: Sequence[Problem]) -> None:
        """The form of a document; of a text that cannot be read what was there stays, and cannot be changed."""
        self.panel.set_visibility(document is not None)
        self.unread.set_visibility(document is None)
        if document is None:
            return
        self.document, self.sections = document, sections(document)
        lines = {place.line: path for path, place in (*document.values.items(), *document.keys.items())}
        self.wrong = {lines[one.line]: one.message for one in problems if one.severity == "error" and one.line in lines}
        if [one.name for one in self.sections] != list(self.names):
            self.build_names()
        self.mark_names()
        if self.section.name != self.shown or [field.path for field in self.section.fields] != list(self.fields):
            self.build()
        else:
            self.refresh()

    @property
    def section(self) -> Section:
        return next((one for one in self.sections if one.name == self.chosen), self.sections[0])

    def build_names(self) -> None:
        self.side.clear()
        with self.side:
            self.names = {
                one.name: ui.button(one.title, on_click=lambda name=one.name: self.choose(name), color=None).props(
                    "flat dense no-caps align=left"
                )
                for one in self.sections
            }

    def mark_names(self) -> None:
        """Which section is shown, which are left out, and in which something is wrong."""
        for one in self.sections:
            wrong = any(path[: len(field.path)] == field.path for field in one.fields for path in self.wrong)
            looks = {
                "recipe-section": True,
                "recipe-chosen": one is self.section,
                "recipe-left-out": not any(field.value is not None for field in one.fields),
                "recipe-bad": wrong,
            }
            self.names[one.name].classes(replace=" ".join(look for look, holds in looks.items() if holds))

    def choose(self, name: str) -> None:
        self.chosen = name
        self.mark_names()
        self.build()

    def build(self) -> None:
        self.shown, self.fields = self.section.name, {}
        self.panel.clear()
        with self.panel:
            ui.label(self.section.says.split("\n\n")[0]).classes("recipe-says")
            for field in self.section.fields:
                self.fields[field.path] = (field, self._element(field))
            if self.section.in_text:
                ui.label(f"In the text alone: {', '.join(self.section.in_text)}.").classes("recipe-says")
        self.refresh()

    def refresh(self) -> None:
        """What each field shows, from the document; a field that shows it already is left alone, with what is typed there."""
        for field in self.section.fields:
            known, element = self.fields[field.path]
            self.fields[field.path] = (field, element)
            if field.value != known.value or element.value is None:
                element.set_value(_shown(field))
            element.error = self.wrong.get(field.path)

    def _element(self, field: Field) -> Any:
        if field.kind in ("choice", "yes"):
            element = self._choice(field)
        else:
            element = (ui.textarea if field.kind == "lines" else ui.input)(field.title, value=_shown(field))
            for event in ("blur", *(() if field.kind == "lines" else ("keydown.enter",))):
                element.on(event, lambda path=field.path: self._typed(path))
        hint = f"{field.name}, one a line" if field.kind == "lines" else field.name
        if field.kind == "lines":
            element.props("autogrow rows=1")
        element.props(f'dense outlined hide-bottom-space hint="{_quoted(hint)}"').classes("recipe-field")
        if field.default:
            element.props(f'placeholder="{_quoted(field.default)}" stack-label')
        with element:
            ui.tooltip("").classes("recipe-meaning").props("delay=500 max-width=24rem").text = field.says.replace(
                "`", ""
            )
        return element

    def _choice(self, field: Field) -> Any:
        if field.kind == "yes":
            options: dict[Any, str] = {True: "true", False: "false"}
        else:
            options = {value: f"{value}   {said}" if said else value for value, said in field.choices.items()}
        if field.value is not None and field.value not in options:
            options[field.value] = str(field.value)
        more = {"with_input": True, "new_value_mode": "add-unique"} if field.free and field.kind == "choice" else {}
        return ui.select(
            options,
            label=field.title,
            value=field.value if field.value in options else None,
            clearable=True,
            on_change=lambda event, path=field.path: self._set(path, event.value),
            **more,
        ).props("options-dense")

    async def _typed(self, path: Path_) -> None:
        """What was typed in a field, as the kind of value that it takes, where it is one; check says where it is none."""
        field, element = self.fields[path]
        text = str(element.value or "")
        if text == _shown(field):
            return
        if field.kind == "lines":
            await self._set(path, [line.strip() for line in text.split("\n") if line.strip()] or None)
        else:
            await self._set(path, (text if field.kind == "text" else scalar(text.strip())) if text.strip() else None)

    async def _set(self, path: Path_, value: Any) -> None:
        if value != self.fields[path][0].value:
            await self.write(path, value)


def _shown(field: Field) -> Any:
    """A value as its field holds it."""
    if field.kind in ("choice", "yes"):
        return field.value
    if field.value is None:
        return ""
    if field.kind == "lines" and isinstance(field.value, list):
        return "\n".join(map(str, field.value))
    return str(field.value)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'").replace("\n", " ")
