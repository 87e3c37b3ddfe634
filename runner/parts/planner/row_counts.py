"""Rows: how many a stage trains on and how long they are, as far as this is known without a
download; and what follows from their lengths for batches and packed rows."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple, Self

from runner import catalog
from runner.data import prepared
from runner.data.chat_exports import EXPORTS, Exported
from runner.data.data_sets import BYTES_A_TOKEN
from runner.data.row_files import Unreadable
from runner.parts.planner import samples
from runner.plan import Plan, RowsRequest, Stage, rows_key
from runner.recipe import templates
from runner.recipe.recipe import Recipe
from runner.tools.files import remote
from runner.tools.settings import Section

# Tokens around a turn of a conversation, as ChatML has them, and at the end of a document.
MARKS_A_TURN = 5
MARKS_A_DOCUMENT = 1
JUDGED = {"chosen", "completion"}  # settings of rows with answers that are judged
# Where the rows of a data set come from.
SOURCE = ("hub", "revision", "subset", "split", "path")


_POINTS = 256  # the number of evenly spaced quantiles that represent a distribution
_SHARES = [(place + 0.5) / _POINTS for place in range(_POINTS)]  # of the rows below each of them
_HIGH = (
    2.3263  # the 99th percentile of the normal distribution with mean 0 and standard deviation 1
)
# The bounds of sigma, for rows that are cut at a length and for a long tail; beyond 1, the 99th
# percentile approaches the mean again. Not -1 and 1, because bisection would begin at 0, which
# divides by 0.
_SKEWED = (-1.01, 1.0)


class RowLengths(prepared.Lengths):
    """Lengths of rows as the shifted lognormal distribution with their three figures (Johnson 1949,
    system S_L)."""

    @classmethod
    def counted(cls, lengths: Iterable[float]) -> Self:
        return cls._weighed([(length, 1.0) for length in lengths])

    @classmethod
    def mixed(cls, parts: Sequence[tuple[float, Self]]) -> Self:
        """The lengths of several kinds of rows together, each with its count."""
        kinds = [(count, lengths) for count, lengths in parts if count]
        if len(kinds) == 1:
            _, only = kinds[0]
            return only
        weighed = []
        for count, lengths in kinds:
            weighed += [(length, count) for length in _points(lengths)]
        return cls._weighed(weighed)

    @classmethod
    def _weighed(cls, lengths: list[tuple[float, float]]) -> Self:
        if not lengths:
            return cls()
        total = sum(weight for _, weight in lengths)
        mean = sum(length * weight for length, weight in lengths) / total
        squares = sum(weight * (length - mean) ** 2 for length, weight in lengths)
        spread = math.sqrt(squares / total)
        high = 0.0
        remaining = 0.01 * total
        for length, weight in sorted(lengths, reverse=True):
            high = length
            remaining = remaining - weight
            if remaining < 0:
                break
        return cls(mean, spread, high)

    def scaled(self, factor: float, added: float = 0.0) -> Self:
        """The same in another unit, with a prefix of `added` units before each row."""
        mean = self.mean * factor + added
        high = self.high * factor + added
        return type(self)(mean, self.spread * factor, high)

    @lru_cache(maxsize=1024)  # noqa: B019, equal lengths share their results
    def longest(self, rows: float, limit: float, multiple: int = 1) -> float:
        """The mean length of the longest of this many rows, none longer than `limit`, rounded up to
        a multiple."""
        lengths: Iterable[float] = _points(self)
        if rows > 1:
            # The longest of n rows is below the quantile s with the probability s^n.
            lengths = _at(self, [share ** (1 / rows) for share in _SHARES])
        if multiple > 1:
            lengths = [math.ceil(length / multiple) * multiple for length in lengths]
        cut_lengths = [min(limit, length) for length in lengths]
        return sum(cut_lengths) / _POINTS

    def beyond(self, limit: float) -> float:
        """The share of rows that are longer than `limit`, 0 to 1."""
        are_longer = [length > limit for length in _points(self)]
        return sum(are_longer) / _POINTS

    def attended(self, limit: float) -> float:
        """The mean length of the row that a token is in, E[L²] / E[L], at most `limit`."""
        return min(limit, self.mean + self.spread**2 / self.mean)

    @lru_cache(maxsize=256)  # noqa: B019
    def packed(self, limit: float) -> float:
        """The mean number of rows that fit into a packed one of `limit`: first-fit decreasing, as
        in Axolotl 0.19.0 (utils/samplers/multipack.py)."""
        rooms: list[float] = []
        lengths = [min(length, limit) for length in _points(self)]
        for length in sorted(lengths, reverse=True):
            fitting = (place for place, room in enumerate(rooms) if room >= length)
            place = next(fitting, len(rooms))
            if place == len(rooms):
                rooms.append(limit)
            rooms[place] -= length
        # The last packed row is not full.
        return _POINTS / (len(rooms) - rooms[-1] / limit)


def _at(lengths: RowLengths, shares: Iterable[float]) -> list[float]:
    """The lengths that these shares of the rows, above 0 and below 1, do not exceed: start + size ·
    e^(sigma · z) for a normal z. Size and sigma are negative if the longer tail is that of short
    rows."""
    if lengths.spread <= 0:
        return [lengths.mean for _ in shares]
    from statistics import NormalDist  # slow to load

    far = (lengths.high - lengths.mean) / lengths.spread
    low, up = _SKEWED
    for _ in range(30):
        sigma = (low + up) / 2
        wide = math.copysign(math.sqrt(math.expm1(sigma**2)), sigma)
        reached = (math.exp(_HIGH * sigma - sigma**2 / 2) - 1) / wide
        if reached < far:
            low = sigma
        else:
            up = sigma
    size = lengths.spread / wide * math.exp(-(sigma**2) / 2)
    start = lengths.mean - size * math.exp(sigma**2 / 2)
    normal = map(NormalDist().inv_cdf, shares)
    return [max(1.0, start + size * math.exp(sigma * z)) for z in normal]


@lru_cache(maxsize=256)
def _points(lengths: RowLengths) -> tuple[float, ...]:
    """The lengths at evenly spaced quantiles, scaled to the counted mean."""
    points = _at(lengths, _SHARES)
    total = sum(points)
    return tuple(length * lengths.mean * _POINTS / total for length in points)


UNKNOWN = RowLengths()  # the lengths of rows that were not counted


class Rows(NamedTuple):
    """Counts of rows, None if unknown. lengths: in tokens, empty if unknown. longest: of the
    longest row, counted or estimated, 0 if unknown. source: of the figures, in words;
    longest_source: of an estimated `longest`, else empty."""

    training: int | None = None
    validation: int | None = None
    lengths: RowLengths = UNKNOWN
    source: str = "the number of rows is unknown; `--rows N` sets it"
    longest: int = 0
    longest_source: str = ""

    @property
    def tokens(self) -> float | None:
        """Of a mean row."""
        return self.lengths.mean or None


def of(
    recipe: Recipe, plan: Plan, stage: Stage, folder: Path | None, given_rows: int | None = None
) -> Rows:
    """The rows of a stage. folder: where data may be prepared already; None to read only recipe and
    catalog, so that the answer is the same on every machine. given_rows: the value of `--rows`, for
    every stage whose rows are counted."""
    source, data = source_of(plan, stage)
    samples = list[Path | None]()
    for _, data_set in recipe.of_stage(stage.name).data_sets():
        name = data_set.get("sample")
        samples.append(recipe.folder / name if name else None)
    if source is None:
        return known(data, folder, given_rows, samples)
    new_rows = known(data, folder and folder / stage.name, given_rows, samples)
    drawn = source.get("earlier_rows", {}).get(stage.name)
    if drawn and new_rows.training and not given_rows:
        # Rows of an earlier stage, up to a share of the mixture.
        name = drawn["of"]
        share = drawn["share"]
        lengths = new_rows.lengths
        earlier = known(source[rows_key(name)], folder and folder / name)
        lacking = round(new_rows.training * share / (1 - share))
        added = min(lacking, earlier.training or lacking)
        if lengths and earlier.lengths:
            lengths = RowLengths.mixed([(new_rows.training, lengths), (added, earlier.lengths)])
        all_sources = f"{new_rows.source}, {added:,} of them from `{name}`"
        return Rows(
            new_rows.training + added,
            new_rows.validation,
            lengths,
            all_sources,
            *_longest([new_rows, earlier]),
        )
    return new_rows


def source_of(plan: Plan, stage: Stage) -> tuple[Mapping[str, Any] | None, Mapping[str, Any]]:
    """The data of a stage; of one of several, with the config of the stage that prepares it."""
    for earlier in plan.stages:
        rows = earlier.config.get(rows_key(stage.name))
        if rows and not earlier.trains and earlier.name in stage.reads:
            return earlier.config, rows
    return None, stage.data


def _longest(parts: Sequence[Rows]) -> tuple[int, str]:
    """The longest row of several data sets, and the source of an estimate; 0 if one of them is
    unknown."""
    sources = dict.fromkeys(part.longest_source for part in parts if part.longest_source)
    all_counted = all(part.longest for part in parts)
    if all_counted:
        return (max((part.longest for part in parts), default=0), " and ".join(sources))
    return (0, "")


def known(
    data: RowsRequest,
    folder: Path | None,
    given_rows: int | None = None,
    samples: Sequence[Path | None] = (),
) -> Rows:
    """Rows from `--rows`, from prepared data, from the recipe, from local files, or from the
    catalog. Lengths that preparation did not count come from files and catalog. data: as a preparer
    reads it. folder: where it writes; None to open no file. samples: of the data sets, in order."""
    prepared_rows = _prepared(data, folder)
    lengths = UNKNOWN
    if prepared_rows:
        lengths = RowLengths(*astuple(prepared_rows.lengths))
    of_prepared = f"the prepared data in {folder}"
    if prepared_rows and lengths and not given_rows:
        return Rows(
            prepared_rows.train_rows,
            prepared_rows.validation_rows,
            lengths,
            of_prepared,
            prepared_rows.longest,
        )
    counted = _found(data, folder, samples)
    if prepared_rows and prepared_rows.longest:
        counted = counted._replace(
            lengths=lengths or counted.lengths, longest=prepared_rows.longest, longest_source=""
        )
    if given_rows:
        return _split(counted._replace(training=given_rows, source="`--rows`"), data)
    if prepared_rows:
        return counted._replace(
            training=prepared_rows.train_rows,
            validation=prepared_rows.validation_rows,
            source=of_prepared,
        )
    if counted.training is None:
        return counted
    rows = _split(counted, data)
    validation_sets = data.get("validation_sets", ())
    held_out = [_held_out(data_set, data, folder) for data_set in validation_sets]
    if None in held_out:
        return rows._replace(validation=None)
    if held_out:
        return rows._replace(validation=sum(filter(None, held_out)))
    return rows


def _split(rows: Rows, data: RowsRequest) -> Rows:
    """The same with a share held out for validation."""
    count = rows.training or 0
    validation = round(count * float(data.get("validation_share") or 0))
    return rows._replace(training=count - validation, validation=validation)


def _prepared(data: RowsRequest, folder: Path | None) -> prepared.PreparedRows | None:
    """The prepared rows. None without them, or if settings or files have changed since."""
    if folder is None:
        return None
    rows = prepared.PreparedRows.read(folder)
    if not rows or not rows.train_rows or rows.asked != prepared.asked(data):
        return None
    contents = prepared.contents(data)
    if rows.contents and contents and rows.contents != contents:
        return None
    return rows


def _found(data: RowsRequest, folder: Path | None, samples: Sequence[Path | None]) -> Rows:
    """The rows of all data sets together, before some are held out."""
    sets = zip(data.get("sets", [data]), chain(samples, repeat(None)), strict=False)
    parts = [_of_set(data_set, data, folder, sample) for data_set, sample in sets]
    longest, longest_source = _longest([part for part in parts if part.training != 0])
    lengths = _lengths(parts)
    count = (data.get("songs") or {}).get("count")
    sources = " and ".join(dict.fromkeys(part.source for part in parts))
    unknown = [part for part in parts if part.training is None]
    if unknown and not count:
        return unknown[0]._replace(longest=longest, longest_source=longest_source)
    counted = sum(part.training or 0 for part in parts)
    if count and (unknown or count <= counted):
        source = "the recipe's `count`"
        if lengths:
            source += f", with lengths from {sources}"
        return Rows(count, None, lengths, source, longest, longest_source)
    return Rows(counted, None, lengths, sources, longest, longest_source)


def _lengths(parts: Sequence[Rows]) -> RowLengths:
    """The lengths of several data sets together; empty if those of one with rows are unknown."""
    weighed = []
    for part in parts:
        if part.training == 0:
            continue
        if part.training is None or not part.lengths:
            return UNKNOWN
        weighed.append((part.training, part.lengths))
    return RowLengths.mixed(weighed)


def _of_set(
    data_set: Section, data: RowsRequest, folder: Path | None, sample: Path | None = None
) -> Rows:
    """The rows of one data set that are taken, before some are held out."""
    rows = Rows()
    path = data_set.get("path")
    if path and not remote(path):
        if folder:
            rows = _local(Path(path), data_set, data)
    elif facts := catalog.dataset_of(data_set):
        lengths = of_catalog(facts, data)
        source = "the catalog of data sets"
        if lengths:
            longest = (math.ceil(lengths.high), f"the 99th percentile in {source}")
        else:
            longest = (0, "")
        rows = Rows(facts["rows"], None, lengths, source, *longest)
    elif sample and folder:
        sampled = _local(sample, data_set, data)
        if sampled.longest:
            # A sample shows the length of rows, but not their number.
            rows = Rows(longest=sampled.longest, longest_source=f"the longest row of {sample.name}")
    if rows.training is None:
        return rows
    return rows._replace(training=round(rows.training * data_set.get("share", 1)))


def _held_out(data_set: Section, data: RowsRequest, folder: Path | None) -> int | None:
    """The rows of a data set, or of a split of it, that only measure the validation loss; None if
    unknown."""
    if data_set.get("path"):
        return _of_set(data_set, data, folder).training
    return catalog.dataset_of(data_set).get(f"{data_set.get('split')}_rows")


def of_catalog(facts: Mapping[str, Any], data: RowsRequest) -> RowLengths:
    """Tokens of rows, from the characters in the catalog."""
    if "characters" not in facts:
        return UNKNOWN
    text = RowLengths(facts["characters"], facts["spread"], facts["high"])
    if data.get("kind") == "plain-text":
        marks = MARKS_A_DOCUMENT
    else:
        marks = 2 * MARKS_A_TURN
    characters_a_token = facts.get("characters_a_token", BYTES_A_TOKEN)
    return text.scaled(1 / characters_a_token, _beside(data) + marks)


def _beside(data: RowsRequest) -> float:
    """Tokens before each row's own: the system prompt, and the question about a song."""
    songs = data.get("songs") or {}
    instruction = songs.get("instruction_form") or ""
    prompt = data.get("system_prompt")
    if not prompt:
        return _tokens(instruction)
    return MARKS_A_TURN + _tokens(prompt) + _tokens(instruction)


