"""Scenario stages: a list of trainings. Each starts from the model of the one before."""

from runner.parts import Part

PART = Part(
    package=__name__,
    scenarios={"stages": ""},
)
