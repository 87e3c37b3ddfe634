"""Songs become conversations: a seeded draw from a stream of any length, and for each song one task that it answers."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from runner.data import RenderedExample, chat, items, rows
from runner.data.conversation_formats import GENRE, STYLE, Conversation, Lyrics, Songs, pair
from runner.data.report import Report
from runner.data.tokenizers import TokenizerFor

# What stands in a row whose artist or genre nobody knows.
UNKNOWN = {"", "unknown", "none", "null", "nan", "n/a", "na", "-", "?", "various", "various artists", "misc", "other"}


Offered = TypeVar("Offered")


@dataclass(frozen=True)
class Song:
    """A row: its own instruction, who and what it names (None where the row does not say), and the words. line: its number."""

    instruction: str
    artist: str | None
    genre: str | None
    lyrics: str
    line: int

    @property
    def key(self) -> str:
        """Equal for songs of the same words, however they are spaced, cased or punctuated."""
        return " ".join(re.findall(r"\w+", self.lyrics.casefold()))


@dataclass(frozen=True)
class SongTask(Conversation):
    """A question about a song and its answer. song: songs with the same one stay on one side of the split."""

    kind: str = ""
    song: str = ""

    @property
    def group(self) -> str:
        return self.song


def prepare(
    lyrics: Lyrics,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet`, `validation.parquet` and `report.json`, as `chat.prepare` does.

    sample_rows: draw at most so many songs. Raises Stop where too few rows are left to train and validate on.
    """
    return SongRows(lyrics, lyrics.tokenizer).prepare(out, tokenizer_for, sample_rows)


class SongRows(chat.ConversationRows[Lyrics]):
    """Rows of which each may be a song; some are drawn."""

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        report, count = self.report, self.asked.songs.count
        report.unit = "song"
        drawn = _draw(self.asked, min(count, sample_rows or count), report)
        if sample_rows is not None and sample_rows < count and report.not_drawn:
            report.sampled_from = len(drawn) + report.not_drawn
        tasks = [(_task(song, self.asked), song.line, index) for song, index in drawn]
        report.tasks = dict(Counter(task.kind for task, *_ in tasks))
        self.spool = items.spool(tasks, chat.batch, self.asked.seed, place / "0.arrow")
        return np.arange(len(self.spool))


def first(lyrics: Lyrics) -> Iterator[RenderedExample]:
    """The songs that can be asked about, one after the other, each as a task, before any is drawn."""
    for one in lyrics.sets:
        for song in _songs(lyrics.songs, enumerate(rows.good(one, stream=lyrics.stream))):
            if isinstance(song, Song):
                yield lyrics.rendered(_task(song, lyrics))


def _draw(lyrics: Lyrics, count: int, report: Report) -> list[tuple[Song, int]]:
    """About `count` songs, of all that may be asked about, each with the number of its data set; every row that is left out is
    counted, with the reason."""
    songs = lyrics.songs
    draw: BottomK[tuple[Song, int]] = BottomK(count, songs.per_artist, lyrics.seed)
    for index, one in enumerate(lyrics.sets):
        for song in _songs(songs, report.whole(lyrics, index, rows.read(one, stream=lyrics.stream))):
            if isinstance(song, str):
                report.dropped[song] += 1
            else:
                draw.offer((song, index), song.key, song.artist.casefold() if song.artist else None)
    drawn = draw.drawn()
    report.duplicates = draw.duplicates
    report.distinct = len(drawn)
    report.not_drawn = draw.not_drawn
    if draw.over_cap:
        report.dropped[f"more than {songs.per_artist:,} songs of one artist"] = draw.over_cap
    return drawn


