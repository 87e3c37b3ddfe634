"""Songs, the questions that a song's row can answer, and the rules for both."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Literal, NamedTuple

from runner.data import row_files, rows
from runner.data.conversation_formats import Conversation, Conversations, pair
from runner.recipe import templates
from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem, Stop, listed

# The tasks whose answer is a name or a class, and their questions, by the names of their metrics.
STYLE = ("recognise_style", "In whose style is this song verse?")
GENRE = ("classify_genre", "Which genre is this song verse?")
CLASSES = {"style": STYLE, "genre": GENRE}
# The text of rows whose artist or genre is unknown.
UNKNOWN = {
    "",
    "unknown",
    "none",
    "null",
    "nan",
    "n/a",
    "na",
    "-",
    "?",
    "various",
    "various artists",
    "misc",
    "other",
}


@dataclass(frozen=True, kw_only=True)
class Songs:
    """The songs that are drawn, and the tasks."""

    instruction: str  # a column
    lyrics: str  # a column
    instruction_form: str  # with `[artist]` and `[genre]`
    count: int  # of songs
    per_artist: int  # the most songs of one artist
    min_words: int  # of the lyrics
    max_words: int  # of the lyrics
    tasks: Mapping[str, float]  # the share of each kind

    @property
    def asked(self) -> dict[str, str]:
        """The first words of the questions whose answer is a name or a class, by metric."""
        asked_questions = {}
        for name, (task, question) in CLASSES.items():
            if self.tasks.get(task):
                asked_questions[name] = question
        return asked_questions


@dataclass(frozen=True, kw_only=True)
class Lyrics(Conversations):
    """Conversations about songs. stream: whether a dataset's rows come one at a time, and are not
    saved on disk."""

    kind: Literal["lyrics"] = "lyrics"
    stream: bool = True
    songs: Songs


def of_songs(recipe: Recipe) -> tuple[type[Lyrics], Songs]:
    """The kind of request for a recipe's songs, and the songs."""
    return Lyrics, Songs(**recipe.data["songs"].plain())


class Song(NamedTuple):
    """A row: its own instruction, its artist and genre (None if unknown), and the lyrics."""

    instruction: str
    artist: str | None
    genre: str | None
    lyrics: str

    @property
    def key(self) -> str:
        """The same text for songs with the same words; spaces, case and punctuation do not
        count."""
        return " ".join(re.findall(r"\w+", self.lyrics.casefold()))


@dataclass(frozen=True)
class SongTask(Conversation):
    """A question about a song and its answer. song: songs with the same one stay on one side of the
    split."""

    kind: str = ""
    song: str = ""

    @property
    def group(self) -> str:
        return self.song


@cache
def _pattern(form: str) -> re.Pattern[str]:
    """The instruction's form with the groups `artist` and `genre`; case, spaces and the full stop
    may vary."""
    pattern = ""
    # Texts and names of groups in turn.
    for index, part in enumerate(re.split(r"\[(artist|genre)\]", form.strip().rstrip("."))):
        if index % 2:
            pattern += f"(?P<{part}>.*?)"
        else:
            pattern += r"\s*".join(re.escape(word) for word in re.split(r"\s+", part))
    return re.compile(rf"\s*{pattern}\s*\.?\s*\Z", re.IGNORECASE)


NO_INSTRUCTION = "the instruction does not have the recipe's form"


def song_of(row: row_files.DataRow, songs: Songs) -> Song | str:
    """The row's song, if a question about it is possible, or the reason why there is none."""
    for column, title in ((songs.instruction, "instruction"), (songs.lyrics, "words of the song")):
        if column not in row:
            return f"no column {column}"
        if not isinstance(row[column], str) or not row[column].strip():
            return f"the {title} missing"
    instruction = row[songs.instruction].strip()
    lyrics = row[songs.lyrics].strip()
    match = _pattern(songs.instruction_form).match(instruction)
    if not match:
        return NO_INSTRUCTION
    names = (" ".join(match[part].split()).strip("\"'") for part in ("artist", "genre"))
    artist, genre = (None if name.casefold() in UNKNOWN else name for name in names)
    length = len(lyrics.split())
    if length < songs.min_words:
        return f"fewer than {songs.min_words:,} words"
    if length > songs.max_words:
        return f"more than {songs.max_words:,} words"
    song = Song(" ".join(instruction.split()), artist, genre, lyrics)
    answerable = _answerable(song)
    if not any(share and task in answerable for task, share in songs.tasks.items()):
        return "the row answers none of the recipe's tasks"
    return song


