"""Judging recipes in CI: on a pull request of GitHub or GitLab, and as forms that such programs read."""

from runner.parts import Part

PART = Part(
    package=__name__,
    needs=("start",),
    hooks={"check_formats": "formats.formats"},
)
