"""Rewards that can be checked: what an answer is worth, when a model learns from its own answers."""

from runner.parts import Part

PART = Part(
    package=__name__,
    sections=("rewards",),
    rules="rules",
    hooks={
        "rewarded": "rules.rewarded",
        "before_stage": "showing.before_stage",
        "tried": "functions.tried",
        "callbacks": "functions.callbacks",
        "on_record": "showing.samples",
    },
)
