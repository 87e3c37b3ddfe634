"""The tasks of the stages `data` and `init` of a pipeline, for `runner.parts.pretrain.work`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from runner.data.data_sets import DataSet, DataSets
from runner.parts.pretrain.architecture import parameters
from runner.plan import Place
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import common
from runner.tools.problem import Stop, worded

END_OF_TEXT = "<|endoftext|>"  # the token that ends a document, and a continuation by the model
# The results of the data stage for other stages, by folder, and the settings that each depends on.
PARTS = {"tokenizer": ("text", "tokenizer"), "blocks": ("text", "tokenizer", "lengths")}


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer: of `base` at `revision`, or of `vocabulary` entries, trained on the text. most: the model's rows."""

    base: str | None
    revision: str
    vocabulary: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Data:
    """Clean text, tokenizer, and blocks for each context length, in the folder `out`. lengths: tokens of a block, and
    tokens that training reads of that length."""

    out: str
    text: Corpus
    tokenizer: Tokenizer
    lengths: tuple[tuple[int, int], ...]
    cleaning: Cleaning


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """A model whose first weights are drawn by `seed`. tokenizer: a folder, copied beside the model. architecture: a
    LLaMA config of transformers."""

    work: Literal["pipeline.init"] = "pipeline.init"
    out: str
    tokenizer: str
    seed: int
    architecture: Mapping[str, Any]
    parameters: int
    dtype: Literal["float32", "bfloat16"]


def everything(recipe: Recipe, place: Place, lengths: tuple[tuple[int, int], ...]) -> Data:
    """The task of the stage `data`. lengths: as in Data."""
    data, chosen = recipe.data, recipe.tokenizer
    local = chosen.base and (recipe.folder / chosen.base).is_dir()
    instead = {"sets": ()} if data.packed else {}
    return Data(
        out=place.data_dir,
        text=common.rows(Corpus, recipe, place, data, packed=common.data_file(recipe, place, data.packed), **instead),
        tokenizer=Tokenizer(
            base=common.data_file(recipe, place, chosen.base) if local else chosen.base,
            revision=chosen.revision,
            vocabulary=chosen.vocabulary,
            most=recipe.model.vocabulary,
        ),
        lengths=lengths,
        cleaning=Cleaning(cpus=common.machines(recipe, place).cpus, **data.cleaning.plain()),
    )


def first_weights(recipe: Recipe, place: Place) -> FirstWeights:
    model, stated = recipe.model, recipe.pretrain.precision or recipe.model.precision
    return FirstWeights(
        out=place.below("init").best_model_dir,
        tokenizer=f"{place.data_dir}/tokenizer",
        seed=model.seed,
        architecture={
            "model_type": model.architecture,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.attention_heads,
            "num_key_value_heads": model.key_value_heads,
            "vocab_size": model.vocabulary,
            "max_position_embeddings": model.context,
            "tie_word_embeddings": model.tied,
        },
        parameters=parameters(model),
        dtype="float32" if stated == "fp32" or model.master_weights != "bf16" else "bfloat16",
    )


@dataclass(frozen=True, kw_only=True)
class CorpusSet(DataSet):
    """Documents. column: of the text. limit: documents to read, None for all."""

    column: str
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class Corpus(DataSets):
    """Documents, and which of them are dropped. packed: a folder of ready-made blocks instead. language: as datatrove
    names it. min_words, max_words: of a document. validation_share: of the documents, 0 to 1, drawn by `seed`.
    max_lost_share: of the rows that may give no document."""

    sets: tuple[CorpusSet, ...]
    packed: str | None
    language: str
    min_words: int
    max_words: int
    drop_repetitive: bool
    drop_low_quality: bool
    deduplicate: Literal["near", "exact", "off"]
    validation_share: float
    max_lost_share: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Where text is cleaned, which does not change the documents. tasks: parts of the work; None for as many as keep
    all machines busy. pods: of an indexed Job, with `cpus` each. workers: tasks at once, in each pod, -1 for as many as
    fit. mem_per_cpu_gb: GB a core. time: of a task, `[days-]hours:minutes:seconds`. partition, qos, sbatch_args: of
    Slurm. address: of Ray."""

    executor: Literal["local", "pods", "slurm", "ray"] = "local"
    pods: int | None = None
    cpus: int = 1
    tasks: int | None = None
    workers: int = -1
    partition: str | None = None
    time: str | None = None
    cpus_per_task: int = 1
    mem_per_cpu_gb: int = 2
    qos: str | None = None
    sbatch_args: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None


def packed_blocks(file: Path, length: int) -> Any:
    """The blocks in a packed file, mapped into memory. Raises Stop if it has none of this length."""
    import numpy as np  # takes longer than the rest of a check

    wrong = ""
    try:
        blocks = np.lib.format.open_memmap(file, mode="r")
        if blocks.dtype.kind not in "iu":
            wrong = f"contains numbers of the type `{blocks.dtype.str}`, but tokens are whole numbers."
        elif blocks.ndim != 2 or blocks.shape[1] != length or not len(blocks):
            wrong = f"has the shape {blocks.shape}, but must have (blocks, {length})."
    except (OSError, ValueError):
        wrong = "is not a NumPy array."
    if wrong:
        raise Stop(*worded("pretrain.no-blocks", file=file, wrong=wrong))
    return blocks
