"""What a pipeline recipe says of files and of the work on them: packed blocks, the sample task, where cleaning runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

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
    wanted = {
        folder / f"{side}-{part.sequence_len}.npy": part.sequence_len
        for part in recipe.pretrain.curriculum
        for side in ("train", "validation")
    }
    missing = [file.name for file in wanted if not file.is_file()]
    if missing:
        yield recipe.document.problem(
            ("data", "packed"),
            f"`{folder}` lacks {listed(missing)}.",
            "Paths start from the recipe's own folder; every context length needs both files.",
        )
    for file, length in wanted.items():
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
