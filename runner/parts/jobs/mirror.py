"""The mirror of a run on an S3 server: what pods leave on the claim goes there too, and comes back
if the claim has lost it.

Every transfer of a stage ends with a manifest of all its files. Files without a manifest count for
nothing, so that half a transfer is never taken for a whole one. `STAGE/manifest.json` is of the
stage's end, `STAGE/manifest-N.json` of its checkpoints up to step N."""

import json
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.data import object_store
from runner.plan import Plan, Stage
from runner.run.run_folder import StageFolder
from runner.tools.files import Record, sha256
from runner.tools.problem import Stop, Tell, first_line, worded
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

SECONDS = 5.0  # between two looks for a new checkpoint
SMALL = 2**24  # bytes; larger files, such as weights, are written once
DATA = "prepared"  # where the files of a data stage's results are, beside its records


@dataclass(frozen=True)
class Manifest(Record):
    """A stage's files on the server. key: of the Stage that made them; step: of its last
    checkpoint; files: by their name in the stage's folder, each with its place (`at`), `size` and
    `sha256`."""

    FILE = "manifest.json"
    key: str = ""
    step: int = 0
    ended: bool = False
    files: Mapping[str, Any] = field(default_factory=dict)


def address_of(plan: Plan, stage: Stage | None = None) -> str:
    """The address of a plan's mirror, or of one of its stages there; empty without a mirror."""
    mirror = str(plan.site.get("mirror") or "").rstrip("/")
    if mirror:
        return "/".join((mirror, plan.name, *([stage.name] if stage else [])))
    return ""


def newest(store: Any, address: str, key: str | None = None) -> Manifest | None:
    """The last manifest of a stage, with this key if one is given; None without one."""
    fitting = [one for one in _manifests(store, address).values() if key in (None, one.key)]
    return max(fitting, key=lambda one: (one.ended, one.step), default=None)


def _manifests(store: Any, address: str) -> dict[str, Manifest]:
    """The manifests of a stage by their paths. A broken one counts as missing."""
    found = {}
    folder = object_store.path_of(address)
    with suppress(FileNotFoundError):
        for path in store.ls(folder, detail=False):
            if re.fullmatch(r"manifest(-\d+)?\.json", path.rpartition("/")[2]):
                with suppress(ValueError):
                    found[path] = Manifest.of(json.loads(store.cat_file(path)))
    return found


def send(folder: StageFolder) -> None:
    """Sends what a stage has left so far. Files that are there already stay. Raises Stop if the
    server refuses or is away; the transfer before it then still counts, unless the stage's files
    have changed since."""
    address = address_of(folder.plan, folder.stage)
    key = folder.stage.keys[""]
    ended = folder.finished
    here = _files(folder)
    step = max(_checkpoints(folder), default=0)
    files = dict[str, dict[str, Any]]()
    with TemporaryDirectory(prefix="mirror-") as still:
        for name, file in here.items():
            # Records change with every step: each transfer has its own, so that an older one stays
            # whole.
            if ended or name.startswith((CHECKPOINTS, DATA)):
                at = name
            else:
                at = f"step-{step}/{name}"
            if at != name or file.stat().st_size < SMALL:
                # Records and logs are written while files are sent. A copy is sent as it was
                # hashed.
                here[name] = file = shutil.copyfile(file, Path(still, str(len(files))))
            files[name] = {"at": at, "size": file.stat().st_size, "sha256": sha256(file)}
        _send(address, here, Manifest(key, step, ended, files))


def _send(address: str, here: Mapping[str, Path], made: Manifest) -> None:
    """Sends the files of a manifest that are not there yet, then the manifest, and deletes what it
    does not name."""
    with object_store.asking(address) as store:
        root = object_store.path_of(address)
        before = _manifests(store, address)
        there = {
            one["at"]: one["sha256"] for each in before.values() for one in each.files.values()
        }
        new = {one["at"]: one["sha256"] for one in made.files.values()}
        for path, each in before.items():
            if any(
                new.get(one["at"], one["sha256"]) != one["sha256"] for one in each.files.values()
            ):
                store.rm_file(path)  # its files are about to be replaced
        for name, one in made.files.items():
            if there.get(one["at"]) != one["sha256"]:
                store.put_file(str(here[name]), f"{root}/{one['at']}")
        last = f"{root}/{made.FILE if made.ended else f'manifest-{made.step}.json'}"
        store.pipe_file(last, json.dumps(asdict(made), indent=1).encode())
        keep = {last, *(f"{root}/{at}" for at in new)}
        for old in sorted(
            set(store.find(root)) - keep, key=lambda path: path not in before
        ):  # manifests first
            store.rm_file(old)


