"""What a server of a trained language model needs: GPU memory, GPUs, and main memory of its pod. Bytes.

vLLM takes a share of each GPU (`--gpu-memory-utilization`), loads weights, runs one largest batch, and keeps what is left for
the cache of keys and values (vllm/v1/worker/gpu_worker.py, determine_available_memory). It does not start where one request of
the longest context has no room there; others wait until a place is free."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from rich.console import Console
from rich.table import Table

from runner import catalog
from runner.catalog import Gpu, Model
from runner.commands.options import say
from runner.parts.planner import parameters
from runner.parts.planner.memory import GIB, NCCL_LEAST
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.serve import needs as reckoned
from runner.parts.serve import serving
from runner.parts.serve.kserve import served
from runner.parts.serve.serving import GPU_SHARE, ServedModel, Serving
from runner.plan import Plan, Stage
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Stop, errors_of

NUMBER_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Tokens of a page of the cache (vLLM's default block size).
PAGE = 16
# Tokens of the largest batch that vLLM reads at once: 8,192 on cards from 70 GiB on, 2,048 on smaller ones
# (vllm/engine/arg_utils.py, get_batch_defaults, for servers).
BATCH_LARGE, BATCH_SMALL, LARGE_CARD = 8192, 2048, 70 * GIB
# Of each request in flight a row of the vocabulary in fp32, sorted with its places, and its probabilities.
SAMPLER_BYTES = 20
# Recorded graphs, the CUDA context beside PyTorch's memory, and cuBLAS: about 1.5 GiB. Assumed; nobody has measured it here.
OVERHEAD = int(1.5 * GIB)
# Of one process, and of the server beside them; nobody has measured it here either.
PROCESS, SERVER = 4 * GIB, 6 * GIB
# Part of a file of weights that is in main memory while it is read; a file of them has 5 GB at the most (transformers).
READ_AT_ONCE = 5 * 10**9
MOST_GPUS = 8


@dataclass(frozen=True)
class ServingForecast:
    """What a server needs on each of its GPUs. model: of which everything is counted; rank: of vLLM's room for an adapter, 0
    for none. gpu: None where the catalog does not know it."""

    model: Model
    precision: str
    context: int
    concurrency: int
    gpus: int
    rank: int
    gpu: Gpu | None

    @cached_property
    def weights(self) -> int:
        """Split evenly over GPUs, norms aside. Raises UnknownArchitecture where nobody can count them."""
        return math.ceil(self._parameters * NUMBER_BYTES[self.precision] / self.gpus)

    @property
    def _parameters(self) -> int:
        try:
            return parameters.total(self.model)
        except UnknownArchitecture:
            if count := self.model.parameters or self.model.published:
                return count
            raise

    @cached_property
    def adapter(self) -> int:
        """Room for one adapter of that rank beside every linear layer, whether it has one or not (vllm/lora/layers); counted
        whole on each GPU, because one of its two matrices is not split."""
        if not self.rank:
            return 0
        layer = sum(fan_in + fan_out for fan_in, fan_out in parameters.linear(self.model).values())
        return self.rank * layer * self.model.num_hidden_layers * NUMBER_BYTES[self.precision]

    @property
    def cache_a_token(self) -> int:
        """Keys and values of one token in all layers; a GPU has at least one head of them. Layers that look back over a
        window only keep less, which is not counted here."""
        heads = max(1, self.model.num_key_value_heads // self.gpus)
        return 2 * self.model.num_hidden_layers * heads * self.model.head_dim * NUMBER_BYTES[self.precision]

    @property
    def cache_a_request(self) -> int:
        """Of a request as long as the context."""
        return math.ceil(self.context / PAGE) * PAGE * self.cache_a_token

    @property
    def cache(self) -> int:
        return self.concurrency * self.cache_a_request

    @property
    def working(self) -> int:
        """What one largest batch takes while it passes through a layer, and the sampler for all requests."""
        large = self.gpu is not None and self.gpu.usable_gib * GIB >= LARGE_CARD
        model, batch = self.model, BATCH_LARGE if large else BATCH_SMALL
        layer = 2 * model.hidden_size + 3 * model.intermediate_size // self.gpus
        sampler = self.concurrency * model.vocab_size * SAMPLER_BYTES
        return max(batch, self.concurrency) * layer * NUMBER_BYTES[self.precision] + sampler

    @property
    def overhead(self) -> int:
        return OVERHEAD + (NCCL_LEAST if self.gpus > 1 else 0)

    @property
    def before_cache(self) -> int:
        return self.weights + self.adapter + self.working + self.overhead

    @property
    def total(self) -> int:
        return self.before_cache + self.cache

    @property
    def budget(self) -> int | None:
        """What the server may take of a GPU; None where nobody knows the card."""
        return round(GPU_SHARE * self.gpu.usable_gib * GIB) if self.gpu else None

    @property
    def fits(self) -> bool | None:
        return None if self.budget is None else self.total <= self.budget

    @property
    def requests(self) -> int | None:
        """How many requests of the whole context have room at a time, whatever was asked for; 0 where it does not start."""
        if self.budget is None:
            return None
        return max(0, (self.budget - self.before_cache) // self.cache_a_request)

    @property
    def main_memory(self) -> int:
        """Of the pod: the server, a process a GPU, and what of the weights is read at once."""
        return SERVER + self.gpus * PROCESS + min(self.weights * self.gpus, READ_AT_ONCE)

    def on(self, gpus: int) -> ServingForecast:
        return replace(self, gpus=gpus)


def of(recipe: Recipe, plan: Plan) -> tuple[Serving, ServingForecast | None]:
    """The server of what a recipe trains, and what it needs; None where nobody can count its model. Pure: recipe and catalog
    alone are asked. `serve` must be a section of the recipe.

    Raises Stop where its model lies on no claim.
    """
    stage, section = plan.stages[-1], recipe.settings["serve"]
    found = serving.source(plan, stage, section.model)
    context = section.context or int(stage.config["sequence_len"])
    precision = "bf16" if stage.config.get("bf16") else "fp16" if stage.config.get("fp16") else "fp32"
    needs = _forecast(recipe, stage, found, precision, context, section.concurrency, section.gpus)
    gpus = needs.gpus if needs else section.gpus or 1
    machines, memory = stage.machines, (needs.main_memory if needs else SERVER + gpus * PROCESS + READ_AT_ONCE)
    server = Serving(
        name=recipe.name,
        base_name=f"{recipe.name}-base" if found.rank else None,
        source=found,
        precision=precision,
        context=context,
        concurrency=section.concurrency,
        gpus=gpus,
        gpu=machines.gpu,
        memory_gib=min(math.ceil(memory / GIB), machines.requested_memory_gib or machines.memory_gib),
        cpus=min(2 + 2 * gpus, machines.requested_cpus or machines.cpus),
        runtime=section.runtime,
        image=section.image,
        route=section.route,
        trust_remote_code=bool(stage.config.get("trust_remote_code")),
        needs=needs.total if needs else None,
    )
    return server, needs


def _forecast(
    recipe: Recipe, stage: Stage, found: ServedModel, precision: str, context: int, concurrency: int, gpus: int | None
) -> ServingForecast | None:
    model = recipe.model_facts
    if model is None:
        return None
    one = ServingForecast(model, precision, context, concurrency, 1, found.room_for_rank or 0, _card(stage))
    try:
        assert one.total  # UnknownArchitecture comes here, and not from half of a forecast
    except UnknownArchitecture:
        return None
    if gpus:
        return one.on(gpus)
    ways = [one.on(count) for count in splits(model)]
    return next((way for way in ways if way.fits is not False), ways[-1])


def _card(stage: Stage) -> Gpu | None:
    return catalog.gpu(stage.machines.gpu)


def splits(model: Model) -> list[int]:
    """The counts of GPUs that vLLM can split a model over, each twice the one before: its heads are dealt out evenly, and
    those of keys and values too, or each is held by several GPUs."""
    heads, groups = model.num_attention_heads, model.num_key_value_heads
    counts = [2**power for power in range(4) if 2**power <= MOST_GPUS]
    return [count for count in counts if heads % count == 0 and (groups % count == 0 or count % groups == 0)]


def problems(recipe: Recipe, server: Serving, needs: ServingForecast | None) -> list[Problem]:
    """What keeps the server from doing what its section says, each at the line that decides it."""
    found = []
    if needs and needs.fits is False and needs.budget is not None:
        have, need = units.gib(needs.budget), units.gib(needs.total)
        room = needs.requests or 0
        each = f"each of its {needs.gpus} GPUs" if needs.gpus > 1 else "its GPU"
        remedy = (
            f"Write `concurrency: {room}`, which has room, a shorter `context`, or more `gpus`."
            if room
            else "Not even one request has room: write a shorter `context`, more `gpus`, or serve on a GPU with more memory."
        )
        found.append(
            recipe.document.problem(
                ("serve", "concurrency"),
                f"The server needs {need} on {each}, and may take {have} of it: {server.concurrency} requests of "
                f"{server.context:,} tokens have no room at a time.",
                remedy,
            )
        )
    if needs and server.gpus > (most := max(recipe.gpu_counts)):
        found.append(
            recipe.document.problem(
                ("serve", "gpus"),
                f"The server takes {server.gpus} GPUs of one machine, and the machines of this recipe have {most}.",
                "It waits until a machine with so many is free; a shorter `context` or a lower `concurrency` takes fewer.",
                severity="note",
            )
        )
    if server.source.whole_because:
        found.append(
            recipe.document.problem(
                ("serve",),
                f"The adapter is served as part of its base model, without that beside it: {server.source.whole_because}.",
                "",
                key=True,
                severity="note",
            )
        )
    return found


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