def _songs(songs: Songs, numbered: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[Song | str]:
    """Of each row the song that can be asked about, or why there is none."""
    read = re.compile(_pattern(songs.instruction_form), re.IGNORECASE)
    for number, row in numbered:
        song = _song(number, row, songs, read)
        yield song if isinstance(song, str) else _unfit(song, songs) or song


def _pattern(form: str) -> str:
    """The instruction's form as a pattern with the groups `artist` and `genre`; spaces and the full stop may vary."""
    words = re.split(r"\[(artist|genre)\]", form.strip().rstrip("."))
    parts = [
        f"(?P<{part}>.*?)" if index % 2 else r"\s*".join(re.escape(word) for word in re.split(r"\s+", part))
        for index, part in enumerate(words)
    ]
    return rf"\s*{''.join(parts)}\s*\.?\s*\Z"


def _song(number: int, row: Mapping[str, Any], songs: Songs, read: re.Pattern[str]) -> Song | str:
    """The row's song, or why it is none."""
    for column, said in ((songs.instruction, "instruction"), (songs.lyrics, "words of the song")):
        if column not in row:
            return f"no column {column}"
        if not isinstance(row[column], str) or not row[column].strip():
            return f"the {said} missing"
    instruction, lyrics = row[songs.instruction].strip(), row[songs.lyrics].strip()
    match = read.match(instruction)
    if not match:
        return "the instruction does not have the recipe's form"
    artist, genre = (_named(match[part]) for part in ("artist", "genre"))
    return Song(" ".join(instruction.split()), artist, genre, lyrics, number)


def _named(text: str) -> str | None:
    name = " ".join(text.split()).strip("\"'")
    return None if name.casefold() in UNKNOWN else name


def _unfit(song: Song, songs: Songs) -> str | None:
    """Why a song cannot be used, or None."""
    words = len(song.lyrics.split())
    if words < songs.min_words:
        return f"fewer than {songs.min_words:,} words"
    if words > songs.max_words:
        return f"more than {songs.max_words:,} words"
    if not any(share and kind in _answerable(song) for kind, share in songs.tasks.items()):
        return "the row answers none of the recipe's tasks"
    return None


def _answerable(song: Song) -> dict[str, tuple[str, str]]:
    """What can be asked about a song, as kind → (question, answer): nothing whose answer the row does not have."""
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


def _task(song: Song, lyrics: Lyrics) -> SongTask:
    """One of the tasks that the song answers, drawn by the recipe's shares; the song itself decides, with the seed, so
    that other rows in the file do not change it."""
    asked = _answerable(song)
    shares = {kind: share for kind, share in lyrics.songs.tasks.items() if share and kind in asked}
    digest = hashlib.sha256(f"task\n{lyrics.seed}\n{song.key}".encode()).digest()
    ends = list(accumulate(shares.values()))
    point = int.from_bytes(digest[:4], "big") / 2**32 * ends[-1]
    kind = next(kind for kind, end in zip(shares, ends, strict=True) if point < end)
    question, answer = asked[kind]
    return SongTask(pair(question, answer), kind=kind, song=song.key)


class BottomK(Generic[Offered]):
    """Draws the `count` items whose keys have the smallest hashes, and of one owner at most `per_owner`.

    A hash of key and seed decides, so neither the order of the stream nor other items change what is drawn, and items
    of the same key are found without remembering all that went by (bottom-k sampling, Cohen and Kaplan 2007).
    duplicates, over_cap, not_drawn: items left out, as counts; with those drawn they add up to those offered.
    """

    def __init__(self, count: int, per_owner: int, seed: int) -> None:
        self.count, self.per_owner, self.seed = count, per_owner, seed
        self.duplicates = self.over_cap = self.not_drawn = 0
        self._held: dict[int, tuple[Offered, str | None]] = {}
        # What hashes to more is not among the smallest.
        self._limit = 2**128

    def offer(self, item: Offered, key: str, owner: str | None) -> None:
        """Takes an item, or counts why not. owner: None where it has none; then it counts against nobody."""
        rank = int.from_bytes(hashlib.sha256(f"draw\n{self.seed}\n{key}".encode()).digest()[:16], "big")
        if rank in self._held:
            self.duplicates += 1
        elif rank > self._limit:
            self.not_drawn += 1
        else:
            self._held[rank] = (item, owner)
            if len(self._held) >= 2 * self.count:
                self.drawn()

    def drawn(self) -> list[Offered]:
        """What is drawn of all that was offered, in an order that the seed fixes; the others are forgotten and counted."""
        kept: dict[int, tuple[Offered, str | None]] = {}
        of_owner = Counter[str]()
        for rank, (item, owner) in sorted(self._held.items(), key=itemgetter(0)):
            if owner is not None and of_owner[owner] >= self.per_owner:
                self.over_cap += 1
            elif len(kept) >= self.count:
                self.not_drawn += 1
            else:
                kept[rank] = (item, owner)
                of_owner.update([owner] if owner is not None else ())
        self._held = kept
        if len(kept) == self.count:
            self._limit = max(kept)
        return [item for item, _ in kept.values()]
