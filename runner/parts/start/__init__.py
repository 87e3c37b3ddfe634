"""Getting started: a recipe of one's own from a starter or a few answers, and what settings, models and machines mean
for it."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("planner",),
    commands={
        "new": "Copy a recipe to start your own.",
        "explain": "Say what a setting does, what it costs, and where it goes.",
        "diff": "Say what differs between two recipes, in settings and in plans.",
        "models": "Show the models that a recipe can name; write down others.",
        "doctor": "Say what will not work on this machine.",
    },
)
