"""The four fields that the page begins with: data, model, passes and questions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui
from nicegui.events import UploadEventArguments

from runner.parts.editor import uploads
from runner.parts.editor.form import Field, FieldElements, errors_by_path, field_of
from runner.parts.start.drafting import ModelHere
from runner.recipe import units
from runner.recipe.document import Document, Path_
from runner.recipe.stages import PRETRAIN, STAGES, TECHNIQUE
from runner.tools.problem import Problem

SOURCE, HUB, SUBSET = ("data", "path"), ("data", "hub"), ("data", "subset")
MODEL, PASSES, QUESTIONS = ("model", "base"), ("train", "epochs"), ("demo", "questions")


@dataclass(frozen=True)
class Writers:
    """What the fields call with what a person enters. setting: with its path and its value; data:
    with a file or a data set; model: with its name; upload: with a file; reject: after a file that
    is too large."""

    setting: Callable[[Path_, Any], Awaitable[None]]
    data: Callable[[str], Awaitable[None]]
    model: Callable[[str], Awaitable[None]]
    upload: Callable[[UploadEventArguments], Awaitable[None]]
    reject: Callable[[], None]


class FirstFields:
    """Shows those of the four fields that a recipe's scenario has."""

    def __init__(self, writers: Writers) -> None:
        self.writers = writers
        self.elements = FieldElements(writers.setting)
        self.area = ui.element("div").classes("recipe-first")
        # The settings whose fields are drawn, and the elements that are not a form's.
        self.drawn: list[Path_] | None = None
        self.data: Any = None
        self.model: Any = None
        self.time: Any = None
        self.source = ""
        self.writing = ""
        self.base = ""
        self.models: dict[str, str] = {}

    def show(self, document: Document | None, problems: Sequence[Problem]) -> None:
        """Shows a document's values. While the text cannot be read, the last ones stay."""
        if document is None:
            return
        fields = fields_of(document)
        if list(fields) != self.drawn:
            self._draw(fields)
        errors = errors_by_path(document, problems)
        for path in (PASSES, QUESTIONS):
            if path in fields:
                self.elements.show(fields[path], errors.get(path))
        if self.data is not None:
            self._show_source(source_of(document))
            self.data.error = errors.get(SOURCE) or errors.get(HUB) or errors.get(("data",))
        if self.model is not None:
            self._show_model(str(document.lookup(MODEL) or ""))
            self.model.error = errors.get(MODEL)

    def show_models(self, models: Sequence[ModelHere]) -> None:
        """Offers the models that this machine can train, each with its time."""
        self.models = {
            model.base: f"{model.base}: about {units.duration(model.seconds)} here"
            for model in models
        }
        if self.model is not None:
            self._show_model(self.base)

    def show_time(self, sentences: Sequence[str]) -> None:
        """Shows how long these passes take; none if that is unknown."""
        if self.time is not None:
            self.time.text = "\n".join(sentences)

    def _draw(self, fields: dict[Path_, Field]) -> None:
        self.drawn = list(fields)
        self.elements.fields = {}
        self.data = self.model = self.time = None
        self.models = {}
        self.area.clear()
        with self.area:
            if SOURCE in fields:
                self._draw_data(fields[SOURCE])
            if MODEL in fields:
                self._draw_model(fields[MODEL])
            if PASSES in fields:
                with ui.element("div").classes("recipe-passes"):
                    self.elements.add(fields[PASSES], "how often training goes through all rows")
                    self.time = ui.label().classes("recipe-says recipe-time")
            if QUESTIONS in fields:
                with ui.element("div").classes("recipe-questions"):
                    self.elements.add(fields[QUESTIONS], "for the model before and after training")

    def _draw_data(self, field: Field) -> None:
        with ui.element("div").classes("recipe-data"):
            self.data = ui.input(field.title).props("dense outlined hide-bottom-space")
            self.data.classes("recipe-field")
            self.data.props["hint"] = "a file beside the recipe, or OWNER/NAME on the hub"
            for event in ("blur", "keydown.enter"):
                self.data.on(event, self._take_source)
            upload = ui.upload(
                on_upload=self.writers.upload,
                on_rejected=self.writers.reject,
                max_file_size=uploads.MOST_BYTES,
                auto_upload=True,
            ).classes("recipe-uploader")
            button = ui.button("Upload", icon="upload_file", color=None)
            # The browser opens its dialog only while it handles the click itself.
            button.on("click", js_handler=f"() => getElement({upload.id}).$refs.qRef.pickFiles()")
            button.props("outline no-caps").classes("recipe-upload")
            with button:
                ui.tooltip("Copy a file of rows into the folder data, and train on it")

    def _draw_model(self, field: Field) -> None:
        with ui.element("div").classes("recipe-model"):
            self.model = ui.select({}, label=field.title).props(
                "dense outlined hide-bottom-space options-dense"
            )
            self.model.classes("recipe-field").on_value_change(self._take_model)
            self.model.props["hint"] = "the models that this machine can train in a day"
            other = ui.input("Another model").props("dense outlined hide-bottom-space")
            other.classes("recipe-field recipe-other-model")
            other.props["hint"] = "its name on the hub, or a folder"

            async def take_other() -> None:
                base = str(other.value or "").strip()
                if base:
                    other.set_value("")
                    await self.writers.model(base)

            for event in ("blur", "keydown.enter"):
                other.on(event, take_other)

    def _show_source(self, source: str) -> None:
        if source != self.source or not self.data.value:
            self.data.set_value(source)
        self.source = source

    def _show_model(self, base: str) -> None:
        self.base = base
        choices = {base: base, **self.models} if base else dict(self.models)
        if choices != self.model.options:
            self.model.set_options(choices, value=base or None)
        elif self.model.value != base:
            self.model.set_value(base or None)

    async def _take_source(self) -> None:
        source = str(self.data.value or "").strip()
        # Enter also takes the cursor away, which would write the same again.
        if source and source not in (self.source, self.writing):
            self.writing = source
            await self.writers.data(source)
            self.writing = ""

    async def _take_model(self, event: Any) -> None:
        if event.value and event.value != self.base:
            await self.writers.model(event.value)


def source_of(document: Document) -> str:
    """The file or the data set that a recipe's rows come from; empty if there are several."""
    if document.lookup(SOURCE):
        return str(document.lookup(SOURCE))
    hub = str(document.lookup(HUB) or "")
    subset = document.lookup(SUBSET)
    if hub and subset:
        return f"{hub}:{subset}"
    return hub


def fields_of(document: Document) -> dict[Path_, Field]:
    """The fields that the scenario of a recipe has, in the order of the page."""
    titled = {
        "data.path": "Data",
        "model.base": "Model",
        "train.epochs": "Passes",
        "demo.questions": "Questions",
    }
    if document.lookup((STAGES, 0, TECHNIQUE)) == PRETRAIN:
        del titled["model.base"]  # the first stage makes the model
    fields = (field_of(document, name, title) for name, title in titled.items())
    return {field.path: field for field in fields if field is not None}
