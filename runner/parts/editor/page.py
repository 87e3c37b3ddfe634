"""Page: a recipe as four fields, and in full as text and as a form, with its problems, its plan and
its rows."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

from nicegui import run, ui
from nicegui.awaitable_response import AwaitableResponse
from nicegui.events import UploadEventArguments

from runner.check import batch
from runner.data import RenderedExample
from runner.parts.editor import judging, uploads
from runner.parts.editor.first_fields import FirstFields, Writers
from runner.parts.editor.form import Form, changed, rewritten
from runner.parts.editor.run_process import REHEARSAL, TRAINING, RunProcess
from runner.parts.start import in_place
from runner.parts.start.drafting import ModelHere
from runner.recipe import reading
from runner.recipe.document import Document, Path_
from runner.recipe.recipe import Override, Recipe
from runner.tools.problem import Problem, Stop, counted, errors_of
from runner.tools.text import template

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

HERE = Path(__file__).parent
REHEARSE = "Run the whole recipe on this machine, with a tiny model; it takes a few minutes"
TRAIN = "Train the recipe's own model on this machine"
STOP = "Stop it; the next start continues from there"
CHAT = "Chat with the model before and after training"
REPORT = "Show the result page of this recipe's latest run"
TYPED = "The text has changed meanwhile, so nothing was written. Try again."
# Seconds without typing after which the time of training here is estimated.
PAUSE = 0.7
# The most lines of the log, and the most characters of a row, on the page.
MOST, MOST_LETTERS = 500, 1500


def opened(path: Path) -> tuple[Path, Path]:
    """The folder of recipes to edit, and the recipe to show first. Raises Stop if there is none."""
    if not path.is_dir():
        judging.Opened(path)
        return path.parent, path
    files = batch.within(path)
    if not files:
        raise Stop(f"There is no recipe in `{path}`.", reading.START)
    return path, files[0]


class Text:
    """The recipe's text and problems. changed: called after typing; write: with a setting and the
    value to set."""

    def __init__(
        self, text: str, changed: Callable[[], Any], write: Callable[[Path_, Any], Awaitable[None]]
    ) -> None:
        self.write = write
        # editor.js sets the theme that the browser prefers.
        self.editor = ui.codemirror(
            text, language="YAML", theme="githubLight", indent="  ", on_change=changed
        )
        self.editor.classes("recipe-text")
        self.below = ui.column().classes("recipe-problems")
        self.shown: Sequence[Problem] | None = None
        self.call("attach")

    @property
    def value(self) -> str:
        return str(self.editor.value)

    async def put(self, text: str) -> bool:
        """Asks the browser to write this text; returns whether it did. It refuses if somebody typed
        in the meantime. Only the browser changes the text, because it reports typing as positions
        in its own text."""
        return bool(await self.call("put", self.value, text))

    def call(self, function: str, *values: Any) -> AwaitableResponse:
        """Calls a function of editor.js; the answer can be awaited."""
        arguments = "".join(f", {json.dumps(value)}" for value in values)
        call = f"{function}(getElement({self.editor.id}){arguments})"
        code = f"import('/editor.js').then((m) => m.{call})"
        return ui.run_javascript(f"return {code}", timeout=30.0)  # seconds

    def show(self, problems: Sequence[Problem]) -> None:
        """Shows the problems of the text. Drawing takes time, so unchanged problems are not drawn
        again."""
        if problems == self.shown:
            return
        self.shown = problems
        self.call("show", [problem.as_json() | {"width": problem.width} for problem in problems])
        errors = len(errors_of(problems))
        summary = f"{counted(errors, 'error')}, {counted(len(problems) - errors, 'note')}"
        self.below.clear()
        with self.below:
            ui.label(summary).classes(f"recipe-summary {'recipe-bad' if errors else 'recipe-good'}")
            for problem in problems:
                self._show(problem)

    def _show(self, problem: Problem) -> None:
        with ui.row().classes(f"recipe-problem recipe-is-{problem.severity}") as row:
            row.on(
                "click",
                lambda: self.call("reveal", problem.line, problem.column) if problem.line else None,
            )
            ui.label(f"line {problem.line}" if problem.line else "").classes("recipe-where")
            with ui.column().classes("recipe-what"):
                ui.label(problem.message)
                ui.label(problem.hint).classes("recipe-hint")
            if problem.mends:
                setting, value = problem.mends
                button = ui.button(
                    f"Write {value}", on_click=lambda: self.write(Override(setting).path, value)
                )
                button.props("outline dense no-caps size=sm")


class RunPane:
    """Shows a rehearsal or a training; several tabs of a browser may show the same one."""

    def __init__(self, process: RunProcess) -> None:
        self.process = process
        # The command, its output and whether it runs, as this pane has shown it.
        self.seen = (-1, 0, False)
        self.number = -1
        self.lines = 0
        # Before the first command there is nothing to see.
        with ui.element("div").classes("recipe-work") as self.area:
            self.state = ui.label().classes("recipe-said")
            # The losses over steps; the first look draws them.
            self.curve = ui.echart({}).classes("recipe-curve")
            # The style sheet fills it from the bottom, so the browser follows the last line unless
            # a person scrolls up.
            with ui.element("div").classes("recipe-log"):
                self.log = ui.element("div")
        self.area.set_visibility(False)

    def look(self) -> None:
        """Shows what is new since the last look."""
        now = self.process
        now.read()
        news = (now.number, now.bytes, now.running)
        if news == self.seen:
            return
        self.seen = news
        if now.number != self.number:
            self.number = now.number
            self.lines = 0
            self.log.clear()
        with self.log:
            for line in now.lines[self.lines :][-MOST:]:
                ui.label(line)
        while len(self.log.default_slot.children) > MOST:
            self.log.remove(0)
        self.lines = len(now.lines)
        # curve.json has the chart's style.
        options = json.loads((HERE / "curve.json").read_text(encoding="utf-8"))
        options["xAxis"]["max"] = now.steps or None
        for series, points in zip(options["series"], (now.losses, now.measured), strict=True):
            series["data"] = [list(point) for point in points]
        self.curve.options.clear()
        self.curve.options.update(options)
        self.curve.update()
        if now.number:
            self.area.set_visibility(True)
            self.state.text = now.state


class Page:
    """One tab of a browser."""

    def __init__(self, folder: Path, file: Path, process: RunProcess) -> None:
        self.folder = folder
        self.process = process
        self.file = judging.Opened(file)
        self.judged = judging.JudgedText([])
        self.price: float | None = None  # of a GPU hour
        # After one check, only the latest text is checked.
        self.typed = self.done = 0
        self.judging = False
        self.closed = False
        # The last recipe whose time was estimated.
        self.estimated: Recipe | None = None

    @property
    def unsaved(self) -> bool:
        return self.text.value != self.file.known

    def build(self) -> None:
        ui.add_css(HERE / "page.css")
        ui.colors(primary="#2f76e0")  # as in curve.json
        with ui.header().classes("recipe-header"):
            self._build_header()
        writers = Writers(
            self.write, self.write_data, self.write_model, self.take_upload, self.reject_upload
        )
        self.first_fields = FirstFields(writers)
        self.errors = ui.label().classes("recipe-errors recipe-bad")
        self.errors.on(
            "click", js_handler="() => document.querySelector('.recipe-more').open = true"
        )
        self.live = RunPane(self.process)
        with ui.element("details").classes("recipe-more"):
            with ui.element("summary"):
                ui.label("More").classes("recipe-more-title")
            with ui.element("div").classes("recipe-split"):
                with ui.column().classes("recipe-left"):
                    self.text = Text(self.file.known, self.changed, self.write)
                with ui.column().classes("recipe-right"):
                    self._build_right()
        self.process.watching += 1
        ui.context.client.on_delete(self.leave)
        ui.timer(0, self.changed, once=True)
        ui.timer(0.3, self.look)  # seconds

    def _build_header(self) -> None:
        ui.label("recipe edit").classes("recipe-title")
        files = {str(file): file.name for file in {*batch.within(self.folder), self.file.path}}
        chosen = ui.select(files, value=str(self.file.path), on_change=self.choose)
        chosen.classes("recipe-file").props("dense borderless dark options-dense")
        self.state = ui.label().classes("recipe-state")
        ui.space()
        _header_button("Save", "save", "Save the recipe to its file", self.save)
        self.rehearse_button = _header_button("Rehearse", "play_arrow", REHEARSE, self.rehearse)
        self.train_button = _header_button("Train here", "model_training", TRAIN, self.train)
        self.stop_button = _header_button("Stop", "stop", STOP, self.process.stop)
        _header_button("Chat", "chat", CHAT, self.show_chat)
        _header_button("Report", "article", REPORT, self.show_report)

    def _build_right(self) -> None:
        with ui.row().classes("recipe-verdict"):
            # A single element, because every element delays the answer to a key press.
            self.plan = ui.html("", sanitize=False).classes("recipe-said-of-plan")
            with ui.column().classes("recipe-beside-plan"):
                check = ui.button("Check", icon="fact_check", on_click=self.check)
                check.props("outline no-caps dense").classes("recipe-check")
                with check:
                    ui.tooltip("Also ask the hub whether it has the model and the data sets")
                self.typed_price = ui.input("price per GPU hour").props("dense outlined")
                self.typed_price.classes("recipe-price")
        for event in ("blur", "keydown.enter"):
            self.typed_price.on(event, self.take_price)
        with ui.tabs().props("dense align=left no-caps").classes("recipe-tabs") as self.tabs:
            form = ui.tab("Form")
            data = ui.tab("Data")
        with ui.tab_panels(self.tabs, value=form).classes("recipe-panels"):
            with ui.tab_panel(form):
                self.form = Form(self.write)
            with ui.tab_panel(data):
                says = "See how the model will read the first rows of your data, with its special tokens."
                ui.label(says).classes("recipe-says")
                show = ui.button("Show three rows", on_click=self.show_rows).classes(
                    "recipe-show-rows"
                )
                show.props("outline no-caps dense")
                self.rows = ui.html("", sanitize=False).classes("recipe-rows")

    def leave(self) -> None:
        self.closed = True
        self.process.leave()

    async def changed(self) -> None:
        """Checks the text, and again if it has changed in the meantime."""
        self.typed += 1
        if self.judging:
            return
        self.judging = True
        try:
            while self.done != self.typed:
                number = self.typed
                self.show_state()
                self.judged = await _in_thread(
                    judging.judge, self.text.value, self.file.path, self.price
                )
                self.plan.content = template(HERE / "plan.html.jinja").render(
                    plan=self.judged, gib=2**30
                )
                self.typed_price.set_visibility(bool(self.judged.stages))
                self.text.show(self.judged.problems)
                self.show_errors()
                self.first_fields.show(self.judged.document, self.judged.problems)
                self.form.show(self.judged.document, self.judged.problems)
                self.done = number
        finally:
            self.judging = False
        await self.estimate()

    async def estimate(self) -> None:
        """Shows how long training takes here, and the models that can be trained here, unless
        somebody continues to type."""
        number = self.typed
        await asyncio.sleep(PAUSE)
        recipe = self.judged.recipe
        if number != self.typed or recipe is self.estimated or self.closed:
            return
        self.estimated = recipe
        if recipe is None:
            self.first_fields.show_time(())
            return
        try:
            training, models = await _in_thread(_estimates, recipe)
        except Stop:  # the check reports what is wrong
            self.first_fields.show_time(())
            return
        if number == self.typed and not self.closed:
            self.first_fields.show_time((training.sentence, *self.judged.sentences[1:2]))
            self.first_fields.show_models(models)

    def show_errors(self) -> None:
        """Says how many errors there are, because their list is under `More`."""
        count = len(errors_of(self.judged.problems))
        self.errors.set_visibility(count > 0)
        self.errors.text = f"The recipe has {counted(count, 'error')}. More shows where."

    async def take_price(self) -> None:
        typed = self.typed_price.value.strip()
        try:
            price = float(typed) if typed else None
        except ValueError:
            ui.notify("A price is a number, such as 2.50.", type="warning")
            return
        if price != self.price:
            self.price = price
            await self.changed()

    def show_state(self) -> None:
        """Shows whether the text is saved; the browser asks before a tab with unsaved text
        closes."""
        if self.unsaved:
            state = "unsaved changes"
        else:
            state = "saved"
        if state != self.state.text:
            self.state.text = state
            self.text.call("ask_before_leaving", self.unsaved)

    async def write(self, path: Path_, value: Any) -> None:
        """Changes a setting in the text, also while somebody types; None removes it."""

        async def change(document: Document) -> str:
            return changed(document, path, value)

        with _refusals_shown():
            await self._rewrite(change)

    async def write_data(self, source: str) -> None:
        """Names other data in the text, with the form and the columns that it has."""
        with _refusals_shown():
            await self._rewrite_data(source)

    async def _rewrite_data(self, source: str) -> None:
        async def change(document: Document) -> str:
            return rewritten(document, await _in_thread(in_place.other_data, document, source))

        await self._rewrite(change)

    async def write_model(self, base: str) -> None:
        """Names another model in the text, without the settings that were about the old one."""

        async def change(document: Document) -> str:
            return rewritten(document, await _in_thread(in_place.other_model, document, base))

        with _refusals_shown():
            await self._rewrite(change)

    async def _rewrite(self, change: Callable[[Document], Awaitable[str]]) -> None:
        """Puts another text in the place of the present one. change: makes it from the document.
        Raises Stop if somebody types all the time."""
        for _ in range(20):  # attempts, because somebody may type meanwhile
            document = reading.parse(str(self.file.path), self.text.value)
            if await self.text.put(await change(document)):
                return
        raise Stop(TYPED)

    async def take_upload(self, event: UploadEventArguments) -> None:
        """Copies a file from the browser into the folder `data` beside the recipe, and trains on
        it. Asks before it replaces another file."""
        event.sender.reset()  # its list would refuse the same file again
        with _refusals_shown(), TemporaryDirectory() as folder:
            name = uploads.safe_name(event.file.name)
            file = Path(folder, name)
            await event.file.save(file)
            uploads.require_size(file)
            target = self.file.path.parent / uploads.FOLDER / name
            if uploads.differs(file, target):
                answer = await self.offer_names(target)
                if answer is None:
                    return
                target = answer
            is_new = not target.exists()
            uploads.store(file, target)
            try:
                await self._rewrite_data(f"{uploads.FOLDER}/{target.name}")
            except Stop:
                if is_new:
                    target.unlink()
                raise

    def reject_upload(self) -> None:
        ui.notify(f"{uploads.TOO_LARGE}\n{uploads.COPY_IT}", type="warning", multi_line=True)

    async def offer_names(self, target: Path) -> Path | None:
        """Asks whether an upload replaces a file or gets another name; None for neither."""
        other = uploads.free_name(target)
        with ui.dialog() as dialog, ui.card().classes("recipe-both recipe-same-name"):
            ui.label(f"The folder {uploads.FOLDER} has another file with the name {target.name}.")
            with ui.row():
                for text, answer in (
                    ("Replace it", target),
                    (f"Save mine as {other.name}", other),
                ):
                    button = ui.button(text, on_click=lambda path=answer: dialog.submit(path))
                    button.props("no-caps outline")
                ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("no-caps flat")
        chosen: Path | None = await dialog
        return chosen

    async def choose(self, event: Any) -> None:
        if event.value == str(self.file.path):
            return
        with _refusals_shown():
            if self.unsaved:
                raise Stop("Save first, or undo your changes: another file would replace them.")
            before = self.file
            self.file = judging.Opened(Path(event.value))
            if await self.text.put(self.file.known):
                return
            self.file = before
            raise Stop(TYPED)
        event.sender.set_value(str(self.file.path))

    def save(self, over: bool = False) -> bool:
        """Writes the text into the file; returns whether it did. over: also over the changes of
        another program."""
        with _refusals_shown():
            if not self.file.save(self.text.value, over):
                self.offer_both()
                return False
            self.show_state()
            ui.notify(f"{self.file.path.name} was saved.", type="positive", timeout=1500)
            return True
        return False

    def offer_both(self) -> None:
        """Asks which of two texts to keep; nothing is written before the answer."""
        exists = self.file.path.is_file()

        def overwrite() -> None:
            dialog.close()
            self.save(over=True)

        async def reload() -> None:
            dialog.close()
            with _refusals_shown():
                if not await self.text.put(self.file.read()):
                    raise Stop(TYPED)
            self.show_state()

        with ui.dialog() as dialog, ui.card().classes("recipe-both"):
            if exists:
                change = "has been changed by another program"
            else:
                change = "no longer exists"
            ui.label(
                f"{self.file.path.name} {change} since you opened it. Nothing has been written yet."
            )
            with ui.row():
                ui.button("Overwrite it with my text", on_click=overwrite).props("no-caps outline")
                if exists:
                    ui.button("Use the text of the file", on_click=reload).props("no-caps outline")
                ui.button("Decide later", on_click=dialog.close).props("no-caps flat")
        dialog.open()

    async def check(self) -> None:
        """Checks with the hub too; the result stays until the text changes."""
        number = self.typed
        judged = await _in_thread(judging.judge, self.text.value, self.file.path, self.price, True)
        if number != self.typed:
            return
        self.judged = judged
        self.text.show(judged.problems)
        if errors_of(judged.problems):
            ui.notify("The recipe has errors. They are below the text.", type="negative")
        elif judged.problems:
            ui.notify("No errors; the notes are below the text.", type="info")
        else:
            ui.notify("No errors, and the hub has the model and the data.", type="positive")

    async def show_rows(self) -> None:
        recipe = self.judged.recipe
        examples = dict[str, list[RenderedExample]]()
        reason = ""
        if recipe is None:
            reason = "Fix the errors to see the rows."
        else:
            try:
                examples = await _in_thread(judging.rows, recipe)
            except Stop as stop:
                reason = stop.text
        drawn = template(HERE / "rows.html.jinja", base64=b64encode)
        self.rows.content = drawn.render(examples=examples, reason=reason, most=MOST_LETTERS)

    def show_report(self) -> None:
        document = self.judged.document
        if document:
            name = str(document.data.get("name", ""))
        else:
            name = ""
        ui.navigate.to(f"/report?name={name}", new_tab=True)

    def show_chat(self) -> None:
        ui.navigate.to(f"/chat?file={quote(str(self.file.path))}", new_tab=True)

    def rehearse(self) -> None:
        """Starts a rehearsal of the saved recipe."""
        with _refusals_shown():
            self.require_startable()
            if self.unsaved and not self.save():
                return
            self.process.start(REHEARSAL, self.file.path)

    async def train(self) -> None:
        """Starts the training of the saved recipe on this machine, after a question if it takes
        more than an hour."""
        with _refusals_shown():
            recipe = self.require_startable()
            training = await _in_thread(judging.training_here, recipe)
            if training.question and not await _confirmed(training.question):
                return
            if self.unsaved and not self.save():
                return
            self.process.start(TRAINING, self.file.path)

    def require_startable(self) -> Recipe:
        """The recipe as it was last checked. Raises Stop if it has errors, or while a command
        runs."""
        self.process.require_idle()
        if self.judged.recipe is None:
            raise Stop("Fix the errors first.")
        return self.judged.recipe

    def look(self) -> None:
        if self.unsaved:
            self.rehearse_button.text = "Save and rehearse"
            self.train_button.text = "Save and train here"
        else:
            self.rehearse_button.text = "Rehearse"
            self.train_button.text = "Train here"
        self.stop_button.set_visibility(self.process.running)
        self.live.look()


async def _in_thread(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **keywords: Arguments.kwargs
) -> Result:
    """The result, never None, of a function that takes long. While the server ends, NiceGUI 3.10
    answers None and lets the page continue with it; here the page's task ends."""
    result: Result | None = await run.io_bound(function, *arguments, **keywords)
    if result is None:
        raise asyncio.CancelledError
    return result


async def _confirmed(question: str) -> bool:
    """Asks whether a long training may start."""
    with ui.dialog() as dialog, ui.card().classes("recipe-both recipe-long-training"):
        ui.label(question)
        with ui.row():
            train = ui.button("Train", on_click=lambda: dialog.submit(True))
            train.props("no-caps outline")
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("no-caps flat")
    return bool(await dialog)


def _estimates(recipe: Recipe) -> tuple[judging.TrainingHere, list[ModelHere]]:
    return judging.training_here(recipe), list(in_place.models_here(recipe))


def _header_button(text: str, icon: str, tooltip: str, on_click: Callable[[], Any]) -> ui.button:
    button = ui.button(text, icon=icon, on_click=on_click).props("flat no-caps color=white dense")
    with button.classes(f"recipe-{text.lower().replace(' ', '-')}"):
        ui.tooltip(tooltip)
    return button


@contextmanager
def _refusals_shown() -> Iterator[None]:
    """Shows a refusal in the block as a notice, and ends the block."""
    try:
        yield
    except Stop as stop:
        ui.notify(stop.text, type="warning", multi_line=True)