def _tokens(text: str) -> float:
    return len(text.encode(errors="replace")) / BYTES_A_TOKEN


def _local(path: Path, data_set: Section, data: RowsRequest) -> Rows:
    """The rows that the preparers will take of a file or a folder, estimated from a sample."""
    columns = []
    for name in templates.SETTINGS:
        columns += templates.columns(str(data_set.get(name) or ""))
    songs = data.get("songs") or {}
    columns += filter(None, (data_set.get("text"), songs.get("lyrics")))
    if JUDGED & data_set.keys():
        columns += [*templates.PROMPTS, "system"]
    columns = columns or [*chain.from_iterable(templates.FORMS.values()), *templates.BESIDES]
    try:
        sampled = samples.sample(
            path,
            data_set.get("split"),
            columns,
            images=data.get("kind") == "images",
            sheet=data_set.get("sheet"),
            text_column=data_set.get("text"),
        )
    except Unreadable as error:
        return Rows(source=f"{error}; `--rows N` sets the number of rows")
    source = f"the {sampled.unit} of {path}"
    if sampled.about:
        source += ", of which a part was read"
    added = _beside(data)
    usable_rows = 0
    lengths = list[float]()
    for row in sampled.rows:
        try:
            read = list(_read(row, data_set, data))
        except RecursionError:
            continue  # brackets without end
        usable_rows += bool(read)
        for tokens in read:
            lengths.append(tokens + added)
    # Preparation leaves out a row without tokens; if no row has the expected form, the share is
    # unknown.
    if usable_rows:
        count = round(sampled.count * usable_rows / len(sampled.rows))
    else:
        count = sampled.count
    longest = math.ceil(max(lengths, default=0))
    if longest:
        longest_source = f"the longest of {source}"
    else:
        longest_source = ""
    return Rows(count, None, RowLengths.counted(lengths), source, longest, longest_source)


