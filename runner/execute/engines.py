"""Engines: who trains. An engine is one function from a stage and a place to the command that starts it here."""

from __future__ import annotations

import sys
from collections.abc import Callable

from runner.plan import Place, Stage

Engine = Callable[[Stage, Place], list[str]]


def axolotl(stage: Stage, place: Place) -> list[str]:
    """Axolotl in this interpreter: plain for one process, through torchrun with its own rendezvous for several."""
    train = [sys.executable, "-m", "axolotl.cli.main", "train", f"{place.config_dir}/{stage.config_file}"]
    if stage.machines.world_size == 1:
        return [*train, "--launcher", "python"]
    return [*train, "--launcher", "torchrun", "--", "--standalone", f"--nproc_per_node={stage.machines.world_size}"]


def images(stage: Stage, place: Place) -> list[str]:
    """The runner's own trainer of images in this interpreter, through torchrun where there are several processes."""
    train = ["-m", "runner.training.images", f"{place.config_dir}/{stage.config_file}"]
    if stage.machines.world_size == 1:
        return [sys.executable, *train]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={stage.machines.world_size}"]
    return [sys.executable, *launcher, *train]


# A new engine costs one line here.
ENGINES: dict[str, Engine] = {
    "axolotl": axolotl,
    "images": images,
}
