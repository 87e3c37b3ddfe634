"""What a shell may put in place of a word that is begun: files, settings and the catalog's names, by click's own completion."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import CompletionItem

Completing = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _words(begun: str, known: Iterable[str]) -> list[CompletionItem]:
    """Those that go on as begun, whatever their case; where none begins so, those that hold it."""
    words, low = list(known), begun.lower()
    first = [word for word in words if word.lower().startswith(low)]
    return [CompletionItem(word) for word in first or [word for word in words if low in word.lower()]]


def recipe_file(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Files and folders, which the shell knows itself."""
    return [CompletionItem(begun, type="file")]


def starters(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from runner.tools import packaged

    found = _words(begun, packaged.named())
    return found or recipe_file(context, parameter, begun)


def gpus(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from runner import catalog

    return _words(begun, catalog.gpu_names())


def models(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from runner import catalog

    return _words(begun, catalog.model_ids())


# What a schema's `x-offers` names.
OFFERS: dict[str, Completing] = {"gpus": gpus, "models": models}


def settings(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Settings of the recipe that the command line names, or of all scenarios; of one whose values are few, those behind the
    `=` of `--set`."""
    from runner.check import by_schema

    scenarios = _scenarios(context)
    name, equals, value = begun.partition("=")
    if not equals:
        known = dict.fromkeys(each for one in scenarios for each, _ in by_schema.settings(one))
        ending = "=" if parameter.name == "sets" else ""
        return _words(begun, (f"{each}{ending}" for each in known))
    parts = [part for one in scenarios if (part := by_schema.part(one, name))]
    values = dict.fromkeys(
        choice
        for part in parts
        for choice in part.get("enum", ["true", "false"] if part.get("type") == "boolean" else [])
    )
    offered = next((OFFERS[part["x-offers"]] for part in parts if part.get("x-offers") in OFFERS), None)
    if offered:
        return [CompletionItem(f"{name}={item.value}") for item in offered(context, parameter, value)]
    return [CompletionItem(f"{name}={item.value}") for item in _words(value, map(str, values))]


def _scenarios(context: click.Context) -> Sequence[str]:
    """The scenario of the recipe, or the starter, that the command line names; all where it names none that can be read."""
    from runner import scenarios
    from runner.recipe.reading import read
    from runner.tools import packaged
    from runner.tools.problem import Stop

    # What click could not place yet, because the option before it still lacks its value, stands in `args`.
    words = [context.params.get("path"), context.params.get("source"), *context.args]
    files = (packaged.named().get(str(word), Path(str(word))) for word in words if word)
    scenario = None
    for file in files:
        with suppress(Stop, OSError):
            scenario = scenario or (read(file).data.get("scenario") if file.is_file() else None)
    return [scenario] if scenario in scenarios.names() else scenarios.names()
