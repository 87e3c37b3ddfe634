"""Run folders: one folder for each run, with the changes of its recipe; and its stages: their
inputs, their results, and whether both are still as recorded."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.data import object_store
from runner.plan import PLAN_FILE, RUNS, Place, Plan, Stage, learned_from, without_place
from runner.recipe.recipe import REAL, Override
from runner.tools import locks, run_files
from runner.tools.files import (
    Record,
    Stamp,
    content_hash,
    content_of,
    read_json,
    read_record,
    sha256,
    stamp_of,
    write_json,
)
from runner.tools.problem import Stop, shortened
from runner.trainer.records import Summary

ROOT = Path(RUNS)
FRESH = "`--fresh` deletes that run and starts again; `--out DIR` keeps it and uses another folder."
FILES = (
    "path",
    "base",
    "base_model",
    "packed",
)  # last words of settings that name a file or a folder
WEIGHTS = "*.safetensors"  # the files with the weights of a model, as transformers writes it


@dataclass(frozen=True)
class RunRecord(Record):
    """The record of a run. kind: as of a RunFolder.

    id: the folder's own number, so that results of another run never count here. recipe: its name.
    status: `running`, `stopped` or `finished`. changes, substitutions: the user's and the runner's
    changes of the recipe. folder: its path when the substitutions were made, which may contain it.
    data_dir: prepared data outside the folder. origin: `cluster` for a fetched run. processor:
    whether it trains on a processor instead of GPUs. fault: why it stopped, in words; empty if
    unknown."""

    FILE = run_files.RUN
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
            with (self.path / run_files.LOCK).open() as handle:
                return locks.is_taken(handle)
        except OSError:
            return False

    @property
    def is_of_twin(self) -> bool:
        """Whether a tiny stand-in was trained instead of the recipe's model."""
        return self.kind == "rehearsal" and all(
            override.by != REAL for override in self.state.substitutions
        )

    @property
    def has_trained(self) -> bool:
        """Whether a stage has left a checkpoint or a model."""
        results = ("checkpoint[-_]*", f"{run_files.BEST_MODEL}*")
        return any(any(self.path.rglob(name)) for name in results)

    @property
    def shown(self) -> Path:
        """The folder in messages: relative to the current one, if it is below it."""
        if self.path.is_relative_to(Path.cwd()):
            return self.path.relative_to(Path.cwd())
        return self.path

    @property
    def overrides(self) -> list[Override]:
        """The substitutions of a rehearsal or of this machine; paths in this folder follow the
        folder when it moves."""
        state = self.state
        current_folder = str(self.path)
        overrides = []
        for override in state.substitutions:
            overrides.append(
                replace(override, after=moved(override.after, state.folder, current_folder))
            )
        return overrides

    def mark(self, status: str, **facts: object) -> None:
        now = {"id": self.state.id or uuid.uuid4().hex, "status": status, "kind": self.kind}
        write_json(self.path / run_files.RUN, read_record(self.path / run_files.RUN) | now | facts)

    def made_with(
        self,
        changes: Iterable[Override],
        substitutions: Iterable[Override],
        processor: bool = False,
    ) -> Mapping[str, Any]:
        """The record of the user's and the runner's changes of the recipe, for the first stage that
        runs."""
        return {
            "folder": str(self.path),
            "processor": processor,
            "changes": [asdict(override) for override in changes],
            "substitutions": [asdict(override) for override in substitutions],
        }

    def place(self, data_dir: str | None = None) -> Place:
        """This folder as a Place, without GPUs in a rehearsal or on a processor. data_dir: if not
        in this folder."""
        return Place(
            config_dir=str(self.path / run_files.CONFIG),
            data_dir=data_dir or self.state.data_dir or str(self.path / "data"),
            run_dir=str(self.path),
            scratch_dir=str(self.path / "scratch"),
            accelerator=self.kind != "rehearsal" and not self.state.processor,
        )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps a second command out of the same folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / run_files.LOCK).open("w") as handle:
            try:
                locks.take(handle)
            except locks.Busy:
                raise Stop(
                    f"Another command is using `{self.path}`.",
                    "Wait for it, or name another folder with `--out`.",
                ) from None
            yield


