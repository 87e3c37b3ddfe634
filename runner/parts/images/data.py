"""Images become Parquet files of plain pixels: opened once, without duplicates, every class in training and validation."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from runner.data import RenderedExample
from runner.data.report import REPORT_FILE, SHOWN_BAD_LINES, Report
from runner.data.row_files import Bad
from runner.parts.images.pictures import Images, Picture, PictureReader
from runner.tools.files import content_of, replacing
from runner.tools.names import content_hash
from runner.tools.problem import Stop

SPLITS = ("train", "validation", "test")
# The part of the test images, and one in any case, that may stand in training too: well-kept sets have a handful in 10,000, and
# a folder copied to both has all.
MOST_SHARED = 0.01
# So many of them are named at most, in the file too.
MOST_NAMED = 1000


@dataclass
class ImageReport(Report):
    """Counts of images, and what training must know of them.

    classes: names in the order of their labels. mean, std: of red, green and blue over the training images, 0 to 1.
    shared: images of the test that stand in training too, pixel by pixel, and are taken out there; shared_named: of the first of
    them the one in training, and the one of the test.
    """

    test_rows: int = 0
    resized: int = 0
    shared: int = 0
    shared_named: list[tuple[str, str]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    std: list[float] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield f"images in            {self.rows_in:>9,}   from {self.source}"
        for reason, count in self.dropped.most_common():
            yield f"  dropped            {count:>9,}   {reason}"
        for number, reason in self.bad_lines[:SHOWN_BAD_LINES]:
            yield f"    image {number}: {reason}"
        if len(self.bad_lines) > SHOWN_BAD_LINES:
            yield f"    and {len(self.bad_lines) - SHOWN_BAD_LINES:,} more, all in {REPORT_FILE}"
        if self.resized:
            yield f"scaled               {self.resized:>9,}   to the size that the network reads"
        yield f"exact duplicates     {self.duplicates:>9,}   taken out"
        if self.shared:
            yield f"test in training     {self.shared:>9,}   test images that are training images too; taken out of training"
            yield from self.named_in_both()
        if self.sampled_from is not None:
            yield f"sampled              {self.train_rows + self.validation_rows:>9,}   of {self.sampled_from:,}"
        yield f"classes              {len(self.classes):>9,}   {', '.join(self.classes[:10])}"
        yield f"training images      {self.train_rows:>9,}"
        yield f"validation images    {self.validation_rows:>9,}   the same share of each class, drawn from all that is not test"
        yield f"test images          {self.test_rows:>9,}   measured once, at the end"

    def named_in_both(self) -> Iterator[str]:
        """The first images that stand in training and in the test."""
        for training, test in self.shared_named[:SHOWN_BAD_LINES]:
            yield f"    {training} is {test}"
        if self.shared > SHOWN_BAD_LINES:
            yield f"    and {self.shared - SHOWN_BAD_LINES:,} more, in {REPORT_FILE}"


def prepare(
    images: Images,
    out: Path,
    *,
    sample_rows: int | None = None,
    **_unused: Any,
) -> ImageReport:
    """Writes `train.parquet`, `validation.parquet` and `test.parquet` (columns `image`, pixels as bytes, height × width ×
    3, and `label`) and `report.json`. A no-op where they lie there already.

    sample_rows: keep at most so many images, drawn by the seed, the same number of each class.
    Raises Stop where a class has too few images to train and to validate on.
    """
    key = _key(images, sample_rows)
    known = ImageReport.read(out)
    if known and all((out / f"{split}.parquet").is_file() for split in SPLITS):
        # On a cluster the images may have been brought there prepared; their source then is elsewhere.
        elsewhere = images.file and not images.file.exists()
        if known.key == key or elsewhere:
            return known
    report = ImageReport(key=key, source=images.name)
    splits = _read(images, report)
    _require_few_shared(report, len(splits["test"]), out)
    pictures = splits["train"]
    if sample_rows is not None and len(pictures) > sample_rows:
        report.sampled_from = len(pictures)
        pictures = sample(pictures, sample_rows, images.seed)
    train, validation = train_and_validation(pictures, images.validation_share, images.seed)
    _judge(train, validation, report)
    report.train_rows, report.validation_rows = len(train), len(validation)
    report.test_rows = len(splits["test"])
    _write(out, dict(zip(SPLITS, (train, validation, splits["test"]), strict=True)), images.image_size, report)
    return report


def first(images: Images) -> Iterator[RenderedExample]:
    """The images that are trained and validated on, one after the other, in the size that the network reads, with their class."""
    from PIL import Image

    source, side = PictureReader(images), images.image_size
    for split, _, picture in source.read():
        if split == "train" and isinstance(picture, Picture):
            name = source.classes[picture.label] if source.classes else str(picture.label)
            drawn = io.BytesIO()
            Image.frombytes("RGB", (side, side), picture.pixels).save(drawn, "PNG")
            yield RenderedExample("", f"{name} ({picture.named})" if picture.named else name, drawn.getvalue())


def _key(images: Images, sample_rows: int | None) -> str:
    """Changes with everything that the result depends on, of a folder of images the folder of each too: it is its class."""
    content = content_of(images.file) if images.file and images.file.exists() else ""
    return content_hash([asdict(images), content, sample_rows], 32)


def _read(images: Images, report: ImageReport) -> dict[str, list[Picture]]:
    """Every picture once, by split. The same picture with two classes would teach nothing, so the first one counts."""
    source = PictureReader(images)
    splits: dict[str, dict[bytes, Picture]] = {"train": {}, "test": {}}
    for split, number, picture in source.read():
        report.rows_in += 1
        if isinstance(picture, Bad):
            report.bad_lines.append((number, picture.reason))
            report.dropped["not an image with a class, named by number below"] += 1
            continue
        digest = hashlib.sha256(picture.pixels).digest()
        if digest in splits[split]:
            report.duplicates += 1
            continue
        splits[split][digest] = picture
    if source.classes and len(source.classes) != images.classes:
        raise Stop(
            f"The images are of {len(source.classes)} classes, and the recipe says {images.classes}.",
            f"Write `model.classes: {len(source.classes)}`.",
        )
    report.classes = source.classes or [str(label) for label in range(images.classes)]
    _take_apart(splits["train"], splits["test"], report)
    pictures = {split: list(kept.values()) for split, kept in splits.items()}
    report.resized = sum(picture.resized for kept in pictures.values() for picture in kept)
    return pictures


def _take_apart(train: dict[bytes, Picture], test: dict[bytes, Picture], report: ImageReport) -> None:
    """An image of both stays in the test, which is to be that of everybody else. Pictures by the hash of their pixels."""
    both = [(train.pop(digest).named, test[digest].named) for digest in test if digest in train]
    report.shared, report.shared_named = len(both), both[:MOST_NAMED]


def _require_few_shared(report: ImageReport, of: int, out: Path) -> None:
    """Raises Stop where training has more than a small share of the test: then one was made of the other."""
    count = report.shared
    if count <= max(1, MOST_SHARED * of):
        return
    # As the report of no data, so that nothing is named that is not to be found.
    report.key = ""
    report.write(out)
    said = "\n".join(report.named_in_both())
    raise Stop(
        f"{count:,} of {of:,} test images stand in training too ({count / of:.1%}), and {MOST_SHARED:.0%} may: "
        f"the accuracy on the test would be that of images learned by heart.\n{said}",
        "Delete them from one of the two, or name another test split.",
    )


def sample(pictures: list[Picture], count: int, seed: int) -> list[Picture]:
    """About `count` pictures, as many of each class as the smallest gives, drawn in an order that the seed fixes."""
    by_class = _by_class(pictures, seed)
    each = max(1, count // len(by_class))
    return [picture for group in by_class.values() for picture in group[:each]]


def train_and_validation(pictures: list[Picture], share: float, seed: int) -> tuple[list[Picture], list[Picture]]:
    """Training and validation pictures; from each class about `share` of its pictures, at least one, go to validation."""
    train: list[Picture] = []
    validation: list[Picture] = []
    for group in _by_class(pictures, seed).values():
        kept = max(1, round(share * len(group)))
        validation += group[:kept]
        train += group[kept:]
    return train, validation


def _by_class(pictures: list[Picture], seed: int) -> dict[int, list[Picture]]:
    # A hash, so that one more picture does not redraw all the others.
    drawn = sorted(pictures, key=lambda picture: hashlib.sha256(f"{seed}\n".encode() + picture.pixels).digest())
    groups: dict[int, list[Picture]] = {}
    for picture in drawn:
        groups.setdefault(picture.label, []).append(picture)
    return dict(sorted(groups.items()))


def _judge(train: list[Picture], validation: list[Picture], report: ImageReport) -> None:
    there = {picture.label for picture in train} & {picture.label for picture in validation}
    if lacking := [name for label, name in enumerate(report.classes) if label not in there]:
        lines = "\n".join(report.lines())
        raise Stop(
            f"These classes have too few images to train and to validate on: {', '.join(lacking[:10])}.\n{lines}",
            "Each class needs at least two different images.",
        )


def _write(out: Path, splits: dict[str, list[Picture]], size: int, report: ImageReport) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    kind = pa.binary(3 * size * size)
    for name, pictures in splits.items():
        table = pa.table(
            {
                "image": pa.array([picture.pixels for picture in pictures], kind),
                "label": pa.array([picture.label for picture in pictures], pa.int64()),
            }
        )
        with replacing(out / f"{name}.parquet") as partial:
            pq.write_table(table, partial, compression="zstd")
        report.bytes_after += (out / f"{name}.parquet").stat().st_size
    report.mean, report.std = _colours(splits["train"])
    report.write(out)


def _colours(pictures: list[Picture]) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of red, green and blue, 0 to 1, from counts of the 256 values each may have."""
    counts = np.zeros((3, 256))
    for picture in pictures:
        pixels = np.frombuffer(picture.pixels, np.uint8).reshape(-1, 3)
        for colour in range(3):
            counts[colour] += np.bincount(pixels[:, colour], minlength=256)
    share = counts / counts.sum(axis=1, keepdims=True)
    values = np.arange(256) / 255
    mean = share @ values
    std = np.sqrt(np.maximum((share @ values**2) - mean**2, 0))
    # A colour that is the same everywhere has nothing to be scaled by, and the borders of cropped images would become enormous.
    std[std < 1 / 255] = 1.0
    return [round(float(value), 6) for value in mean], [round(float(value), 6) for value in std]
