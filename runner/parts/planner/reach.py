"""Reach: the share of a model that an adapter trains, and whether its experts are among it; and the rules of this part."""

import re
from collections.abc import Iterator

from runner.parts.planner import parameters, row_counts
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.workload import Adapter
from runner.recipe.recipe import Recipe
from runner.scenarios.contract import Rule
from runner.scenarios.language.translation import fitting
from runner.tools.problem import Problem


def experts(recipe: Recipe) -> Iterator[Problem]:
    """Of a mixture of experts, what an adapter leaves as it is."""
    for name, own in recipe.stage_recipes.items() or (("", recipe),):
        facts, train = own.model_facts, own.settings.get("train") or {}
        rank = train.get("lora_rank")
        if not facts or not facts.has_experts or not rank or train.get("lora_experts"):
            continue
        asked = train.get("lora_layers") or facts.linear
        try:
            targets = tuple(one for layer in asked for one in fitting(facts, layer))
            shapes = parameters.adapted(facts, Adapter(rank, targets))
            whole, held = parameters.total(facts), parameters.of_experts(facts)
        except (UnknownArchitecture, re.error):
            continue
        if not (trained := sum(rank * sum(shape) for shape in shapes)):
            continue
        message = f"The adapter trains {100 * trained / whole:.2g}% of the weights; the experts, {held / whole:.0%} of the model, stay as they are."
        hint = "To train them too, write `lora_experts: true` and `lora_dropout: 0` under `train`."
        if train.get("adapter") == "qlora" and not train.get("quantize_experts"):
            message += " They also stay in 16 bits."
            hint += " `quantize_experts: true` puts them in 4 bits."
        yield recipe.note(recipe.setting_of(name, "train.lora_layers"), message, hint)


RULES: tuple[Rule, ...] = (row_counts.rows_left_out, experts)
FILE_RULES: tuple[Rule, ...] = (row_counts.enough_rows,)
