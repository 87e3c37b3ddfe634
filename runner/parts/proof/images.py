"""Images: none that is measured, on the validation side or in the test, is one that is trained on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.parts.proof.faults import Faults
from runner.trainer.proof_record import Proof


def prove(files: Mapping[str, Path], taken_out: int = 0) -> Proof:
    """Judges prepared images (Parquet, column `image`, pixels as bytes). files: by split, `train` among them. taken_out: images that
    were in training and in the test, and are no longer."""
    begun = time.monotonic()
    faults, judged = Faults(), 0
    train = {digest: number for number, digest in _digests(files["train"])}
    for split, file in files.items():
        if split == "train":
            continue
        for number, digest in _digests(file):
            judged += 1
            if digest in train:
                faults.add("image_leak", f"image {number} of {split} is image {train[digest]} of training")
    noted = f"{taken_out:,} images of the test were training images too, and were taken out of training"
    return Proof(
        kind="images",
        rows=len(train),
        judged=judged,
        notes=(noted,) if taken_out else (),
        faults=tuple(faults),
        seconds=round(time.monotonic() - begun, 1),
    )


def _digests(file: Path) -> Iterator[tuple[int, bytes]]:
    """The number of each image, from 1, and a hash of its pixels."""
    from pyarrow import parquet

    number = 0
    with parquet.ParquetFile(file) as table:
        for batch in table.iter_batches(256, columns=["image"]):
            for image in batch.column(0).to_pylist():
                number += 1
                yield number, hashlib.sha256(image).digest()
