"""Rules about rewards, and the rewards in the form that the training process reads."""

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.plan import EngineConfig
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Stop, listed
from runner.tools.settings import Settings

FUNCTIONS = f"{__name__.rpartition('.')[0]}.functions"
LARGEST = 200_000  # bytes of a person's code, which becomes part of the generated files


def rewarded(recipe: Recipe) -> EngineConfig:
    """The rewards for Axolotl, and for the functions that it calls. Raises Stop if code does not
    have its hash."""
    rules = _rewards(recipe)
    if rules.get("python"):
        problems = list(own_code(recipe))
        if problems:
            raise Stop(problems)
        # The code itself, so that nothing has to be sent to where it runs.
        rules["python"]["named"] = path = rules["python"].pop("path")
        rules["python"]["code"] = (recipe.folder / path).read_bytes().decode()
    return {
        "trl": {
            "reward_funcs": [f"{FUNCTIONS}.{name}" for name in rules],
            "reward_weights": [float(rule["weight"]) for rule in rules.values()],
        },
        "recipe_runner": {"rewards": rules},
    }


def _rewards(recipe: Recipe) -> dict[str, dict[str, Any]]:
    section: Settings | None = recipe.settings.get("rewards")
    if section:
        return section.plain()
    return {}


def some(recipe: Recipe) -> Iterator[Problem]:
    if "rewards" in recipe.settings and not any(
        rule["weight"] for rule in _rewards(recipe).values()
    ):
        yield recipe.problem(
            "rewards",
            "No reward has a weight, so every answer is worth the same, and nothing would be learned.",
            "Name a reward, for example `exact: {}`, with a weight other than 0.",
            key=True,
        )


def expressions(recipe: Recipe) -> Iterator[Problem]:
    for name, rule in _rewards(recipe).items():
        for setting in {"matches", "within"} & rule.keys():
            try:
                groups = re.compile(rule[setting]).groups
            except re.error as error:
                message = (
                    f"`{rule[setting]}` is not a regular expression: {error.msg}.",
                    "Fix it. A backslash before a character takes it literally.",
                )
            else:
                if setting == "matches" or groups == 1:
                    continue
                groups_text = groups or "no"
                message = (
                    f"`within` has {groups_text} groups, and one group says which part of the answer counts.",
                    "Put that part in parentheses, for example `<answer>(.*)</answer>`; `(?:…)` is no group.",
                )
            yield recipe.problem(("rewards", name, setting), *message)


def own_code(recipe: Recipe) -> Iterator[Problem]:
    """A person's code is there, has the hash of the recipe, and defines its function. It is read,
    and not run."""
    rule = _rewards(recipe).get("python")
    if rule is None:
        return
    path = rule["path"]
    place = ("rewards", "python", "path")
    file = Path(recipe.folder / path)
    if not file.is_file() or file.stat().st_size > LARGEST:
        yield recipe.problem(
            place,
            f"The file `{file}` does not exist, or has more than {LARGEST:,} bytes.",
            "Name a Python file; the path is relative to the recipe.",
        )
        return
    code = file.read_bytes()
    try:
        lines = ast.parse(code.decode(), path).body
    except (SyntaxError, ValueError) as error:
        yield recipe.problem(place, f"`{path}` is not Python: {error}.", "Fix the file.")
        return
    actual = hashlib.sha256(code).hexdigest()
    if actual != rule["sha256"]:
        yield recipe.problem(
            (*place[:2], "sha256"),
            f"`{path}` is not the file of this hash. Somebody has changed it, or the hash.",
            f"Read the file. If it is right, write `sha256: {actual}`.",
        )
    defined = [line.name for line in lines if isinstance(line, ast.FunctionDef)]
    function = rule["function"]
    if function not in defined:
        named = listed(defined) or "none"
        message = (
            f"`{path}` defines no function `{function}`. It defines {named}.",
            "Write `def reward(question, answer, reference):`, or name it in `function`.",
        )
        yield recipe.problem(place, *message)


RULES = (some, expressions)
FILE_RULES = (own_code,)
