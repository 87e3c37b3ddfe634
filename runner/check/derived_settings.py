"""Following: lines that only repeat what others say follow a change of those, so that what the user changes wins.

`train.effective_batch_size` is the product of other lines, and `machines` counts what `nodes.machines` names. A line
that the user changes too follows nothing, and neither does one that was wrong before; the rules then say so. In a copy
that gets data of its own, lines about the data of before go away.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.check import by_schema
from runner.data import conversation_formats, row_files, rows
from runner.recipe import overrides, templates
from runner.recipe.document import Document
from runner.recipe.overrides import Override
from runner.recipe.recipe import DEMO_QUESTIONS, BrokenSetting, Recipe
from runner.scenarios.shared import common
from runner.tools.problem import Stop

NODES, GPUS, PLAIN = "machines.nodes", "machines.gpus_per_node", "nodes.machines"
BATCH, MICRO = "train.effective_batch_size", "train.micro_batch_size"
ACCUMULATION = "train.gradient_accumulation_steps"
# A setting and the value that follows, from the recipe before and after the changes.
Follow = Callable[[Recipe, Recipe], Iterator[tuple[str, Any]]]


def with_followers(document: Document, changes: list[Override]) -> list[Override]:
    """The changes, and behind them what follows from them. Changes that cannot be applied are left to who applies them."""
    whole = list(changes)
    with suppress(Stop, BrokenSetting):
        for causes, follow in FOLLOWERS:
            given = [change for change in changes if _concerns(change, causes)]
            before = _as_recipe(document) if given else None
            after = _as_recipe(overrides.apply(document, whole)[0]) if before else None
            if not before or not after:
                continue
            by = ", ".join(dict.fromkeys(change.by for change in given))
            for setting, value in follow(before, after):
                if not any(_concerns(change, [setting]) for change in changes):
                    whole.append(Override(setting, None, value, by, f"follows {by}"))
    return whole


def batch_sizes(recipe: Recipe) -> tuple[int, int] | None:
    """The effective batch size as stated and as the other lines make it; None where it is not stated."""
    stated = recipe.settings.get("train", {}).get("effective_batch_size")
    return None if stated is None else (stated, common.effective_batch_size(recipe))


# Lines of a section of data that are about the rows of one source alone, and where nothing else says which rows validate.
OF_A_SOURCE = ("hub", "sets", "revision", "subset", "split", "test_split", "sample", "mean", "std")
VALIDATES, SHARE = ("validation_split", "validation_path"), 0.1


def with_own_data(document: Document, changes: list[Override]) -> list[Override]:
    """The changes of a recipe that is copied, and behind each `path` that names other data what was about the data of
    before and goes with it."""
    whole, settings = list(changes), {change.setting for change in changes}
    for change in changes:
        home, _, last = change.setting.rpartition(".")
        section = document.lookup(change.path[:-1])
        if last != "path" or not isinstance(change.after, str) or not isinstance(section, dict):
            continue
        if change.after in (section.get("path"), section.get("sample")):
            continue  # the recipe's own file, and the other lines are about it
        why = "was about the data of before"
        words = () if "songs" in section else ("system_prompt",)
        about = (*OF_A_SOURCE, *VALIDATES, *words, *_templates(document, section, change))
        gone = [name for name in about if name in section]
        others = [Override(f"{home}.{name}", None, None, change.by, why) for name in gone]
        if set(gone) & set(VALIDATES) and "validation_share" not in section:
            others.append(Override(f"{home}.validation_share", None, SHARE, change.by, "a share of the new data"))
        if home == "data":
            others += _questions(document, change)
        whole += [other for other in others if other.setting not in settings]
    return whole


def _questions(document: Document, change: Override) -> list[Override]:
    """What takes a demo's questions away that were asked about the data of before; those about new data come from its rows."""
    demo = document.lookup(("demo",))
    asked = [name for name in DEMO_QUESTIONS if name in demo] if isinstance(demo, dict) else []
    names = ["demo"] if asked and len(asked) == len(demo) else [f"demo.{name}" for name in asked]
    return [Override(name, None, None, change.by, "asked about the data of before") for name in names]


def _templates(document: Document, section: Mapping[str, Any], change: Override) -> tuple[str, ...]:
    """The section's templates for columns, where the new file has conversations and not their columns."""
    there = [name for name in ("question", "answer") if isinstance(section.get(name), str)]
    try:
        found = rows.columns(Path(document.file).parent / change.after, section.get("split"))
        named = {column for name in there for column in templates.columns(section[name])}
    except (row_files.Unreadable, OSError, ValueError):
        return ()
    return tuple(there) if conversation_formats.told(found) and not named <= set(found) else ()


def _counted(before: Recipe, after: Recipe) -> Iterator[tuple[str, Any]]:
    """`machines` counts the plain machines that are now named."""
    if "nodes" in after.settings and _counts_agree(before):
        yield NODES, len(after.gpu_counts)
        yield GPUS, max(after.gpu_counts)


def _named(before: Recipe, after: Recipe) -> Iterator[tuple[str, Any]]:
    """Of the plain machines and their GPUs the first remain where fewer are wanted; more, only a person can name."""
    if "nodes" not in after.settings or not _counts_agree(before):
        return
    machines: list[Mapping[str, Any]] = after.document.lookup(("nodes", "machines"))
    if after.machines.nodes < len(after.gpu_counts):
        yield PLAIN, machines[: after.machines.nodes]
    for index, machine in enumerate(machines[: after.machines.nodes]):
        if after.machines.gpus_per_node < len(machine["gpus"]):
            yield f"{PLAIN}.{index}.gpus", machine["gpus"][: after.machines.gpus_per_node]


def _multiplied(before: Recipe, after: Recipe) -> Iterator[tuple[str, Any]]:
    sizes, now = batch_sizes(before), batch_sizes(after)
    if sizes and now and sizes[0] == sizes[1]:
        yield BATCH, now[1]


# The batch counts the GPUs of the machines that remain, so it comes last.
FOLLOWERS: tuple[tuple[tuple[str, ...], Follow], ...] = (
    ((PLAIN,), _counted),
    ((NODES, GPUS), _named),
    ((MICRO, ACCUMULATION, NODES, GPUS, PLAIN), _multiplied),
)


def _concerns(change: Override, settings: Iterable[str]) -> bool:
    """Whether a change is of one of the settings, of a part of it, or of a section that holds it."""
    paths = (Override(setting, None, None, "").path for setting in settings)
    return any(all(a == b for a, b in zip(change.path, path, strict=False)) for path in paths)


def _counts_agree(recipe: Recipe) -> bool:
    return (recipe.machines.nodes, recipe.machines.gpus_per_node) == (len(recipe.gpu_counts), max(recipe.gpu_counts))


def _as_recipe(document: Document) -> Recipe | None:
    """The document's settings, as far as its schema takes them."""
    return None if by_schema.scenario_problem(document) else Recipe(document, by_schema.read(document).settings, None)
