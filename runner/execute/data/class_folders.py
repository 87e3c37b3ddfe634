"""Images in folders: one folder a class, below `train`, `test` and the like where there are such. What is not read is
named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from runner.execute.data.rows import Bad
from runner.problem import Stop

ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}


def side(name: str) -> str:
    """Which side a file or folder of that name is of; all that is not `test` is trained and validated on."""
    return "test" if name.startswith("test") else "train"


def classes(path: Path) -> list[str]:
    """The names of the classes, in the order of their labels. Raises Stop where there are none to tell apart."""
    train = path / "train"
    found = [folder.name for folder in _folders(train if train.is_dir() else path)]
    if len(found) < 2:
        inner = (
            f"Its only folder is `{found[0]}`; where the images lie below that, name `{path / found[0]}`. "
            if found
            else ""
        )
        raise Stop(
            f"`{path}` holds no images that can be read.",
            f"{inner}It may hold CIFAR-10's binary version (*.bin), Parquet files, or one folder of images for each class.",
        )
    return found


def files(path: Path, known: list[str]) -> Iterator[tuple[str, Path, int | Bad]]:
    """Side, file, and the number of its class or why it is no image. known: the classes."""
    homes = [("train", path)]
    if (path / "train").is_dir():
        # Of equal images the first one counts, so the test ones come last.
        homes = sorted(((side(home.name), home) for home in _folders(path)), key=lambda home: home[0] == "test")
    for home in dict.fromkeys([path, *(home for _, home in homes)]):
        for file in _entries(home):
            if file.suffix.lower() in ENDINGS:
                yield "train", file, Bad("in no folder of a class")
    for name, home in homes:
        for folder in _folders(home):
            for file in _entries(folder):
                yield name, file, _label(file, folder.name, known)


def _label(file: Path, folder: str, known: list[str]) -> int | Bad:
    if file.is_dir():
        return Bad("a folder, and images lie in the folder of their class itself")
    if file.suffix.lower() not in ENDINGS:
        return Bad(f"its name does not end in {', '.join(sorted(ENDINGS))}")
    return known.index(folder) if folder in known else Bad("its class has no folder in `train`")


def _folders(path: Path) -> list[Path]:
    return [entry for entry in _entries(path) if entry.is_dir()]


def _entries(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
