"""Learned: pace and allocator slack of this person's own runs, by card, in the user's configuration folder.

`recipe plan` alone reads it (`constants.taking`). What is checked, rendered and submitted is the same on every machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.parts.planner import constants as measured
from runner.parts.planner.constants import Constants
from runner.tools.files import Record, settings_folder

# Of a card, the newest.
MOST_RUNS = 50
# With fewer, what other people's runs varied by is the better guess.
ENOUGH = 19


@dataclass(frozen=True)
class Observed(Record):
    """One stage of a run beside its plan. run: what tells it from others. gpu: the card's label. seconds: of a step, without
    what the plan thinks that GPUs wait for each other; planned: by the formulas alone. allocated, reserved: the most that
    PyTorch's tensors, and its allocator, took of a GPU, bytes; 0 where nobody looked. planned_allocated: by the formulas."""

    run: str = ""
    gpu: str = ""
    seconds: float = 0.0
    planned: float = 0.0
    allocated: int = 0
    reserved: int = 0
    planned_allocated: int = 0


@dataclass(frozen=True)
class Learned(Record):
    FILE = "learned.json"
    runs: tuple[Observed, ...] = ()


def keep(observed: Iterable[Observed]) -> Path:
    """Adds runs to the file, in place of what it knew of the same ones; gives where it lies. Raises OSError where it cannot
    be written."""
    new = [each for each in observed if each.run and each.gpu]
    known = {each.run: each for each in (*Learned.read(settings_folder()).runs, *new)}
    # What comes again is the newest.
    ordered = [*(each for name, each in known.items() if name not in {one.run for one in new}), *new]
    kept: list[Observed] = []
    for gpu in dict.fromkeys(each.gpu for each in ordered):
        kept += [each for each in ordered if each.gpu == gpu][-MOST_RUNS:]
    settings_folder().mkdir(parents=True, exist_ok=True)
    Learned(tuple(kept)).write(settings_folder())
    return settings_folder() / Learned.FILE


def constants() -> dict[str, Constants]:
    """What the file says of each card that it knows."""
    runs = [each for each in Learned.read(settings_folder()).runs if each.seconds > 0 and each.planned > 0]
    return {gpu: _of([each for each in runs if each.gpu == gpu], gpu) for gpu in {each.gpu for each in runs}}


def _of(runs: list[Observed], gpu: str) -> Constants:
    known = measured.from_catalog(gpu)
    count = f"{len(runs)} of your own runs" if len(runs) > 1 else "one of your own runs"
    found = measured.from_cells([_cell(each, known) for each in runs], f"{gpu}, {count}")
    return replace(found, context=known.context, spread=found.spread if len(runs) >= ENOUGH else None)


def _cell(run: Observed, known: Constants) -> dict[str, Any]:
    """A run as benchmarks/memory_on_gpu.py would have it. Where nobody looked at memory, slack is what the catalog knows."""
    allocated = run.allocated or measured.GIB
    reserved = max(run.reserved, allocated) if run.allocated else round((1 + known.slack) * allocated)
    return {
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "driver_bytes": reserved + known.context,
        "micro_batch_seconds": run.seconds,
        "planned": {"micro_batch_seconds": run.planned},
    }
