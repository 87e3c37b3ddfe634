"""Judging the recipes of a pull request on GitHub or GitLab."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("start",),
)
