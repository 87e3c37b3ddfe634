"""A plan as JSON for tools, and as a picture: GPU memory over one step of each stage, and time by stage. The picture is
one SVG file without other files and follows the reader's light or dark colours."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from runner.parts.plan_view.scaling import StageOnMachines, rows
from runner.parts.planner import forecast, limits, storage
from runner.parts.planner.duration import Duration
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.formulas import Traced
from runner.parts.planner.memory import Memory
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import Offer
from runner.recipe import units

MOST_MOMENTS = 12  # of the backward pass that are reported; it has one for each layer
# The parts of a GPU's memory: their names for people, and colours that people with any kind of sight can distinguish on
# white and on black (Okabe and Ito 2008). other: buffers, gathered weights, and messages.
PARTS = {
    "weights": ("weights", "#0072b2"),
    "optimizer": ("optimizer state", "#56b4e9"),
    "gradients": ("gradients", "#009e73"),
    "activations": ("activations", "#e69f00"),
    "loss": ("logits and loss", "#d55e00"),
    "other": ("buffers", "#cc79a7"),
    "reserve": ("CUDA context and slack", "#8c8c8c"),
}


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
        # Each with the plan's figures after it, None if they are unknown, and what the stages learn less or differently.
        "offers": [
            {
                "lines": offer.lines,
                "total_seconds": offer.after.seconds,
                "gpu_hours": offer.after.together.gpu_hours,
                # None also where the price is another card's.
                "cost": offer.cost,
                "gpu_memory_bytes": offer.gpu_memory,
                "loses": offer.loses,
            }
            for offer in offers
        ],
        "on_machines": rows(forecasts, nodes),
    }
    return dumped(whole)


def dumped(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=asdict)


def _stage(planned: Planned, stage: Forecast, nodes: list[int], traced: Traced | None) -> dict[str, object]:
    """The needs of one stage; None for what is unknown."""
    work, memory, rows = stage.workload, stage.memory, stage.rows
    return {
        "stage": stage.stage.name,
        "model": stage.formulas.name,
        "parameters": stage.counts.total,
        "trainable_parameters": stage.counts.trainable,
        "adapter_parameters": stage.counts.adapter,
        "gpu": stage.stage.machines.gpu,
        "gpus": stage.stage.machines.world_size,
        # Of each GPU.
        "gpu_memory_bytes": {
            "total": memory.total,
            # Where every row fills `sequence_len`.
            "at_full_length": stage.full.memory.total,
            # The range in nine of ten cases, and its source.
            "range": stage.memory_range,
            "published": str(stage.memory_spread),
            # What nvidia-smi will show.
            "shown": memory.shown,
            # None for an unknown card; the recipe's limit, None if it has none.
            "usable": stage.usable,
            "limit": limits.gpu_memory(planned.recipe),
            "moment": memory.moment,
            "parts": memory.parts(),
            # Of tensors, and of all.
            "evaluation": memory.evaluation,
            "in_evaluation": memory.in_evaluation,
            "step": [{"moment": moment, **parts} for moment, parts in step(memory)],
        },
        "fits": stage.fits,
        "largest_micro_batch": stage.largest_micro_batch,
        "host_memory_bytes": storage.host(stage),
        "disk_bytes": storage.disk(stage, planned.sized),
        "effective_batch_size": work.effective_batch_size,
        "effective_batch_tokens": getattr(work, "batch_tokens", None),
        "learning_rate": work.learning_rate,
        "warmup_steps": stage.warmup_steps,
        "warmup_share": stage.warmup_steps / stage.steps if stage.steps else None,
        # tokens: of a mean row; longest: of the longest one, 0 if unknown. longest_source: of an estimate of it.
        "rows": {
            "training": work.rows,
            "evaluation": work.evaluation_rows,
            "tokens": rows.tokens,
            "longest": rows.longest,
            "longest_source": rows.longest_source,
            "source": rows.source,
        },
        "time": stage.time.as_json() if stage.time else None,
        "time_published": stage.time_source,
        "gpu_hours": stage.gpu_hours,
        "cost": stage.cost,
        "machines": [StageOnMachines.of(stage, count) for count in nodes],
        "exact": traced,
    }


# The picture.

GIB = 2**30
WIDTH, MARGIN, GAP = 960, 24, 40
PLOT, EVALUATION = 190, 62  # height of a plot, and width of the bar beside it, in pixels
AXIS = 46  # room for the figures at a plot's left
ROW = 30  # height of a stage's line in the picture of time

SPENT = {
    "training_seconds": ("training", "#0072b2"),
    "evaluation_seconds": ("evaluation", "#e69f00"),
    "overhead_seconds": ("start and saving", "#8c8c8c"),
}
# For each phase its name, its stretch of the x axis, which is not its duration, and the position of its name in it.
PHASES = {
    "forward": ("forward", (0.0, 0.25), (0.0, "start")),
    "loss": ("loss", (0.25, 0.34), (1.0, "middle")),
    "backward": ("backward", (0.42, 0.9), (0.5, "middle")),
    "step": ("optimizer", (0.9, 1.0), (1.0, "end")),
}


def svg(planned: Planned) -> str:
    name, stages = planned.plan.name, planned.forecasts
    columns = 1 if len(stages) == 1 else 2
    wide = (WIDTH - 2 * MARGIN - (columns - 1) * GAP) / columns
    parts, top = [_text(MARGIN, 34, f"{name}: what it needs", "title")], 62.0
    if stages:
        parts.append(_legend(MARGIN, top, list(PARTS.values())))
        top += 44
    limit = limits.gpu_memory(planned.recipe)
    for first in range(0, len(stages), columns):
        for column, stage in enumerate(stages[first : first + columns]):
            parts += _memory(stage, limit, MARGIN + column * (wide + GAP), top, wide)
        top += PLOT + 92
    if timed := {stage.stage.name: stage.time for stage in stages if stage.time}:
        parts += _time(timed, top)
        top += 66 + ROW * len(timed)
    height = round(top + MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img">',
            f"<title>{escape(name)}: GPU memory over one step, and time by stage</title>",
            f"<style>\n{Path(__file__).with_name('picture.css').read_text(encoding='utf-8')}</style>",
            f'<rect class="paper" width="{WIDTH}" height="{height}"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _memory(stage: Forecast, limit: int | None, left: float, top: float, wide: float) -> Iterator[str]:
    """The plot of one stage: memory as areas, the bar of evaluation beside it, and lines for the card and a limit."""
    memory, usable, moments = stage.memory, stage.usable, step(stage.memory)
    highest = 1.12 * max(memory.total, usable or 0, limit or 0)
    base, right = top + 26 + PLOT, left + wide
    x0, x1 = left + AXIS, right - EVALUATION - 22
    scale = highest / PLOT

    def y(size: float) -> float:
        return base - size / scale

    yield f'<g data-stage={quoteattr(stage.stage.name)} data-bytes-a-pixel="{scale:.6f}" data-base="{base:.2f}">'
    fits = "whether it fits is unknown" if stage.fits is None else "fits" if stage.fits else "does not fit"
    yield _text(left, top + 8, f"{stage.stage.name}: {units.gib(memory.total)} on each GPU, {fits}", "head")
    # At most six round numbers from 0 to the highest value.
    rounds = (times * 10.0**power for power in range(-3, 9) for times in (1, 2, 5))
    apart = next(each for each in rounds if highest / GIB / each <= 5)
    for tick in (apart * n for n in range(int(highest / GIB / apart) + 1)):
        yield _line(x0, y(tick * GIB), right, y(tick * GIB), "grid")
        yield _text(x0 - 6, y(tick * GIB) + 4, f"{tick:g}", "soft", "end")
    yield _text(left, top + 26, "GiB", "soft")
    spots = _spots(moments, x0, x1)
    below = [0.0] * len(spots)
    for part, (words, colour) in PARTS.items():
        sizes = [parts[part] for _, parts in moments]
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        edge = [*zip(spots, map(y, above), strict=True), *reversed([*zip(spots, map(y, below), strict=True)])]
        if above != below:
            points = " ".join(f"{x:.2f},{height:.2f}" for x, height in edge)
            title = f"<title>{words}: at most {units.gib(max(sizes))}</title>"
            yield f'<polygon data-part="{part}" points="{points}" fill="{colour}">{title}</polygon>'
        below = above
    for name, (start, end), (share, anchor) in PHASES.values():
        yield _text(x0 + (x1 - x0) * (start + share * (end - start)), base + 17, name, "soft", anchor)
    x, low = right - EVALUATION, 0
    edges = (memory.weights, memory.weights + memory.optimizer, memory.evaluation, memory.in_evaluation)
    for part, high in zip(("weights", "optimizer", "activations", "reserve"), edges, strict=True):
        size = max(0, high - low)
        yield f'<rect data-part="{part}" x="{x:.2f}" y="{y(low + size):.2f}" width="{EVALUATION}" height="{size / scale:.2f}" fill="{PARTS[part][1]}"/>'
        low += size
    yield _text(x + EVALUATION / 2, base + 17, "evaluation", "soft", "middle")
    # After the last part, `below` is all of each moment.
    most, spot = max(zip(below, spots, strict=True), key=lambda each: each[0])
    yield _text(max(spot, x0 + 28), y(most) - 5, units.gib(most), "figure", "middle")
    yield _text(x + EVALUATION / 2, y(low) - 5, units.gib(low), "figure", "middle")
    yield _line(x0, base, right, base, "axis")
    if usable:
        yield _line(x0, y(usable), right, y(usable), "limit")
        # Above the plot, where it covers nothing.
        yield _text(right, top + 8, f"- - {stage.stage.machines.gpu} has {units.gib(usable)}", "over", "end")
    if limit:
        yield _line(x0, y(limit), right, y(limit), "own")
        yield _text(right, top + 24, f"· · the recipe's limit is {units.gib(limit)}", "owned", "end")
    yield "</g>"


def _spots(moments: Sequence[tuple[str, dict[str, int]]], left: float, right: float) -> list[float]:
    spots = []
    for phase, (_, (start, end), _) in PHASES.items():
        count = sum(moment == phase for moment, _ in moments)
        shares = [start + (end - start) * n / (count - 1) for n in range(count)] if count > 1 else [end] * count
        spots += [left + (right - left) * share for share in shares]
    return spots


def _time(times: Mapping[str, Duration], top: float) -> Iterator[str]:
    """A bar for each stage: training, evaluation, start and saving; the likely range across its end."""
    x0, x1 = MARGIN + 130, WIDTH - MARGIN - 190
    scale = max(time.range_seconds[1] for time in times.values()) / (x1 - x0)
    yield f'<g data-seconds-a-pixel="{scale:.6f}" data-left="{x0}">'
    yield _text(MARGIN, top + 8, "Time by stage, with the likely range", "head")
    yield _legend(MARGIN, top + 32, list(SPENT.values()))
    for row, (stage, time) in enumerate(times.items()):
        y, x = top + 56 + ROW * row, float(x0)
        yield _text(x0 - 8, y + 13, stage, anchor="end")
        for name, (words, colour) in SPENT.items():
            seconds = getattr(time, name)
            width = seconds / scale
            title = f"<title>{stage}, {words}: {units.duration(seconds)}</title>"
            yield f'<rect data-stage={quoteattr(stage)} data-part="{name}" x="{x:.2f}" y="{y}" width="{width:.2f}" height="18" fill="{colour}">{title}</rect>'
            x += width
        low, high = (x0 + seconds / scale for seconds in time.range_seconds)
        yield _line(low, y + 9, high, y + 9, "range")
        yield from (_line(end, y + 4, end, y + 14, "range") for end in (low, high))
        likely = units.between(*time.range_seconds)
        yield _text(x1 + 12, y + 13, f"{units.duration(time.total_seconds)} ({likely})")
    yield "</g>"


def _legend(left: float, top: float, entries: Sequence[tuple[str, str]]) -> str:
    parts, x = [], left
    for name, colour in entries:
        parts.append(f'<rect x="{x:.0f}" y="{top - 10:.0f}" width="12" height="12" fill="{colour}"/>')
        parts.append(_text(x + 18, top, name, "soft"))
        x += 18 + 7 * len(name) + 22
    return "\n".join(parts)


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}"{kind}>{escape(words)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" class="{style}"/>'
