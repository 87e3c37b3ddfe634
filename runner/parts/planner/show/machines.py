"""A plan on other counts of machines, on one screen. No figure is made here."""

import textwrap

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.planner import scaling
from runner.parts.planner.planned import Planned
from runner.parts.planner.show.screen import WIDTH, rounded
from runner.recipe import units


def show(planned: Planned, counts: list[int]) -> None:
    """Prints a line for each count of machines, and what the figures rest on."""
    rows = scaling.rows(planned.forecasts, counts)
    if not rows:
        say("\nHow long it takes on other counts of machines cannot be told.")
        return
    priced = rows[0].cost is not None
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("machines", justify="right")
    for name in ("GPUs", "time", "speed-up", "of ideal", "cost" if priced else "GPU h"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("limit", no_wrap=True)
    for row in rows:
        spent = row.cost if priced else row.gpu_hours
        table.add_row(
            f"{row.nodes:,}",
            f"{row.gpus:,}",
            "never ends" if row.total_seconds is None else units.duration(row.total_seconds),
            "" if row.speed_up is None else f"{units.speed(row.speed_up)}",
            "" if row.efficiency is None else f"{row.efficiency:.0%}",
            "" if spent is None else rounded(spent),
            row.limit,
        )
    console = Console(width=WIDTH)
    with console.capture() as drawn:
        console.print(table)
    say("\n" + "\n".join(line.rstrip() for line in drawn.get().splitlines()) + "\n")
    for line in _basis(planned, rows):
        say(textwrap.fill(line, WIDTH, subsequent_indent="  "))


def _basis(planned: Planned, rows: list[scaling.Row]) -> list[str]:
    """The formulas, each with its source, and how often to save on the largest count."""
    work, last = planned.forecasts[0].workload, rows[-1]
    days = scaling.BETWEEN_FAILURES / 86400
    return [
        "As many rows as here: accumulation falls first, then steps have more rows.",
        "Communication: bytes of a ring over the network, and 14 µs a hop (NCCL's tuning).",
        f"Saving and reading: bytes at {work.disk_mb_s:,.0f} MB/s"
        f"{'; every machine reads the model from the claim.' if work.shared_disk else ', of a disk of each machine.'}",
        f"Restarts: a GPU fails every {days:,.0f} days (Llama 3: 419 times in 54 days on 16,384); "
        f"each costs {units.duration(scaling.RESTART)}, reading, and the work since the last checkpoint (Daly 2006).",
        f"On {last.nodes:,} machines a checkpoint comes every {units.duration(last.save_seconds)}; "
        f"every {units.duration(last.best_save_seconds)} would cost least (Young 1974).",
    ]
