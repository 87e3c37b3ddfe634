"""Overrides on top of a recipe's text: `--set`, the environment, and the substitutions of a
rehearsal."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.recipe import reading
from runner.recipe.document import Document, Path_, dotted, path_of, setting_name
from runner.recipe.recipe import Override, Recipe
from runner.recipe.stages import STAGES
from runner.tools import packaged
from runner.tools.problem import Problem, Stop

ENVIRONMENT: Mapping[str, list[str]] = packaged.toml(__file__, "environment.toml")


def from_options(options: Iterable[str]) -> list[Override]:
    """`--set train.epochs=2` as Overrides; later ones win. Raises Stop (exit 2) for an option
    without `=`."""
    changes = []
    for option in options:
        _require_unicode(option)
        setting, equals, text = option.partition("=")
        if not equals or not setting.strip(".") or ".." in setting:
            raise Stop(
                f"`--set {option}` does not have the form `--set section.setting=value`.",
                "For example: --set train.epochs=2",
                code=2,
            )
        setting = dotted(path_of(setting.strip()))
        value = _value(option, text)
        changes.append(Override(setting, None, value, by=f"--set {option}"))
    return changes


def from_environment(
    environment: Mapping[str, str], has: Callable[[str], bool]
) -> tuple[list[Override], list[str]]:
    """Overrides from the environment, and the names that match no setting of this recipe; empty
    variables count as unset. has: whether the recipe's scenario has a setting. All recipes of a
    terminal share its environment, so a name without a match is not a mistake."""
    changes = []
    idle = []
    for name, settings in ENVIRONMENT.items():
        text = environment.get(name, "")
        if not text.strip():
            continue
        variable = f"{name}={text}"
        _require_unicode(variable)
        setting = next(filter(has, settings), None)
        if setting:
            value = reading.scalar(text.strip())
            changes.append(Override(setting, None, value, by=variable))
        else:
            idle.append(variable)
    return changes, idle


def _require_unicode(text: str) -> None:
    """Raises Stop (exit 2) for bytes of another encoding, which Python passes on as lone
    surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        printable = text.encode(errors="replace").decode()
        raise Stop(
            f"`{printable}` is not valid UTF-8.", "Set your terminal to UTF-8.", code=2
        ) from None


def from_data_option(data: str | None) -> list[Override]:
    """`--data FILE` as Overrides: the file or folder replaces the data sets. Raises Stop if it does
    not exist."""
    if not data:
        return []
    if not Path(data).exists():
        raise Stop(
            Problem(data, 0, 0, "This file does not exist.", "Name a data file after `--data`.")
        )
    origin = f"--data {data}"
    reason = "the file you named"
    # The removed settings belong to the data sets that the file replaces.
    removed = ("hub", "sets", "validation_split", "validation_path")
    changes = dict.fromkeys(removed) | {"path": str(Path(data).resolve())}
    return [
        Override(f"data.{name}", None, value, origin, reason) for name, value in changes.items()
    ]


def _value(option: str, text: str) -> Any:
    """A value as YAML 1.2 reads it: a scalar as it is, `[…]` and `{…}` as a list or a section."""
    if text.lstrip().startswith(("[", "{", '"', "'")):
        try:
            return reading.parse(f"--set {option}", f"value: {text}").data["value"]
        except Stop:
            brackets_match = text.count("[") == text.count("]")
            if brackets_match and not text.startswith(("{", '"', "'")):
                return text  # a text that begins with a column
            raise Stop(
                f"The value of `--set {option}` is not YAML.",
                "Close its brackets and quotes.",
                code=2,
            ) from None
    return reading.scalar(text.strip())


def apply(document: Document, changes: Iterable[Override]) -> tuple[Document, list[Override]]:
    """A new Document with the changes applied in order, and those that changed something, `before`
    filled in. A value of None deletes the setting, or the entry of a list. Raises Stop if a
    setting's section is not a section."""
    changed = replace(document, data=copy.deepcopy(document.data), origins=dict(document.origins))
    effective = []
    for change in changes:
        path = change.path
        parent = _section_of(changed.data, change)
        if isinstance(parent, list):
            _require_entry(parent, path, change)
        before = changed.lookup(path)
        if before == change.after and type(before) is type(change.after):
            continue
        _write(parent, change)
        if isinstance(parent, list) and change.after is None:
            for attribute in ("keys", "values", "origins"):
                setattr(changed, attribute, _without_entry(getattr(changed, attribute), path))
            changed.origins[path[:-1]] = change.by
        else:
            for old in [place for place in changed.origins if place[: len(path)] == path]:
                del changed.origins[old]
            changed.origins[path] = change.by
        effective.append(replace(change, before=before))
    return changed, effective


