"""Scenario pretrain: a model from random weights, in Axolotl's settings (0.19.0), as a recipe of
its own and as the first stage of several (see `runner.scenarios.stages`). A rehearsal goes through
every stage and the gate on any machine, with a tiny twin of the architecture."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any, Literal

from runner.data.data_sets import stated
from runner.parts.contract import Measurable, Summaries
from runner.parts.pretrain import architecture
from runner.parts.pretrain.architecture import Length, compile_mode, curriculum, precision_of
from runner.plan import EngineConfig, Evaluation, Place, Plan, Stage
from runner.recipe import overrides
from runner.recipe.recipe import Override, Recipe, sets_of
from runner.recipe.stages import PRETRAIN
from runner.scenarios.shared import axolotl, common, rehearsal, sharding, twin
from runner.scenarios.shared.contradictions import contradictions
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, listed
from runner.tools.settings import Section
from runner.trainer.settings import BlocksSettings, Demo, RunOptions


def translate(recipe: Recipe, place: Place) -> Plan:
    return common.plan(recipe, place, lambda place: _stages(recipe, place), facts(recipe))


def _stages(recipe: Recipe, place: Place) -> Iterable[Stage]:
    prepares, init, trained = pretraining(recipe, place)
    return [prepares, init, *trained]


def facts(recipe: Recipe) -> Section:
    batch = common.effective_batch_size(recipe)
    tokens = {length.name: length.tokens(batch) for length in curriculum(recipe)}
    return {
        "world_size": common.world_size(recipe),
        "parameters": architecture.parameters(recipe.model),
        "tokens": tokens,
        "tokens_in_all": sum(tokens.values()),
        "precision": {PRETRAIN: precision_of(recipe)},
        "fp8_stages": [PRETRAIN],
    }


def measurable(recipe: Recipe) -> Measurable:
    return Measurable("text", blocks=True)


def pretraining(recipe: Recipe, place: Place) -> tuple[Stage, Stage, list[Stage]]:
    """The stages that prepare text, draw the first weights, and train each context length."""
    data = _data(recipe, place)
    init = _init(recipe, place)
    trained = list[Stage]()
    names_before = [init.name]
    for length in curriculum(recipe):
        stage = _of_length(recipe, place, length, names_before)
        trained.append(stage)
        names_before.append(stage.name)
    return data, init, trained


def _data(recipe: Recipe, place: Place) -> Stage:
    """The stage that cleans the text, trains the tokenizer and packs the blocks."""
    # Only the proportions count, so the data does not change with the number of GPUs.
    tokens = []
    for length in curriculum(recipe):
        tokens.append((length.sequence_len, length.tokens(1)))
    task = architecture.everything(recipe, place, tuple(tokens))
    config = asdict(task, dict_factory=stated)
    config["work"] = "pretrain.text"
    pods = None
    if place.on_cluster and not recipe.data.packed:
        pods = recipe.data.cleaning.pods
    # The results for other stages, by folder, and the settings that each depends on.
    parts = {"tokenizer": ("text", "tokenizer"), "blocks": ("text", "tokenizer", "lengths")}
    machines = common.machines(recipe, place)
    return common.work(place, common.DATA, config, machines, parts=parts, pods=pods or 1)


def _init(recipe: Recipe, place: Place) -> Stage:
    """The stage that draws the first weights."""
    model = recipe.model
    dtype: Literal["float32", "bfloat16"] = "float32"
    if model.master_weights == "bf16" and model.precision != "fp32":
        dtype = "bfloat16"
    task = architecture.FirstWeights(
        out=place.below("init").best_model_dir,
        tokenizer=f"{place.data_dir}/tokenizer",
        seed=model.seed,
        architecture=architecture.sizes(model) | {"tie_word_embeddings": model.tied},
        parameters=architecture.parameters(model),
        dtype=dtype,
    )
    machines = common.machines(recipe, place)
    reads = {common.DATA: ("tokenizer/",)}
    return common.work(place, "init", asdict(task), machines, reads=reads)


def _of_length(recipe: Recipe, place: Place, length: Length, names_before: list[str]) -> Stage:
    """The training of one context length. names_before: of `init` and of the lengths before."""
    here = place.below(length.name)
    earlier = []
    if common.time_limit(recipe):
        # All stages share it, so each reads how much of it the earlier ones have used.
        for name in names_before[1:]:
            earlier.append(place.below(name).run_dir)
    before = names_before[-1]
    config = _config(recipe, here, length, place.below(before), earlier)
    split, split_files = sharding.settings(recipe, here, precision_of(recipe))
    last = curriculum(recipe)[-1]
    validation_blocks = f"{place.data_dir}/blocks/validation-{last.sequence_len}.npy"
    # Blocks of other lengths may change without this one.
    blocks = (
        f"blocks/train-{length.sequence_len}.npy",
        f"blocks/validation-{length.sequence_len}.npy",
    )
    return axolotl.stage(
        recipe,
        here,
        axolotl.with_advanced(recipe, config | split, ("model", "speed", "train")),
        Evaluation("text", text_blocks=validation_blocks),
        has_gates=length == last,
        name=length.name,
        data={},
        files=split_files,
        folder=length.name,
        reads={common.DATA: blocks, before: ()},
    )


def _config(
    recipe: Recipe, place: Place, length: Length, before: Place, earlier: list[str]
) -> EngineConfig:
    """Every length has the whole schedule; the plugin gives it its blocks, begins where the one
    before ended, with its optimizer, and ends at its own last step. earlier: the run folders whose
    training time counts."""
    train = recipe.train
    precision = precision_of(recipe)
    speed = recipe.speed
    name = f"{recipe.name}-{length.sequence_len}"
    folder = f"{place.data_dir}/blocks"
    options: RunOptions = {
        "persistent_workers": bool(speed.persistent_workers and speed.data_workers),
        "master_weights": axolotl.master_weights(recipe, precision),
        "demo": Demo(
            base_model=before.best_model_dir,
            system_prompt=None,
            chat=False,  # After pretraining a model continues a text.
            turn_end=architecture.END_OF_TEXT,
        ),
        "blocks": BlocksSettings(
            sequence_len=length.sequence_len,
            first_step=length.first_step,
            last_step=length.last_step,
            steps=train.steps,
            seed=recipe.data.seed,
            continue_from=before.checkpoints_dir if length.first_step else None,
            folder=folder,
        ),
    }
    if earlier:
        options["time_limit_earlier"] = earlier
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
        **axolotl.reporting(train.report_to, name),
        "recipe_runner": common.run_settings(recipe, place, name, **options),
        "sequence_len": length.sequence_len,
        "num_epochs": 1,
        "warmup_steps": architecture.warmup_steps(recipe),
        "lr_scheduler": "cosine",
        "cosine_min_lr_ratio": float(f"{train.min_learning_rate / train.learning_rate:.12g}"),
        # The blocks come in an order of their own, so that a resumed run sees exactly those that
        # are left.
        "curriculum_sampling": True,
        "sample_packing": False,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "save_steps": train.save_steps or train.eval_steps,
        "load_best_model_at_end": False,
    }
    if recipe.model.gradient_checkpointing:
        config["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    config |= axolotl.products(recipe, precision == "fp8", compile_mode(recipe))
    if speed.fused_kernels or speed.fused_cross_entropy:
        config |= {
            "plugins": [axolotl.LIGER, axolotl.PLUGIN],
            "liger_fused_linear_cross_entropy": speed.fused_cross_entropy,
            **{f"liger_{part}": speed.fused_kernels for part in axolotl.LIGER_PARTS.values()},
        }
    # Only for Axolotl's rules; the plugin provides the blocks.
    return config | {name: [{"path": folder, "type": ""}] for name in ("datasets", "test_datasets")}


# The rules.


def order(recipe: Recipe) -> Iterator[Problem]:
    parts = recipe.train.curriculum
    most = recipe.model.context
    for index, part in enumerate(parts):
        for setting in ("sequence_len", "until") if index else ():
            if part[setting] <= (before := parts[index - 1][setting]):
                message = (
                    f"`{setting}` is {part[setting]:g} here and {before:g} in the line before; both must rise.",
                    "Put the lines in rising order.",
                )
                yield recipe.problem(("train", "curriculum", index, setting), *message)
        if part.sequence_len > most:
            place = ("train", "curriculum", index, "sequence_len")
            yield recipe.problem(
                place,
                f"Blocks of {part.sequence_len:,} tokens are longer than the model's context of {most:,}.",
                "Raise `model.context`, or shorten the blocks.",
            )
    if parts[-1].until != 1:
        message = (
            f"The last context length ends at {parts[-1].until:g} of the steps, so the rest would not be trained.",
            "Let the last one end at 1.0.",
        )
        yield recipe.problem(("train", "curriculum", len(parts) - 1, "until"), *message)
    if any(length.last_step <= length.first_step for length in curriculum(recipe)):
        message = (
            f"{recipe.train.steps:,} steps are too few for {len(parts)} context lengths.",
            "Raise `steps`.",
        )
        yield recipe.problem("train.steps", *message)


def documents(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    # A document of 1,000 tokens is a long one on the web.
    tokens = sum(
        length.tokens(common.effective_batch_size(recipe)) for length in curriculum(recipe)
    )
    # Reading a document four times is hardly worse than new text (arXiv 2305.16264); 40 times are
    # reported.
    limit = data.get("limit")
    if limit and (has := limit * 1000) * 40 < tokens:
        message = (
            f"{recipe.train.steps:,} steps read {tokens:,} tokens, but {limit:,} documents have about {has:,}. Each would be read about {tokens // has:,} times.",
            "Raise `limit`, or lower `train.steps`; up to 4 times is usual.",
        )
        yield recipe.note("data.limit", *message)


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.data.packed:
        return
    folder = recipe.folder / recipe.data.packed
    missing = []
    for length, split in product(
        (part.sequence_len for part in recipe.train.curriculum), ("train", "validation")
    ):
        file = folder / f"{split}-{length}.npy"
        # Unlike a path's own `is_file`, this answers for a name that is too long for a file.
        if not os.path.isfile(file):
            missing.append(file.name)
            continue
        try:
            architecture.packed_blocks(file, length)
        except Stop as stop:
            yield recipe.problem("data.packed", *stop.text.split("\n", 1))
    if missing:
        message = (
            f"`{folder}` lacks {listed(missing)}.",
            "Check the path; it is relative to the recipe's folder. Every context length needs both files.",
        )
        yield recipe.problem("data.packed", *message)


def cleaning(recipe: Recipe) -> Iterator[Problem]:
    section = recipe.data.cleaning
    if not section:
        return
    name = section.executor
    known = packaged.toml(__file__, "executors.toml")
    lacking = listed(setting for setting in known["needs"][name] if section.get(setting) is None)
    if lacking:
        yield recipe.problem(
            "data.cleaning.executor",
            f"`executor: {name}` also needs {lacking}.",
            "Write them below it, or `executor: local`.",
        )
    # Only written settings. One with its default value, as `recipe show` prints it, does no harm.
    for setting, value in (recipe.document.lookup(("data", "cleaning")) or {}).items():
        own = setting in ("executor", *known["needs"][name], *known["accepts"][name])
        if not own and value != known["defaults"].get(setting):
            message = (
                f"`{setting}` has no effect with `executor: {name}`.",
                "Delete the line, or name the executor that it is for.",
            )
            yield recipe.problem(("data", "cleaning", setting), *message, key=True)


def stage_job_names(recipe: Recipe) -> Iterator[Problem]:
    # The rules of a recipe with `stages` judge the names of all of them.
    if not recipe.is_stage:
        yield from common.long_job_name(recipe, [length.name for length in curriculum(recipe)])


# What the table of contradictions can name beside settings. written_vocabulary: without a default;
# left_width, left_heads: what is left over if heads share the width, and groups the heads.
OWN: Mapping[str, Callable[[Recipe], Any]] = {
    "written_vocabulary": lambda recipe: recipe.document.lookup(("tokenizer", "vocabulary")),
    "warmup": architecture.warmup_steps,
    "left_width": lambda recipe: recipe.model.hidden_size % recipe.model.attention_heads,
    "head_size": lambda recipe: recipe.model.hidden_size // recipe.model.attention_heads,
    "odd_head": lambda recipe: recipe.model.hidden_size // recipe.model.attention_heads % 2,
    "left_heads": lambda recipe: recipe.model.attention_heads % recipe.model.key_value_heads,
}
RULES = (documents, order, cleaning, stage_job_names, contradictions(__file__, **OWN))
FILE_RULES = (packed_files,)


# Of a rehearsal.
REHEARSAL = Path(__file__).with_name("rehearsal.toml")
# Half of the words of a warmed-up twin, because this model meets each word only in its own few
# steps.
VOCABULARY = 1024


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    if data and not Path(data).is_file():
        raise Stop(
            Problem(data, 0, 0, "This file does not exist.", "Name a data file after `--data`.")
        )
    made: list[Override] = []
    if data:
        made += overrides.from_data_option(data)
    else:
        for home, data_set in sets_of(("data",), recipe.data):
            made += rehearsal.sample(recipe, home, data_set)
    sizes = twin.geometry(recipe.facts, 2, VOCABULARY) | {"rows": VOCABULARY + 64}
    for name, value, why in rehearsal.table("whole", REHEARSAL, **sizes):
        section, _, setting = name.rpartition(".")
        if recipe.settings.get(section.partition(".")[0]) is None:
            continue
        if isinstance(value, dict):
            value = min(value["most"], recipe.settings[section][setting])
        made.append(overrides.substitute(name, value, why))
    return [
        *made,
        *rehearsal.on_processors(recipe, 1),
        overrides.without_time_limit(rehearsal.BY),
        *rehearsal.without_kernels(recipe, rehearsal.BY, "train.optimizer"),
        *rehearsal.gates(recipe),
    ]


after_data = None  # nothing more follows from the rows, and the stage `init` makes the tiny model


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    return {}


def judge(plan: Plan, summaries: Summaries) -> None:
    """Raises Stop unless the validation loss fell from the first context length to the last."""
    by_stage = {summary.stage: summary for summary in summaries}
    lengths = [by_stage[name] for name in plan.facts["tokens"] if name in by_stage]
    if not lengths:
        return
    first = lengths[0].first_validation_loss
    last = lengths[-1].last_validation_loss
    if first is None or last is None or not last < first:
        raise Stop(
            f"The rehearsal of pretraining did not learn: the validation loss went from {first} to {last}.",
            "Check the data, and the stage's log.",
        )
