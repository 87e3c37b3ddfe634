"""What a pipeline recipe says of files and of the work on them: packed blocks, the sample task, where cleaning runs."""

from __future__ import annotations

from collections.abc import Iterator

from runner.names import listed
from runner.problem import Problem
from runner.recipe.recipe import Recipe

# What each executor of datatrove needs, and what it knows besides.
NEEDS = {"local": (), "slurm": ("tasks", "partition", "time"), "ray": ("tasks",)}
KNOWS = {
    "local": ("tasks", "workers"),
    "slurm": ("workers", "cpus_per_task", "mem_per_cpu_gb", "qos", "sbatch_args"),
    "ray": ("workers", "time", "cpus_per_task", "mem_per_cpu_gb", "address"),
}


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    """Packed files are there for every length, and the tokenizer that they were made with is named."""
    if not recipe.data.packed:
        return
    if not recipe.tokenizer.base:
        yield recipe.document.problem(
            ("data", "packed"),
            "Packed files hold token numbers, and the recipe does not say whose.",
            "Name the tokenizer they were made with under `tokenizer.base`.",
        )
    folder = recipe.folder / recipe.data.packed
    wanted = [
        f"{side}-{part.sequence_len}.npy" for part in recipe.pretrain.curriculum for side in ("train", "validation")
    ]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if missing:
        yield recipe.document.problem(
            ("data", "packed"),
            f"`{folder}` lacks {listed(missing)}.",
            "Paths start from the recipe's own folder; every context length needs both files.",
        )


def sample_task(recipe: Recipe) -> Iterator[Problem]:
    """The stand-in for lm-eval's tasks is there."""
    if not recipe.evaluation.sample_task:
        return
    if not (recipe.folder / recipe.evaluation.sample_task).is_file():
        yield recipe.document.problem(
            ("evaluation", "sample_task"),
            f"There is no file `{recipe.folder / recipe.evaluation.sample_task}`.",
            "Paths start from the recipe's own folder.",
        )


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
    for setting in recipe.document.lookup(("data", "cleaning")) or ():  # what is written, without defaults
        if setting not in ("executor", *NEEDS[name], *KNOWS[name]):
            yield recipe.document.problem(
                ("data", "cleaning", setting),
                f"`{setting}` means nothing to `executor: {name}`.",
                "Delete the line, or name the executor that it is for.",
                key=True,
            )


RULES = (packed_files, sample_task, cleaning)