def moved(value: Any, old_folder: str, new_folder: str) -> Any:
    """A value from JSON in which every path in `old_folder` is in `new_folder` instead."""
    if isinstance(value, dict):
        return {name: moved(item, old_folder, new_folder) for name, item in value.items()}
    if isinstance(value, list):
        return [moved(item, old_folder, new_folder) for item in value]
    inside = old_folder and isinstance(value, str) and f"{value}/".startswith(f"{old_folder}/")
    if inside:
        return new_folder + value.removeprefix(old_folder)
    return value


def folder(name: str, run_kind: str, out: str | None = None, real_model: bool = False) -> RunFolder:
    """The folder of a recipe's run or rehearsal: `out`, or one in `runs` below the current folder.
    real_model: whether a rehearsal trains one instead of a twin; each leaves the other's results
    alone."""
    if out:
        path = Path(out)
    elif run_kind == "run":
        path = ROOT / name
    elif real_model:
        path = ROOT / f"{name}-{run_kind}-real"
    else:
        path = ROOT / f"{name}-{run_kind}"
    return RunFolder(Path(os.path.abspath(path)), run_kind)


def folders_of(name: str) -> list[RunFolder]:
    """The usual folders of a recipe's runs and rehearsals that contain one."""
    candidates = (
        folder(name, "run"),
        folder(name, "rehearsal"),
        folder(name, "rehearsal", real_model=True),
    )
    return [run for run in candidates if (run.path / run_files.RUN).is_file()]


RECORDS = (run_files.RUN, run_files.CONFIG, run_files.PLANNED)  # that a run begins with


def _names_in(folder: Path) -> set[str]:
    """The names of what is in a folder; none if it does not exist."""
    if not folder.is_dir():
        return set()
    return {entry.name for entry in folder.iterdir()}


@contextmanager
def session(
    run: RunFolder, recipe_name: str, fresh: bool, data_dir: str | None = None
) -> Iterator[None]:
    """Locks a folder for a recipe's run; deletes a new one that stays unused, and leaves the
    records of another as they were if no stage begins. Raises Stop as `open_for`."""
    made_here = not run.path.exists()
    record = run.path / run_files.RUN
    records = (record, run.path / run_files.PLANNED, run.path / run_files.CONFIG / PLAN_FILE)
    with run.lock():
        before = dict[Path, bytes]()
        begun = None
        try:
            open_for(run, recipe_name, fresh)
            before = {file: file.read_bytes() for file in records if file.is_file()}
            run.mark("running", recipe=recipe_name, data_dir=data_dir)
            begun = record.read_bytes()
            yield
        except BaseException as error:
            unused = {run_files.LOCK, *RECORDS}
            if begun is not None and record.is_file() and record.read_bytes() == begun:
                # No stage has begun.
                for file, content in before.items():
                    file.write_bytes(content)
                if not before:
                    delete(run.path / name for name in RECORDS)
                    unused |= _prepared(run)  # rows alone are no run
            is_gone = not (run.path / run_files.LOCK).exists()
            # What still works in a deleted folder creates it again, without most of its files.
            if made_here and _names_in(run.path) <= unused:
                shutil.rmtree(run.path, ignore_errors=True)
            if is_gone and isinstance(error, Exception):
                raise Stop(
                    f"The folder `{run.shown}` was deleted or moved away while this command used it.",
                    "Run the command again. It starts from the beginning.",
                ) from None
            raise


def open_for(run: RunFolder, recipe_name: str, fresh: bool, remedy: str = "") -> None:
    """Checks that a folder can be a recipe's, and empties it if `fresh`. remedy: how to name
    another folder without `--out` and `--fresh`. Raises Stop if the folder holds a run of another
    recipe, or other files."""
    run.path.mkdir(parents=True, exist_ok=True)
    entries = [entry for entry in run.path.iterdir() if entry.name != run_files.LOCK]
    if not run.state and any(entry.name not in _prepared(run) for entry in entries):
        raise Stop(
            f"`{run.path}` contains files that do not belong to a run.",
            remedy or "Name an empty or a new folder with `--out`.",
        )
    if not fresh:
        require_of(run, recipe_name, remedy or FRESH)
    else:
        delete(entries)


