"""Rules about songs: the tasks, the form of the instruction, and whether the first rows have it."""

from collections.abc import Iterator
from itertools import islice

from runner.data import row_files, rows
from runner.data.conversation_formats import Songs
from runner.data.data_sets import DataSource
from runner.recipe import templates
from runner.recipe.recipe import Recipe
from runner.tools.names import listed
from runner.tools.problem import Problem, Stop, worded

# Files that can be read row by row, without a slow library; and the rows of one that are looked at.
ENDINGS, FIRST_ROWS = (".jsonl", ".csv", ".tsv"), 200


def songs(recipe: Recipe) -> Iterator[Problem]:
    if not (chosen := (recipe.settings.get("data") or {}).get("songs")):
        return
    shares = chosen.tasks.plain()
    if not sum(shares.values()):
        yield recipe.problem("data.songs.tasks", *worded("songs.no-share", shares=listed(shares)), key=True)
    named = templates.columns(chosen.instruction_form)
    if sorted(named) != ["artist", "genre"] or templates.unclosed(chosen.instruction_form) is not None:
        yield recipe.problem("data.songs.instruction_form", *worded("songs.bad-form"))
    if chosen.min_words > chosen.max_words:
        yield recipe.problem("data.songs.min_words", *worded("songs.no-song-remains", chosen=chosen))


def first_rows(recipe: Recipe) -> Iterator[Problem]:
    """The problem that none of the first rows is a song with a readable instruction."""
    if not (asked := (recipe.settings.get("data") or {}).get("songs")):
        return
    from runner.parts.songs.tasks import NO_INSTRUCTION, song_of

    for home, data in recipe.data_sets():
        file = recipe.folder / data["path"] if data.get("path") else None
        if not file or file.suffix not in ENDINGS or not file.is_file():
            continue
        source = DataSource(hub=None, revision=None, subset=None, split=None, path=str(file))
        try:
            # The additional one shows whether there are more.
            read = list(islice(rows.good(source), FIRST_ROWS + 1))
        except (row_files.Unreadable, Stop):
            continue  # another rule reports a file that cannot be read
        if read and all(song_of(row, Songs(**asked.plain())) == NO_INSTRUCTION for row in read):
            none = "None of the rows" if len(read) <= FIRST_ROWS else f"None of the first {FIRST_ROWS:,} rows"
            first = str(read[0][asked.instruction])[:60]
            yield recipe.note(
                (*home, "songs", "instruction"), *worded("songs.other-instructions", none=none, file=file, first=first)
            )


RULES = (songs,)
FILE_RULES = (first_rows,)
