"""`recipe models`: the models that a recipe can name, and `recipe models add` for those that the catalog lacks."""

from __future__ import annotations

from pathlib import Path

import click

from runner import catalog
from runner.check.validate import judge
from runner.commands.options import say
from runner.estimate import parameters
from runner.problem import Stop
from runner.recipe import lock
from runner.recipe.document import Document
from runner.recipe.reading import read
from runner.recipe.recipe import Recipe


@click.group(invoke_without_command=True)
@click.option("--recipe", metavar="RECIPE", help="Whose lock file to show. Default: that of this folder.")
@click.pass_context
def models(context: click.Context, recipe: str | None) -> None:
    """Show the models of the catalog, and those that the lock file beside a recipe knows."""
    if context.invoked_subcommand:
        return
    file = Path(recipe).parent / lock.LOCK if recipe else Path(lock.LOCK)
    rows = [("MODEL", "PARAMETERS", "LONGEST ROW", "LICENCE", "FROM")]
    rows += [_row(one, "catalog") for name in catalog.model_ids() if (one := catalog.model(name))]
    rows += [_row(lock.model_of(name, entry), file.name) for name, entry in lock.entries(file).items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _row(model: catalog.Model, where: str) -> tuple[str, str, str, str, str]:
    return model.id, _size(model), f"{model.max_position_embeddings:,}", _licence(model), where


def _licence(model: catalog.Model) -> str:
    return (model.licence or "unknown") + (", gated" if model.gated else "")


def _size(model: catalog.Model) -> str:
    if model.model_type not in parameters.FAMILIES:
        return "-"
    return f"{(model.parameters or parameters.total(model)) / 1e9:.2f}B"


def _settings_of(document: Document) -> Recipe:
    """A recipe whose model nobody knows yet. Raises Stop where its schema refuses it."""
    recipe, problems = judge(document)
    if recipe is None:
        raise Stop([problem for problem in problems if problem.severity == "error"])
    return recipe


@models.command()
@click.argument("name", metavar="NAME|FOLDER")
@click.option("--recipe", metavar="RECIPE", help="Write beside this recipe, for the revision that it names.")
@click.option("--out", metavar="FILE", help=f"The lock file to write. Default: {lock.LOCK}, here or beside the recipe.")
@click.option("--revision", metavar="R", help="Branch, tag or commit on the hub. Default: the recipe's, else main.")
@click.option("--as", "known_as", metavar="NAME", help="What recipes call a folder, where that is not its path.")
def add(name: str, recipe: str | None, out: str | None, revision: str | None, known_as: str | None) -> None:
    """Write a model's facts into the lock file, so that check, plan and render need no network for it.

    NAME is one on the Hugging Face hub; FOLDER holds a model with its config.json, on this machine or, with `--recipe`, on one
    of that recipe's claims. Only small files are read, no weights. The commit of the hub is written down too, and is what
    recipes beside the lock file then train.
    """
    from runner.runs import locking

    if recipe and out:
        raise click.UsageError("`--recipe` and `--out` both say where to write; use one of them.")
    document = read(recipe) if recipe else None
    file = Path(recipe).parent / lock.LOCK if recipe else Path(out or lock.LOCK)
    if document and name.startswith("/") and not Path(name).is_dir():
        from runner.cluster.claimed_model import copied

        with copied(_settings_of(document), name, say) as folder:
            model = locking.add(file, str(folder), "", known_as or name)
    else:
        named = document.lookup(("model", "revision")) if document else None
        model = locking.add(file, name, revision or str(named or "main"), known_as)
    say(f"{file}: {model.id}" + (f" at {model.revision}" if model.revision else ""))
    say(f"{model.model_type}, {_size(model)} parameters, licence {_licence(model)}.")
    if model.model_type not in parameters.FAMILIES:
        say("There are no formulas for its architecture: `recipe plan` will say so, and name those that it knows.")
    say(f"Recipes beside it may now say `base: {model.id}` under `model`. Keep the file under version control.")