def _read(row: object, data_set: Section, data: RowsRequest) -> Iterator[float]:
    """The tokens of each of the model's rows that one row of the data becomes: two for a
    preference."""
    if isinstance(row, int):
        yield row / BYTES_A_TOKEN + MARKS_A_DOCUMENT
    elif not isinstance(row, Mapping):
        return
    elif data.get("kind") == "plain-text":
        text = row.get(data_set.get("text") or "")
        if isinstance(text, str) and text.strip():
            yield _tokens(text) + MARKS_A_DOCUMENT
    elif songs := data.get("songs"):
        lyrics = row.get(songs["lyrics"])
        if (
            isinstance(lyrics, str)
            and songs["min_words"] <= len(lyrics.split()) <= songs["max_words"]
        ):
            yield _tokens(lyrics) + 2 * MARKS_A_TURN
    elif JUDGED & data_set.keys():
        yield from _read_judged(row, data_set)
    # A prompt's reference answer is only for rewards.
    elif (
        row_template := data_set.get("prompt")
        or f"{data_set.get('question') or ''}{data_set.get('answer') or ''}"
    ):
        with suppress(KeyError, templates.NoText):
            yield _tokens(templates.fill(row_template, row)) + 2 * MARKS_A_TURN
    else:
        yield from _read_in_a_form(row, data_set)


