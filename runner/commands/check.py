"""`recipe check`: everything that is wrong, at once."""

from dataclasses import replace

from runner.check import batch, validate
from runner.commands.options import command, end, say, table, training_verb
from runner.recipe import overrides as changing
from runner.recipe.recipe import Recipe
from runner.run.run_folder import RunFolder, folder
from runner.tools import packaged
from runner.tools.run_files import RUN

STYLES = ("text", *batch.formats())
STANDING = packaged.toml(__file__, "standing.toml")


@command
def check(
    paths: tuple[str, ...],
    sets: tuple[str, ...],
    style: str,
    quiet: bool,
    jobs: int,
    online: bool,
    strict: bool,
    allowed: tuple[str, ...],
) -> int:
    """Find every mistake in recipes: its file, its line, and how to fix it. A folder means every recipe below it, except
    in `build` and `runs`, which contain generated copies. A YAML file with `scenario`, or with two sections of a recipe,
    counts as a recipe.

    `-` means the recipe on standard input.

    `check` needs no network, unless you add `--online`. `recipe submit` always asks the hub.
    """
    recipes, others = batch.find(paths, strict)
    verdict = batch.judged(recipes, changing.from_options(sets), online, allowed, jobs)
    errors = len(verdict.errors)
    shown = replace(verdict, problems=verdict.errors) if quiet else verdict
    if style != "text":
        if text := batch.formats()[style](recipes, shown):
            say(text)
        return _code(verdict)
    for problem in shown.problems:
        say(f"{problem}\n")
    if not quiet:
        notes = len(verdict.problems) - errors
        counts = _counted(errors, "error") + (f", {_counted(notes, 'note')}" if notes else "")
        say(f"{_counted(verdict.checked, 'recipe')} checked, {counts if errors or notes else 'no problems'}.")
        if others:
            left, do = _counted(len(others), "other YAML file"), "does" if len(others) == 1 else "do"
            say(f"Skipped {left}, which {do} not look like a recipe. `--strict` checks all files.")
        if errors:
            fix = "it" if errors == 1 else "the first one first"
            same = not any(problem.file.startswith("--set") for problem in verdict.errors)
            end(f"{_counted(errors, 'error')} found. Fix {fix}, then check again.", "check", *paths, same=same)
        elif verdict.checked == 1:
            named = ["RECIPE" if name == "-" else name for name in paths]
            end("The recipe is valid, as far as it can be checked before it runs.", "plan", *named)
        else:
            end("The recipes are valid, as far as they can be checked before they run.", "plan", recipes[0])
    return _code(verdict)


def standing(path: str) -> int:
    """Print how far the recipe at `path` has come on this machine, and the command that comes next."""
    verdict = batch.judged([path], [], False, (), 1)
    rows = [("checked", _counted(len(verdict.errors), "mistake"))]
    following = ["check"] if verdict.errors else []
    if not verdict.errors:
        recipe, _, _ = validate.load(path, [], {})
        for kind, command, done in (("rehearsal", "rehearse", "rehearsed"), ("run", training_verb(recipe), "trained")):
            text, next_command = _progress(folder(recipe.name, kind), recipe, command)
            rows.append((done, text))
            following += [next_command] if next_command else []
    say(f"{path}\n")
    table(rows)
    command = [*following, "compare"][0]
    end(STANDING[command], command, path)
    return _code(verdict)


def _progress(run: RunFolder, recipe: Recipe, command: str) -> tuple[str, str]:
    """How far a run of the recipe is, and the command that comes next; empty if the run needs none."""
    state = run.state
    if not state or state.recipe != recipe.name:
        return "not yet", command
    if run.at_work:
        return f"running now, in {run.shown}", "why"
    if state.status != "finished":
        again = "rehearse" if run.kind == "rehearsal" else "run"
        return f"stopped, in {run.shown}; `recipe {again}` continues it", again
    if recipe.file.stat().st_mtime > (run.path / RUN).stat().st_mtime:
        return f"finished, in {run.shown}; the recipe has changed since", command
    return f"finished, in {run.shown}", ""


def _code(verdict: batch.CheckReport) -> int:
    return 3 if verdict.bugs else 1 if verdict.errors else 0


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
