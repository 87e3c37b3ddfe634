"""The two sides of a small text, for training and for validation, and whether each is long enough
for blocks of its tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.data import rows
from runner.data.data_sets import BYTES_A_TOKEN, is_held_out
from runner.tools.files import text_files
from runner.tools.problem import Stop

# The largest file, in bytes, that is read for this.
MOST_BYTES = 1_000_000
# The tokens of a text are an estimate, so that two blocks of them are surely one.
LEAST_BLOCKS = 2
SHORTEST_BLOCK = 32


@dataclass
class TextSide:
    """The text of one side of the split. size_bytes: in UTF-8."""

    name: str
    documents: int = 0
    size_bytes: int = 0

    @property
    def likely_tokens(self) -> int:
        """Each document ends with a token of its own."""
        return round(self.size_bytes / BYTES_A_TOKEN) + self.documents


def split(texts: Iterable[str], share: float, seed: int) -> list[TextSide]:
    """Both sides of some documents; the one for training alone if none are held back. share: of the
    documents held back; seed: draws them."""
    training, validation = TextSide("training"), TextSide("validation")
    for text in texts:
        side = training
        if share and is_held_out(text, share, seed):
            side = validation
        side.documents += 1
        side.size_bytes += len(text.encode())
    if share:
        return [training, validation]
    return [training]


def fitting_block(sides: Sequence[TextSide], longest: int) -> int | None:
    """The length of the longest blocks, a power of two up to `longest`, of which each side has a
    few; None if a side has too little text."""
    length = 1 << (longest.bit_length() - 1)
    fewest_tokens = min(side.likely_tokens for side in sides)
    while length * LEAST_BLOCKS > fewest_tokens:
        length //= 2
    if length < SHORTEST_BLOCK:
        return None
    return length


def texts_of(file: Path, column: str, sheet: str | None = None) -> list[str] | None:
    """The documents of a file or a folder; None if it is large or cannot be read. column: of their
    text; sheet: of a spreadsheet."""
    files = text_files(file) if file.is_dir() else [file]
    if not files or not all(text_file.is_file() for text_file in files):
        return None
    if sum(text_file.stat().st_size for text_file in files) > MOST_BYTES:
        return None
    try:
        documents = rows.first(file, None, sheet=sheet, column=column)
    except Stop:
        return None  # another rule reports it
    texts = [document.get(column) for document in documents]
    return [text for text in texts if isinstance(text, str) and text.strip()]
