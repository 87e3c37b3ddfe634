"""Serving: where a server finds the model of a plan, and what it needs of its machine. Of
Kubernetes it has only claims, by name; a target adds the rest.

Amounts are bytes. vLLM takes a share of each GPU (`--gpu-memory-utilization`), loads the weights,
runs one largest batch, and uses the rest for the cache of keys and values
(vllm/v1/worker/gpu_worker.py, determine_available_memory). It does not start if one request of the
longest context has no room there; other requests wait."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from runner import catalog
from runner.catalog.hardware import GIB
from runner.parts.planner import parameters
from runner.parts.planner.memory import NCCL_LEAST
from runner.plan import OnClaim, Plan, Stage, precision_of
from runner.recipe import units
from runner.recipe.recipe import Recipe
from runner.tools.files import content_hash
from runner.tools.problem import Problem, Stop, listed
from runner.tools.run_files import BEST_MODEL
from runner.tools.text import served
from runner.tools.vllm import LAYERS, names_in_pattern, refusals, room_for

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
    """An adapter beside a base model."""

    name: str  # of the trained model
    base_name: str  # of the original model for its recipe
    rank: int
    results: OnClaim  # of the stage that trained it
    content: str  # a hash of what its weights depend on


@dataclass(frozen=True)
class ServedModel:
    """Where a server finds its model."""

    uri: str  # the mounted folder, as KServe names it
    # The folder of the model, or of an adapter's base model, below `uri`; empty for `uri` itself.
    model: str = ""
    # Of the stage that trained it; None if the recipe names another model.
    results: OnClaim | None = None
    # Beside the base model, the recipe's own first; empty for a whole model.
    adapters: tuple[ServedAdapter, ...] = ()
    # One folder for each claim, which holds all that the server needs of it; the first is `uri`.
    mounted: tuple[OnClaim, ...] = ()
    whole_because: str = ""  # why an adapter is served merged
    template: bool = False  # whether all adapters share one system prompt, in training's template
    prompts_differ: bool = False  # whether the adapters have different system prompts
    mistral: bool = False  # whether its tokenizer is mistral-common's, which has no template

    @property
    def room_for_rank(self) -> int | None:
        """The smallest rank of vLLM that is large enough for its adapters; None for a whole
        model."""
        if self.adapters:
            return room_for(max(adapter.rank for adapter in self.adapters))
        return None


def source(
    plan: Plan, stage: Stage, uri: str | None = None, sharing_plans: Sequence[Plan] = ()
) -> ServedModel:
    """Where a stage's model is on the cluster. uri: the recipe's own address; sharing_plans: those
    whose adapters are served too. Raises Stop if it is on no claim."""
    if uri:
        return ServedModel(uri)
    plans = (plan, *sharing_plans)
    results = _results(plan, stage)
    prompts = {system_prompt(served_plan) for served_plan in plans}
    merged_model = ServedModel(
        results.below(BEST_MODEL).uri,
        results=results,
        template=len(prompts) == 1 and prompts != {None},
        mistral=_by_mistral(stage),
    )
    if not stage.config.get("adapter"):
        return merged_model
    obstacle = _not_beside(stage.config)
    if obstacle:
        return replace(merged_model, whole_because=obstacle)
    base = plan.on_claim(str(stage.config["base_model"]))
    if base is None:
        return replace(merged_model, whole_because="its base model is on no claim")
    adapters = tuple(_adapter(served_plan) for served_plan in plans)
    # One mount for each claim: a pod with one claim in two volumes waits forever (kubernetes, issue
    # 127004).
    paths: dict[str, list[str]] = {}
    for place in (base, *(adapter.results for adapter in adapters)):
        paths.setdefault(place.claim, []).append(place.path)
    mounted = tuple(
        OnClaim(claim, posixpath.commonpath(claim_paths)) for claim, claim_paths in paths.items()
    )
    return replace(
        merged_model,
        uri=mounted[0].uri,
        model=base.path_from(mounted[0]),
        adapters=adapters,
        mounted=mounted,
        prompts_differ=len(prompts) > 1,
    )


def _adapter(plan: Plan) -> ServedAdapter:
    """The adapter that a plan's last stage trains."""
    base_name, name = served(plan.name)
    stage = plan.stages[-1]
    content = content_hash([stage.keys.get("", ""), plan.fingerprint])
    return ServedAdapter(
        name, base_name, int(stage.config["lora_r"]), _results(plan, stage), content
    )


