"""`recipe gpus`: the GPUs of the catalog, and how a recipe does on each."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from runner import catalog
from runner.check.validate import changed
from runner.commands.options import complete_recipe, end, listing_option, open_recipe, say, set_option, table
from runner.parts.planner import forecast
from runner.parts.planner.parameters import UnknownArchitecture
from runner.parts.planner.planned import Planned
from runner.recipe import units
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.tools.problem import Stop


@dataclass(frozen=True)
class _OnCard:
    """A recipe on another card. planned: None if it cannot run there; why: the reason."""

    card: catalog.Gpu
    planned: Planned | None
    why: str = ""

    @property
    def fits(self) -> bool:
        """Whether all stages fit the card; the recipe's limits are another question."""
        return self.planned is not None and all(stage.fits for stage in self.planned.forecasts)


def _on_cards(recipe: Recipe) -> Iterator[_OnCard]:
    """The recipe on every card of the catalog, as its `machines.gpu`."""
    for card in filter(None, map(catalog.gpu, catalog.gpu_names())):
        try:
            other, _ = changed(recipe, [Override("machines.gpu", None, card.name, "recipe gpus")])
            yield _OnCard(card, Planned.of(other))
        except Stop as stop:
            yield _OnCard(card, None, stop.problems[0].message)
        except UnknownArchitecture as error:
            raise Stop(forecast.unknown_architecture(recipe, error)) from None


@click.command()
@click.argument("path", metavar="[RECIPE]", required=False, shell_complete=complete_recipe)
@set_option
@listing_option
def gpus(path: str | None, sets: tuple[str, ...], style: str) -> None:
    """List the GPUs that a recipe can name, by their label on a cluster. With RECIPE: what it needs on each of
    them."""
    if path:
        recipe, _ = open_recipe(path, sets, aside=style == "json")
        found = list(_on_cards(recipe))
        if style == "json":
            say(json.dumps([_entry(each) for each in found], indent=2, ensure_ascii=False))
            return
        table([("GPU", "HAS", "NEEDS", "TIME", ""), *map(_row, found)])
        count = sum(each.fits for each in found)
        end(f"`{recipe.name}` fits {count} of these {len(found)} GPUs.", "plan", path, "--set", "machines.gpu=GPU")
        return
    every = [card for name in catalog.gpu_names() if (card := catalog.gpu(name))]
    if style == "json":
        say(json.dumps([asdict(card) for card in every], indent=2, ensure_ascii=False))
        return
    titles = ("GPU", "MEMORY", "BF16", "TFLOPS", "BANDWIDTH", "BETWEEN GPUS", "FULL NAME")
    table([titles, *map(_facts, every)], below=titles[-2:])
    say("\nMEMORY is the part that PyTorch can use.")
    say("TFLOPS is the dense rate in bf16, or in fp16 without bf16.")
    end(f"{len(every)} GPUs can be named in a recipe.", "gpus", "RECIPE")


def _facts(card: catalog.Gpu) -> tuple[str, ...]:
    return (
        card.name,
        units.gib(card.usable_gib * 2**30),
        "yes" if card.bf16 else "no",
        f"{card.bf16_tflops or card.fp16_tflops:g}",
        f"{card.memory_gb_s:,.0f} GB/s",
        f"{card.link}, {card.link_gb_s:g} GB/s",
        card.title,
    )


def _row(one: _OnCard) -> tuple[str, ...]:
    has = units.gib(one.card.usable_gib * 2**30)
    if one.planned is None:
        return one.card.name, has, "-", "-", one.why
    need = max((stage.memory.total for stage in one.planned.forecasts), default=0)
    if not one.fits:
        return one.card.name, has, units.gib(need), "-", "too small"
    seconds, full = one.planned.seconds, all(stage.full.fits for stage in one.planned.forecasts)
    verdict = "fits" if full else "fits your rows, but not rows of full length"
    return one.card.name, has, units.gib(need), units.duration(seconds) if seconds else "-", verdict


def _entry(one: _OnCard) -> dict[str, object]:
    stages = one.planned.forecasts if one.planned else []
    return {
        "gpu": one.card.name,
        "usable_bytes": round(one.card.usable_gib * 2**30),
        "memory_bytes": max((stage.memory.total for stage in stages), default=None),
        "seconds": one.planned.seconds if one.planned and one.fits else None,
        "fits": one.fits,
        "why_not": one.why,
    }
