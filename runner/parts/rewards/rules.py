"""Rules about rewards, and rewards as the training process reads them."""

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runner.plan import EngineConfig
from runner.recipe.recipe import Recipe, Settings
from runner.tools.problem import Problem, Stop

FUNCTIONS = f"{__name__.rpartition('.')[0]}.functions"
LARGEST = 200_000  # bytes of a person's code, which becomes part of the generated files


def rewarded(recipe: Recipe) -> EngineConfig:
    """The recipe's rewards in Axolotl's settings, and as the functions that it calls read them. Raises Stop if a
    person's code is not that of its hash."""
    rules = _rewards(recipe)
    if rules.get("python"):
        if problems := list(own_code(recipe)):
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
    return section.plain() if section else {}


def some(recipe: Recipe) -> Iterator[Problem]:
    if "rewards" in recipe.settings and not any(rule["weight"] for rule in _rewards(recipe).values()):
        message = "No reward has a weight, so every answer is worth the same, and nothing would be learned."
        hint = "Name a reward, for example `exact: {}`, with a weight other than 0."
        yield recipe.problem("rewards", message, hint, key=True)


def expressions(recipe: Recipe) -> Iterator[Problem]:
    for name, rule in _rewards(recipe).items():
        for setting in ("matches", "within"):
            if (written := rule.get(setting)) is None:
                continue
            place = ("rewards", name, setting)
            try:
                groups = re.compile(written).groups
            except re.error as error:
                message = f"`{written}` is not a regular expression: {error.msg}."
                yield recipe.problem(place, message, "Fix it. A backslash before a character takes it literally.")
                continue
            if setting == "within" and groups != 1:
                message = f"`within` has {groups or 'no'} groups, and one group says which part of the answer counts."
                hint = "Put that part in parentheses, for example `<answer>(.*)</answer>`; `(?:…)` is no group."
                yield recipe.problem(place, message, hint)


def own_code(recipe: Recipe) -> Iterator[Problem]:
    """A person's code is there, has the hash of the recipe, and defines its function. It is read, and not run."""
    if (rule := _rewards(recipe).get("python")) is None:
        return
    file, place = Path(recipe.folder / rule["path"]), ("rewards", "python", "path")
    if not file.is_file() or file.stat().st_size > LARGEST:
        why = f"is larger than {LARGEST:,} bytes" if file.is_file() else "does not exist"
        yield recipe.problem(
            place, f"The file `{file}` {why}.", "Name a Python file; the path is relative to the recipe."
        )
        return
    code = file.read_bytes()
    try:
        lines = ast.parse(code.decode(), rule["path"]).body
    except (SyntaxError, ValueError) as error:
        yield recipe.problem(place, f"`{rule['path']}` is not Python: {error}.", "Fix the file.")
        return
    actual = hashlib.sha256(code).hexdigest()
    if actual != rule["sha256"]:
        message = f"`{rule['path']}` is not the file of this hash. Somebody has changed it, or the hash."
        hint = f"Read the file. If it is right, write `sha256: {actual}`."
        yield recipe.problem(("rewards", "python", "sha256"), message, hint)
    if not any(isinstance(line, ast.FunctionDef) and line.name == rule["function"] for line in lines):
        named = ", ".join(f"`{line.name}`" for line in lines if isinstance(line, ast.FunctionDef)) or "none"
        message = f"`{rule['path']}` defines no function `{rule['function']}`. It defines {named}."
        yield recipe.problem(
            place, message, "Write `def reward(question, answer, reference):`, or name it in `function`."
        )


RULES = (some, expressions)
FILE_RULES = (own_code,)
