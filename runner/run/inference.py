"""The models of a run: asks a stage's original and trained model, and shows their answers side by
side."""

import importlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from runner import parts
from runner.check.validate import changed
from runner.data import packaged_models
from runner.parts.contract import Classifier
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.run.progress import find_run
from runner.run.run_folder import RunFolder, StageFolder
from runner.scenarios import translate
from runner.tools.files import read_json
from runner.tools.problem import Stop
from runner.tools.run_files import BEST_IMAGES, DEMO, SUMMARY
from runner.tools.text import Styled, pieces, printable
from runner.trainer.generation import Chat, chats, load


def plan_of(recipe: Recipe, run: RunFolder) -> Plan:
    """The recipe's plan in one of its runs, with that run's changes, even without data. Raises Stop
    for other runs."""
    try:
        return translate(changed(recipe, run.overrides, look=False)[0], run.place())
    except Stop:
        owner = run.state.recipe
        if owner == recipe.name:
            raise
        raise Stop(
            f"`{run.path}` is a {run.kind} of the recipe `{owner}`.", "Name that recipe."
        ) from None


def newest(plan: Plan) -> StageFolder:
    """The last stage of the plan that has a model. Raises Stop if there is none yet."""
    folders = [StageFolder(plan, stage) for stage in reversed(plan.stages) if stage.trains]
    for folder in folders:
        if folder.weights_files:
            return folder
    raise Stop(
        f"The {folders[0].run.kind} in `{folders[0].run.path}` has no trained model yet.",
        "Run the command that started it again. It continues where it stopped.",
    )


def folder_of(recipe: Recipe, run_dir: str | None, stage: str | None = None) -> StageFolder:
    """The stage for a command: in the run of `run_dir` or the newest one; with that name, or the
    last with a model."""
    plan = plan_of(recipe, find_run(recipe, run_dir))
    if stage:
        return StageFolder(plan, plan.stage(stage))
    return newest(plan)


def of_pictures(folder: StageFolder) -> Callable[[Path], Mapping[str, float]] | None:
    """For a stage that trains on images, a function from a file to the share of each class, the
    largest first, which raises Stop for other files. None for a language model."""
    module = parts.table("asked").get(folder.stage.engine)
    weights = next(iter(folder.path.glob(BEST_IMAGES)), None)
    if module is None or weights is None:
        return None
    classifier: Any = importlib.import_module(module)
    return cast(Classifier, classifier).load(weights)


def shares(classes: Mapping[str, float]) -> str:
    """The five likeliest classes of a picture, one on each line."""
    likeliest = list(classes.items())[:5]
    width = max(len(name) for name, _ in likeliest)
    return "\n".join(f"{name:<{width}}  {share:6.1%}" for name, share in likeliest)


def models(recipe: Recipe, folder: StageFolder) -> tuple[Chat, Chat]:
    """A stage's original and trained model, with the prompts of training. Raises Stop if the stage
    has none to ask."""
    stage = folder.stage
    demo = read_json(folder.path / DEMO)
    if stage.config.get("reward_model"):
        raise Stop(
            f"`{recipe.name}` trains a reward model, which gives an answer a score and writes none.",
            f"It is in `{folder.model}`, as AutoModelForSequenceClassification reads it. `{folder.path / SUMMARY}` has how often it prefers the better answer.",
        )
    if stage.trains and "demo" not in stage.config["recipe_runner"]:
        raise Stop(
            f"`{recipe.name}` trains a model that classifies images. It cannot answer questions in words.",
            f"`recipe ask RECIPE PICTURE` shows it a picture. `{folder.path / SUMMARY}` has its accuracy.",
        )
    if demo is None or not folder.model.is_dir():
        raise Stop(
            f"The stage `{stage.name}` has no model that could answer.",
            "Leave out `--stage`, or run the command that started it again. It continues where it stopped.",
        )
    packaged_models.make_ready([stage])
    if demo["base_model"].startswith("/") and not Path(demo["base_model"]).is_dir():
        # The run was moved, or fetched from a claim that has the base model.
        demo_settings = stage.config["recipe_runner"]["demo"]
        demo |= {
            "base_model": demo_settings["base_model"],
            "revision": demo_settings.get("revision", demo["revision"]),
        }
    # A rehearsal has its own length of answers, shorter than the recipe's.
    section = recipe.settings.get("demo")
    if section and folder.run.kind == "run":
        length = section.max_new_tokens
    else:
        length = demo["max_new_tokens"]
    before, after = chats(folder.path, demo)
    return replace(before, max_new_tokens=length), replace(after, max_new_tokens=length)


def questions_of(recipe: Recipe, folder: StageFolder) -> list[str]:
    """The recipe's own questions, or else those from validation rows that the run has asked."""
    recipe_questions = [question for _, question in recipe.demo_questions]
    return recipe_questions or list((read_json(folder.path / DEMO) or {}).get("questions") or ())


def answers_of(chat: Chat, questions: Sequence[str]) -> list[str]:
    """An answer to each question, from a model that is loaded once. Raises Stop if it cannot be."""
    return list(map(load(chat).answer, questions))


WIDE = (
    80  # the terminal width from which two answers are side by side; also the width of piped output
)


# Where a question of the rows comes from, by `rows` of its answer.
ORIGINS = {"taught": "in the training rows", "new": "held back from training"}


def side_by_side(rows: Iterable[Mapping[str, Any]]) -> Iterator[Styled]:
    """Questions with both answers, and that of the training row where a question is one's, as
    lines. Words that only training taught are bold, or between asterisks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    if terminal:
        width = shutil.get_terminal_size().columns
    else:
        width = WIDE
    console = Console(
        width=width, force_terminal=terminal, color_system="standard" if terminal else None
    )

    def answer(text: str, learned_words: Iterable[str] = ()) -> Text:
        marked = Text()
        mark = "" if terminal else "*"
        for piece, ours in pieces(printable(text) or "(nothing)", set(learned_words)):
            marked.append(f"{mark}{piece}{mark}" if ours else piece, "bold" if ours else "")
        return marked

    for row in rows:
        before = answer(row["before"])
        after = answer(row["after"], row.get("learned") or ())
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        pairs = [("before:", before), ("after:", after)]
        if "expected" in row:
            pairs.append(("your file:", answer(row["expected"])))
        for _ in pairs if width >= WIDE else ():
            table.add_column(ratio=1, overflow="fold")
        for cells in zip(*pairs, strict=True) if width >= WIDE else pairs:
            table.add_row(*cells)
        question = printable(row["question"])
        if row.get("rows") in ORIGINS:
            question += f"  ({ORIGINS[row['rows']]})"
        with console.capture() as drawn:
            console.print()
            console.print(Text(question))
            console.print(table)
        for line in drawn.get().splitlines():
            yield Styled(line.rstrip())
