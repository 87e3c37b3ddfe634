"""Rules of a pipeline recipe: its architecture, curriculum, stages, files and cleaning."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from runner import catalog
from runner.parts.pretrain.architecture import AFTER, FP8_STAGES, curriculum, trained_names, warmup_steps
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.names import listed, longest_job_name
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

# What each executor of datatrove needs, and what it knows besides.
NEEDS = {"local": (), "pods": ("pods",), "slurm": ("tasks", "partition", "time"), "ray": ("tasks",)}
KNOWS = {
    "local": ("tasks", "workers"),
    "pods": ("tasks", "workers"),
    "slurm": ("workers", "cpus_per_task", "mem_per_cpu_gb", "qos", "sbatch_args"),
    "ray": ("workers", "time", "cpus_per_task", "mem_per_cpu_gb", "address"),
}
# How often a document may be read before it is reported; four times is hardly worse than new text (arXiv 2305.16264).
MOST_TIMES = 40
# Their defaults in the schema.
IDLE = {"cpus_per_task": 1, "mem_per_cpu_gb": 2}


def shape(recipe: Recipe) -> Iterator[Problem]:
    model, tokenizer = recipe.model, recipe.tokenizer
    if model.hidden_size % model.attention_heads:
        message = f"`hidden_size` {model.hidden_size:,} cannot be divided by {model.attention_heads} heads."
        hint = "Choose a count that divides it."
        yield recipe.problem("model.attention_heads", message, hint)
    elif model.hidden_size // model.attention_heads % 2:
        message = f"Heads have an odd size, {model.hidden_size // model.attention_heads}, but rotary positions rotate pairs of numbers."
        hint = "Choose a count that makes their size even; 64 and 128 are usual, and fastest."
        yield recipe.problem("model.attention_heads", message, hint)
    if model.attention_heads % model.key_value_heads:
        message = (
            f"{model.attention_heads} attention heads cannot be divided by {model.key_value_heads} key and value heads."
        )
        hint = "Choose a count that divides `attention_heads`."
        yield recipe.problem("model.key_value_heads", message, hint)
    if not tokenizer.base and tokenizer.vocabulary > model.vocabulary:
        message = (
            f"The tokenizer has {tokenizer.vocabulary:,} entries, but the embedding has {model.vocabulary:,} rows."
        )
        hint = "Lower `tokenizer.vocabulary`, or raise `model.vocabulary`."
        yield recipe.problem("tokenizer.vocabulary", message, hint)


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
                message = (
                    f"`{setting}` is {part[setting]:g} here and {before[setting]:g} in the line before; both must rise."
                )
                hint = "Put the lines in rising order."
                yield recipe.problem(("pretrain", "curriculum", index, setting), message, hint)
    if parts[-1].until != 1:
        message = f"The last context length ends at {parts[-1].until:g} of the steps, so the rest would not be trained."
        hint = "Let the last one end at 1.0."
        yield recipe.problem(("pretrain", "curriculum", len(parts) - 1, "until"), message, hint)
    ends = [round(part.until * pretrain.steps) for part in parts]
    if any(end <= start for start, end in pairwise([0, *ends])):
        message = f"{pretrain.steps:,} steps are too few for {len(parts)} context lengths."
        yield recipe.problem("pretrain.steps", message, "Raise `steps`.")


def schedule(recipe: Recipe) -> Iterator[Problem]:
    pretrain = recipe.pretrain
    if pretrain.min_learning_rate > pretrain.learning_rate:
        message = (
            f"`min_learning_rate` {pretrain.min_learning_rate:g} is above `learning_rate` {pretrain.learning_rate:g}."
        )
        yield recipe.problem("pretrain.min_learning_rate", message, "Lower it.")
    if (warmup := warmup_steps(recipe)) >= pretrain.steps:
        message = f"The warmup of {warmup:,} steps leaves nothing of {pretrain.steps:,} steps."
        yield recipe.problem(
            ("pretrain", "warmup_ratio" if pretrain.warmup_steps is None else "warmup_steps"), message, "Lower it."
        )


def context(recipe: Recipe) -> Iterator[Problem]:
    most = recipe.model.context
    for index, part in enumerate(recipe.pretrain.curriculum):
        if part.sequence_len > most:
            message = f"Blocks of {part.sequence_len:,} tokens are longer than the model's context of {most:,}."
            hint = "Raise `model.context`, or shorten the blocks."
            yield recipe.problem(("pretrain", "curriculum", index, "sequence_len"), message, hint)
    for stage in AFTER:
        section = recipe.settings.get(stage)
        if section and section.sequence_len > most:
            message = f"The model reads at most {most:,} tokens, but `sequence_len` is {section.sequence_len:,}."
            hint = f"Write at most {most}."
            yield recipe.problem((stage, "sequence_len"), message, hint)


def documents(recipe: Recipe) -> Iterator[Problem]:
    data, pretrain = recipe.data, recipe.pretrain
    if data.min_words > data.max_words:
        message = f"No document has at least {data.min_words:,} and at most {data.max_words:,} words."
        hint = "Lower `min_words`, or raise `max_words`."
        yield recipe.problem("data.min_words", message, hint)
    # A document of 1,000 tokens is a long one on the web.
    tokens = sum(length.tokens(common.effective_batch_size(recipe)) for length in curriculum(recipe))
    if (limit := data.get("limit")) and limit * 1000 * MOST_TIMES < tokens:
        message = f"{pretrain.steps:,} steps read {tokens:,} tokens, but {limit:,} documents have about {limit * 1000:,}. Each would be read about {tokens // (limit * 1000):,} times."
        hint = "Raise `limit`, or lower `pretrain.steps`; up to 4 times is usual."
        yield recipe.note("data.limit", message, hint)


def one_vocabulary(recipe: Recipe) -> Iterator[Problem]:
    if recipe.tokenizer.base and recipe.document.lookup(("tokenizer", "vocabulary")) is not None:
        message = f"`vocabulary` has no effect with `base`: the tokenizer `{recipe.tokenizer.base}` has its own."
        hint = "Delete one of the two lines."
        yield recipe.note("tokenizer.vocabulary", message, hint)


def packed_words(recipe: Recipe) -> Iterator[Problem]:
    if recipe.data.packed and not recipe.tokenizer.base:
        message = "Packed files contain token numbers, but the recipe does not name their tokenizer."
        hint = "Name the tokenizer of these files under `tokenizer.base`."
        yield recipe.problem("data.packed", message, hint)


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.data.packed:
        return
    folder = recipe.folder / recipe.data.packed
    expected = {
        folder / f"{split}-{part.sequence_len}.npy": part.sequence_len
        for part in recipe.pretrain.curriculum
        for split in ("train", "validation")
    }
    missing = [file.name for file in expected if not file.is_file()]
    if missing:
        message = f"`{folder}` lacks {listed(missing)}."
        hint = "Check the path; it is relative to the recipe's folder. Every context length needs both files."
        yield recipe.problem("data.packed", message, hint)
    for file, length in expected.items():
        if file.is_file() and (wrong := _no_blocks(file, length)):
            yield recipe.problem("data.packed", f"`{file}` {wrong}", "Write it with numpy.save, a block a row.")


def _no_blocks(file: Path, length: int) -> str:
    """What is wrong with a file of blocks, by its header alone; empty if nothing is. Importing NumPy would take longer
    than the rest of a check."""
    try:
        with file.open("rb") as content:
            start = content.read(8)
            size = int.from_bytes(content.read(2 if start[6] == 1 else 4), "little")
            header = ast.literal_eval(content.read(size).decode("latin1"))
        kind, shape = header["descr"], tuple(header["shape"])
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, IndexError):
        return "is not a NumPy array."
    if not isinstance(kind, str) or kind[1:2] not in ("i", "u"):
        return f"contains numbers of the type `{kind}`, but tokens are whole numbers."
    if len(shape) != 2 or shape[1] != length or not shape[0]:
        return f"has the shape {shape}, but must have (blocks, {length})."
    return ""


def cleaning(recipe: Recipe) -> Iterator[Problem]:
    section = recipe.data.cleaning
    if not section:
        return
    name = section.executor
    if missing := [setting for setting in NEEDS[name] if section.get(setting) is None]:
        message = f"`executor: {name}` also needs {listed(missing)}."
        hint = "Write them below it, or `executor: local`."
        yield recipe.problem("data.cleaning.executor", message, hint)
    # What is written, without defaults; one that says what holds anyhow, as `recipe show` prints them, does no harm.
    for setting, value in (recipe.document.lookup(("data", "cleaning")) or {}).items():
        if setting not in ("executor", *NEEDS[name], *KNOWS[name]) and value != IDLE.get(setting):
            message = f"`{setting}` has no effect with `executor: {name}`."
            hint = "Delete the line, or name the executor that it is for."
            yield recipe.problem(("data", "cleaning", setting), message, hint, key=True)
    if name == "pods" and section.pods and section.tasks and section.tasks < section.pods:
        message = f"{section.tasks:,} tasks leave some of {section.pods:,} pods without work."
        hint = f"Write at least {section.pods}, or delete the line."
        yield recipe.problem("data.cleaning.tasks", message, hint)
    if name == "pods" and "openshift" not in recipe.settings:
        message = "Pods run on a cluster, but the recipe has no section `openshift`."
        hint = "Write `executor: local`, or add the section."
        yield recipe.problem("data.cleaning.executor", message, hint)


def stage_job_names(recipe: Recipe) -> Iterator[Problem]:
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    name = site.job_name or recipe.name
    longest = max((f"{name}-{stage}" for stage in ("data", "init", *trained_names(recipe))), key=len)
    most = longest_job_name(recipe.machines.nodes)
    if len(longest) > most:
        message = f"The job `{longest}` of a stage would have a name of {len(longest)} characters, but the cluster allows {most}."
        hint = f"Shorten `{name}`."
        yield recipe.problem(("openshift", "job_name") if site.job_name else ("name",), message, hint)


RULES = (
    documents,
    one_vocabulary,
    shape,
    fp8_gpu,
    order,
    schedule,
    context,
    packed_words,
    cleaning,
    stage_job_names,
    common.cadence_rule(),
)
FILE_RULES = (packed_files,)
