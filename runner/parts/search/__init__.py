"""Search: the same training with several settings, one after the other. Poor trials end early, and the best becomes a
recipe."""

from runner.parts import Part

PART = Part(
    package=__name__,
    sections=("search",),
    rules="trials",
    hooks={"callbacks": "pruning.callbacks"},
    command_module="commands",
    commands={"search": "Try several settings, and write the best as a recipe."},
)
