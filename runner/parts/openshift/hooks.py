"""What lies beside the jobs of a render."""

from __future__ import annotations

from runner.parts.openshift import upload_instructions
from runner.plan import Plan
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import data_file
from runner.tools.files import Artifact


def beside_jobs(recipe: Recipe, plan: Plan) -> list[Artifact]:
    """How the files beside the recipe come to where its pods look."""
    files = {name: data_file(recipe, plan.place, name) or "" for _, name in recipe.local_files()}
    return upload_instructions.render(plan, files, recipe.file.name)
