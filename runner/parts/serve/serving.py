"""Serving: what a server must know of the model that a plan leaves, and of the machine that answers with it. It knows nothing
of Kubernetes but claims by name; a target dresses it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runner.plan import OnClaim, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.contract import Rule
from runner.tools.names import listed
from runner.tools.problem import Problem, Stop
from runner.tools.run_files import ADAPTER, BEST_MODEL
from runner.tools.vllm import LAYERS, planned, room_for

if TYPE_CHECKING:
    from runner.recipe.sections import Serve

# The share of a GPU's memory that the server takes, vLLM's own default.
GPU_SHARE = 0.9


@dataclass(frozen=True)
class ServedModel:
    """Where a server finds its model.

    uri: what is mounted, as KServe names it. model: the model's folder, or its base model's where an adapter is served beside it,
    below that; empty where it is that itself. results: of the stage that trained it; None where the recipe names another model.
    results_below: their folder below `uri`, empty where it is that itself, None where they lie on another claim. rank: of the
    adapter, None where the model is whole. whole_because: why the model that an adapter was merged into is served alone; empty
    elsewhere. template: whether training leaves a template that puts its system prompt first.
    """

    uri: str
    model: str = ""
    results: OnClaim | None = None
    results_below: str | None = None
    rank: int | None = None
    whole_because: str = ""
    template: bool = False

    @property
    def room_for_rank(self) -> int | None:
        """The smallest of vLLM's ranks that the adapter has room in."""
        return room_for(self.rank) if self.rank is not None else None


@dataclass(frozen=True)
class Serving:
    """A server of what a plan trains.

    name: that requests call the trained model by; base_name: that of the model before training, None where it is not there.
    precision: bf16, fp16 or fp32. context: tokens of the longest request; concurrency: requests at a time.
    gpus: of one machine, which share the model; gpu: their label. memory_gib, cpus: of its pod.
    runtime: the platform's, by name; image: of a runtime of its own, which then takes that one's place.
    needs: bytes on each GPU by estimate; None where none was made.
    """

    name: str
    base_name: str | None
    source: ServedModel
    precision: str
    context: int
    concurrency: int
    gpus: int
    gpu: str
    memory_gib: float
    cpus: int
    runtime: str
    image: str | None = None
    route: bool = False
    trust_remote_code: bool = False
    needs: int | None = None


def source(plan: Plan, stage: Stage, named: str | None = None) -> ServedModel:
    """Where the model of a stage lies on the cluster. named: by the recipe, which then says where.

    Raises Stop where it lies on no claim.
    """
    if named:
        return ServedModel(named)
    results = plan.on_claim(plan.place_of(stage).run_dir)
    if results is None:
        raise Stop(
            f"What `{stage.name}` trains lies on no claim, where a server could find it.",
            "Name a claim under `openshift.claims` that `output_dir` lies on, or the model under `serve.model`.",
        )
    whole = results.below(BEST_MODEL).uri
    demo = stage.config["recipe_runner"]["demo"]
    template = bool(demo["chat"] and demo["system_prompt"])
    if not stage.config.get("adapter"):
        return ServedModel(whole, results=results, template=template)
    base = plan.on_claim(str(stage.config["base_model"]))
    why = _not_beside(stage.config) or ("" if base else "its base model lies on no claim")
    if why or base is None:
        return ServedModel(whole, results=results, whole_because=why, template=template)
    rank = int(stage.config["lora_r"])
    if base.claim != results.claim:
        return ServedModel(base.uri, results=results, rank=rank, template=template)
    # One mount for both: a pod that names one claim in two volumes waits for ever (kubernetes, issue 127004).
    above = os.path.commonpath([base.path, results.path])
    below = [path.removeprefix(above).strip("/") for path in (base.path, results.path)]
    return ServedModel(OnClaim(base.claim, above).uri, below[0], results, below[1], rank, template=template)


def adapter_folder(results: str) -> str:
    return f"{results}/{ADAPTER}"


def model_folder(results: str) -> str:
    return f"{results}/{BEST_MODEL}"


def _not_beside(config: Any) -> str:
    """Why vLLM cannot put a planned adapter beside its base model; empty where it can."""
    if refusal := next(planned(config).refusals(), None):
        return refusal
    other = sorted(set(config["lora_target_modules"]) - LAYERS)
    return f"it has the layers {', '.join(other)}, which vLLM may not know" if other else ""


def _section(recipe: Recipe) -> Serve | None:
    found: Serve | None = recipe.settings.get("serve")
    return found


def on_a_cluster(recipe: Recipe) -> Iterator[Problem]:
    if _section(recipe) and "openshift" not in recipe.settings:
        message = "`serve` says how a cluster serves the model, and the recipe names none; nothing reads it."
        hint = "Add the section `openshift` with a `namespace`, or delete this one."
        yield recipe.note("serve", message, hint, key=True)


def context_is_read(recipe: Recipe) -> Iterator[Problem]:
    section, facts = _section(recipe), recipe.model_facts
    if section and facts and section.context and section.context > facts.max_position_embeddings:
        message = (
            f"The model reads at most {facts.max_position_embeddings:,} tokens, and `context` is {section.context:,}."
        )
        hint = f"Write at most {facts.max_position_embeddings}."
        yield recipe.problem("serve.context", message, hint)


def heads_can_be_split(recipe: Recipe) -> Iterator[Problem]:
    """vLLM deals out attention heads evenly; those of keys and values evenly too, or each to several GPUs."""
    section, facts = _section(recipe), recipe.model_facts
    if not section or not facts or not section.gpus:
        return
    heads, groups, count = facts.num_attention_heads, facts.num_key_value_heads, section.gpus
    able = [str(way) for way in range(1, 17) if heads % way == 0 and (groups % way == 0 or way % groups == 0)]
    if str(count) not in able:
        message = f"The model has {heads} attention heads, {groups} of keys and values, which cannot be dealt out to {count} GPUs."
        hint = f"Write {listed(able, 'or')}."
        yield recipe.problem("serve.gpus", message, hint)


def one_server(recipe: Recipe) -> Iterator[Problem]:
    if (section := _section(recipe)) and section.image and recipe.document.lookup(("serve", "runtime")) is not None:
        message = "`image` gives the recipe a runtime of its own, and `runtime` names the platform's."
        hint = "Delete one of the two lines."
        yield recipe.problem("serve.runtime", message, hint)


RULES: tuple[Rule, ...] = (on_a_cluster, context_is_read, heads_can_be_split, one_server)
