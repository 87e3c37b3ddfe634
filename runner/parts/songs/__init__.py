"""Rows that are songs: some are drawn, and each becomes a task that it answers, to write it or to recognise it."""

from runner.parts import Part

PART = Part(
    package=__name__,
    sections=("songs",),
    rules="tasks",
    preparers={"lyrics": "rows"},
)
