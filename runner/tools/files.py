"""Files: writing them so that no reader sees half a file, and recognising them by their content."""

import hashlib
import json
import os
import posixpath
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property, lru_cache, wraps
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin, get_type_hints


def settings_folder() -> Path:
    """The folder of the user's settings: `recipe-runner` below XDG_CONFIG_HOME, by default
    `~/.config` (XDG Base Directory Specification 0.8, which ignores relative paths)."""
    return _own_folder("XDG_CONFIG_HOME", "~/.config")


def cache_folder() -> Path:
    """The folder for what can be downloaded again: below XDG_CACHE_HOME, by default `~/.cache`."""
    return _own_folder("XDG_CACHE_HOME", "~/.cache")


def normal(path: str) -> str:
    """A path of a recipe, which has `/` on every system, in its shortest form: without `.`, `..`,
    double slashes and a slash at the end."""
    return posixpath.normpath(f"//{path}" if path.startswith("/") else path)


def remote(path: object) -> bool:
    """Whether it is an address on a server for files (`s3://BUCKET/NAME`, `oci://IMAGE`), not a
    path."""
    return isinstance(path, str) and path.startswith(("s3://", "oci://"))


def in_image(path: object) -> bool:
    """Whether it is the address of an image, `oci://REGISTRY/NAME:TAG`, whose files pods mount."""
    return isinstance(path, str) and path.startswith("oci://")


def _own_folder(variable: str, usual: str) -> Path:
    configured = os.environ.get(variable, "")
    return (
        Path(configured if os.path.isabs(configured) else os.path.expanduser(usual))
        / "recipe-runner"
    )


@dataclass(frozen=True)
class Artifact:
    """A file to write. path: relative to the output folder; text: the complete content."""

    path: str
    text: str


class LazyArtifact(Artifact):
    """An Artifact whose text is written when it is first read, because a command that only judges a
    plan reads none."""

    def __init__(self, path: str, write: Callable[[], str]) -> None:
        object.__setattr__(self, "path", path)
        object.__setattr__(self, "_write", write)

    _write: Callable[[], str]

    @cached_property
    def text(self) -> str:  # read like a field
        return self._write()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives the path of a temporary file, which replaces `path` atomically when the block succeeds,
    and is deleted otherwise. Several processes may write at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        # Windows writes a file to its disk only for somebody who may write it.
        with partial.open("r+b") as written:
            os.fsync(written.fileno())
        _replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


# Windows refuses to replace a file while a program reads it: an editor, a virus scanner.
BUSY_SECONDS = 2.0
BUSY_PAUSE_SECONDS = 0.05


def _replace(partial: Path, path: Path) -> None:
    """Renames a file over another one. On Windows it waits for programs that hold the other one
    open. Raises OSError if they hold it for longer than BUSY_SECONDS."""
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            os.replace(partial, path)
            return
        except PermissionError:
            if sys.platform != "win32" or time.monotonic() > end:
                raise
        time.sleep(BUSY_PAUSE_SECONDS)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Creates an empty folder, which replaces `path` when the block succeeds; else nothing is left.
    For one process at a time; it deletes the folder that a killed one left."""
    partial = path.with_name(f".{path.name}.partial")
    missing_parents = [parent for parent in path.parents if not parent.exists()]
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # they hold the result
            for parent in missing_parents:
                parent.rmdir()


def write_text(path: Path, text: str) -> None:
    """Writes a complete file, or nothing."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The file's content, or None if it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # RecursionError: brackets without end
        return None


