"""`recipe export`: the model of a run in a form that others can load."""

from __future__ import annotations

import os
from pathlib import Path

import click

from runner.commands.options import end, say
from runner.parts.export.commands.model_options import (
    form_option,
    kind_of,
    quantize_option,
    run_argument,
    stage_option,
)


@click.command()
@run_argument
@form_option
@quantize_option
@stage_option
@click.option("--out", metavar="DIR", help="Where it goes. Default: export/FORMAT in the run.")
def export(run: str, form: str, quantize: str | None, stage: str | None, out: str | None) -> None:
    """Write the model of a RUN for others, proven to be what was trained, with a model card.

    RUN is a run folder; in its place a recipe means its latest run.
    """
    from runner.tools.quiet import hush

    hush()
    from runner.parts.export import exporting
    from runner.parts.export.commands.model_options import opened

    kind, source = kind_of(form, quantize), opened(run, stage)
    with source.folder.run.lock():
        made = exporting.export(source, form, kind, Path(os.path.abspath(out)) if out else None, say)
    say(f"{os.path.relpath(made)}/")
    end("Proven to be the trained model.", "push", run, "OWNER/NAME")
