"""Uploads: a file from the browser becomes a file of rows in the folder `data` beside a recipe."""

import filecmp
import re
import shutil
from pathlib import Path

from runner.data.rows import ENDINGS
from runner.tools.files import replacing
from runner.tools.problem import Stop, listed

FOLDER = "data"
MOST_MB = 100
MOST_BYTES = MOST_MB * 1_000_000
TOO_LARGE = f"The page takes files of at most {MOST_MB} MB."
COPY_IT = f"Copy a larger file into `{FOLDER}` beside the recipe, and write its path under Data."


def safe_name(name: str) -> str:
    """A browser's name for a file as a name in our folder, without folders and special characters.
    Raises Stop if it is not the name of a file of rows."""
    last = re.split(r"[/\\]", name)[-1]
    suffix = Path(last).suffix.lower()
    stem = re.sub(r"[^\w.-]+", "-", last[: len(last) - len(suffix)]).strip(".-")
    if not stem or suffix not in ENDINGS:
        raise Stop(
            f"`{last or name}` is not a file of rows.",
            f"Its name must end in {listed(ENDINGS, 'or')}.",
        )
    return f"{stem}{suffix}"


def require_size(file: Path) -> None:
    """Raises Stop if a file is too large for an upload."""
    if file.stat().st_size > MOST_BYTES:
        raise Stop(TOO_LARGE, COPY_IT)


def differs(file: Path, target: Path) -> bool:
    """Whether another file with other contents has the name already."""
    return target.exists() and not (target.is_file() and filecmp.cmp(file, target, shallow=False))


def free_name(target: Path) -> Path:
    """The first unused name that begins like another: `rows-2.csv` after `rows.csv`."""
    number = 2
    while (target.with_stem(f"{target.stem}-{number}")).exists():
        number += 1
    return target.with_stem(f"{target.stem}-{number}")


def store(file: Path, target: Path) -> None:
    """Writes the file completely, or not at all. Raises Stop if that is not possible."""
    try:
        target.parent.mkdir(exist_ok=True)
        # A link of that name is replaced, because its target may be in another folder.
        with replacing(target) as partial:
            shutil.copyfile(file, partial)
    except OSError as error:
        raise Stop(f"`{FOLDER}/{target.name}` cannot be written: {error.strerror}.") from None
