"""Locking: a model's facts, from where it lies, into a lock file."""

import os
from pathlib import Path

from runner import catalog
from runner.catalog import published
from runner.recipe import lock
from runner.tools.problem import Stop


def add(file: Path, name: str, revision: str, known_as: str | None = None) -> catalog.Model:
    """Writes a model into a lock file: `name` is a folder (below the lock file's or this one) or a name on the hub.
    known_as: what recipes call a folder, where that is not its path. Raises Stop where it cannot be."""
    if (known_as or name) in catalog.model_ids():
        raise Stop(
            f"`{known_as or name}` is in the catalog, which is looked at first.",
            "It needs no lock. `revision` under `model` holds a recipe to one commit of it.",
        )
    lock.entries(file)  # a broken file is said before anything is fetched
    folder = next((place for place in (file.parent / name, Path(name)) if place.is_dir()), None)
    if folder:
        path = name if Path(name).is_absolute() else Path(os.path.relpath(folder, file.parent)).as_posix()
        model = published.in_folder(folder, known_as or path)
    elif name.startswith("/"):
        raise Stop(
            f"There is no folder `{name}` on this machine.",
            f"Is it on a claim? Then `recipe models add {name} --recipe RECIPE` reads it there, with a recipe that names the "
            f"claim. Without a cluster: copy its `config.json` and `tokenizer_config.json` into a folder, and "
            f"`recipe models add FOLDER --as {name}`.",
        )
    elif known_as:
        raise Stop("`--as` is for a folder: a model on the hub has its name.", "Leave it out.", code=2)
    else:
        model = published.on_hub(name, revision)
    lock.add(file, model.id, lock.entry_of(model, revision))
    return model
