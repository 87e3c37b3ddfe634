"""The plan of a recipe for people and programs: on one screen, in all its parts, as JSON, as a picture."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("planner",),
    commands={
        "plan": "Say whether it fits, how long, how much, and what to change.",
        "gpus": "Show the GPUs that a recipe can name, and how it does on each.",
    },
)
