"""Songs, and the questions about one that its row answers."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from runner.data.conversation_formats import GENRE, STYLE, Conversation, Lyrics, Songs, pair

# The text of rows whose artist or genre is unknown.
UNKNOWN = {"", "unknown", "none", "null", "nan", "n/a", "na", "-", "?", "various", "various artists", "misc", "other"}


@dataclass(frozen=True)
class Song:
    """A row: its own instruction, its artist and genre (None if unknown), and the lyrics."""

    instruction: str
    artist: str | None
    genre: str | None
    lyrics: str

    @property
    def key(self) -> str:
        """Equal for songs with the same words; spaces, case and punctuation do not count."""
        return " ".join(re.findall(r"\w+", self.lyrics.casefold()))


@dataclass(frozen=True)
class SongTask(Conversation):
    """A question about a song and its answer. song: songs with the same one stay on one side of the split."""

    kind: str = ""
    song: str = ""

    @property
    def group(self) -> str:
        return self.song


@cache
def _pattern(form: str) -> re.Pattern[str]:
    """The instruction's form with the groups `artist` and `genre`; case, spaces and the full stop may vary."""
    words = re.split(r"\[(artist|genre)\]", form.strip().rstrip("."))
    parts = [
        f"(?P<{part}>.*?)" if index % 2 else r"\s*".join(re.escape(word) for word in re.split(r"\s+", part))
        for index, part in enumerate(words)
    ]
    return re.compile(rf"\s*{''.join(parts)}\s*\.?\s*\Z", re.IGNORECASE)


NO_INSTRUCTION = "the instruction does not have the recipe's form"


def song_of(row: Mapping[str, Any], songs: Songs) -> Song | str:
    """The row's song, if a question about it is possible, or the reason why there is none."""
    for column, said in ((songs.instruction, "instruction"), (songs.lyrics, "words of the song")):
        if column not in row:
            return f"no column {column}"
        if not isinstance(row[column], str) or not row[column].strip():
            return f"the {said} missing"
    instruction, lyrics = row[songs.instruction].strip(), row[songs.lyrics].strip()
    match = _pattern(songs.instruction_form).match(instruction)
    if not match:
        return NO_INSTRUCTION
    artist, genre = (_named(match[part]) for part in ("artist", "genre"))
    words = len(lyrics.split())
    if words < songs.min_words:
        return f"fewer than {songs.min_words:,} words"
    if words > songs.max_words:
        return f"more than {songs.max_words:,} words"
    song = Song(" ".join(instruction.split()), artist, genre, lyrics)
    if not any(share and kind in _answerable(song) for kind, share in songs.tasks.items()):
        return "the row answers none of the recipe's tasks"
    return song


def _named(text: str) -> str | None:
    name = " ".join(text.split()).strip("\"'")
    return None if name.casefold() in UNKNOWN else name


def _answerable(song: Song) -> dict[str, tuple[str, str]]:
    """The possible questions about a song, as kind → (question, answer): only those that the row answers."""
    asked: dict[str, tuple[str, str]] = {}
    if song.artist and song.genre:
        asked["write_verse"] = (song.instruction, song.lyrics)
    elif song.artist:
        asked["write_verse"] = (f"Generate a song verse in the style of {song.artist}.", song.lyrics)
    elif song.genre:
        asked["write_verse"] = (f"Generate a song verse in the genre of {song.genre}.", song.lyrics)
    if song.artist:
        asked[STYLE[0]] = (f"{STYLE[1]}\n\n{song.lyrics}", song.artist)
    if song.genre:
        asked[GENRE[0]] = (f"{GENRE[1]}\n\n{song.lyrics}", song.genre)
    return asked


def task_of(song: Song, lyrics: Lyrics) -> SongTask:
    """A task that the song answers, drawn by the recipe's shares and a hash of the song and the seed."""
    asked = _answerable(song)
    shares = {kind: share for kind, share in lyrics.songs.tasks.items() if share and kind in asked}
    digest = hashlib.sha256(f"task\n{lyrics.seed}\n{song.key}".encode()).digest()
    ends = list(accumulate(shares.values()))
    point = int.from_bytes(digest[:4], "big") / 2**32 * ends[-1]
    kind = next(kind for kind, end in zip(shares, ends, strict=True) if point < end)
    question, answer = asked[kind]
    return SongTask(pair(question, answer), kind=kind, song=song.key)
