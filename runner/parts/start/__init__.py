"""Getting started: a recipe of one's own from a starter or a few answers, and what settings, models and machines mean
for it."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("planner",),
    commands={
        "new": "Create a recipe of your own, from a starter or by questions.",
        "explain": "Explain a setting: what it does and what it costs.",
        "diff": "Compare two recipes: their settings and their plans.",
        "models": "List the models that a recipe can name, and add others.",
        "doctor": "Check whether this machine can train.",
    },
)
