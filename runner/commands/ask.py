"""`recipe ask`: one question to a trained model."""

from pathlib import Path

import click

from runner import parts
from runner.commands.options import end, open_recipe, recipe_path, run_option, say, set_option, stage_option, url_option
from runner.tools.problem import Stop, worded


@click.command()
@recipe_path
@click.argument("question", metavar="QUESTION|PICTURE")
@set_option
@run_option
@click.option("--base", is_flag=True, help="Ask the original model, from which the stage started.")
@stage_option
@url_option
def ask(
    path: str, question: str, sets: tuple[str, ...], run_dir: str | None, base: bool, stage: str | None, url: str | None
) -> None:
    """Ask the trained model a QUESTION, formatted as in training. Ask a model for images about the file of a
    PICTURE."""
    from runner.run import inference as asking

    recipe, _ = open_recipe(path, sets, look=False)
    if url:
        server = parts.hook("models_at")(url, recipe, stage)
        chat = server.chat(base)
        say(f"{chat.model} at {server.url}")
        say()
        say(server.answers(chat, [question])[0])
        end(f"The {'original' if base else 'trained'} model has answered.", "compare", path, "--url", url)
        return
    folder, formatted = asking.folder_of(recipe, run_dir, stage), "The question was formatted as in training."
    if classes := asking.of_pictures(folder):
        if base:
            raise Stop(*worded("commands.no-original"))
        said, formatted = asking.shares(classes(Path(question).expanduser())), "It read the picture as in training."
        say(f"The model that `{folder.stage.name}` trained, of the {folder.run.kind} in {folder.run.shown}")
    else:
        before, after = asking.models(recipe, folder)
        chat = before if base else after
        who = (
            f"The model that `{folder.stage.name}` {('started from' if base else 'trained')} in this {folder.run.kind}"
        )
        say(f"{who}: {chat.model}")
        if folder.run.kind == "rehearsal" and not folder.plan.stages[0].config.get("real_model"):
            formatted = "It is a rehearsal's tiny twin, so it writes fragments."
        said = asking.answers_of(chat, [question])[0]
    say()
    say(said)
    end(f"The {'original' if base else 'trained'} model has answered. {formatted}", "compare", path)