def _results(plan: Plan, stage: Stage) -> OnClaim:
    results = plan.on_claim(plan.place_of(stage).run_dir)
    if results:
        return results
    raise Stop(
        f"The model of `{stage.name}` is on no claim, so a server could not find it.",
        "Put `output_dir` on a claim under `openshift.claims`, or name the model under `serve.model`.",
    )


def system_prompt(plan: Plan) -> str | None:
    """The system prompt in the template that training leaves; None for none."""
    stage = plan.stages[-1]
    demo = stage.config["recipe_runner"].get("demo")
    if demo and demo["chat"] and not _by_mistral(stage):
        return demo["system_prompt"] or None
    return None


def _by_mistral(stage: Stage) -> bool:
    return bool(stage.config.get("tokenizer_use_mistral_common"))


def cannot_share(plan: Plan, sharing_plan: Plan) -> str:
    """Why the adapter of another plan cannot be beside a plan's base model, a sentence; empty if it
    can."""
    for adapter_plan in (plan, sharing_plan):
        obstacle = _not_as_adapter(adapter_plan)
        if obstacle:
            return f"`{adapter_plan.name}` cannot share a base model: {obstacle}."
    name = plan.name
    sharing_name = sharing_plan.name
    stage = plan.stages[-1]
    sharing_stage = sharing_plan.stages[-1]
    if sharing_plan.site.namespace != plan.site.namespace:
        return f"`{sharing_name}` is in another namespace: `{sharing_plan.site.namespace}`."
    if not stage.model or stage.model != sharing_stage.model:
        return f"`{sharing_name}` has another base model than `{name}`."
    for shared, keys in SHARED.items():
        if any(stage.config.get(key) != sharing_stage.config.get(key) for key in keys):
            return f"`{sharing_name}` was trained with another {shared} than `{name}`."
    if {*served(name)}.intersection(served(sharing_name)):
        return f"Two models of the server would be called `{served(sharing_name)[1]}`."
    results = plan.on_claim(plan.place_of(stage).run_dir)
    if results == sharing_plan.on_claim(sharing_plan.place_of(sharing_stage).run_dir):
        return f"`{sharing_name}` and `{name}` leave their results in the same folder."
    return ""


def _not_as_adapter(plan: Plan) -> str:
    """Why a plan's model cannot be an adapter beside its base model on a claim; empty if it can."""
    config = plan.stages[-1].config
    if not config.get("adapter"):
        return "it has no adapter"
    obstacle = _not_beside(config)
    if obstacle:
        return obstacle
    if not plan.on_claim(str(config["base_model"])):
        return "its base model is on no claim"
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
    layers = config["lora_target_modules"]
    if isinstance(layers, str):
        # Of a model that also sees, a pattern stays within its half for text.
        layers = names_in_pattern(layers)
        if not layers:
            return "a pattern chooses its layers"
    unknown = sorted(set(layers) - LAYERS)
    if unknown:
        return f"it has the layers {', '.join(unknown)}, which vLLM may not know"
    return ""


