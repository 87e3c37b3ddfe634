"""A plan as a file: what a pod of a pipeline must know of its own stage and of those before it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from runner.plan import Gate, Machines, Place, Plan, Stage

FILE = "pipeline.json"

_PLACE = ("config_dir", "data_dir", "run_dir", "scratch_dir")


def text(name: str, scenario: str, place: Place, stages: Sequence[Stage]) -> str:
    """The stages' order, keys, gates and evaluations, and the engine's settings of the last one, whose pod reads it.

    Nothing of later stages, which are none of its business.
    """
    value = {
        "name": name,
        "scenario": scenario,
        "place": {part: getattr(place, part) for part in _PLACE},
        "stages": [_stage(stage, stage is stages[-1]) for stage in stages],
    }
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _stage(stage: Stage, own: bool) -> dict[str, Any]:
    return {
        "name": stage.name,
        "engine": stage.engine,
        "folder": stage.folder,
        "config_file": stage.config_file,
        "config": stage.config if own else {},
        "reads": stage.reads,
        "parts": stage.parts,
        "keys": stage.keys,
        "gates": [[gate.metric, gate.comparison, gate.threshold] for gate in stage.gates],
        "evaluation": stage.evaluation,
    }


def read(content: str) -> Plan:
    """The plan of such a file. Machines, commands and files stay with whoever made the pod, and are empty here.

    Raises ValueError or KeyError where the text is no such file.
    """
    value = json.loads(content)
    return Plan(
        name=value["name"],
        scenario=value["scenario"],
        fingerprint="",
        place=Place(**value["place"], run_keys={stage["folder"]: stage["keys"][""] for stage in value["stages"]}),
        stages=tuple(_read_stage(stage) for stage in value["stages"]),
    )


def _read_stage(value: dict[str, Any]) -> Stage:
    names = ("name", "engine", "folder", "config_file", "config", "keys", "evaluation")
    return Stage(
        **{name: value[name] for name in names},
        reads={name: tuple(beginnings) for name, beginnings in value["reads"].items()},
        parts={name: tuple(settings) for name, settings in value["parts"].items()},
        gates=tuple(Gate(*gate) for gate in value["gates"]),
        data={},
        files=(),
        command=(),
        env={},
        machines=Machines(1, 0, "", 0, 0),
        shm_gib=0,
    )
