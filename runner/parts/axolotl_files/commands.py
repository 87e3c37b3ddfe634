"""`recipe import`: a recipe made of an Axolotl file."""

from pathlib import Path

import click

from runner import catalog
from runner.check import by_schema
from runner.commands.options import complete_recipe, end, say
from runner.parts.axolotl_files import importing
from runner.recipe import reading
from runner.tools import packaged
from runner.tools.problem import Stop

LINE = "\nNothing was written. `--without KEY` imports the file without a line."


@click.command("import")
@click.argument("path", metavar="FILE", shell_complete=complete_recipe)
@click.option("-o", "--out", metavar="NAME.yaml", help="The recipe to write. Default: the file's name, in this folder.")
@click.option(
    "--without", "left_out", multiple=True, metavar="KEY", help="Leave out this line of the file. Repeatable."
)
def import_file(path: str, out: str | None, left_out: tuple[str, ...]) -> None:
    """Turn an Axolotl file into a recipe, and list every line that means something else there.

    If a recipe cannot set a line, the reason is printed, and nothing is written.
    """
    document = reading.read(path, "file of Axolotl", "Name a YAML file of Axolotl.")
    if missing := [key for key in left_out if key not in document.data]:
        raise Stop(f"`{path}` has no line `{missing[0]}`.", "Name one of its settings after `--without`.", code=2)
    for key in left_out:
        del document.data[key]
    made = importing.read(document)
    if problems := made.refused or importing.judged(made):
        raise Stop("\n\n".join(map(str, problems)), LINE)
    target = Path(out or f"{made.values['name',]}.yaml")
    if target.exists():
        raise Stop(f"`{target}` already exists.", "Choose another name: `-o NAME.yaml`.")
    scenario = made.values["scenario",]
    target.write_text(made.text, encoding="utf-8")
    target.with_name(packaged.schema_file(scenario).name).write_text(by_schema.schema_text(scenario), encoding="utf-8")
    for note in sorted(made.notes, key=lambda note: note.line):
        say(f"{path}:{note.line}: {note.message} {note.hint}".rstrip())
    changes = f"{len(made.notes)} notes above name what changed." if made.notes else "Nothing changed its meaning."
    base, done = made.values["model", "base"], f"The recipe is in `{target}`. {changes}"
    if base not in catalog.model_ids() and not catalog.model(base, target.parent):
        end(f"{done} Its model must be recorded once.", "models", "add", base, "--recipe", target)
    else:
        end(done, "check", target)
