"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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
