"""Charts: positions of lines, ticks and bars. The template draws them, because a chart library
would be too large."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

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
        self.xs = _marks(ticks(x0, x1, 5), self.x_of)
        self.ys = _marks(ys, self.y_of)
        self.lines: list[tuple[str, str, str, bool]] = []
        self.bars: list[tuple[float, float, float, float, str]] = []


def _marks(values: Iterable[float], place_of: Callable[[float], float]) -> list[Tick]:
    return [(place_of(value), shown(value)) for value in values]


def chart(curve: Curve) -> Chart:
    points = chain.from_iterable(curve.lines.values())
    xs, ys = zip(*points, strict=True)
    low = min(ys)
    high = max(ys)
    # The values with a little room; from zero if that is near.
    span = (high - low) or abs(high) or 1.0
    if 0 <= low < span:
        low = 0.0
    else:
        low = low - 0.06 * span
    high = high + 0.06 * span
    drawing = Chart(min(xs), max(xs), low, high, ticks(low, high, 5))
    for name, line in curve.lines.items():
        drawn_points = _thinned(line)
        places = []
        values = []
        for x, y in drawn_points:
            places.append(f"{drawing.x_of(x):.1f} {drawing.y_of(y):.1f}")
            values.append([round(x, 4), float(f"{y:.7g}")])
        path = "M" + "L".join(places)
        values_json = json.dumps(values, separators=(",", ":"))
        is_thinned = len(drawn_points) < len(line)
        drawing.lines.append((name, path, values_json, is_thinned))
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
    counts = ticks(0, max(most, 4), 4, (1, 2, 5, 10))
    marks = [count for count in counts if count <= most]
    fewest_tokens = bins[0][0]
    most_tokens = bins[-1][1]
    drawing = Chart(fewest_tokens, most_tokens + 1, 0, most, marks)
    for low, high, count in bins:
        x = drawing.x_of(low)
        y = drawing.y_of(count)
        if low != high:
            lengths = f"{low:,} to {high:,}"
        else:
            lengths = f"{low:,}"
        width = max(1.0, drawing.x_of(high + 1) - x - 1)
        height = HEIGHT - BOTTOM - y
        text = f"{lengths} tokens: {count:,} rows"
        drawing.bars.append((x, y, width, height, text))
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
    distances = (power * factor for factor in steps)
    step = next(distance for distance in distances if distance >= raw * 0.999)
    first_multiple = math.ceil(low / step - 1e-9)
    last_multiple = math.floor(high / step + 1e-9)
    tick_values = []
    for number in range(first_multiple, last_multiple + 1):
        tick_values.append(float(f"{number * step:.12g}"))
    return tick_values


def shown(value: float) -> str:
    if abs(value) >= 1_000_000:
        return f"{value / 1e6:,.4g}M"
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
