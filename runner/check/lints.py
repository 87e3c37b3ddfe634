"""Notes on values that work and are unwise: each with the usual one. What cannot work is an error, and stands elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.recipe.document import Path_
from runner.recipe.recipe import Recipe, Settings
from runner.scenarios.shared import gates
from runner.tools.names import nearest
from runner.tools.problem import Problem

# Above these a run breaks or learns nothing, in our own starters and in the papers that they name; images by SGD take more.
HIGHEST_RATE, HIGHEST_SCALED, HIGHEST_OF_IMAGES = 0.02, 0.002, 1.0
# A warmup of more than half of the steps; fewer epochs than a tenth; an adapter that counts less than an eighth.
LONGEST_WARMUP, FEWEST_EPOCHS, LEAST_ALPHA = 0.5, 0.1, 1 / 8
# Metrics of which less is better, and more.
_LESS = re.compile(r"(\w+_)?(perplexity|loss)|loss_rise\.\d+|forgetting")
_MORE = re.compile(
    r"accuracy(\..+)?|generated_tokens|preference_\w+|improvement\..+|lm_eval\..+\.(acc|acc_norm|exact_match)(,.+)?"
)
# What lm-eval's tasks score by (lm-eval 0.4, api/metrics.py and the tasks that name their own).
SCORES = (
    *(
        "acc",
        "acc_norm",
        "acc_mutual_info",
        "exact_match",
        "f1",
        "mcc",
        "bleu",
        "chrf",
        "ter",
        "brier_score",
        "perplexity",
    ),
    *("word_perplexity", "byte_perplexity", "bits_per_byte", "mc1", "mc2", "pass@1", "prompt_level_strict_acc"),
)
_OTHER_WAY = str.maketrans("<>", "><")


def _sections(recipe: Recipe) -> Iterator[tuple[str, Settings]]:
    for name, section in recipe.sections.items():
        if section.knows("learning_rate"):
            yield name, section


def note(recipe: Recipe, path: Path_, message: str, hint: str) -> Problem:
    return recipe.document.problem(path, message, hint, severity="note")


def rates(recipe: Recipe) -> Iterator[Problem]:
    gpus, images = sum(recipe.gpu_counts), recipe.scenario == "image-classification"
    for name, section in _sections(recipe):
        rate = section["learning_rate"]
        if rate > (HIGHEST_OF_IMAGES if images else HIGHEST_RATE) or (images and rate == 1):
            usual = "0.001 to 0.5" if images else "1e-5 to 5e-4"
            message = f"A learning rate of {rate:g} breaks almost every model."
            yield note(recipe, (name, "learning_rate"), message, f"Usual is {usual}.")
        elif (
            section.get("learning_rate_scaling") == "linear"
            and rate * gpus > HIGHEST_SCALED
            and gpus > 8
            and not images
        ):
            yield note(
                recipe,
                (name, "learning_rate_scaling"),
                f"Times {gpus} GPUs the learning rate is {rate * gpus:g}, more than almost every model bears.",
                "Write `learning_rate_scaling: none`; usual is 1e-5 to 5e-4 in all.",
            )


def lengths(recipe: Recipe) -> Iterator[Problem]:
    for name, section in _sections(recipe):
        ratio, epochs = section.get("warmup_ratio"), section.get("epochs")
        if ratio is not None and ratio > LONGEST_WARMUP:
            message = f"The learning rate rises for {ratio:.0%} of the steps, and training ends soon after."
            yield note(recipe, (name, "warmup_ratio"), message, "Usual is 0.03 to 0.1.")
        if epochs is not None and epochs < FEWEST_EPOCHS:
            message = f"{epochs:g} epochs are {epochs:.1%} of the rows; the others are never learned from."
            yield note(recipe, (name, "epochs"), message, "Usual is 1 to 5.")


def adapters(recipe: Recipe) -> Iterator[Problem]:
    for name, section in recipe.sections.items():
        if section.knows("alpha") and section.get("rank") and section.get("alpha"):
            rank, alpha = section["rank"], section["alpha"]
            if alpha < rank * LEAST_ALPHA:
                message = (
                    f"Divided by a rank of {rank}, an alpha of {alpha:g} lets the adapter count for almost nothing."
                )
                yield note(recipe, (name, "alpha"), message, f"Usual is {rank} to {2 * rank}; or delete the line.")


def gate_directions(recipe: Recipe) -> Iterator[Problem]:
    for place, text in gates.all_of(recipe):
        try:
            gate = gates.parse(text)
        except (TypeError, ValueError):
            continue
        score = gate.metric.rpartition(".")[2].partition(",")[0]
        if ".lm_eval." in f".{gate.metric}" and score not in SCORES and (near := nearest(score, SCORES, 0.8)):
            message = (
                f"`{score}` is no usual score of lm-eval, and `{near}` is one; a score that no task has opens no gate."
            )
            meant = text.replace(f".{score}", f".{near}", 1)
            yield note(recipe, place, message, f"Write `{meant}`, if it was meant.")
        less, more = _LESS.fullmatch(gate.metric), _MORE.fullmatch(gate.metric)
        if (less and gate.comparison in (">", ">=")) or (more and gate.comparison in ("<", "<=")):
            better, other = "less" if less else "more", gate.comparison.translate(_OTHER_WAY)
            message = f"Of `{gate.metric}` {better} is better, and `{text}` opens for the worse models."
            yield note(recipe, place, message, f"Write `{gate.metric} {other} {gate.threshold:g}`.")


RULES = (rates, lengths, adapters, gate_directions)
