"""Rows: the first rows of a recipe's data, as the model will see each: text, or a picture with its class."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable

from nicegui import run, ui

from runner.data import RenderedExample
from runner.parts.editor import judging
from runner.recipe.recipe import Recipe
from runner.tools.problem import Stop

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
