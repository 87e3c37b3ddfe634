"""Scenario image-classification: a ResNet for small images, with its own kind of data and its own trainer."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("proof",),
    scenarios={"image-classification": ""},
    engines={"images": "trainer"},
    formulas={"images": "formulas"},
    preparers={"images": "data"},
    measures={"images": "predict"},
    asked={"images": "predict"},
)
