"""ZIP files and gzip files with data: unpacked once into the cache."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from runner.data.row_files import Unreadable
from runner.tools.files import cache_folder, once_per_file, sha256

BESIDE = ("Thumbs.db", "desktop.ini")
# Of what people send in a chat, whose export has it beside the words.
MEDIA = (
    *(".jpg", ".jpeg", ".png", ".gif", ".webp", ".heic", ".mp3", ".mp4", ".wav", ".m4a", ".mov"),
    *(".avi", ".mkv", ".ogg", ".opus", ".3gp", ".vcf", ".pdf"),
)
BLOCK_BYTES = 2**20
MOST_BYTES = 50 * 2**30  # of all files together; more is a mistake, or a trap


def is_packed(file: Path) -> bool:
    """Whether a name is one of a ZIP file, or of a single file in gzip."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes[-1:] == [".gz"]:
        return len(suffixes) > 1 and suffixes[-2] != ".tar"
    return suffixes[-1:] == [".zip"]


@once_per_file
def unpacked(file: Path) -> Path:
    """The only file of an archive beside pictures, sound and video, else the folder with all of
    them. Raises Unreadable."""
    folder = cache_folder() / "archives" / sha256(file)
    if not folder.is_dir():
        unpack = _unpack_gzip if file.suffix.lower() == ".gz" else _unpack_zip
        with _new_folder(folder) as unpacking:
            unpack(file, unpacking)
    files = [entry for entry in folder.rglob("*") if entry.is_file()]
    if not files:
        raise Unreadable("it has no files.")
    with_words = [file for file in files if file.suffix.lower() not in MEDIA]
    if len(with_words) == 1:
        return with_words[0]
    while len(list(folder.iterdir())) == 1:
        (folder,) = folder.iterdir()
    return folder


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder that gets the name of `folder` when the block succeeds, unless another
    process was faster; else nothing is left."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as place:
        unpacking = Path(place) / "files"
        unpacking.mkdir()
        yield unpacking
        with suppress(OSError):
            unpacking.rename(folder)


def _unpack_zip(file: Path, folder: Path) -> None:
    from zipfile import BadZipFile, ZipFile  # few checks need it

    try:
        with ZipFile(file) as archive:
            entries = [entry for entry in archive.infolist() if not _is_beside(entry.filename)]
            _require_space(sum(entry.file_size for entry in entries))
            archive.extractall(folder, entries)
    except BadZipFile:
        raise Unreadable("it is not a ZIP file.") from None
    except RuntimeError:  # of zipfile, for a password
        raise Unreadable(
            "it is protected by a password.", hint="Unpack it, and name the file that is inside."
        ) from None


def _unpack_gzip(file: Path, folder: Path) -> None:
    import gzip  # few checks need it
    import zlib

    try:
        with gzip.open(file) as content, (folder / file.stem).open("wb") as target:
            for block in iter(lambda: content.read(BLOCK_BYTES), b""):
                target.write(block)
                _require_space(target.tell())
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise Unreadable("it is not a whole gzip file.", hint="Download it again.") from None


def _require_space(size: int) -> None:
    """Raises Unreadable for more bytes than data has."""
    if size > MOST_BYTES:
        raise Unreadable(f"it would become {size / 2**30:,.0f} GiB when it is unpacked.")


def _is_beside(name: str) -> bool:
    """Whether a file is one that macOS or Windows puts beside a person's own."""
    parts = PurePosixPath(name).parts
    return any(part.startswith((".", "__MACOSX")) for part in parts) or parts[-1] in BESIDE
