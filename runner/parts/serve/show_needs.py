"""What a server of the trained model needs: a table for people, JSON for tools. No figure is made here."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from runner.commands.options import say
from runner.parts.serve import needs as reckoned
from runner.parts.serve.kserve import served
from runner.parts.serve.needs import ServingForecast
from runner.parts.serve.plan import Serving
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Stop, errors_of


def plan_server(recipe: Recipe, json_wanted: bool) -> int:
    """Shows what a server of what the recipe trains needs; 1 where it does not fit."""
    _, server, needs = served(recipe)
    if needs is None:
        raise Stop(
            f"Nobody can count the weights of `{recipe.model.base}` here, so nothing can be said of a server's memory.",
            "`recipe models` shows the models that are known, and writes down others.",
        )
    if json_wanted:
        say(as_json(server, needs))
    else:
        show(server, needs)
    problems = reckoned.problems(recipe, server, needs)
    for problem in () if json_wanted else problems:
        say(f"\n{problem}")
    return int(bool(errors_of(problems)))


def show(server: Serving, needs: ServingForecast) -> None:
    """Prints what each GPU holds, and what has room there."""
    every = f"on each of {needs.gpus} GPUs" if needs.gpus > 1 else "on its GPU"
    card = needs.gpu.title if needs.gpu else f"`{server.gpu}`, which is not in the catalog"
    verdict = {True: "fits", False: "does not fit", None: "needs"}[needs.fits]
    room = f", and may take {units.gib(needs.budget)}" if needs.budget is not None else ""
    need = units.gib(needs.total)
    say(f"Serving {server.name} {verdict}: it needs {need} {every} ({card}){room}.")
    if needs.requests is not None:
        say(
            f"Room for {needs.requests:,} requests of {needs.context:,} tokens at a time; {needs.concurrency} were asked for."
        )
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    each = f"{needs.concurrency} requests × {units.gib(needs.cache_a_request)}"
    for what, size, why in (
        (
            "weights",
            needs.weights,
            f"{needs.precision}" + (f", split over {needs.gpus} GPUs" if needs.gpus > 1 else ""),
        ),
        ("adapter", needs.adapter, f"room for rank {needs.rank} beside every linear layer"),
        ("cache of keys and values", needs.cache, each),
        ("largest batch", needs.working, "while it passes through a layer, and the choice of each next token"),
        ("graphs and CUDA context", needs.overhead, "assumed"),
    ):
        if size:
            table.add_row(what, units.gib(size), why)
    console = Console(width=100)
    with console.capture() as drawn:
        console.print(table)
    say("\n" + "\n".join(line.rstrip() for line in drawn.get().splitlines()) + "\n")
    say(f"Its pod: {server.memory_gib:g} GiB of main memory, {server.cpus} CPUs, {server.gpus} × {server.gpu}.")
    say(f"Model: {server.source.uri}")
    if server.base_name:
        say(f"Beside it the adapter, as `{server.name}`; the model before training answers as `{server.base_name}`.")
    say("By arithmetic over the model's sizes and vLLM's own rules; no GPU has confirmed it here.")


def as_json(server: Serving, needs: ServingForecast) -> str:
    """Bytes on one GPU, and counts."""
    figures = {
        name: getattr(needs, name)
        for name in (
            *("gpus", "precision", "context", "concurrency", "rank", "weights", "adapter", "cache_a_token"),
            *("cache_a_request", "cache", "working", "overhead", "total", "budget", "fits", "requests", "main_memory"),
        )
    }
    return json.dumps({"server": asdict(server), "forecast": figures}, indent=2, ensure_ascii=False)
