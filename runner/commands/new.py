"""`recipe new`: a copy to start your own from, or a recipe from a few answers."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

import click

from runner import packaged
from runner.check.validate import judge
from runner.commands import completing
from runner.commands.asking import dialogue
from runner.commands.options import end, say, set_option
from runner.drafting.answers import Answers
from runner.drafting.beginning import Draft, beside, draft
from runner.names import JOB_NAME, listed, nearest
from runner.problem import Stop
from runner.recipe import lock
from runner.recipe import overrides as changing
from runner.recipe.document import Document
from runner.recipe.reading import read


@click.command()
@click.argument("name")
@click.option(
    "--from",
    "source",
    metavar="RECIPE",
    help="A starter recipe's name, or any recipe file. Without it, a terminal is asked.",
    shell_complete=completing.starters,
)
@click.option(
    "--minimal",
    "short",
    is_flag=True,
    help="Take the minimal starter of that starter's scenario instead: on the same data, where there is one.",
)
@set_option
@dialogue.options
def new(name: str, source: str | None, short: bool, sets: tuple[str, ...], **answers: str | None) -> None:
    """Copy a recipe under a new NAME, comments and all, with its schema and its sample beside it.

    Without `--from` it asks what you have, which model, and where it runs, and makes the recipe from that. Every answer is an
    option too.
    """
    name = name.removesuffix(".yaml")
    if not JOB_NAME.match(name):
        raise Stop(
            f"A recipe cannot be called `{name}`.",
            "A name has lower-case letters, digits and `-`, starts with a letter, and has at most 53 characters.",
        )
    given = {each: said for each, said in answers.items() if said}
    if source is None and not given and not dialogue.terminal():
        raise click.MissingParameter(param_hint="'--from'", param_type="option")
    if source and given:
        raise Stop(
            "`--from` copies a recipe as it is, and does not go with answers about another one.",
            "Use `--set` beside it, or leave `--from` out.",
            code=2,
        )
    if short and source is None:
        raise Stop("`--minimal` goes with `--from`.", "Leave it out.", code=2)
    if Path(f"{name}.yaml").exists():
        raise Stop(f"`{name}.yaml` is there already.", "Choose another name, or delete it first.")
    wished, said = changing.from_options(sets), None
    if source:
        origin = minimal(source) if short else find(source)
        _refuse_errors(read(origin))
        made = draft(origin, name, wished)
    else:
        made, said = dialogue.asked(name, given, wished)
        origin = said.origin
    copied = _write(made, origin)
    if not said:
        called = f"minimal/{origin.stem}" if short else source
        say(f"{made.target}: a copy of {called}. Edit it, then: recipe check {made.target}")
        for change in changing.apply(made.origin, made.changes)[1]:
            if change.setting not in {own.setting for own in (*made.wished, *made.moved)}:
                say(f"{change}")
    for file in copied:
        say(f"{file}: goes with it")
    for problem in made.mended_later:
        say(f"\nStill to do: {problem.message}\n{problem.hint}")
    if said:
        _answered(made, said, sets)


def _write(made: Draft, origin: Path) -> list[Path]:
    """Writes the recipe, and what goes with it, which it gives; nothing at all where it has errors."""
    schema = packaged.schema_file(made.origin.data["scenario"])
    with ExitStack() as undo:
        copied = _copy_beside(made.files.values(), origin.parent, undo) + _copy_lock(made.origin, origin.parent, undo)
        if made.errors:
            raise Stop(made.errors)
        undo.pop_all()
    made.target.write_text(made.text, encoding="utf-8")
    shutil.copyfile(schema, schema.name)
    return [*copied, Path(schema.name)]


def _answered(made: Draft, said: Answers, sets: tuple[str, ...]) -> None:
    """What became of the answers, and how to get the same again."""
    secret = made.recipe.settings.get("openshift", {}).get("hub_token_secret")
    for problem in made.judged[1]:
        say(f"\n{problem}")
    say(f"\nThe same without questions:\n  {dialogue.command(made.recipe.name, said, sets)}")
    if secret:
        say(f"`{said.base}` is gated: accept its licence on the hub, and write a token into the secret `{secret}`.")
    end(f"{made.target} is made from your answers, and checked.", "rehearse", str(made.target))


def _refuse_errors(document: Document) -> None:
    """Raises Stop with every error of a recipe, where it has one."""
    _, problems = judge(document)
    if errors := [problem for problem in problems if problem.severity == "error"]:
        raise Stop(errors)


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