def _prepared(run: RunFolder) -> set[str]:
    """The names of the folders that `recipe prepare` leaves, the second one with `--show`."""
    place = run.place()
    return {Path(place.data_dir).name, Path(place.scratch_dir).name}


def delete(entries: Iterable[Path]) -> None:
    for entry in list(entries):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def require_of(run: RunFolder, recipe_name: str, remedy: str) -> None:
    """Raises Stop if the folder holds a run of another recipe."""
    owner = run.state.recipe
    if owner not in ("", recipe_name):
        raise Stop(f"`{run.path}` contains a run of the recipe `{owner}`.", remedy)


def all_here() -> list[RunFolder]:
    """Every run below `runs/`, and every trial of a search there, the latest first."""
    files = [*ROOT.glob(f"*/{run_files.RUN}"), *ROOT.glob(f"*/*/{run_files.RUN}")]
    runs = [RunFolder.at(Path(os.path.abspath(file.parent))) for file in files]
    return sorted(runs, key=lambda run: (run.path / run_files.RUN).stat().st_mtime, reverse=True)


def find(name: str, run_dir: str | None) -> RunFolder:
    """The run of a recipe's name that a reading command means: `--run DIR`, or the latest,
    preferably one that has trained. Raises Stop if there is none."""
    if run_dir:
        if (Path(run_dir) / run_files.RUN).is_file():
            return RunFolder.at(Path(os.path.abspath(run_dir)))
        raise Stop(
            f"`{run_dir}` is not a run folder.",
            "A run folder contains `run.json`. `recipe rehearse` and `recipe run` create one.",
        )
    runs = folders_of(name)
    if not runs:
        raise Stop(
            f"There is no run of `{name}` below `{ROOT}/`.",
            "Create one with `recipe rehearse` or `recipe run`, or name another folder with `--run DIR`. `recipe status` shows runs on the cluster; download them with `recipe fetch`.",
        )
    return max(runs, key=_newest)


def _newest(run: RunFolder) -> tuple[float, float]:
    """When a run last trained something, 0 for never; and when it last changed."""
    summaries = [*run.path.glob(run_files.SUMMARY), *run.path.glob(f"*/{run_files.SUMMARY}")]
    return max((file.stat().st_mtime for file in summaries), default=0.0), (
        run.path / run_files.RUN
    ).stat().st_mtime


@dataclass(frozen=True)
class StageRecord(Record):
    """A stage's inputs and results. status: `not begun`, `begun`, `finished` or `out of time`;
    inputs: see `inputs` below; stamps: of the files among them, by the same names as `input_files`
    has; keys: of the Stage; outputs: hashes by file."""

    FILE = run_files.STAGE
    stage: str = ""
    status: str = "not begun"
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def beginning_with(self, beginnings: tuple[str, ...]) -> dict[str, str]:
        """The outputs whose names have one of these prefixes; all for no prefixes."""
        digests = {}
        for name, digest in self.outputs.items():
            if name.startswith(beginnings or ""):
                digests[name] = digest
        return digests


