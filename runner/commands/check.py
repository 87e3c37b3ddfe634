"""`recipe check`: everything that is wrong, at once."""

from __future__ import annotations

import json

import click

from runner.check.examine import judged
from runner.check.finding import find
from runner.commands import completing
from runner.commands.options import allow_option, say, set_option
from runner.problem import Problem
from runner.recipe import overrides as changing


@click.command()
@click.argument("paths", metavar="RECIPE…", nargs=-1, required=True, shell_complete=completing.recipe_file)
@set_option
@click.option(
    "--format",
    "style",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    help="How to print problems.",
)
@click.option("--online", is_flag=True, help="Ask the hub whether datasets have the columns that are named.")
@click.option("--strict", is_flag=True, help="In folders, judge YAML that does not look like a recipe too.")
@allow_option
def check(
    paths: tuple[str, ...], sets: tuple[str, ...], style: str, online: bool, strict: bool, allowed: tuple[str, ...]
) -> int:
    """Say what is wrong in recipes: file, line, what to do. A folder means every recipe below it: YAML with `scenario` or two
    sections of a recipe, but not in `build` and `runs`, which hold what was made of recipes.

    Without `--online` it needs no network. `recipe submit` asks the hub in any case.
    """
    found = find(paths, strict)
    verdict = judged(found.recipes, changing.from_options(sets), online, allowed)
    errors = len(verdict.errors)
    if style == "json":
        say(json.dumps(verdict.as_json(), indent=2, ensure_ascii=False))
    elif style == "github":
        for problem in verdict.problems:
            say(_annotation(problem))
    else:
        for problem in verdict.problems:
            say(f"{problem}\n")
        say(_summary(verdict.checked, errors, len(verdict.problems) - errors))
        if found.others:
            left = _counted(len(found.others), "other YAML file")
            say(
                f"{left} left alone, because {'it does' if len(found.others) == 1 else 'they do'} not look like a recipe; `--strict` judges all."
            )
    return 3 if verdict.bugs else 1 if errors else 0


def _summary(recipes: int, errors: int, notes: int) -> str:
    """The last line: `2 recipes checked, no errors, 1 note.`"""
    found = [_counted(errors, "error"), *([_counted(notes, "note")] if notes else [])]
    return f"{_counted(recipes, 'recipe')} checked, {', '.join(found) if errors or notes else 'no problems'}."


def _counted(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def _annotation(problem: Problem) -> str:
    """A line that GitHub Actions shows beside the recipe's own line."""
    kind = "notice" if problem.severity == "note" else "error"
    text = f"{problem.message} {problem.hint}".strip()
    escaped = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    file = problem.file.replace("%", "%25").replace(",", "%2C").replace(":", "%3A")
    place = f",line={problem.line},col={problem.column}" if problem.line else ""
    return f"::{kind} file={file}{place}::{escaped}"
