"""Rules about packing: that the attention can keep joined and packed rows apart, and what a packed step reads."""

from __future__ import annotations

from collections.abc import Iterator

from runner import catalog
from runner.recipe.recipe import Recipe, Settings
from runner.scenarios.shared.axolotl import FLASH
from runner.tools.problem import Problem


def _sections(recipe: Recipe, way: str) -> Iterator[tuple[str, Settings]]:
    """The sections whose rows are packed in a way, each with its name."""
    for name, section in recipe.sections.items():
        if section.get("packing") == way:
            yield name, section


def _precision(recipe: Recipe, section: Settings) -> str:
    """A stage's own precision, or that of all."""
    return str(section.get("precision") or recipe.model.precision)


def _flash_here(recipe: Recipe, section: Settings) -> bool:
    """Whether the recipe's GPU and the section's precision leave room for FlashAttention."""
    gpu = catalog.gpu(recipe.machines.gpu)
    return _precision(recipe, section) != "fp32" and (gpu is None or gpu.bf16)


def joined_rows(recipe: Recipe) -> Iterator[Problem]:
    for name, section in _sections(recipe, "flatten"):
        if recipe.model.attention != FLASH:
            flash = f"`attention: {FLASH}` under `model`, or " if _flash_here(recipe, section) else ""
            yield recipe.document.problem(
                (name, "packing"),
                f"Joined rows are kept apart by FlashAttention, and `attention` is {recipe.model.attention}.",
                f"Write {flash}`packing: none`.",
            )
        elif section["micro_batch_size"] == 1:
            yield recipe.document.problem(
                (name, "packing"),
                "A micro batch has one row here, so that there is nothing to join, and nothing to pad either.",
                "Raise `micro_batch_size`, or write `packing: pack` to fill each row with several.",
                severity="note",
            )


def packed_rows(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl keeps packed rows apart with FlashAttention or, under sdpa, with torch's own; in fp32 and with eager, by a mask."""
    for name, section in _sections(recipe, "pack"):
        gpu, model, precision = catalog.gpu(recipe.machines.gpu), recipe.model, _precision(recipe, section)
        masked = model.attention == "eager" or precision == "fp32"
        if gpu and not gpu.bf16 and precision == "fp16" and not masked:
            yield recipe.document.problem(
                (name, "packing"),
                f"Packed rows are kept apart by FlashAttention, which takes compute capability 8.0, and {gpu.title} has "
                f"{gpu.compute_capability}.",
                "Write `packing: none`.",
            )
        elif masked:
            why = "`attention: eager`" if model.attention == "eager" else "fp32"
            yield recipe.document.problem(
                (name, "packing"),
                f"With {why} every packed row computes the attention of all its rows to each other and throws most of it away.",
                "Write `packing: none`, unless rows are far shorter than `sequence_len`.",
                severity="note",
            )


def packed_batch(recipe: Recipe) -> Iterator[Problem]:
    """A stated effective batch counts rows, and how many rows packed ones hold, the data decide."""
    for name, section in _sections(recipe, "pack"):
        stated = section.get("effective_batch_size")
        if stated is not None:
            length = recipe.model.sequence_len
            yield recipe.document.problem(
                (name, "effective_batch_size"),
                f"With `packing: pack` a step reads {stated} packed rows, {stated * length:,} tokens, and not {stated} rows.",
                "`recipe plan` says how many rows that is about. Lower `micro_batch_size` or `gradient_accumulation_steps` for "
                "steps of as many rows as before.",
                severity="note",
            )


RULES = (joined_rows, packed_rows, packed_batch)
