"""`recipe serve`: OpenAI's API for the models of a run, from this machine or from the cluster."""

import time

import click

from runner.commands.options import (
    open_recipe,
    port_option,
    print_notes,
    recipe_path,
    run_option,
    say,
    set_option,
    stage_option,
    with_section,
)
from runner.tools.problem import Stop, errors_of


@click.command()
@recipe_path
@set_option
@run_option
@stage_option
@port_option(8000, "the server")
@click.option(
    "--engine",
    type=click.Choice(("vllm", "transformers")),
    help="Who serves. Default: vLLM where it is installed and an adapter was trained, else transformers.",
)
@click.option("--cluster", "on_cluster", is_flag=True, help="Serve on the cluster, and bring the port here.")
@click.option("--stop", "stops", is_flag=True, help="Remove the server from the cluster.")
@click.option("--dry-run", is_flag=True, help="With --cluster: let it judge everything, and send nothing.")
def serve(
    path: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    stage: str | None,
    port: int,
    engine: str | None,
    on_cluster: bool,
    stops: bool,
    dry_run: bool,
) -> None:
    """Serve the original and the trained model by OpenAI's API until ^C, asked in the words of their training."""
    if on_cluster or stops:
        return _on_cluster(path, sets, stops, dry_run, port)
    if dry_run:
        raise Stop("`--dry-run` goes with `--cluster`.", "Leave it out.", code=2)
    from runner.tools.process import hush

    hush()
    from runner.parts.serve import local_server
    from runner.run import inference

    recipe, _ = open_recipe(path, sets)
    folder = inference.folder_of(recipe, run_dir, stage)
    before, after = inference.models(recipe, folder)
    chosen = engine or local_server.engine_for(after)
    say(f"`{folder.stage.name}` of the {folder.run.kind} in {folder.run.shown}, served by {chosen}; loading …")
    began = time.monotonic()
    with local_server.serving(chosen, recipe.name, before, after, folder.path, port) as server:
        say(f"Ready after {time.monotonic() - began:.0f} s: {server.url}/v1  (^C ends it)")
        say(f"models: {', '.join(server.models)}")
        if len(server.models) == 1:
            say("vLLM serves one whole model; with `--engine transformers` the original one is there too.")
        say(f"log: {server.log}")
        server.wait()


def _on_cluster(path: str, sets: tuple[str, ...], stops: bool, dry_run: bool, port: int) -> None:
    from runner.parts.openshift.client import connect
    from runner.parts.serve import cluster as on_cluster
    from runner.parts.serve import kserve
    from runner.parts.serve import needs as reckoned
    from runner.parts.serve.kserve import served
    from runner.render import planned

    recipe = with_section(open_recipe(path, sets, look=False)[0], "serve", "--cluster")
    if stops:
        return on_cluster.stop(connect(), planned(recipe, kserve.NAME), say)
    plan, server, needs = served(recipe)
    problems = reckoned.problems(recipe, server, needs)
    print_notes(problems)
    if wrong := errors_of(problems):
        raise Stop(wrong)
    return on_cluster.start(connect(), plan, server, say, port, dry_run)
