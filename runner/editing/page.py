"""Page: a recipe as text and as a form, with what is wrong, what it will need and what it will see. It shows; others judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from nicegui import background_tasks, run, ui

from runner.check import finding
from runner.editing import judging
from runner.editing.fields import Form
from runner.editing.judging import Bar, Judged, Verdict
from runner.editing.opened import ChangedElsewhere, Opened
from runner.editing.rehearsing import Rehearsal
from runner.problem import Problem, Stop
from runner.recipe.overrides import Override
from runner.recipe.reading import START

HERE = Path(__file__).parent
# Seconds between two looks at a rehearsal.
LOOK = 0.3
BLUE, ORANGE, GREY = "#1f6feb", "#d97706", "#8b949e"


def opened(path: Path) -> tuple[Path, Path]:
    """The folder whose recipes are edited, and the one that is shown first. Raises Stop where there is none."""
    if not path.is_dir():
        Opened(path)
        return path.parent, path
    if not (known := finding.within(path)):
        raise Stop(f"There is no recipe in `{path}`.", START)
    return path, known[0]


def report(name: str) -> str:
    """The page of the latest run of a recipe of that name."""
    from runner.report import facts, page
    from runner.runs.run_folder import find

    try:
        return page.render([facts.of(find(name, None))])
    except Stop as stop:
        return f"<!doctype html><meta charset=utf-8><title>report</title><p>{stop.text.replace('`', '')}"


class Page:
    """One tab of a browser."""

    def __init__(self, folder: Path, file: Path, rehearsal: Rehearsal) -> None:
        self.folder, self.rehearsal = folder, rehearsal
        self.file = Opened(file)
        self.judged = Judged(None, None, [])
        # A text that is typed while another is judged is judged next, and none between.
        self.typed = self.done = 0
        self.judging = False
        self.price: float | None = None
        # Of the rehearsal: what has been shown of it.
        self.seen, self.shown_lines = -1, 0

    @property
    def unsaved(self) -> bool:
        return bool(self.text.value != self.file.known)

    def build(self) -> None:
        ui.add_css(HERE / "page.css")
        with ui.header().classes("recipe-header"):
            ui.label("recipe edit").classes("text-lg font-medium")
            known = {str(file): file.name for file in {*finding.within(self.folder), self.file.path}}
            ui.select(known, value=str(self.file.path), on_change=self.choose).props(
                "dense borderless dark options-dense"
            ).classes("recipe-file")
            self.state = ui.label().classes("recipe-state")
            ui.space()
            with ui.row().classes("gap-2"):
                self._button("Save", "save", self.save).classes("recipe-save")
                self._button("Check", "fact_check", self.check, "Ask the hub, too, what only it can say")
                self.rehearse_button = self._button(
                    "Rehearse", "play_arrow", self.rehearse, "The whole way on this machine, with a tiny model"
                ).classes("recipe-rehearse")
                self._button("Report", "article", self.show_report, "The latest run of this recipe as a page")
        with ui.splitter(value=54).classes("recipe-split") as split:
            with split.before, ui.column().classes("recipe-left"):
                self.text = ui.codemirror(
                    self.file.known, language="YAML", theme="githubLight", indent="  ", on_change=self.changed
                ).classes("recipe-text")
                self.problems = ui.column().classes("recipe-problems")
            with split.after, ui.column().classes("recipe-right"):
                self.verdict = ui.column().classes("recipe-verdict")
                with ui.tabs().props("dense align=left no-caps").classes("recipe-tabs") as self.tabs:
                    form, data = ui.tab("Form"), ui.tab("Data")
                    self.rehearsal_tab = ui.tab("Rehearsal")
                with ui.tab_panels(self.tabs, value=form).classes("recipe-panels"):
                    with ui.tab_panel(form):
                        self.form = Form(self.write)
                    with ui.tab_panel(data):
                        ui.button("Show three rows", on_click=self.show_rows).props("outline no-caps dense")
                        self.rows = ui.column().classes("recipe-rows")
                    with ui.tab_panel(self.rehearsal_tab):
                        self._build_rehearsal()
        self._call("attach")
        ui.timer(0, self.changed, once=True)
        ui.timer(LOOK, self.look)

    def _button(self, text: str, icon: str, does: Any, tells: str = "") -> Any:
        button = ui.button(text, icon=icon, on_click=does).props("flat no-caps color=white dense")
        return button.tooltip(tells) if tells else button

    def _build_rehearsal(self) -> None:
        self.said = ui.label("A rehearsal trains a tiny twin of the model on this machine, in a minute or a few.")
        self.said.classes("recipe-said")
        self.curve = ui.echart(_curve(self.rehearsal)).classes("recipe-curve")
        self.log = ui.log(max_lines=2000).classes("recipe-log")

    def _call(self, function: str, *values: Any) -> None:
        told = "".join(f", {json.dumps(value)}" for value in values)
        ui.run_javascript(f"import('/editor.js').then((m) => m.{function}(getElement({self.text.id}){told}))")

    # What is typed, and what follows from it.

    async def changed(self) -> None:
        """Judges the text as it stands, and once more where it changes meanwhile."""
        self.typed += 1
        if self.judging:
            return
        self.judging = True
        try:
            while self.done != self.typed:
                number, text = self.typed, self.text.value
                self.show_state()
                judged = await run.io_bound(judging.judge, text, self.file.path)
                self.judged = judged
                self.show_problems()
                self.form.show(judged.document, judged.problems)
                await self.show_plan()
                self.done = number
        finally:
            self.judging = False

    def show_state(self) -> None:
        self.state.text = "unsaved changes" if self.unsaved else "saved"
        ui.run_javascript(f"window.onbeforeunload = {'(e) => e.preventDefault()' if self.unsaved else 'null'}")

    def show_problems(self) -> None:
        self._call("show", [_told(problem) for problem in self.judged.problems])
        self.problems.clear()
        with self.problems:
            errors, notes = self.judged.errors, len(self.judged.problems) - self.judged.errors
            said = (
                f"{errors or 'no'} error{'' if errors == 1 else 's'}, {notes or 'no'} note{'' if notes == 1 else 's'}"
            )
            ui.label(said).classes(f"recipe-summary {'recipe-bad' if errors else 'recipe-good'}")
            for problem in self.judged.problems:
                self._problem(problem)

    def _problem(self, problem: Problem) -> None:
        with ui.row().classes(f"recipe-problem recipe-is-{problem.severity}") as row:
            row.on("click", lambda: self._call("reveal", problem.line, problem.column) if problem.line else None)
            ui.label(f"line {problem.line}" if problem.line else "").classes("recipe-where")
            with ui.column().classes("recipe-what"):
                ui.label(problem.message)
                ui.label(problem.hint).classes("recipe-hint")
            if problem.mends:
                setting, value = problem.mends
                path = Override(setting).path
                ui.button(f"Write {value}", on_click=lambda: self.write(path, value)).props(
                    "outline dense no-caps size=sm"
                )

    async def show_plan(self) -> None:
        recipe = self.judged.recipe
        verdict: Verdict | None = None
        said = "The plan is made when nothing is wrong any more."
        if recipe:
            try:
                verdict = await run.io_bound(judging.plan, recipe, self.price)
            except Stop as stop:
                said = stop.text
        self.verdict.clear()
        with self.verdict:
            if verdict is None:
                ui.label(said).classes("recipe-waiting")
                return
            for bar in verdict.bars:
                _bar(bar)
            with ui.row().classes("recipe-sentences"):
                with ui.column().classes("gap-0 flex-1"):
                    for sentence in verdict.sentences:
                        ui.label(sentence)
                price = ui.input("price of a GPU hour", value=f"{self.price:g}" if self.price else "")
                price.props("dense outlined").classes("recipe-price")
                for event in ("blur", "keydown.enter"):
                    price.on(event, lambda: self.set_price(price.value))

    async def set_price(self, text: str) -> None:
        try:
            price = float(text) if text.strip() else None
        except ValueError:
            ui.notify("A price is a number, such as 2.50.", type="warning")
            return
        if price != self.price:
            self.price = price
            await self.show_plan()

    def write(self, path: tuple[str | int, ...], value: Any) -> None:
        """Changes a setting in the text; None takes it away."""
        from runner.editing.form import changed

        if self.judged.document is None or self.judged.document.text != self.text.value:
            ui.notify("Mend the text first: its form cannot be read.", type="warning")
            return
        try:
            self.text.value = changed(self.judged.document, path, value)
        except Stop as stop:
            ui.notify(stop.text, type="warning", multi_line=True)

    # The buttons.

    def choose(self, event: Any) -> None:
        if self.unsaved:
            ui.notify("Save first, or undo your changes: another file would take their place.", type="warning")
            event.sender.set_value(str(self.file.path))
            return
        if event.value != str(self.file.path):
            try:
                self.file = Opened(Path(event.value))
            except Stop as stop:
                ui.notify(stop.text, type="negative", multi_line=True)
                event.sender.set_value(str(self.file.path))
                return
            self.text.value = self.file.known

    def save(self, over: bool = False) -> bool:
        """Writes the text into the file, where nobody else has; whether that was done."""
        try:
            self.file.save(self.text.value, over)
        except ChangedElsewhere as changed:
            self.offer_both(changed.text)
            return False
        except Stop as stop:
            ui.notify(stop.text, type="negative", multi_line=True)
            return False
        self.show_state()
        ui.notify(f"{self.file.path.name} is saved.", type="positive", timeout=1500)
        return True

    def offer_both(self, theirs: str | None) -> None:
        """Asks which of two texts is to stay: nothing is written before the answer."""

        def mine() -> None:
            dialog.close()
            self.save(over=True)

        def other() -> None:
            dialog.close()
            self.text.value = self.file.read()
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
        self.judged = await run.io_bound(judging.judge, self.text.value, self.file.path, True)
        self.show_problems()
        ui.notify(
            f"{self.judged.errors} errors." if self.judged.errors else "No errors; the hub was asked, too.",
            type="negative" if self.judged.errors else "positive",
        )

    async def show_rows(self) -> None:
        recipe, said = self.judged.recipe, "Rows are shown when nothing is wrong any more."
        shown: list[str] = []
        if recipe:
            try:
                shown = await run.io_bound(judging.rows, recipe)
                said = "Rows of this kind are no text; a rehearsal looks at them."
            except Stop as stop:
                said = stop.text
        self.rows.clear()
        with self.rows:
            for row in shown:
                ui.label(row).classes("recipe-row")
            if not shown:
                ui.label(said)

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
        self.log.clear()
        self.seen = 0
        self.tabs.value = "Rehearsal"
        background_tasks.create(self.rehearsal.run(self.file.path))

    def look(self) -> None:
        """Shows what a rehearsal has said since the last look."""
        now = self.rehearsal
        saves = "Save and rehearse" if self.unsaved else "Rehearse"
        self.rehearse_button.text = "Stop" if now.running else saves
        if now.news == self.seen:
            return
        first = self.seen <= 0
        self.seen = now.news
        if first or len(now.lines) < self.shown_lines:
            self.log.clear()
            self.shown_lines = 0
        for line in now.lines[self.shown_lines :]:
            self.log.push(line)
        self.shown_lines = len(now.lines)
        self.curve.options.clear()
        self.curve.options.update(_curve(now))
        self.curve.update()
        done = f"step {now.losses[-1][0]} of {now.steps}" if now.losses else "preparing"
        ended = "The rehearsal is done." if now.code == 0 else "The rehearsal has ended; the last lines say why."
        if now.running or now.code is not None:
            self.said.text = f"Rehearsing: {done}." if now.running else ended


def _told(problem: Problem) -> dict[str, Any]:
    return problem.as_json() | {"width": problem.width}


def _bar(bar: Bar) -> None:
    """Memory of a GPU as a line against the card's: what is needed, and between what that lies."""
    whole = max(bar.card or 0, bar.most) * 1.05
    fits = bar.card is None or bar.needed <= bar.card
    with ui.column().classes("recipe-memory"):
        of = f"of {bar.card / 2**30:.1f} GiB" if bar.card else "; nobody knows the card"
        ui.label(f"{bar.stage}: {bar.needed / 2**30:.1f} GiB {of}, {bar.gpu}")
        with ui.element("div").classes("recipe-bar"):
            kind = "recipe-fits" if fits else "recipe-too-large"
            _stretch(0, bar.needed / whole, f"recipe-needed {kind}")
            _stretch(bar.least / whole, bar.most / whole, "recipe-range")
            if bar.card:
                _stretch(bar.card / whole, bar.card / whole, "recipe-card")


def _stretch(start: float, end: float, classes: str) -> None:
    ui.element("div").classes(classes).style(f"left: {start:.2%}; width: {end - start:.2%}")


def _curve(rehearsal: Rehearsal) -> dict[str, Any]:
    def line(name: str, points: list[tuple[int, float]], colour: str, symbol: bool) -> dict[str, Any]:
        look = {"lineStyle": {"color": colour}, "itemStyle": {"color": colour}, "showSymbol": symbol, "symbolSize": 7}
        return {"name": name, "type": "line", "data": [list(point) for point in points], **look}

    return {
        "animation": False,
        "grid": {"left": 48, "right": 16, "top": 32, "bottom": 36},
        "legend": {"top": 0},
        "tooltip": {"trigger": "axis"},
        "xAxis": {
            "type": "value",
            "name": "step",
            "nameLocation": "middle",
            "nameGap": 22,
            "max": rehearsal.steps or None,
        },
        "yAxis": {"type": "value", "scale": True, "name": "loss"},
        "series": [
            line("training", rehearsal.losses, BLUE, False),
            line("validation", rehearsal.measured, ORANGE, True),
        ],
    }
