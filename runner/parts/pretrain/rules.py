"""Rules of a pipeline recipe: its architecture, curriculum, stages, files and cleaning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from runner import catalog
from runner.parts.pretrain.architecture import AFTER, FP8_STAGES, curriculum, packed_blocks, warmup_steps
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.names import listed, longest_job_name
from runner.tools.problem import Problem, Stop, worded

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

# The settings that each executor needs, and those that it also accepts.
NEEDS = {"local": (), "pods": ("pods",), "slurm": ("tasks", "partition", "time"), "ray": ("tasks",)}
KNOWS = {
    "local": ("tasks", "workers"),
    "pods": ("tasks", "workers"),
    "slurm": ("workers", "cpus_per_task", "mem_per_cpu_gb", "qos", "sbatch_args"),
    "ray": ("workers", "time", "cpus_per_task", "mem_per_cpu_gb", "address"),
}
# How often a document may be read before it is reported; four times is hardly worse than new text (arXiv 2305.16264).
MOST_TIMES = 40
IDLE = {"cpus_per_task": 1, "mem_per_cpu_gb": 2}  # the defaults of some of them in the schema


def shape(recipe: Recipe) -> Iterator[Problem]:
    model, tokenizer = recipe.model, recipe.tokenizer
    if model.hidden_size % model.attention_heads:
        yield recipe.problem("model.attention_heads", *worded("pretrain.width-not-divided", model=model))
    elif model.hidden_size // model.attention_heads % 2:
        said = worded("pretrain.odd-heads", size=model.hidden_size // model.attention_heads)
        yield recipe.problem("model.attention_heads", *said)
    if model.attention_heads % model.key_value_heads:
        yield recipe.problem("model.key_value_heads", *worded("pretrain.groups-not-equal", model=model))
    if not tokenizer.base and tokenizer.vocabulary > model.vocabulary:
        said = worded("pretrain.vocabulary-too-large", tokenizer=tokenizer, model=model)
        yield recipe.problem("tokenizer.vocabulary", *said)


def fp8_gpu(recipe: Recipe) -> Iterator[Problem]:
    gpu = catalog.gpu(recipe.machines.gpu)
    for home in ("model", *FP8_STAGES):
        if (recipe.settings.get(home) or {}).get("precision") == "fp8" and gpu and not gpu.fp8:
            hint = f"Write `precision: {gpu.precision(fp16=False)}`, or `auto`."
            yield recipe.problem((home, "precision"), common.no_fp8(gpu), hint)


def order(recipe: Recipe) -> Iterator[Problem]:
    pretrain, parts = recipe.pretrain, recipe.pretrain.curriculum
    for index, (before, part) in enumerate(pairwise(parts), 1):
        for setting in ("sequence_len", "until"):
            if part[setting] <= before[setting]:
                said = worded("pretrain.lengths-must-rise", setting=setting, now=part[setting], before=before[setting])
                yield recipe.problem(("pretrain", "curriculum", index, setting), *said)
    if parts[-1].until != 1:
        said = worded("pretrain.curriculum-ends-early", until=parts[-1].until)
        yield recipe.problem(("pretrain", "curriculum", len(parts) - 1, "until"), *said)
    ends = [round(part.until * pretrain.steps) for part in parts]
    if any(end <= start for start, end in pairwise([0, *ends])):
        yield recipe.problem("pretrain.steps", *worded("pretrain.too-few-steps", pretrain=pretrain, lengths=len(parts)))


def schedule(recipe: Recipe) -> Iterator[Problem]:
    pretrain = recipe.pretrain
    if pretrain.min_learning_rate > pretrain.learning_rate:
        yield recipe.problem("pretrain.min_learning_rate", *worded("pretrain.minimum-above-rate", pretrain=pretrain))
    if (warmup := warmup_steps(recipe)) >= pretrain.steps:
        said = worded("pretrain.warmup-too-long", warmup=warmup, pretrain=pretrain)
        yield recipe.problem(("pretrain", "warmup_ratio" if pretrain.warmup_steps is None else "warmup_steps"), *said)


def context(recipe: Recipe) -> Iterator[Problem]:
    most = recipe.model.context
    for index, part in enumerate(recipe.pretrain.curriculum):
        if part.sequence_len > most:
            said = worded("pretrain.blocks-beyond-context", part=part, most=most)
            yield recipe.problem(("pretrain", "curriculum", index, "sequence_len"), *said)
    for stage in AFTER:
        section = recipe.settings.get(stage)
        if section and section.sequence_len > most:
            said = worded("pretrain.rows-beyond-context", most=most, section=section)
            yield recipe.problem((stage, "sequence_len"), *said)


def documents(recipe: Recipe) -> Iterator[Problem]:
    data, pretrain = recipe.data, recipe.pretrain
    if data.min_words > data.max_words:
        yield recipe.problem("data.min_words", *worded("pretrain.no-such-documents", data=data))
    # A document of 1,000 tokens is a long one on the web.
    tokens = sum(length.tokens(common.effective_batch_size(recipe)) for length in curriculum(recipe))
    if (limit := data.get("limit")) and limit * 1000 * MOST_TIMES < tokens:
        has = limit * 1000
        said = worded(
            "pretrain.documents-read-often", pretrain=pretrain, tokens=tokens, limit=limit, has=has, times=tokens // has
        )
        yield recipe.note("data.limit", *said)


def one_vocabulary(recipe: Recipe) -> Iterator[Problem]:
    if recipe.tokenizer.base and recipe.document.lookup(("tokenizer", "vocabulary")) is not None:
        yield recipe.note("tokenizer.vocabulary", *worded("pretrain.vocabulary-without-effect", recipe=recipe))


def packed_words(recipe: Recipe) -> Iterator[Problem]:
    if recipe.data.packed and not recipe.tokenizer.base:
        yield recipe.problem("data.packed", *worded("pretrain.packed-without-tokenizer"))


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.data.packed:
        return
    folder = recipe.folder / recipe.data.packed
    expected = {
        folder / f"{split}-{part.sequence_len}.npy": part.sequence_len
        for part in recipe.pretrain.curriculum
        for split in ("train", "validation")
    }
    # Unlike a path's own `is_file`, this answers for a name that is too long for a file.
    missing = [file.name for file in expected if not os.path.isfile(file)]
    if missing:
        said = worded("pretrain.packed-files-missing", folder=folder, missing=listed(missing))
        yield recipe.problem("data.packed", *said)
    for file, length in expected.items():
        if os.path.isfile(file):
            try:
                packed_blocks(file, length)
            except Stop as stop:
                message, _, remedy = stop.text.partition("\n")
                yield recipe.problem("data.packed", message, remedy)


def cleaning(recipe: Recipe) -> Iterator[Problem]:
    section = recipe.data.cleaning
    if not section:
        return
    name = section.executor
    if missing := [setting for setting in NEEDS[name] if section.get(setting) is None]:
        said = worded("pretrain.executor-needs", name=name, missing=listed(missing))
        yield recipe.problem("data.cleaning.executor", *said)
    # Only written settings. One with its default value, as `recipe show` prints it, does no harm.
    for setting, value in (recipe.document.lookup(("data", "cleaning")) or {}).items():
        if setting not in ("executor", *NEEDS[name], *KNOWS[name]) and value != IDLE.get(setting):
            said = worded("pretrain.not-of-executor", setting=setting, name=name)
            yield recipe.problem(("data", "cleaning", setting), *said, key=True)
    if name == "pods" and section.pods and section.tasks and section.tasks < section.pods:
        yield recipe.problem("data.cleaning.tasks", *worded("pretrain.pods-without-work", section=section))
    if name == "pods" and "openshift" not in recipe.settings:
        yield recipe.problem("data.cleaning.executor", *worded("pretrain.pods-without-cluster"))


def stage_job_names(recipe: Recipe) -> Iterator[Problem]:
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    name = site.job_name or recipe.name
    stages = ["data", "init", *(length.name for length in curriculum(recipe)), *filter(recipe.settings.get, AFTER)]
    longest = max((f"{name}-{stage}" for stage in stages), key=len)
    most = longest_job_name(recipe.machines.nodes)
    if len(longest) > most:
        said = worded("pretrain.job-name-too-long", longest=longest, length=len(longest), most=most, name=name)
        yield recipe.problem(("openshift", "job_name") if site.job_name else ("name",), *said)


RULES = (
    *(documents, one_vocabulary, shape, fp8_gpu, order, schedule, context, packed_words, cleaning, stage_job_names),
    common.cadence,
)
FILE_RULES = (packed_files,)