@dataclass
class ServingForecast:
    """The needs of a server, in bytes on each GPU. Raises UnknownArchitecture if the weights cannot
    be counted."""

    model: catalog.Model
    gpus: int
    precision: str
    context: int
    concurrency: int
    rank: int  # vLLM's room for an adapter; 0 for none
    adapters: int
    gpu: catalog.Gpu | None  # None if unknown

    def __post_init__(self) -> None:
        model = self.model
        gpus = self.gpus
        number = NUMBER_BYTES[self.precision]
        requests = self.concurrency
        # Split evenly over GPUs, except norms.
        self.weights = math.ceil(_parameters_of(model) * number / gpus)
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
        self.requests: int | None = None
        if self.budget is not None:
            self.requests = max(0, (self.budget - before_cache) // self.cache_a_request)
        # The pod's: of the server, of a process for each GPU, and for the part of the weights that
        # is being read.
        self.main_memory = SERVER + gpus * PROCESS + min(self.weights * gpus, READ_AT_ONCE)
        # The weights in other formats, which change linear layers alone; unknown for experts, which
        # they leave as they are.
        self.compressed: dict[str, int | None] = dict.fromkeys(COMPRESSED_BYTES)
        if not model.has_experts:
            with suppress(catalog.UnknownArchitecture):
                linear = _linear_parameters_of(model)
                for form, size in COMPRESSED_BYTES.items():
                    saved = math.ceil(linear * (number - size) / gpus)
                    self.compressed[form] = self.weights - saved


def _parameters_of(model: catalog.Model) -> int:
    """Computed, or else published. Raises UnknownArchitecture if neither is possible."""
    try:
        return parameters.total(model)
    except catalog.UnknownArchitecture:
        published = model.parameters or model.published
        if not published:
            raise
        return published


def _linear_parameters_of(model: catalog.Model) -> int:
    """The parameters of all matrices in its layers."""
    count = 0
    for index in range(model.num_hidden_layers):
        for _, shape in parameters.layer(model, index):
            if len(shape) == 2:
                count += math.prod(shape)
    return count


class Serving:
    """A server of a recipe's trained model."""

    name: str  # of the trained model
    base_name: str | None  # of the original model; None if the server lacks it
    source: ServedModel
    precision: str  # bf16, fp16 or fp32
    context: int  # tokens of the longest request
    concurrency: int  # requests at a time
    forecast: ServingForecast | None  # None if the model is unknown
    gpus: int  # of one machine, which share the model
    gpu: str  # their label
    memory_gib: float  # of its pod
    cpus: int  # of its pod
    runtime: str  # the platform's, by name
    image: str | None  # of a runtime of its own, which replaces the platform's
    route: bool
    trust_remote_code: bool
    kind: str | None  # SERVICE or LLM; None if the cluster decides
    needs: int | None  # estimated bytes on each GPU; None if unknown

    def __init__(self, recipe: Recipe, plans: Sequence[Plan]) -> None:
        """plans: the recipe's own, and those whose adapters it has too. Raises Stop if its model is
        on no claim."""
        stage = plans[0].stages[-1]
        section = recipe.settings["serve"]
        machines = stage.machines
        configs = [plan.stages[-1].config for plan in plans]
        base_name, self.name = served(recipe.name)
        model_source = source(plans[0], stage, section.model, plans[1:])
        self.base_name = None
        if model_source.adapters:
            self.base_name = base_name
        self.source = model_source
        self.precision = precision_of(stage.config)
        self.context = section.context or max(int(config["sequence_len"]) for config in configs)
        self.concurrency = section.concurrency
        self.forecast = self._forecast(recipe.model_facts, section.gpus, machines.gpu)
        if self.forecast:
            self.gpus = self.forecast.gpus
            memory = self.forecast.main_memory
        else:
            self.gpus = section.gpus or 1
            memory = SERVER + self.gpus * PROCESS + READ_AT_ONCE
        self.gpu = machines.gpu
        self.memory_gib = min(
            math.ceil(memory / GIB), machines.requested_memory_gib or machines.memory_gib
        )
        self.cpus = min(2 + 2 * self.gpus, machines.requested_cpus or machines.cpus)
        self.runtime = section.runtime
        self.image = section.image
        self.route = section.route
        self.trust_remote_code = any(config.get("trust_remote_code") for config in configs)
        names_runtime = recipe.document.lookup(("serve", "runtime")) is not None
        if section.kind:
            self.kind = section.kind
        elif names_runtime:
            self.kind = SERVICE  # only an InferenceService has one
        else:
            self.kind = None
        self.needs = self.forecast.total if self.forecast else None

    def _forecast(
        self, model: catalog.Model | None, gpus: int | None, gpu: str
    ) -> ServingForecast | None:
        """With the recipe's number of GPUs, or else the first that is enough, or the largest that
        was tried. None if the model is unknown."""
        if not model:
            return None
        card = catalog.gpu(gpu)
        rank = self.source.room_for_rank or 0
        adapters = len(self.source.adapters)
        forecast: ServingForecast | None = None
        with suppress(catalog.UnknownArchitecture):
            for count in [gpus] if gpus else splits(model, COUNTS):
                forecast = ServingForecast(
                    model,
                    count,
                    self.precision,
                    self.context,
                    self.concurrency,
                    rank,
                    adapters,
                    card,
                )
                if forecast.fits is not False:
                    break
        return forecast

    @property
    def models(self) -> tuple[str, ...]:
        """The names of its models, the recipe's own first."""
        adapters = self.source.adapters
        if not adapters:
            return (self.name,)
        names = [adapter.name for adapter in adapters]
        base_names = [adapter.base_name for adapter in adapters]
        return (*names, *base_names)

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
    possible_splits = []
    for count in counts:
        if heads % count == 0 and (groups % count == 0 or count % groups == 0):
            possible_splits.append(count)
    return possible_splits


def problems(recipe: Recipe, server: Serving) -> list[Problem]:
    """The problems that keep the server from what its section requests, each at the line that
    causes it."""
    problems: list[Problem] = []
    needs = server.forecast
    if needs and needs.fits is False:
        problems.append(_too_many_requests(recipe, server, needs))
    if needs:
        most = max(recipe.gpu_counts)
        if server.gpus > most:
            message = (
                f"The server needs {server.gpus} GPUs of one machine, but the machines of this recipe have {most}.",
                "It waits until a machine with that many is free. A shorter `context` or a lower `concurrency` needs fewer.",
            )
            problems.append(recipe.note("serve.gpus", *message))
    source = server.source
    ranks = list(dict.fromkeys(adapter.rank for adapter in source.adapters))
    if len(ranks) > 1:
        message = (
            f"The adapters have different ranks, {listed(map(str, ranks))}. vLLM keeps room for rank {source.room_for_rank} for each.",
            "",
        )
        problems.append(recipe.note("serve.recipes", *message, key=True))
    if source.prompts_differ:
        problems.append(
            recipe.note(
                "serve.recipes",
                "The recipes have different system prompts, so the server's template has none. Each request must contain its own; `recipe ask --url` sends it.",
                key=True,
            )
        )
    if source.whole_because:
        message = (
            f"The adapter is served merged into its base model, and not beside it: {source.whole_because}.",
            "",
        )
        problems.append(recipe.note("serve", *message, key=True))
    return problems


def _too_many_requests(recipe: Recipe, server: Serving, needs: ServingForecast) -> Problem:
    each = f"each of its {needs.gpus} GPUs" if needs.gpus > 1 else "its GPU"
    message, fewer_requests = (
        f"The server needs {units.gib(needs.total)} on {each}, but may use {units.gib(needs.budget or 0)}: {server.concurrency} requests of {server.context:,} tokens do not fit at a time.",
        f"Write `concurrency: {needs.requests}`, which fits, a shorter `context`, or more `gpus`.",
    )
    if needs.requests:
        remedy = fewer_requests
    else:
        remedy = "Not even one request fits: write a shorter `context`, more `gpus`, or use a GPU with more memory."
    return recipe.problem("serve.concurrency", message, remedy)
