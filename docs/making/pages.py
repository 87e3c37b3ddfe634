"""Writes the pages of `docs/` that follow from the code: troubles, hardware, the lyrics demo's arithmetic, and one for each starter.

`python docs/making/pages.py` writes them; `make golden` does too, and a test fails where one is out of date.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import pictures  # noqa: E402
from saying import said  # noqa: E402

from runner import catalog, packaged  # noqa: E402
from runner.catalog import troubles  # noqa: E402
from runner.check import by_schema  # noqa: E402
from runner.check.validate import load  # noqa: E402
from runner.estimate.forecast import Forecast  # noqa: E402
from runner.planned import Planned, Together  # noqa: E402
from runner.recipe import overrides as changing  # noqa: E402
from runner.recipe import units  # noqa: E402

DOCS = ROOT / "docs"
GENERATED = "<!-- Made by docs/making/pages.py, of the code itself; `make golden` writes it anew. -->\n"
# Where a trouble is looked for, and what a person would call that; the places of troubles.py, in the page's order.
PLACES = {
    troubles.LOG: "In the log of a run",
    troubles.UNMADE: "No pod is made",
    troubles.QUEUE: "It waits in the queue",
    troubles.PLACING: "No machine takes it",
    troubles.IMAGE: "The image does not come",
    troubles.MOUNT: "A volume does not come",
    troubles.MISSING: "Something that it needs is not there",
    troubles.TAKEN: "It was taken off its machine",
    troubles.ENDED: "It was ended",
    troubles.SERVER: "A server of the model does not start",
}
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


def pages() -> dict[Path, str]:
    """Every generated page, and every picture of a quick command, by where it lies."""
    os.environ["XDG_CONFIG_HOME"] = "/nonexistent"  # what somebody's own runs have taught the plan is no part of a page
    starters = {DOCS / "starters" / f"{_file(name)}.md": starter(name) for name in packaged.named()}
    fixed = {"troubles": _troubles(), "hardware": _hardware(), "songs": _songs(), "starters/index": _starters()}
    return {DOCS / f"{name}.md": text for name, text in fixed.items()} | starters | pictures.quick()


def _file(name: str) -> str:
    return name.replace("/", "-")


# Troubles.


def _troubles() -> str:
    told = {trouble.name: found for trouble in troubles.known() if (found := _shown(trouble.name))}
    lines = [
        "# When something goes wrong",
        "",
        GENERATED,
        "Give it to `recipe why`, whatever it is: a recipe, a run's folder, a file with a log, or what `oc` says.",
        "",
        "```sh",
        "recipe why runs/my-demo",
        "oc logs POD | recipe why -",
        "oc describe pod POD | recipe why -",
        "```",
        "",
        "It answers with a sentence, a remedy, and at the end a word in brackets, which is a heading on this page. What is wrong in a recipe itself,",
        "`recipe check` says with its line: [check a recipe](checking.md). What will not work on a machine, `recipe doctor RECIPE` says before anything runs.",
        "",
        f"These are all {len(troubles.known())} of them. Where words differ from one time to the next, an example stands, or `…`.",
        "",
    ]
    for place, title in PLACES.items():
        here = [trouble for trouble in troubles.known() if trouble.places[0] == place]
        lines += [f"## {title}", ""]
        for trouble in here:
            found = told.get(trouble.name)
            blank = troubles.Found(trouble, "")
            means, remedy = ((found or blank).means, (found or blank).remedy)
            lines += [f"### {trouble.code}", "", f"**{_plain(_sentence(means))}**", ""]
            if remedy.strip():
                lines += [_plain(remedy.strip()), ""]
            if found:
                lines += ["It says, for example:", "", "```text", _cut(found.line), "```", ""]
    return "\n".join(lines)


def _shown(name: str) -> troubles.Found | None:
    """The trouble as somebody has met it, in the words of the tests' examples; None where there is none."""
    cases = tomllib.loads((ROOT / "tests/fixtures/troubles.toml").read_text("utf-8"))
    for case, shown in cases.items():
        if shown.get("trouble", case) == name:
            words = {key: shown[key] for key in ("world_size", "gpu") if key in shown}
            return troubles.find(shown["log"], **words)
    return None


def _sentence(text: str) -> str:
    text = re.sub(r"\.\.+", ".", " ".join(text.split()))
    return text[0].upper() + text[1:]


