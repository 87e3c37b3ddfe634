"""`recipe evaluate`: measures what a stage has left, and records it."""

from pathlib import Path

import click

from runner import parts
from runner.commands.options import end, open_recipe, recipe_path, run_option, say, set_option, url_option
from runner.tools.problem import Stop


@click.command()
@recipe_path
@click.argument("stage", required=False)
@set_option
@run_option
@click.option(
    "--checkpoint", metavar="DIR", help="This model instead of what the stage has left; it opens and closes no gate."
)
@url_option
@click.option("--format", "form", type=click.Choice(("text", "json", "markdown")), default="text", show_default=True)
def evaluate(
    path: str,
    stage: str | None,
    sets: tuple[str, ...],
    run_dir: str | None,
    checkpoint: str | None,
    url: str | None,
    form: str,
) -> int:
    """Measure the model that a run has left, and the one that it began with; exit 1 where a gate is closed.

    STAGE is one of a pipeline's; left out, the last one that has left a model. With `--url` what a server says is measured, on the
    same rows; that is shown and recorded nowhere.
    """
    from runner.tools.process import hush

    hush()
    from runner.parts.evaluate import evaluation_report, gates
    from runner.run import inference

    recipe, _ = open_recipe(path, sets, aside=form != "text")
    if url and checkpoint:
        raise Stop("`--url` measures what a server has, and `--checkpoint` what lies here.", "Leave one out.", code=2)
    folder = inference.folder_of(recipe, run_dir, stage)
    if url:
        measured = parts.hook("models_at")(url, recipe, stage).measure(folder)
        for line in evaluation_report.shown(folder, measured, form, judge=False):
            say(line)
        if form == "text":
            end("Measured, and recorded nowhere.", "compare", path, "--url", url)
        return 0
    if checkpoint and not Path(checkpoint).exists():
        raise Stop(f"There is no folder `{checkpoint}`.", "A stage's checkpoints lie in its folder `checkpoints/`.")
    with folder.run.lock():
        found = gates.measure(folder, Path(checkpoint).resolve() if checkpoint else None)
    for line in evaluation_report.shown(folder, found, form):
        say(line)
    holds = bool(checkpoint) or not folder.stage.gates or gates.opened(folder)[0]
    if form == "text":
        if holds:
            asks = "it holds what its gates ask" if folder.stage.gates else "no gate asks for more"
            end(f"Measured; {asks}.", "compare", path)
        else:
            end("Measured; its gate stays closed.", "gate", path, folder.stage.name)
    return 0 if holds else 1
