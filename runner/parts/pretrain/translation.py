"""Scenario pipeline: a model from random weights to a domain adapter, in stages with gates between
them. Pretraining is here, in Axolotl's settings (0.19.0); SFT, DPO and LoRA are stages of the
scenario `stages`, see `in_stages`. A rehearsal goes through every stage and every gate on any
machine, with a tiny twin of the architecture."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from runner.check.validate import as_written
from runner.data.data_sets import stated
from runner.parts.contract import Measurable, Summaries
from runner.parts.pretrain import architecture
from runner.parts.pretrain.architecture import (
    AFTER,
    ROWS,
    TRAINED,
    Length,
    compile_mode,
    curriculum,
    precision_of,
)
from runner.parts.stages import translation as each_stage
from runner.plan import EngineConfig, Evaluation, Place, Plan, Stage
from runner.recipe import overrides
from runner.recipe.document import Path_
from runner.recipe.recipe import PREFERENCES, Override, Recipe, sets_of
from runner.recipe.stages import EARLIER_ROWS, PRETRAIN, STAGES
from runner.scenarios.shared import axolotl, common, rehearsal, sharding, twin
from runner.scenarios.shared.contradictions import contradictions
from runner.tools import packaged
from runner.tools.problem import Problem, Stop, listed
from runner.tools.settings import Section
from runner.tools.text import longest_job_name
from runner.trainer.settings import BlocksSettings, Demo, RunOptions


def translate(recipe: Recipe, place: Place) -> Plan:
    whole = in_stages(recipe)
    return common.plan(
        recipe, place, lambda place: each_stage.each(whole, place, recipe), facts(recipe)
    )


def facts(recipe: Recipe) -> Section:
    batch = common.effective_batch_size(recipe)
    tokens = {length.name: length.tokens(batch) for length in curriculum(recipe)}
    return {
        "world_size": common.world_size(recipe),
        "parameters": architecture.parameters(recipe.model),
        "tokens": tokens,
        "tokens_in_all": sum(tokens.values()),
        "precision": {
            kind: precision_of(recipe, kind) for kind in TRAINED if recipe.settings.get(kind)
        },
        "fp8_stages": list(architecture.FP8_STAGES),
    }


def measurable(recipe: Recipe) -> dict[str, Measurable]:
    stages = [stage for stage in TRAINED if recipe.settings.get(stage)]
    return {stage: Measurable(common.measured_as(ROWS[stage]), blocks=True) for stage in stages}


def pretraining(recipe: Recipe, place: Place) -> tuple[Stage, Stage, list[Stage]]:
    """The stages that prepare text, draw the first weights, and train each context length."""
    lengths = curriculum(recipe)
    # Only the proportions count, so the data does not change with the number of GPUs.
    tokens = tuple((length.sequence_len, length.tokens(1)) for length in lengths)
    everything = asdict(architecture.everything(recipe, place, tokens), dict_factory=stated)
    machines = common.machines(recipe, place)
    if place.on_cluster and not recipe.data.packed:
        pods = recipe.data.cleaning.pods
    else:
        pods = None
    # The results for other stages, by folder, and the settings that each depends on.
    parts = {"tokenizer": ("text", "tokenizer"), "blocks": ("text", "tokenizer", "lengths")}
    prepares = common.work(place, common.DATA, everything, machines, parts=parts, pods=pods or 1)
    model = recipe.model
    precision = recipe.pretrain.precision or recipe.model.precision
    weights = architecture.FirstWeights(
        out=place.below("init").best_model_dir,
        tokenizer=f"{place.data_dir}/tokenizer",
        seed=model.seed,
        architecture=architecture.sizes(model) | {"tie_word_embeddings": model.tied},
        parameters=architecture.parameters(model),
        dtype="float32" if precision == "fp32" or model.master_weights != "bf16" else "bfloat16",
    )
    init = common.work(
        place, "init", asdict(weights), machines, reads={common.DATA: ("tokenizer/",)}
    )
    trained = [init]
    for length in lengths:
        trained.append(_of_length(recipe, place, length, [stage.name for stage in trained]))
    return prepares, init, trained[1:]


def _of_length(recipe: Recipe, place: Place, length: Length, before: list[str]) -> Stage:
    here = place.below(length.name)
    # All stages share a time limit, so each reads how much of it the earlier ones have used.
    earlier = [place.below(name).run_dir for name in before[1:] if common.time_limit(recipe)]
    config = _config(recipe, here, length, place.below(before[-1]), earlier)
    split, split_files = sharding.settings(recipe, here, precision_of(recipe, PRETRAIN))
    last = curriculum(recipe)[-1]
    return axolotl.stage(
        recipe,
        here,
        axolotl.with_advanced(recipe, config | split, PRETRAIN, ("model", "speed", PRETRAIN)),
        Evaluation(
            "text", text_blocks=f"{place.data_dir}/blocks/validation-{last.sequence_len}.npy"
        ),
        PRETRAIN if length == last else None,  # gates come after the last length
        name=length.name,
        data={},
        files=split_files,
        folder=length.name,
        # Blocks of other lengths may change without this one.
        reads={
            common.DATA: tuple(
                f"blocks/{split}-{length.sequence_len}.npy" for split in ("train", "validation")
            ),
            before[-1]: (),
        },
    )


def _config(
    recipe: Recipe, place: Place, length: Length, before: Place, earlier: list[str]
) -> EngineConfig:
    """Every length has the whole schedule; the plugin gives it its blocks, begins where the one
    before ended, with its optimizer, and ends at its own last step. earlier: the run folders whose
    training time counts."""
    train = recipe.pretrain
    precision = precision_of(recipe, PRETRAIN)
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
        **axolotl.reporting(recipe.report_to, name),
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
    config |= axolotl.products(recipe, precision == "fp8", compile_mode(recipe, PRETRAIN))
    if speed.fused_kernels or speed.fused_cross_entropy:
        config |= {
            "plugins": [axolotl.LIGER, axolotl.PLUGIN],
            "liger_fused_linear_cross_entropy": speed.fused_cross_entropy,
            **{f"liger_{part}": speed.fused_kernels for part in axolotl.LIGER_PARTS.values()},
        }
    # Only for Axolotl's rules; the plugin provides the blocks.
    return config | {name: [{"path": folder, "type": ""}] for name in ("datasets", "test_datasets")}


# What moves where from a pipeline's form to that of `stages`.
FORMS = packaged.toml(__file__, "in_stages.toml")
SHARED, FIRST = FORMS["shared"], FORMS["first"]
MOVED: Mapping[str, Path_] = {name: tuple(path) for name, path in FORMS["moved"].items()}


def in_stages(recipe: Recipe) -> Recipe:
    """The same recipe as a list of stages; each line keeps its place in the file."""
    written = recipe.document.data
    kinds = [kind for kind in AFTER if recipe.settings.get(kind)]
    train = {name: value for name, value in written[PRETRAIN].items() if name != "gates"}
    first = {
        "name": PRETRAIN,
        "technique": PRETRAIN,
        **{name: written[name] for name in FIRST if name in written},
        "train": {**train, "report_to": recipe.report_to},
        **({"gates": written[PRETRAIN]["gates"]} if "gates" in written[PRETRAIN] else {}),
        **_advanced(recipe, PRETRAIN),
    }
    if common.world_size(recipe) > 1:
        alone = "fsdp"
    else:
        alone = "ddp"
    data = {
        "scenario": STAGES,
        **{name: written[name] for name in SHARED if name in written},
        "distribution": alone if recipe.distribution == "auto" else recipe.distribution,
        STAGES: [first, *(_stage(recipe, kind) for kind in kinds)],
    }
    spans: dict[str, Any] = {}
    for places in ("keys", "values", "origins"):
        spans[places] = _moved(getattr(recipe.document, places), kinds)
    return as_written(replace(recipe.document, data=data, **spans))


def _advanced(recipe: Recipe, kind: str) -> Section:
    extra = recipe.advanced.plain().get(kind)
    if extra:
        return {"advanced": {"axolotl": extra}}
    return {}


def _stage(recipe: Recipe, kind: str) -> dict[str, Any]:
    model = recipe.model
    speed = recipe.speed
    precision = precision_of(recipe, kind)
    stage: dict[str, Any] = {
        "name": kind,
        "technique": "lora" if kind == "lora" else "full",
        "model": {},
        "train": {},
    }
    for name, value in recipe.settings[kind].plain().items():
        *home, last = MOVED.get(name, ("train", name))
        (stage[home[0]] if home else stage)[last] = value
    shared = {name: model[name] for name in ("attention", "gradient_checkpointing")}
    stage["model"] |= shared | {"precision": "fp32" if precision == "fp32" else "bf16"}
    stage["data"]["chat_template"] = recipe.tokenizer.chat_template
    stage["train"] |= {
        "report_to": recipe.report_to,
        "kernels": "auto" if speed.fused_kernels else "none",
    }
    if kind != "lora":
        stage["model"]["master_weights"] = model.master_weights
    if ROWS[kind] == PREFERENCES:
        stage["data"]["form"] = PREFERENCES
        stage["train"]["weight_decay"] = 0.0
        stage["train"]["objective"] = {"sigmoid": "dpo"}.get(
            stage["train"]["objective"], stage["train"]["objective"]
        )
    else:
        if speed.fused_cross_entropy:
            stage["train"]["cross_entropy"] = "fused"
        else:
            stage["train"]["cross_entropy"] = "plain"
    earlier = round(1 - stage.pop(EARLIER_ROWS, 1), 12)
    if earlier and recipe.settings.get("sft"):
        stage[EARLIER_ROWS] = earlier
    faster = {name: speed[name] for name in ("tf32", "data_workers", "persistent_workers")}
    faster |= {"compile": compile_mode(recipe, kind) or "off"} | (
        {"fp8": True} if precision == "fp8" else {}
    )
    return {**stage, "speed": faster, **_advanced(recipe, kind)}


def _moved(places: Mapping[Path_, object], kinds: list[str]) -> dict[Path_, Any]:
    groups: dict[Path_, list[Path_]] = {}
    for path in places:
        groups.setdefault(path[:1], []).append(path)
    found = {
        path: places[path] for name in (*SHARED, "scenario") for path in groups.get((name,), ())
    }
    for index, kind in enumerate((PRETRAIN, *kinds)):
        home: Path_ = (STAGES, index)
        # The beginnings of paths in both forms; a longer one comes later.
        begins: list[tuple[Path_, Path_]] = [((kind,), home), ((kind,), (*home, "train"))]
        for name in FIRST if kind == PRETRAIN else ("model", "speed"):
            begins.append(((name,), (*home, name)))
        begins += [((kind, name), (*home, *new)) for name, new in MOVED.items()]
        for old, new in (*begins, (("advanced", kind), (*home, "advanced", "axolotl"))):
            same = (path for path in groups.get(old[:1], ()) if path[: len(old)] == old)
            found |= {new + path[len(old) :]: places[path] for path in same}
    return found


# The rules.


def order(recipe: Recipe) -> Iterator[Problem]:
    parts = recipe.pretrain.curriculum
    most = recipe.model.context
    for index, part in enumerate(parts):
        for setting in ("sequence_len", "until") if index else ():
            if part[setting] <= (before := parts[index - 1][setting]):
                message = (
                    f"`{setting}` is {part[setting]:g} here and {before:g} in the line before; both must rise.",
                    "Put the lines in rising order.",
                )
                yield recipe.problem(("pretrain", "curriculum", index, setting), *message)
        if part.sequence_len > most:
            place = ("pretrain", "curriculum", index, "sequence_len")
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
        yield recipe.problem(("pretrain", "curriculum", len(parts) - 1, "until"), *message)
    if any(length.last_step <= length.first_step for length in curriculum(recipe)):
        message = (
            f"{recipe.pretrain.steps:,} steps are too few for {len(parts)} context lengths.",
            "Raise `steps`.",
        )
        yield recipe.problem("pretrain.steps", *message)


def documents(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    pretrain = recipe.pretrain
    # A document of 1,000 tokens is a long one on the web.
    tokens = sum(
        length.tokens(common.effective_batch_size(recipe)) for length in curriculum(recipe)
    )
    # Reading a document four times is hardly worse than new text (arXiv 2305.16264); 40 times are
    # reported.
    limit = data.get("limit")
    if limit and (has := limit * 1000) * 40 < tokens:
        message = (
            f"{pretrain.steps:,} steps read {tokens:,} tokens, but {limit:,} documents have about {has:,}. Each would be read about {tokens // has:,} times.",
            "Raise `limit`, or lower `pretrain.steps`; up to 4 times is usual.",
        )
        yield recipe.note("data.limit", *message)


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.data.packed:
        return
    folder = recipe.folder / recipe.data.packed
    missing = []
    for length, split in product(
        (part.sequence_len for part in recipe.pretrain.curriculum), ("train", "validation")
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
    site = recipe.openshift
    if site is None:
        return
    name = site.job_name or recipe.name
    stages = [
        "data",
        "init",
        *(length.name for length in curriculum(recipe)),
        *filter(recipe.settings.get, AFTER),
    ]
    longest = max((f"{name}-{stage}" for stage in stages), key=len)
    most = longest_job_name(recipe.machines.nodes)
    if len(longest) > most:
        message = (
            f"The job `{longest}` of a stage would have a name of {len(longest)} characters, but the cluster allows {most}.",
            f"Shorten `{name}`.",
        )
        yield recipe.problem(("openshift", "job_name") if site.job_name else ("name",), *message)


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
    for home, section in recipe.data_sections:
        if data and home == ("data",):
            made += overrides.from_data_option(data)
        else:
            made += (
                each for one in sets_of(home, section) for each in rehearsal.sample(recipe, *one)
            )
    sizes = twin.geometry(recipe.facts, 2, VOCABULARY) | {"rows": VOCABULARY + 64}
    changes = (overrides.substitute(*row) for row in rehearsal.table("whole", REHEARSAL, **sizes))
    for change in changes:
        if recipe.settings.get(str(change.path[0])) is not None:
            made.append(change)
    made += [*rehearsal.on_processors(recipe, 1), overrides.without_time_limit(rehearsal.BY)]
    for kind in filter(recipe.settings.get, TRAINED):
        section = recipe.settings[kind]
        made += rehearsal.without_kernels(recipe, rehearsal.BY, f"{kind}.optimizer")
        if kind == "lora":
            made += rehearsal.narrow("lora.", section.rank, section.alpha)
        if "packing" in section:
            made.append(rehearsal.packing(recipe, kind, section))
        made += rehearsal.any_improvement(kind, section)
        for name, value, why in rehearsal.table(kind, REHEARSAL):
            for bound, limit in value.items() if isinstance(value, dict) else ():
                value = {"most": min, "least": max}[bound](limit, section[name])
            made.append(overrides.substitute(f"{kind}.{name}", value, why))
    return [*made, *rehearsal.gates(recipe)]


after_data = None  # nothing more follows from the rows, and the stage `init` makes the tiny model


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    return {}


def judge(plan: Plan, summaries: Summaries) -> None:
    """Raises Stop unless every stage has learned something: losses fell, and DPO's accuracy
    rose."""
    by_stage = {summary.stage: summary for summary in summaries}
    lengths = [by_stage[name] for name in plan.facts["tokens"] if name in by_stage]
    if lengths:
        fell = [("pretraining", lengths[0].first_validation_loss, lengths[-1].last_validation_loss)]
    else:
        fell = []
    after = ((name, by_stage[name]) for name in AFTER if name in by_stage)
    fell += [(name, one.first_validation_loss, one.best_validation_loss) for name, one in after]
    for name, first, last in fell:
        if first is None or last is None or not last < first:
            raise Stop(
                f"The rehearsal of {name} did not learn: the validation loss went from {first} to {last}.",
                "Check the data, and the stage's log.",
            )
    if "dpo" in by_stage:
        dpo = by_stage["dpo"]
        rehearsal.preferred(dpo.first_preference_accuracy, dpo.last_preference_accuracy)
