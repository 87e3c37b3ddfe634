"""Rehearsal of a pipeline: every stage and every gate on any machine, with a tiny twin of the architecture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.parts.pretrain.architecture import AFTER, TRAINED
from runner.parts.pretrain.training import compile_mode
from runner.plan import Plan
from runner.recipe import overrides
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe, sets_of
from runner.scenarios.shared import rehearsal, twin
from runner.scenarios.shared.rehearsal import BY
from runner.tools.problem import Problem, Stop
from runner.trainer.summary import Summary

STEPS = 120
ROWS = "few rows and a small model"
# Half of what a twin has that is warmed up: this model has only its own few steps to meet each word.
VOCABULARY = 1024


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    """Everything that a rehearsal puts in its place. data: a file with documents to use instead of the recipe's sample.

    Raises Stop where there is nothing on this machine to rehearse with.
    """
    return [*_data(recipe, data), *_small(recipe), *rehearsal.gates(recipe)]


# Nothing more follows from the rows, and the stage `init` makes the tiny model.
after_data = None


def stands_in(recipe: Recipe, folder: Path) -> dict[str, Any]:
    return {}


def _data(recipe: Recipe, data: str | None) -> Iterator[Override]:
    """Each section's sample in place of its data, so that nothing is downloaded."""
    if data and not Path(data).is_file():
        raise Stop(Problem(data, 0, 0, "There is no such file.", "Name a data file behind `--data`."))
    for home, section in recipe.data_sections:
        if data and home == ("data",):
            yield from overrides.from_data_option(data)
        else:
            for one in sets_of(home, section):
                yield from rehearsal.sample(recipe, *one)
    yield Override("data.cleaning", None, None, BY, "this machine")
    yield Override("data.limit", None, None, BY, "the sample is small")
    yield Override("data.packed", None, None, BY, "the sample is packed with the twin's own tokenizer")
    yield Override("data.validation_share", None, 0.1, BY, "the sample is small")


def _small(recipe: Recipe) -> Iterator[Override]:
    """A tiny model, few steps, and nothing that needs a GPU."""
    shape = twin.geometry(recipe.facts, 2, VOCABULARY)
    tiny, gpu = "a tiny twin of the same architecture, random weights", "needs a GPU"
    names = {
        "hidden_size": "hidden_size",
        "intermediate_size": "intermediate_size",
        "layers": "num_hidden_layers",
        "attention_heads": "num_attention_heads",
        "key_value_heads": "num_key_value_heads",
    }
    for setting, name in names.items():
        yield Override(f"model.{setting}", None, shape[name], BY, tiny)
    yield Override("model.vocabulary", None, VOCABULARY + 64, BY, "more rows than words, as in the recipe")
    yield Override("tokenizer.base", None, None, BY, "a tokenizer trained on the sample")
    yield Override("tokenizer.vocabulary", None, VOCABULARY, BY, "a tokenizer trained on the sample")
    yield Override("model.precision", None, "fp32", BY, "runs on any processor")
    for stage in TRAINED:
        if (recipe.settings.get(stage) or {}).get("precision"):
            yield Override(f"{stage}.precision", None, None, BY, "runs on any processor")
    yield Override("model.attention", None, "sdpa", BY, "FlashAttention needs a GPU")
    yield Override("speed.compile", None, "off", BY, gpu)
    for setting in ("fused_kernels", "fused_cross_entropy", "tf32"):
        yield Override(f"speed.{setting}", None, False, BY, gpu)
    yield Override("speed.data_workers", None, 0, BY, "few rows")
    yield from rehearsal.on_processors(recipe, 1)
    yield overrides.without_time_limit(BY)
    yield from _few_steps(recipe)


def _few_steps(recipe: Recipe) -> Iterator[Override]:
    large = "random weights need larger steps"
    short: dict[str, dict[str, tuple[Any, str]]] = {
        "pretrain": {
            "steps": (STEPS, ROWS),
            "warmup_ratio": (None, ROWS),
            "warmup_steps": (STEPS // 12, ROWS),
            "learning_rate": (0.01, large),
            "min_learning_rate": (0.001, large),
            "micro_batch_size": (min(2, recipe.pretrain.micro_batch_size), ROWS),
            "gradient_accumulation_steps": (min(2, recipe.pretrain.gradient_accumulation_steps), ROWS),
            "eval_steps": (STEPS // 12, ROWS),
            "save_steps": (STEPS // 12, ROWS),
        },
        "sft": {
            "epochs": (max(5, recipe.sft.epochs), ROWS),
            "learning_rate": (0.005, large),
            "sequence_len": (min(512, recipe.sft.sequence_len), "short rows make quick steps"),
            "gradient_accumulation_steps": (1, ROWS),
        },
        "dpo": {
            "epochs": (max(1, recipe.dpo.epochs), ROWS),
            "learning_rate": (0.0005, large),
            "sequence_len": (min(256, recipe.dpo.sequence_len), "short rows make quick steps"),
            "micro_batch_size": (4, ROWS),
            "gradient_accumulation_steps": (1, ROWS),
        },
    }
    if lora := recipe.lora:
        short["lora"] = {
            "epochs": (max(5, lora.epochs), ROWS),
            "learning_rate": (0.01, large),
            "micro_batch_size": (4, ROWS),
            "sequence_len": (min(256, lora.sequence_len), "short rows make quick steps"),
            "gradient_accumulation_steps": (1, ROWS),
        }
        yield from rehearsal.narrow("lora.", lora.rank, lora.alpha)
    for stage in ("sft", "lora"):
        if section := recipe.settings.get(stage):
            compiled = compile_mode(recipe, stage) is not None
            yield rehearsal.packing(recipe, stage, section, compiled)
    for stage in ("sft", "dpo", "lora"):
        if not (section := recipe.settings.get(stage)):
            continue
        # The intervals that the twin has without these lines are for as few rows as it has.
        own = ("save_steps",) if stage == "dpo" else ("eval_steps", "save_steps")
        yield from (Override(f"{stage}.{name}", None, None, BY, ROWS) for name in own if name in section)
        yield from rehearsal.any_improvement(stage, section)
    for stage, settings in short.items():
        for setting, (value, why) in settings.items():
            yield Override(f"{stage}.{setting}", None, value, BY, why)
        yield Override(f"{stage}.optimizer", None, "adamw_torch", BY, "runs on any processor")
        yield Override(f"{stage}.logging_steps", None, 1, BY, "few steps")


def judge(plan: Plan, summaries: list[Summary]) -> None:
    """Raises Stop unless every stage has learned something: losses fell, and DPO's accuracy rose."""
    by_stage = {summary.stage: summary for summary in summaries}
    lengths = [by_stage[name] for name in plan.facts["tokens"] if name in by_stage]
    if lengths:
        _fell("pretraining", lengths[0].first_validation_loss, lengths[-1].last_validation_loss)
    for name in AFTER:
        if name in by_stage:
            _fell(name, by_stage[name].first_validation_loss, by_stage[name].best_validation_loss)
    if "dpo" in by_stage:
        first, last = by_stage["dpo"].first_preference_accuracy, by_stage["dpo"].last_preference_accuracy
        if first is None or last is None or not last > first:
            raise Stop(f"The rehearsal of DPO did not learn: its accuracy went from {first} to {last}.")


def _fell(name: str, first: float | None, last: float | None) -> None:
    if first is None or last is None or not last < first:
        raise Stop(
            f"The rehearsal of {name} did not learn: the validation loss went from {first} to {last}.",
            "Look at the data, and at the stage's log.",
        )
