"""What the lines of a pipeline recipe must have in common: architecture, curriculum, gates, packed files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from runner import catalog
from runner.catalog import Model
from runner.names import JOB_NAME, listed, nearest
from runner.problem import Problem
from runner.recipe import gates
from runner.recipe.recipe import Recipe, Settings

TRAINED = ("pretrain", "sft", "dpo", "lora")
# Blocks that an evaluation could look at; more validation text would only cost time at every evaluation.
MOST_VALIDATION_BLOCKS = 1024


def model_facts(settings: Settings) -> Model:
    """The model that a recipe describes. Raises BrokenSetting where a size is refused by the schema."""
    shape = settings.model
    return Model(
        id=settings.get("name", "model"),
        model_type=shape.architecture,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=shape.hidden_size // shape.attention_heads,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        tied=shape.tied,
        layer_class="LlamaDecoderLayer",
        linear=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        parameters=parameters(shape),
        source="the recipe",
    )


def parameters(shape: Settings) -> int:
    """All parameters of a LLaMA model without biases, a count: embedding, LM head where it is not tied, and a layer's
    attention (query, key, value, output), feed-forward (gate, up, down) and two norms, and the last norm."""
    hidden, head = shape.hidden_size, shape.hidden_size // shape.attention_heads
    attention = 2 * hidden * hidden + 2 * hidden * head * shape.key_value_heads
    layer = attention + 3 * hidden * shape.intermediate_size + 2 * hidden
    return (1 if shape.tied else 2) * shape.vocabulary * hidden + shape.layers * layer + hidden


def _is_pipeline(recipe: Recipe) -> bool:
    return "pretrain" in recipe.settings


def _at(recipe: Recipe, path: tuple, message: str, hint: str, key: bool = False) -> Problem:
    return recipe.document.problem(path, message, hint, key=key)


def shape(recipe: Recipe) -> Iterator[Problem]:
    """Heads that divide each other, and a tokenizer that fits the embedding."""
    if not _is_pipeline(recipe):
        return
    model, tokenizer = recipe.model, recipe.tokenizer
    if model.hidden_size % model.attention_heads:
        yield _at(
            recipe,
            ("model", "attention_heads"),
            f"`hidden_size` {model.hidden_size:,} cannot be shared by {model.attention_heads} heads.",
            "Choose a count that divides it.",
        )
    if model.attention_heads % model.key_value_heads:
        yield _at(
            recipe,
            ("model", "key_value_heads"),
            f"{model.attention_heads} attention heads cannot share {model.key_value_heads} key and value heads.",
            "Choose a count that divides `attention_heads`.",
        )
    if not tokenizer.base and tokenizer.vocabulary > model.vocabulary:
        yield _at(
            recipe,
            ("tokenizer", "vocabulary"),
            f"The tokenizer has {tokenizer.vocabulary:,} entries, and the embedding has rows for {model.vocabulary:,}.",
            "Lower `tokenizer.vocabulary`, or raise `model.vocabulary`.",
        )


def fp8_gpu(recipe: Recipe) -> Iterator[Problem]:
    """FP8 is asked for only where the GPU has it."""
    gpu = catalog.gpu(recipe.machines.gpu)
    if _is_pipeline(recipe) and recipe.model.precision == "fp8" and gpu and not gpu.fp8:
        yield _at(
            recipe,
            ("model", "precision"),
            f"{gpu.title} cannot do `fp8`; it takes compute capability 9.0, and this GPU has {gpu.compute_capability}.",
            "Write `precision: bf16`, or `auto`.",
        )


def curriculum(recipe: Recipe) -> Iterator[Problem]:
    """Lengths rise, shares rise, the last one is the whole, and every length gets a step."""
    if not _is_pipeline(recipe):
        return
    pretrain, parts = recipe.pretrain, recipe.pretrain.curriculum
    for index, (before, part) in enumerate(pairwise(parts), 1):
        for setting in ("sequence_len", "until"):
            if part[setting] <= before[setting]:
                yield _at(
                    recipe,
                    ("pretrain", "curriculum", index, setting),
                    f"`{setting}` is {part[setting]:g} here and {before[setting]:g} in the line before; both must rise.",
                    "Put the lines in rising order.",
                )
    if parts[-1].until != 1:
        yield _at(
            recipe,
            ("pretrain", "curriculum", len(parts) - 1, "until"),
            f"The last context length ends at {parts[-1].until:g} of the steps, so the rest would not be trained.",
            "Let the last one end at 1.0.",
        )
    for index, part in enumerate(parts):
        if part.sequence_len > recipe.model.context:
            yield _at(
                recipe,
                ("pretrain", "curriculum", index, "sequence_len"),
                f"Blocks of {part.sequence_len:,} tokens are longer than the model's context of {recipe.model.context:,}.",
                "Raise `model.context`, or shorten the blocks.",
            )
    ends = [round(part.until * pretrain.steps) for part in parts]
    if any(end <= start for start, end in pairwise([0, *ends])):
        yield _at(
            recipe,
            ("pretrain", "steps"),
            f"{pretrain.steps:,} steps are too few for {len(parts)} context lengths.",
            "Raise `steps`.",
        )
    if pretrain.min_learning_rate > pretrain.learning_rate:
        yield _at(
            recipe,
            ("pretrain", "min_learning_rate"),
            f"`min_learning_rate` {pretrain.min_learning_rate:g} is above `learning_rate` {pretrain.learning_rate:g}.",
            "Lower it.",
        )
    if pretrain.warmup_steps >= pretrain.steps:
        yield _at(
            recipe,
            ("pretrain", "warmup_steps"),
            f"The warmup of {pretrain.warmup_steps:,} steps leaves nothing of {pretrain.steps:,} steps.",
            "Lower it.",
        )


def lengths(recipe: Recipe) -> Iterator[Problem]:
    """No later stage reads more than the model can."""
    if not _is_pipeline(recipe):
        return
    for stage in ("sft", "dpo", "lora"):
        section = recipe.settings.get(stage)
        if section and section.sequence_len > recipe.model.context:
            yield _at(
                recipe,
                (stage, "sequence_len"),
                f"The model reads at most {recipe.model.context:,} tokens, and `sequence_len` is {section.sequence_len:,}.",
                f"Write at most {recipe.model.context}.",
            )


def gate_metrics(recipe: Recipe) -> Iterator[Problem]:
    """Every gate names a metric that its stage can produce."""
    if not _is_pipeline(recipe):
        return
    tasks = recipe.evaluation.tasks or ()
    before: list[str] = []
    for stage in TRAINED:
        section = recipe.settings.get(stage)
        if not section:
            continue
        known = gates.producible(stage, tasks, before)
        for index, text in enumerate(section.get("gates") or ()):
            if not isinstance(text, str):
                continue  # refused by the schema already
            try:
                metric = gates.parse(text).metric
            except ValueError:
                yield _at(
                    recipe,
                    (stage, "gates", index),
                    f"`{text}` compares with a number beyond all bounds, so this gate would say nothing.",
                    "Write a finite number.",
                )
                continue
            if not gates.is_producible(metric, known):
                near = nearest(metric, known)
                yield _at(
                    recipe,
                    (stage, "gates", index),
                    f"`{stage}` cannot produce the metric `{metric}`, so this gate would never open.",
                    (f"Did you mean `{near}`? " if near else "") + f"It can produce {listed(known)}.",
                )
        before = known


def packed_files(recipe: Recipe) -> Iterator[Problem]:
    """Packed files are there for every length, and the tokenizer that they were made with is named."""
    if not _is_pipeline(recipe) or not recipe.data.packed:
        return
    if not recipe.tokenizer.base:
        yield _at(
            recipe,
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
        yield _at(
            recipe,
            ("data", "packed"),
            f"`{folder}` lacks {listed(missing)}.",
            "Paths start from the recipe's own folder; every context length needs both files.",
        )


def sample_task(recipe: Recipe) -> Iterator[Problem]:
    """The stand-in for lm-eval's tasks is there."""
    if not _is_pipeline(recipe) or not recipe.evaluation.sample_task:
        return
    if not (recipe.folder / recipe.evaluation.sample_task).is_file():
        yield _at(
            recipe,
            ("evaluation", "sample_task"),
            f"There is no file `{recipe.folder / recipe.evaluation.sample_task}`.",
            "Paths start from the recipe's own folder.",
        )


def stage_job_names(recipe: Recipe) -> Iterator[Problem]:
    """Each stage is a job called after recipe and stage."""
    if not _is_pipeline(recipe):
        return
    name = recipe.openshift.job_name or recipe.name
    longest = max((f"{name}-{stage}" for stage in stage_names(recipe)), key=len)
    if not JOB_NAME.match(longest):
        yield _at(
            recipe,
            ("openshift", "job_name") if recipe.openshift.job_name else ("name",),
            f"The job `{longest}` of a stage would have a name of {len(longest)} characters, and the cluster allows 53.",
            f"Shorten `{name}`.",
        )


def stage_names(recipe: Recipe) -> list[str]:
    """The stages of the recipe, in their order."""
    lengths = [f"pretrain-{part.sequence_len}" for part in recipe.pretrain.curriculum]
    return ["data", "init", *lengths, "sft", "dpo", *(["lora"] if recipe.settings.get("lora") else [])]


RULES = (
    shape,
    fp8_gpu,
    curriculum,
    lengths,
    gate_metrics,
    packed_files,
    sample_task,
    stage_job_names,
)
