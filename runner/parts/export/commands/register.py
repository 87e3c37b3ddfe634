"""`recipe register`: a model is entered in a Model Registry."""

import click

from runner.commands.options import end, say
from runner.parts.export.commands.export import opened, run_argument, stage_option


@click.command()
@run_argument
@click.option(
    "--registry",
    "server",
    required=True,
    metavar="URL",
    help="The registry's address, such as https://registry.example.com.",
)
@click.option("--name", metavar="NAME", help="What the model is called there. Default: as the recipe.")
@click.option(
    "--version", "version", metavar="VERSION", help="Default: the recipe's fingerprint and the number of the run."
)
@click.option(
    "--uri", metavar="URI", help="Where the model lies. Default: where it was pushed to, or the cluster's claim."
)
@stage_option
def register(run: str, server: str, name: str | None, version: str | None, uri: str | None, stage: str | None) -> None:
    """Enter the model of a RUN in a Model Registry: where it lies, and the recipe, data and evaluation that it comes from.

    A token is read from MODEL_REGISTRY_TOKEN. RUN is a run folder; in its place a recipe means its latest run.
    """
    import model_registry  # noqa: F401 - said here, before anything is read

    from runner.tools.process import hush

    hush()
    from runner.parts.export import sending

    source = opened(run, stage)
    usual = f"{source.run.planned.fingerprint}-{source.run.state.id[:8]}"
    name, version = name or source.run.name, version or usual
    where = sending.register(source, server, name, version, uri)
    say(f"{name} {version} is in the registry; it lies at {where}")
    end("It is entered.", "report", run)
