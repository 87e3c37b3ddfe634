"""Scenario pipeline: a model from random weights to a domain adapter, in stages with gates between them. Pretraining is
here, in Axolotl's settings (0.19.0); SFT, DPO and LoRA are stages of the scenario `stages`, see `in_stages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from runner.check.validate import as_written
from runner.parts.pretrain import stages
from runner.parts.pretrain.architecture import (
    AFTER,
    FP8_STAGES,
    ROWS,
    TRAINED,
    Length,
    compile_mode,
    curriculum,
    parameters,
    precision_of,
    warmup_steps,
)
from runner.parts.stages import translation as each_stage
from runner.plan import EngineConfig, Evaluation, Place, Plan, Stage
from runner.recipe.document import Path_
from runner.recipe.recipe import PREFERENCES, TEXT, Recipe
from runner.recipe.stages import EARLIER_ROWS, PRETRAIN, STAGES
from runner.scenarios.contract import Measurable
from runner.scenarios.shared import axolotl, common, sharding


def translate(recipe: Recipe, place: Place) -> Plan:
    whole = in_stages(recipe)
    return common.plan(recipe, place, lambda place: each_stage.each(whole, place, recipe), facts(recipe))


def facts(recipe: Recipe) -> dict[str, Any]:
    batch = common.effective_batch_size(recipe)
    tokens = {length.name: length.tokens(batch) for length in curriculum(recipe)}
    return {
        "world_size": common.world_size(recipe),
        "parameters": parameters(recipe.model),
        "tokens": tokens,
        "tokens_in_all": sum(tokens.values()),
        "precision": {kind: precision_of(recipe, kind) for kind in TRAINED if recipe.settings.get(kind)},
        "fp8_stages": list(FP8_STAGES),
    }


def measurable(recipe: Recipe) -> dict[str, Measurable]:
    stages = [stage for stage in TRAINED if recipe.settings.get(stage)]
    return {stage: Measurable(common.MEASURED_AS[ROWS[stage]], blocks=True) for stage in stages}


def pretraining(recipe: Recipe, place: Place) -> tuple[Stage, Stage, list[Stage]]:
    """The stages that prepare text, draw the first weights, and train each context length."""
    lengths = curriculum(recipe)
    # Only the proportions count, so the data does not change with the number of GPUs.
    tokens = tuple((length.sequence_len, length.tokens(1)) for length in lengths)
    everything = asdict(stages.everything(recipe, place, tokens))
    machines = common.machines(recipe, place)
    pods = recipe.data.cleaning.pods if place.on_cluster and not recipe.data.packed else None
    prepares = common.work(place, common.DATA, everything, machines, parts=stages.PARTS, pods=pods or 1)
    weights = asdict(stages.first_weights(recipe, place))
    init = common.work(place, "init", weights, machines, reads={common.DATA: ("tokenizer/",)})
    trained = [init]
    for length in lengths:
        trained.append(_of_length(recipe, place, length, [stage.name for stage in trained]))
    return prepares, init, trained[1:]


def _of_length(recipe: Recipe, place: Place, length: Length, before: list[str]) -> Stage:
    """One context length, after the stages `before`."""
    here, machines, train = place.below(length.name), common.machines(recipe, place), recipe.pretrain
    config = _config(recipe, here, length, place.below(before[-1]))
    split, split_files = sharding.settings(recipe, here, machines, precision_of(recipe, PRETRAIN), train.max_grad_norm)
    config["recipe_runner"]["blocks"]["folder"] = folder = f"{place.data_dir}/blocks"
    for name in ("datasets", "test_datasets"):
        # Only for Axolotl's rules; the plugin provides the blocks.
        config[name] = [{"path": folder, "type": ""}]
    if before[1:] and common.time_limit(recipe):
        # All stages share a time limit, so each reads how much of it the earlier ones have used.
        config["recipe_runner"]["time_limit_earlier"] = [place.below(name).run_dir for name in before[1:]]
    last = curriculum(recipe)[-1]
    known = Evaluation(common.MEASURED_AS[TEXT], text_blocks=f"{folder}/validation-{last.sequence_len}.npy")
    # Gates come after the last length.
    conditions, evaluation = common.measured(recipe, known, PRETRAIN if length == last else None)
    return axolotl.stage(
        recipe,
        here,
        axolotl.with_advanced(recipe, config | split, PRETRAIN, ("model", "speed", PRETRAIN)),
        name=length.name,
        data={},
        files=split_files,
        shm_gib=common.shared_memory_gib(machines),
        folder=length.name,
        # Blocks of other lengths may change without this one.
        reads={
            common.DATA: tuple(f"blocks/{split}-{length.sequence_len}.npy" for split in ("train", "validation")),
            before[-1]: (),
        },
        gates=conditions,
        evaluation=evaluation,
    )


def _config(recipe: Recipe, place: Place, length: Length, before: Place) -> EngineConfig:
    """Every length has the whole schedule; the plugin gives it its blocks, begins where the one before ended, with its
    optimizer, and ends at its own last step."""
    train, precision, speed = recipe.pretrain, precision_of(recipe, PRETRAIN), recipe.speed
    name = f"{recipe.name}-{length.sequence_len}"
    demo: EngineConfig = {
        "base_model": before.best_model_dir,
        "system_prompt": None,
        # After pretraining a model continues a text.
        "chat": False,
        "turn_end": stages.END_OF_TEXT,
    }
    blocks = {
        "sequence_len": length.sequence_len,
        "first_step": length.first_step,
        "last_step": length.last_step,
        "steps": train.steps,
        "seed": recipe.data.seed,
        "continue_from": before.checkpoints_dir if length.first_step else None,
    }
    config: EngineConfig = {
        "base_model": before.best_model_dir,
        **recipe.model.for_axolotl,
        "bf16": precision != "fp32",
        "fp16": False,
        **speed.for_axolotl,
        **train.for_axolotl,
        "eval_batch_size": train.micro_batch_size,
        "optimizer": sharding.optimizer(recipe, train.optimizer),
        "val_set_size": 0,
        "dataset_prepared_path": f"{place.scratch_dir}/tokenised",
        "auto_resume_from_checkpoints": True,
        "output_dir": place.checkpoints_dir,
        "plugins": [axolotl.PLUGIN],
        **axolotl.reporting(recipe.report_to, name),
        "recipe_runner": {
            **common.run_facts(recipe, place),
            "name": name,
            "persistent_workers": speed.persistent_workers and bool(speed.data_workers),
            "master_weights": axolotl.master_weights(recipe, precision),
            "demo": demo,
            "blocks": blocks,
        },
        "sequence_len": length.sequence_len,
        "num_epochs": 1,
        "warmup_steps": warmup_steps(recipe),
        "lr_scheduler": "cosine",
        "cosine_min_lr_ratio": float(f"{train.min_learning_rate / train.learning_rate:.12g}"),
        # The blocks come in an order of their own, so that a resumed run sees exactly those that are left.
        "curriculum_sampling": True,
        "sample_packing": False,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "save_steps": train.save_steps or train.eval_steps,
        "load_best_model_at_end": False,
    }
    if recipe.model.gradient_checkpointing:
        config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    config |= axolotl.products(recipe, precision == "fp8", compile_mode(recipe, PRETRAIN))
    if speed.fused_kernels or speed.fused_cross_entropy:
        config |= {
            "plugins": [axolotl.LIGER, axolotl.PLUGIN],
            "liger_fused_linear_cross_entropy": speed.fused_cross_entropy,
            **{f"liger_{part}": speed.fused_kernels for part in axolotl.LIGER_PARTS.values()},
        }
    return config


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
    for index, kind in enumerate((PRETRAIN, *kinds)):
        home: Path_ = (STAGES, index)
        # The beginnings of paths in both forms; a longer one comes later.
        begins: list[tuple[Path_, Path_]] = [((kind,), home), ((kind,), (*home, "train"))]
        begins += [((name,), (*home, name)) for name in (FIRST if kind == PRETRAIN else ("model", "speed"))]
        begins += [((kind, name), (*home, *new)) for name, new in MOVED.items()]
        for old, new in (*begins, (("advanced", kind), (*home, "advanced", "axolotl"))):
            found |= {new + path[len(old) :]: place for path, place in places.items() if path[: len(old)] == old}
    return found
