"""Asking a pipeline: which stage answers, and in which words."""

from __future__ import annotations

from runner.execute.runs import RunFolder
from runner.execute.stages import StageFolder
from runner.plan import Plan, Stage
from runner.problem import Stop
from runner.recipe.curriculum import AFTER
from runner.recipe.recipe import Recipe
from runner.training.answers import Chat

MAX_NEW_TOKENS = 300
# A tiny twin's words mean nothing, and more of them cost time.
REHEARSED_TOKENS = 40
END_OF_TEXT = "<|endoftext|>"


def newest(plan: Plan) -> Stage:
    """The last stage of the plan that is finished and has learned something.

    Raises Stop where there is none yet.
    """
    for stage in reversed(plan.stages):
        if stage.engine != "runner" and StageFolder(plan, stage).finished:
            return stage
    raise Stop(
        "No stage of this pipeline has finished training yet.", "Run the command that started it again; it resumes."
    )


def converses(stage: Stage) -> bool:
    """Whether the stage's model has learned to answer; before that it only goes on with a text."""
    return stage.name in AFTER


def chats(recipe: Recipe, plan: Plan, run: RunFolder, stage: Stage) -> tuple[Chat, Chat]:
    """The model that a stage began with and the one that it left; both with the words of the second.

    After pretraining a model goes on with a text; later stages answer a conversation.
    Raises Stop where the stage has left no model.
    """
    folder = StageFolder(plan, stage)
    if stage.engine == "runner" or not list(folder.model.glob("*.safetensors")):
        raise Stop(
            f"The stage `{stage.name}` has left no model that could answer.",
            "Leave out `--stage`, or run the pipeline up to it.",
        )
    answers = converses(stage)
    words = {
        "revision": None,
        "tokenizer": str(folder.model),
        "system_prompt": recipe.settings[stage.name].data.system_prompt if answers else None,
        "max_new_tokens": MAX_NEW_TOKENS if run.kind == "run" else REHEARSED_TOKENS,
        "chat": answers,
        "turn_end": None if answers else END_OF_TEXT,
    }
    began_with = [name for name in stage.reads if name != "data"][-1]
    before = next(other for other in plan.stages if other.name == began_with)
    return Chat(model=str(StageFolder(plan, before).model), **words), Chat(model=str(folder.model), **words)
