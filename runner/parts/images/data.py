"""Writes images from the hub, Parquet, CIFAR's binary files or a folder for each class as Parquet
files of plain pixels, without duplicates, with every class in training and validation.

No code from data is run: Python pickles are refused, and only common image formats are opened."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from runner.data import RenderedExample
from runner.data.data_sets import DataSource, no_dataset, stated
from runner.data.report import Report
from runner.data.row_files import Bad
from runner.tools.files import content_hash, replacing
from runner.tools.problem import Stop

if TYPE_CHECKING:
    import numpy as np
    import pyarrow

SPLITS = ("train", "validation", "test")
Colours = list[float]  # figures of red, green and blue, 0 to 1
# The share of the test images that may be in training too (one always may); good sets have a few in
# 10,000.
MOST_SHARED = 0.01
MOST_NAMED = 1000  # the most shared images that are listed, also in the report file


@dataclass(frozen=True, kw_only=True)
class ImageSet(DataSource):
    """Images with a class each, scaled to `image_size` pixels a side. test_split: of a dataset,
    measured once at the end. image_column, label_column: of Parquet and of a dataset.
    validation_share: the share of each class, 0 to 1, that a draw by `seed` keeps for
    validation."""

    kind: Literal["images"] = "images"
    test_split: str | None
    image_column: str
    label_column: str
    image_size: int
    classes: int
    validation_share: float
    seed: int


def class_folders(path: Path) -> bool:
    """Whether a folder has a folder of images for each class, and no CIFAR's or Parquet files."""
    return not any(
        file.suffix in (".bin", ".parquet")
        or file.name == "batches.meta"
        or file.name.startswith("data_batch_")
        for file in entries(path)
    )


def class_names(path: Path) -> list[str]:
    """The names of the classes, in the order of their labels. Raises Stop for fewer than two."""
    train = path / "train"
    names = []
    for folder in folders(train if train.is_dir() else path):
        names.append(folder.name)
    if len(names) < 2:
        inside = ""
        if names:
            inside = f"Its only folder is `{names[0]}`. If the images are below that, name `{path / names[0]}`. "
        raise Stop(
            f"`{path}` contains no readable images.",
            f"{inside}It may contain CIFAR-10's binary version (*.bin), Parquet files, or one folder of images for each class.",
        )
    return names


def folders(path: Path) -> list[Path]:
    return [entry for entry in entries(path) if entry.is_dir()]


def entries(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))


# The file endings and the formats of images that are opened.
ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 50_000_000

# One record of the binary version: a byte with the label, then red, green and blue, 32 × 32 bytes
# each (cs.toronto.edu/~kriz/cifar.html).
CIFAR_SIDE = 32
CIFAR_RECORD = 1 + 3 * CIFAR_SIDE**2


def named_classes(schema: pyarrow.Schema, label_column: str) -> list[str]:
    """The names of the classes in a Parquet file of the library `datasets`; none in other files."""
    known = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    names: list[str] = (
        known.get("info", {}).get("features", {}).get(label_column, {}).get("names") or []
    )
    return names


class Picture(NamedTuple):
    """An image of a source. split: `train` or `test`. number: of the row, from 1. image: encoded
    bytes, the hub's struct with them, or pixels; once read, height × width × 3 bytes (RGB); or why
    there is none. label: the number of its class. file: for messages about bad images; empty if the
    number is enough. named: its place, for messages. resized: whether it had another size."""

    split: str
    number: int
    image: Any
    label: Any
    file: str = ""
    named: str = ""
    resized: bool = False


