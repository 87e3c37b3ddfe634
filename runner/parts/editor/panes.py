"""Text: a recipe as it is typed, what is wrong at its lines, and below it each problem with its remedy."""

import json
from base64 import b64encode
from collections.abc import Awaitable, Callable, Sequence
from html import escape
from typing import Any

from nicegui import run, ui
from nicegui.awaitable_response import AwaitableResponse

from runner.data import RenderedExample
from runner.parts.editor import judging
from runner.parts.editor.judging import Bar, Verdict
from runner.parts.editor.rehearsing import Rehearsal
from runner.recipe.document import Path_
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Stop

# Seconds that a browser may take to answer.
ANSWER = 30.0


class Text:
    """changed: is called when somebody has typed. write: is told of a setting and the value that mends it."""

    def __init__(self, text: str, changed: Callable[[], Any], write: Callable[[Path_, Any], Awaitable[None]]) -> None:
        self.write = write
        # The theme is what the browser asks for: see editor.js.
        self.editor = ui.codemirror(text, language="YAML", theme="githubLight", indent="  ", on_change=changed)
        self.editor.classes("recipe-text")
        self.below = ui.column().classes("recipe-problems")
        self.shown: Sequence[Problem] | None = None
        self.call("attach")

    @property
    def value(self) -> str:
        return str(self.editor.value)

    async def put(self, text: str) -> bool:
        """Has the browser write this text; whether it did. It does not where somebody has typed meanwhile, who is not written over.

        The browser alone changes the text, because it tells what is typed by places in the text that it has."""
        return bool(await self.call("put", self.value, text))

    def call(self, function: str, *values: Any) -> AwaitableResponse:
        """Calls a function of editor.js, whose answer may be waited for."""
        told = "".join(f", {json.dumps(value)}" for value in values)
        code = f"import('/editor.js').then((m) => m.{function}(getElement({self.editor.id}){told}))"
        return ui.run_javascript(f"return {code}", timeout=ANSWER)

    def show(self, problems: Sequence[Problem]) -> None:
        """Problems with the text as it stands. What is shown already is left alone, because drawing takes time."""
        if problems == self.shown:
            return
        self.shown = problems
        self.call("show", [problem.as_json() | {"width": problem.width} for problem in problems])
        errors = sum(problem.severity == "error" for problem in problems)
        said = f"{_counted(errors, 'error')}, {_counted(len(problems) - errors, 'note')}"
        self.below.clear()
        with self.below:
            ui.label(said).classes(f"recipe-summary {'recipe-bad' if errors else 'recipe-good'}")
            for problem in problems:
                self._show(problem)

    def _show(self, problem: Problem) -> None:
        with ui.row().classes(f"recipe-problem recipe-is-{problem.severity}") as row:
            row.on("click", lambda: self.call("reveal", problem.line, problem.column) if problem.line else None)
            ui.label(f"line {problem.line}" if problem.line else "").classes("recipe-where")
            with ui.column().classes("recipe-what"):
                ui.label(problem.message)
                ui.label(problem.hint).classes("recipe-hint")
            if problem.mends:
                setting, value = problem.mends
                ui.button(f"Write {value}", on_click=lambda: self.write(Override(setting).path, value)).props(
                    "outline dense no-caps size=sm"
                )


def _counted(count: int, what: str) -> str:
    return f"{count or 'no'} {what}{'' if count == 1 else 's'}"


class VerdictPane:
    """changed: is called when another price has been written. price: of a GPU hour, None where nobody has named one."""

    def __init__(self, changed: Callable[[], Awaitable[None]]) -> None:
        self.changed = changed
        self.price: float | None = None
        with ui.row().classes("recipe-verdict"):
            # One element, because each takes its part of the time from a key to the verdict.
            self.drawn = ui.html("", sanitize=False).classes("recipe-said-of-plan")
            self.written = ui.input("price of a GPU hour").props("dense outlined").classes("recipe-price")
        for event in ("blur", "keydown.enter"):
            self.written.on(event, self.take_price)

    def show(self, verdict: Verdict) -> None:
        self.drawn.content = drawn(verdict)
        self.written.set_visibility(bool(verdict.bars))

    async def take_price(self) -> None:
        try:
            price = float(self.written.value) if self.written.value.strip() else None
        except ValueError:
            ui.notify("A price is a number, such as 2.50.", type="warning")
            return
        if price != self.price:
            self.price = price
            await self.changed()


def drawn(verdict: Verdict) -> str:
    """A verdict as HTML."""
    look = "" if verdict.bars else ' class="recipe-waiting"'
    return "".join(map(_bar, verdict.bars)) + "".join(f"<p{look}>{escape(one)}</p>" for one in verdict.sentences)


