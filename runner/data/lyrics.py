"""Songs become conversations: a seeded draw from a stream of any length, and for each song one task that it answers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from runner.data.chat import Pair, finish
from runner.data.draw import Draw
from runner.data.report import Report
from runner.data.split import TokenizerFor, already, begin, whole_rows

# What stands in a row whose artist or genre nobody knows.
UNKNOWN = {"", "unknown", "none", "null", "nan", "n/a", "na", "-", "?", "various", "various artists", "misc", "other"}


@dataclass(frozen=True)
class Song:
    """A row: its own instruction, who and what it names (None where the row does not say), and the words."""

    instruction: str
    artist: str | None
    genre: str | None
    lyrics: str

    @property
    def key(self) -> str:
        """Equal for songs of the same words, however they are spaced, cased or punctuated."""
        return " ".join(re.findall(r"\w+", self.lyrics.casefold()))


@dataclass(frozen=True)
class Task(Pair):
    """A question about a song and its answer. song: songs with the same one stay on one side of the split."""

    kind: str = ""
    song: str = ""

    @property
    def group(self) -> str:
        return self.song


def prepare(
    wanted: Mapping[str, Any],
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes `train.parquet`, `validation.parquet` and `report.json`, as `chat.prepare` does.

    sample_rows: draw at most so many songs. Raises Stop where too few rows are left to train and validate on.
    """
    report = begin(wanted, sample_rows)
    if known := already(out, report, tokenizer_for):
        return known
    report.unit = "song"
    asked = wanted["songs"]["count"]
    drawn = _draw(wanted, min(asked, sample_rows or asked), report)
    if sample_rows is not None and sample_rows < asked and report.not_drawn:
        report.sampled_from = len(drawn) + report.not_drawn
    tasks = [_task(song, wanted) for song in drawn]
    report.tasks = dict(Counter(task.kind for task in tasks))
    return finish(tasks, wanted, out, tokenizer_for, report)


def _draw(wanted: Mapping[str, Any], count: int, report: Report) -> list[Song]:
    """About `count` songs, of all that may be asked about; every row that is left out is counted, with the reason."""
    limits = wanted["songs"]
    read = re.compile(_pattern(limits["instruction_form"]), re.IGNORECASE)
    draw: Draw[Song] = Draw(count, limits["per_artist"], wanted["seed"])
    for _, row in whole_rows(wanted, report):
        song = _song(row, limits, read)
        reason = song if isinstance(song, str) else _unfit(song, limits)
        if isinstance(song, str) or reason:
            report.dropped[str(reason)] += 1
        else:
            draw.offer(song, song.key, song.artist.casefold() if song.artist else None)
    report.duplicates = draw.duplicates
    report.distinct = len(draw)
    report.not_drawn = draw.not_drawn
    if draw.over_cap:
        report.dropped[f"more than {limits['per_artist']:,} songs of one artist"] = draw.over_cap
    return draw.items()


def _pattern(form: str) -> str:
    """The instruction's form as a pattern with the groups `artist` and `genre`; spaces and the full stop may vary."""
    words = re.split(r"\[(artist|genre)\]", form.strip().rstrip("."))
    parts = [
        f"(?P<{part}>.*?)" if index % 2 else r"\s*".join(re.escape(word) for word in re.split(r"\s+", part))
        for index, part in enumerate(words)
    ]
    return rf"\s*{''.join(parts)}\s*\.?\s*\Z"


def _song(row: Mapping[str, Any], limits: Mapping[str, Any], read: re.Pattern[str]) -> Song | str:
    """The row's song, or why it is none."""
    columns = [row.get(limits[name]) for name in ("instruction", "lyrics")]
    for name, value in zip(("instruction", "lyrics"), columns, strict=True):
        if limits[name] not in row:
            return f"no column {limits[name]}"
        if not isinstance(value, str) or not value.strip():
            return f"the {'instruction' if name == 'instruction' else 'words of the song'} missing"
    instruction, lyrics = (str(value).strip() for value in columns)
    match = read.match(instruction)
    if not match:
        return "the instruction does not have the recipe's form"
    artist, genre = (_named(match[part]) for part in ("artist", "genre"))
    return Song(" ".join(instruction.split()), artist, genre, lyrics)


def _named(text: str) -> str | None:
    name = " ".join(text.split()).strip("\"'")
    return None if name.casefold() in UNKNOWN else name


def _unfit(song: Song, limits: Mapping[str, Any]) -> str | None:
    """Why a song cannot be used, or None."""
    words = len(song.lyrics.split())
    if words < limits["min_words"]:
        return f"fewer than {limits['min_words']:,} words"
    if words > limits["max_words"]:
        return f"more than {limits['max_words']:,} words"
    if not any(share and kind in _answerable(song) for kind, share in limits["tasks"].items()):
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
        asked["recognise_style"] = (f"In whose style is this song verse?\n\n{song.lyrics}", song.artist)
    if song.genre:
        asked["classify_genre"] = (f"Which genre is this song verse?\n\n{song.lyrics}", song.genre)
    return asked


def _task(song: Song, wanted: Mapping[str, Any]) -> Task:
    """One of the tasks that the song answers, drawn by the recipe's shares; the song itself decides, with the seed, so
    that other rows in the file do not change it."""
    asked = _answerable(song)
    shares = {kind: share for kind, share in wanted["songs"]["tasks"].items() if share and kind in asked}
    digest = hashlib.sha256(f"task\n{wanted['seed']}\n{song.key}".encode()).digest()
    ends = list(accumulate(shares.values()))
    point = int.from_bytes(digest[:4], "big") / 2**32 * ends[-1]
    kind = next(kind for kind, end in zip(shares, ends, strict=True) if point < end)
    question, answer = asked[kind]
    return Task(question, answer, kind, song.key)
