"""`recipe import`."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner import catalog
from runner.check import by_schema, validate
from runner.check.copying import edited
from runner.commands.options import command, end, say
from runner.parts.axolotl_files import checking, conversion, importing, others
from runner.recipe import overrides as changing
from runner.recipe import reading
from runner.recipe.recipe import Override
from runner.tools import packaged
from runner.tools.files import write_text
from runner.tools.problem import Problem, Stop, errors_of


def judged(imported: importing.Import, changes: Iterable[Override] = ()) -> list[Problem]:
    """The recipe's errors after the changes, without those of its base model, which may be unknown
    here."""
    recipe, _ = validate.override(importing.with_known_model(imported.recipe), changes)
    return errors_of(validate.examined(recipe, allowed=validate.ALLOWED)[1])


@command
def import_(path: str, out: str | None, left_out: tuple[str, ...], sets: tuple[str, ...]) -> None:
    """Turn a file of Axolotl or LLaMA-Factory, or a command of TRL, into a recipe, and list every
    line that means something else there.

    If a recipe cannot set a line, the reason is printed, and nothing is written.
    """
    text = reading.text(path, "file of Axolotl")
    if Path(path).suffix in (".yaml", ".yml"):
        script = None
    else:
        script = others.command_line(path, text)
    document = script or reading.parse(
        path, text, "file of Axolotl", "Name a YAML file of Axolotl."
    )
    missing = [key for key in left_out if key not in document.data]
    if missing:
        raise Stop(
            f"`{path}` has no line `{missing[0]}`.",
            "Name one of its settings after `--without`.",
            code=2,
        )
    for key in left_out:
        del document.data[key]
    if script:
        imported = others.read(document, "trl")
    else:
        imported = conversion.made_of(document) or importing.read(document)
    recipe, changes = validate.override(imported.recipe, changing.from_options(sets))
    problems = imported.refused or judged(imported, changes)
    if problems:
        raise Stop(
            "\n\n".join(map(str, problems)),
            "\nNothing was written. `--without KEY` imports the file without a line. `--set KEY=VALUE` changes a setting of the recipe, such as `model.revision`.",
        )
    target = Path(out or f"{recipe.data['name']}.yaml")
    if target.exists():
        raise Stop(f"`{target}` already exists.", "Choose another name: `-o NAME.yaml`.")
    if not checking.is_axolotls(document):
        _paths_from(imported, target.parent)
    scenario = recipe.data["scenario"]
    schema = target.with_name(packaged.schema_file(scenario).name)
    write_text(target, edited(imported.text, changes))
    write_text(schema, by_schema.schema_text(scenario))
    own_gpu = any(change.path[0] == "machines" for change in changes)
    imported.notes = [
        note for note in imported.notes if not (own_gpu and note.message == importing.NO_GPU)
    ]
    for note in sorted(imported.notes, key=lambda note: note.line):
        say(f"{path}:{note.line}: {note.message} {note.hint}".rstrip())
    if imported.notes:
        changes_sentence = f"{len(imported.notes)} notes above name what changed."
    else:
        changes_sentence = "Nothing changed its meaning."
    base = recipe.data["model"]["base"]
    done = f"The recipe is in `{target}`. {changes_sentence}"
    if base not in catalog.model_ids() and not catalog.model(base, target.parent):
        end(f"{done} Its model must be recorded once.", "models", "add", base, "--recipe", target)
    else:
        end(done, "check", target)


def _paths_from(imported: importing.Import, folder: Path) -> None:
    """Files of rows are named from the folder of the recipe, and no longer from that of the
    trainer's file."""
    sets = imported.values.get(("data", "sets"), [imported.values])
    for data_set in sets:
        key: Any
        if data_set is not imported.values:
            key = "path"
        else:
            key = ("data", "path")
        if key in data_set and not data_set[key].startswith(("/", "~")):
            file = Path(imported.file.file).parent / data_set[key]
            data_set[key] = Path(os.path.relpath(file, folder)).as_posix()
