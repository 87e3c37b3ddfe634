"""`recipe push`: an exported model goes to the hub."""

import click

from runner.commands.options import end, say
from runner.parts.export.commands.export import (
    form_option,
    kind_of,
    opened,
    quantize_option,
    run_argument,
    stage_option,
)


@click.command()
@run_argument
@click.argument("name", metavar="NAME")
@form_option
@quantize_option
@stage_option
@click.option("--public", is_flag=True, help="Let everybody read it. Default: a new repository is private.")
def push(run: str, name: str, form: str, quantize: str | None, stage: str | None, public: bool) -> None:
    """Send the model of a RUN to the Hugging Face hub as NAME, with its card; it is exported first where it is not yet.

    The token is that of HF_TOKEN or of `hf auth login`. RUN is a run folder; in its place a recipe means its latest run.
    """
    from runner.tools.process import hush

    hush()
    from runner.parts.export import sending

    kind, source = kind_of(form, quantize), opened(run, stage)
    with source.folder.run.lock():
        say(sending.push(source, name, form, kind, public, say))
    end("It lies on the hub.", "register", run, "--registry", "URL")
