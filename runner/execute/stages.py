"""A stage in a run folder: what it was made from, what it has left, and whether both still hold."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.files import content_of, read_json, sha256, write_json
from runner.inputs import learned_from, without_place
from runner.names import content_hash
from runner.plan import Plan, Stage
from runner.problem import Stop

STATE_FILE = "stage.json"


@dataclass(frozen=True)
class StageFolder:
    """One stage of a plan in its run folder."""

    plan: Plan
    stage: Stage

    @property
    def path(self) -> Path:
        return Path(self.plan.place_of(self.stage).run_dir)

    @property
    def results(self) -> Path:
        """The folder that the names of `outputs` start from."""
        return Path(self.plan.place.data_dir) if self.stage.name == "data" else self.path

    @property
    def model(self) -> Path:
        return self.path / "best_model"

    @property
    def state(self) -> dict[str, Any]:
        found = read_json(self.path / STATE_FILE)
        return found if isinstance(found, dict) else {}

    @property
    def finished(self) -> bool:
        return self.state.get("status") == "finished"

    def recorded(self, what: str) -> dict[str, Any]:
        """The stage's recorded `inputs`, `outputs` or `keys`; empty where there is no such record."""
        found = self.state.get(what)
        return found if isinstance(found, dict) else {}

    def mark(self, status: str, **facts: Any) -> None:
        write_json(self.path / STATE_FILE, self.state | {"stage": self.stage.name, "status": status} | facts)

    def outputs(self) -> dict[str, str]:
        """SHA-256 of every file that the stage has left for others, by its name below `results`."""
        # The cleaned text itself is large, and nothing reads it again.
        homes = [self.results / name for name in self.stage.parts] if self.stage.name == "data" else [self.model]
        files = [file for home in homes if home.is_dir() for file in sorted(home.rglob("*")) if file.is_file()]
        return {str(file.relative_to(self.results)): sha256(file) for file in files}

    def changed_outputs(self, beginnings: tuple[str, ...] = ()) -> list[str]:
        """The names of recorded outputs that are missing or not as they were; an empty record counts as changed.

        beginnings: of the names that are looked at; none means all.
        """
        recorded = self.recorded("outputs")
        chosen = {name: digest for name, digest in recorded.items() if not beginnings or name.startswith(beginnings)}
        if not chosen:
            return ["(no record)"]
        wrong = []
        for name, digest in chosen.items():
            file = self.results / name
            if not file.is_file() or sha256(file) != digest:
                wrong.append(name)
        return wrong

    @property
    def weights(self) -> str:
        """One hash for the weights that the stage has left, as recorded; empty where there are none."""
        recorded = self.recorded("outputs")
        chosen = {Path(name).name: digest for name, digest in recorded.items() if name.endswith(".safetensors")}
        return content_hash(chosen, 32) if chosen else ""

    def set_aside(self) -> Path | None:
        """Moves the folder of a stage that has trained something out of the way, beside itself, and gives where it lies
        now; None where there is nothing that took training. One that was moved earlier stays."""
        trained = self.model.is_dir() or any((self.path / "checkpoints").glob("checkpoint-*"))
        if self.stage.engine == "runner" or not trained:
            return None
        names = (f"{self.path.name}.before{f'-{number}' if number > 1 else ''}" for number in itertools.count(1))
        kept = next(path for name in names if not (path := self.path.with_name(name)).exists())
        return self.path.rename(kept)

    def clear(self) -> None:
        """Takes away what a run from other inputs has left. Prepared data stays: its parts know what they are made from."""
        if self.stage.name == "data":
            (self.path / STATE_FILE).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)


def weights_of(folder: Path) -> str:
    """The hash that `StageFolder.weights` would give for a folder with a model."""
    chosen = {file.name: sha256(file) for file in sorted(folder.glob("*.safetensors"))}
    return content_hash(chosen, 32) if chosen else ""


def inputs(plan: Plan, stage: Stage) -> dict[str, Any]:
    """Everything that a stage's result depends on, flat, by a name that a person understands: settings, files read, and
    what the stages before it have left. None for a stage before it that has nothing yet."""
    found: dict[str, Any] = {}
    for name, value in learned_from(stage.config):
        if isinstance(value, str) and name.split(".")[-1] in ("path", "base") and Path(value).is_file():
            # The file is what it holds, wherever the command was called from.
            found[f"{name} (its content)"] = sha256(Path(value))
        elif isinstance(value, str) and name.endswith("packed") and Path(value).is_dir():
            # Too large to hash at every start; size and time tell an exchanged file.
            found[f"{name} (its content)"] = content_of(Path(value))
        else:
            found[name] = without_place(value, plan.place)
    for before, beginnings in stage.reads.items():
        found[f"results of {before}"] = results_of(plan, before, beginnings)
    # As they will be read back from the record: JSON knows lists and no tuples.
    return json.loads(json.dumps(found))


def results_of(plan: Plan, name: str, beginnings: tuple[str, ...]) -> str | None:
    """One hash for what a stage has left, of the files whose names begin so; None where it is not finished."""
    (stage,) = (stage for stage in plan.stages if stage.name == name)
    folder = StageFolder(plan, stage)
    outputs = folder.state.get("outputs")
    if not folder.finished or not isinstance(outputs, dict):
        return None
    return content_hash(
        {name: digest for name, digest in outputs.items() if not beginnings or name.startswith(beginnings)}, 32
    )


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of inputs, a line each, in the words of the settings."""
    lines = []
    for name in sorted(old.keys() | new.keys()):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        if name.startswith("results of "):
            lines.append(f"{name.removeprefix('results of ')} has left other results")
        elif name.endswith("(its content)"):
            lines.append(f"{name.removesuffix(' (its content)')}: the file's content has changed")
        else:
            lines.append(f"{name}: {_shown(before)} → {_shown(after)}")
    return lines


def _shown(value: Any) -> str:
    text = "nothing" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_weights(folder: Path) -> int:
    """Opens every weight file and reads every tensor's shape; gives the number of parameters.

    Raises Stop where a file is missing, cut short or no weights at all.
    """
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise Stop(f"`{folder}` holds no weights.")
    index = read_json(folder / "model.safetensors.index.json")
    named = set(index["weight_map"].values()) if isinstance(index, dict) else set()
    if missing := sorted(named - {file.name for file in files}):
        raise Stop(f"`{folder}` lacks the weight file `{missing[0]}`.")
    total = 0
    for file in files:
        try:
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is no mapping
                    size = 1
                    for length in tensors.get_slice(name).get_shape():
                        size *= length
                    total += size
        except (SafetensorError, OSError) as error:
            raise Stop(f"`{file}` cannot be loaded: {error}") from None
    return total
