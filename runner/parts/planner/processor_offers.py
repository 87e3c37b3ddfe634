"""Offers for a recipe whose training needs more main memory than this machine has. Each is tried:
`check` must pass it, and it must fit this machine."""

import math
from collections.abc import Sequence

from runner.check.validate import judge, override, valid
from runner.parts.planner import forecast
from runner.parts.planner.forecast import Changes, Forecast
from runner.parts.planner.planned import Planned
from runner.parts.planner.recipe_offers import MOST, ROUNDS, Offer, alike_first
from runner.recipe.recipe import Override, Recipe
from runner.run.run_folder import RunFolder
from runner.run.this_machine import LocalRun, processor_run
from runner.tools.problem import Problem, Stop


def of(recipe: Recipe, local: LocalRun, folder: RunFolder) -> list[Offer]:
    """Changes of the recipe with which all of its stages fit this machine, the least loss first.
    local: the recipe on this machine; folder: of its run."""
    planned = _planned(local)
    tight = _tight(planned)
    if not tight:
        return []
    offers: list[Offer] = []
    for changes in _offered(tight[0], local.recipe):
        offer = _settled(recipe, folder, planned, changes)
        if offer and all(offer.lines != earlier.lines for earlier in offers):
            offers.append(offer)
    offers.sort(key=lambda offer: (offer.loss, offer.after.seconds or math.inf))
    return offers[:MOST]


def _planned(local: LocalRun) -> Planned:
    return Planned(local.recipe, local.plan, forecast.of(local.recipe, local.plan))


def _tight(planned: Planned) -> list[Forecast]:
    return [stage for stage in planned.forecasts if stage.fits is False]


def _offered(stage: Forecast, recipe: Recipe) -> Sequence[Changes]:
    return stage.offers(recipe, stage.usable or 0)


def _settled(recipe: Recipe, folder: RunFolder, before: Planned, changes: Changes) -> Offer | None:
    """The change with those that other stages need, so that all of them fit."""
    for _ in range(ROUNDS):
        offer = _tried(recipe, folder, before, changes)
        if offer is None:
            return None
        tight = _tight(offer.after)
        if not tight:
            return offer
        more = alike_first(_offered(tight[0], offer.after.recipe), changes)
        if more is None:
            return None
        changes = {**changes, **more}
    return None


def _tried(recipe: Recipe, folder: RunFolder, before: Planned, changes: Changes) -> Offer | None:
    """The change with its plan for this machine. None if the recipe is then invalid, if this
    machine replaces a changed setting because that needs a GPU, or if the change cuts too many
    rows."""
    requested = [Override(setting, None, value, "the offer") for setting, value in changes.items()]
    try:
        document, changed = override(recipe.document, requested)
        with_changes, notes = valid(document)
        local = processor_run(with_changes, folder)
    except Stop:
        return None
    replaced = {substitution.setting for substitution in local.substitutions}
    if not changed or replaced & changes.keys():
        return None
    shortens = any(setting.endswith("sequence_len") for setting in changes)
    if shortens and _messages(notes) - _messages(judge(recipe.document)[1]):
        return None
    return Offer(before, _planned(local), changed, notes)


def _messages(problems: Sequence[Problem]) -> set[str]:
    return {problem.message for problem in problems}
