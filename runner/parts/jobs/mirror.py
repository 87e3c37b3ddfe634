"""The mirror of a run on an S3 server: what pods leave on the claim goes there too, and comes back
if the claim has lost it.

Every transfer of a stage ends with a manifest of all its files. Files without a manifest count for
nothing, so that half a transfer is never taken for a whole one. `STAGE/manifest.json` is of the
stage's end, `STAGE/manifest-N.json` of its checkpoints up to step N."""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from runner.data import object_store
from runner.plan import Plan, Stage
from runner.run.run_folder import StageFolder
from runner.tools.files import Record, sha256
from runner.tools.problem import Stop, Tell, first_line
from runner.tools.run_files import (
    CHECKPOINTS,
    COMPLETE,
    FETCHED,
    LATEST_IMAGES,
    LEFT,
    PAGE,
    RUN,
    SERVING,
    STAGE,
)

if TYPE_CHECKING:
    from s3fs import S3FileSystem

SECONDS = 5.0  # between two looks for a new checkpoint
SMALL = 2**24  # bytes; larger files, such as weights, are written once
DATA = "prepared"  # where the files of a data stage's results are, beside its records


@dataclass(frozen=True)
class Manifest(Record):
    """A stage's files on the server."""

    FILE = "manifest.json"
    key: str = ""  # of the Stage that made them
    step: int = 0  # of its last checkpoint
    ended: bool = False  # the stage has finished
    # By their name in the stage's folder, each with its place (`at`), `size` and `sha256`.
    files: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file_name(self) -> str:
        if self.ended:
            return self.FILE
        return f"manifest-{self.step}.json"

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file by its place."""
        return {entry["at"]: entry["sha256"] for entry in self.files.values()}


def address_of(plan: Plan, stage: Stage | None = None) -> str:
    """The address of a plan's mirror, or of one of its stages there; empty without a mirror."""
    mirror = (plan.site.mirror or "").rstrip("/")
    if not mirror:
        return ""
    address = f"{mirror}/{plan.name}"
    if stage:
        return f"{address}/{stage.name}"
    return address


def newest(store: S3FileSystem, address: str, key: str | None = None) -> Manifest | None:
    """The last manifest of a stage, with this key if one is given; None without one."""
    fitting = []
    for manifest in _manifests(store, address).values():
        if key is None or key == manifest.key:
            fitting.append(manifest)
    return max(fitting, key=lambda manifest: (manifest.ended, manifest.step), default=None)


def _manifests(store: S3FileSystem, address: str) -> dict[str, Manifest]:
    """The manifests of a stage by their paths. A broken one counts as missing."""
    manifests = {}
    folder = object_store.path_of(address)
    with suppress(FileNotFoundError):
        for path in store.ls(folder, detail=False):
            if re.fullmatch(r"manifest(-\d+)?\.json", path.rpartition("/")[2]):
                with suppress(ValueError):
                    manifests[path] = Manifest.of(json.loads(store.cat_file(path)))
    return manifests


def send(folder: StageFolder) -> None:
    """Sends what a stage has left so far. Files that are there already stay. Raises Stop if the
    server refuses or is away; the transfer before it then still counts, unless the stage's files
    have changed since."""
    address = address_of(folder.plan, folder.stage)
    key = folder.stage.keys[""]
    ended = folder.finished
    local_files = _files(folder)
    step = max(_checkpoints(folder), default=0)
    files = dict[str, dict[str, Any]]()
    with TemporaryDirectory(prefix="mirror-") as still:
        for name, file in local_files.items():
            path_there = name
            if not ended and not name.startswith((CHECKPOINTS, DATA)):
                # Records change with every step: each transfer has its own, so that an older one
                # stays whole.
                path_there = f"step-{step}/{name}"
            if path_there != name or file.stat().st_size < SMALL:
                # Records and logs are written while files are sent. A copy is sent as it was
                # hashed.
                local_files[name] = file = shutil.copyfile(file, Path(still, str(len(files))))
            files[name] = {"at": path_there, "size": file.stat().st_size, "sha256": sha256(file)}
        _send(address, local_files, Manifest(key, step, ended, files))


