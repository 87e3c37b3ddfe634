"""Page: a recipe as text and as a form, with what is wrong, what it will need and what it will see. It shows; others judge."""

from pathlib import Path
from typing import Any

from nicegui import background_tasks, run, ui

from runner.check import batch
from runner.parts.editor import judging
from runner.parts.editor.form import Form, changed
from runner.parts.editor.judging import ChangedElsewhere, Judged, Opened
from runner.parts.editor.panes import BLUE, RehearsalPane, RowsPane, Text, VerdictPane
from runner.parts.editor.rehearsing import Rehearsal
from runner.recipe import reading
from runner.recipe.document import Path_
from runner.recipe.reading import START
from runner.tools.problem import Stop

HERE = Path(__file__).parent
# Seconds between two looks at a rehearsal.
LOOK = 0.3
# How often a form's change is made anew where somebody types at the same time.
TRIES = 20
TYPED = "The text has changed meanwhile, and nothing is written over it. Do it again."


def opened(path: Path) -> tuple[Path, Path]:
    """The folder whose recipes are edited, and the one that is shown first. Raises Stop where there is none."""
    if not path.is_dir():
        Opened(path)
        return path.parent, path
    if not (known := batch.within(path)):
        raise Stop(f"There is no recipe in `{path}`.", START)
    return path, known[0]


