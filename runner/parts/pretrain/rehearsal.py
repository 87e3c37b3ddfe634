"""Rehearsal of a pipeline: every stage and every gate on any machine, with a tiny twin of the architecture."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from runner.parts.pretrain.architecture import AFTER, TRAINED
from runner.plan import Plan
from runner.recipe import overrides
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe, sets_of
from runner.scenarios.shared import rehearsal, twin
from runner.scenarios.shared.rehearsal import BY, substitute
from runner.tools.problem import Problem, Stop, worded
from runner.trainer.records import Summary

STEPS = 120
ROWS = "few rows and a small model"
# Half of that of a warmed-up twin, because this model meets each word only in its own few steps.
VOCABULARY = 1024


def before_data(recipe: Recipe, data: str | None) -> list[Override]:
    """All substitutions. data: a file with documents to use instead of the recipe's sample. Raises Stop if this
    machine has nothing to rehearse with."""
    if data and not Path(data).is_file():
        raise Stop(Problem(data, 0, 0, "This file does not exist.", "Name a data file after `--data`."))
    made: list[Override] = []
    for home, section in recipe.data_sections:
        if data and home == ("data",):
            made += overrides.from_data_option(data)
        else:
            made += (each for one in sets_of(home, section) for each in rehearsal.sample(recipe, *one))
    made.append(substitute("data.cleaning", None, "this machine"))
    made.append(substitute("data.limit", None, "the sample is small"))
    made.append(substitute("data.packed", None, "the sample is packed with the twin's own tokenizer"))
    made.append(substitute("data.validation_share", 0.1, "the sample is small"))
    return [*made, *_small(recipe), *rehearsal.gates(recipe)]


after_data = None  # nothing more follows from the rows, and the stage `init` makes the tiny model


def stands_in(recipe: Recipe, folder: Path) -> Mapping[str, object]:
    return {}


def _small(recipe: Recipe) -> Iterator[Override]:
    shape = twin.geometry(recipe.facts, 2, VOCABULARY)
    tiny, gpu = "a tiny twin of the same architecture, random weights", "needs a GPU"
    for name in ("hidden_size", "intermediate_size"):
        yield substitute(f"model.{name}", shape[name], tiny)
    for name in ("layers", "attention_heads", "key_value_heads"):
        yield substitute(f"model.{name}", shape[f"num_hidden_{name}" if name == "layers" else f"num_{name}"], tiny)
    yield substitute("model.vocabulary", VOCABULARY + 64, "more rows than words, as in the recipe")
    yield substitute("tokenizer.base", None, "a tokenizer trained on the sample")
    yield substitute("tokenizer.vocabulary", VOCABULARY, "a tokenizer trained on the sample")
    yield substitute("model.precision", "fp32", "runs on any CPU")
    for stage in TRAINED:
        if (recipe.settings.get(stage) or {}).get("precision"):
            yield substitute(f"{stage}.precision", None, "runs on any CPU")
    yield substitute("model.attention", "sdpa", "FlashAttention needs a GPU")
    yield substitute("speed.compile", "off", gpu)
    for setting in ("fused_kernels", "fused_cross_entropy", "tf32"):
        yield substitute(f"speed.{setting}", False, gpu)
    yield substitute("speed.data_workers", 0, "few rows")
    yield from rehearsal.on_processors(recipe, 1)
    yield overrides.without_time_limit(BY)
    yield from _few_steps(recipe)


# For each stage after pretraining: the least epochs, the learning rate, and the longest row in tokens.
SHORT = {"sft": (5, 0.005, 512), "dpo": (1, 0.0005, 256), "lora": (5, 0.01, 256)}


def _few_steps(recipe: Recipe) -> Iterator[Override]:
    large, train = "random weights need larger steps", recipe.pretrain
    yield from rehearsal.optimizer("pretrain", train)
    for setting, value, why in (
        ("steps", STEPS, ROWS),
        ("warmup_ratio", None, ROWS),
        ("warmup_steps", STEPS // 12, ROWS),
        ("learning_rate", 0.01, large),
        ("min_learning_rate", 0.001, large),
        ("micro_batch_size", min(2, train.micro_batch_size), ROWS),
        ("gradient_accumulation_steps", min(2, train.gradient_accumulation_steps), ROWS),
        ("eval_steps", STEPS // 12, ROWS),
        ("save_steps", STEPS // 12, ROWS),
        ("logging_steps", 1, "few steps"),
    ):
        yield substitute(f"pretrain.{setting}", value, why)
    for stage, (epochs, rate, longest) in SHORT.items():
        if not (section := recipe.settings.get(stage)):
            continue
        if stage == "lora":
            yield from rehearsal.narrow("lora.", section.rank, section.alpha)
        if "packing" in section:
            yield rehearsal.packing(recipe, stage, section)
        # The default intervals suit the few rows of a rehearsal.
        own = ("save_steps",) if stage == "dpo" else ("eval_steps", "save_steps")
        yield from (substitute(f"{stage}.{name}", None, ROWS) for name in own if name in section)
        yield from rehearsal.any_improvement(stage, section)
        yield substitute(f"{stage}.epochs", max(epochs, section.epochs), ROWS)
        yield substitute(f"{stage}.learning_rate", rate, large)
        yield substitute(f"{stage}.sequence_len", min(longest, section.sequence_len), "short rows make quick steps")
        if stage != "sft":
            yield substitute(f"{stage}.micro_batch_size", 4, ROWS)
        yield substitute(f"{stage}.gradient_accumulation_steps", 1, ROWS)
        yield from rehearsal.optimizer(stage, section)
        yield substitute(f"{stage}.logging_steps", 1, "few steps")


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
        rehearsal.preferred(by_stage["dpo"])


def _fell(name: str, first: float | None, last: float | None) -> None:
    if first is None or last is None or not last < first:
        raise Stop(*worded("pretrain.did-not-learn", name=name, first=first, last=last))
