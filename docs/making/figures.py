"""The pages of figures, all of them the plan's: what hardware for what, and the arithmetic of the
lyrics demo."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from saying import GENERATED, ROOT, said

from runner import catalog
from runner.check.validate import load
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.planned import Planned
from runner.recipe import overrides as changing
from runner.recipe import units
from runner.tools import packaged

# Models of every size, and what may be trained of them: a starter, and what is set in it.
MODELS = (
    "google/gemma-3-270m",
    "meta-llama/Llama-3.2-1B-Instruct",
    "HuggingFaceTB/SmolLM3-3B",
    "Qwen/Qwen2.5-7B-Instruct",
    "meta-llama/Llama-3.1-8B-Instruct",
    "microsoft/phi-4",
    "meta-llama/Llama-3.3-70B-Instruct",
)
LENGTH, ROWS = 1024, 4
METHODS = {
    "4-bit adapter (`qlora`)": ("minimal/lora", {"train.adapter": "qlora"}),
    "adapter (`lora`)": ("minimal/lora", {}),
    "last two layers": ("minimal/last-layers", {}),
    "all weights": ("minimal/causal-lm", {}),
}
# The smallest card of each size that trains in bf16.
SIZES = (
    "NVIDIA-L4",
    "NVIDIA-A100-SXM4-40GB",
    "NVIDIA-A40",
    "NVIDIA-H100-80GB-HBM3",
    "NVIDIA-H200",
    "NVIDIA-B200",
)


def hardware() -> str:
    """Which card for which model, and how long the starters take on each."""
    runs, memory, time = (
        re.findall(r"[\d.]+", line.partition(";")[0])
        for line in (ROOT / "benchmarks/results/outside.txt").read_text("utf-8").splitlines()[:3]
    )
    lines = [
        "# Which GPU for what",
        "",
        GENERATED,
        "For people who choose a GPU. Every figure here is an estimate of `recipe plan`; this project has measured none of them.",
        "",
        f"The plan was compared with {runs[0]} published runs. For memory ({memory[0]} runs), the median error is {memory[1]} %. For time ({time[0]} runs), it is",
        f"{time[1]} %, and {time[4]} % of the runs are inside the range that the plan prints in brackets. [What is least",
        "certain](plan.md#what-is-least-certain) lists the kinds of runs without published figures.",
        "",
        "## Which card for which model",
        "",
        f"The table shows the smallest of six card sizes on which training fits on one GPU, and in brackets the range of memory in GiB. It assumes {ROWS} rows of {LENGTH:,}",
        "tokens at once, gradient checkpointing and FlashAttention, and defaults for everything else. Fewer or shorter rows need less.",
        "",
        f"| model | {' | '.join(METHODS)} |",
        "|---|" + "---|" * len(METHODS),
    ]
    for model in MODELS:
        cells = [_card(method, model) for method in METHODS]
        lines.append(f"| {model.partition('/')[2]} | {' | '.join(cells)} |")
    lines += [
        "",
        f"The cards are {_listed(SIZES)}. Others of the same size work too. If a model fits none of them, several GPUs can share it",
        "(`distribution: fsdp`); `recipe plan` suggests that if it helps.",
        "",
        "## How long the starters take",
        "",
        "Each cell shows the likely time, and its range, for the recipe's number of machines and GPUs (in brackets) with that card. `-` means that the recipe does not fit on that card unless you change it.",
        "",
    ]
    # Without that for this machine's own model, which needs no GPU.
    starters = [
        path for path in packaged.starters() if "base: small" not in path.read_text("utf-8")
    ]
    names = [name for name, path in packaged.named().items() if path in starters]
    recipes = {name: load(packaged.named()[name])[0] for name in names}
    heads = [
        f"{name} ({recipes[name].machines.nodes} × {recipes[name].machines.gpus_per_node})"
        for name in names
    ]
    lines += [f"| card | usable GiB | {' | '.join(heads)} |", "|---|---|" + "---|" * len(names)]
    for label in catalog.gpu_names():
        card = catalog.gpu(label)
        if card and card.bf16:
            times = [_time(name, label) for name in names]
            lines.append(f"| {card.title} | {card.usable_gib:.1f} | {' | '.join(times)} |")
    lines += [
        "",
        "Cards before Ampere (T4, V100) have no bf16 and no FlashAttention. For them, `recipe check` shows which lines to change.",
        "If the speed of the network between machines is unknown, the plan assumes one, and the range is wider.",
        "",
        "To see the same for your own recipe and card:",
        "",
        "```sh",
        "recipe gpus recipes/lyrics.yaml              # memory and time on each card; without a recipe, what each card is",
        "recipe models --gpu NVIDIA-L40S              # which models fit on that card, with every default",
        "recipe plan recipes/lyrics.yaml --set machines.gpu=NVIDIA-H100-80GB-HBM3",
        "```",
        "",
    ]
    return "\n".join(lines)


def _listed(labels: tuple[str, ...]) -> str:
    titles = [catalog.gpu(label).title for label in labels]  # type: ignore[union-attr]
    return f"{', '.join(titles[:-1])} and {titles[-1]}"


def _forecasts(name: str, sets: dict[str, str]) -> list[Forecast]:
    return _planned(name, sets).forecasts


def _planned(name: str, sets: dict[str, str]) -> Planned:
    """Raises Stop where a starter with these settings is no valid recipe."""
    changes = changing.from_options([f"{key}={value}" for key, value in sets.items()])
    return Planned.of(load(packaged.named()[name], changes)[0])


def _card(method: str, model: str) -> str:
    name, sets = METHODS[method]
    asked = {
        "model.base": model,
        "model.sequence_len": str(LENGTH),
        "model.attention": "flash_attention_2",
        "train.micro_batch_size": str(ROWS),
        **sets,
    }
    for label in SIZES:
        (forecast,) = _forecasts(name, asked | {"machines.gpu": label})
        low, high = forecast.full.memory_range
        if forecast.usable and high <= forecast.usable:
            size = catalog.gpu(label).memory_gib  # type: ignore[union-attr]
            return f"{size} GB ({low / 2**30:.1f}–{high / 2**30:.1f})"
    return f"none alone ({low / 2**30:.0f}–{high / 2**30:.0f})"


def _time(name: str, label: str) -> str:
    planned = _planned(name, {"machines.gpu": label})
    whole = planned.together
    if not all(forecast.fits for forecast in planned.forecasts):
        return "-"
    return f"{units.duration(whole.total_seconds)} ({units.between(*whole.range_seconds, '–')})"


def songs() -> str:
    """How many GPUs a thousand songs a second would need."""
    found = json.loads(said("plan", "recipes/lyrics.yaml", "--format", "json"))
    short = json.loads(said("plan", "recipes/minimal/lyrics-demo.yaml", "--format", "json"))
    (stage,) = found["stages"]
    time, rows, peak = stage["time"], stage["rows"], found["all_machines"]["tflops"] * 1e12
    tokens = rows["tokens"]
    per_token = time["flops"] / time["tokens_a_step"]
    per_song = per_token * tokens
    hoped, epoch = 1000, rows["training"] / 60
    cards = [hoped * per_song / peak, epoch * per_song / peak]
    now = time["samples_a_second"]
    faster = catalog.gpu("NVIDIA-B200")
    assert faster
    (best,) = _forecasts("lyrics", {"machines.gpu": faster.name})
    assert best.time
    lines = [
        "# A thousand songs a second",
        "",
        GENERATED,
        "For people who wonder how fast the lyrics demo can be. Can it learn 1,000 songs a second, or all songs in a minute? This page",
        "calculates the answer from the figures of `recipe plan` for the recipe [`lyrics`](starters/lyrics.md).",
        "",
        "```sh",
        "recipe plan recipes/lyrics.yaml --details",
        "```",
        "",
        "## What one song costs",
        "",
        "| | |",
        "|---|---|",
        f"| training songs | {rows['training']:,} |",
        f"| tokens of a song, on average | {tokens:.0f} |",
        f"| the model | {stage['parameters'] / 1e9:.2f} billion weights, and {stage['trainable_parameters'] / 1e6:.0f} million of the adapter |",
        f"| operations for a token | {per_token / 1e9:.1f} billion: forward, once more because of gradient checkpointing, and backward |",
        f"| operations for a song | {per_song / 1e12:.1f} million million |",
        f"| what an L40S can do at most | {peak / 1e12:.0f} million million operations a second |",
        "",
        f"So at the rate of its data sheet, an L40S would learn {peak / per_song:.0f} songs a second. No card reaches that rate. The plan expects {now:.1f} songs a second",
        f"({time['tokens_a_second']:,.0f} tokens), as in published runs on such cards. That is {now * per_song / peak:.0%} of the data sheet.",
        "",
        "## GPUs for a thousand songs a second",
        "",
        "| | songs a second | L40S at their data sheet's rate | L40S at the planned rate |",
        "|---|---|---|---|",
        f"| 1,000 songs a second | {hoped:,} | {cards[0]:.0f} | {hoped / now:.0f} |",
        f"| an epoch in a minute | {epoch:,.0f} | {cards[1]:.0f} | {epoch / now:.0f} |",
        "",
        "The last column leaves out the time that machines need to communicate, read and save. With that time included, more machines soon gain nothing:",
        "",
        "```sh",
        "recipe plan recipes/lyrics.yaml --machines 1,2,4,…,1024",
        "```",
        "",
        "```text",
        *_table(
            said("plan", "recipes/lyrics.yaml", "--machines", "1,2,4,8,16,32,64,128,256,512,1024")
        ),
        "```",
        "",
        f"Two epochs take {units.duration(time['total_seconds'])} on one L40S. The fastest card of the catalog, {faster.title}, takes {units.duration(best.time.total_seconds)}:",
        f"{best.time.samples_a_second:.0f} songs a second. With this model and these songs, no setting comes near a thousand.",
        "",
        "## What is possible instead",
        "",
        f"- **A demo in minutes**: fewer songs. `minimal/lyrics-demo` takes {short['stages'][0]['rows']['training'] + short['stages'][0]['rows']['evaluation']:,} songs and {units.duration(short['all_stages']['total_seconds'])} on the same card.",
        "- **A rehearsal in a minute**, without a GPU: the whole recipe, with a tiny model.",
        "- **A smaller model** (`model.base`): half the weights take half the time.",
        "- **Shorter songs**: `model.sequence_len` leaves out longer ones; half the tokens take half the time.",
        "",
        "```sh",
        "recipe new my-songs --from minimal/lyrics-demo",
        "recipe plan my-songs.yaml",
        "```",
        "",
    ]
    return "\n".join(lines)


def _table(text: str) -> Iterator[str]:
    """The lines of a plan that compare numbers of machines."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("machines  "))
    for line in lines[start:]:
        if not line.strip():
            return
        yield line
