"""Text: a recipe as it is typed, what is wrong at its lines, and below it each problem with its remedy."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nicegui import ui
from nicegui.awaitable_response import AwaitableResponse

from runner.recipe.document import Path_
from runner.recipe.overrides import Override
from runner.tools.problem import Problem

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
