"""`recipe` alone: how far a recipe has come."""

from runner.check import batch, validate
from runner.commands.check import code
from runner.commands.next_step import training_verb
from runner.commands.options import end, say, table
from runner.recipe.recipe import Recipe
from runner.run.run_folder import RunFolder, folder
from runner.tools import packaged
from runner.tools.problem import counted
from runner.tools.run_files import RUN

STANDING = packaged.toml(__file__, "standing.toml")


def standing(path: str) -> int:
    """Print how far the recipe at `path` has come on this machine, and the command that comes
    next."""
    verdict = batch.judged([path])
    rows = [("checked", counted(len(verdict.errors), "mistake"))]
    following = ["check"] if verdict.errors else []
    if not verdict.errors:
        recipe, _, _ = validate.load(path, [], {})
        for run_kind, command, done in (
            ("rehearsal", "rehearse", "rehearsed"),
            ("run", training_verb(recipe), "trained"),
        ):
            text, next_command = _progress(folder(recipe.name, run_kind), recipe, command)
            rows.append((done, text))
            if next_command:
                following += [next_command]
    say(f"{path}\n")
    table(rows)
    command = [*following, "compare"][0]
    end(STANDING[command], command, path)
    return code(verdict)


def _progress(run: RunFolder, recipe: Recipe, command: str) -> tuple[str, str]:
    """How far a run of the recipe is, and the command that comes next; empty if the run needs
    none."""
    state = run.state
    if not state or state.recipe != recipe.name:
        return "not yet", command
    if run.at_work:
        return f"running now, in {run.shown}", "why"
    if state.status != "finished":
        if run.kind == "rehearsal":
            again = "rehearse"
        else:
            again = "run"
        if not run.has_trained:
            return f"stopped before training, in {run.shown}", again
        return f"stopped, in {run.shown}; `recipe {again}` continues it", again
    if recipe.file.stat().st_mtime > (run.path / RUN).stat().st_mtime:
        return f"finished, in {run.shown}; the recipe has changed since", command
    return f"finished, in {run.shown}", ""
