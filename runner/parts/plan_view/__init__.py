"""The plan of a recipe for people and programs: on one screen, in all its parts, as JSON, as a picture."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("planner",),
    command_module="commands",
    commands={
        "plan": "Estimate memory, time and cost, and suggest changes.",
        "gpus": "List the GPUs that a recipe can name, and compare them.",
    },
)
