"""Files at `s3://` addresses: whole copies here, and failures in words. Keys and endpoint come from
the environment."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.tools import packaged
from runner.tools.files import cache_folder, content_hash, replacing
from runner.tools.problem import Stop, Unreachable, first_line

if TYPE_CHECKING:
    from s3fs import S3FileSystem

S3 = "s3://"
# The variables with the server's address, by which S3's own tools know it, and the key of a
# connection's Secret.
ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_S3_ENDPOINT")
SECONDS = 10  # until a server counts as away


class Object(NamedTuple):
    """A file on the server. path: with its bucket; changed: its time of writing, in seconds since
    1970."""

    path: str
    size: int
    etag: str
    changed: float


@contextmanager
def asking(address: str, keys: Mapping[str, str] = MappingProxyType({})) -> Iterator[Any]:
    """The file system of S3, in which a path is `BUCKET/NAME`. keys: variables in the place of the
    environment's. Raises Stop for any error in the block, in words that name the cause."""
    try:
        import s3fs
    except ImportError:
        raise Stop(
            "Files at `s3://` addresses need the package s3fs, which is not installed here.",
            packaged.install("s3"),
        ) from None
    patience = {
        "connect_timeout": SECONDS,
        "read_timeout": 6 * SECONDS,
        "retries": {"max_attempts": 1},
    }
    # No listing is cached, because other processes write too.
    fresh = {"skip_instance_cache": True, "use_listings_cache": False}
    variables = os.environ | keys
    endpoint = next(filter(None, map(variables.get, ENDPOINTS)), None)
    if keys:
        credentials = {"key": keys["AWS_ACCESS_KEY_ID"], "secret": keys["AWS_SECRET_ACCESS_KEY"]}
    else:
        credentials = {}
    place = {"region_name": variables.get("AWS_DEFAULT_REGION")}
    store = s3fs.S3FileSystem(
        endpoint_url=endpoint, client_kwargs=place, config_kwargs=patience, **credentials, **fresh
    )
    try:
        yield store
    except Stop:
        raise
    except Exception as error:  # of botocore, aiohttp and s3fs, some twenty kinds
        raise why(store, address, error) from None


def why(store: S3FileSystem, address: str, error: Exception) -> Stop:
    """An error at an address, in words. Most answers have only a number, so the bucket is asked for
    its reason."""
    bucket = path_of(address).partition("/")[0]
    server = store.endpoint_url or "Amazon S3"
    code = ""
    reason = first_line(error)
    try:
        store.call_s3("list_objects_v2", Bucket=bucket, MaxKeys=1)
    except Exception as refusal:  # of the same kinds
        cause = refusal.__cause__ or refusal
        code = (getattr(cause, "response", None) or {}).get("Error", {}).get("Code") or type(
            cause
        ).__name__
        reason = first_line(refusal)
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "NoCredentialsError"):
        return Stop(
            f"{server} refuses the keys for `{address}`: {reason}",
            "On the cluster, correct `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` in the connection's Secret. Here, set both in the environment.",
        )
    if code in ("NoSuchBucket", "404"):
        return Stop(
            f"{server} has no bucket `{bucket}`.",
            f"Correct the address `{address}`, or create the bucket. Another server needs its own address, `AWS_S3_ENDPOINT` in the connection's Secret.",
        )
    if code in ("AccessDenied", "403") or (not code and isinstance(error, PermissionError)):
        return Stop(
            f"The keys may not read `{address}` at {server}: {reason}",
            "Ask the bucket's owner for the permission, or use a connection with other keys.",
        )
    if code:
        return Unreachable(
            f"{server} does not answer for `{address}`: {reason}",
            "Check the network and the server's address: `AWS_S3_ENDPOINT` in the connection's Secret, or `AWS_ENDPOINT_URL_S3` in the environment.",
        )
    if isinstance(error, FileNotFoundError):
        return Stop(
            f"The bucket `{bucket}` has no file or folder `{address}`.",
            "Correct the address, or upload the file first.",
        )
    return Unreachable(
        f"`{address}` cannot be copied from or to {server}: {reason}",
        "Try again. Complete files stay.",
    )


def path_of(address: str) -> str:
    return address.removeprefix(S3).rstrip("/")


def objects(store: S3FileSystem, address: str) -> dict[str, Object]:
    """The files at an address, by their names below it; the one at it has its own name. Raises
    FileNotFoundError without any."""
    path = path_of(address)
    by_name = {}
    for name, facts in store.find(path, detail=True).items():
        if facts["type"] == "file" and not name.endswith("/"):
            etag = str(facts.get("ETag", "")).strip('"')
            changed = facts["LastModified"].timestamp()
            relative_name = name.removeprefix(path).lstrip("/") or PurePosixPath(path).name
            by_name[relative_name] = Object(name, facts["size"], etag, changed)
    if not by_name:
        raise FileNotFoundError(address)
    return by_name


def etags(stored_files: Mapping[str, Object]) -> dict[str, str]:
    """What tells one version of these files from another."""
    return {name: stored.etag for name, stored in stored_files.items()}


def download(store: S3FileSystem, stored_files: Mapping[str, Object], folder: Path) -> None:
    """Copies files into a folder, each whole or not at all. A copy that has the time and size of
    its original stays. Raises Stop if a file changes meanwhile."""
    for name, stored in stored_files.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise Stop(f"The server named a file outside the folder: {name}")
        if file.is_file() and (file.stat().st_size, file.stat().st_mtime) == (
            stored.size,
            stored.changed,
        ):
            continue
        with replacing(file) as partial:
            store.get_file(stored.path, str(partial))
            now = store.info(stored.path)
            if (partial.stat().st_size, str(now.get("ETag", "")).strip('"')) != (
                stored.size,
                stored.etag,
            ):
                raise Stop(
                    f"`{stored.path}` changed while it was copied.",
                    "Start again once nobody writes there.",
                )
            os.utime(partial, (stored.changed, stored.changed))


@cache
def local(address: str) -> Path:
    """The file or folder at an address, copied to this machine once for each of its versions.
    Raises Stop if it cannot be read."""
    with asking(address) as store:
        stored_files = objects(store, address)
        home = content_hash([address, etags(stored_files)])
        name = PurePosixPath(path_of(address)).name
        # Beside the hub's cache if that has a place of its own, which in pods is on a claim.
        target = Path(os.environ.get("HF_HOME") or cache_folder()) / "s3" / home / name
        if not target.exists():
            # Folders get their name once they are whole; several processes may copy at once.
            partial = target.parent.with_name(f".{home}.{uuid.uuid4().hex}.partial")
            try:
                download(
                    store, stored_files, partial if list(stored_files) == [name] else partial / name
                )
                if not target.parent.exists():
                    partial.rename(target.parent)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return target


@cache
def version(address: str) -> str:
    """A hash that changes with the files at an address; empty if it cannot be read from here."""
    try:
        with asking(address) as store:
            return content_hash(etags(objects(store, address)), 32)
    except Stop:
        return ""
