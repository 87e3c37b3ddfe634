"""Axolotl's own files: `check`, `plan`, `explain` and `diff` read them as they are, and `import` makes a recipe of one."""

from runner.parts import Part

PART = Part(
    package=__name__,
    hooks={"other_file": "checking.problems", "as_recipe": "importing.as_recipe"},
    command_module="importing",
    commands={"import": "Turn an Axolotl file into a recipe."},
)
