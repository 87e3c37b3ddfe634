"""`recipe new`: a copy to start your own from."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from runner import packaged
from runner.check import base_model, by_schema
from runner.check.by_schema import as_text
from runner.check.following import with_followers, with_own_data
from runner.check.validate import judge
from runner.commands.options import say, set_option
from runner.names import JOB_NAME, listed, nearest
from runner.problem import Problem, Stop
from runner.recipe import comments, copying, lock
from runner.recipe import overrides as changing
from runner.recipe.document import Document
from runner.recipe.overrides import Override
from runner.recipe.reading import parse, read


@click.command()
@click.argument("name")
@click.option("--from", "source", required=True, metavar="RECIPE", help="A starter recipe's name, or any recipe file.")
@click.option(
    "--minimal",
    "short",
    is_flag=True,
    help="Take the minimal starter of that starter's scenario instead: on the same data, where there is one.",
)
@set_option
def new(name: str, source: str, short: bool, sets: tuple[str, ...]) -> None:
    """Copy a recipe under a new NAME, comments and all, with its schema and its sample beside it."""
    name = name.removesuffix(".yaml")
    if not JOB_NAME.match(name):
        raise Stop(
            f"A recipe cannot be called `{name}`.",
            "A name has lower-case letters, digits and `-`, starts with a letter, and has at most 53 characters.",
        )
    origin = minimal(source) if short else find(source)
    target = Path(f"{name}.yaml")
    if target.exists():
        raise Stop(f"`{target}` is there already.", "Choose another name, or delete it first.")
    document = read(origin)
    _refuse_errors(document)
    schema = packaged.schema_file(document.data["scenario"])
    wished = as_text(document, changing.from_options(sets))
    # Data that is named here lies beside the copy.
    own = [*with_own_data(replace(document, file=str(target)), wished), *_without_placeholder(document, wished)]
    files = {path: file for path, file in _files(document.data) if path not in {change.path for change in own}}
    moved = [
        Override(".".join(path), None, called, "recipe new")
        for path, file in files.items()
        if (called := beside(file, origin.parent)) != file
    ]
    changed = with_followers(document, own)
    changes = [*moved, *changed]
    text = copying.edit(copying.rename(document, name), moved)
    text = comments.edited(text, changed, partial(by_schema.sentence, document.data["scenario"]))
    text = copying.for_file(text, schema.name, f"recipes/{origin.name}", target.name)
    with ExitStack() as undo:
        copied = _copy_beside(files.values(), origin.parent, undo) + _copy_lock(document, origin.parent, undo)
        left = _refuse_errors(
            parse(str(target), text), but_its_model=any(change.setting == "model.base" for change in wished)
        )
        undo.pop_all()
    target.write_text(text, encoding="utf-8")
    shutil.copyfile(schema, schema.name)
    say(f"{target}: a copy of {f'minimal/{origin.stem}' if short else source}. Edit it, then: recipe check {target}")
    for change in changing.apply(document, changes)[1]:
        if change.setting not in {own.setting for own in (*wished, *moved)}:
            say(f"{change}")
    for file in (*copied, Path(schema.name)):
        say(f"{file}: goes with it")
    for problem in left:
        say(f"\nStill to do: {problem.message}\n{problem.hint}")


def _without_placeholder(document: Document, wished: list[Override]) -> list[Override]:
    """What takes code by git out of a copy whose commit is a placeholder: it would need a repository of one's own first."""
    commit = document.lookup(("image", "code_from_git", "commit"))
    if not isinstance(commit, str) or commit.strip("0") or any(change.path[0] == "image" for change in wished):
        return []
    why = "its commit is a placeholder; pods start from the namespace's own image instead"
    return [Override(setting, None, None, "recipe new", why) for setting in ("image", "openshift.image")]