class Page:
    """One tab of a browser."""

    def __init__(self, folder: Path, file: Path, rehearsal: Rehearsal) -> None:
        self.folder, self.rehearsal = folder, rehearsal
        self.file = Opened(file)
        self.judged = Judged(None, None, [])
        # A text that is typed while another is judged is judged next, and none between.
        self.typed = self.done = 0
        self.judging = False

    @property
    def unsaved(self) -> bool:
        return self.text.value != self.file.known

    def build(self) -> None:
        ui.add_css(HERE / "page.css")
        ui.colors(primary=BLUE)
        with ui.header().classes("recipe-header"):
            self._build_header()
        with ui.element("div").classes("recipe-split"):
            with ui.column().classes("recipe-left"):
                self.text = Text(self.file.known, self.changed, self.write)
            with ui.column().classes("recipe-right"):
                self._build_right()
        self.rehearsal.watch()
        ui.context.client.on_delete(self.rehearsal.leave)
        ui.timer(0, self.changed, once=True)
        ui.timer(LOOK, self.look)

    def _build_header(self) -> None:
        ui.label("recipe edit").classes("recipe-title")
        known = {str(file): file.name for file in {*batch.within(self.folder), self.file.path}}
        ui.select(known, value=str(self.file.path), on_change=self.choose).props(
            "dense borderless dark options-dense"
        ).classes("recipe-file")
        self.state = ui.label().classes("recipe-state")
        ui.space()
        self._button("Save", "save", self.save, "Write the text into the file").classes("recipe-save")
        self._button("Check", "fact_check", self.check, "Ask the hub, too, what only it can say").classes(
            "recipe-check"
        )
        self.rehearse_button = self._button(
            "Rehearse", "play_arrow", self.rehearse, "The whole way on this machine, with a tiny model"
        ).classes("recipe-rehearse")
        self._button("Report", "article", self.show_report, "The latest run of this recipe as a page").classes(
            "recipe-report"
        )

    def _button(self, text: str, icon: str, does: Any, tells: str) -> Any:
        return ui.button(text, icon=icon, on_click=does).props("flat no-caps color=white dense").tooltip(tells)

    def _build_right(self) -> None:
        self.verdict = VerdictPane(self.changed)
        with ui.tabs().props("dense align=left no-caps").classes("recipe-tabs") as self.tabs:
            form, data, rehearsal = ui.tab("Form"), ui.tab("Data"), ui.tab("Rehearsal")
        with ui.tab_panels(self.tabs, value=form).classes("recipe-panels"):
            with ui.tab_panel(form):
                self.form = Form(self.write)
            with ui.tab_panel(data):
                RowsPane(lambda: self.judged.recipe)
            with ui.tab_panel(rehearsal):
                self.live = RehearsalPane(self.rehearsal)

    # What is typed, and what follows from it.

    async def changed(self) -> None:
        """Judges the text as it stands, and once more where it changes meanwhile."""
        self.typed += 1
        if self.judging:
            return
        self.judging = True
        try:
            while self.done != self.typed:
                number = self.typed
                self.show_state()
                self.judged, verdict = await run.io_bound(
                    judging.whole, self.text.value, self.file.path, self.verdict.price
                )
                self.verdict.show(verdict)
                self.text.show(self.judged.problems)
                self.form.show(self.judged.document, self.judged.problems)
                self.done = number
        finally:
            self.judging = False

    def show_state(self) -> None:
        """What is not saved is said, and asked about before the tab closes."""
        said = "unsaved changes" if self.unsaved else "saved"
        if said != self.state.text:
            self.state.text = said
            self.text.call("ask_before_leaving", self.unsaved)

    async def write(self, path: Path_, value: Any) -> None:
        """Changes a setting in the text as it stands, whatever is typed meanwhile; None takes it away."""
        try:
            for _ in range(TRIES):
                document = reading.parse(str(self.file.path), self.text.value)
                if await self.text.put(changed(document, path, value)):
                    return
            raise Stop(TYPED)
        except Stop as stop:
            _tell(stop)

    # The buttons.

    async def choose(self, event: Any) -> None:
        if event.value == str(self.file.path):
            return
        try:
            if self.unsaved:
                raise Stop("Save first, or undo your changes: another file would take their place.")
            before, self.file = self.file, Opened(Path(event.value))
            if not await self.text.put(self.file.known):
                self.file = before
                raise Stop(TYPED)
        except Stop as stop:
            _tell(stop)
            event.sender.set_value(str(self.file.path))

    def save(self) -> bool:
        """Writes the text into the file, where nobody else has; whether that was done."""
        return self._save(over=False)

    def _save(self, over: bool) -> bool:
        try:
            self.file.save(self.text.value, over)
        except ChangedElsewhere as changed:
            self.offer_both(changed.text)
            return False
        except Stop as stop:
            _tell(stop)
            return False
        self.show_state()
        ui.notify(f"{self.file.path.name} is saved.", type="positive", timeout=1500)
        return True

    def offer_both(self, theirs: str | None) -> None:
        """Asks which of two texts is to stay: nothing is written before the answer."""

        def mine() -> None:
            dialog.close()
            self._save(over=True)

        async def other() -> None:
            dialog.close()
            try:
                if not await self.text.put(self.file.read()):
                    raise Stop(TYPED)
            except Stop as stop:
                _tell(stop)
            self.show_state()

        with ui.dialog() as dialog, ui.card().classes("recipe-both"):
            what = "has been changed by another program" if theirs is not None else "is there no more"
            ui.label(f"{self.file.path.name} {what} since it was opened. Nothing is written yet.")
            with ui.row():
                ui.button("Write mine over it", on_click=mine).props("no-caps outline")
                if theirs is not None:
                    ui.button("Take the file's text", on_click=other).props("no-caps outline")
                ui.button("Leave both", on_click=dialog.close).props("no-caps flat")
        dialog.open()

    async def check(self) -> None:
        """Asks the hub, too; what it says stays until the text changes."""
        number = self.typed
        judged = await run.io_bound(judging.judge, self.text.value, self.file.path, True)
        if number != self.typed:
            return
        self.judged = judged
        self.text.show(judged.problems)
        if judged.errors:
            ui.notify("Something is wrong; below the text stands what.", type="negative")
        elif judged.problems:
            ui.notify("No errors; below the text stands what else is to be known.", type="info")
        else:
            ui.notify("No errors, and nothing that the hub has against it.", type="positive")

    def show_report(self) -> None:
        document = self.judged.document
        name = str(document.data.get("name", "")) if document else ""
        ui.navigate.to(f"/report?name={name}", new_tab=True)

    def rehearse(self) -> None:
        """Begins a rehearsal of what is saved, or stops the one that runs."""
        if self.rehearsal.running:
            self.rehearsal.stop()
            return
        if self.judged.recipe is None:
            ui.notify("Mend what is wrong first.", type="warning")
            return
        if self.unsaved and not self.save():
            return
        self.tabs.value = "Rehearsal"
        background_tasks.create(self.rehearsal.run(self.file.path))

    def look(self) -> None:
        saves = "Save and rehearse" if self.unsaved else "Rehearse"
        self.rehearse_button.text = "Stop" if self.rehearsal.running else saves
        self.live.look()


def _tell(stop: Stop) -> None:
    ui.notify(stop.text, type="warning", multi_line=True)
