"""What a plan shows on demand: more machines side by side, and the exact trace beside the quick estimate."""

from __future__ import annotations

from rich.table import Table

from runner.estimate.forecast import Forecast
from runner.recipe import units
from runner.trace import Traced, left_out


def scaling(forecast: Forecast, nodes: list[int]) -> Table:
    table = Table(
        "machines",
        "GPUs",
        "effective batch",
        "step",
        "waiting",
        "time",
        "speed-up",
        title="On more machines",
        title_justify="left",
    )
    first = None
    for count in nodes:
        other = forecast.on(count)
        if (time := other.time) is None:
            continue
        first = first or time.samples_a_second
        table.add_row(
            str(count),
            str(other.stage.machines.world_size),
            str(other.workload.effective_batch_size),
            f"{units.speed(time.step_seconds)} s",
            f"{time.waiting_seconds / time.step_seconds:.0%}",
            units.duration(time.total_seconds),
            f"{time.samples_a_second / first:.2f}",
        )
    return table


def exact(forecast: Forecast, traced: Traced) -> Table:
    table = Table("exact, on fake tensors", "exact", "quick", title_justify="left")
    fields = left_out(forecast.workload)
    alone = forecast.formulas.changed(**fields)
    rows = [
        (
            "parameters",
            f"{traced.parameters:,}",
            f"{forecast.counts.total + forecast.counts.adapter:,}",
        ),
        ("trainable", f"{traced.trainable:,}", f"{forecast.counts.trainable:,}"),
        *(
            (name, units.gib(getattr(traced, name)), units.gib(getattr(alone.memory.state, name)))
            for name in ("weights", "gradients", "optimizer")
        ),
        ("peak of tensors, training", units.gib(traced.peak), units.gib(alone.memory.tensors)),
        ("peak of tensors, evaluation", units.gib(traced.evaluation_peak), units.gib(alone.memory.evaluation)),
    ]
    for row in rows:
        table.add_row(*row)
    if fields:
        table.caption = "Nothing split by ZeRO and nothing offloaded; what they save is by formula alone."
    return table
