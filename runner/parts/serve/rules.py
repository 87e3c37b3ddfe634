"""Rules about the server of the trained model: that the model reads so long a text, can be split so, and has a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.recipe.recipe import Recipe
from runner.scenarios.contract import Rule
from runner.tools.names import listed
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Serve


def _section(recipe: Recipe) -> Serve | None:
    found: Serve | None = recipe.settings.get("serve")
    return found


def on_a_cluster(recipe: Recipe) -> Iterator[Problem]:
    if _section(recipe) and "openshift" not in recipe.settings:
        message = "`serve` says how a cluster serves the model, and the recipe names none; nothing reads it."
        hint = "Add the section `openshift` with a `namespace`, or delete this one."
        yield recipe.note("serve", message, hint, key=True)


def context_is_read(recipe: Recipe) -> Iterator[Problem]:
    section, facts = _section(recipe), recipe.model_facts
    if section and facts and section.context and section.context > facts.max_position_embeddings:
        message = (
            f"The model reads at most {facts.max_position_embeddings:,} tokens, and `context` is {section.context:,}."
        )
        hint = f"Write at most {facts.max_position_embeddings}."
        yield recipe.problem("serve.context", message, hint)


def heads_can_be_split(recipe: Recipe) -> Iterator[Problem]:
    """vLLM deals out attention heads evenly; those of keys and values evenly too, or each to several GPUs."""
    section, facts = _section(recipe), recipe.model_facts
    if not section or not facts or not section.gpus:
        return
    heads, groups, count = facts.num_attention_heads, facts.num_key_value_heads, section.gpus
    able = [str(way) for way in range(1, 17) if heads % way == 0 and (groups % way == 0 or way % groups == 0)]
    if str(count) not in able:
        message = f"The model has {heads} attention heads, {groups} of keys and values, which cannot be dealt out to {count} GPUs."
        hint = f"Write {listed(able, 'or')}."
        yield recipe.problem("serve.gpus", message, hint)


def one_server(recipe: Recipe) -> Iterator[Problem]:
    if (section := _section(recipe)) and section.image and recipe.document.lookup(("serve", "runtime")) is not None:
        message = "`image` gives the recipe a runtime of its own, and `runtime` names the platform's."
        hint = "Delete one of the two lines."
        yield recipe.problem("serve.runtime", message, hint)


RULES: tuple[Rule, ...] = (on_a_cluster, context_is_read, heads_can_be_split, one_server)
