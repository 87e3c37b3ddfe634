"""Run folders: one folder a run, whose state says whether to begin, to go on, or that all is done."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.files import content_of, read_json, write_json
from runner.problem import Stop
from runner.recipe.changes import Change
from runner.recipe.recipe import Recipe

STATE_FILE = "run.json"
ROOT = Path("runs")


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. kind: `run` or `rehearsal`."""

    path: Path
    kind: str

    @property
    def state(self) -> dict[str, Any]:
        found = read_json(self.path / STATE_FILE)
        return found if isinstance(found, dict) else {}

    @property
    def finished(self) -> bool:
        """Whether every result is there; a summary is written last."""
        return (
            self.state.get("status") == "finished"
            and bool(self.weights)
            and (self.path / "training_summary.json").is_file()
        )

    @property
    def weights(self) -> list[Path]:
        """The files that hold the best model: in a folder as transformers writes it, or one of the image trainer."""
        best = self.path / "best_model"
        return sorted([*best.glob("*.safetensors"), *best.glob("*.bin"), *self.path.glob("best_model.pth")])

    def mark(self, status: str, **facts: Any) -> None:
        write_json(self.path / STATE_FILE, self.state | {"status": status, "kind": self.kind} | facts)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second command out of the same folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Stop(
                    f"Another command is at work in `{self.path}`.",
                    "Wait for it, or name another folder with `--out`.",
                ) from None
            yield


def folder(name: str, kind: str, out: str | None = None) -> RunFolder:
    """The folder of a recipe's run or rehearsal: `out`, or `runs/<name>` below the current folder."""
    path = Path(out) if out else ROOT / (name if kind == "run" else f"{name}-rehearsal")
    return RunFolder(Path(os.path.abspath(path)), kind)


def data_files(recipe: Recipe) -> dict[str, Path]:
    """The files and folders of this machine that a recipe of one stage learns from, by the setting that names each."""
    named = {f"data.{setting}": recipe.data.get(setting) for setting in ("path", "validation_path")}
    return {setting: path for setting, name in named.items() if name and (path := recipe.folder / name).exists()}


ANEW = "`--fresh` deletes that run and begins anew; `--out DIR` keeps it and uses another folder."


def open_for(
    run: RunFolder, fingerprint: str, changes: list[Change], fresh: bool, files: Mapping[str, Path], elsewhere: str = ""
) -> bool:
    """Makes the folder ready for a recipe; True where an interrupted run goes on.

    files: what it learns from, by setting; a run never goes on with other data than it began with.
    elsewhere: how a person names another folder who has no `--out` and no `--fresh`.
    Raises Stop where the folder holds a run of another recipe or of other data, or things that are no run at all.
    """
    state = run.state
    others = [entry for entry in run.path.iterdir() if entry.name != ".lock"] if run.path.is_dir() else []
    if others and not state and any(entry.name not in {"data"} for entry in others):
        raise Stop(
            f"`{run.path}` holds files that are no run.", elsewhere or "Name an empty or a new folder with `--out`."
        )
    if fresh:
        for entry in others:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        state = {}
    if all(entry.name in {STATE_FILE, "data"} for entry in others):
        # Nothing was trained: a mistake was found before. Prepared data tells by itself whether it can be used.
        state = {}
    if state and state.get("fingerprint") != fingerprint:
        raise Stop(
            f"`{run.path}` holds a run of this recipe as it was before it changed ({state.get('fingerprint')}, now {fingerprint}).",
            elsewhere or ANEW,
        )
    contents = {setting: content_of(path) for setting, path in files.items()}
    if not state:
        made = [change.as_json() for change in changes]
        run.mark("running", fingerprint=fingerprint, changes=made, files=contents)
    else:
        _same_data(run, state.get("files"), contents, files, elsewhere or ANEW)
    (run.path / "stopped.json").unlink(missing_ok=True)
    return bool(state)


def _same_data(run: RunFolder, known: Any, contents: Mapping[str, str], files: Mapping[str, Path], remedy: str) -> None:
    for setting, content in contents.items():
        if not isinstance(known, dict) or setting not in known:
            # A run on a cluster, or of a version that did not write it down.
            raise Stop(
                f"It is not on record what `{files[setting]}` held when the {run.kind} in `{run.path}` began.", remedy
            )
        if known[setting] != content:
            raise Stop(f"`{files[setting]}` has changed since the {run.kind} in `{run.path}` began.", remedy)


@contextmanager
def session(
    run: RunFolder, fingerprint: str, changes: list[Change], fresh: bool, files: Mapping[str, Path] | None = None
) -> Iterator[bool]:
    """The folder, ours alone and ready; gives whether an interrupted run goes on. Raises Stop as `open_for` does."""
    with run.lock():
        yield open_for(run, fingerprint, changes, fresh, files or {})


def latest(name: str | None, given: str | None) -> RunFolder:
    """The run that a reading command means: `--run DIR`, or the latest one of the recipe `name`.

    Raises Stop where there is none.
    """
    if given:
        path = Path(given)
        if not (path / STATE_FILE).is_file():
            raise Stop(
                f"`{given}` is not a run folder.",
                "A run folder holds `run.json`; `recipe rehearse` and `recipe run` make one.",
            )
        return RunFolder(Path(os.path.abspath(path)), (read_json(path / STATE_FILE) or {}).get("kind", "run"))
    wanted = [folder(name, kind) for kind in ("run", "rehearsal")] if name else []
    there = [run for run in wanted if (run.path / "training_summary.json").is_file()]
    if not there:
        raise Stop(
            f"There is no finished run of `{name}` below `{ROOT}/`.",
            "Make one with `recipe rehearse`, or name its folder with `--run DIR`.",
        )
    return max(there, key=lambda run: (run.path / "training_summary.json").stat().st_mtime)
