"""The lengths of rows in three figures, and what follows for batches and packed rows."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Self

from runner.data.report import Lengths

_POINTS = 256  # the number of evenly spaced quantiles that represent a distribution
_HIGH = 2.3263  # the 99th percentile of the normal distribution with mean 0 and standard deviation 1
# The bounds of sigma, for rows that are cut at a length and for a long tail; beyond 1, the 99th percentile approaches
# the mean again. Not -1 and 1, because bisection would begin at 0, which divides by 0.
_SKEWED = (-1.01, 1.0)


class RowLengths(Lengths):
    """Lengths of rows as the shifted lognormal distribution with their three figures (Johnson 1949, system S_L)."""

    @classmethod
    def counted(cls, lengths: Iterable[float]) -> Self:
        return cls._weighed([(length, 1.0) for length in lengths])

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Self]]) -> Self:
        """The lengths of several kinds of rows together, each with its count."""
        told = [(count, part) for count, part in parts if count]
        if len(told) == 1:
            return told[0][1]
        return cls._weighed([(length, count) for count, part in told for length in _points(part)])

    @classmethod
    def _weighed(cls, lengths: list[tuple[float, float]]) -> Self:
        if not lengths:
            return cls()
        whole = sum(weight for _, weight in lengths)
        mean = sum(length * weight for length, weight in lengths) / whole
        spread = math.sqrt(sum(weight * (length - mean) ** 2 for length, weight in lengths) / whole)
        high, above = 0.0, 0.01 * whole
        for length, weight in sorted(lengths, reverse=True):
            high, above = length, above - weight
            if above < 0:
                break
        return cls(mean, spread, high)

    def scaled(self, factor: float, added: float = 0.0) -> Self:
        """The same in another unit, with a prefix of `added` units before each row."""
        return type(self)(self.mean * factor + added, self.spread * factor, self.high * factor + added)

    @lru_cache(maxsize=1024)  # noqa: B019, equal lengths share their results
    def longest(self, rows: float, limit: float, multiple: int = 1) -> float:
        """The mean length of the longest of this many rows, none longer than `limit`, rounded up to a multiple."""
        reached: Sequence[float] = _points(self)
        if rows > 1:
            # The longest of n rows is below the quantile s with the probability s^n.
            reached = _at(self, (((place + 0.5) / _POINTS) ** (1 / rows) for place in range(_POINTS)))
        padded = [min(limit, math.ceil(length / multiple) * multiple if multiple > 1 else length) for length in reached]
        return sum(padded) / _POINTS

    def within(self, limit: float) -> float:
        """The mean length if none is longer than `limit`."""
        return self.longest(1, limit)

    def beyond(self, limit: float) -> float:
        """The share of rows that are longer than `limit`, 0 to 1."""
        return sum(length > limit for length in _points(self)) / _POINTS

    def attended(self, limit: float) -> float:
        """The mean length of the row that a token is in, E[L²] / E[L], at most `limit`."""
        return min(limit, self.mean + self.spread**2 / self.mean)

    @lru_cache(maxsize=256)  # noqa: B019
    def packed(self, limit: float) -> float:
        """The mean number of rows that fit into a packed one of `limit`: first-fit decreasing, as in Axolotl 0.19.0
        (utils/samplers/multipack.py)."""
        left: list[float] = []
        for length in sorted((min(length, limit) for length in _points(self)), reverse=True):
            place = next((place for place, room in enumerate(left) if room >= length), len(left))
            if place == len(left):
                left.append(limit)
            left[place] -= length
        # The last packed row is not full.
        return _POINTS / (len(left) - left[-1] / limit)


@lru_cache(maxsize=256)
def _shape(lengths: RowLengths) -> tuple[float, float, float]:
    """(start, size, sigma): a length is start + size · e^(sigma · z) for a normal z. Size and sigma are negative if
    the longer tail is that of short rows."""
    far = (lengths.high - lengths.mean) / lengths.spread
    low, up = _SKEWED
    for _ in range(30):
        sigma = (low + up) / 2
        wide = math.copysign(math.sqrt(math.expm1(sigma**2)), sigma)
        reached = (math.exp(_HIGH * sigma - sigma**2 / 2) - 1) / wide
        low, up = (sigma, up) if reached < far else (low, sigma)
    size = lengths.spread / wide * math.exp(-(sigma**2) / 2)
    return lengths.mean - size * math.exp(sigma**2 / 2), size, sigma


def _at(lengths: RowLengths, shares: Iterable[float]) -> list[float]:
    """The lengths that these shares of the rows, above 0 and below 1, do not exceed."""
    if lengths.spread <= 0:
        return [lengths.mean for _ in shares]
    from statistics import NormalDist  # slow to load

    start, size, sigma = _shape(lengths)
    normal = NormalDist().inv_cdf
    return [max(1.0, start + size * math.exp(sigma * normal(share))) for share in shares]


@lru_cache(maxsize=256)
def _points(lengths: RowLengths) -> tuple[float, ...]:
    """The lengths at evenly spaced quantiles, scaled to the counted mean."""
    points = _at(lengths, ((place + 0.5) / _POINTS for place in range(_POINTS)))
    return tuple(length * lengths.mean * _POINTS / sum(points) for length in points)


UNKNOWN = RowLengths()  # the lengths of rows that were not counted
