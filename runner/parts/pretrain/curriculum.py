"""The stages of a pipeline: the context lengths of pretraining, each from one step to another, and what follows them."""

from __future__ import annotations

from dataclasses import dataclass

from runner.plan import Kind
from runner.recipe.recipe import Recipe

# The stages after pretraining, each a section of its own.
AFTER = ("sft", "dpo", "lora")
# The sections of all stages that train something.
TRAINED = ("pretrain", *AFTER)
# What each of them learns from, as whoever measures it has to know.
KINDS: dict[str, Kind] = {"pretrain": "text", "sft": "chat", "dpo": "preferences", "lora": "chat"}


def stage_of(sequence_len: int) -> str:
    """The name of the stage that trains on blocks of this length."""
    return f"pretrain-{sequence_len}"


def stage_names(recipe: Recipe) -> list[str]:
    """The stages of the recipe, in their order."""
    return ["data", "init", *trained_names(recipe)]


def trained_names(recipe: Recipe) -> list[str]:
    """Those of them that train something."""
    lengths = [stage_of(part.sequence_len) for part in recipe.pretrain.curriculum]
    return [*lengths, *(kind for kind in AFTER if recipe.settings.get(kind))]


def warmup_steps(recipe: Recipe) -> int:
    """Steps of pretraining with a rising learning rate, over all lengths."""
    pretrain = recipe.pretrain
    return (
        pretrain.warmup_steps
        if pretrain.warmup_steps is not None
        else round((pretrain.warmup_ratio or 0) * pretrain.steps)
    )


@dataclass(frozen=True)
class Length:
    """One context length of pretraining, from `first_step` (not done yet) to `last_step`; blocks of `sequence_len` tokens."""

    name: str
    sequence_len: int
    first_step: int
    last_step: int

    def tokens(self, batch: int) -> int:
        """Tokens that it trains on, for `batch` blocks a step."""
        return (self.last_step - self.first_step) * batch * self.sequence_len


def curriculum(recipe: Recipe) -> list[Length]:
    """The context lengths with the steps at which each begins and ends."""
    lengths, first = [], 0
    for part in recipe.pretrain.curriculum:
        last = round(part.until * recipe.pretrain.steps)
        lengths.append(Length(stage_of(part.sequence_len), part.sequence_len, first, last))
        first = last
    return lengths
