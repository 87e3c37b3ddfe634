"""A stage in a run folder: its inputs, its results, and whether both are still as recorded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.data import object_store
from runner.plan import Place, Plan, Stage, learned_from, without_place
from runner.run.run_folder import RunFolder, delete
from runner.tools.files import Record, content_of, read_json, read_record, sha256, write_json
from runner.tools.names import content_hash, shortened
from runner.tools.problem import Stop
from runner.tools.run_files import BEST_IMAGES, BEST_MODEL, CHECKPOINTS, FETCHED, LEFT, STAGE
from runner.trainer.records import Summary

_FILES = ("path", "base", "base_model", "packed")  # last words of settings that name a file or a folder
WEIGHTS = "*.safetensors"  # the files with the weights of a model, as transformers writes it


@dataclass(frozen=True)
class StageRecord(Record):
    """A stage's inputs and results. status: `not begun`, `begun`, `finished` or `out of time`; inputs: see `inputs`
    below; keys: of the Stage; outputs: hashes by file."""

    FILE = STAGE
    stage: str = ""
    status: str = "not begun"
    inputs: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)

    def beginning_with(self, beginnings: tuple[str, ...]) -> dict[str, str]:
        """The outputs whose names have one of these prefixes; all for no prefixes."""
        return {name: digest for name, digest in self.outputs.items() if name.startswith(beginnings or "")}


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
        return Path(self.stage.config["out"]) if self.prepares or self.fetches else self.path

    @property
    def prepares(self) -> bool:
        """Whether the stage prepares data for other stages."""
        return not self.stage.trains and self.stage.config.get("out") == self.plan.place.data_dir

    @property
    def fetches(self) -> bool:
        """Whether the stage only downloads the base model."""
        return not self.stage.trains and self.stage.config.get("out") == self.plan.place.model_dir is not None

    @property
    def model(self) -> Path:
        return self.path / BEST_MODEL

    @property
    def weights_files(self) -> list[Path]:
        """The files with the best model's weights: those that transformers writes, or that of the image trainer."""
        return [*sorted(self.model.glob(WEIGHTS)), *self.path.glob(BEST_IMAGES)]

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

    def mark(self, status: str, **facts: Any) -> None:
        now = {"stage": self.stage.name, "status": status}
        write_json(self.path / STAGE, read_record(self.path / STAGE) | now | facts)

    def outputs(self) -> dict[str, str]:
        """SHA-256 of every result that others read, by its name below `results`."""
        if self.fetches:
            # This file is written last and names the commit, so that hundreds of gigabytes of weights need not be read.
            homes, files = [], [*self.results.glob(FETCHED)]
        elif not self.prepares:
            homes, files = [self.model], [*self.path.glob(BEST_IMAGES)]
        else:
            # Parts that are read separately, without the cleaned text, which is large and not read again.
            homes = [self.results / name for name in self.stage.parts]
            files = [] if homes else sorted(self.results.glob("*.parquet"))
        files += [file for home in homes if home.is_dir() for file in sorted(home.rglob("*")) if file.is_file()]
        return {str(file.relative_to(self.results)): sha256(file) for file in files}

    def changed_outputs(self, beginnings: tuple[str, ...] = ()) -> list[str]:
        """The recorded outputs, with these beginnings, that are missing or changed; no record counts as changed."""
        if not (chosen := self.state.beginning_with(beginnings)):
            return ["(no record)"]
        files = {name: self.results / name for name in chosen}
        return [name for name, file in files.items() if not file.is_file() or sha256(file) != chosen[name]]

    def model_hash(self, look: bool = False) -> str:
        """One hash for the stage's whole model; empty for none. look: hash the files now, which can take minutes."""
        files = self.outputs() if look else self.state.outputs
        return model_hash({name.removeprefix(f"{BEST_MODEL}/"): digest for name, digest in files.items()})

    @property
    def has_trained(self) -> bool:
        """Whether the folder has results of training."""
        return self.stage.trains and (bool(self.weights_files) or any((self.path / CHECKPOINTS).rglob("checkpoint-*")))

    def clear(self) -> None:
        """Deletes results of other inputs. Prepared data stays, because its parts have their own records."""
        if self.prepares:
            (self.path / STAGE).unlink(missing_ok=True)
        elif self.stage.folder:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            # Its folder is the run's own, and on a claim perhaps also another run's.
            delete(entry for pattern in LEFT for entry in self.path.glob(pattern))


def model_hash(files: Mapping[str, str]) -> str:
    return content_hash(dict(files), 32) if any(name.endswith((".safetensors", ".pth")) for name in files) else ""


def inputs(plan: Plan, stage: Stage) -> Mapping[str, Any]:
    """Everything that a stage's result depends on, flat, by readable names: settings, files, and results of the stages
    before, None for those without results."""
    by_name: dict[str, Any] = {}
    place = plan.place
    made_in = [folder for folder in (place.data_dir, place.config_dir, place.run_dir, place.model_dir) if folder]
    for name, value in learned_from(stage.config):
        file = Path(value) if name.split(".")[-1] in _FILES and isinstance(value, str) else None
        if file and file.exists() and not any(map(file.is_relative_to, made_in)):
            # Its content counts, whatever the current folder is.
            by_name[f"{name} (its content)"] = content_of(file)
        else:
            by_name[name] = without_place(value, place)
            if name.split(".")[-1] == "path" and str(value).startswith(object_store.S3):
                # Where no pod or person has the keys, the file counts as unchanged.
                made = StageFolder(plan, stage).state.inputs.get(content := f"{name} (its content)")
                by_name |= {content: now} if (now := object_store.version(str(value)) or made) else {}
    for name, beginnings in stage.reads.items():
        before = StageFolder(plan, plan.stage(name))
        done = before.finished and before.state.outputs
        by_name[f"results of {name}"] = content_hash(before.state.beginning_with(beginnings), 32) if done else None
    # In the form of the JSON record, which has lists but no tuples.
    return dict(json.loads(json.dumps(by_name)))


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The differences between two sets of inputs, a line each, by the names of the settings."""
    lines = []
    for name in sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
        before, after = old.get(name), new.get(name)
        if name.startswith("results of "):
            lines.append(f"{name.removeprefix('results of ')} produced other results")
        elif name.endswith("(its content)"):
            lines.append(f"{name.removesuffix(' (its content)')}: the file's content has changed")
        else:
            lines.append(f"{name}: {_shown(before)} → {_shown(after)}")
    return lines


def _shown(value: Any) -> str:
    text = "nothing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return shortened(text, 60)


def check_weights(folder: Path) -> None:
    """Opens every weight file, whose beginning says how long it is. Raises Stop if one is missing, cut short or broken."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob(WEIGHTS))
    if not files:
        raise Stop(f"`{folder}` contains no weights.")
    index = read_json(folder / "model.safetensors.index.json")
    named = set(index["weight_map"].values()) if isinstance(index, dict) else set()
    if missing := sorted(named - {file.name for file in files}):
        raise Stop(f"`{folder}` lacks the weight file `{missing[0]}`.")
    for file in files:
        try:
            safe_open(file, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise Stop(f"`{file}` cannot be loaded: {error}") from None
