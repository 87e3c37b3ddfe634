"""Report: how the rows were used, in figures and in words (`report.txt.jinja`)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from runner.data.data_sets import DataSets, Where, drawn, set_name, where
from runner.data.prepared import Lengths, PreparedRows, asked, contents
from runner.data.row_files import Bad, DataRow, Numbered
from runner.plan import RowsRequest
from runner.tools.files import read_json, write_json
from runner.tools.problem import Stop, plural
from runner.tools.text import macros

REPORT_FILE = "report.json"
SHOWN_BAD_LINES = 10
# At most this many lines of each kind are named, also in the file; all of them are counted.
MOST_NAMED = 10_000


# These many rows of a small file may be lost, whatever share of it they are, but at most a tenth.
FEW_LOST_ROWS, FEW_LOST_SHARE = 5, 0.1


def numbers(lines: Sequence[Where], count: int) -> str:
    """The first line numbers of `count`, as the end of a line of the report; empty if unknown."""
    if not lines:
        return ""
    first_lines = ", ".join(
        f"{line:,}" if isinstance(line, int) else line for line in lines[:SHOWN_BAD_LINES]
    )
    if count > SHOWN_BAD_LINES:
        more = f" and {count - SHOWN_BAD_LINES:,} more"
    else:
        more = ""
    return f": {plural('line', count)} {first_lines}{more}"


def most_lost(share: float, of: int) -> int:
    """How many of the rows may be lost: a share of them, or a few, because one blank cell in a
    small file is more than a share; none with a share of 0."""
    if share == 0:
        return 0
    few = min(FEW_LOST_ROWS, int(FEW_LOST_SHARE * of))
    return max(few, int(share * of))


def require_few(lost_rows: int, of: int, share: float, lines: Iterable[str]) -> None:
    """Raises Stop if more rows are lost than `most_lost`. lines: of the report, which name them."""
    allowed = most_lost(share, of)
    if lost_rows <= allowed:
        return
    listing = "\n".join(lines)
    part = lost_rows / of
    most = math.ceil(part * 100) / 100
    if allowed:
        bound = f"at most {allowed:,} may be lost"
    else:
        bound = "none may be lost"
    raise Stop(
        f"{lost_rows:,} of {of:,} rows cannot be used ({part:.1%}), but {bound}.\n{listing}",
        f"Fix the rows above, if the model should learn them. To leave them out, write `max_lost_share: {most:g}` in this data's section.",
    )


@dataclass
class SetCounts:
    """A data set: its name, the share of its rows that is taken, its rows, and those of them that
    are trained on."""

    name: str
    share: float = 1.0
    rows_in: int = 0
    train_rows: int = 0


@dataclass(frozen=True)
class DataFinding:
    """An effect of rows on training. count: of cases of `kind`; lines: some of them; said: the
    effect in words."""

    kind: str
    count: int
    said: str
    remedy: str = ""
    lines: tuple[Where, ...] = ()

    @classmethod
    def of(
        cls, case: str, count: int, effect: str, remedy: str = "", lines: Sequence[Where] = ()
    ) -> Self:
        """A finding with the first of some unsorted lines."""

        def place(line: Where) -> tuple[str, int]:
            number, _, of_set = str(line).partition(" of ")
            return of_set, int(number)

        return cls(case, count, effect, remedy, tuple(sorted(lines, key=place)[:MOST_NAMED]))


@dataclass
class Examined:
    """The problems of rows. findings: about `looked_at` of `looked_of` rows, none in a rehearsal.
    licence: of a dataset on the hub. lost: bad rows. bad_lines: their places (see
    `data_sets.where`) and reasons; lost_lines: places by reason, if a place needs no message of its
    own."""

    KIND: ClassVar[str]  # the beginning of the names of its macros in the template
    LEFT_OUT: ClassVar[str]  # the attribute with the counts of rows that are left out, by reason
    TEMPLATE: ClassVar[Path] = Path(__file__).with_name("report.txt.jinja")
    lost: int = 0
    bad_lines: list[tuple[Where, str]] = field(default_factory=list)
    lost_lines: dict[str, list[Where]] = field(default_factory=dict)
    licence: str = ""
    looked_at: int = 0
    looked_of: int = 0
    findings: list[DataFinding] = field(default_factory=list)

    @property
    def facts(self) -> dict[str, Any]:
        """What PreparedRows has of these rows."""
        raise NotImplementedError

    def leave_out(self, reason: str) -> None:
        """Counts a row that is left out."""
        counts: dict[str, int] = getattr(self, self.LEFT_OUT)
        counts[reason] = counts.get(reason, 0) + 1

    def lose(self, line: Where, reason: str, detail: str = "") -> None:
        """Leaves out a bad row. detail: the message for this line."""
        self.lost += 1
        self.leave_out(f"{reason}, listed below by line" if detail else reason)
        if detail:
            if len(self.bad_lines) < MOST_NAMED:
                self.bad_lines.append((line, detail))
            return
        _name(self.lost_lines, reason, [line])

    def skip(self, line: Where, reason: str) -> None:
        """Leaves out a row with nothing to learn, which is not lost."""
        self.leave_out(reason)
        _name(self.lost_lines, reason, [line])

    def lines(self, part: str = "lines") -> list[str]:
        """The report, for people; or the part that the macro KIND_`part` writes, such as the rows
        that are left out."""
        return lines_of(f"{self.KIND}_{part}", self, template=self.TEMPLATE)

    def write(self, folder: Path) -> None:
        write_json(folder / REPORT_FILE, _form(type(self)).dump_python(self, mode="json"))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The report in a folder of prepared data, or None."""
        try:
            return cast(Self, _form(cls).validate_python(read_json(folder / REPORT_FILE)))
        except ValueError:
            return None


