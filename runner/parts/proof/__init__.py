"""What is trained, shown token by token and judged on the engine's own rows and batches before the first step."""

from runner.parts import Part

PART = Part(
    package=__name__,
    hooks={
        "before_training": "hooks.before_training",
        "prove": "hooks.prove",
        "show_rows": "hooks.show_rows",
        "shown": "hooks.shown",
    },
)
