"""Inputs: what a stage's result depends on, as far as its plan tells; and keys made from that, chained over stages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from runner.names import content_hash
from runner.plan import Place, Stage

# Settings of an engine that change what is shown, kept or how fast, and not what is learned.
NEUTRAL = {
    "logging_steps",
    "save_total_limit",
    "dataset_prepared_path",
    "dataloader_num_workers",
    "use_tensorboard",
    "use_wandb",
    "use_mlflow",
    "wandb_project",
    "mlflow_experiment_name",
    "recipe_runner.fingerprint",
    "recipe_runner.name",
    "recipe_runner.persistent_workers",
    "recipe_runner.time_limit_seconds",
    "recipe_runner.time_limit_earlier",
    "run_dir",
    "out",
    # Where checkpoints lie; which ones are gone on from is said by the steps and the stages before.
    "output_dir",
    "recipe_runner.blocks.continue_from",
}


# Where text is cleaned changes no document.
NEUTRAL_PARTS = ("cleaning.",)


def learned_from(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """An engine's settings that decide what comes out, flat, by a name that a person understands."""
    for name, value in _flat(config, ""):
        neutral = name in NEUTRAL or name.startswith(NEUTRAL_PARTS)
        if not neutral and not (name.startswith(("datasets.", "test_datasets.")) and name.endswith(".path")):
            yield name, value


def _flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            yield from _flat(item, f"{name}.{index}")
    else:
        yield name, value


def without_place(value: Any, place: Place) -> Any:
    """Folders of a run are named relative to it, so that a moved run folder is the same run."""
    if not isinstance(value, str):
        return value
    for label, folder in (("DATA", place.data_dir), ("CONFIG", place.config_dir), ("RUN", place.run_dir)):
        value = value.replace(folder, label)
    return value


def keys(stages: Iterable[Stage], place: Place) -> dict[str, dict[str, str]]:
    """For each stage by name: a hash of all that its results depend on, the stages before it included, under "" for all
    of them and under each name of `Stage.parts` for that part. Equal settings, equal keys, whatever the rest says."""
    found: dict[str, dict[str, str]] = {}
    for stage in stages:
        own = {name: without_place(value, place) for name, value in learned_from(stage.config)}
        before = {name: read(found[name], beginnings) for name, beginnings in stage.reads.items()}
        found[stage.name] = {"": content_hash([stage.name, own, before])}
        for part, settings in stage.parts.items():
            chosen = {name: value for name, value in own.items() if name.split(".")[0] in settings}
            found[stage.name][part] = content_hash([stage.name, part, chosen, before])
    return found


def read(keys_of_one: Mapping[str, str], beginnings: Iterable[str]) -> dict[str, str | None]:
    """Of a stage's keys those of the parts that another stage reads, named by the beginnings of files' names."""
    parts = sorted({beginning.split("/")[0] for beginning in beginnings}) or [""]
    return {part: keys_of_one.get(part) for part in parts}
