"""Kindle's `My Clippings.txt`: what somebody has marked in books, each below two lines with the
book and the place."""

from collections.abc import Iterable, Iterator, Sequence

# What ends a clipping.
END = "=========="
# Fewer may be chance.
LEAST_CLIPPINGS = 2
LINES_OF_HEAD = 2
_MARKS = "\ufeff \t\r\n"


def are_clippings(lines: Sequence[str]) -> bool:
    """Whether a text begins with clippings. lines: of its beginning, or all."""
    clippings = list(_clippings_in(lines))
    for _, clipping in clippings:
        if len(clipping) < LINES_OF_HEAD or not clipping[1].strip(_MARKS).startswith("- "):
            return False
    return len(clippings) >= LEAST_CLIPPINGS


def texts_of_clippings(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The words of each clipping, without book and place, and the number of its first line. A
    bookmark has none."""
    for number, clipping in _clippings_in(lines):
        text = "\n".join(clipping[LINES_OF_HEAD:]).strip(_MARKS)
        if text:
            yield number, text


def _clippings_in(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The lines of each clipping that has an end, from the first filled one on."""
    clipping = list[str]()
    first_number = 1
    for number, line in enumerate(lines, 1):
        if line.strip(_MARKS) == END:
            yield first_number, clipping
            clipping = []
        elif clipping or line.strip(_MARKS):
            if not clipping:
                first_number = number
            clipping.append(line.rstrip("\r\n"))
