"""When training is evaluated and saved, and when it ends early: a recipe's lines in the settings of transformers' Trainer, which
Axolotl's have the same names as, and in those of the runner's own part in the training process."""

from collections.abc import Callable, Iterator

from runner.plan import EngineConfig
from runner.recipe.recipe import Recipe, Settings
from runner.tools.problem import Problem

# The sections that say how is trained.
SECTIONS = ("train", "pretrain", "sft", "dpo", "lora")
# Of the evaluated checkpoints the one with the lowest validation loss is kept.
KEEPS_THE_BEST = {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": False}


def evaluated(section: Settings) -> EngineConfig:
    """Evaluated by steps or after each epoch, and saved each time: the Trainer keeps the best of those that it has both
    evaluated and saved. Checkpoints between them are the runner's (see `told`)."""
    every = section.get("eval_steps")
    if every is None:
        return {"eval_strategy": "epoch", "save_strategy": "epoch"}
    return {"eval_strategy": "steps", "eval_steps": every, "save_strategy": "steps", "save_steps": every}


def unevaluated(section: Settings) -> EngineConfig:
    """Never evaluated, and saved at the end all the same."""
    every = section.get("save_steps")
    by_steps = {"save_strategy": "steps", "save_steps": every}
    return {"eval_strategy": "no", **(by_steps if every else {"save_strategy": "epoch"})}


def told(section: Settings) -> EngineConfig:
    """What the training process is told besides: checkpoints of their own steps, and when to end early."""
    stopping = section.get("early_stopping")
    return {
        **({"save_steps": every} if (every := section.get("save_steps")) else {}),
        **({"early_stopping": stopping.plain()} if stopping else {}),
    }


def rule(validates: Callable[[Recipe], bool] = lambda recipe: True) -> Callable[[Recipe], Iterator[Problem]]:
    """A rule that holds the lines of a recipe to each other. validates: whether it holds rows out."""

    def cadence(recipe: Recipe) -> Iterator[Problem]:
        for name in SECTIONS:
            section = recipe.settings.get(name)
            if section and validates(recipe):
                yield from _in_step(recipe, name, section)
            elif section and section.get("early_stopping"):
                yield recipe.document.problem(
                    (name, "early_stopping"),
                    "Early stopping goes by the validation loss, and the recipe has no validation data.",
                    "Write `validation_share: 0.02` under `data`, or delete `early_stopping`.",
                    key=True,
                )

    return cadence


def _in_step(recipe: Recipe, name: str, section: Settings) -> Iterator[Problem]:
    """Each evaluation has its checkpoint, so checkpoints of their own steps are those between them; where the last model is kept and
    not the best, either may be the rarer one."""
    evaluation, saving = section.get("eval_steps"), section.get("save_steps")
    if evaluation and saving and evaluation % saving and name != "pretrain":
        fitting = next(steps for steps in range(min(saving, evaluation), 0, -1) if evaluation % steps == 0)
        yield recipe.document.problem(
            (name, "save_steps"),
            f"A checkpoint every {saving:,} steps and an evaluation every {evaluation:,} are not in step: each evaluation has a "
            "checkpoint of its own, and others lie between them.",
            f"Write `save_steps: {fitting}`, which `eval_steps` is a multiple of, or leave it out.",
            mending=fitting,
        )
