"""Asking the models of a run: the tuned one and the original."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from runner.execute.runs import RunFolder
from runner.files import read_json
from runner.problem import Stop
from runner.recipe.recipe import Recipe
from runner.training.answers import Chat, answers, chats


def models(run: RunFolder, recipe: Recipe) -> tuple[Chat, Chat]:
    """The original and the tuned model of a run, in the words of its training.

    Raises Stop where the run has no model yet.
    """
    if "demo" not in recipe.settings:
        raise Stop(
            f"`{recipe.name}` trains a model that tells images apart; there is nothing to ask it in words.",
            f"How well it does is in `{run.path}/training_summary.json`: best_accuracy, and test_accuracy where there "
            "are test images.",
        )
    demo = read_json(run.path / "demo.json")
    if demo is None or not (run.path / "best_model").is_dir():
        raise Stop(
            f"The {run.kind} in `{run.path}` has no trained model yet.",
            "Run the command that started it again; it resumes.",
        )
    # A rehearsal's answers are short; the recipe's own length holds where it is asked by hand.
    wanted = recipe.demo.max_new_tokens if run.kind == "run" else demo["max_new_tokens"]
    before, after = chats(run.path, demo)
    return replace(before, max_new_tokens=wanted), replace(after, max_new_tokens=wanted)


def answer(chat: Chat, question: str) -> str:
    """One answer. Raises Stop where the model cannot be loaded."""
    try:
        return next(iter(answers(chat, [question])))
    except OSError as error:
        raise Stop(
            f"The model `{chat.model}` cannot be loaded: {str(error).splitlines()[0]}",
            "Check the network, or the run folder.",
        ) from None


def compare(run: RunFolder, recipe: Recipe, questions: Iterable[str]) -> list[dict[str, str]]:
    """`question`, `before` and `after` for each question; what the run has already answered is not asked again."""
    known = {row["question"]: row for row in read_json(run.path / "demo_outputs" / "answers.json") or []}
    new = [question for question in questions if question not in known]
    if new:
        before, after = models(run, recipe)
        try:
            both = zip(new, list(answers(before, new)), list(answers(after, new)), strict=True)
        except OSError as error:
            raise Stop(
                f"A model cannot be loaded: {str(error).splitlines()[0]}",
                "Check the network, or the run folder.",
            ) from None
        known |= {question: {"question": question, "before": old, "after": tuned} for question, old, tuned in both}
    if not (rows := [known[question] for question in questions]):
        raise Stop(
            "There is no question to compare by.",
            "Give one with `--question`, or write `demo.questions` in the recipe.",
        )
    return rows
