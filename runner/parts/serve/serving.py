"""Serving: where a server finds the model of a plan, and what it needs of its machine. Of
Kubernetes it has only claims, by name; a target adds the rest.

Amounts are bytes. vLLM takes a share of each GPU (`--gpu-memory-utilization`), loads the weights,
runs one largest batch, and uses the rest for the cache of keys and values
(vllm/v1/worker/gpu_worker.py, determine_available_memory). It does not start if one request of the
longest context has no room there; other requests wait."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from runner import catalog
from runner.parts.planner import parameters
from runner.parts.planner.memory import GIB, NCCL_LEAST
from runner.plan import OnClaim, Plan, Stage, precision_of
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.files import content_hash
from runner.tools.problem import Problem, Stop, listed, worded
from runner.tools.run_files import BEST_MODEL
from runner.tools.text import served
from runner.tools.vllm import LAYERS, refusals, room_for

# What adapters of one server must have in common, beside the base model: by its name, the settings
# of Axolotl.
SHARED = {
    "precision": ("bf16", "fp16"),
    "chat template": (
        "chat_template",
        "chat_template_jinja",
        "eot_tokens",
        "tokenizer_use_mistral_common",
    ),
    "vocabulary": ("special_tokens", "tokens"),
}
SERVICE, LLM = "InferenceService", "LLMInferenceService"  # KServe's kinds of a server
GPU_SHARE = 0.9  # the share of a GPU's memory for the server, vLLM's default
NUMBER_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
# Bytes of a weight of a linear layer in the formats of `recipe export`; four bits have a 16-bit
# scale for 128 weights.
COMPRESSED_BYTES = {"fp8": 1, "int4": (4 + 16 / 128) / 8}
PAGE = 16  # tokens of a page of the cache (vLLM's default block size)
# Tokens of vLLM's largest batch, from this size of card on and below it (vllm/engine/arg_utils.py,
# get_batch_defaults).
BATCH_LARGE, BATCH_SMALL, LARGE_CARD = 8192, 2048, 70 * GIB
# Bytes of each request for each word of the vocabulary: logits in fp32, sorted, with their indices
# and probabilities.
SAMPLER_BYTES = 20
OVERHEAD = int(1.5 * GIB)  # recorded graphs, the CUDA context and cuBLAS, assumed, not measured
PROCESS, SERVER = 4 * GIB, 6 * GIB  # main memory of one process, and of the server, not measured
# The part of a file of weights that is in main memory while it is read; a file has at most 5 GB
# (transformers).
READ_AT_ONCE = 5 * 10**9
COUNTS = (1, 2, 4, 8)  # the numbers of GPUs to try if the recipe names none


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter beside a base model. name: of the trained model. results: of the stage that
    trained it. base_name: of the original model for its recipe. content: a hash of what its weights
    depend on."""

    name: str
    base_name: str
    rank: int
    results: OnClaim
    content: str


@dataclass(frozen=True)
class ServedModel:
    """Where a server finds its model.

    uri: the mounted folder, as KServe names it. model: the folder of the model, or of an adapter's
    base model, below it; empty for `uri` itself. results: of the stage that trained it; None if the
    recipe names another model. adapters: beside the base model, the recipe's own first; empty for a
    whole model. mounted: one folder for each claim, which holds all that the server needs of it;
    the first is `uri`. whole_because: why an adapter is served merged. template: whether training
    leaves a template with its system prompt, which all adapters share. prompts_differ: they do not.
    mistral: whether its tokenizer is that of mistral-common, which has no template."""

    uri: str
    model: str = ""
    results: OnClaim | None = None
    adapters: tuple[ServedAdapter, ...] = ()
    mounted: tuple[OnClaim, ...] = ()
    whole_because: str = ""
    template: bool = False
    prompts_differ: bool = False
    mistral: bool = False

    @property
    def room_for_rank(self) -> int | None:
        """The smallest rank of vLLM that is large enough for its adapters; None for a whole
        model."""
        if self.adapters:
            return room_for(max(adapter.rank for adapter in self.adapters))
        return None


