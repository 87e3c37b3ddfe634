"""`recipe` alone: how far a recipe has come."""

from runner.check import batch, validate
from runner.commands.next_step import training_verb
from runner.commands.options import end, say, table
from runner.recipe.recipe import Recipe
from runner.run.progress import (
    Progress,
    earlier_runs,
    earlier_sentence,
    real_model,
    runs_of,
)
from runner.tools import packaged
from runner.tools.problem import counted

STANDING = packaged.toml(__file__, "standing.toml")


def standing(path: str) -> int:
    """Print how far the recipe at `path` has come on this machine, and the command that comes
    next."""
    verdict = batch.judged([path])
    rows = [("checked", counted(len(verdict.errors), "mistake"))]
    following = ["check"] if verdict.errors else []
    remark = ""
    if not verdict.errors:
        recipe, _, _ = validate.load(path, [], {})
        has_runs = False
        for run_kind, command, done in (
            ("rehearsal", "rehearse", "rehearsed"),
            ("run", training_verb(recipe), "trained"),
        ):
            progress = _furthest(runs_of(recipe, run_kind))
            rows.append((done, _shown(progress, recipe)))
            if progress is None or not progress.is_done:
                following.append(_next(progress, command))
            has_runs = has_runs or progress is not None
        if not has_runs:
            remark = _older(recipe)
    say(f"{path}\n")
    table(rows)
    if remark:
        say(f"\n{remark}")
    command = [*following, "compare"][0]
    end(STANDING[command], command, path)
    return verdict.exit_code()


def _furthest(runs: list[Progress]) -> Progress | None:
    """The run that says most about a recipe: one that is done, else one that is running, else the
    first; None for none."""
    for progress in runs:
        if progress.is_done:
            return progress
    for progress in runs:
        if progress.status == "running":
            return progress
    return runs[0] if runs else None


def _shown(progress: Progress | None, recipe: Recipe) -> str:
    """How far a run has come, in words."""
    if progress is None:
        return "not yet"
    run = progress.run
    if progress.status == "running":
        return f"running now, in {run.shown}"
    text = f"{progress.status}, in {run.shown}"
    model = real_model(run)
    if model:
        text = f"{progress.status} with the model `{model}`, in {run.shown}"
    if run.state.recipe != recipe.name:
        text += f", under the name `{run.state.recipe}`"
    if progress.difference:
        return f"{text}; {progress.difference}"
    if progress.status == "stopped":
        return f"{text}; `recipe {_again(progress)}` continues it"
    return text


def _next(progress: Progress | None, command: str) -> str:
    """The command that comes next, for a run that is not done. command: which begins one."""
    if progress is None:
        return command
    if progress.status == "running":
        return "why"
    if progress.difference or progress.status == "finished":
        return command
    return _again(progress)


def _again(progress: Progress) -> str:
    """The command that continues a run."""
    if progress.run.kind == "rehearsal":
        return "rehearse"
    return "run"


def _older(recipe: Recipe) -> str:
    """Where the runs are from before the recipe's name was changed; empty if there are none."""
    runs = earlier_runs(recipe)
    if runs:
        return earlier_sentence(runs)
    return ""
