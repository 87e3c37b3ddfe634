"""The recipe that a file of another trainer would become."""

from runner.parts.axolotl_files import checking, importing, others
from runner.recipe.document import Document
from runner.tools.problem import Problem, Stop, listed


def made_of(document: Document) -> importing.Import | None:
    """The recipe that another trainer's file can become; None for a recipe and any other file."""
    if checking.is_axolotls(document):
        return importing.read(document)
    name = others.trainer(document)
    if name:
        return others.read(document, name)
    return None


def as_recipe(document: Document) -> tuple[Document, list[Problem]] | None:
    """The recipe that another trainer's file would become, for commands that only look at it, and a
    note on what that leaves out; None for any other file. Raises Stop with what no recipe can
    say."""
    imported = made_of(document)
    if imported is None:
        return None
    if imported.refused:
        raise Stop(imported.refused)
    unmodelled = []
    for path in imported.values:
        if path[:2] == ("advanced", "axolotl"):
            unmodelled.append(str(path[-1]))
    message = f"This file of {imported.trainer} is read as a recipe."
    if unmodelled:
        message += f" A plan does not count {listed(unmodelled)}."
    hint = f"`recipe import {document.file}` writes the recipe, and names every change of meaning."
    return imported.recipe, [Problem(document.file, 0, 0, message, hint, severity="note")]
