"""Measuring what a stage has left, and the gates that decide whether the next one may start."""

from runner.parts import Part

PART = Part(
    package=__name__,
    sections=("gates", "evaluation"),
    rules="rules",
    hooks="hooks",
    commands={
        "evaluate": "Say whether training made it better.",
        "gate": "Say whether a stage's gate is open.",
        "promote": "Overrule a closed gate, on record.",
        "compare": "Show the model's answers before and after training.",
    },
)
