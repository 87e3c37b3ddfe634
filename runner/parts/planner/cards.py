"""Cards: which have room for a model, by ways of training; the planner itself says it."""

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

# Ways to train a language model: the minimal starter of each, and what it changes there. Else its defaults hold.
WAYS = {
    "qlora": ("minimal/lora", {"train.adapter": "qlora"}),
    "lora": ("minimal/lora", {}),
    "last layers": ("minimal/last-layers", {}),
    "all weights": ("minimal/causal-lm", {}),
}


@dataclass(frozen=True)
class Need:
    """What a way of training needs of one GPU: bytes with one row at a time, and the cards that have room, the smallest
    first."""

    memory_bytes: int
    cards: tuple[str, ...]


def needs(model: Model, card: Gpu | None = None) -> dict[str, Need]:
    """What each way of training the model needs; empty where there are no formulas for its architecture. card: for that
    one alone, in the number format that it trains in."""
    # Models of one shape need the same, whatever they are called.
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
    """The count of a model's parameters, as tables have it."""
    if model.model_type not in parameters.FAMILIES:
        return "-"
    return f"{(model.parameters or parameters.total(model)) / 1e9:.2f}B"


def licence(model: Model) -> str:
    return (model.licence or "unknown") + (", gated" if model.gated else "")