def _section_of(data: object, change: Override) -> Any:
    """The section or list that a change's setting is in; missing sections are created."""
    path = change.path
    parent = data
    for depth, part in enumerate(path[:-1]):
        if isinstance(parent, dict):
            if parent.get(str(part)) is None:
                parent[str(part)] = {}
            parent = parent[str(part)]
        elif isinstance(parent, list):
            _require_entry(parent, path[: depth + 1], change)
            parent = parent[int(part)]
        else:
            raise _refused(change, f"`{dotted(path[:depth])}` has no settings of its own.")
    return parent


def _require_entry(entries: list[Any], path: Path_, change: Override) -> None:
    """Raises Stop unless a list has the entry at this path."""
    number = path[-1]
    if isinstance(number, int) and number < len(entries):
        return
    raise _refused(
        change,
        f"`{dotted(path[:-1])}` has {len(entries)} entries, and no entry `{number}`.",
        "Entries are counted from 0.",
    )


def _refused(change: Override, message: str, hint: str = "") -> Stop:
    return Stop(Problem(change.by, 0, 0, message, hint, setting=setting_name(change.path)))


def _without_entry(places: Mapping[Path_, Any], entry: Path_) -> dict[Path_, Any]:
    """Places by path, without those of an entry of a list; the entries after it move up."""
    depth = len(entry) - 1
    removed = int(entry[depth])
    kept = {}
    for path, place in places.items():
        if path[:depth] != entry[:depth] or len(path) == depth:
            kept[path] = place
            continue
        number = int(path[depth])
        if number < removed:
            kept[path] = place
        elif number > removed:
            kept[(*path[:depth], number - 1, *path[depth + 1 :])] = place
    return kept


def _write(parent: Any, change: Override) -> None:
    """Writes a change's value into the section or list of its setting."""
    last = change.path[-1]
    # A copy, because a later change may modify it.
    value = copy.deepcopy(change.after)
    if isinstance(parent, dict) and value is None:
        parent.pop(str(last), None)
    elif isinstance(parent, dict):
        parent[str(last)] = value
    elif isinstance(parent, list) and value is None:
        del parent[int(last)]
    elif isinstance(parent, list):
        parent[int(last)] = value
    else:
        message = f"`{dotted(change.path[:-1])}` is one value, and has no setting `{last}`."
        raise _refused(change, message)


def of_each(recipe: Recipe, changes: Callable[[str, Recipe], Iterable[Override]]) -> list[Override]:
    """The changes of every stage's recipe, as changes of the whole recipe. A shared line is changed
    once, but the length of rows for each stage. A recipe without `stages` counts as one stage with
    an empty name."""
    overrides: dict[str, Override] = {}
    for name, stage_recipe in (recipe.stage_recipes or {"": recipe}).items():
        for change in changes(name, stage_recipe):
            setting = recipe.setting_of(name, change.setting)
            if name and change.setting == "model.sequence_len":
                index = list(recipe.stage_recipes).index(name)
                setting = f"{STAGES}.{index}.{change.setting}"
            overrides.setdefault(setting, replace(change, setting=setting))
    return list(overrides.values())


REHEARSAL = "rehearsal"  # the origin of its substitutions


def substitute(setting: str, value: Any, reason: str) -> Override:
    """A rehearsal's own value of a setting."""
    return Override(setting, None, value, REHEARSAL, reason)


def without_time_limit(origin: str) -> Override:
    """Removes the time limit, which was not set for this machine."""
    return Override(
        "limits.time", None, None, origin, "the limit is for the machines of the full-size run"
    )


def on_one_machine(
    recipe: Recipe, gpus: int, origin: str, reason: str, numbers: Sequence[int] | None = None
) -> list[Override]:
    """Puts a recipe on this machine with this many GPUs or processes. numbers: of the GPUs; by
    default the first."""
    machines = [{"address": "localhost", "gpus": list(numbers or range(gpus))}]
    if "nodes" in recipe.settings:
        plain = [Override("nodes.machines", None, machines, origin, "this machine")]
    else:
        plain = []
    node_count = Override("machines.nodes", None, 1, origin, "this machine")
    return [node_count, Override("machines.gpus_per_node", None, gpus, origin, reason), *plain]
