"""`recipe run`, `rehearse` and `prepare`: a recipe, with a tiny model, or its data alone; `ask`:
its model."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import click

from runner import parts
from runner.commands.next_step import after_rehearsal, before_training
from runner.commands.options import command, end, open_recipe, say
from runner.data import packaged_models
from runner.entrypoints import prepare as preparing
from runner.recipe.overrides import from_data_option
from runner.recipe.reading import read
from runner.recipe.recipe import Override, Recipe
from runner.recipe.stages import STAGES, one_file
from runner.run import inference, pipeline, run_manifest
from runner.run import run as running
from runner.run.launch import forking
from runner.run.pipeline import Selection
from runner.run.progress import earlier_runs, earlier_sentence
from runner.run.run_folder import RunFolder, StageFolder, folder, session
from runner.scenarios import translate
from runner.tools import packaged
from runner.tools.child_process import TRAINING, Event, event_line, watch_parent
from runner.tools.problem import Stop
from runner.tools.run_files import TRACKED
from runner.tools.text import Styled, printable

# Set by a program that watches, and then reads each event as a line (see
# `runner.tools.child_process`).
EVENTS = "RECIPE_EVENTS"


@contextmanager
def at_work(
    run_kind: str,
    path: str,
    sets: tuple[str, ...],
    out: str | None,
    fresh: bool,
    data_below: str = "",
    more: list[Override] | None = None,
    real_model: bool = False,
) -> Iterator[tuple[Recipe, list[Override], RunFolder]]:
    """The recipe, the user's changes, and its locked run folder: `out`, else OUTPUT_DIR. At the
    end, successful or not, parts do their work, such as the page. data_below: the folder in
    DATA_DIR; more: further changes; real_model: as of `folder`."""
    recipe, changes = open_recipe(path, sets, environment=True, more=more)
    obstacle = packaged.why_no_training()
    if obstacle:
        raise Stop(obstacle)
    output_dir = os.environ.get("OUTPUT_DIR")
    data_dir = os.environ.get("DATA_DIR")
    if output_dir and not out:
        say(f"run folder: {output_dir}  (OUTPUT_DIR={output_dir})")
    home = folder(recipe.name, run_kind, out or output_dir, real_model)
    if not home.path.exists():
        # Perhaps the recipe was trained before its name was changed.
        older_runs = earlier_runs(recipe)
        if older_runs:
            say(earlier_sentence(older_runs))
    if data_dir:
        data = os.path.abspath(os.path.join(data_dir, data_below))
    else:
        data = None
    if data:
        say(f"prepared data: {data}  (DATA_DIR={data_dir})")
    with session(home, recipe.name, fresh, data), ExitStack() as all_of_them:
        all_of_them.callback(send_results, home)  # last, because the run's page is sent too
        if parts.has("report"):
            from runner.parts.report import page

            all_of_them.enter_context(page.at_the_end(home, say))
        yield recipe, changes, home


def send_results(run: RunFolder) -> None:
    """Sends the results of each stage to the server that got its curves, if any."""
    if any(run.path.rglob(TRACKED)):
        plan = run_manifest.plan_of(run)
        for stage in plan.stages:
            pipeline.send(StageFolder(plan, stage), say)


@contextmanager
def watch(brief: bool = False) -> Iterator[Callable[[Event], None]]:
    """Shows training's progress: a bar on a terminal, a line now and then if output is piped.
    brief: only that."""
    if not sys.stdout.isatty():
        yield (lambda event: say(event_line(event))) if os.environ.get(EVENTS) else _lines(brief)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, TextColumn("{task.fields[loss]}")) as bar:
        task = bar.add_task("starting", total=None, loss="")

        def show(event: Event) -> None:
            if event["event"] == "begin":
                bar.update(
                    task, description=TRAINING, total=event["steps"], completed=event["step"]
                )
            elif event["event"] == "phase":
                bar.update(task, description=event["phase"])
            elif event["event"] == "step":
                bar.update(task, completed=event["step"], loss=_step(event))
            if brief:
                return
            for line in _lasting(event):
                # Literally: tokens may look like rich's markup.
                bar.console.print(Text.from_ansi(line), soft_wrap=True)

        yield show


def _lines(brief: bool) -> Callable[[Event], None]:
    last_tenth = -1

    def show(event: Event) -> None:
        nonlocal last_tenth
        if (
            event["event"] == "step"
            and (tenth := event["step"] * 10 // max(1, event["steps"])) > last_tenth
        ):
            last_tenth = tenth
            say(f"  step {event['step']} of {event['steps']}, {_step(event)}")
        if brief:
            return
        for line in _lasting(event):
            say(line)

    return show


def _lasting(event: Event) -> Iterator[str]:
    """The lines about an event that stay on the screen."""
    if event["event"] == "proof":
        yield from proof_lines(event["folder"])
    elif event["event"] == "evaluation":
        epoch = f"  epoch {event['epoch']:g}: "
        loss = event["validation_loss"]
        reward = event.get("reward")
        if "accuracy" in event:
            accuracy = f", accuracy {event['accuracy']:.1%}"
        else:
            accuracy = ""
        if reward is not None:
            yield f"{epoch}mean reward {reward:.3f}"
        elif loss is not None:
            yield f"{epoch}validation loss {loss:.3f}{accuracy}"
        else:
            yield f"{epoch}no validation loss"


STYLES = packaged.toml(__file__, "styles.toml")


def proof_lines(folder: str, rows: bool = False) -> Iterator[Styled]:
    """The lines of a folder's proof, with tokens in colour. click removes colours if the output is
    not a terminal. rows: whether to show its rows, token by token."""
    if not parts.has("proof"):
        return
    from runner.parts.proof import hooks

    for line in hooks.shown(folder, rows):
        tokens = ((printable(text), STYLES.get(token_kind)) for token_kind, text in line)
        yield Styled(
            "  " + "".join(click.style(text, **style) if style else text for text, style in tokens)
        )


def _step(event: Event) -> str:
    """A step's loss, or its reward: the loss of answers that are compared with each other is always
    about 0."""
    if event.get("reward") is None:
        name = "loss"
    else:
        name = "reward"
    return f"{name} {event[name]:.3f}"


def confirm(
    yes: bool, takes: str, instead: str = "`recipe rehearse RECIPE` takes minutes."
) -> bool:
    """Asks on a terminal whether something long may start; without one, `--yes` must answer
    beforehand. instead: what takes less time, as a sentence."""
    if not yes and not sys.stdin.isatty():
        verb = click.get_current_context().info_name
        raise Stop(
            f"{takes} Without a terminal, `recipe {verb}` cannot ask whether to start it.",
            f"Add `--yes` to start it, or train fewer epochs or rows (`--set`). {instead}".strip(),
        )
    return yes or click.confirm(f"{takes} Start it?")


@command
def run(
    path: str,
    sets: tuple[str, ...],
    yes: bool,
    out: str | None,
    stage: str | None,
    first_stage: str | None,
    last: str | None,
    fresh: bool,
    brief: bool,
) -> None:
    """Train on this machine's GPUs, or on its CPU if it has none, and prepare the data first. An
    interrupted run continues where it stopped."""
    watch_parent()  # of the page of `recipe edit`, which may be killed
    watching = partial(watch, brief)
    with at_work("run", path, sets, out, fresh) as (recipe, changes, home), forking():
        running.run(
            recipe,
            home,
            Selection(stage, first_stage, last),
            say,
            watching,
            changes,
            partial(confirm, yes),
            brief,
        )
    part = stage or first_stage or last
    done = f"{'The chosen stages are finished' if part else 'Training finished'}. The results are in {home.shown}."
    if brief and not part:
        end(done, "chat", path, "--page")
        return
    end(done, "run" if part else "compare", path)


@command
def rehearse(
    path: str,
    sets: tuple[str, ...],
    data: str | None,
    model: str | None,
    out: str | None,
    stage: str | None,
    first_stage: str | None,
    last: str | None,
    fresh: bool,
    yes: bool,
) -> None:
    """Run the whole recipe on this machine, with a tiny twin of its model. This needs no GPU and no
    download."""
    watch_parent()  # of the page, which may be killed
    real_model = model is not None
    data_below = "rehearsal-real" if real_model else "rehearsal"
    with (
        at_work("rehearsal", path, sets, out, fresh, data_below, real_model=real_model) as (
            recipe,
            changes,
            home,
        ),
        forking(),
    ):
        chosen = Selection(stage, first_stage, last)
        asks = partial(confirm, yes, instead="")
        running.rehearse(recipe, home, data, chosen, say, watch, changes, model, confirm=asks)
    done = f"Rehearsal passed: {'these stages work' if stage or first_stage or last else 'the whole recipe works'} here, with a {'real' if model else 'tiny'} model."
    end(done, *after_rehearsal(recipe, path, model))


@command
def prepare(
    path: str, sets: tuple[str, ...], data: str | None, out: str | None, show: int | None
) -> None:
    """Prepare a recipe's data: read, fill, deduplicate and split it. Writes Parquet, and reports
    how every row was used."""
    if data and STAGES in read(path).data:
        raise one_file()
    recipe, _ = open_recipe(path, sets, more=from_data_option(data))
    place = folder(recipe.name, "run").place(str(Path(out).resolve()) if out else None)
    first_stage = translate(recipe, place).stages[0]
    packaged_models.make_ready([first_stage], say)
    # The trained tokens are proven on request, and again before a stage reserves a GPU.
    preparing.carry_out({**first_stage.config, "proofs": None}, say)
    if show:
        parts.require("proof")
        from runner.parts.proof import hooks

        for proven in hooks.show_rows(recipe, place, show, say):
            for line in proof_lines(proven, rows=True):
                say(line)
    end(
        f"The rows are ready for training, in {out or place.data_dir}.",
        before_training(recipe),
        path,
    )


@command
def ask(
    path: str,
    question: str,
    sets: tuple[str, ...],
    run_dir: str | None,
    base: bool,
    stage: str | None,
    url: str | None,
) -> None:
    """Ask the trained model a QUESTION, formatted as in training. Ask a model for images about the
    file of a PICTURE."""
    recipe, _ = open_recipe(path, sets, look=False)
    if url:
        parts.require("serve")
        from runner.parts.serve import openai_api

        server = openai_api.at(url, recipe, stage)
        chat = server.chat(base)
        say(f"{chat.model} at {server.url}")
        say()
        say(server.answers(chat, [question])[0])
        end(
            f"The {'original' if base else 'trained'} model has answered.",
            "compare",
            path,
            "--url",
            url,
        )
        return
    folder = inference.folder_of(recipe, run_dir, stage)
    formatted = "The question was formatted as in training."
    classes = inference.of_pictures(folder)
    if classes:
        if base:
            raise Stop(
                "There is no original model to ask: this model started from random weights.",
                "Leave out `--base`.",
            )
        answer = inference.shares(classes(Path(question).expanduser()))
        formatted = "It read the picture as in training."
        say(
            f"The model that `{folder.stage.name}` trained, of the {folder.run.kind} in {folder.run.shown}"
        )
    else:
        before, after = inference.models(recipe, folder)
        if base:
            chat = before
            did = "started from"
        else:
            chat = after
            did = "trained"
        say(f"The model that `{folder.stage.name}` {did} in this {folder.run.kind}: {chat.model}")
        if folder.run.is_of_twin:
            formatted = "It is a rehearsal's tiny twin, so it writes fragments."
        answer = inference.answers_of(chat, [question])[0]
    say()
    say(answer)
    end(f"The {'original' if base else 'trained'} model has answered. {formatted}", "compare", path)
