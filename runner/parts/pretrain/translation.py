"""Scenario pipeline: a model from nothing to a domain adapter, in stages with gates between them; and the stages that
train (pretraining, SFT, DPO and LoRA) in Axolotl's settings (0.19.0)."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from runner import catalog
from runner.parts.pretrain import stages
from runner.parts.pretrain.architecture import (
    AFTER,
    ROWS,
    TRAINED,
    Length,
    curriculum,
    parameters,
    trained_names,
    warmup_steps,
)
from runner.plan import EngineConfig, Evaluation, Place, Plan, Stage
from runner.recipe.recipe import PREFERENCES, Recipe
from runner.scenarios.contract import Measurable
from runner.scenarios.shared import axolotl, common, sharding


def translate(recipe: Recipe, place: Place) -> Plan:
    batch = common.effective_batch_size(recipe, recipe.pretrain)
    tokens = {length.name: length.tokens(batch) for length in curriculum(recipe)}
    facts = {
        "world_size": common.world_size(recipe),
        "parameters": parameters(recipe.model),
        "tokens": tokens,
        "tokens_in_all": sum(tokens.values()),
        "precision": {kind: precision_of(recipe, kind) for kind in TRAINED},
        "fp8_stages": list(FP8_STAGES),
    }
    return common.plan(recipe, place, lambda place: _stages(recipe, place), facts)


def measurable(recipe: Recipe) -> dict[str, Measurable]:
    stages = [stage for stage in TRAINED if recipe.settings.get(stage)]
    return {stage: Measurable(common.MEASURED_AS[ROWS[stage]], blocks=True) for stage in stages}


def _stages(recipe: Recipe, place: Place) -> Iterator[Stage]:
    """Stages one after the other, each reading what the ones before leave."""
    lengths = curriculum(recipe)
    # Only the proportions count, so the data does not change with the number of GPUs.
    tokens = tuple((length.sequence_len, length.tokens(1)) for length in lengths)
    everything = asdict(stages.everything(recipe, place, tokens))
    machines = common.machines(recipe, place)
    pods = recipe.data.cleaning.pods if place.on_cluster and not recipe.data.packed else None
    prepares = common.work(place, common.DATA, everything, machines, parts=stages.PARTS, pods=pods or 1)
    trained: list[Stage] = []
    for length in lengths:
        before = trained[-1].name if trained else "init"
        config = pretraining(recipe, place, length, before)
        files = tuple(f"blocks/{split}-{length.sequence_len}.npy" for split in ("train", "validation"))
        # Gates are behind the last length.
        gates = "pretrain" if length is lengths[-1] else None
        trained.append(_trained(recipe, place, "pretrain", length.name, trained, config, files, gates))
    pretrained = len(trained)
    for kind in AFTER:
        if recipe.settings.get(kind):
            config = after_pretraining(recipe, place, kind, trained[-1].name)
            trained.append(_trained(recipe, place, kind, kind, trained, config, (f"{kind}/",), kind))
    # A rehearsal holds no GPU, and each of its stages proves its rows when it starts. Weeks may pass between the data
    # and these stages, and their model is not there yet; its tokenizer is.
    if place.accelerator:
        tokenizer = f"{place.data_dir}/tokenizer"
        prepares = common.proving(recipe, place, prepares, trained[pretrained:], recipe.facts, tokenizer)
    yield prepares
    weights = asdict(stages.first_weights(recipe, place))
    yield common.work(place, "init", weights, machines, reads={common.DATA: ("tokenizer/",)})
    yield from trained


def _trained(
    recipe: Recipe,
    place: Place,
    kind: str,
    name: str,
    earlier: Sequence[Stage],
    config: EngineConfig,
    files: tuple[str, ...],
    gates: str | None,
) -> Stage:
    """A stage that Axolotl trains. earlier: the ones trained before; files: what it reads of the data stage's results,
    so that others may change without it; gates: the section that has them."""
    here, machines = place.below(name), common.machines(recipe, place)
    limit = recipe.settings[kind]["max_grad_norm"]
    split, split_files = sharding.settings(recipe, here, machines, precision_of(recipe, kind), limit)
    whole = config | split
    blocks = f"{place.data_dir}/blocks/validation-{curriculum(recipe)[-1].sequence_len}.npy"
    gated = next((stage.name for stage in reversed(earlier) if stage.gates), None)
    known = Evaluation(common.MEASURED_AS[ROWS[kind]], text_blocks=blocks, before=gated)
    conditions, evaluation = common.measured(recipe, known, gates)
    proof = {"questions": evaluation.sample_task} if evaluation.sample_task else {}
    proof |= {"prepared": f"{common.proof_dir(place)}/{name}"} if place.accelerator else {}
    if proof and kind != "pretrain":
        whole["recipe_runner"] = {**whole["recipe_runner"], "proof": proof}
    return axolotl.stage(
        recipe,
        here,
        axolotl.with_advanced(recipe, whole, kind, ("model", "speed", kind)),
        name=name,
        data={},
        files=split_files,
        shm_gib=common.shared_memory_gib(machines, most=64),
        folder=name,
        reads={common.DATA: files, earlier[-1].name if earlier else "init": ()},
        gates=conditions,
        evaluation=evaluation,
    )


# Tokens of an answer; a tiny twin's words mean nothing, and more of them cost time.
MAX_NEW_TOKENS, REHEARSED_TOKENS = 300, 40


def shared(recipe: Recipe, place: Place, kind: str, name: str, before: str) -> EngineConfig:
    """The settings of all four kinds of stages. before: the stage whose model this one starts from."""
    here, section, precision = place.below(name), recipe.settings[kind], precision_of(recipe, kind)
    base_model, names = place.below(before).best_model_dir, trained_names(recipe)
    # All stages share a time limit, so each reads how much of it the earlier ones have used.
    earlier = [place.below(stage).run_dir for stage in names[: names.index(name)]]
    compiled = compile_mode(recipe, kind) is not None
    packed = axolotl.packing(recipe, place, section, compiled) if "packing" in section else {}
    # After pretraining a model continues a text; after a later stage it answers.
    chat = kind != "pretrain"
    demo: EngineConfig = {
        "base_model": base_model,
        "system_prompt": section.data.system_prompt if chat else None,
        "chat": chat,
        "questions": [],
        "max_new_tokens": MAX_NEW_TOKENS if place.accelerator else REHEARSED_TOKENS,
        "turn_end": None if chat else stages.END_OF_TEXT,
    }
    config: EngineConfig = {
        "base_model": base_model,
        **recipe.model.for_axolotl,
        "bf16": precision != "fp32",
        "fp16": False,
        **recipe.speed.for_axolotl,
        **section.for_axolotl,
        "eval_batch_size": section.micro_batch_size,
        "optimizer": sharding.optimizer(recipe, section.optimizer),
        "val_set_size": 0,
        "dataset_prepared_path": f"{here.scratch_dir}/tokenised",
        "auto_resume_from_checkpoints": True,
        "output_dir": here.checkpoints_dir,
        "plugins": [axolotl.PLUGIN],
        **axolotl.reporting(recipe.report_to, f"{recipe.name}-{name}"),
        **packed,
        "recipe_runner": {
            **common.run_facts(recipe, here, section),
            "name": f"{recipe.name}-{name}",
            **({"time_limit_earlier": earlier} if earlier and common.time_limit(recipe) else {}),
            "persistent_workers": recipe.speed.persistent_workers and recipe.speed.data_workers > 0,
            **packed.get("recipe_runner", {}),
            "master_weights": axolotl.master_weights(recipe, precision, kind == "lora"),
            "demo": demo,
        },
    }
    if recipe.model.gradient_checkpointing:
        config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    return config | faster(recipe, kind)


def pretraining(recipe: Recipe, place: Place, length: Length, before: str) -> EngineConfig:
    """One context length. Every length has the whole schedule; the plugin gives it its blocks, begins where the one
    before ended, with its optimizer, and ends at its own last step."""
    train = recipe.pretrain
    config = shared(recipe, place, "pretrain", length.name, before)
    blocks = {
        "folder": f"{place.data_dir}/blocks",
        "sequence_len": length.sequence_len,
        "first_step": length.first_step,
        "last_step": length.last_step,
        "steps": train.steps,
        "seed": recipe.data.seed,
        "continue_from": place.below(before).checkpoints_dir if length.first_step else None,
    }
    return config | {
        "sequence_len": length.sequence_len,
        # Named for Axolotl's rules alone; the plugin hands over the blocks themselves.
        "datasets": [{"path": f"{place.data_dir}/blocks", "type": ""}],
        "test_datasets": [{"path": f"{place.data_dir}/blocks", "type": ""}],
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
        "recipe_runner": config["recipe_runner"] | {"blocks": blocks},
    }


def after_pretraining(recipe: Recipe, place: Place, kind: str, before: str) -> EngineConfig:
    section, rows = recipe.settings[kind], ROWS[kind]
    prefers = rows == PREFERENCES
    config = {
        **shared(recipe, place, kind, kind, before),
        **({"rl": "dpo", "dpo_loss_type": [section.loss]} if prefers else {}),
        "chat_template": recipe.tokenizer.chat_template,
        **axolotl.datasets(f"{place.data_dir}/{kind}", rows, section.data.get("train_on")),
        **common.evaluated(section),
        # Else epochs, whose evaluations say which model is kept.
        **({"load_best_model_at_end": False} if prefers else common.KEEPS_THE_BEST),
    }
    if kind == "lora":
        config |= {"adapter": "lora", "lora_target_modules": list(recipe.facts.linear)}
        config |= axolotl.lora_kernels(recipe, place)
    return config


# Axolotl 0.19.0 hands FP8 to its own trainer alone, which DPO does not use; and an adapter sits beside frozen weights,
# whose products FP8 would have to convert again at every step.
FP8_STAGES = ("pretrain", "sft")


def precision_of(recipe: Recipe, kind: str) -> str:
    """fp8, bf16 or fp32: what a stage multiplies in, by its own line or the model's, and by the recipe's GPU."""
    section = recipe.settings.get(kind)
    stated = (section and section.get("precision")) or recipe.model.precision
    if stated == "fp32":
        return "fp32"
    gpu = catalog.gpu(recipe.machines.gpu)
    can = kind in FP8_STAGES and (stated == "fp8" or (gpu is not None and gpu.fp8))
    if stated in ("auto", "fp8") and can:
        return "fp8"
    return gpu.precision(fp16=False) if gpu and stated == "auto" else "bf16"


def compile_mode(recipe: Recipe, kind: str) -> str | None:
    """The mode of torch.compile; None leaves it out. Autotuning pays on Hopper; under FP8 its search gains nothing."""
    stated = recipe.speed.compile
    if stated != "auto":
        return None if stated == "off" else stated
    gpu = catalog.gpu(recipe.machines.gpu)
    hopper = gpu is not None and gpu.capability[0] == 9
    return "max-autotune" if hopper and precision_of(recipe, kind) != "fp8" else "default"


def faster(recipe: Recipe, kind: str) -> EngineConfig:
    """What makes a stage faster without changing what it learns: 8-bit products, compiling, fused kernels."""
    speed = recipe.speed
    config: EngineConfig = {"fp8": True} if precision_of(recipe, kind) == "fp8" else {}
    if config and sharding.by_fsdp(recipe):
        # Shards travel as 8-bit numbers, half the bytes of bf16.
        config |= {"fp8_enable_fsdp_float8_all_gather": True}
    if mode := compile_mode(recipe, kind):
        config |= {"torch_compile": True, "torch_compile_mode": mode}
    if speed.fused_kernels or speed.fused_cross_entropy:
        config |= {
            "plugins": [axolotl.LIGER, axolotl.PLUGIN],
            "liger_rope": speed.fused_kernels,
            "liger_rms_norm": speed.fused_kernels,
            "liger_glu_activation": speed.fused_kernels,
            # DPO needs the probabilities of answers, which the fused loss never holds.
            "liger_fused_linear_cross_entropy": speed.fused_cross_entropy and kind != "dpo",
        }
    return config
