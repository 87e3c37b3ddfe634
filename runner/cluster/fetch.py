"""Fetch: a run's results from the claim to this machine, through a short-lived pod."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.cluster.client import Cluster, Refused, Response, pieces
from runner.cluster.errors import Busy, TryAgain, passes, patiently
from runner.cluster.helper_pod import helper, signed
from runner.entrypoints.file_server import CHUNK, digest
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.run_files import ADAPTER, BEST_IMAGES, BEST_MODEL, DEMO_OUTPUTS, RUN, STAGE
from runner.runs.run_folder import RunRecord
from runner.targets.kubernetes import SENT_FILES

POLL_SECONDS = 2.0
# How often a broken transfer is taken up again.
TRIES = 8
# Large, and of no use away from the cluster.
LEFT_THERE = ("checkpoints/", "scratch/", "data/", f"{SENT_FILES}/")
# What a stage is for: where some of it has come, what is not among it is of another run.
RESULTS = (BEST_MODEL, ADAPTER, BEST_IMAGES, DEMO_OUTPUTS)

Tell = Callable[[str], None]


def fetch(
    cluster: Cluster, plan: Plan, stage: Stage, target: Path, tell: Tell, everything: bool = False
) -> tuple[int, str]:
    """Brings what a stage has left into its place below the run folder `target`; returns how many files came over, and the
    run's own number on the claim, empty where it has none. What is here already, whole and of the same hash, does not come
    again; half a file goes on where it stopped.

    Raises Stop where there are no results, or the helper does not start.
    """
    with helper(cluster, plan.only(stage), stage, tell, plan.place.run_dir) as base:
        files = json.loads(_get(cluster, f"{base}/list").data)
        number = ""
        if any(file["path"] == RUN for file in files):
            number = RunRecord.of(json.loads(_get(cluster, f"{base}/file/{RUN}").data)).id
        files = [file for file in files if _comes(file["path"], stage, everything)]
        _forget_older(cluster, base, {file["path"] for file in files}, target, stage)
        if not files:
            raise Stop(
                f"`{plan.place_of(stage).run_dir}` holds no results yet.", "`recipe status` says how far the job is."
            )
        return sum(_one(cluster, base, file, target, tell) for file in files), number


def _comes(path: str, stage: Stage, everything: bool) -> bool:
    """Whether a file of the run is fetched with a stage. What the run knows of itself is another thing on each machine."""
    home = f"{stage.folder}/" if stage.folder else ""
    left = () if everything else LEFT_THERE
    return path != RUN and path.startswith(home) and not path.removeprefix(home).startswith(left)


def _forget_older(cluster: Cluster, base: str, names: set[str], target: Path, stage: Stage) -> None:
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
    if here != _get(cluster, f"{base}/file/{quote(record)}").data:
        for path in left:
            path.unlink()


def _one(cluster: Cluster, base: str, file: dict[str, Any], target: Path, tell: Tell) -> int:
    """One file; 1 where it came over, 0 where it was here. Raises Stop where its hash does not agree in the end."""
    path = target / file["path"]
    if not path.resolve().is_relative_to(target.resolve()):
        raise Stop(f"The cluster named a file outside of the folder: {file['path']}")
    name = quote(file["path"])
    there = signed(_get(cluster, f"{base}/hash/{name}").data, "The claim's files cannot be read")["digest"]
    if path.is_file() and path.stat().st_size == file["size"] and digest(path) == there:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{there[:16]}.partial")
    for _ in range(TRIES):
        _continue(cluster, f"{base}/file/{name}", partial, file["size"])
        if partial.stat().st_size == file["size"]:
            break
    if partial.stat().st_size < file["size"]:
        raise Stop(f"`{file['path']}` has come in part only.", "Fetch again; it goes on where it stopped.")
    if digest(partial) != there:
        partial.unlink()
        raise Stop(
            f"`{file['path']}` did not come over whole.", "Fetch again; if training is still writing, wait for it."
        )
    partial.replace(path)
    tell(f"{file['path']}  {file['size'] / 2**20:.1f} MiB")
    return 1


def _continue(cluster: Cluster, address_of: str, partial: Path, size: int) -> None:
    """Appends what is missing; a broken connection, or a cluster that is busy, leaves what has come."""
    have = partial.stat().st_size if partial.is_file() else 0
    if have >= size > 0:
        return
    try:
        response = _ask(cluster, address_of, headers={"Range": f"bytes={have}-"} if have else None, stream=True)
        with partial.open("ab" if have and response.status == 206 else "wb") as out:
            for chunk in pieces(cluster, response, CHUNK):
                out.write(chunk)
    except TryAgain:
        partial.touch()
        time.sleep(POLL_SECONDS)


def _get(cluster: Cluster, path: str) -> Response:
    # The server behind the pod's port may need a moment more than the pod.
    return patiently(lambda: _ask(cluster, path), TRIES, POLL_SECONDS)


def _ask(cluster: Cluster, path: str, **how: Any) -> Response:
    """One request to the helper, through the cluster. Raises TryAgain where the next one may be answered, else Stop."""
    try:
        return cluster.request("GET", path, **how)
    except Refused as refused:
        said = f"The claim's files cannot be read: {refused.message}"
        if passes(refused.status):
            raise Busy(said, "Fetch again in a moment.") from None
        rights = "You need the right to `get` `pods/proxy`; the role `recipe-user` of `recipe site` has it."
        raise Stop(said, rights if refused.status == 403 else "Fetch again.") from None
