"""Rules of the section `serve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.check.rules import of_section
from runner.parts.serve.serving import LLM, splits
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Stop, listed

if TYPE_CHECKING:
    from runner.recipe.sections import Serve


def one_server(recipe: Recipe, section: Serve) -> Iterator[Problem]:
    """The section describes a server that exists, and that can have the recipe's model."""
    facts = recipe.model_facts
    chooses = recipe.document.lookup(("serve", "runtime")) is not None
    # `recipes` works on this machine too.
    if "openshift" not in recipe.settings and not section.recipes:
        yield recipe.note(
            "serve",
            "`serve` configures a server on a cluster, but the recipe names none. It has no effect.",
            "Add the section `openshift` with a `namespace`, or delete this one.",
            key=True,
        )
    if facts and section.context and section.context > facts.max_position_embeddings:
        yield recipe.problem(
            "serve.context",
            f"The model reads at most {facts.max_position_embeddings:,} tokens, but `context` is {section.context:,}.",
            f"Write at most {facts.max_position_embeddings}.",
        )
    if facts and section.gpus:
        counts = splits(facts, range(1, 17))
        if section.gpus not in counts:
            counts_text = listed(map(str, counts), "or")
            message = (
                f"The model has {facts.num_attention_heads} attention heads and {facts.num_key_value_heads} of keys and values, which cannot be divided among {section.gpus} GPUs.",
                f"Write {counts_text}.",
            )
            yield recipe.problem("serve.gpus", *message)
    if section.image and chooses:
        yield recipe.problem(
            "serve.runtime",
            "`image` gives the recipe its own runtime, but `runtime` names the platform's.",
            "Delete one of the two lines.",
        )
    elif section.kind == LLM and chooses:
        yield recipe.problem(
            "serve.runtime",
            "`runtime` names the platform's ServingRuntime, but an LLMInferenceService has none.",
            "Delete one of the two lines.",
        )


def recipes_share(recipe: Recipe, section: Serve) -> Iterator[Problem]:
    from runner.parts.serve import kserve

    if section.recipes and section.model:
        yield recipe.problem(
            "serve.recipes",
            "`recipes` adds adapters to the base model of this recipe, but `model` names another model.",
            "Delete one of the two lines.",
        )
    elif section.recipes or section.kind == LLM:
        try:
            if "openshift" in recipe.settings:
                kserve.served(recipe)
            else:
                kserve.sharing(recipe, None)
        except Stop as stop:
            yield from stop.problems


RULES = of_section("serve", one_server)
FILE_RULES = of_section("serve", recipes_share)
