"""A pipeline in the form of `stages`: pretraining first, then SFT, DPO and LoRA, each as a stage of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.check.validate import as_written
from runner.parts.pretrain.architecture import AFTER, ROWS, compile_mode, precision_of
from runner.recipe.document import Path_
from runner.recipe.recipe import PREFERENCES, Recipe
from runner.recipe.stages import EARLIER_ROWS, PRETRAIN, STAGES
from runner.scenarios.shared import common

# The sections that all stages of both forms share, and those of pretraining.
SHARED = (
    *("name", "description", "evaluation", "sharding", "communication", "limits", "machines"),
    *("openshift", "serve", "image"),
)
FIRST = ("model", "tokenizer", "speed", "data")
# The lines of a stage that are not in its section `train`, or have another name there.
MOVED: Mapping[str, Path_] = {
    "data": ("data",),
    "gates": ("gates",),
    "sequence_len": ("model", "sequence_len"),
    "precision": ("model", "precision"),
    "rank": ("train", "lora_rank"),
    "alpha": ("train", "lora_alpha"),
    "dropout": ("train", "lora_dropout"),
    "loss": ("train", "objective"),
    "domain_share": (EARLIER_ROWS,),
}


def in_stages(recipe: Recipe) -> Recipe:
    """The same recipe as a list of stages; each line keeps its place in the file."""
    written, kinds = recipe.document.data, [kind for kind in AFTER if recipe.settings.get(kind)]
    train = {name: value for name, value in written[PRETRAIN].items() if name != "gates"}
    first = {
        "name": PRETRAIN,
        "technique": PRETRAIN,
        **{name: written[name] for name in FIRST if name in written},
        "train": {**train, "report_to": recipe.report_to},
        **({"gates": written[PRETRAIN]["gates"]} if "gates" in written[PRETRAIN] else {}),
        **_advanced(recipe, PRETRAIN),
    }
    alone = "fsdp" if common.world_size(recipe) > 1 else "ddp"
    data = {
        "scenario": STAGES,
        **{name: written[name] for name in SHARED if name in written},
        "distribution": alone if recipe.distribution == "auto" else recipe.distribution,
        STAGES: [first, *(_stage(recipe, kind) for kind in kinds)],
    }
    spans: dict[str, Any] = {
        places: _moved(getattr(recipe.document, places), kinds) for places in ("keys", "values", "origins")
    }
    return as_written(replace(recipe.document, data=data, **spans))


def _advanced(recipe: Recipe, kind: str) -> dict[str, Any]:
    return {"advanced": {"axolotl": extra}} if (extra := recipe.advanced.plain().get(kind)) else {}


def _stage(recipe: Recipe, kind: str) -> dict[str, Any]:
    """SFT, DPO or LoRA as a stage."""
    model, speed, precision = recipe.model, recipe.speed, precision_of(recipe, kind)
    stage: dict[str, Any] = {"name": kind, "technique": "lora" if kind == "lora" else "full", "model": {}, "train": {}}
    for name, value in recipe.settings[kind].plain().items():
        *home, last = MOVED.get(name, ("train", name))
        (stage[home[0]] if home else stage)[last] = value
    shared = {name: model[name] for name in ("attention", "gradient_checkpointing")}
    stage["model"] |= shared | {"precision": "fp32" if precision == "fp32" else "bf16"}
    stage["data"]["chat_template"] = recipe.tokenizer.chat_template
    stage["train"] |= {"report_to": recipe.report_to, "kernels": "auto" if speed.fused_kernels else "none"}
    if kind != "lora":
        stage["model"]["master_weights"] = model.master_weights
    if ROWS[kind] == PREFERENCES:
        stage["data"]["form"] = PREFERENCES
        stage["train"]["weight_decay"] = 0.0
        stage["train"]["objective"] = {"sigmoid": "dpo"}.get(stage["train"]["objective"], stage["train"]["objective"])
    else:
        stage["train"]["cross_entropy"] = "fused" if speed.fused_cross_entropy else "plain"
    if earlier := round(1 - stage.pop(EARLIER_ROWS, 1), 12) if recipe.settings.get("sft") else 0:
        stage[EARLIER_ROWS] = earlier
    faster = {name: speed[name] for name in ("tf32", "data_workers", "persistent_workers")}
    faster |= {"compile": compile_mode(recipe, kind) or "off"} | ({"fp8": True} if precision == "fp8" else {})
    return {**stage, "speed": faster, **_advanced(recipe, kind)}


def _moved(places: Mapping[Path_, Any], kinds: list[str]) -> dict[Path_, Any]:
    """Places by their path in the other form."""
    found = {path: place for path, place in places.items() if path[:1] and path[0] in (*SHARED, "scenario")}
    for old, new in _paths(kinds):
        found |= {new + path[len(old) :]: place for path, place in places.items() if path[: len(old)] == old}
    return found


def _paths(kinds: list[str]) -> Iterator[tuple[Path_, Path_]]:
    """The beginnings of paths in both forms; a longer one of the same stage comes later."""
    for index, kind in enumerate((PRETRAIN, *kinds)):
        home: Path_ = (STAGES, index)
        yield (kind,), home
        yield (kind,), (*home, "train")
        yield from (((name,), (*home, name)) for name in (FIRST if kind == PRETRAIN else ("model", "speed")))
        yield from (((kind, name), (*home, *new)) for name, new in MOVED.items())
        yield ("advanced", kind), (*home, "advanced", "axolotl")
