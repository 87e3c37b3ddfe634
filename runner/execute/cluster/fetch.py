"""Fetch: a run's results from the claim to this machine, through a short-lived pod."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from runner.execute.cluster.connect import Refused
from runner.execute.cluster.errors import Lost
from runner.execute.cluster.helper import helper
from runner.execute.cluster.share import CHUNK, digest
from runner.plan import Plan, Stage
from runner.problem import Stop

POLL_SECONDS = 2.0
# How often a broken transfer is taken up again.
TRIES = 8
# Large, and of no use away from the cluster.
LEFT_THERE = ("checkpoints/", "scratch/", "data/")

Tell = Callable[[str], None]


def fetch(cluster: Any, plan: Plan, stage: Stage, target: Path, tell: Tell, everything: bool = False) -> int:
    """Brings the run folder of a stage into `target`; returns how many files came over. What is here already, whole
    and of the same hash, does not come again; half a file goes on where it stopped.

    Raises Stop where there are no results, or the helper does not start.
    """
    with helper(cluster, plan, stage, tell) as base:
        files = json.loads(_get(cluster, f"{base}/list").data)
        wanted = [file for file in files if everything or not file["path"].startswith(LEFT_THERE)]
        if not wanted:
            raise Stop(f"`{plan.place.run_dir}` holds no results yet.", "`recipe status` says how far the job is.")
        came = 0
        for file in wanted:
            came += _one(cluster, base, file, target, tell)
    return came


def _one(cluster: Any, base: str, file: dict[str, Any], target: Path, tell: Tell) -> int:
    """One file; 1 where it came over, 0 where it was here. Raises Stop where its hash does not agree in the end."""
    path = target / file["path"]
    if not path.resolve().is_relative_to(target.resolve()):
        raise Stop(f"The cluster named a file outside of the folder: {file['path']}")
    name = quote(file["path"])
    there = _get(cluster, f"{base}/hash/{name}").data.decode().strip()
    if path.is_file() and path.stat().st_size == file["size"] and digest(path) == there:
        return 0
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{there[:16]}.partial")
    for _ in range(TRIES):
        _continue(cluster, f"{base}/file/{name}", partial, file["size"])
        if partial.stat().st_size == file["size"]:
            break
    if not partial.is_file() or digest(partial) != there:
        partial.unlink(missing_ok=True)
        raise Stop(
            f"`{file['path']}` did not come over whole.", "Fetch again; if training is still writing, wait for it."
        )
    partial.replace(path)
    tell(f"{file['path']}  {file['size'] / 2**20:.1f} MiB")
    return 1


def _continue(cluster: Any, address_of: str, partial: Path, size: int) -> None:
    """Appends what is missing; a broken connection leaves what has come."""
    have = partial.stat().st_size if partial.is_file() else 0
    if have >= size > 0:
        return
    try:
        response = cluster.request(
            "GET", address_of, headers={"Range": f"bytes={have}-"} if have else None, stream=True
        )
        with partial.open("ab" if have and response.status == 206 else "wb") as out:
            for chunk in response.stream(CHUNK):
                out.write(chunk)
    except Refused as refused:
        raise _refused(refused) from None
    except (Lost, OSError):
        time.sleep(POLL_SECONDS)
    except Exception as error:
        # urllib3's own errors, named by class because the client's library is not imported here.
        if type(error).__module__.partition(".")[0] != "urllib3":
            raise
        time.sleep(POLL_SECONDS)
    if not partial.exists():
        partial.touch()


def _get(cluster: Any, path: str) -> Any:
    for attempt in range(TRIES):
        try:
            return cluster.request("GET", path)
        except Refused as refused:
            # The server behind the pod's port may need a moment more than the pod.
            if refused.status not in (500, 502, 503) or attempt == TRIES - 1:
                raise _refused(refused) from None
        except Lost:
            if attempt == TRIES - 1:
                raise
        time.sleep(POLL_SECONDS)
    raise AssertionError("not reached")


def _refused(refused: Refused) -> Stop:
    remedy = "Fetch again."
    if refused.status == 403:
        remedy = "You need the right to `get` `pods/proxy`; the role in openshift/access.yaml has it."
    return Stop(f"The claim's files cannot be read: {refused.message}", remedy)
