"""Verdict: what the plan says of a recipe, with memory as a bar against the card."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from html import escape

from nicegui import ui

from runner.parts.editor.judging import Bar, Verdict


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