@dataclass(frozen=True)
class StageFolder:
    """One stage of a plan in its run folder."""

    plan: Plan
    stage: Stage

    @property
    def place(self) -> Place:
        return self.plan.place_of(self.stage)

    @property
    def path(self) -> Path:
        return Path(self.place.run_dir)

    @property
    def run(self) -> RunFolder:
        return RunFolder.at(Path(self.plan.place.run_dir))

    @property
    def results(self) -> Path:
        """The folder that the names of `outputs` start from."""
        if self.prepares or self.fetches:
            return Path(self.stage.config["out"])
        return self.path

    @property
    def prepares(self) -> bool:
        """Whether the stage prepares data for other stages."""
        return not self.stage.trains and self.stage.config.get("out") == self.plan.place.data_dir

    @property
    def fetches(self) -> bool:
        """Whether the stage only downloads the base model."""
        return (
            not self.stage.trains
            and self.stage.config.get("out") == self.plan.place.model_dir is not None
        )

    @property
    def model(self) -> Path:
        return self.path / run_files.BEST_MODEL

    @property
    def weights_files(self) -> list[Path]:
        """The files with the best model's weights: those that transformers writes, or that of the
        image trainer."""
        return [*sorted(self.model.glob(WEIGHTS)), *self.path.glob(run_files.BEST_IMAGES)]

    @property
    def state(self) -> StageRecord:
        return StageRecord.read(self.path)

    @property
    def finished(self) -> bool:
        return self.state.status == "finished"

    @property
    def summary(self) -> Summary | None:
        """The summary that training wrote; None if there is none yet."""
        return Summary.read(self.path) or None

    def other(self, name: str) -> StageFolder:
        """Another stage of the same run."""
        return StageFolder(self.plan, self.plan.stage(name))

    def mark(self, status: str, **facts: object) -> None:
        now = {"stage": self.stage.name, "status": status}
        write_json(
            self.path / run_files.STAGE, read_record(self.path / run_files.STAGE) | now | facts
        )

    def outputs(self) -> dict[str, str]:
        """SHA-256 of every result that others read, by its name below `results`."""
        if self.fetches:
            # This file is written last and names the commit, so that hundreds of gigabytes of
            # weights need not be read.
            homes = []
            files = [*self.results.glob(run_files.FETCHED)]
        elif not self.prepares:
            homes = [self.model]
            files = [*self.path.glob(run_files.BEST_IMAGES)]
        else:
            # Parts that are read separately, without the cleaned text, which is large and not read
            # again.
            homes = [self.results / name for name in self.stage.parts]
            if homes:
                files = []
            else:
                files = sorted(self.results.glob("*.parquet"))
        for home in homes:
            if home.is_dir():
                for file in sorted(home.rglob("*")):
                    if file.is_file():
                        files.append(file)
        return {file.relative_to(self.results).as_posix(): sha256(file) for file in files}

    def changed_outputs(self, beginnings: tuple[str, ...] = ()) -> list[str]:
        """The recorded outputs, with these beginnings, that are missing or changed; no record
        counts as changed."""
        chosen = self.state.beginning_with(beginnings)
        if not chosen:
            return ["(no record)"]
        files = {name: self.results / name for name in chosen}
        changed = []
        for name, file in files.items():
            if not file.is_file() or sha256(file) != chosen[name]:
                changed.append(name)
        return changed

    def model_hash(self, look: bool = False) -> str:
        """One hash for the stage's whole model; empty for none. look: hash the files now, which can
        take minutes."""
        files: Mapping[str, str]
        if look:
            files = self.outputs()
        else:
            files = self.state.outputs
        return model_hash(
            {
                name.removeprefix(f"{run_files.BEST_MODEL}/"): digest
                for name, digest in files.items()
            }
        )

    @property
    def has_trained(self) -> bool:
        """Whether the folder has results of training."""
        checkpoints = (self.path / run_files.CHECKPOINTS).rglob("checkpoint-*")
        return self.stage.trains and (bool(self.weights_files) or any(checkpoints))

    def clear(self) -> None:
        """Deletes results of other inputs. Prepared data stays, because its parts have their own
        records."""
        if self.prepares:
            (self.path / run_files.STAGE).unlink(missing_ok=True)
        elif self.stage.folder:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            # Its folder is the run's own, and on a claim perhaps also another run's.
            delete(entry for pattern in run_files.LEFT for entry in self.path.glob(pattern))


def model_hash(files: Mapping[str, str]) -> str:
    if any(name.endswith((".safetensors", ".pth")) for name in files):
        return content_hash(dict(files), 32)
    return ""


