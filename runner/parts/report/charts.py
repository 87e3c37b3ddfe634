"""Charts: positions of lines, ticks and bars. The template draws them, because a chart library would be too large."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runner.parts.report.facts import Curve, Point

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 30
MOST_POINTS = 400
# A mark of an axis: its place in the drawing, and its text.
Tick = tuple[float, str]


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name, its SVG path, its values as JSON, and whether points were left out."""

    name: str
    path: str
    values: str
    thinned: bool


@dataclass(frozen=True)
class Chart:
    """A drawing of `WIDTH` by `HEIGHT`. x0, x1: the ends of its x axis. lines; or bars: x, y, width, height and text of
    each."""

    x0: float
    x1: float
    xs: tuple[Tick, ...]
    ys: tuple[Tick, ...]
    lines: tuple[Line, ...] = ()
    bars: tuple[tuple[float, float, float, float, str], ...] = ()


def chart(curve: Curve) -> Chart:
    points = [point for series in curve.series for point in series.points]
    x0, x1 = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    # The values with a little room; from zero if that is near.
    span = (high - low) or abs(high) or 1.0
    low, high = 0.0 if 0 <= low < span else low - 0.06 * span, high + 0.06 * span
    x_of, y_of = _scale(x0, x1, LEFT, WIDTH - RIGHT), _scale(low, high, HEIGHT - BOTTOM, TOP)
    lines = []
    for series in curve.series:
        kept = thinned(series.points)
        path = "M" + "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in kept)
        values = json.dumps([[round(x, 4), float(f"{y:.7g}")] for x, y in kept], separators=(",", ":"))
        lines.append(Line(series.name, path, values, len(kept) < len(series.points)))
    return Chart(
        x0=x0,
        x1=x1,
        xs=tuple((x_of(x), shown(x)) for x in ticks(x0, x1, 5)),
        ys=tuple((y_of(y), shown(y)) for y in ticks(low, high, 5)),
        lines=tuple(lines),
    )


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """About `MOST_POINTS` points: the lowest and the highest of each stretch, and the first and the last of all."""
    if len(points) <= MOST_POINTS:
        return points
    size = math.ceil(len(points) / (MOST_POINTS // 2))
    kept = {points[0], points[-1]}
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept |= {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
    return sorted(kept)


def histogram(bins: Sequence[tuple[int, int, int]]) -> Chart:
    """bins: the first and the last whole number of each, and its count."""
    first, last = bins[0][0], bins[-1][1] + 1
    most = max(count for _, _, count in bins)
    x_of, y_of = _scale(first, last, LEFT, WIDTH - RIGHT), _scale(0, most, HEIGHT - BOTTOM, TOP)
    bars = (
        (
            x_of(low),
            y_of(count),
            max(1.0, x_of(high + 1) - x_of(low) - 1),
            HEIGHT - BOTTOM - y_of(count),
            f"{low:,} to {high:,} tokens: {count:,} rows" if low != high else f"{low:,} tokens: {count:,} rows",
        )
        for low, high, count in bins
    )
    return Chart(
        x0=first,
        x1=last,
        bars=tuple(bars),
        xs=tuple((x_of(x), shown(x)) for x in ticks(first, last, 5)),
        ys=tuple((y_of(y), shown(y)) for y in ticks(0, max(most, 4), 4, (1, 2, 5, 10)) if y <= most),
    )


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    factor = (end - start) / ((high - low) or 1)
    return lambda value: round(start + (value - low) * factor, 1)


def ticks(low: float, high: float, wanted: int, steps: Sequence[float] = (1, 2, 2.5, 5, 10)) -> list[float]:
    """About `wanted` round numbers between two values. steps: the distances to choose from, times a power of ten."""
    raw = ((high - low) or 1) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in steps if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]


def shown(value: float) -> str:
    if abs(value) >= 1_000_000:
        return f"{value / 1e6:,.4g}M"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
