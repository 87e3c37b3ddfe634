"""`recipe check`: everything that is wrong, at once."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from runner import parts
from runner.check import batch, data_file
from runner.check.batch import Format
from runner.commands.options import command, end, say
from runner.recipe import overrides as changing
from runner.tools.problem import counted
from runner.tools.text import json_text


def formats() -> Mapping[str, Format]:
    """The output formats besides text, by name."""
    by_name: dict[str, Format] = {"json": lambda files, verdict: json_text(verdict.as_json())}
    if parts.has("ci"):
        from runner.parts.ci import formats as formats_of_ci

        by_name |= formats_of_ci.formats()
    return by_name


STYLES = ("text", *formats())


@command
def check(
    paths: tuple[str, ...],
    sets: tuple[str, ...],
    style: str,
    quiet: bool,
    jobs: int | None,
    fail_on: str,
    online: bool,
    strict: bool,
    allowed: tuple[str, ...],
) -> int:
    """Find every mistake in recipes: its file, its line, and how to fix it. A folder means every
    recipe below it, except in `build` and `runs`, which contain generated copies. A YAML file with
    `scenario`, or with two sections of a recipe, counts as a recipe.

    `-` means the recipe on standard input.

    `check` needs no network, unless you add `--online`. `recipe submit` always asks the hub.
    """
    recipes, other_files = batch.find(paths, strict)
    verdict = batch.judged(
        recipes, changing.from_options(sets), online, allowed, jobs or batch.processes(recipes)
    )
    errors = len(verdict.errors)
    failing = verdict.failing(fail_on)
    if quiet:
        shown_verdict = replace(verdict, problems=failing)
    else:
        shown_verdict = verdict
    if style != "text":
        text = formats()[style](recipes, shown_verdict)
        if text:
            say(text)
        return verdict.exit_code(fail_on)
    for problem in shown_verdict.problems:
        say(f"{problem}\n")
    if quiet:
        return verdict.exit_code(fail_on)
    is_folder_of_data = recipes == list(paths) and Path(paths[0]).is_dir()
    if len(paths) == 1 and (is_folder_of_data or data_file.is_data(Path(paths[0]))):
        _end_without_recipe(Path(paths[0]))
    else:
        notes = len(verdict.problems) - errors
        counts = counted(errors, "error") + (f", {counted(notes, 'note')}" if notes else "")
        say(
            f"{counted(verdict.checked, 'recipe')} checked, {counts if errors or notes else 'no problems'}."
        )
        if other_files:
            skipped = counted(len(other_files), "other YAML file")
            do = "does" if len(other_files) == 1 else "do"
            say(
                f"Skipped {skipped}, which {do} not look like a recipe. `--strict` checks all files."
            )
        if failing:
            if len(failing) == 1:
                fix = "it"
            else:
                fix = "the first one first"
            if errors:
                found = counted(errors, "error")
            else:
                found = counted(len(failing), "note")
            same = not any(problem.file.startswith("--set") for problem in failing)
            end(
                f"{found} found. Fix {fix}, then check again.",
                "check",
                *paths,
                same=same,
            )
        elif verdict.checked == 1:
            names = []
            for name in paths:
                names.append("RECIPE" if name == "-" else name)
            end("The recipe is valid, as far as it can be checked before it runs.", "plan", *names)
        else:
            end(
                "The recipes are valid, as far as they can be checked before they run.",
                "plan",
                recipes[0],
            )
    return verdict.exit_code(fail_on)


def _end_without_recipe(file: Path) -> None:
    """The next command for a file of data: a recipe of it, or another one that works."""
    if not parts.has("start"):
        end(f"`{file}` is not a recipe.", "list")
        return
    from runner.parts.start import drafting, proposals

    name = proposals.free_name("my-demo")
    if drafting.makes_recipe(str(file)):
        end(f"`{file}` is not a recipe yet.", "new", name, "--data", file)
        return
    columns = proposals.columns_to_name(file)
    if columns and drafting.makes_recipe(str(file), columns):
        question, answer = columns
        outcome = f"`{file}` is not a recipe yet. Name the columns to learn from, here two of them."
        named = ("--question", question, "--answer", answer)
        end(outcome, "new", name, "--data", file, *named)
        return
    outcome = f"`{file}` is not a recipe. A recipe with rows of its own shows what is needed."
    end(outcome, "new", name, "--from", "museum")
