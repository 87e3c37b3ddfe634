"""ZIP files with data: unpacked once into the cache."""

from contextlib import suppress
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
MOST_BYTES = 50 * 2**30  # of all files together; more is a mistake, or a trap


@once_per_file
def unpacked(file: Path) -> Path:
    """The only file of an archive beside pictures, sound and video, else the folder with all of
    them. Raises Unreadable."""
    folder = cache_folder() / "archives" / sha256(file)
    if not folder.is_dir():
        _unpack(file, folder)
    files = [entry for entry in folder.rglob("*") if entry.is_file()]
    if not files:
        raise Unreadable("it has no files.")
    with_words = [file for file in files if file.suffix.lower() not in MEDIA]
    if len(with_words) == 1:
        return with_words[0]
    while len(list(folder.iterdir())) == 1:
        (folder,) = folder.iterdir()
    return folder


def _unpack(file: Path, folder: Path) -> None:
    """Writes the files of an archive into a folder, all or none."""
    from zipfile import BadZipFile, ZipFile  # few checks need it

    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with ZipFile(file) as archive, TemporaryDirectory(dir=folder.parent) as place:
            entries = [entry for entry in archive.infolist() if not _is_beside(entry.filename)]
            size = sum(entry.file_size for entry in entries)
            if size > MOST_BYTES:
                raise Unreadable(f"it would become {size / 2**30:,.0f} GiB when it is unpacked.")
            unpacking = Path(place) / "files"
            unpacking.mkdir()
            archive.extractall(unpacking, entries)
            with suppress(OSError):  # another process was faster
                unpacking.rename(folder)
    except BadZipFile:
        raise Unreadable("it is not a ZIP file.") from None
    except RuntimeError:  # of zipfile, for a password
        raise Unreadable(
            "it is protected by a password.", hint="Unpack it, and name the file that is inside."
        ) from None


def _is_beside(name: str) -> bool:
    """Whether a file is one that macOS or Windows puts beside a person's own."""
    parts = PurePosixPath(name).parts
    return any(part.startswith((".", "__MACOSX")) for part in parts) or parts[-1] in BESIDE