@dataclass
class PictureReader:
    """Reads pictures. classes: the names of the classes, in the order of their labels; empty if the
    source has none."""

    images: ImageSet
    classes: list[str] = field(default_factory=list)

    def read(self) -> Iterator[Picture]:
        """The pictures, scaled. Raises Stop if the source cannot be read at all."""
        path = self.images.file
        if path and not path.exists():
            raise Stop(f"There is no file or folder `{path}`.")
        try:
            yield from map(self._scaled, self._path(path) if path else self._hub())
        except OSError as error:
            if path is None:
                raise
            raise Stop(
                f"`{error.filename or path}` cannot be read: {error.strerror or error}."
            ) from None

    def _path(self, path: Path) -> Iterator[Picture]:
        if path.is_file():
            yield from self._parquet(path)
            return
        for ending, read in ((".bin", self._binary), (".parquet", self._parquet)):
            chosen = [file for file in entries(path) if file.suffix == ending]
            if chosen:
                for file in chosen:
                    for found in read(file):
                        named = f"{file.name}, image {found.number}"
                        yield found._replace(split=split_of(file.name), file=file.name, named=named)
                return
        if not class_folders(path):
            raise Stop(
                f"`{path}` contains the Python version of CIFAR-10. It consists of pickles, which could run any code on this machine, so they are not opened.",
                "Use the binary version (cifar-10-binary.tar.gz) from the same page, or `hub: uoft-cs/cifar10`.",
            )
        self.classes = class_names(path)
        for number, (split, file, label) in enumerate(class_files(path, self.classes), 1):
            name = str(file.relative_to(path))
            image: bytes | Bad
            if isinstance(label, Bad):
                image = label
            else:
                image = file.read_bytes()
            yield Picture(split, number, image, label, name, name)

    def _binary(self, file: Path) -> Iterator[Picture]:
        import numpy as np

        names = file.with_name("batches.meta.txt")
        if names.is_file():
            self.classes = names.read_text(encoding="utf-8").split()
        else:
            self.classes = []
        data = np.fromfile(file, np.uint8)
        if len(data) == 0 or len(data) % CIFAR_RECORD:
            raise Stop(
                f"`{file}` is not one of CIFAR-10's binary files: its {len(data):,} bytes are not a whole number of images.",
                f"An image has {CIFAR_RECORD:,} bytes there. Download the file again.",
            )
        for number, record in enumerate(data.reshape(-1, CIFAR_RECORD), 1):
            pixels = record[1:].reshape(3, CIFAR_SIDE, CIFAR_SIDE).transpose(1, 2, 0)
            yield Picture("train", number, np.ascontiguousarray(pixels), int(record[0]))

    def _parquet(self, file: Path) -> Iterator[Picture]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        image = self.images.image_column
        label = self.images.label_column
        try:
            table = pq.ParquetFile(file)
        except pa.ArrowInvalid:
            raise Stop(
                f"`{file}` is not Parquet.", "Save it again with the program that wrote it."
            ) from None
        self._require_columns(f"`{file}`", table.schema_arrow.names)
        self.classes = named_classes(table.schema_arrow, label) or self.classes
        batches = table.iter_batches(1024, columns=[image, label])
        for number, row in enumerate(
            chain.from_iterable(batch.to_pylist() for batch in batches), 1
        ):
            yield Picture("train", number, row[image], row[label])

    def _require_columns(self, source: str, columns: list[str]) -> None:
        for column in (self.images.image_column, self.images.label_column):
            if column not in columns:
                columns_text = ", ".join(columns)
                raise Stop(
                    f"{source} has no column `{column}`.",
                    f"Its columns are {columns_text}; name them under `data`.",
                )

    def _hub(self) -> Iterator[Picture]:
        from datasets import Image, load_dataset

        images = self.images
        image = images.image_column
        label = images.label_column
        for split, name in (("train", images.split), ("test", images.test_split)):
            if not name:
                continue
            try:
                dataset = load_dataset(
                    images.hub, images.subset, split=name, revision=images.revision
                )
            except Exception as error:
                raise no_dataset(images, error) from None
            self._require_columns(f"The data set `{images.hub}`", dataset.column_names)
            self.classes = getattr(dataset.features[label], "names", None) or self.classes
            # Not decoded by the library, so that a broken image is one bad row and does not end the
            # reading.
            for number, row in enumerate(dataset.cast_column(image, Image(decode=False)), 1):
                yield Picture(
                    split, number, row[image], row[label], named=f"{name}, image {number}"
                )

    def _scaled(self, found: Picture) -> Picture:
        """A picture in the planned size, or with the reason why it cannot be trained on."""
        image = found.image
        label = found.label
        classes = self.images.classes
        size = self.images.image_size
        if isinstance(image, Mapping):
            image = image.get("bytes")
        if isinstance(image, bytes):
            image = decoded(image)
        if isinstance(image, Bad):
            pass
        elif not hasattr(image, "shape"):
            image = Bad("no image in its column")
        elif label is None:
            image = Bad("it has no class")
        elif isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < classes:
            image = Bad(
                f"its class is {label!r}, but {classes} classes are numbered 0 to {classes - 1}"
            )
        if isinstance(image, Bad):
            return found._replace(
                image=Bad(f"{found.file}: {image.reason}") if found.file else image
            )
        return found._replace(
            image=scaled(image, size).tobytes(), resized=image.shape[:2] != (size, size)
        )