def lines_of(macro: str, *arguments: object, template: Path = Examined.TEMPLATE) -> list[str]:
    """The lines that a macro writes. template: its file; other files can import the macros of
    `report.txt.jinja`."""
    helpers = {"numbers": numbers, "SHOWN": SHOWN_BAD_LINES, "FILE": REPORT_FILE}
    return str(
        getattr(macros(template, Examined.TEMPLATE.parent, **helpers), macro)(*arguments)
    ).split("\n")[:-1]


def _name(lines_by_kind: dict[str, list[Where]], kind: str, lines: Sequence[Where]) -> None:
    """Adds lines to those of a kind, as long as there are few."""
    named = lines_by_kind.setdefault(kind, [])
    named += lines[: MOST_NAMED - len(named)]


def _form(report_type: type) -> Any:
    from pydantic import TypeAdapter  # a command that only reads a recipe does not wait for it

    return TypeAdapter(report_type)


@dataclass
class Report(Examined):
    """Counts of rows; token lengths of whole conversations; sizes in bytes. form: of the rows, and
    how it was recognised. changed: conversations by what is different from their rows, which are
    not lost; changed_lines: their places. not_taken: rows beyond the share of their data set.
    not_drawn: rows that the seeded draw left out. unit: what must not be on both sides of the
    split. tasks: rows by task, if there are several. key: hash of everything that the result
    depends on. token_lengths: `min`, `median`, `p95`, `max` of all rows, empty without a tokenizer;
    length_bins: their histogram (from, to, rows); lengths: of the rows that are kept; longest_kept:
    of these, 0 if that is `max`."""

    KIND, LEFT_OUT = "rows", "dropped"
    key: str = ""
    source: str = ""
    form: str = ""
    rows_in: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    changed_lines: dict[str, list[Where]] = field(default_factory=dict)
    sets: list[SetCounts] = field(default_factory=list)
    not_taken: int = 0
    duplicates: int = 0
    duplicate_lines: list[Where] = field(default_factory=list)
    not_drawn: int = 0
    unit: str = "question"
    distinct: int = 0
    tasks: dict[str, int] = field(default_factory=dict)
    sampled_from: int | None = None
    train_rows: int = 0
    validation_rows: int = 0
    token_lengths: dict[str, int] = field(default_factory=dict)
    lengths: Lengths = field(default_factory=Lengths)
    length_bins: list[tuple[int, int, int]] = field(default_factory=list)
    longest_kept: int = 0
    tokenizer: str = ""
    bytes_before: int | None = None
    bytes_after: int = 0

    @classmethod
    def of(cls, sources: DataSets) -> Self:
        sets = [SetCounts(data_set.name, data_set.share) for data_set in sources.sets]
        return cls(source=sources.name, sets=sets, bytes_before=sources.size)

    def whole(
        self, sources: DataSets, index: int, numbered: Iterable[Numbered]
    ) -> Iterator[tuple[int, DataRow]]:
        """Every row that is taken, with its line number; all are counted, and broken lines are
        reported."""
        share = sources.sets[index].share
        counts = self.sets[index]
        for number, row in numbered:
            self.rows_in += 1
            counts.rows_in += 1
            if isinstance(row, Bad):
                self.lose(where(sources, index, number), "not a row", row.reason)
            elif share >= 1 or drawn(row, share, sources.seed):
                yield number, row
            else:
                self.not_taken += 1

    def change(self, line: Where, change: str) -> None:
        """Counts a conversation that differs from its row."""
        self.changed[change] += 1
        _name(self.changed_lines, change, [line])

    def require_few_lost(self, lost_rows: int, of: int, share: float, folder: Path) -> None:
        """Raises Stop if more than `share` of the rows are lost, and leaves the report, without a
        key, in `folder`."""
        try:
            require_few(
                lost_rows, of, share, [*self.lines("left_out"), *lines_of("findings", self)]
            )
        except Stop:
            self.key = ""
            self.write(folder)
            raise

    def add(self, part: Report) -> None:
        """Adds the counts of the rows after these."""
        self.rows_in += part.rows_in
        self.lost += part.lost
        self.not_taken += part.not_taken
        for counts, more in zip(self.sets, part.sets, strict=True):
            counts.rows_in += more.rows_in
        self.dropped += part.dropped
        self.changed += part.changed
        self.bad_lines = [*self.bad_lines, *part.bad_lines][:MOST_NAMED]
        for reason, lines in part.lost_lines.items():
            _name(self.lost_lines, reason, lines)
        for change, lines in part.changed_lines.items():
            _name(self.changed_lines, change, lines)

    @property
    def facts(self) -> dict[str, Any]:
        names = ("train_rows", "validation_rows", "sampled_from", "lengths")
        longest = self.longest_kept or self.token_lengths.get("max", 0)
        sets = {}
        for index, counts in enumerate(self.sets):
            sets[f"{set_name(index)} {counts.name}"] = counts.train_rows
        computed = {"longest": longest, "sets": parts_of(sets, self.train_rows)}
        return {name: getattr(self, name) for name in names} | computed


def parts_of(rows: Mapping[str, int], of: int) -> dict[str, float]:
    """The share of each of several data sets in `of` rows, 0 to 1; empty for a single one."""
    if len(rows) > 1:
        return {name: round(count / max(1, of), 4) for name, count in rows.items()}
    return {}


def rows_of(report: Examined, data: RowsRequest) -> PreparedRows:
    """The facts about the rows of a report. data: the request."""
    return PreparedRows(asked=asked(data), contents=contents(data), **report.facts)
