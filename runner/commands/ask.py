"""`recipe ask` and `merge`: one question to a trained model, and an adapter that becomes part of its base model."""

from pathlib import Path

import click

from runner import parts
from runner.commands.options import (
    complete_recipe,
    end,
    open_recipe,
    recipe_path,
    run_option,
    say,
    set_option,
    stage_option,
    url_option,
)
from runner.tools.problem import Stop


@click.command()
@recipe_path
@click.argument("question", metavar="QUESTION|PICTURE")
@set_option
@run_option
@click.option("--base", is_flag=True, help="Ask the original model: the one that the stage began with.")
@stage_option
@url_option
def ask(
    path: str, question: str, sets: tuple[str, ...], run_dir: str | None, base: bool, stage: str | None, url: str | None
) -> None:
    """Put a QUESTION to the model that a recipe trained, in the words it was trained with; to one of images, the file of a
    PICTURE."""
    from runner.tools.process import hush

    hush()
    from runner.run import inference as asking

    recipe, _ = open_recipe(path, sets)
    if url:
        server = parts.hook("models_at")(url, recipe, stage)
        chat = server.chat(base)
        say(f"{chat.model} at {server.url}")
        say()
        say(server.answers(chat, [question])[0])
        return
    folder = asking.folder_of(recipe, run_dir, stage)
    if classes := asking.of_pictures(folder):
        if base:
            raise Stop("There is no original model to ask: this one began with random weights.", "Leave out `--base`.")
        said = asking.shares(classes(Path(question).expanduser()))
        say(f"what `{folder.stage.name}` left of the {folder.run.kind} in {folder.run.path}")
    else:
        before, after = asking.models(recipe, folder)
        chat = before if base else after
        who = f"the model that `{folder.stage.name}` {'began with' if base else 'left'}"
        say(f"{who}, {chat.model}, of the {folder.run.kind} in {folder.run.path}")
        said = asking.answers_of(chat, [question])[0]
    say()
    say(said)
    end("Asked as it was trained to be asked.", "compare", path)


@click.command()
@click.argument("path", metavar="RECIPE|ADAPTER", shell_complete=complete_recipe)
@set_option
@run_option
@click.option(
    "--out", metavar="DIR", help="Where to write the model. Default: best_model of the run, or ADAPTER-merged."
)
def merge(path: str, sets: tuple[str, ...], run_dir: str | None, out: str | None) -> None:
    """Add the adapter that a RECIPE trained, or that lies in a folder, to its base model, and write the whole model."""
    from runner.tools.process import hush

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
