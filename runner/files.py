"""Files: written so that a reader never sees half of one, and told apart by what they hold."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from runner.names import content_hash
from runner.plan import Artifact


def write_text(path: Path, text: str) -> None:
    """Writes beside the file and renames over it, which is atomic on one file system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The file's content, or None where it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the last for brackets without end
        return None


def write_all(folder: Path, artifacts: Iterable[Artifact]) -> list[Path]:
    """Writes all artifacts below `folder`, or none: each is written beside its place first, then all are renamed.

    Raises OSError where the folder cannot be written to; then nothing has changed.
    """
    staged: list[tuple[Path, Path]] = []
    try:
        for artifact in artifacts:
            path = folder / artifact.path
            if path.is_dir():
                raise IsADirectoryError(21, "a folder stands where this file belongs", str(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
            staged.append((partial, path))
            partial.write_text(artifact.text, encoding="utf-8", newline="\n")
    except OSError:
        for partial, _ in staged:
            partial.unlink(missing_ok=True)
        raise
    for partial, path in staged:
        os.replace(partial, path)
    return [path for _, path in staged]


def sha256(file: Path) -> str:
    """The file's SHA-256; read once a process as long as size and time stay, because models take minutes."""
    facts = file.stat()
    return _sha256(str(file), facts.st_size, facts.st_mtime_ns, facts.st_ino)


@cache
def _sha256(file: str, *_: int) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def content_of(path: Path) -> str:
    """A hash of what a file holds; of a folder, which may be too large to read at every start, of its files' names, sizes
    and times."""
    if path.is_file():
        return sha256(path)
    files = sorted(file for file in path.rglob("*") if file.is_file())
    facts = [(str(file.relative_to(path)), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return content_hash(facts, 32)