def read_record(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing, broken or holds something else."""
    record = read_json(path)
    if isinstance(record, dict):
        return record
    return {}


@dataclass(frozen=True)
class Record:
    """A JSON file as a dataclass in which every field has a default. False if all fields have their
    defaults."""

    FILE: ClassVar[str]  # the file's name in its folder

    def __bool__(self) -> bool:
        return self != type(self)()

    def write(self, folder: Path) -> None:
        write_json(folder / self.FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Self:
        return cls.of(read_record(folder / cls.FILE))

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> Self:
        """A record from JSON of any version or tool. A missing or wrong field gets its default."""
        kinds = get_type_hints(cls)
        values = {}
        for name in (field.name for field in fields(cls) if field.name in facts):
            with suppress(TypeError):
                values[name] = _as(kinds[name], facts[name])
        return cls(**values)


def _as(field_type: object, value: object) -> Any:
    """A JSON value as a value of a type. Raises TypeError if it is not one."""
    outer = get_origin(field_type) or field_type
    inner = get_args(field_type)
    if outer is UnionType:
        for alternative in inner:
            with suppress(TypeError):
                return _as(alternative, value)
    elif outer is Any or type(value) is outer or (outer is float and type(value) is int):
        return value
    elif outer is tuple and isinstance(value, list):
        return tuple(_as(inner[0], item) for item in value)
    elif outer is Mapping and isinstance(value, dict):
        return {name: _as(inner[1], item) for name, item in value.items()}
    elif isinstance(outer, type) and issubclass(outer, Record) and isinstance(value, dict):
        return outer.of(value)
    raise TypeError(field_type)


def write_all(folder: Path, artifacts: Iterable[Artifact]) -> list[Path]:
    """Writes all artifacts below `folder`, or none: each is written beside its place first, then
    all are renamed. Raises OSError if the folder cannot be written to; then nothing has changed."""
    paths: list[Path] = []
    with ExitStack() as renamed:
        for artifact in artifacts:
            path = folder / artifact.path
            if path.is_dir():
                raise IsADirectoryError(21, "a folder already has the name of this file", str(path))
            renamed.enter_context(replacing(path)).write_text(
                artifact.text, encoding="utf-8", newline="\n"
            )
            paths.append(path)
    return paths


def sha256(file: Path) -> str:
    """The file's SHA-256. It is read again only after a change of size or time, because a large
    model takes minutes."""
    facts = file.stat()
    return _sha256(str(file), facts.st_size, facts.st_mtime_ns, facts.st_ino)


@cache
def _sha256(file: str, *_: int) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def content_hash(value: object, length: int = 10) -> str:
    """The first `length` hexadecimal digits of a value's SHA-256; the same on every machine."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def content_of(path: Path) -> str:
    """A hash of a file's content, or of the names and contents of a folder's files; the same for a
    copy."""
    if path.is_file():
        return sha256(path)
    return content_hash(
        [(file.relative_to(path).as_posix(), sha256(file)) for file in _files_below(path)], 32
    )


Made = TypeVar("Made")
# One command asks the same of a file several times, and of few files at once.
KEPT_RESULTS = 4


def once_per_file(function: Callable[[Path], Made]) -> Callable[[Path], Made]:
    """A function of a file that is called again only if the file has changed since. Raises OSError
    if the file cannot be found, and what the function raises."""

    @lru_cache(maxsize=KEPT_RESULTS)
    def of_version(file: Path, _inode: int, _changed_ns: int, _size: int) -> Made:
        return function(file)

    @wraps(function)
    def of_file(file: Path) -> Made:
        facts = file.stat()
        return of_version(file, facts.st_ino, facts.st_mtime_ns, facts.st_size)

    return of_file


def _files_below(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


# Seconds after which no further change of a file can have the same time. FAT counts in two seconds.
SETTLED = 2


@dataclass(frozen=True)
class Stamp(Record):
    """The size of a file, or of all files of a folder, and when they changed. As long as it stays
    the same, so does the content, and nothing has to be read.

    size: bytes. times: a hash of names, sizes, inodes and times. The time is that of the last
    change as the file system counts it (ctime), because programs can set the other one (mtime)."""

    size: int = 0
    times: str = ""


def stamp_of(path: Path) -> tuple[Stamp, bool]:
    """The stamp of a file or a folder, and whether it has settled: a file that changes twice in a
    moment may have the same stamp twice."""
    facts = []
    size = 0
    latest = 0
    for file in [path] if path.is_file() else _files_below(path):
        stat = file.stat()
        name = file.relative_to(path).as_posix()
        facts.append((name, stat.st_size, stat.st_ctime_ns, stat.st_ino))
        size += stat.st_size
        latest = max(latest, stat.st_ctime_ns)
    has_settled = time.time_ns() - latest > SETTLED * 10**9
    return Stamp(size, content_hash(facts, 32)), has_settled


TEXTS = (".txt", ".md")  # the kinds of files in a folder of text
# Of transcripts: in a folder they are texts too, and are read without their times.
SUBTITLES = (".vtt", ".srt", ".sbv")


def is_text_file(file: Path) -> bool:
    """Whether a file is one of plain text, by its name; subtitles are, without their times."""
    return file.suffix.lower() in (*TEXTS, *SUBTITLES)


def text_files(folder: Path) -> list[Path]:
    """The texts below a folder, without those in hidden folders, which belong to programs."""
    files = []
    for file in sorted(folder.rglob("*")):
        if is_text_file(file) and file.is_file() and not is_hidden(file, folder):
            files.append(file)
    return files


def is_hidden(file: Path, folder: Path) -> bool:
    """Whether a file below a folder is hidden, or in a hidden folder."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def saved_by_datasets(folder: Path) -> bool:
    """Whether `save_to_disk` of the library `datasets` wrote this folder."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))