def _send(address: str, local_files: Mapping[str, Path], manifest: Manifest) -> None:
    """Sends the files of a manifest that are not there yet, then the manifest, and deletes what it
    does not name."""
    with object_store.asking(address) as store:
        root = object_store.path_of(address)
        older_manifests = _manifests(store, address)
        digests_there = dict[str, str]()
        for path, older in older_manifests.items():
            digests_there |= older.digests
            if _is_replaced(older, manifest):
                store.rm_file(path)
        for name, entry in manifest.files.items():
            if digests_there.get(entry["at"]) != entry["sha256"]:
                store.put_file(str(local_files[name]), f"{root}/{entry['at']}")
        manifest_path = f"{root}/{manifest.file_name}"
        store.pipe_file(manifest_path, json.dumps(asdict(manifest), indent=1).encode())
        kept = {manifest_path}
        for place in manifest.digests:
            kept.add(f"{root}/{place}")
        others = set(store.find(root)) - kept
        # An older manifest goes before its files.
        for path in sorted(others, key=lambda path: path not in older_manifests):
            store.rm_file(path)


def _is_replaced(older: Manifest, manifest: Manifest) -> bool:
    """Whether one of the older manifest's files is about to be replaced by another one."""
    digests = manifest.digests
    return any(digests.get(place, digest) != digest for place, digest in older.digests.items())


def _files(folder: StageFolder) -> dict[str, Path]:
    """What a stage has left, by names in its folder: whole checkpoints, and everything else except
    what all recipes share or can be made again."""
    files = {name: folder.run.path / name for name in (RUN, PAGE)}
    if folder.prepares:
        for file in folder.results.rglob("*"):
            if file.name != STAGE:
                files[f"{DATA}/{file.relative_to(folder.results)}"] = file
    for home in (*_records(folder), *_checkpoints(folder).values()):
        for file in (home, *home.rglob("*")):
            files[str(file.relative_to(folder.path))] = file
    existing = {}
    for name, file in files.items():
        # A file that is being written has such a name.
        if file.is_file() and ".partial" not in name:
            existing[name] = file
    return existing


def _records(folder: StageFolder) -> Iterator[Path]:
    """The files and folders that a stage has left, without those of checkpoints."""
    for pattern in LEFT:
        if pattern not in (CHECKPOINTS, SERVING):
            yield from folder.path.glob(pattern)


def _checkpoints(folder: StageFolder) -> dict[int, Path]:
    """The whole checkpoints of the stage as it is now, by their steps."""
    checkpoints = []
    for file in Path(folder.place.checkpoints_dir).glob(f"checkpoint-*/{COMPLETE}"):
        checkpoints.append(file.parent)
    return {int(home.name.rpartition("-")[2]): home for home in checkpoints}


def _local(folder: StageFolder, name: str) -> Path | None:
    if name in (RUN, PAGE):
        file = folder.run.path / name
        # of the whole run: the present one is newer
        if file.exists():
            return None
        return file
    if name.startswith(f"{DATA}/"):
        return folder.results / name.removeprefix(f"{DATA}/")
    return folder.path / name


def read(store: S3FileSystem, address: str, manifest: Manifest, name: str) -> bytes:
    """The content of a file of a manifest."""
    content: bytes = store.cat_file(f"{object_store.path_of(address)}/{manifest.files[name]['at']}")
    return content


def restore(folder: StageFolder, tell: Tell) -> None:
    """Copies finished stages, and the last whole checkpoint of this one, from the mirror if the
    claim has none or older ones. Raises Stop if the server cannot be read."""
    for stage in folder.plan.stages:
        stage_folder = StageFolder(folder.plan, stage)
        is_current = stage_folder.state.keys.get("") == stage.keys[""]
        if stage_folder.fetches or (is_current and stage_folder.finished):
            continue
        address = address_of(folder.plan, stage)
        with object_store.asking(address) as store:
            manifest = newest(store, address, stage.keys[""])
            last_step = -1
            if is_current:
                last_step = max(_checkpoints(stage_folder), default=0)
            if manifest is None:
                continue
            is_newer = stage == folder.stage and manifest.step > last_step
            if not manifest.ended and not is_newer:
                continue
            copy(store, address, manifest, partial(_local, stage_folder), stage_folder.path)
        if manifest.ended:
            content = "its results"
        else:
            content = f"its checkpoint at step {manifest.step:,}"
        tell(f"{stage.name}: {content} came from the mirror `{address}`")
        model = stage.config.get("model")
        if model and stage_folder.prepares and not (Path(model["folder"]) / FETCHED).is_file():
            stage_folder.mark("begun")  # which downloads the model, and keeps the rows