def _files(folder: StageFolder) -> dict[str, Path]:
    """What a stage has left, by names in its folder: whole checkpoints, and everything else except
    what all recipes share or can be made again."""
    found = {name: file for name in (RUN, PAGE) if (file := folder.run.path / name).is_file()}
    if folder.prepares:
        rows = (file for file in folder.results.rglob("*") if file.name != STAGE)
        found |= {f"{DATA}/{file.relative_to(folder.results)}": file for file in rows}
    homes = [
        path
        for pattern in LEFT
        if pattern not in (CHECKPOINTS, SERVING)
        for path in folder.path.glob(pattern)
    ]
    for home in (*homes, *_checkpoints(folder).values()):
        inner: Iterable[Path] = [home]
        if home.is_dir():
            inner = home.rglob("*")
        found |= {str(file.relative_to(folder.path)): file for file in inner}
    # A file that is being written has such a name.
    return {name: file for name, file in found.items() if file.is_file() and ".partial" not in name}


def _checkpoints(folder: StageFolder) -> dict[int, Path]:
    """The whole checkpoints of the stage as it is now, by their steps."""
    whole = [
        file.parent for file in Path(folder.place.checkpoints_dir).glob(f"checkpoint-*/{COMPLETE}")
    ]
    return {int(home.name.rpartition("-")[2]): home for home in whole}


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


def read(store: Any, address: str, known: Manifest, name: str) -> bytes:
    """The content of a file of a manifest."""
    content: bytes = store.cat_file(f"{object_store.path_of(address)}/{known.files[name]['at']}")
    return content


def restore(folder: StageFolder, tell: Tell) -> None:
    """Copies finished stages, and the last whole checkpoint of this one, from the mirror if the
    claim has none or older ones. Raises Stop if the server cannot be read."""
    for stage in folder.plan.stages:
        one = StageFolder(folder.plan, stage)
        mine = one.state.keys.get("") == stage.keys[""]
        if one.fetches or (mine and one.finished):
            continue
        with object_store.asking(address := address_of(folder.plan, stage)) as store:
            known = newest(store, address, stage.keys[""])
            if mine:
                here = max(_checkpoints(one), default=0)
            else:
                here = -1
            if known is None or not (known.ended or (stage == folder.stage and known.step > here)):
                continue
            copy(store, address, known, partial(_local, one), one.path)
        if known.ended:
            what = "its results"
        else:
            what = f"its checkpoint at step {known.step:,}"
        tell(worded("jobs.restored", stage=stage, what=what, address=address)[0])
        model = stage.config.get("model")
        if model and one.prepares and not (Path(model["folder"]) / FETCHED).is_file():
            one.mark("begun")  # which downloads the model, and keeps the rows


def copy(
    store: Any, address: str, known: Manifest, place: Callable[[str], Path | None], folder: Path
) -> int:
    """Copies the files of a manifest to their places, None for nowhere; returns how many were not
    there yet. Nothing is replaced until all are here. folder: for copies meanwhile. Raises Stop if
    one is not as recorded."""
    root = object_store.path_of(address)
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".mirror-") as whole:
        came: list[tuple[bool, Path, Path]] = []
        for name, one in known.files.items():
            target = place(name)
            half = Path(whole) / str(len(came))
            if target is None or (target.is_file() and sha256(target) == one["sha256"]):
                continue
            store.get_file(f"{root}/{one['at']}", str(half))
            if half.stat().st_size != one["size"] or sha256(half) != one["sha256"]:
                raise Stop(*worded("jobs.not-as-sent", name=name, address=address))
            came.append((name.endswith((STAGE, COMPLETE)), half, target))
        # The records that make the others count come last.
        for _, half, target in sorted(came, key=lambda each: each[0]):
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
        tell("\n".join(worded("jobs.not-mirrored", reason=reason, path=folder.path)))


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
                *worded("jobs.no-writing", address=address, error=first_line(error))
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