def source(
    plan: Plan, stage: Stage, named: str | None = None, others: Sequence[Plan] = ()
) -> ServedModel:
    """Where a stage's model is on the cluster. named: the recipe's own address; others: plans whose
    adapters are served too. Raises Stop if it is on no claim."""
    if named:
        return ServedModel(named)
    results = _results(plan, stage)
    asked = {system_prompt(one) for one in (plan, *others)}
    template = len(asked) == 1 and asked != {None}
    whole = ServedModel(
        results.below(BEST_MODEL).uri, "", results, template=template, mistral=_by_mistral(stage)
    )
    if not stage.config.get("adapter"):
        return whole
    base = plan.on_claim(str(stage.config["base_model"]))
    why = _not_beside(stage.config) or ("" if base else "its base model is on no claim")
    if why or base is None:
        return replace(whole, whole_because=why)
    adapters = []
    for one in (plan, *others):
        base_name, name = served(one.name)
        trained = one.stages[-1]
        content = content_hash([trained.keys.get("", ""), one.fingerprint])
        rank = int(trained.config["lora_r"])
        adapters.append(ServedAdapter(name, base_name, rank, _results(one, trained), content))
    # One mount for each claim: a pod with one claim in two volumes waits forever (kubernetes, issue
    # 127004).
    paths: dict[str, list[str]] = {}
    for place in (base, *(adapter.results for adapter in adapters)):
        paths.setdefault(place.claim, []).append(place.path)
    mounted = tuple(OnClaim(claim, os.path.commonpath(every)) for claim, every in paths.items())
    return replace(
        whole,
        uri=mounted[0].uri,
        model=base.path_from(mounted[0]),
        adapters=tuple(adapters),
        mounted=mounted,
        prompts_differ=len(asked) > 1,
    )


def _results(plan: Plan, stage: Stage) -> OnClaim:
    found = plan.on_claim(plan.place_of(stage).run_dir)
    if found:
        return found
    raise Stop(*worded("serve.on-no-claim", stage=stage))


def system_prompt(plan: Plan) -> str | None:
    """The system prompt in the template that training leaves; None for none."""
    stage = plan.stages[-1]
    demo = stage.config["recipe_runner"].get("demo")
    if demo and demo["chat"] and not _by_mistral(stage):
        return demo["system_prompt"] or None
    return None


def _by_mistral(stage: Stage) -> bool:
    return bool(stage.config.get("tokenizer_use_mistral_common"))


def cannot_share(plan: Plan, other: Plan) -> str:
    """Why the adapter of another plan cannot be beside a plan's base model, a sentence; empty if it
    can."""
    mine = plan.stages[-1]
    own = other.stages[-1]
    for one, stage in ((plan, mine), (other, own)):
        if stage.config.get("adapter"):
            why = _not_beside(stage.config)
        else:
            why = "it has no adapter"
        if not why and not one.on_claim(str(stage.config["base_model"])):
            why = "its base model is on no claim"
        if why:
            return f"`{one.name}` cannot share a base model: {why}."
    if other.site["namespace"] != plan.site["namespace"]:
        return f"`{other.name}` is in another namespace: `{other.site['namespace']}`."
    if not mine.model or mine.model != own.model:
        return f"`{other.name}` has another base model than `{plan.name}`."
    for what, keys in SHARED.items():
        if [mine.config.get(key) for key in keys] != [own.config.get(key) for key in keys]:
            return f"`{other.name}` was trained with another {what} than `{plan.name}`."
    if {*served(plan.name)}.intersection(served(other.name)):
        return worded("serve.same-name", name=served(other.name)[1])[0]
    if plan.on_claim(plan.place_of(mine).run_dir) == other.on_claim(other.place_of(own).run_dir):
        return f"`{other.name}` and `{plan.name}` leave their results in the same folder."
    return ""


def _not_beside(config: Any) -> str:
    """Why vLLM cannot serve a planned adapter beside its base model; empty if it can."""
    by_peft = {
        "r": "lora_r",
        "modules_to_save": "lora_modules_to_save",
        "use_dora": "peft_use_dora",
    }
    refusal = next(refusals({name: config.get(setting) for name, setting in by_peft.items()}), None)
    if refusal:
        return refusal
    if isinstance(config["lora_target_modules"], str):
        return "a pattern chooses its layers"
    other = sorted(set(config["lora_target_modules"]) - LAYERS)
    if other:
        return f"it has the layers {', '.join(other)}, which vLLM may not know"
    return ""


