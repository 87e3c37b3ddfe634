"""What a pretraining's recipe describes: its model and its context lengths, and the tasks of the
stages `data` and `init` for `runner.parts.pretrain.work`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner import catalog
from runner.data.data_sets import DataSet, DataSets
from runner.plan import Place
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import axolotl, common
from runner.tools import packaged
from runner.tools.problem import Stop
from runner.tools.settings import Settings

if TYPE_CHECKING:
    from runner.recipe import sections

LINES = Path(__file__).with_name("report.jinja")  # the macros of the lines about text and blocks
OF_MODEL = packaged.toml(__file__, "model.toml")
END_OF_TEXT = "<|endoftext|>"  # the token that ends a document, and a continuation by the model


def model_facts(settings: Settings) -> catalog.Model:
    """The model that a recipe describes. Raises BrokenSetting if a size is refused by the
    schema."""
    shape: sections.Model = settings["model"]
    return catalog.Model(
        id=settings.get("name", "model"),
        **sizes(shape),
        head_dim=shape.hidden_size // shape.attention_heads,
        tied=shape.tied,
        parameters=parameters(shape),
        linear=tuple(OF_MODEL["linear"]),
        **OF_MODEL["facts"],
    )


def sizes(shape: sections.Model) -> dict[str, Any]:
    """The architecture by transformers' names, without the tying of embeddings."""
    return {theirs: shape[ours] for theirs, ours in OF_MODEL["sizes"].items()}


def parameters(shape: sections.Model) -> int:
    """The parameters of a LLaMA model without biases: embedding, LM head if it is not tied, a
    layer's attention (query, key, value, output), feed-forward (gate, up, down) and two norms, and
    the last norm."""
    hidden = shape.hidden_size
    head = shape.hidden_size // shape.attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * head * shape.key_value_heads
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden
    return (1 if shape.tied else 2) * shape.vocabulary * hidden + shape.layers * layer + hidden


def warmup_steps(recipe: Recipe) -> int:
    train = recipe.train
    computed = round((train.warmup_ratio or 0) * train.steps)
    if train.warmup_steps is None:
        return computed
    return train.warmup_steps


@dataclass(frozen=True)
class Length:
    """One context length of pretraining: blocks of `sequence_len` tokens, from after `first_step`
    to `last_step`."""

    name: str
    sequence_len: int
    first_step: int
    last_step: int

    def tokens(self, batch: int) -> int:
        """Tokens that it trains on, for `batch` blocks a step."""
        return (self.last_step - self.first_step) * batch * self.sequence_len


def curriculum(recipe: Recipe) -> list[Length]:
    tokens = [part.sequence_len for part in recipe.train.curriculum]
    ends = [round(part.until * recipe.train.steps) for part in recipe.train.curriculum]
    steps = pairwise([0, *ends])
    lengths = []
    for length, part in zip(tokens, steps, strict=True):
        lengths.append(Length(f"pretrain-{length}", length, *part))
    return lengths


def precision_of(recipe: Recipe) -> str:
    """fp8, bf16 or fp32: the precision of products, by the recipe's line and the GPU."""
    stated = recipe.model.precision
    if stated != "auto":
        return str(stated)
    gpu = catalog.gpu(recipe.machines.gpu)
    if gpu is None:
        return "bf16"
    if gpu.fp8:
        return "fp8"
    return gpu.precision(fp16=False)


def compile_mode(recipe: Recipe) -> str | None:
    return axolotl.compile_mode(recipe, precision_of(recipe) == "fp8")


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer: of `base` at `revision`, or of `vocabulary` entries, trained on the text. most:
    the model's rows."""

    base: str | None
    revision: str
    vocabulary: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Data:
    """Clean text, tokenizer, and blocks for each context length, in the folder `out`. lengths:
    tokens of a block, and tokens that training reads of that length."""

    out: str
    text: Corpus
    tokenizer: Tokenizer
    lengths: tuple[tuple[int, int], ...]
    cleaning: Cleaning


@dataclass(frozen=True, kw_only=True)
class FirstWeights:
    """A model whose first weights are drawn by `seed`. tokenizer: a folder, copied beside the
    model. architecture: a LLaMA config of transformers."""

    work: Literal["pretrain.init"] = "pretrain.init"
    out: str
    tokenizer: str
    seed: int
    architecture: Mapping[str, Any]
    parameters: int
    dtype: Literal["float32", "bfloat16"]


def everything(recipe: Recipe, place: Place, lengths: tuple[tuple[int, int], ...]) -> Data:
    """The task of the stage `data`. lengths: as in Data."""
    data = recipe.data
    chosen = recipe.tokenizer
    local = chosen.base and (recipe.folder / chosen.base).is_dir()
    if local:
        base = common.data_file(recipe, place, chosen.base)
    else:
        base = chosen.base
    instead = {"sets": ()} if data.packed else {}
    return Data(
        out=place.data_dir,
        text=common.rows(
            Corpus,
            recipe,
            place,
            data,
            packed=common.data_file(recipe, place, data.packed),
            **instead,
        ),
        tokenizer=common.made(Tokenizer, chosen, base=base, most=recipe.model.vocabulary),
        lengths=lengths,
        cleaning=Cleaning(cpus=common.machines(recipe, place).cpus, **data.cleaning.plain()),
    )


@dataclass(frozen=True, kw_only=True)
class CorpusSet(DataSet):
    """Documents. column: of the text. limit: documents to read, None for all."""

    column: str
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class Corpus(DataSets):
    """Documents, and which of them are dropped. packed: a folder of ready-made blocks instead.
    language: as datatrove names it. min_words, max_words: of a document. validation_share: of the
    documents, 0 to 1, drawn by `seed`. max_lost_share: of the rows that may give no document."""

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
    """Where text is cleaned, which does not change the documents. tasks: parts of the work; None
    for as many as keep all machines busy. pods: of an indexed Job, with `cpus` each. workers: tasks
    at once, in each pod, -1 for as many as fit. mem_per_cpu_gb: GB a core. time: of a task,
    `[days-]hours:minutes:seconds`. partition, qos, sbatch_args: of Slurm. address: of Ray."""

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
    """The blocks in a packed file, mapped into memory. Raises Stop if it has none of this
    length."""
    import numpy as np  # takes longer than the rest of a check

    wrong = ""
    try:
        blocks = np.lib.format.open_memmap(file, mode="r")
        if blocks.dtype.kind not in "iu":
            wrong = (
                f"contains numbers of the type `{blocks.dtype.str}`, but tokens are whole numbers."
            )
        elif blocks.ndim != 2 or blocks.shape[1] != length or not len(blocks):
            wrong = f"has the shape {blocks.shape}, but must have (blocks, {length})."
    except (OSError, ValueError):
        wrong = "is not a NumPy array."
    if wrong:
        raise Stop(f"`{file}` {wrong}", "Write it with numpy.save, a block a row.")
    return blocks
