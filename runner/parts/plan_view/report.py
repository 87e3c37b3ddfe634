"""A plan as JSON for tools, and as a picture: GPU memory over one step of each stage, and time by stage. The picture is
one SVG file without other files and follows the reader's light or dark colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from runner.parts.plan_view.scaling import StageOnMachines, rows
from runner.parts.planner import forecast, limits, storage
from runner.parts.planner.forecast import Forecast, named
from runner.parts.planner.formulas import Traced
from runner.parts.planner.memory import Memory
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.recipe import units
from runner.tools import packaged
from runner.tools.text import json_text, template

MOST_MOMENTS = 12  # of the backward pass that are reported; it has one for each layer
HERE = Path(__file__).parent
FIGURES, JSON = (packaged.toml(__file__, name) for name in ("figures.toml", "json.toml"))
PARTS: Mapping[str, tuple[str, str]] = FIGURES["drawn"]


def step(memory: Memory) -> list[tuple[str, dict[str, int]]]:
    """The moments of a step with bytes of a GPU by part; a long backward pass is thinned evenly, and keeps its peak."""
    backward = [moment for moment in memory.moments if moment.name == "backward"]
    most = max(backward, key=lambda moment: moment.size, default=None)
    every = -(-len(backward) // MOST_MOMENTS) or 1
    kept = [moment for n, moment in enumerate(backward) if n % every == 0 or moment in (most, backward[-1])]
    whole = [moment for moment in memory.moments if moment.name != "backward" or moment in kept]
    # A step begins without activations.
    start = whole[0]._replace(name="forward", activations=0, logits=0, temporary=0)
    weights, optimizer, slack = memory.weights, memory.optimizer, memory.slack / max(memory.tensors, 1)
    return [
        (
            each.name,
            {
                "weights": weights,
                "optimizer": optimizer,
                "gradients": each.gradients,
                "activations": each.activations,
                "loss": each.logits,
                "other": each.base - weights - optimizer + each.temporary,
                "reserve": round(each.size * slack) + memory.context,
            },
        )
        for each in (start, *whole)
    ]


def as_json(planned: Planned, offers: Iterable[Offer], nodes: list[int], traced: Mapping[str, Traced]) -> str:
    """The plan of a recipe. nodes: other counts of machines; traced: the exact traces by stage."""
    plan, forecasts = planned.sized, planned.forecasts
    trained = [each.stage.name for each in forecasts]
    whole = {
        "name": plan.name,
        "basis": forecast.basis(forecasts, nodes),
        # The size that is requested for each claim, and what will be written to it.
        "claims_gib": {claim["name"]: plan.claim_gib(claim["name"]) for claim in plan.site.get("claims") or ()},
        "claims_bytes": storage.needs(plan, forecasts),
        "stages": [_stage(planned, each, nodes, traced.get(each.stage.name)) for each in forecasts],
        # Stages that train nothing.
        "without_formulas": [stage.name for stage in plan.stages if stage.name not in trained],
        # Of these, those with an estimate of their time.
        "preparations": [
            asdict(each) | {"range_seconds": each.range_seconds} for each in planned.preparations if each.total_seconds
        ],
        "all_stages": planned.together,
        "all_machines": planned.hardware,
        "before_training_bytes": list(storage.before_training(plan)),
        "problems": [problem.as_json() for problem in planned.problems],
        "notes": [note.as_json() for note in planned.notes],
        "offers": [named(JSON["offer"], offer) for offer in offers],
        "on_machines": rows(forecasts, nodes),
    }
    return json_text(whole)


def _stage(planned: Planned, stage: Forecast, nodes: list[int], traced: Traced | None) -> dict[str, object]:
    """The needs of one stage."""
    known = SimpleNamespace(
        stage=stage,
        published=str(stage.memory_spread),
        limit=limits.gpu_memory(planned.recipe),
        parts=stage.memory.parts(),
        step=[{"moment": moment, **parts} for moment, parts in step(stage.memory)],
        host=storage.host(stage),
        disk=storage.disk(stage, planned.sized),
        batch_tokens=getattr(stage.workload, "batch_tokens", None),
        warmup_share=stage.warmup_steps / stage.steps if stage.steps else None,
        time=stage.time.as_json() if stage.time else None,
        machines=[StageOnMachines.of(stage, count) for count in nodes],
        traced=traced,
    )
    return named(JSON["stage"], known)


# The picture.

GIB = 2**30
WIDTH, MARGIN, GAP = 960, 24, 40
PLOT, BAR = 190, 62  # height of a plot, and width of the bar of evaluation beside it, in pixels
AXIS = 46  # room for the figures at a plot's left
ROW = 30  # height of a stage's line in the picture of time

SPENT: Mapping[str, tuple[str, str]] = FIGURES["spent"]
PHASES: Mapping[str, tuple[str, tuple[float, float], tuple[float, str]]] = FIGURES["phases"]


def svg(planned: Planned) -> str:
    stages, limit = planned.forecasts, limits.gpu_memory(planned.recipe)
    columns = 1 if len(stages) == 1 else 2
    wide = (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns
    panels = [
        _panel(stage, limit, MARGIN + n % columns * (wide + GAP), 106.0 + n // columns * (PLOT + 92), wide)
        for n, stage in enumerate(stages)
    ]
    top = panels[-1]["top"] + PLOT + 92 if panels else 62.0
    timed = {stage.stage.name: stage.time for stage in stages if stage.time}
    height = round(top + (66 + ROW * len(timed) if timed else 0) + MARGIN)
    picture = template(HERE / "picture.svg.jinja", px="{:.2f}".format, units=units)
    known = {"GIB": GIB, "WIDTH": WIDTH, "MARGIN": MARGIN, "BAR": BAR, "ROW": ROW, "SPENT": SPENT, "PHASES": PHASES}
    places = {"panels": panels, "limit": limit, "timed": timed, "top": top, "height": height}
    return f"{picture.render(known, PARTS=PARTS, name=planned.plan.name, **places)}\n"


def _panel(stage: Forecast, limit: int | None, left: float, top: float, wide: float) -> dict[str, Any]:
    """The places in the plot of one stage. y: of a size in bytes; ticks: GiB at the axis; areas: of each part its name,
    its edge and its peak; bars: of each part in evaluation its name and both ends; peak: the bytes and the place."""
    memory, moments = stage.memory, step(stage.memory)
    highest = 1.12 * max(memory.total, stage.usable or 0, limit or 0)
    base, scale, right = top + 26 + PLOT, highest / PLOT, left + wide
    x0, x1 = left + AXIS, right - BAR - 22
    # At most six round numbers from 0 to the highest value.
    rounds = (times * 10.0**power for power in range(-3, 9) for times in (1, 2, 5))
    apart = next(each for each in rounds if highest / GIB / each <= 5)
    spots = _spots(moments, x0, x1)
    areas, below = [], [0] * len(spots)
    for part in PARTS:
        above = [low + parts[part] for low, (_, parts) in zip(below, moments, strict=True)]
        if above != below:
            edge = [*zip(spots, above, strict=True), *reversed([*zip(spots, below, strict=True)])]
            areas.append((part, edge, max(parts[part] for _, parts in moments)))
        below = above
    sums = (0, memory.weights, memory.weights + memory.optimizer, memory.evaluation, memory.in_evaluation)
    ends = [*accumulate(sums, max)]
    return {
        "stage": stage,
        "left": left,
        "right": right,
        "top": top,
        "x0": x0,
        "x1": x1,
        "bar": right - BAR,
        "scale": scale,
        "y": lambda size: base - size / scale,
        "ticks": [apart * n for n in range(int(highest / GIB / apart) + 1)],
        "areas": areas,
        "bars": [*zip(("weights", "optimizer", "activations", "reserve"), ends, ends[1:], strict=False)],
        # After the last part, `below` is all of each moment.
        "peak": max(zip(below, spots, strict=True), key=lambda each: each[0]),
    }


def _spots(moments: Sequence[tuple[str, dict[str, int]]], left: float, right: float) -> list[float]:
    spots = []
    for phase, (_, (start, end), _) in PHASES.items():
        count = sum(moment == phase for moment, _ in moments)
        shares = [start + (end - start) * n / (count - 1) for n in range(count)] if count > 1 else [end] * count
        spots += [left + (right - left) * share for share in shares]
    return spots