@dataclass
class ServingForecast:
    """The needs of a server, in bytes on each GPU. rank: vLLM's room for an adapter, 0 for none;
    gpu: None if unknown. Raises UnknownArchitecture if the weights cannot be counted."""

    model: catalog.Model
    gpus: int
    precision: str
    context: int
    concurrency: int
    rank: int
    adapters: int
    gpu: catalog.Gpu | None

    def __post_init__(self) -> None:
        model = self.model
        gpus = self.gpus
        number = NUMBER_BYTES[self.precision]
        requests = self.concurrency
        try:
            count = parameters.total(model)
        except catalog.UnknownArchitecture:
            count = model.parameters or model.published or 0
            if not count:
                raise
        # Split evenly over GPUs, except norms.
        self.weights = math.ceil(count * number / gpus)
        # Room for adapters of that rank beside every linear layer, even one that they do not change
        # (vllm/lora/layers). It counts completely on each GPU, because one of the two matrices is
        # not split.
        if self.rank:
            adapted = sum(map(sum, parameters.linear(model).values()))
        else:
            adapted = 0
        self.adapter = self.adapters * self.rank * adapted * model.num_hidden_layers * number
        # Keys and values in all layers, even with windows; each GPU has at least one head.
        heads = max(1, model.num_key_value_heads // gpus)
        self.cache_a_token = 2 * model.num_hidden_layers * heads * model.head_dim * number
        self.cache_a_request = math.ceil(self.context / PAGE) * PAGE * self.cache_a_token
        self.cache = requests * self.cache_a_request
        # The largest batch while it passes through a layer, and the sampler for all requests.
        if self.gpu:
            usable = self.gpu.usable_gib * GIB
        else:
            usable = 0
        batch = max(BATCH_LARGE if usable >= LARGE_CARD else BATCH_SMALL, requests)
        layer = 2 * model.hidden_size + 3 * model.intermediate_size // gpus
        self.working = batch * layer * number + requests * model.vocab_size * SAMPLER_BYTES
        self.overhead = OVERHEAD + (NCCL_LEAST if gpus > 1 else 0)
        before_cache = self.weights + self.adapter + self.working + self.overhead
        self.total = before_cache + self.cache
        # The server's share of a GPU, and the full requests that have room at a time; 0 if the
        # server does not start.
        self.budget: int | None = None
        if self.gpu:
            self.budget = round(GPU_SHARE * usable)
        self.fits: bool | None = None
        if self.budget is not None:
            self.fits = self.total <= self.budget
        if self.budget is None:
            room = None
        else:
            room = self.budget - before_cache
        self.requests: int | None = None
        if room is not None:
            self.requests = max(0, room // self.cache_a_request)
        # The pod's: of the server, of a process for each GPU, and for the part of the weights that
        # is being read.
        self.main_memory = SERVER + gpus * PROCESS + min(self.weights * gpus, READ_AT_ONCE)
        # The weights in other formats, which change linear layers alone; unknown for experts, which
        # they leave as they are.
        self.compressed: dict[str, int | None] = dict.fromkeys(COMPRESSED_BYTES)
        if not model.has_experts:
            with suppress(catalog.UnknownArchitecture):
                layers = (
                    parameters.layer(model, index) for index in range(model.num_hidden_layers)
                )
                linear = sum(
                    math.prod(shape) for layer in layers for _, shape in layer if len(shape) == 2
                )
                for form, size in COMPRESSED_BYTES.items():
                    self.compressed[form] = self.weights - math.ceil(
                        linear * (number - size) / gpus
                    )


class Serving:
    """A server of a recipe's trained model.

    name, base_name: the names of the trained and of the original model, None if the server lacks
    the original one. precision: bf16, fp16 or fp32. context: tokens of the longest request;
    concurrency: requests at a time. gpus: of one machine, which share the model; gpu: their label.
    memory_gib, cpus: of its pod. runtime: the platform's, by name; image: of a runtime of its own,
    which replaces that one. kind: SERVICE or LLM, None if the cluster decides. needs: estimated
    bytes on each GPU; forecast: all of them; None if the model is unknown."""

    def __init__(self, recipe: Recipe, plans: Sequence[Plan]) -> None:
        """plans: the recipe's own, and those whose adapters it has too. Raises Stop if its model is
        on no claim."""
        stage = plans[0].stages[-1]
        section = recipe.settings["serve"]
        machines = stage.machines
        trained = [one.stages[-1].config for one in plans]
        base_name, self.name = served(recipe.name)
        found = source(plans[0], stage, section.model, plans[1:])
        self.base_name: str | None = None
        if found.adapters:
            self.base_name = base_name
        self.source = found
        self.precision = precision_of(stage.config)
        self.context: int = section.context or max(
            int(config["sequence_len"]) for config in trained
        )
        self.concurrency: int = section.concurrency
        self.forecast: ServingForecast | None = None
        model = recipe.model_facts
        if model:
            card = catalog.gpu(machines.gpu)
            rank = found.room_for_rank or 0
            count = len(found.adapters)
            asked = (self.precision, self.context, self.concurrency, rank, count, card)
            ways: Sequence[int]
            if section.gpus:
                ways = (section.gpus,)
            else:
                ways = splits(model, COUNTS)
            with suppress(catalog.UnknownArchitecture):
                for gpus in ways:
                    self.forecast = ServingForecast(model, gpus, *asked)
                    if self.forecast.fits is not False:
                        break
        needs = self.forecast
        self.gpus: int
        if needs:
            self.gpus = needs.gpus
        else:
            self.gpus = section.gpus or 1
        self.gpu = machines.gpu
        if needs:
            memory = needs.main_memory
        else:
            memory = SERVER + self.gpus * PROCESS + READ_AT_ONCE
        self.memory_gib = min(
            math.ceil(memory / GIB), machines.requested_memory_gib or machines.memory_gib
        )
        self.cpus = min(2 + 2 * self.gpus, machines.requested_cpus or machines.cpus)
        self.runtime = section.runtime
        self.image = section.image
        self.route = section.route
        self.trust_remote_code = any(config.get("trust_remote_code") for config in trained)
        of_runtime = (
            recipe.document.lookup(("serve", "runtime")) is not None
        )  # only an InferenceService has one
        self.kind: str | None = section.kind or (SERVICE if of_runtime else None)
        self.needs = needs.total if needs else None

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its models, the recipe's own first."""
        adapters = self.source.adapters
        return (*(one.name for one in adapters), *(one.base_name for one in adapters)) or (
            self.name,
        )

    @property
    def declarable(self) -> bool:
        """Whether an LLMInferenceService can have its models. KServe mounts each of them as a
        volume of its own, and a pod with one claim in two volumes waits forever (kubernetes, issue
        127004)."""
        return not self.source.adapters or len(self.source.mounted) == 1 + len(self.source.adapters)


def splits(model: catalog.Model, counts: Iterable[int]) -> list[int]:
    """The numbers of GPUs among `counts` that vLLM can split a model over: attention heads are
    divided evenly; heads of keys and values are divided evenly, or several GPUs share one."""
    heads = model.num_attention_heads
    groups = model.num_key_value_heads
    return [
        count
        for count in counts
        if heads % count == 0 and (groups % count == 0 or count % groups == 0)
    ]


def problems(recipe: Recipe, server: Serving) -> list[Problem]:
    """The problems that keep the server from what its section requests, each at the line that
    causes it."""
    found = list[Problem]()
    needs = server.forecast
    if needs and needs.fits is False and needs.budget is not None:
        have = units.gib(needs.budget)
        need = units.gib(needs.total)
        if needs.gpus > 1:
            each = f"each of its {needs.gpus} GPUs"
        else:
            each = "its GPU"
        message, fewer = worded(
            "serve.too-many-requests", server=server, needs=needs, each=each, have=have, need=need
        )
        if needs.requests:
            remedy = fewer
        else:
            remedy = worded("serve.not-one-request")[0]
        found.append(recipe.problem("serve.concurrency", message, remedy))
    if needs and server.gpus > (most := max(recipe.gpu_counts)):
        found.append(
            recipe.note("serve.gpus", *worded("serve.too-few-gpus", server=server, most=most))
        )
    source = server.source
    if len(ranks := {one.rank: None for one in source.adapters}) > 1:
        said = worded(
            "serve.ranks-differ", ranks=listed(map(str, ranks)), room=source.room_for_rank
        )
        found.append(recipe.note("serve.recipes", *said, key=True))
    if source.prompts_differ:
        found.append(recipe.note("serve.recipes", *worded("serve.prompts-differ"), key=True))
    why = source.whole_because
    if why:
        found.append(recipe.note("serve", *worded("serve.merged-adapter", why=why), key=True))
    return found