def _refuse_errors(document: Document, but_its_model: bool = False) -> list[Problem]:
    """Raises Stop with every error of a recipe, where it has one. but_its_model: gives the one that nobody knows its model,
    which is mended by a lock file beside it."""
    recipe, problems = judge(document)
    left = [problem for problem in problems if but_its_model and recipe and problem == base_model.unknown(recipe)]
    if errors := [problem for problem in problems if problem.severity == "error" and problem not in left]:
        raise Stop(errors)
    return left


def beside(name: str, folder: Path) -> str:
    """What a file or folder that a recipe in `folder` names is called in the copy: a file goes with it, below its folder, also
    where the recipe's own lies above (`../data/x.csv`); a folder, which may be large, stays where it is."""
    if not Path(name).is_absolute() and (folder / name).is_dir():
        return os.path.relpath(folder / name)
    return re.sub(r"^(\.\./)+", "", name)


def _copy_beside(named: Iterable[str], folder: Path, undo: ExitStack) -> list[Path]:
    """Copies the files that a recipe names from its folder to this one, and tells `undo` what to take away again."""
    files = [name for name in named if not Path(name).is_absolute() and (folder / name).is_file()]
    sources: dict[Path, Path] = {}
    for name in files:
        file = Path(beside(name, folder))
        there = sources.setdefault(file, file if file.exists() else folder / name)
        if not filecmp.cmp(there, folder / name, shallow=False):
            raise Stop(
                f"The copy needs `{folder / name}` as `{file}`, and `{there}` is another file.",
                "Make the copy in another folder, or move that file away.",
            )
    copied = [file for file, source in sources.items() if source != file]
    for file in copied:
        for parent in reversed(file.parents):
            if not parent.exists():
                parent.mkdir()
                undo.callback(parent.rmdir)
        shutil.copyfile(sources[file], file)
        undo.callback(file.unlink)
    return copied


def _copy_lock(document: Document, folder: Path, undo: ExitStack) -> list[Path]:
    """Takes what the lock file beside a recipe says of its model over into this folder's."""
    name, target = str(document.lookup(("model", "base"))), Path(lock.LOCK)
    entry = lock.entries(folder / lock.LOCK).get(name)
    if entry is None or name in lock.entries(target):
        return []
    before = target.read_text(encoding="utf-8") if target.exists() else None
    lock.add(target, name, entry)
    undo.callback(target.unlink) if before is None else undo.callback(target.write_text, before, encoding="utf-8")
    return [target]


def _files(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every file and folder that a recipe names, in whatever section, and models on the hub, which are neither: where, and its name."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key in ("path", "validation_path", "sample", "sample_task", "base") and isinstance(item, str):
            yield (*path, str(key)), item
        yield from _files(item, (*path, str(key)))


def find(source: str) -> Path:
    """The recipe that `--from` means: a file, or a starter recipe by name."""
    starters = packaged.named()
    if Path(source).is_file():
        return Path(source)
    if source in starters:
        return starters[source]
    near = nearest(source, starters)
    hint = f"Did you mean `{near}`? " if near else ""
    raise Stop(f"There is no starter recipe and no file `{source}`.", f"{hint}Starter recipes: {listed(starters)}.")


def minimal(source: str) -> Path:
    """The minimal starter of a starter's scenario: one on the same data, else the one that is called after it."""
    if source not in packaged.named():
        find(source)
        raise Stop(
            f"`--minimal` goes with a starter recipe, and `{source}` is a file.",
            f"Name one: {listed(path.stem for path in packaged.starters())}.",
        )
    wanted = read(packaged.named()[source])
    scenario, hub = wanted.data["scenario"], wanted.lookup(("data", "hub"))
    fitting = [document for file in packaged.minimal() if (document := read(file)).data["scenario"] == scenario]
    if not fitting:
        raise Stop(f"The scenario `{scenario}` has no minimal starter.", "Leave out `--minimal`.")
    best = max(fitting, key=lambda one: (one.lookup(("data", "hub")) == hub, Path(one.file).stem == scenario))
    return Path(best.file)
