"""Live: a rehearsal as it goes: how far it is, its loss as a curve, and what it says."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from runner.parts.editor.rehearsing import Rehearsal

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
