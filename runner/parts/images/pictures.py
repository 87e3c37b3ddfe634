"""Pictures: what is prepared for training; images with a label each, from the hub, Parquet, CIFAR's binary files or a folder for each
class.

Nothing here runs code from data: Python pickles are refused, and images are opened in common formats alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.data.data_sets import DataSource, no_dataset
from runner.data.row_files import Bad
from runner.tools.problem import Stop

if TYPE_CHECKING:
    import numpy as np
    import pyarrow


@dataclass(frozen=True, kw_only=True)
class Images(DataSource):
    """Images with a class each. They are scaled to `image_size` pixels a side.

    test_split: of a dataset, measured once at the end. image_column, label_column: of Parquet and of a dataset.
    validation_share: part of each class, 0 to 1, that a draw by `seed` keeps for validation.
    """

    kind: Literal["images"] = "images"
    test_split: str | None
    image_column: str
    label_column: str
    image_size: int
    classes: int
    validation_share: float
    seed: int


def class_folders(path: Path) -> bool:
    """Whether a folder is read as one of images for each class, and not as CIFAR's or Parquet files."""
    return not any(
        file.suffix in (".bin", ".parquet") or file.name.startswith(("batches.meta", "data_batch_"))
        for file in entries(path)
    )


def class_names(path: Path) -> list[str]:
    """The names of the classes, in the order of their labels. Raises Stop where there are none to tell apart."""
    train = path / "train"
    names = [folder.name for folder in folders(train if train.is_dir() else path)]
    if len(names) < 2:
        inner = (
            f"Its only folder is `{names[0]}`; where the images lie below that, name `{path / names[0]}`. "
            if names
            else ""
        )
        raise Stop(
            f"`{path}` holds no images that can be read.",
            f"{inner}It may hold CIFAR-10's binary version (*.bin), Parquet files, or one folder of images for each class.",
        )
    return names


def folders(path: Path) -> list[Path]:
    return [entry for entry in entries(path) if entry.is_dir()]


def entries(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))


# The names and the formats of images that are opened.
ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 50_000_000

# One record of the binary version: a byte with the label, then red, green and blue, 32 × 32 bytes each
# (cs.toronto.edu/~kriz/cifar.html).
CIFAR_SIDE = 32
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE**2


@dataclass(frozen=True)
class Picture:
    """pixels: height × width × 3 bytes, red, green, blue. resized: whether it had another size. named: as a person finds it."""

    pixels: bytes
    label: int
    resized: bool = False
    named: str = ""


# The number of a row from 1, and its picture or why it is none.
Row = tuple[int, Picture | Bad]


def named_classes(schema: pyarrow.Schema, label_column: str) -> list[str]:
    """The names of the classes that the library `datasets` leaves in a Parquet file; none where it did not write it."""
    known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names: list[str] = known.get("info", {}).get("features", {}).get(label_column, {}).get("names") or []
    return names