def inputs(plan: Plan, stage: Stage) -> Mapping[str, Any]:
    """Everything that a stage's result depends on, flat, by readable names: settings, files, and
    results of the stages before, None for those without results."""
    by_name: dict[str, Any] = {}
    place = plan.place
    files = input_files(plan, stage)
    for name, value in learned_from(stage.config):
        if name in files:
            # Its content counts, whatever the current folder is.
            by_name[_content(name)] = content_of(files[name])
            continue
        by_name[name] = without_place(value, place)
        if name.split(".")[-1] == "path" and str(value).startswith(object_store.S3):
            # Where no pod or person has the keys, the file counts as unchanged.
            recorded = StageFolder(plan, stage).state.inputs.get(_content(name))
            version = object_store.version(str(value)) or recorded
            if version:
                by_name[_content(name)] = version
    for name, beginnings in stage.reads.items():
        by_name[f"results of {name}"] = _hash_of_results(
            StageFolder(plan, plan.stage(name)), beginnings
        )
    # In the form of the JSON record, which has lists but no tuples.
    return dict(json.loads(json.dumps(by_name)))


def _hash_of_results(folder: StageFolder, beginnings: tuple[str, ...]) -> str | None:
    """A hash of a finished stage's results whose names begin so; None if it is not finished."""
    if not folder.finished or not folder.state.outputs:
        return None
    return content_hash(folder.state.beginning_with(beginnings), 32)


def _content(name: str) -> str:
    """The name, among a stage's inputs, of the content of a file."""
    return f"{name} (its content)"


def input_files(plan: Plan, stage: Stage) -> dict[str, Path]:
    """The files and folders of this machine that a stage reads, by the names of their settings,
    without those that the run itself makes."""
    place = plan.place
    made_in = []
    for folder in (place.data_dir, place.config_dir, place.run_dir, place.model_dir):
        if folder:
            made_in.append(folder)
    files = {}
    for name, value in learned_from(stage.config):
        if name.split(".")[-1] not in FILES or not isinstance(value, str):
            continue
        file = Path(value)
        if file.exists() and not any(map(file.is_relative_to, made_in)):
            files[name] = file
    return files


def stamps(plan: Plan, stage: Stage) -> dict[str, Mapping[str, object]]:
    """The stamps of a stage's files, as `stage.json` has them, without files that have changed a
    moment ago."""
    settled = dict[str, Mapping[str, object]]()
    for name, file in input_files(plan, stage).items():
        stamp, has_settled = stamp_of(file)
        if has_settled:
            settled[name] = asdict(stamp)
    return settled


def changed_files(plan: Plan) -> list[Path]:
    """The files that stages of a run have read, and whose content has changed since. A file is read
    only if its stamp has changed, and its size has not."""
    changed = list[Path]()
    for stage in plan.stages:
        recorded = StageFolder(plan, stage).state
        for name, file in input_files(plan, stage).items():
            content = recorded.inputs.get(_content(name))
            if content is None or file in changed:
                continue
            before = recorded.stamps.get(name)
            now, _ = stamp_of(file)
            if before == now:
                continue
            has_other_size = before is not None and before.size != now.size
            if has_other_size or content_of(file) != content:
                changed.append(file)
    return changed


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """The differences between two sets of inputs, a line each, by the names of the settings."""
    lines = []
    for name in sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
        before = old.get(name)
        after = new.get(name)
        if name.startswith("results of "):
            lines.append(f"{name.removeprefix('results of ')} produced other results")
        elif name.endswith("(its content)"):
            lines.append(f"{name.removesuffix(' (its content)')}: the file's content has changed")
        else:
            lines.append(f"{name}: {_shown(before)} → {_shown(after)}")
    return lines


def _shown(value: object) -> str:
    if value is None:
        text = "nothing"
    elif isinstance(value, float):
        text = f"{value:g}"
    else:
        text = str(value)
    return shortened(text, 60)


def check_weights(folder: Path) -> None:
    """Opens every weight file, whose beginning says how long it is. Raises Stop if one is missing,
    cut short or broken."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise Stop(f"`{folder}` contains no weights.")
    index = read_json(folder / "model.safetensors.index.json")
    if isinstance(index, dict):
        indexed_files = set(index["weight_map"].values())
    else:
        indexed_files = set()
    missing = sorted(indexed_files - {file.name for file in files})
    if missing:
        raise Stop(f"`{folder}` lacks the weight file `{missing[0]}`.")
    for file in files:
        try:
            safe_open(file, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise Stop(f"`{file}` cannot be loaded: {error}") from None