def _read_judged(row: object, data_set: Section) -> Iterator[float]:
    """The tokens of each answer that is judged, with the turns before it."""
    # A check of other rows is faster without them.
    from runner.data.judged import LabelSet, PreferenceSet

    judged: Any
    if "completion" in data_set:
        judged = LabelSet
    else:
        judged = PreferenceSet
    with suppress(KeyError, templates.NoText):
        item = judged(**{**dict.fromkeys(SOURCE), **data_set}).item(row)
        if isinstance(item, str):
            return
        before = sum(_tokens(turn.content) + MARKS_A_TURN for turn in item.turns)
        answers = (answer for answer in item.answers.values() if isinstance(answer, str))
        for answer in answers:
            yield before + _tokens(answer) + MARKS_A_TURN


def _read_in_a_form(row: Any, data_set: Section) -> Iterator[float]:
    """The tokens of a row in one of the known conversation formats."""
    columns = set(row)
    form = data_set.get("form") or ""
    if form not in templates.FORMS:
        fitting = (name for name, needed in templates.FORMS.items() if columns.issuperset(needed))
        form = next(fitting, "")
    needed = templates.FORMS.get(form)
    if needed is None or not columns.issuperset(needed):
        return
    if form in EXPORTS:
        with suppress(templates.NoText):
            yield from _read_export(EXPORTS[form](row, data_set.get("answered_by")))
        return
    turns = row[needed[0]]
    if len(needed) == 1 and isinstance(turns, list):
        count = len(turns)
    else:
        count = 2
    tokens = _said([row.get(name) for name in (*needed, *templates.BESIDES)])
    yield tokens + MARKS_A_TURN * count


def _read_export(exported: Exported) -> Iterator[float]:
    """The tokens of a conversation of an app's export, unless one side alone has written."""
    roles = {role for role, _ in exported.turns}
    if len(roles) > 1:
        yield sum(_tokens(text) + MARKS_A_TURN for _, text in exported.turns)


def _said(value: object) -> float:
    """Tokens of all text in a value."""
    if isinstance(value, str):
        return _tokens(value)
    if isinstance(value, Mapping):
        return sum(map(_said, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_said, value))
    return 0
