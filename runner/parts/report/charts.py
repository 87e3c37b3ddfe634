"""Charts: positions of lines, ticks and bars. The template draws them, because a chart library
would be too large."""

import json
import math
from collections.abc import Callable, Iterable, Sequence

from runner.parts.report.facts import Curve, Point

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 30
MOST_POINTS = 400  # of a line, about
# A mark of an axis: its place in the drawing, and its text.
Tick = tuple[float, str]


class Chart:
    """A drawing of `WIDTH` by `HEIGHT`. x0, x1: the ends of its x axis; xs, ys: the marks of both
    axes. lines: name, SVG path, values as JSON of each, and whether points were left out; or bars:
    x, y, width, height and text of each."""

    def __init__(self, x0: float, x1: float, low: float, high: float, ys: Iterable[float]) -> None:
        """low, high: the ends of its y axis; ys: the values at its marks."""
        self.x0 = x0
        self.x1 = x1
        self.x_of = _scale(x0, x1, LEFT, WIDTH - RIGHT)
        self.y_of = _scale(low, high, HEIGHT - BOTTOM, TOP)
        self.xs: list[Tick] = [(self.x_of(x), shown(x)) for x in ticks(x0, x1, 5)]
        self.ys: list[Tick] = [(self.y_of(y), shown(y)) for y in ys]
        self.lines: list[tuple[str, str, str, bool]] = []
        self.bars: list[tuple[float, float, float, float, str]] = []


def chart(curve: Curve) -> Chart:
    points = [point for line in curve.lines.values() for point in line]
    x0 = min(x for x, _ in points)
    x1 = max(x for x, _ in points)
    low = min(y for _, y in points)
    high = max(y for _, y in points)
    # The values with a little room; from zero if that is near.
    span = (high - low) or abs(high) or 1.0
    if 0 <= low < span:
        low = 0.0
    else:
        low = low - 0.06 * span
    high = high + 0.06 * span
    drawing = Chart(x0, x1, low, high, ticks(low, high, 5))
    for name, line in curve.lines.items():
        kept = _thinned(line)
        path = "M" + "L".join(f"{drawing.x_of(x):.1f} {drawing.y_of(y):.1f}" for x, y in kept)
        values = json.dumps(
            [[round(x, 4), float(f"{y:.7g}")] for x, y in kept], separators=(",", ":")
        )
        drawing.lines.append((name, path, values, len(kept) < len(line)))
    return drawing


def _thinned(line: Sequence[Point]) -> Sequence[Point]:
    """Of many points only the lowest and the highest of each stretch, and the first and the last of
    all."""
    if len(line) <= MOST_POINTS:
        return line
    size = math.ceil(len(line) / (MOST_POINTS // 2))
    extremes = {line[0], line[-1]}
    for start in range(0, len(line), size):
        stretch = line[start : start + size]
        extremes.add(min(stretch, key=lambda point: point[1]))
        extremes.add(max(stretch, key=lambda point: point[1]))
    return sorted(extremes)


def histogram(bins: Sequence[tuple[int, int, int]]) -> Chart:
    """bins: the first and the last whole number of each, and its count."""
    most = max(count for _, _, count in bins)
    marks = (y for y in ticks(0, max(most, 4), 4, (1, 2, 5, 10)) if y <= most)
    drawing = Chart(bins[0][0], bins[-1][1] + 1, 0, most, marks)
    for low, high, count in bins:
        x = drawing.x_of(low)
        y = drawing.y_of(count)
        if low != high:
            lengths = f"{low:,} to {high:,}"
        else:
            lengths = f"{low:,}"
        width = max(1.0, drawing.x_of(high + 1) - x - 1)
        drawing.bars.append((x, y, width, HEIGHT - BOTTOM - y, f"{lengths} tokens: {count:,} rows"))
    return drawing


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    factor = (end - start) / ((high - low) or 1)
    return lambda value: round(start + (value - low) * factor, 1)


def ticks(
    low: float, high: float, wanted: int, steps: Sequence[float] = (1, 2, 2.5, 5, 10)
) -> list[float]:
    """About `wanted` round numbers between two values. steps: the distances to choose from, times a
    power of ten."""
    raw = ((high - low) or 1) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in steps if power * factor >= raw * 0.999)
    first_multiple = math.ceil(low / step - 1e-9)
    tick_values = []
    for number in range(first_multiple, math.floor(high / step + 1e-9) + 1):
        tick_values.append(float(f"{number * step:.12g}"))
    return tick_values


def shown(value: float) -> str:
    if abs(value) >= 1_000_000:
        return f"{value / 1e6:,.4g}M"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
