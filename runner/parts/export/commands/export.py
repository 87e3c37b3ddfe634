"""`recipe export`: the model of a run in a form that others can load; and what `push` and `register` share with it: which model of
which run is meant, and in what form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.commands.options import complete_recipe, end, say
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.parts.export.trained_model import TrainedModel

run_argument = click.argument("run", metavar="RUN", shell_complete=complete_recipe)
stage_option = click.option("--stage", metavar="STAGE", help="The model that this stage left. Default: the last one.")
form_option = click.option(
    "--format", "form", type=click.Choice(("safetensors", "adapter", "gguf")), default="safetensors", show_default=True,
    help="The whole model, the adapter alone, or a file for llama.cpp and Ollama.",
)  # fmt: skip
quantize_option = click.option(
    "--quantize", metavar="KIND", help="Of GGUF: q8_0, q4_k_m, f16 and others. Default: as the weights are."
)


def kind_of(form: str, quantize: str | None) -> str | None:
    """The kind of a GGUF file. Raises Stop where there is none of that name, or it is to be no such file."""
    from runner.parts.export.gguf import KINDS

    if quantize and form != "gguf":
        raise Stop("`--quantize` goes with `--format gguf`.", "Leave it out.", code=2)
    if quantize and quantize.lower() not in KINDS:
        raise Stop(f"There is no kind `{quantize}`.", f"Known are {', '.join(KINDS)}.", code=2)
    return quantize.lower() if quantize else None


def opened(run: str, stage: str | None) -> TrainedModel:
    """The model of a run folder, or of the latest run of a recipe."""
    from runner.parts.export.trained_model import of
    from runner.recipe.reading import read
    from runner.run.run_folder import find

    folder = find(str(read(run).data.get("name", run)), None) if Path(run).is_file() else find("", run)
    return of(folder, stage)


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
    from runner.tools.process import hush

    hush()
    from runner.parts.export import exporting

    kind, source = kind_of(form, quantize), opened(run, stage)
    with source.folder.run.lock():
        made = exporting.export(source, form, kind, Path(os.path.abspath(out)) if out else None, say)
    say(f"{os.path.relpath(made)}/")
    end("Proven to be the trained model.", "push", run, "OWNER/NAME")
