"""Fetch: a run's results from the claim to this machine, through a short-lived pod."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.data.report import REPORT_FILE
from runner.parts.jobs.kubernetes import SENT_FILES
from runner.parts.openshift.client import Cluster, pieces
from runner.parts.openshift.errors import TryAgain, pause, recent
from runner.parts.openshift.file_server import CHUNK, partial
from runner.parts.openshift.helper_pod import Share, Tell, helper
from runner.plan import Plan, Stage
from runner.run.run_folder import RunRecord
from runner.tools.files import sha256
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES, BEST_MODEL, DEMO_OUTPUTS, REPORT, RUN, STAGE

# Large, and of no use away from the cluster.
LEFT_THERE = ("checkpoints/", "scratch/", "data/", f"{SENT_FILES}/")
# What became of the rows; these come without them.
REPORTS = (f"/{REPORT}", f"/{REPORT_FILE}")
# What a stage is for: where some of it has come, what is not among it is of another run.
RESULTS = (BEST_MODEL, ADAPTER, BEST_IMAGES, DEMO_OUTPUTS)


def fetch(
    cluster: Cluster, plan: Plan, stage: Stage, target: Path, tell: Tell, everything: bool = False
) -> tuple[int, str]:
    """Brings what a stage has left into its place below the run folder `target`; returns how many files came over, and the
    run's own number on the claim, empty where it has none. What is here already, whole and of the same hash, does not come
    again; half a file goes on where it stopped.

    Raises Stop where there are no results, or the helper does not start.
    """
    with helper(cluster, plan.only(stage), stage, tell, plan.place.run_dir) as share:
        files = json.loads(share.get("list"))
        number = ""
        if any(file["path"] == RUN for file in files):
            number = RunRecord.of(json.loads(share.get(f"file/{RUN}"))).id
        told = [file for file in files if file["path"].startswith("data/") and file["path"].endswith(REPORTS)]
        files = [file for file in files if _comes(file["path"], stage, everything)]
        _forget_older(share, {file["path"] for file in files}, target, stage)
        if not files:
            raise Stop(
                f"`{plan.place_of(stage).run_dir}` holds no results yet.", "`recipe status` says how far the job is."
            )
        files += [file for file in told if file not in files]
        return sum(_one(share, file, target, tell) for file in files), number


def small_files(
    cluster: Cluster, plan: Plan, stage: Stage, folder: str, names: Iterable[str], target: Path, tell: Tell
) -> None:
    """Brings those files of a folder on a claim into `target` that are there; they are small enough to be read at once.

    Raises Stop where there is no such folder, or the helper does not start.
    """
    with helper(cluster, plan.only(stage), stage, tell, folder) as share:
        there = {file["path"] for file in json.loads(share.get("list"))}
        for name in names:
            if name in there:
                (target / name).write_bytes(share.get(f"file/{name}"))


def _comes(path: str, stage: Stage, everything: bool) -> bool:
    """Whether a file of the run is fetched with a stage. What the run knows of itself is another thing on each machine."""
    home = f"{stage.folder}/" if stage.folder else ""
    left = () if everything else LEFT_THERE
    return path != RUN and path.startswith(home) and not path.removeprefix(home).startswith(left)


def _forget_older(share: Share, names: set[str], target: Path, stage: Stage) -> None:
    """Deletes what another run of the stage has left here and this one has not left there: a model of the files of two runs
    would load. What was made here from the same run stays, and so does the older one while there is nothing newer.

    names: of all that comes, below `target`.
    """
    home = target / stage.folder
    record = (home / STAGE).relative_to(target).as_posix()
    results = [path for name in RESULTS for path in (home / name, *(home / name).rglob("[!.]*")) if path.is_file()]
    left = [path for path in results if path.relative_to(target).as_posix() not in names]
    begins = tuple((home / name).relative_to(target).as_posix() for name in RESULTS)
    if not left or record not in names or not any(name.startswith(begins) for name in names):
        return
    here = (home / STAGE).read_bytes() if (home / STAGE).is_file() else b""
    if here != share.get(f"file/{record}"):
        for path in left:
            path.unlink()


def _one(share: Share, file: dict[str, Any], target: Path, tell: Tell) -> int:
    """One file; 1 where it came over, 0 where it was here. Raises Stop where its hash does not agree in the end."""
    path = target / file["path"]
    if not path.resolve().is_relative_to(target.resolve()):
        raise Stop(f"The cluster named a file outside of the folder: {file['path']}")
    there = share.signed(f"hash/{file['path']}")["digest"]
    if path.is_file() and path.stat().st_size == file["size"] and sha256(path) == there:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    half = partial(path, there)
    before, grown = 0, time.monotonic()
    _continue(share, file["path"], half, file["size"])
    while (have := half.stat().st_size) < file["size"]:
        if have > before:
            before, grown = have, time.monotonic()
        elif recent(grown):
            pause()
        else:
            raise Stop(f"`{file['path']}` has come in part only.", "Fetch again; it goes on where it stopped.")
        _continue(share, file["path"], half, file["size"])
    if sha256(half) != there:
        half.unlink()
        raise Stop(
            f"`{file['path']}` did not come over whole.", "Fetch again; if training is still writing, wait for it."
        )
    half.replace(path)
    tell(f"{file['path']}  {file['size'] / 2**20:.1f} MiB")
    return 1


def _continue(share: Share, name: str, half: Path, size: int) -> None:
    """Appends what is missing; a broken connection, or a cluster that is busy, leaves what has come."""
    have = half.stat().st_size if half.is_file() else 0
    if have >= size > 0:
        return
    try:
        response = share.ask(f"file/{name}", headers={"Range": f"bytes={have}-"} if have else None, stream=True)
        with half.open("ab" if have and response.status == 206 else "wb") as out:
            for chunk in pieces(share.cluster, response, CHUNK):
                out.write(chunk)
    except TryAgain:
        half.touch()
