"""`recipe rehearse`: the whole way on any machine, with a tiny model."""

from __future__ import annotations

import os

import click

from runner.commands import training_options as shared
from runner.commands.options import is_staged, open_recipe, say

_data = click.option("--data", metavar="FILE", help="Real rows instead of the recipe's sample.")


@click.command()
@shared.options("runs/NAME-rehearsal", _data)
def rehearse(
    path: str,
    sets: tuple[str, ...],
    data: str | None,
    out: str | None,
    stage: str | None,
    first: str | None,
    last: str | None,
    fresh: bool,
) -> None:
    """Run a recipe end to end on this machine, with a tiny twin of its model. No GPU, no download."""
    from runner.quiet import hush

    hush()
    from runner.execute import rehearse as rehearsing
    from runner.execute import runs
    from runner.names import content_hash

    recipe, made = open_recipe(path, sets, environment=True)
    folder = runs.folder(recipe.name, "rehearsal", shared.run_folder_from(out))
    if is_staged(recipe, stage, first, last):
        from runner.execute.order import Selection
        from runner.execute.rehearse_pipeline import rehearse as rehearse_stages

        chosen = Selection(stage, first, last)
        with runs.session(folder, f"pipeline {recipe.name}", made, fresh):
            rehearse_stages(recipe, folder, data, shared.data_folder_from("rehearsal"), chosen, say, shared.watch)
        return

    def carry_out() -> None:
        rehearsing.rehearse(recipe, folder, data, shared.data_folder_from("rehearsal"), say, shared.watch)

    fingerprint = content_hash([recipe.fingerprint, os.path.abspath(data) if data else recipe.data.get("sample")])
    shared.one_stage(folder, fingerprint, made, fresh, rehearsing.data_files(recipe, data), carry_out)