def decoded(data: bytes) -> np.ndarray | Bad:
    """The pixels of an encoded image, height × width × 3 bytes. Raises Stop if Pillow is
    missing."""
    import numpy as np

    try:
        from PIL import Image
    except ImportError:
        raise Stop(
            "Pillow, which opens images, is not installed here.",
            "Prepare them elsewhere with `recipe prepare`, or choose an image that has it: pip install pillow.",
        ) from None
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                return Bad(
                    f"{opened.width} × {opened.height} pixels, too large or too small to train on"
                )
            return np.asarray(opened.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return Bad("not a readable image")


def scaled(pixels: np.ndarray, size: int) -> np.ndarray:
    """The image with `size` pixels a side."""
    if pixels.shape[:2] == (size, size):
        return pixels
    import numpy as np
    from PIL import Image

    return np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR))


def split_of(name: str) -> str:
    """The split of a file or folder with that name; `train` is for training and validation."""
    if name.startswith("test"):
        return "test"
    return "train"


def class_files(path: Path, known: list[str]) -> Iterator[tuple[str, Path, int | Bad]]:
    """Images in one folder for each class, which may be below `train` and `test`: split, file, and
    the number of its class or why it is not an image. known: the classes."""
    homes = [path]
    if (path / "train").is_dir():
        homes = sorted(folders(path), key=lambda home: split_of(home.name) == "test")
    for file in (file for home in dict.fromkeys([path, *homes]) for file in entries(home)):
        if file.suffix.lower() in ENDINGS:
            yield "train", file, Bad("not in the folder of any class")
    for folder in (folder for home in homes for folder in folders(home)):
        if folder.parent == path:
            split = "train"
        else:
            split = split_of(folder.parent.name)
        number: int | Bad
        if folder.name in known:
            number = known.index(folder.name)
        else:
            number = Bad("its class has no folder in `train`")
        for file in entries(folder):
            if file.is_dir():
                yield split, file, Bad("a folder; images must be in the folder of their class")
            elif file.suffix.lower() not in ENDINGS:
                yield split, file, Bad(f"its name does not end in {', '.join(sorted(ENDINGS))}")
            else:
                yield split, file, number


