"""Rules of the section `serve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner.check.rules import of_section
from runner.parts.serve.serving import LLM, splits
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Stop, listed, worded

if TYPE_CHECKING:
    from runner.recipe.sections import Serve


def one_server(recipe: Recipe, section: Serve) -> Iterator[Problem]:
    """The section describes a server that exists, and that can have the recipe's model."""
    facts = recipe.model_facts
    chooses = recipe.document.lookup(("serve", "runtime")) is not None
    # `recipes` works on this machine too.
    if "openshift" not in recipe.settings and not section.recipes:
        yield recipe.note("serve", *worded("serve.no-cluster"), key=True)
    if facts and section.context and section.context > facts.max_position_embeddings:
        yield recipe.problem(
            "serve.context", *worded("serve.context-too-long", facts=facts, section=section)
        )
    if facts and section.gpus:
        counts = splits(facts, range(1, 17))
        if section.gpus not in counts:
            message = worded(
                "serve.indivisible-heads",
                facts=facts,
                section=section,
                counts=listed(map(str, counts), "or"),
            )
            yield recipe.problem("serve.gpus", *message)
    if section.image and chooses:
        yield recipe.problem("serve.runtime", *worded("serve.image-and-runtime"))
    elif section.kind == LLM and chooses:
        yield recipe.problem("serve.runtime", *worded("serve.kind-and-runtime"))


def recipes_share(recipe: Recipe, section: Serve) -> Iterator[Problem]:
    from runner.parts.serve import kserve

    if section.recipes and section.model:
        yield recipe.problem("serve.recipes", *worded("serve.recipes-and-model"))
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
