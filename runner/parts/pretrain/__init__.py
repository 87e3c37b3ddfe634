"""Scenario pipeline: a model from random weights to a domain adapter, in stages with gates; cleaning of its text."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("data_doctor", "stages"),
    scenarios={"pipeline": ""},
    hooks={"blocks": "training.load", "callbacks": "training.callbacks"},
)
