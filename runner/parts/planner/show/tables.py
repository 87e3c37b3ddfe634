"""What a plan shows on demand: more machines side by side, and the exact trace beside the quick estimate."""

from rich.table import Table

from runner.parts.planner.forecast import Forecast
from runner.parts.planner.trace import Traced, left_out
from runner.recipe import units


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