def copy(
    store: S3FileSystem,
    address: str,
    manifest: Manifest,
    place: Callable[[str], Path | None],
    folder: Path,
) -> int:
    """Copies the files of a manifest to their places, None for nowhere; returns how many were not
    there yet. Nothing is replaced until all are here. folder: for copies meanwhile. Raises Stop if
    one is not as recorded."""
    root = object_store.path_of(address)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".mirror-") as scratch:
        came: list[tuple[bool, Path, Path]] = []
        for name, entry in manifest.files.items():
            target = place(name)
            half = Path(scratch) / str(len(came))
            if target is None or (target.is_file() and sha256(target) == entry["sha256"]):
                continue
            store.get_file(f"{root}/{entry['at']}", str(half))
            if half.stat().st_size != entry["size"] or sha256(half) != entry["sha256"]:
                raise Stop(
                    f"`{name}` in the mirror `{address}` is not as it was sent, so nothing was copied from there.",
                    "Delete that folder of the mirror. The next transfer sends everything again.",
                )
            came.append((name.endswith((STAGE, COMPLETE)), half, target))
        # The records that make the others count come last.
        for _, half, target in sorted(came, key=lambda arrival: arrival[0]):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(half, target)
    return len(came)


@contextmanager
def following(folder: StageFolder, tell: Tell) -> Iterator[None]:
    """Sends each new checkpoint while the block trains; after a failure, together with the next
    one."""
    over = threading.Event()

    def saved() -> set[tuple[Path, int]]:
        marks = [home / COMPLETE for home in _checkpoints(folder).values()] + [
            folder.path / LATEST_IMAGES
        ]
        return {(file, file.stat().st_mtime_ns) for file in marks if file.exists()}

    def work() -> None:
        sent = before
        while not over.wait(SECONDS):
            with suppress(FileNotFoundError):  # training has deleted an old checkpoint meanwhile
                if (now := saved()) - sent:
                    sent = now
                    attempt(folder, tell)

    if not address_of(folder.plan):
        yield
        return
    before = saved()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def attempt(folder: StageFolder, tell: Tell) -> None:
    """Sends what a stage has left, if there is a mirror, or says why that failed."""
    if not address_of(folder.plan) or folder.fetches:
        return
    try:
        send(folder)
    except (Stop, OSError) as error:  # OSError: training has deleted an old checkpoint meanwhile
        if isinstance(error, Stop):
            reason = error.text
        else:
            reason = str(error)
        tell(
            "\n".join(
                (
                    f"The mirror lacks the latest files, because of this: {reason}",
                    f"Nothing is lost; all files are in `{folder.path}`. The next checkpoint, or the end of the stage, tries again.",
                )
            )
        )


def require_access(address: str) -> None:
    """Lists, writes and deletes at an address. Raises Stop if one of these is not allowed."""
    with object_store.asking(address) as store:
        probe = f"{object_store.path_of(address)}/.recipe-runner-{uuid.uuid4().hex}"
        store.call_s3("list_objects_v2", Bucket=probe.partition("/")[0], MaxKeys=1)
        try:
            store.pipe_file(probe, b"recipe-runner")
            store.rm_file(probe)
        except PermissionError as error:
            raise Stop(
                f"The keys may read `{address}`, but not write and delete there: {first_line(error)}",
                "Ask the bucket's owner for the permission, or use a connection with other keys.",
            ) from None


def begin(folder: StageFolder, tell: Tell) -> None:
    """Makes the claim at least as new as the mirror. Raises Stop if a stage without a GPU may not
    read and write there; a training continues with the files of the claim."""
    address = address_of(folder.plan)
    if not address.startswith(object_store.S3):
        return
    try:
        if not folder.stage.trains:
            require_access(address)
        restore(folder, tell)
    except Stop as stop:
        if not folder.stage.trains:
            raise
        tell(stop.text)