def _plain(text: str) -> str:
    """Words for a page: outside of code nothing of them is markup."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]\\])", r"\\\1", part) for part in parts)


def _cut(line: str, most: int = 160) -> str:
    return line if len(line) <= most else f"{line[:most].rstrip()} …"


# Starters.


def _starters() -> str:
    lines = [
        "# The starter recipes",
        "",
        GENERATED,
        "`recipe new my-demo --from NAME` makes one of them yours. [Your own data and model](../own-data.md) says how it learns from your rows.",
        "",
        "| recipe | what it trains | scenario |",
        "|---|---|---|",
    ]
    lines += [_row(name) for name, path in packaged.named().items() if path in packaged.starters()]
    lines += [
        "",
        "## In a few lines",
        "",
        "`recipes/minimal/` has a starter of at most 15 lines for every scenario (35 for the pipeline): what somebody must decide, model,",
        "data and GPU, and everything else by default.",
        "",
        "```sh",
        "recipe new my-demo --from survival --minimal    # the short form of that starter",
        "recipe show my-demo.yaml                        # all of it: every default, and where each setting comes from",
        "```",
        "",
        "| recipe | what it trains | scenario |",
        "|---|---|---|",
    ]
    lines += [_row(name) for name, path in packaged.named().items() if path in packaged.minimal()]
    lines += ["", "```{toctree}", ":hidden:", "", *map(_file, packaged.named()), "```", ""]
    return "\n".join(lines)


def _row(name: str) -> str:
    recipe = load(packaged.named()[name])[0]
    return f"| [`{name}`]({_file(name)}.md) | {recipe.description} | `{recipe.scenario}` |"


def starter(name: str) -> str:
    """The page of a starter: what it is, what it takes, what is made of it, and all of it."""
    path = packaged.named()[name]
    recipe = load(path)[0]
    place = "recipes/" + path.relative_to(packaged.folder("recipes")).as_posix()
    copy = "my-demo" if not name.startswith("minimal/") else "my-short-demo"
    lines = [
        f"# {name}",
        "",
        GENERATED,
        f"{recipe.description}.",
        "",
        f"Scenario [`{recipe.scenario}`](../settings.md#scenario-{recipe.scenario}): {by_schema.schema(recipe.scenario)['description']}",
        "",
        "```sh",
        f"recipe new {copy} --from {name}",
        f"recipe check {copy}.yaml",
        f"recipe plan {copy}.yaml",
        f"recipe rehearse {copy}.yaml",
        f"recipe run {copy}.yaml",
        "```",
        "",
        "## What it will take",
        "",
        "```text",
        said("plan", place),
        "```",
        "",
        "[What the plan says](../plan.md) explains the lines; [what hardware for what](../hardware.md) has other cards.",
        "",
        "## All of it",
        "",
        f"```{{literalinclude}} {'../' * 2}{place}",
        ":language: yaml",
        "```",
        "",
    ]
    return "\n".join(lines)


# Hardware.


def _hardware() -> str:
    basis = (ROOT / "benchmarks/results/outside.txt").read_text("utf-8").splitlines()[:3]
    lines = [
        "# What hardware for what",
        "",
        GENERATED,
        "Every figure here is `recipe plan`'s, and none was measured by this project. What it says, of runs that others have published:",
        "",
        "```text",
        *basis,
        "```",
        "",
        "An error is planned over measured, less 1. The range in brackets behind a figure is made of such errors; [what is least",
        "certain](plan.md#what-is-least-certain) stands with the plan.",
        "",
        "## Which card for which model",
        "",
        f"The smallest of six sizes of card on which training fits, on one GPU, by the upper end of the range: {ROWS} rows of {LENGTH:,} tokens at once, with gradient",
        "checkpointing and FlashAttention, and all else by default. In brackets the GiB that are needed. Fewer rows at once, or shorter ones, take less.",
        "",
        f"| model | {' | '.join(METHODS)} |",
        "|---|" + "---|" * len(METHODS),
    ]
    for model in MODELS:
        cells = [_card(method, model) for method in METHODS]
        lines.append(f"| {model.partition('/')[2]} | {' | '.join(cells)} |")
    lines += [
        "",
        f"The cards are {_listed(SIZES)}; others of the same size will do. A model that fits none of them alone fits several GPUs that share it",
        "(`distribution: fsdp`); `recipe plan` offers that where it helps.",
        "",
        "## How long the starters take",
        "",
        "On the machines that the recipe names, with another card in each: likely time, and the range. `-` means that it does not fit there as it is written.",
        "",
    ]
    names = [name for name, path in packaged.named().items() if path in packaged.starters()]
    recipes = {name: load(packaged.named()[name])[0] for name in names}
    heads = [f"{name} ({recipes[name].machines.nodes} × {recipes[name].machines.gpus_per_node})" for name in names]
    lines += [f"| card | usable GiB | {' | '.join(heads)} |", "|---|---|" + "---|" * len(names)]
    for label in catalog.gpu_names():
        card = catalog.gpu(label)
        if card and card.bf16:
            times = [_time(name, label) for name in names]
            lines.append(f"| {card.title} | {card.usable_gib:.1f} | {' | '.join(times)} |")
    lines += [
        "",
        "Cards before Ampere (T4, V100) have no bf16 and no FlashAttention: `recipe check` says at its lines what a recipe then writes.",
        "Where the network between machines is not known, it is assumed, and the range is that much wider.",
        "",
        "```sh",
        "recipe plan recipes/lyrics.yaml --set machines.gpu=NVIDIA-H100-80GB-HBM3",
        "```",
        "",
    ]
    return "\n".join(lines)


def _listed(labels: tuple[str, ...]) -> str:
    titles = [catalog.gpu(label).title for label in labels]  # type: ignore[union-attr]
    return f"{', '.join(titles[:-1])} and {titles[-1]}"


def _forecasts(name: str, sets: dict[str, str]) -> list[Forecast]:
    """Raises Stop where a starter with these settings is no valid recipe."""
    changes = changing.from_options([f"{key}={value}" for key, value in sets.items()])
    return Planned.of(load(packaged.named()[name], changes)[0]).forecasts


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
        low, high = forecast.memory_range
        if forecast.usable and high <= forecast.usable:
            size = catalog.gpu(label).memory_gib  # type: ignore[union-attr]
            return f"{size} GB ({low / 2**30:.1f}–{high / 2**30:.1f})"
    return f"none alone ({low / 2**30:.0f}–{high / 2**30:.0f})"


def _time(name: str, label: str) -> str:
    forecasts = _forecasts(name, {"machines.gpu": label})
    whole = Together.of(forecasts)
    if not all(forecast.fits for forecast in forecasts):
        return "-"
    return f"{units.duration(whole.total_seconds)} ({units.between(*whole.range_seconds, '–')})"


# The lyrics demo.


def _songs() -> str:
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
        "The lyrics demo was once hoped to learn 1,000 songs a second, and to go through all of them in a minute. This page says what arithmetic says. The",
        "figures are those of `recipe plan` for the recipe [`lyrics`](starters/lyrics.md).",
        "",
        "```sh",
        "recipe plan recipes/lyrics.yaml --details",
        "```",
        "",
        "## What one song costs",
        "",
        "| | |",
        "|---|---|",
        f"| songs that are learned from | {rows['training']:,} |",
        f"| tokens of a song, in the mean | {tokens:.0f} |",
        f"| the model | {stage['parameters'] / 1e9:.2f} billion weights, and {stage['trainable_parameters'] / 1e6:.0f} million of the adapter |",
        f"| operations for a token | {per_token / 1e9:.1f} billion: forward, once more because of gradient checkpointing, and backward |",
        f"| operations for a song | {per_song / 1e12:.1f} million million |",
        f"| what an L40S can do at most | {peak / 1e12:.0f} million million operations a second |",
        "",
        f"So an L40S that reached its data sheet would learn {peak / per_song:.0f} songs a second. None does: the plan says {now:.1f} songs a second",
        f"({time['tokens_a_second']:,.0f} tokens), as published runs on such cards reach it, which is {now * per_song / peak:.0%} of the data sheet.",
        "",
        "## What was hoped for",
        "",
        "| | songs a second | L40S at their data sheet's rate | L40S at the planned rate |",
        "|---|---|---|---|",
        f"| 1,000 songs a second | {hoped:,} | {cards[0]:.0f} | {hoped / now:.0f} |",
        f"| an epoch in a minute | {epoch:,.0f} | {cards[1]:.0f} | {epoch / now:.0f} |",
        "",
        "The last column leaves out that machines talk to each other, read and save. With them, more machines soon bring nothing:",
        "",
        "```sh",
        "recipe plan recipes/lyrics.yaml --machines 1,2,4,…,1024",
        "```",
        "",
        "```text",
        *_table(said("plan", "recipes/lyrics.yaml", "--machines", "1,2,4,8,16,32,64,128,256,512,1024")),
        "```",
        "",
        f"Two epochs take {units.duration(time['total_seconds'])} on one L40S. The fastest card of the catalog, {faster.title}, takes {units.duration(best.time.total_seconds)}:",
        f"{best.time.samples_a_second:.0f} songs a second. No setting that leaves the model and the songs as they are comes near a thousand.",
        "",
        "## What can be had instead",
        "",
        f"- **A demo in minutes**: fewer songs. `minimal/lyrics-demo` takes {short['stages'][0]['rows']['training'] + short['stages'][0]['rows']['evaluation']:,} songs and {units.duration(short['all_stages']['total_seconds'])} on the same card.",
        "- **A rehearsal in a minute**, without a GPU: all of it, with a tiny model.",
        "- **A smaller model**: time falls as its weights do. `model.base` is one line.",
        "- **Shorter songs**: `model.sequence_len` leaves out those that are longer, and time falls as the tokens do.",
        "",
        "```sh",
        "recipe new my-songs --from minimal/lyrics-demo",
        "recipe plan my-songs.yaml",
        "```",
        "",
    ]
    return "\n".join(lines)


def _table(text: str) -> Iterator[str]:
    """The lines of a plan that compare counts of machines."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("machines  "))
    for line in lines[start:]:
        if not line.strip():
            return
        yield line


if __name__ == "__main__":
    for file, text in pages().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        print(file.relative_to(ROOT))