def _answerable(song: Song) -> dict[str, tuple[str, str]]:
    """The possible questions about a song, as kind → (question, answer): only those that the row
    answers."""
    questions: dict[str, tuple[str, str]] = {}
    if song.artist and song.genre:
        questions["write_verse"] = (song.instruction, song.lyrics)
    elif song.artist:
        request = f"Generate a song verse in the style of {song.artist}."
        questions["write_verse"] = (request, song.lyrics)
    elif song.genre:
        request = f"Generate a song verse in the genre of {song.genre}."
        questions["write_verse"] = (request, song.lyrics)
    if song.artist:
        questions[STYLE[0]] = (f"{STYLE[1]}\n\n{song.lyrics}", song.artist)
    if song.genre:
        questions[GENRE[0]] = (f"{GENRE[1]}\n\n{song.lyrics}", song.genre)
    return questions


def task_of(song: Song, lyrics: Lyrics) -> SongTask:
    """A task that the song answers, drawn by the recipe's shares and a hash of the song and the
    seed."""
    questions = _answerable(song)
    shares = {}
    for task, share in lyrics.songs.tasks.items():
        if share and task in questions:
            shares[task] = share
    digest = hashlib.sha256(f"task\n{lyrics.seed}\n{song.key}".encode()).digest()
    ends = list(accumulate(shares.values()))
    point = int.from_bytes(digest[:4], "big") / 2**32 * ends[-1]
    drawn = next(task for task, end in zip(shares, ends, strict=True) if point < end)
    question, answer = questions[drawn]
    return SongTask(pair(question, answer), kind=drawn, song=song.key)


FIRST_ROWS = 200  # the most rows of a file that are examined


def songs(recipe: Recipe) -> Iterator[Problem]:
    chosen = (recipe.settings.get("data") or {}).get("songs")
    if not chosen:
        return
    shares = chosen.tasks.plain()
    if not sum(shares.values()):
        yield recipe.problem(
            "data.songs.tasks",
            "No task has a share, so no question would be asked.",
            f"Give at least one of {listed(shares)} a share above 0.",
            key=True,
        )
    if not _names_artist_and_genre(chosen.instruction_form):
        yield recipe.problem(
            "data.songs.instruction_form",
            "The form of the instruction must contain `[artist]` and `[genre]`, each once, and nothing else in brackets.",
            "For example: Generate a song verse in the style of [artist] in the genre of [genre].",
        )
    if chosen.min_words > chosen.max_words:
        yield recipe.problem(
            "data.songs.min_words",
            f"The shortest song has {chosen.min_words} words, and the longest {chosen.max_words}. No song would remain.",
            "Lower `min_words`, or raise `max_words`.",
        )


def _names_artist_and_genre(form: str) -> bool:
    """Whether a form of instructions has both names, each once, and no other."""
    is_closed = templates.unclosed(form) is None
    return is_closed and sorted(templates.columns(form)) == ["artist", "genre"]


def first_rows(recipe: Recipe) -> Iterator[Problem]:
    """The problem that none of the first rows is a song with a readable instruction."""
    section = (recipe.settings.get("data") or {}).get("songs")
    if not section or not _names_artist_and_genre(section.instruction_form):
        return
    for home, data, file in recipe.data_files():
        if not rows.is_quick(file):
            continue
        try:
            # The additional row shows whether there are more.
            read = rows.first(file, FIRST_ROWS + 1, sheet=data.get("sheet"))
        except (row_files.Unreadable, Stop):
            continue  # another rule reports a file that cannot be read
        if read and all(song_of(row, Songs(**section.plain())) == NO_INSTRUCTION for row in read):
            if len(read) <= FIRST_ROWS:
                none = "None of the rows"
            else:
                none = f"None of the first {FIRST_ROWS:,} rows"
            first_instruction = str(read[0][section.instruction])[:60]
            message = (
                f"{none} of `{file}` has an instruction of the form `instruction_form`. The first has `{first_instruction}`.",
                'Change `instruction_form`, or name the column that has these words. Or delete `songs`, and write `question` and `answer` with your columns in brackets, for example `question: "Write a [genre] song like [artist]."`.',
            )
            yield recipe.note((*home, "songs", "instruction"), *message)


RULES = (songs,)
FILE_RULES = (first_rows,)
