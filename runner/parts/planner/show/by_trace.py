"""A plan by traces alone, of models that there are no formulas for: as a table, and for tools under the names of `report.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from runner.parts.planner import memory
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.trace import Traced, left_out
from runner.parts.planner.workload import Workload
from runner.recipe import units

BASIS = (
    "By a run on fake tensors; CUDA context and allocator slack are assumed. The model runs as PyTorch alone runs it: where a "
    "GPU has kernels for its layers, it takes less."
)


@dataclass(frozen=True)
class TracedStage:
    """What a trace says of one stage. gpu_memory_bytes: what each GPU needs in all, and what it has to use, None where nobody
    knows the card. fits: None there too. flops: floating-point operations of one micro batch. without: what the trace takes
    whole although the run splits or moves it."""

    stage: str
    model: str
    model_type: str
    parameters: int
    trainable_parameters: int
    gpu: str
    gpus: int
    micro_batch_size: int
    evaluation_batch_size: int
    sequence_len: int
    gpu_memory_bytes: dict[str, int | None]
    fits: bool | None
    flops: int
    time: None
    without: Sequence[str]
    exact: Traced

    @classmethod
    def of(cls, forecast: Forecast, work: Workload, traced: Traced) -> TracedStage:
        total = memory.whole(work, max(traced.peak, traced.evaluation_peak))
        usable = forecast.usable
        return cls(
            stage=forecast.stage.name,
            model=forecast.formulas.name,
            model_type=work.model.model_type,
            parameters=traced.parameters,
            trainable_parameters=traced.trainable,
            gpu=forecast.stage.machines.gpu,
            gpus=forecast.stage.machines.world_size,
            micro_batch_size=work.micro_batch_size,
            evaluation_batch_size=work.evaluation_batch_size,
            sequence_len=work.sequence_len,
            gpu_memory_bytes={"total": total, "usable": usable},
            fits=None if usable is None else total <= usable,
            flops=traced.flops,
            time=None,
            without=sorted(left_out(work)),
            exact=traced,
        )

    def table(self) -> Table:
        traced, total, usable = self.exact, self.gpu_memory_bytes["total"] or 0, self.gpu_memory_bytes["usable"]
        table = Table(title=f"Stage {self.stage}, by trace alone", title_justify="left", show_header=False)
        rows = [
            ("model", f"{self.model}, of the type {self.model_type}"),
            ("parameters", f"{self.parameters:,}, {self.trainable_parameters:,} of them trained"),
            ("GPU memory, each", f"{units.both(total)}, of which:"),
            *((f"  {name}", units.gib(getattr(traced, name))) for name in ("weights", "gradients", "optimizer")),
            ("  peak of tensors, training", f"{units.gib(traced.peak)}, micro batch {self.micro_batch_size}"),
            (
                "  peak of tensors, evaluation",
                f"{units.gib(traced.evaluation_peak)}, micro batch {self.evaluation_batch_size}",
            ),
            ("fits", self._fits(total, usable)),
            ("operations", f"{self.flops / 1e12:,.3g} × 10^12 in a micro batch"),
            ("time", "cannot be told: there are no formulas for this architecture"),
        ]
        for row in rows:
            table.add_row(*row)
        if self.without:
            table.caption = "Nothing split by ZeRO and nothing offloaded; what they save comes off."
        return table

    def _fits(self, total: int, usable: int | None) -> str:
        if usable is None:
            return f"nobody knows: the GPU `{self.gpu}` is not in the catalog"
        return f"{'yes' if total <= usable else 'no'}, the card has {units.both(usable)} to use"


def as_json(name: str, stages: Sequence[TracedStage], without: Sequence[str]) -> str:
    """name: the recipe's. without: stages that nothing was traced of."""
    said: dict[str, Any] = {"name": name, "basis": BASIS, "stages": list(map(asdict, stages))}
    return json.dumps(
        said | {"without_formulas": list(without), "problems": [], "notes": []}, indent=2, ensure_ascii=False
    )