@dataclass
class PictureReader:
    """Where pictures come from, and what is known of their classes.

    classes: the names of the classes, in the order of their labels; empty where the source names none.
    """

    images: Images
    classes: list[str] = field(default_factory=list)

    def read(self) -> Iterator[tuple[str, int, Picture | Bad]]:
        """`train` or `test`, the number of the row from 1, and the picture or why it is none.

        Raises Stop where the source cannot be read at all.
        """
        path = self.images.file
        if not path:
            yield from self._hub()
            return
        if not path.exists():
            raise Stop(f"There is no file or folder `{path}`.")
        try:
            yield from self._path(path)
        except OSError as error:
            raise Stop(f"`{error.filename or path}` cannot be read: {error.strerror or error}.") from None

    def _path(self, path: Path) -> Iterator[tuple[str, int, Picture | Bad]]:
        if path.is_file():
            yield from (("train", *row) for row in self._parquet(path))
            return
        files = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        if binary := [file for file in files if file.suffix == ".bin"]:
            names = path / "batches.meta.txt"
            self.classes = names.read_text(encoding="utf-8").split() if names.is_file() else []
            yield from _of(binary, self._binary)
        elif parquet := [file for file in files if file.suffix == ".parquet"]:
            yield from _of(parquet, self._parquet)
        elif any(file.name == "batches.meta" or file.name.startswith("data_batch_") for file in files):
            raise Stop(
                f"`{path}` holds the Python version of CIFAR-10. It is made of pickles, which can run any code on this "
                "machine when they are opened, so they are not.",
                "Take the binary version (cifar-10-binary.tar.gz) from the same page, or `hub: uoft-cs/cifar10`.",
            )
        else:
            yield from self._folders(path)

    def _binary(self, file: Path) -> Iterator[Row]:
        import numpy as np

        data = np.fromfile(file, np.uint8)
        if len(data) == 0 or len(data) % CIFAR_RECORD:
            raise Stop(
                f"`{file}` is not one of CIFAR-10's binary files: its {len(data):,} bytes are no whole number of images.",
                f"An image takes {CIFAR_RECORD:,} bytes there; load the file again.",
            )
        for number, record in enumerate(data.reshape(-1, CIFAR_RECORD), 1):
            pixels = record[1:].reshape(3, CIFAR_SIDE, CIFAR_SIDE).transpose(1, 2, 0)
            yield number, self._sized(np.ascontiguousarray(pixels), int(record[0]))

    def _parquet(self, file: Path) -> Iterator[Row]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = [self.images.image_column, self.images.label_column]
        try:
            table = pq.ParquetFile(file)
        except pa.ArrowInvalid:
            raise Stop(f"`{file}` is not Parquet.", "Save it again with the program that wrote it.") from None
        if lacking := [column for column in columns if column not in table.schema_arrow.names]:
            raise Stop(
                f"`{file}` has no column `{lacking[0]}`.",
                f"Its columns are {', '.join(table.schema_arrow.names)}; name them under `data`.",
            )
        self.classes = named_classes(table.schema_arrow, columns[1]) or self.classes
        number = 0
        for batch in table.iter_batches(1024, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield number, self._decoded(row[columns[0]], row[columns[1]])

    def _hub(self) -> Iterator[tuple[str, int, Picture | Bad]]:
        from datasets import Image, load_dataset

        images = self.images
        image, label = images.image_column, images.label_column
        for split, name in (("train", images.split), ("test", images.test_split)):
            if not name:
                continue
            try:
                dataset = load_dataset(images.hub, images.subset, split=name, revision=images.revision)
            except Exception as error:
                raise no_dataset(images, error) from None
            if lacking := [column for column in (image, label) if column not in dataset.column_names]:
                raise Stop(
                    f"The dataset `{images.hub}` has no column `{lacking[0]}`.",
                    f"Its columns are {', '.join(dataset.column_names)}; name them under `data`.",
                )
            self.classes = getattr(dataset.features[label], "names", None) or self.classes
            # Undecoded, so that an image that is broken is one bad row and not the end.
            for number, row in enumerate(dataset.cast_column(image, Image(decode=False)), 1):
                read = self._decoded(row[image], row[label])
                yield split, number, read if isinstance(read, Bad) else _named(f"{name}, image {number}", read)

    def _folders(self, path: Path) -> Iterator[tuple[str, int, Picture | Bad]]:
        self.classes = class_names(path)
        for number, (name, file, label) in enumerate(class_files(path, self.classes), 1):
            read = label if isinstance(label, Bad) else self._decoded(file.read_bytes(), label)
            yield name, number, _said_of(str(file.relative_to(path)), read)

    def _decoded(self, image: Any, label: Any) -> Picture | Bad:
        """A picture from an encoded image: its bytes, or the `bytes` of a struct as the hub stores them."""
        data = image.get("bytes") if isinstance(image, Mapping) else image
        if not isinstance(data, bytes):
            return Bad("no image in its column")
        pixels = decoded(data)
        return pixels if isinstance(pixels, Bad) else self._sized(pixels, label)

    def _sized(self, pixels: np.ndarray, label: Any) -> Picture | Bad:
        size, classes = self.images.image_size, self.images.classes
        if label is None:
            return Bad("it has no class")
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
            return Bad(f"its class is {label!r}, and {classes} classes are numbered 0 to {classes - 1}")
        return Picture(scaled(pixels, size).tobytes(), label, resized=pixels.shape[:2] != (size, size))


def decoded(data: bytes) -> np.ndarray | Bad:
    """The pixels of an encoded image, height × width × 3 bytes. Raises Stop where Pillow is missing."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError:
        raise Stop(
            "Opening images needs Pillow, which is not installed here.",
            "Prepare them elsewhere with `recipe prepare`, or choose an image that has it: pip install pillow.",
        ) from None

    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                return Bad(f"{opened.width} × {opened.height} pixels, which is no image to train on")
            return np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return Bad("not an image that can be opened")


def scaled(pixels: np.ndarray, size: int) -> np.ndarray:
    """The image with `size` pixels a side."""
    if pixels.shape[:2] == (size, size):
        return pixels
    import numpy as np
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


def _of(files: list[Path], read: Callable[[Path], Iterator[Row]]) -> Iterator[tuple[str, int, Picture | Bad]]:
    """The pictures of several files; a bad one says which file it is of."""
    for file in files:
        for number, picture in read(file):
            said = _said_of(file.name, picture)
            yield (
                split_of(file.name),
                number,
                said if isinstance(said, Bad) else _named(f"{file.name}, image {number}", said),
            )


def _said_of(name: str, read: Picture | Bad) -> Picture | Bad:
    return Bad(f"{name}: {read.reason}") if isinstance(read, Bad) else _named(name, read)


def _named(name: str, picture: Picture) -> Picture:
    return replace(picture, named=name)


# Images in folders: one folder a class, below `train`, `test` and the like where there are such. What is not read is named.


def split_of(name: str) -> str:
    """Which split a file or folder of that name is of; all that is not `test` is trained and validated on."""
    return "test" if name.startswith("test") else "train"


def class_files(path: Path, known: list[str]) -> Iterator[tuple[str, Path, int | Bad]]:
    """Split, file, and the number of its class or why it is no image. known: the classes."""
    homes = [("train", path)]
    if (path / "train").is_dir():
        # Of equal images the first one counts, so the test ones come last.
        homes = sorted(((split_of(home.name), home) for home in folders(path)), key=lambda home: home[0] == "test")
    for home in dict.fromkeys([path, *(home for _, home in homes)]):
        for file in entries(home):
            if file.suffix.lower() in ENDINGS:
                yield "train", file, Bad("in no folder of a class")
    for name, home in homes:
        for folder in folders(home):
            for file in entries(folder):
                yield name, file, _label(file, folder.name, known)


def _label(file: Path, folder: str, known: list[str]) -> int | Bad:
    if file.is_dir():
        return Bad("a folder, and images lie in the folder of their class itself")
    if file.suffix.lower() not in ENDINGS:
        return Bad(f"its name does not end in {', '.join(sorted(ENDINGS))}")
    return known.index(folder) if folder in known else Bad("its class has no folder in `train`")