@dataclass
class ImageReport(Report):
    """Counts of images, and facts for training. classes: names in the order of their labels. mean,
    std: over the training images. shared: test images that are also in training, pixel by pixel,
    and are removed from it; shared_named: the first of them, each with its training image."""

    KIND = "images"
    TEMPLATE = Path(__file__).with_name("report.jinja")
    test_rows: int = 0
    resized: int = 0
    shared: int = 0
    shared_named: list[tuple[str, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    mean: Colours = field(default_factory=list)
    std: Colours = field(default_factory=list)


def prepare(
    images: ImageSet, out: Path, *, sample_rows: int | None = None, **_unused: Any
) -> ImageReport:
    """Writes `train.parquet`, `validation.parquet` and `test.parquet` (columns `image`, pixels as
    bytes, height × width × 3, and `label`) and `report.json`. Does nothing if they exist.
    sample_rows: keep at most this many images, drawn by the seed, the same number of each class.
    Raises Stop if a class has too few images for both sides, or if training has more than a small
    share of the test images."""
    # The hash of everything that the result depends on, also of the folder of each image, which is
    # its class.
    key = content_hash([asdict(images, dict_factory=stated), images.content, sample_rows], 32)
    known = ImageReport.read(out)
    whole = all((out / f"{split}.parquet").is_file() for split in SPLITS)
    # Images may be uploaded to a cluster prepared, without their source.
    if known and whole and (known.key == key or (images.file and not images.file.exists())):
        return known
    report = ImageReport(key=key, source=images.name)
    splits = _read(images, report)
    shared = report.shared
    of = len(splits["test"])
    if shared > max(1, MOST_SHARED * of):
        # One side was made from the other. The report has no key, because no data is written.
        report.key = ""
        report.write(out)
        named = "\n".join(report.lines("in_both"))
        share = shared / of
        most = MOST_SHARED
        raise Stop(
            f"{shared:,} of {of:,} test images are also training images ({share:.1%}), but at most {most:.0%} may be. The test accuracy would count memorised images.\n{named}",
            "Delete them from one of the two, or name another test split.",
        )
    pictures = splits["train"]
    if sample_rows is not None and len(pictures) > sample_rows:
        count = sample_rows
    else:
        count = None
    if count is None:
        report.sampled_from = None
    else:
        report.sampled_from = len(pictures)
    train, validation = drawn(pictures, images.validation_share, images.seed, count)
    there = {picture.label for picture in train} & {picture.label for picture in validation}
    lacking = [name for label, name in enumerate(report.classes) if label not in there]
    if lacking:
        lines = "\n".join(report.lines())
        lacking_text = ", ".join(lacking[:10])
        raise Stop(
            f"These classes have too few images to train and to validate on: {lacking_text}.\n{lines}",
            "Each class needs at least two different images.",
        )
    report.train_rows = len(train)
    report.validation_rows = len(validation)
    report.test_rows = len(splits["test"])
    _write(
        out,
        dict(zip(SPLITS, (train, validation, splits["test"]), strict=True)),
        images.image_size,
        report,
    )
    return report


def first(images: ImageSet) -> Iterator[RenderedExample]:
    """The images for training and validation, one by one, scaled, with their class."""
    from PIL import Image

    source = PictureReader(images)
    side = images.image_size
    for picture in source.read():
        if picture.split == "train" and not isinstance(picture.image, Bad):
            if source.classes:
                name = source.classes[picture.label]
            else:
                name = str(picture.label)
            drawn = io.BytesIO()
            Image.frombytes("RGB", (side, side), picture.image).save(drawn, "PNG")
            yield RenderedExample(
                "", f"{name} ({picture.named})" if picture.named else name, drawn.getvalue()
            )


def _read(images: ImageSet, report: ImageReport) -> dict[str, list[Picture]]:
    """Every picture once, by split. Of equal pictures with two classes, only the first one
    counts."""
    source = PictureReader(images)
    splits: dict[str, dict[bytes, Picture]] = {"train": {}, "test": {}}
    for picture in source.read():
        report.rows_in += 1
        if isinstance(picture.image, Bad):
            report.bad_lines.append((picture.number, picture.image.reason))
            report.dropped["not an image with a class, named by number below"] += 1
            continue
        digest = hashlib.sha256(picture.image).digest()
        report.duplicates += digest in splits[picture.split]
        splits[picture.split].setdefault(digest, picture)
    if source.classes and len(source.classes) != images.classes:
        classes_text = len(source.classes)
        raise Stop(
            f"The images have {classes_text} classes, but the recipe says {images.classes}.",
            f"Write `model.classes: {classes_text}`.",
        )
    report.classes = source.classes or [str(label) for label in range(images.classes)]
    # An image in both stays in the test set, which must stay comparable.
    train = splits["train"]
    test = splits["test"]
    both = [(train.pop(digest).named, test[digest].named) for digest in test if digest in train]
    report.shared = len(both)
    report.shared_named = both[:MOST_NAMED]
    pictures = {split: list(kept.values()) for split, kept in splits.items()}
    report.resized = sum(picture.resized for kept in pictures.values() for picture in kept)
    return pictures


def drawn(
    pictures: list[Picture], share: float, seed: int, most: int | None
) -> tuple[list[Picture], list[Picture]]:
    """Training and validation pictures, in all about `most`, the same number of each class, or all
    of them for None. About `share` of each class, at least one, go to validation."""

    def place(picture: Picture) -> tuple[int, bytes]:
        # By a hash, so that another picture does not change the order of the others.
        return picture.label, hashlib.sha256(f"{seed}\n".encode() + picture.image).digest()

    by_class = [
        list(group) for _, group in groupby(sorted(pictures, key=place), attrgetter("label"))
    ]
    train = list[Picture]()
    validation = list[Picture]()
    for group in by_class:
        if most is None:
            chosen = group
        else:
            chosen = group[: max(1, most // len(by_class))]
        kept = max(1, round(share * len(chosen)))
        validation += chosen[:kept]
        train += chosen[kept:]
    return train, validation


def _write(out: Path, splits: dict[str, list[Picture]], size: int, report: ImageReport) -> None:
    """Writes the splits, and in the report the mean and standard deviation of red, green and blue,
    0 to 1."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    for name, pictures in splits.items():
        pixels = pa.array([picture.image for picture in pictures], pa.binary(3 * size * size))
        table = pa.table(
            {
                "image": pixels,
                "label": pa.array([picture.label for picture in pictures], pa.int64()),
            }
        )
        with replacing(out / f"{name}.parquet") as partial:
            pq.write_table(table, partial, compression="zstd")
        report.bytes_after += (out / f"{name}.parquet").stat().st_size
    counts = np.zeros((3, 256))  # of each value
    for picture in splits["train"]:
        flat = np.frombuffer(picture.image, np.uint8).reshape(-1, 3)
        counts += [np.bincount(colour, minlength=256) for colour in flat.T]
    share = counts / counts.sum(axis=1, keepdims=True)
    values = np.arange(256) / 255
    mean = share @ values
    std = np.sqrt(np.maximum((share @ values**2) - mean**2, 0))
    # A constant colour is not scaled, or the borders of cropped images would become enormous.
    std[std < 1 / 255] = 1.0
    report.mean, report.std = ([round(float(value), 6) for value in each] for each in (mean, std))
    report.write(out)
