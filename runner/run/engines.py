"""Engines: who trains. An engine is one function from a stage and a place to the command that starts it here."""

from __future__ import annotations

import sys
from collections.abc import Callable

from runner import parts
from runner.plan import Place, Stage

Engine = Callable[[Stage, Place], list[str]]


# Axolotl's own command in this interpreter; a config and a launcher follow.
TRAIN = (sys.executable, "-m", "axolotl.cli.main", "train")


def axolotl(stage: Stage, place: Place) -> list[str]:
    """Axolotl in this interpreter: plain for one process, through torchrun with its own rendezvous for several."""
    train = [*TRAIN, f"{place.config_dir}/{stage.config_file}"]
    if stage.machines.world_size == 1:
        return [*train, "--launcher", "python"]
    return [*train, "--launcher", "torchrun", "--", "--standalone", f"--nproc_per_node={stage.machines.world_size}"]


def of_scenario(stage: Stage, place: Place) -> list[str]:
    """A scenario's own trainer in this interpreter, through torchrun where there are several processes."""
    train = ["-m", parts.table("engines")[stage.engine], f"{place.config_dir}/{stage.config_file}"]
    if stage.machines.world_size == 1:
        return [sys.executable, *train]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={stage.machines.world_size}"]
    return [sys.executable, *launcher, *train]


def runner(stage: Stage, place: Place) -> list[str]:
    """The runner's own work: data and first weights."""
    return [sys.executable, "-m", "runner.entrypoints.prepare", f"{place.config_dir}/{stage.config_file}"]


# Those of one scenario stand in its folder.
ENGINES: dict[str, Engine] = {
    "axolotl": axolotl,
    "runner": runner,
    **dict.fromkeys(parts.table("engines"), of_scenario),
}
