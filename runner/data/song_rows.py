"""Conversations about songs: a seeded draw from a stream of any length, and one task for each
song."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from runner.data import RenderedExample, items, rows
from runner.data.chat import ConversationRows
from runner.data.report import Report
from runner.data.row_files import DataRow
from runner.data.songs import Lyrics, Song, SongTask, song_of, task_of
from runner.data.tokenizers import TokenizerFor


def prepare(
    lyrics: Lyrics,
    out: Path,
    *,
    tokenizer_for: TokenizerFor | None = None,
    sample_rows: int | None = None,
) -> Report:
    """Writes the files of the conversations' preparer. sample_rows: keep at most this many songs,
    drawn by the seed. Raises Stop if too few rows remain."""
    return SongRows(lyrics).prepare(out, tokenizer_for, sample_rows)


def first(lyrics: Lyrics) -> Iterator[RenderedExample]:
    """The tasks as the model will see them, one after the other, before the draw."""
    return SongRows(lyrics).first()


class SongRows(ConversationRows[Lyrics]):
    """Rows that may be songs, of which some are drawn."""

    def items_of(self) -> Iterator[items.ItemOf]:
        return (self._item for _ in self.asked.sets)

    def _item(self, row: DataRow) -> SongTask | str:
        song = song_of(row, self.asked.songs)
        if isinstance(song, str):
            return song
        return task_of(song, self.asked)

    def read(self, place: Path, sample_rows: int | None) -> np.ndarray:
        report = self.report
        count = self.asked.songs.count
        report.unit = "song"
        drawn = self._draw(min(count, sample_rows or count))
        if sample_rows is not None and sample_rows < count and report.not_drawn:
            report.sampled_from = len(drawn) + report.not_drawn
        tasks = [(task_of(song, self.asked), line, index) for song, line, index in drawn]
        report.tasks = dict(Counter(task.kind for task, *_ in tasks))
        self.spool = items.spool(tasks, self.asked.seed, place / "0.arrow")
        return np.arange(len(self.spool))

    def _draw(self, count: int) -> list[tuple[Song, int, int]]:
        """About `count` songs, each with its line and its data set's number; counts the rows that
        are left out."""
        lyrics = self.asked
        report = self.report
        draw = BottomK(count, lyrics.songs.per_artist, lyrics.seed)
        for index, corpus in enumerate(lyrics.sets):
            for line, row in report.whole(lyrics, index, rows.read(corpus, stream=lyrics.stream)):
                song = song_of(row, lyrics.songs)
                if isinstance(song, str):
                    report.dropped[song] += 1
                else:
                    draw.offer(
                        (song, line, index),
                        song.key,
                        song.artist.casefold() if song.artist else None,
                    )
        drawn: list[tuple[Song, int, int]] = draw.drawn()
        report.duplicates = draw.duplicates
        report.distinct = len(drawn)
        report.not_drawn = draw.not_drawn
        if draw.over_cap:
            report.dropped[f"more than {lyrics.songs.per_artist:,} songs of one artist"] = (
                draw.over_cap
            )
        return drawn


class BottomK:
    """Draws the `count` items whose keys have the smallest hashes, at most `per_owner` of each
    owner (bottom-k sampling, Cohen and Kaplan 2007). Neither the order of the stream nor other
    items change the draw, and duplicates are found without remembering all items. duplicates,
    over_cap, not_drawn: counts of items left out."""

    def __init__(self, count: int, per_owner: int, seed: int) -> None:
        self.count = count
        self.per_owner = per_owner
        self.seed = seed
        self.duplicates = self.over_cap = self.not_drawn = 0
        self._held: dict[int, tuple[Any, str | None]] = {}
        # Items with larger hashes are not among the smallest.
        self._limit = 2**128

    def offer(self, item: object, key: str, owner: str | None) -> None:
        """Takes an item, or counts why not. owner: None if it has none, and so no limit."""
        rank = int.from_bytes(
            hashlib.sha256(f"draw\n{self.seed}\n{key}".encode()).digest()[:16], "big"
        )
        if rank in self._held:
            self.duplicates += 1
        elif rank > self._limit:
            self.not_drawn += 1
        else:
            self._held[rank] = (item, owner)
            if len(self._held) >= 2 * self.count:
                self.drawn()

    def drawn(self) -> list[Any]:
        """The items drawn so far, in an order that the seed fixes; the others are forgotten and
        counted."""
        kept: dict[int, tuple[Any, str | None]] = {}
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
