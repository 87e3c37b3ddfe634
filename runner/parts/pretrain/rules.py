"""What the lines of a pipeline recipe must have in common: its architecture, its curriculum, its stages and their gates, and
the files and the cleaning that it names."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from runner import catalog
from runner.parts.pretrain.architecture import (
    AFTER,
    KINDS,
    TRAINED,
    curriculum,
    stage_names,
    warmup_steps,
)
from runner.parts.pretrain.training import FP8_STAGES
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import cadence, common, gates
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
# How often a document may be read before it is said; four times is hardly worse than new text (arXiv 2305.16264).
MOST_TIMES = 40
# Their defaults in the schema.
IDLE = {"cpus_per_task": 1, "mem_per_cpu_gb": 2}


def shape(recipe: Recipe) -> Iterator[Problem]:
    """Heads that divide each other, and a tokenizer that fits the embedding."""
    model, tokenizer = recipe.model, recipe.tokenizer
    if model.hidden_size % model.attention_heads:
        yield recipe.document.problem(
            ("model", "attention_heads"),
            f"`hidden_size` {model.hidden_size:,} cannot be shared by {model.attention_heads} heads.",
            "Choose a count that divides it.",
        )
    elif model.hidden_size // model.attention_heads % 2:
        yield recipe.document.problem(
            ("model", "attention_heads"),
            f"Heads of {model.hidden_size // model.attention_heads} numbers are odd, and rotary positions turn them in pairs.",
            "Choose a count that makes their size even; 64 and 128 are usual, and quickest.",
        )
    if model.attention_heads % model.key_value_heads:
        yield recipe.document.problem(
            ("model", "key_value_heads"),
            f"{model.attention_heads} attention heads cannot share {model.key_value_heads} key and value heads.",
            "Choose a count that divides `attention_heads`.",
        )
    if not tokenizer.base and tokenizer.vocabulary > model.vocabulary:
        yield recipe.document.problem(
            ("tokenizer", "vocabulary"),
            f"The tokenizer has {tokenizer.vocabulary:,} entries, and the embedding has rows for {model.vocabulary:,}.",
            "Lower `tokenizer.vocabulary`, or raise `model.vocabulary`.",
        )


def fp8_gpu(recipe: Recipe) -> Iterator[Problem]:
    """FP8 is asked for only where the GPU has it, for all stages or for one."""
    gpu = catalog.gpu(recipe.machines.gpu)
    for home in ("model", *FP8_STAGES):
        if recipe.settings[home].get("precision") == "fp8" and gpu and not gpu.fp8:
            yield recipe.document.problem(
                (home, "precision"),
                f"{gpu.title} cannot do `fp8`; it takes compute capability 9.0, and this GPU has {gpu.compute_capability}.",
                f"Write `precision: {gpu.precision(fp16=False)}`, or `auto`.",
            )


def order(recipe: Recipe) -> Iterator[Problem]:
    """Lengths rise, shares rise, the last one is the whole, and every length gets a step."""
    pretrain, parts = recipe.pretrain, recipe.pretrain.curriculum
    for index, (before, part) in enumerate(pairwise(parts), 1):
        for setting in ("sequence_len", "until"):
            if part[setting] <= before[setting]:
                yield recipe.document.problem(
                    ("pretrain", "curriculum", index, setting),
                    f"`{setting}` is {part[setting]:g} here and {before[setting]:g} in the line before; both must rise.",
                    "Put the lines in rising order.",
                )
    if parts[-1].until != 1:
        yield recipe.document.problem(
            ("pretrain", "curriculum", len(parts) - 1, "until"),
            f"The last context length ends at {parts[-1].until:g} of the steps, so the rest would not be trained.",
            "Let the last one end at 1.0.",
        )
    ends = [round(part.until * pretrain.steps) for part in parts]
    if any(end <= start for start, end in pairwise([0, *ends])):
        yield recipe.document.problem(
            ("pretrain", "steps"),
            f"{pretrain.steps:,} steps are too few for {len(parts)} context lengths.",
            "Raise `steps`.",
        )


def schedule(recipe: Recipe) -> Iterator[Problem]:
    """The learning rate rises, and falls to a lower end."""
    pretrain = recipe.pretrain
    if pretrain.min_learning_rate > pretrain.learning_rate:
        yield recipe.document.problem(
            ("pretrain", "min_learning_rate"),
            f"`min_learning_rate` {pretrain.min_learning_rate:g} is above `learning_rate` {pretrain.learning_rate:g}.",
            "Lower it.",
        )
    if (warmup := warmup_steps(recipe)) >= pretrain.steps:
        yield recipe.document.problem(
            ("pretrain", "warmup_ratio" if pretrain.warmup_steps is None else "warmup_steps"),
            f"The warmup of {warmup:,} steps leaves nothing of {pretrain.steps:,} steps.",
            "Lower it.",
        )


def context(recipe: Recipe) -> Iterator[Problem]:
    """No stage reads more at once than the model can."""
    most = recipe.model.context
    for index, part in enumerate(recipe.pretrain.curriculum):
        if part.sequence_len > most:
            yield recipe.document.problem(
                ("pretrain", "curriculum", index, "sequence_len"),
                f"Blocks of {part.sequence_len:,} tokens are longer than the model's context of {most:,}.",
                "Raise `model.context`, or shorten the blocks.",
            )
    for stage in AFTER:
        section = recipe.settings.get(stage)
        if section and section.sequence_len > most:
            yield recipe.document.problem(
                (stage, "sequence_len"),
                f"The model reads at most {most:,} tokens, and `sequence_len` is {section.sequence_len:,}.",
                f"Write at most {most}.",
            )


def gate_metrics(recipe: Recipe) -> Iterator[Problem]:
    """Every gate names a metric that its stage can produce."""
    tasks, before = recipe.evaluation.tasks or (), list[str]()
    for stage in TRAINED:
        if section := recipe.settings.get(stage):
            known = gates.producible(KINDS[stage], tasks, before, blocks=True)
            yield from gates.problems(recipe, (stage, "gates"), section.get("gates") or (), known)
            before = known


def documents(recipe: Recipe) -> Iterator[Problem]:
    """Some documents are left, and enough of them for the steps."""
    data, pretrain = recipe.data, recipe.pretrain
    if data.min_words > data.max_words:
        yield recipe.document.problem(
            ("data", "min_words"),
            f"No document has at least {data.min_words:,} and at most {data.max_words:,} words.",
            "Lower `min_words`, or raise `max_words`.",
        )
    # A document of 1,000 tokens is a long one on the web.
    tokens = sum(length.tokens(common.effective_batch_size(recipe, pretrain)) for length in curriculum(recipe))
    if (limit := data.get("limit")) and limit * 1000 * MOST_TIMES < tokens:
        yield recipe.document.problem(
            ("data", "limit"),
            f"{pretrain.steps:,} steps read {tokens:,} tokens, and {limit:,} documents have about {limit * 1000:,}: each would be "
            f"read some {tokens // (limit * 1000):,} times.",
            "Raise `limit`, or lower `pretrain.steps`; up to 4 times is usual.",
            severity="note",
        )


def one_vocabulary(recipe: Recipe) -> Iterator[Problem]:
    if recipe.tokenizer.base and recipe.document.lookup(("tokenizer", "vocabulary")) is not None:
        yield recipe.document.problem(
            ("tokenizer", "vocabulary"),
            f"`vocabulary` means nothing beside `base`: the tokenizer `{recipe.tokenizer.base}` has its own.",
            "Delete one of the two lines.",
            severity="note",
        )


def packed_words(recipe: Recipe) -> Iterator[Problem]:
    """The tokenizer that packed files were made with is named."""
    if recipe.data.packed and not recipe.tokenizer.base:
        yield recipe.document.problem(
            ("data", "packed"),
            "Packed files hold token numbers, and the recipe does not say whose.",
            "Name the tokenizer they were made with under `tokenizer.base`.",
        )


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    """Packed files are there for every length."""
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
        yield recipe.document.problem(
            ("data", "packed"),
            f"`{folder}` lacks {listed(missing)}.",
            "Paths start from the recipe's own folder; every context length needs both files.",
        )
    for file, length in expected.items():
        if file.is_file() and (wrong := _no_blocks(file, length)):
            yield recipe.document.problem(
                ("data", "packed"), f"`{file}` {wrong}", "Write it with numpy.save, a block a row."
            )


def _no_blocks(file: Path, length: int) -> str:
    """What keeps a file from being blocks of this length, by its header alone; empty where nothing does. NumPy itself
    would take longer to load than everything else that a check does."""
    try:
        with file.open("rb") as content:
            start = content.read(8)
            size = int.from_bytes(content.read(2 if start[6] == 1 else 4), "little")
            header = ast.literal_eval(content.read(size).decode("latin1"))
        kind, shape = header["descr"], tuple(header["shape"])
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, IndexError):
        return "is no array of NumPy."
    if not isinstance(kind, str) or kind[1:2] not in ("i", "u"):
        return f"holds `{kind}`, and token numbers are whole numbers."
    if len(shape) != 2 or shape[1] != length or not shape[0]:
        return f"is an array {shape}, and must be (blocks, {length})."
    return ""


def cleaning(recipe: Recipe) -> Iterator[Problem]:
    """The executor that cleans has what it needs, and nothing that it would pass over in silence."""
    section = recipe.data.cleaning
    if not section:
        return
    name = section.executor
    if missing := [setting for setting in NEEDS[name] if section.get(setting) is None]:
        yield recipe.document.problem(
            ("data", "cleaning", "executor"),
            f"`executor: {name}` also needs {listed(missing)}.",
            "Write them below it, or `executor: local`.",
        )
    # What is written, without defaults; one that says what holds anyhow, as `recipe show` prints them, misleads nobody.
    for setting, value in (recipe.document.lookup(("data", "cleaning")) or {}).items():
        if setting not in ("executor", *NEEDS[name], *KNOWS[name]) and value != IDLE.get(setting):
            yield recipe.document.problem(
                ("data", "cleaning", setting),
                f"`{setting}` means nothing to `executor: {name}`.",
                "Delete the line, or name the executor that it is for.",
                key=True,
            )
    if name == "pods" and section.pods and section.tasks and section.tasks < section.pods:
        yield recipe.document.problem(
            ("data", "cleaning", "tasks"),
            f"{section.tasks:,} tasks leave some of {section.pods:,} pods without work.",
            f"Write at least {section.pods}, or delete the line.",
        )
    if name == "pods" and "openshift" not in recipe.settings:
        yield recipe.document.problem(
            ("data", "cleaning", "executor"),
            "Pods are those of a cluster, and the recipe has no section `openshift`.",
            "Write `executor: local`, or add the section.",
        )


def stage_job_names(recipe: Recipe) -> Iterator[Problem]:
    """Each stage is a job called after recipe and stage."""
    site: Openshift | None = recipe.settings.get("openshift")
    if site is None:
        return
    name = site.job_name or recipe.name
    longest = max((f"{name}-{stage}" for stage in stage_names(recipe)), key=len)
    most = longest_job_name(recipe.machines.nodes)
    if len(longest) > most:
        yield recipe.document.problem(
            ("openshift", "job_name") if site.job_name else ("name",),
            f"The job `{longest}` of a stage would have a name of {len(longest)} characters, and the cluster allows {most}.",
            f"Shorten `{name}`.",
        )


RULES = (
    documents,
    one_vocabulary,
    shape,
    fp8_gpu,
    order,
    schedule,
    context,
    gate_metrics,
    packed_words,
    cleaning,
    stage_job_names,
    cadence.rule(),
)
FILE_RULES = (packed_files,)
