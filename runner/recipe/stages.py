"""Recipes with `stages`: each stage becomes a recipe, from its own lines and those that all stages
share."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from runner.recipe.document import Document, Path_, dotted, merged, path_of
from runner.tools import packaged
from runner.tools.problem import Problem, Stop
from runner.tools.settings import Section

NAME, TECHNIQUE = (
    "name",
    "technique",
)  # the lines of a stage that its own recipe has under other names
# The share of rows of an earlier stage; a recipe without `stages` does not have it.
EARLIER_ROWS = "earlier_rows"
STAGES = "stages"
PRETRAIN = "pretrain"  # the technique, and scenario, that makes a model from random weights
_TABLE = packaged.toml(__file__, "stages.toml")
OWN = _TABLE["own"]
BASE = _TABLE["base"]
TECHNIQUES = _TABLE["techniques"]


def one_file() -> Stop:
    """The refusal of `--data` for a recipe with stages."""
    return Stop(
        "`--data` replaces the rows of one training, and this recipe has several stages.",
        "Write `--set stages.0.data.hub= --set stages.0.data.path=FILE`, with the number of the stage, from 0.",
    )


def documents(document: Document) -> Iterator[tuple[str, int, Document]]:
    """Name, index and document of each stage with a known technique; its places are those in the
    file."""
    listed = document.data.get(STAGES)
    if not isinstance(listed, list):
        return
    shared = {name: value for name, value in document.data.items() if name != STAGES}
    # The lines of `model` that name what a stage starts from, and the stage that has them.
    base: dict[str, Any] = {}
    based = -1
    for index, stage in enumerate(listed):
        technique = _technique_of(stage)
        if technique is None:
            continue
        name = f"{shared.get('name')}-{stage[NAME]}"
        own_base = _base_of(stage)
        if own_base:
            base = own_base
            based = index
        common = shared
        if base:
            common = merged(_without(shared, BASE), {"model": base})
        if technique == PRETRAIN:
            base = {"base": name}
            based = -1
            common = _without(shared, ("sequence_len", *BASE[1:]))
        data = merged(common, _settings_of(stage)) | {"scenario": technique, "name": name}
        yield stage[NAME], index, _document_of(document, data, index, based)


def _settings_of(stage: Section) -> Section:
    """The lines of a stage that a recipe has, too."""
    settings = dict(stage)
    for name in (NAME, TECHNIQUE, EARLIER_ROWS):
        settings.pop(name, None)
    return settings


def _base_of(stage: Section) -> dict[str, Any]:
    """The lines of a stage that name a base model of its own; empty without one."""
    model = stage.get("model")
    if not isinstance(model, Mapping) or "base" not in model:
        return {}
    return {line: model[line] for line in BASE if line in model}


def _document_of(document: Document, data: Section, index: int, based: int) -> Document:
    """The document of a stage. data: its settings; index, based: as in `_moved`."""
    return replace(
        document,
        data=data,
        keys=_moved(document.keys, index, based),
        values=_moved(document.values, index, based),
        origins=_moved(document.origins, index, based),
    )


def _technique_of(stage: object) -> str | None:
    """The technique of a stage with a name; None if the schema refuses one of the two."""
    if not isinstance(stage, Mapping) or not isinstance(stage.get(NAME), str):
        return None
    technique = stage.get(TECHNIQUE)
    if isinstance(technique, str) and technique in TECHNIQUES:
        return technique
    return None


def _without(shared: Section, lines: tuple[str, ...]) -> dict[str, Any]:
    """Shared settings without these lines of `model`."""
    if "model" not in shared:
        return dict(shared)
    model = shared["model"]
    if isinstance(model, Mapping):
        model = {name: value for name, value in model.items() if name not in lines}
    return {**shared, "model": model}


def _moved(places: Mapping[Path_, object], index: int, based: int) -> dict[Path_, Any]:
    """Places by their path in the stage's own recipe. index: of the stage; based: of the one with
    its base model."""
    shared = {}
    base = {}
    stage_places = {}
    for path, place in places.items():
        path_of_stage = path[2:]
        if path[:1] != (STAGES,):
            shared[path] = place
        if path[:3] == (STAGES, based, "model") and path[3:4] and path[3] in BASE:
            base[path_of_stage] = place
        if path[:2] == (STAGES, index) and path_of_stage != (NAME,):
            stage_places[path_of_stage] = place
    if (TECHNIQUE,) in stage_places:
        stage_places["scenario",] = stage_places[TECHNIQUE,]
    return shared | base | stage_places


def filled(stage: Section, recipe_settings: Section) -> Section:
    """A stage as it is written, with the defaults of its own sections. recipe_settings: those
    of its recipe, with every default."""
    sections = {name: recipe_settings[name] for name in OWN if name in recipe_settings}
    return {**stage, **sections}


def path_in(document: Document, index: int, path: Path_) -> Path_:
    """The path, in the whole recipe, of a setting of a stage: its own line, or the one that all
    stages share."""
    path_in_stage = (STAGES, index, *path)
    if path[0] in OWN or document.lookup(path_in_stage) is not None:
        return path_in_stage
    return path


def names_base(document: Document, index: int) -> bool:
    """Whether a stage has a line of its own that names a base model."""
    return document.lookup((STAGES, index, "model", "base")) is not None


def starts(document: Document, index: int) -> bool:
    """Whether a stage starts from a base model, and not from the model of the stage before."""
    return index == 0 or names_base(document, index)


def found_in(document: Document, index: int, problem: Problem) -> Problem:
    """A problem of a stage's own recipe, with the paths of its fixes in the whole recipe."""

    def in_recipe(fix: tuple[str, Any] | None) -> tuple[str, Any] | None:
        if fix is None:
            return None
        setting, value = fix
        return dotted(path_in(document, index, path_of(setting))), value

    return replace(problem, mends=in_recipe(problem.mends), allows=in_recipe(problem.allows))
