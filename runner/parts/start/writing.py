"""Writing: a draft becomes a file, with what goes along: its schema, the files that it names, and what is locked of its model."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from runner.check import by_schema
from runner.parts.start.beginning import Draft, beside
from runner.recipe import lock
from runner.recipe.document import Document
from runner.tools import packaged
from runner.tools.problem import Stop


def write(made: Draft, origin: Path) -> list[Path]:
    """Writes the recipe, and what goes with it, which it gives; nothing at all where it has errors."""
    schema = packaged.schema_file(made.origin.data["scenario"])
    with ExitStack() as undo:
        copied = _files(made.files.values(), origin.parent, undo) + _lock(made.origin, origin.parent, undo)
        if made.errors:
            raise Stop(made.errors)
        undo.pop_all()
    made.target.write_text(made.text, encoding="utf-8")
    Path(schema.name).write_text(by_schema.schema_text(made.origin.data["scenario"]), encoding="utf-8")
    return [*copied, Path(schema.name)]


def _files(named: Iterable[str], folder: Path, undo: ExitStack) -> list[Path]:
    """Copies the files that a recipe names from its folder to this one, and tells `undo` what to take away again."""
    files = [name for name in named if not Path(name).is_absolute() and (folder / name).is_file()]
    sources: dict[Path, Path] = {}
    for name in files:
        file = Path(beside(name, folder))
        there = sources.setdefault(file, file if file.exists() else folder / name)
        if not filecmp.cmp(there, folder / name, shallow=False):
            raise Stop(
                f"The copy needs `{folder / name}` as `{file}`, and `{there}` is another file.",
                "Make the copy in another folder, or move that file away.",
            )
    copied = [file for file, source in sources.items() if source != file]
    for file in copied:
        for parent in reversed(file.parents):
            if not parent.exists():
                parent.mkdir()
                undo.callback(parent.rmdir)
        shutil.copyfile(sources[file], file)
        undo.callback(file.unlink)
    return copied


def _lock(document: Document, folder: Path, undo: ExitStack) -> list[Path]:
    """Takes what the lock file beside a recipe says of its model over into this folder's."""
    name, target = str(document.lookup(("model", "base"))), Path(lock.LOCK)
    entry = lock.entries(folder / lock.LOCK).get(name)
    if entry is None or name in lock.entries(target):
        return []
    before = target.read_text(encoding="utf-8") if target.exists() else None
    lock.add(target, name, entry)
    undo.callback(target.unlink) if before is None else undo.callback(target.write_text, before, encoding="utf-8")
    return [target]
