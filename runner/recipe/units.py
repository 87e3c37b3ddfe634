"""Amounts as people write them: `5 min`, `45 GB`, `44.4 GiB`. GB is 10^9 bytes and GiB 2^30; they
are never mixed."""

import re

from runner.catalog.hardware import GIB

SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
MIB = 2**20
GB = 10**9
BYTES = {"MB": 10**6, "GB": GB, "TB": 10**12, "MiB": MIB, "GiB": GIB, "TiB": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)\Z")


def seconds(text: str) -> float:
    """Seconds of `90 s`, `5 min`, `1.5 h` or `2 d`. Raises ValueError for anything else."""
    return _amount(text, SECONDS)


def size(text: str) -> float:
    """Bytes of `45 GB` or `44.4 GiB`. Raises ValueError for anything else."""
    return _amount(text, BYTES)


def _amount(text: str, units: dict[str, int]) -> float:
    amount = _AMOUNT.match(text)
    if not amount or amount[2] not in units:
        raise ValueError(f"{text} has none of the units {', '.join(units)}")
    return float(amount[1]) * units[amount[2]]


def gib(count: float) -> str:
    """An amount of memory; in MiB if a tenth of a GiB is too coarse."""
    if 0 < count < 0.1 * GIB:
        return f"{count / MIB:.0f} MiB"
    return f"{count / GIB:.1f} GiB"


def both(count: float) -> str:
    """An amount of memory in both counts, because cards are sold in one and report the other."""
    return f"{count / GIB:.1f} GiB ({count / GB:.1f} GB)"


def _readable(count: float) -> str:
    """The largest unit of which these are at least two; `s` for fewer seconds."""
    for unit in reversed(SECONDS):
        if count >= 2 * SECONDS[unit]:
            return unit
    return "s"


def duration(count: float) -> str:
    """Seconds in the most readable unit."""
    unit = _readable(count)
    amount = count / SECONDS[unit]
    if unit == "s":
        return f"{amount:.0f} s"
    return f"{amount:.1f} {unit}"


def at_least(count: float) -> str:
    """This many seconds or slightly more, as a recipe writes it."""
    unit = _readable(count)
    amount = -(-count // SECONDS[unit])
    return f"{amount:.0f} {unit}"


def speed(count: float) -> str:
    """A rate with three significant digits."""
    if count >= 100:
        return f"{count:,.0f}"
    return f"{count:.3g}"


def between(low: float, high: float, mark: str = " to ") -> str:
    """A range of seconds, with the unit once if both have the same."""
    shortest = duration(low)
    longest = duration(high)
    amount, _, unit = shortest.partition(" ")
    if longest.endswith(f" {unit}"):
        return f"{amount}{mark}{longest}"
    return f"{shortest}{mark}{longest}"
