"""`recipe merge`: an adapter becomes part of its base model."""

from pathlib import Path

import click

from runner.commands import completing
from runner.commands.options import end, open_recipe, run_option, say, set_option
from runner.tools.problem import Stop


@click.command()
@click.argument("path", metavar="RECIPE|ADAPTER", shell_complete=completing.recipe_file)
@set_option
@run_option
@click.option(
    "--out", metavar="DIR", help="Where to write the model. Default: best_model of the run, or ADAPTER-merged."
)
def merge(path: str, sets: tuple[str, ...], run_dir: str | None, out: str | None) -> None:
    """Add the adapter that a RECIPE trained, or that lies in a folder, to its base model, and write the whole model."""
    from runner.tools.quiet import hush

    hush()
    from runner.run import inference

    if (Path(path) / "adapter_config.json").is_file():
        if sets or run_dir:
            raise Stop("`--set` and `--run` go with a recipe, and this is an adapter.", "Leave them out.", code=2)
        written = inference.merge_adapter(Path(path), Path(out) if out else None)
    elif Path(path).is_dir():
        raise Stop(
            f"`{path}` holds no adapter: it has no `adapter_config.json`.",
            "Name a recipe, or `lora_adapter` in the folder of a run.",
        )
    else:
        recipe, _ = open_recipe(path, sets)
        written = inference.merge_run(recipe, run_dir, Path(out) if out else None)
    say(f"the whole model is in {written}")
    end(
        "It can be asked and served without its adapter.",
        *(("ask", path, "QUESTION") if Path(path).is_file() else ("doctor",)),
    )
