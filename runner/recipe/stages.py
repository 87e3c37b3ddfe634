"""A recipe with a list `stages`: each stage as a recipe of its own, of its own lines and of those that all stages share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.recipe.document import Document, Path_, merged, path_of
from runner.tools.problem import Problem

# The lines of a stage that its own recipe has under other names.
NAME, TECHNIQUE = "name", "technique"
STAGES = "stages"
# The scenarios of one stage that a technique may be; the schema lists them too.
TECHNIQUES = ("lora", "last-layers", "full")
# The sections that each stage has for itself.
OWN = (("train",), ("data",), ("demo",), ("gates",))


def documents(document: Document) -> Iterator[tuple[str, int, Document]]:
    """Name, index and document of each stage with a known technique; its values are where they are in the file."""
    if not isinstance(listed := document.data.get(STAGES), list):
        return
    shared = {name: value for name, value in document.data.items() if name != STAGES}
    for index, stage in enumerate(listed):
        named_well = isinstance(stage, Mapping) and isinstance(stage.get(NAME), str)
        if not named_well or stage.get(TECHNIQUE) not in TECHNIQUES:
            continue
        own = {name: value for name, value in stage.items() if name not in (NAME, TECHNIQUE)}
        named = {"scenario": stage[TECHNIQUE], "name": f"{shared.get('name')}-{stage[NAME]}"}
        data = {**merged(shared, own), **named}
        home: Path_ = (STAGES, index)
        spans: dict[str, Any] = {name: _moved(getattr(document, name), home) for name in ("keys", "values", "origins")}
        yield stage[NAME], index, replace(document, data=data, **spans)


def _moved(places: Mapping[Path_, Any], home: Path_) -> dict[Path_, Any]:
    """Places by their path in the stage's own recipe. home: of the stage in the whole one."""
    shared = {path: place for path, place in places.items() if path[:1] != (STAGES,)}
    own = {path[2:]: place for path, place in places.items() if path[:2] == home}
    own |= {("scenario",): own[TECHNIQUE,]} if (TECHNIQUE,) in own else {}
    return shared | {path: place for path, place in own.items() if path != (NAME,)}


def filled(stage: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A stage as it is written, with the defaults of its own sections. own: its recipe with every default."""
    return {**stage, **{name: own[name] for (name,) in OWN if name in own}}


def path_in(document: Document, index: int, path: Path_) -> Path_:
    """The path, in the whole recipe, of a setting of a stage: its own line, or the one that all stages share."""
    own = (STAGES, index, *path)
    return own if path[:1] in OWN or document.lookup(own) is not None else path


def found_in(document: Document, index: int, problem: Problem) -> Problem:
    """A problem of a stage, with a mending value's path in the whole recipe."""
    if problem.mends is None:
        return problem
    setting, value = problem.mends
    path = path_in(document, index, path_of(setting))
    return replace(problem, mends=(".".join(map(str, path)), value))