def _bar(bar: Bar) -> str:
    """Memory of a GPU as a line against the card's: what is needed, and between what that lies."""
    whole = max(bar.card or 0, bar.most) * 1.05
    of = f" of {bar.card / 2**30:.1f} GiB" if bar.card else "; nobody knows the card"
    stretches = [
        (0, bar.needed, f"recipe-needed {'recipe-fits' if bar.fits else 'recipe-too-large'}"),
        (bar.least, bar.most, "recipe-range"),
        *([(bar.card, bar.card, "recipe-card")] if bar.card else []),
    ]
    parts = "".join(
        f'<div class="{look}" style="left: {start / whole:.2%}; width: {(end - start) / whole:.2%}"></div>'
        for start, end, look in stretches
    )
    said = escape(f"{bar.stage}: {bar.needed / 2**30:.1f} GiB{of}, {bar.gpu}")
    return f'<div class="recipe-memory">{said}<div class="recipe-bar">{parts}</div></div>'


NONE = "Nothing in these data is a row that can be trained on; a rehearsal says why."
UNKNOWN = "Rows of this kind cannot be shown; a rehearsal looks at them."


class RowsPane:
    """recipe: gives the one that is edited, None where the text is none."""

    def __init__(self, recipe: Callable[[], Recipe | None]) -> None:
        self.recipe = recipe
        ui.button("Show three rows", on_click=self.show).props("outline no-caps dense").classes("recipe-show-rows")
        self.below = ui.column().classes("recipe-rows")

    async def show(self) -> None:
        recipe = self.recipe()
        found: dict[str, list[RenderedExample]] = {}
        said = "Rows are shown when nothing is wrong any more."
        if recipe:
            try:
                found = await run.io_bound(judging.rows, recipe)
                said = NONE if found else UNKNOWN
            except Stop as stop:
                said = stop.text
        self.below.clear()
        with self.below:
            for name, rows in found.items():
                if len(found) > 1:
                    ui.label(name).classes("recipe-kind")
                for row in rows:
                    _show(row)
            if not any(found.values()):
                ui.label(said)


def _show(row: RenderedExample) -> None:
    if not row.picture:
        ui.label(row.text).classes("recipe-row")
        return
    with ui.row().classes("recipe-row recipe-pictured"):
        ui.element("img").props(f'src="data:image/png;base64,{b64encode(row.picture).decode()}" alt=""')
        ui.label(row.text)


BLUE, ORANGE, GREY = "#2f76e0", "#d97706", "#8b949e"
# Lines that stay in sight.
MOST = 500


class RehearsalPane:
    """Looks at a rehearsal, which several tabs of a browser may do."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        # What has been shown of it: its news, its number, and so many lines.
        self.seen, self.number, self.lines = -1, -1, 0
        self.said = ui.label("A rehearsal trains a tiny twin of the model on this machine, in a minute or a few.")
        self.said.classes("recipe-said")
        self.curve = ui.echart(_curve(rehearsal)).classes("recipe-curve")
        self.log = ui.log(max_lines=MOST).classes("recipe-log")

    def look(self) -> None:
        """Shows what has been said since the last look."""
        now = self.rehearsal
        if now.news == self.seen:
            return
        self.seen = now.news
        if now.number != self.number:
            self.number, self.lines = now.number, 0
            self.log.clear()
        for line in now.lines[self.lines :][-MOST:]:
            # An empty one would have no height.
            self.log.push(line or " ")
        self.lines = len(now.lines)
        self.curve.options.clear()
        self.curve.options.update(_curve(now))
        self.curve.update()
        if now.number:
            self.said.text = now.state


def _curve(rehearsal: Rehearsal) -> dict[str, Any]:
    axis = {
        "nameTextStyle": {"color": GREY},
        "axisLabel": {"color": GREY},
        "splitLine": {"lineStyle": {"color": "#8b949e40"}},
    }
    return {
        "animation": False,
        "grid": {"left": 48, "right": 16, "top": 32, "bottom": 36},
        "legend": {"top": 0, "textStyle": {"color": GREY}},
        "tooltip": {"trigger": "axis"},
        "xAxis": axis
        | {
            "type": "value",
            "name": "step",
            "nameLocation": "middle",
            "nameGap": 22,
            "max": rehearsal.steps or None,
        },
        "yAxis": axis | {"type": "value", "scale": True, "name": "loss"},
        "series": [
            _line("training", rehearsal.losses, BLUE, False),
            _line("validation", rehearsal.measured, ORANGE, True),
        ],
    }


def _line(name: str, points: list[tuple[int, float]], colour: str, symbol: bool) -> dict[str, Any]:
    look = {"lineStyle": {"color": colour}, "itemStyle": {"color": colour}, "showSymbol": symbol, "symbolSize": 7}
    return {"name": name, "type": "line", "data": [list(point) for point in points], **look}
