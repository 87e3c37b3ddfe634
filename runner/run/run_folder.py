"""Run folders: one folder for each run, with its stages and the changes of its recipe."""

from __future__ import annotations

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.plan import RUNS, Place
from runner.recipe.overrides import Override
from runner.tools.files import Record, read_record, write_json
from runner.tools.problem import Stop, worded
from runner.tools.run_files import CONFIG, LOCK, PLANNED, RUN, SUMMARY

ROOT = Path(RUNS)
FRESH = "`--fresh` deletes that run and starts again; `--out DIR` keeps it and uses another folder."


@dataclass(frozen=True)
class RunRecord(Record):
    """The record of a run. kind: as of a RunFolder.

    id: the folder's own number, so that results of another run never count here. recipe: its name. status: `running`,
    `stopped` or `finished`. changes, substitutions: the user's and the runner's changes of the recipe. folder: its path
    when the substitutions were made, which may contain it. data_dir: prepared data outside the folder. origin:
    `cluster` for a fetched run. processor: whether it trains on a processor instead of GPUs. fault: why it stopped, in
    words; empty if unknown."""

    FILE = RUN
    id: str = ""
    status: str = ""
    kind: str = ""
    recipe: str = ""
    changes: tuple[Override, ...] = ()
    data_dir: str | None = None
    substitutions: tuple[Override, ...] = ()
    folder: str = ""
    origin: str = ""
    processor: bool = False
    fault: str = ""


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. kind: `run`, `rehearsal` or `measurement`."""

    path: Path
    kind: str = "run"

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """The run in a folder, of the kind on record."""
        return cls(path, RunRecord.read(path).kind or "run")

    @property
    def state(self) -> RunRecord:
        return RunRecord.read(self.path)

    @property
    def at_work(self) -> bool:
        """Whether a command is running in it now."""
        try:
            with (self.path / LOCK).open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    @property
    def shown(self) -> Path:
        """The folder in messages: relative to the current one, if it is below it."""
        return self.path.relative_to(Path.cwd()) if self.path.is_relative_to(Path.cwd()) else self.path

    @property
    def overrides(self) -> list[Override]:
        """The substitutions of a rehearsal or of this machine; paths in this folder follow the folder when it moves."""
        state, here = self.state, str(self.path)
        return [replace(made, after=moved(made.after, state.folder, here)) for made in state.substitutions]

    def mark(self, status: str, **facts: Any) -> None:
        now = {"id": self.state.id or uuid.uuid4().hex, "status": status, "kind": self.kind}
        write_json(self.path / RUN, read_record(self.path / RUN) | now | facts)

    def made_with(
        self, changes: Iterable[Override], substitutions: Iterable[Override], processor: bool = False
    ) -> Mapping[str, Any]:
        """The record of the user's and the runner's changes of the recipe, for the first stage that runs."""
        return {
            "folder": str(self.path),
            "processor": processor,
            "changes": [asdict(made) for made in changes],
            "substitutions": [asdict(made) for made in substitutions],
        }

    def place(self, data_dir: str | None = None) -> Place:
        """This folder as a Place, without GPUs in a rehearsal or on a processor. data_dir: if not in this folder."""
        return Place(
            config_dir=str(self.path / CONFIG),
            data_dir=data_dir or self.state.data_dir or str(self.path / "data"),
            run_dir=str(self.path),
            scratch_dir=str(self.path / "scratch"),
            accelerator=self.kind != "rehearsal" and not self.state.processor,
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second command out of the same folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / LOCK).open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Stop(*worded("run.locked", path=self.path)) from None
            yield


def moved(value: Any, there: str, here: str) -> Any:
    """A value from JSON in which every path in the folder `there` is in `here` instead."""
    if isinstance(value, dict):
        return {name: moved(item, there, here) for name, item in value.items()}
    if isinstance(value, list):
        return [moved(item, there, here) for item in value]
    inside = there and isinstance(value, str) and f"{value}/".startswith(f"{there}/")
    return here + value.removeprefix(there) if inside else value


def folder(name: str, kind: str, out: str | None = None) -> RunFolder:
    """The folder of a recipe's run or rehearsal: `out`, or `runs/<name>` below the current folder."""
    path = Path(out) if out else ROOT / (name if kind == "run" else f"{name}-{kind}")
    return RunFolder(Path(os.path.abspath(path)), kind)


@contextmanager
def session(run: RunFolder, recipe_name: str, fresh: bool, data_dir: str | None = None) -> Iterator[None]:
    """Locks a folder for a recipe's run; deletes a new one that stays unused. Raises Stop as `open_for`."""
    made_here = not run.path.exists()
    with run.lock():
        try:
            open_for(run, recipe_name, fresh)
            run.mark("running", recipe=recipe_name, data_dir=data_dir)
            yield
        except BaseException:
            if made_here and {entry.name for entry in run.path.iterdir()} <= {LOCK, RUN, CONFIG, PLANNED}:
                shutil.rmtree(run.path, ignore_errors=True)
            raise


def open_for(run: RunFolder, recipe_name: str, fresh: bool, remedy: str = "") -> None:
    """Checks that a folder can be a recipe's, and empties it if `fresh`. remedy: how to name another folder without
    `--out` and `--fresh`. Raises Stop if the folder holds a run of another recipe, or other files."""
    run.path.mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in run.path.iterdir() if entry.name != LOCK]
    # `recipe prepare` leaves the first, and with `--show` the second.
    prepared = {Path(folder).name for folder in (run.place().data_dir, run.place().scratch_dir)}
    if not run.state and any(entry.name not in prepared for entry in entries):
        raise Stop(*worded("run.other-files", run=run, remedy=remedy or "Name an empty or a new folder with `--out`."))
    if not fresh:
        require_of(run, recipe_name, remedy or FRESH)
    else:
        delete(entries)


def delete(entries: Iterable[Path]) -> None:
    for entry in list(entries):
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def require_of(run: RunFolder, recipe_name: str, remedy: str) -> None:
    """Raises Stop if the folder holds a run of another recipe."""
    if (owner := run.state.recipe) not in ("", recipe_name):
        raise Stop(f"`{run.path}` contains a run of the recipe `{owner}`.", remedy)


def all_here() -> list[RunFolder]:
    """Every run below `runs/`, and every trial of a search there, the latest first."""
    files = [*ROOT.glob(f"*/{RUN}"), *ROOT.glob(f"*/*/{RUN}")]
    found = [RunFolder.at(Path(os.path.abspath(file.parent))) for file in files]
    return sorted(found, key=lambda run: (run.path / RUN).stat().st_mtime, reverse=True)


def find(name: str, given: str | None) -> RunFolder:
    """The run that a reading command means: `--run DIR`, or the recipe's latest, preferably one that has trained.
    Raises Stop if there is none."""
    if given:
        if (Path(given) / RUN).is_file():
            return RunFolder.at(Path(os.path.abspath(given)))
        raise Stop(*worded("run.not-a-run", given=given))
    runs = [run for run in (folder(name, kind) for kind in ("run", "rehearsal")) if (run.path / RUN).is_file()]
    if not runs:
        raise Stop(*worded("run.no-run", name=name, root=ROOT))
    return max(runs, key=_newest)


def _newest(run: RunFolder) -> tuple[float, float]:
    """When a run last trained something, 0 for never; and when it last changed."""
    summaries = [*run.path.glob(SUMMARY), *run.path.glob(f"*/{SUMMARY}")]
    return max((file.stat().st_mtime for file in summaries), default=0.0), (run.path / RUN).stat().st_mtime
