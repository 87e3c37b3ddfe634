"""Rules about songs as data, and about what kind of data a recipe names."""

from __future__ import annotations

from collections.abc import Iterator

from runner.names import listed
from runner.problem import Problem
from runner.recipe import templates
from runner.recipe.recipe import Recipe

PARTS = ("artist", "genre")


def one_kind(recipe: Recipe) -> Iterator[Problem]:
    """Data is songs or questions and answers, by which of them the recipe names."""
    data = recipe.settings.get("data")
    if not data or not data.knows("songs"):
        return
    there = [setting for setting in ("question", "answer") if data.get(setting) is not None]
    if data.get("songs") is not None and there:
        yield recipe.document.problem(
            ("data", there[0]),
            f"`data` names `songs` and also {listed(there)}; a row can be a song or a question with its answer, not both.",
            "Keep one of the two.",
            key=True,
        )
    elif data.get("songs") is None and len(there) < 2:
        missing = listed([setting for setting in ("question", "answer") if setting not in there])
        yield recipe.document.problem(
            ("data",),
            f"`data` does not say what its rows are: it has no `songs`, and lacks {missing}.",
            "Write `songs`, or `question` and `answer`.",
            key=True,
        )


def tasks(recipe: Recipe) -> Iterator[Problem]:
    songs = recipe.data.get("songs")
    if not songs:
        return
    if not sum(songs.tasks.values()):
        yield recipe.document.problem(
            ("data", "songs", "tasks"),
            "No task has a share, so nothing would be asked.",
            f"Give at least one of {listed(songs.tasks)} a share above 0.",
            key=True,
        )
    named = templates.columns(songs.instruction_form)
    if sorted(named) != sorted(PARTS) or templates.unclosed(songs.instruction_form) is not None:
        yield recipe.document.problem(
            ("data", "songs", "instruction_form"),
            "The form of the instruction must name `[artist]` and `[genre]`, each once, and nothing else in brackets.",
            "For example: Generate a song verse in the style of [artist] in the genre of [genre].",
        )
    if songs.min_words > songs.max_words:
        yield recipe.document.problem(
            ("data", "songs", "min_words"),
            f"The shortest song has {songs.min_words} words, and the longest {songs.max_words}: none would be left.",
            "Lower `min_words`, or raise `max_words`.",
        )
