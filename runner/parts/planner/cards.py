"""Cards: which of the catalog have room to train a model, in each way of training."""

from dataclasses import dataclass, replace
from functools import cache

from runner.catalog import Gpu, Model
from runner.check import by_schema
from runner.parts.planner import forecast, parameters
from runner.parts.planner.memory import cards
from runner.parts.planner.parameters import UnknownArchitecture
from runner.recipe.overrides import Override, apply
from runner.recipe.reading import read
from runner.recipe.recipe import Recipe
from runner.render import place
from runner.scenarios import translate
from runner.tools import packaged

# Ways to train a language model: the minimal starter of each, and the settings that differ from it.
WAYS = {
    "qlora": ("minimal/lora", {"train.adapter": "qlora"}),
    "lora": ("minimal/lora", {}),
    "last layers": ("minimal/last-layers", {}),
    "all weights": ("minimal/causal-lm", {}),
}


@dataclass(frozen=True)
class Need:
    """What a way of training needs of one GPU: bytes with one row at a time, and the cards with enough memory, the
    smallest first."""

    memory_bytes: int
    cards: tuple[str, ...]


def needs(model: Model, card: Gpu | None = None) -> dict[str, Need]:
    """What each way of training needs for a model; empty where its architecture has no formulas. card: for this card
    alone, in the number format that it trains in."""
    # Models of the same shape share one computation.
    shape = replace(model, id="model", licence="", gated=False, source="", parameters=None, published=None, revision="")
    try:
        return {way: _need(shape, way, card.precision(model.fp16) if card else "bf16") for way in WAYS}
    except UnknownArchitecture:
        return {}


@cache
def _need(model: Model, way: str, precision: str) -> Need:
    starter, changes = WAYS[way]
    wished = {"model.precision": precision, "train.micro_batch_size": 1, **changes}
    document, _ = apply(read(packaged.named()[starter]), [Override(name, None, wished[name]) for name in wished])
    recipe = Recipe(document, by_schema.read(document).settings, model)
    forecasts = forecast.of(recipe, translate(recipe, place(recipe)), look=False)
    need = max(stage.memory.total for stage in forecasts)
    return Need(need, tuple(card.name for card in cards(need, [stage.workload for stage in forecasts])))


def size(model: Model) -> str:
    """A model's number of parameters, for tables."""
    if model.model_type not in parameters.FAMILIES:
        return "-"
    return f"{(model.parameters or parameters.total(model)) / 1e9:.2f}B"


def licence(model: Model) -> str:
    return (model.licence or "unknown") + (", gated" if model.gated else "")
