"""Troubles: error messages in logs, events and pods, and their meaning, as a table
(`troubles.toml`)."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

from runner.catalog.log_reading import Ending, LogReading, read_logs
from runner.catalog.tables import table
from runner.tools import packaged
from runner.tools.child_process import MARK
from runner.tools.problem import plural

PLACES = (
    "log",
    "unmade",
    "queue",
    "placing",
    "image",
    "missing",
    "mount",
    "taken",
    "ended",
    "server",
)
LOG, UNMADE, QUEUE, PLACING, IMAGE, MISSING, MOUNT, TAKEN, ENDED, SERVER = PLACES
_SPARE = ("advice", "busy", "plan", "ranks")  # optional words of a sentence
SHOWN = 300  # characters of a message that are shown
_NAMES_ERROR = re.compile(r"\b(?:\w*Error|\w*Exception)\b")
# Errors of which the log has the reason elsewhere: in the words of a library below Python, or of
# another process.
_REASON_ELSEWHERE = re.compile(
    r"NCCL|CUDA error|CUDA driver error|CUDA failure|cuDNN|CUBLAS|DistBackendError|DistNetworkError|DistStoreError"
    r"|RendezvousConnectionError|RendezvousTimeoutError|SignalException|DataLoader worker|Gloo|gloo"
    r"|One of the subprocesses has abruptly died|BrokenProcessPool|look at the above report|Engine core initialization failed"
)


class Trouble(NamedTuple):
    """One thing that goes wrong: the places to look for it, its patterns, its meaning and remedy.
    needs: a word from the caller; reads: the reader that adds words from the text; follows: whether
    another machine usually causes it."""

    name: str
    places: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    means: str
    remedy: str = ""
    needs: str = ""
    reads: str = ""
    follows: bool = False

    @property
    def code(self) -> str:
        """Its name at the end of messages, which is also a heading of `docs/troubles.md`."""
        return self.name.replace(" ", "-")

    def found_in(
        self, text: str, values: Mapping[str, str], log: str = "", anywhere: bool = False
    ) -> FoundTrouble | None:
        """The last match in a text, or None. log: the one that the text is from, for the reader; by
        default the text. anywhere: for a text of unknown origin, whose line must show its kind."""
        if self.needs and not values.get(self.needs):
            return None
        signs = self._signs() if anywhere else [""]
        for pattern in self.patterns:
            matches = []
            for match in pattern.finditer(text):
                if _has_sign(text, match.start(), signs):
                    matches.append(match)
            if matches:
                return self._found(text, matches, values, log or text)
        return None

    def _signs(self) -> list[str]:
        """Patterns of lines from its places."""
        places = table("trouble-places")
        return [places.get(place, {"shown_by": ""})["shown_by"] for place in self.places]

    def _found(
        self, text: str, matches: list[re.Match[str]], values: Mapping[str, str], log: str
    ) -> FoundTrouble:
        groups: dict[str, str] = {}
        firsts: dict[str, None] = {}
        for match in matches:
            groups |= {name: value for name, value in match.groupdict().items() if value}
            if match.re.groups and match[1]:
                firsts[match[1]] = None
        start = matches[-1].start()
        line = _line(text, start)
        if len(line) > SHOWN:
            line = text[start : start + len(line)].splitlines()[0]  # from the match on
        line = line.strip()[:SHOWN]
        if self.reads:
            values_read = _READERS[self.reads](log, groups | dict(values))
        else:
            values_read = {}
        sentence = line.rstrip(".")
        usual_values = {
            "said": sentence,
            "claims": sentence,
            "less": "the recipe",
            "all": ", ".join(firsts),
        }
        return FoundTrouble(self, line, usual_values | groups | values_read | dict(values))


@dataclass(frozen=True)
class FoundTrouble:
    """A trouble that a text shows. line: the line with the evidence; words: for its sentences."""

    trouble: Trouble
    line: str
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> tuple[str, str]:
        """Its meaning and its remedy. A missing word is shown as `…`, unless it is optional."""
        values = defaultdict(lambda: "…", dict.fromkeys(_SPARE, ""))
        values |= self.words
        return self.trouble.means.format_map(values), self.trouble.remedy.format_map(values)

    def __str__(self) -> str:
        return self.told()

    def told(self, evidence: str = "") -> str:
        """Its sentences, with the evidence between them, and its code."""
        means, remedy = self.sentences
        text = " ".join(f"{means} {evidence} {remedy}".split())
        with_single_stops = re.sub(r"\.\.+", ".", text)
        return f"{with_single_stops} ({self.trouble.code})"


@cache
def known() -> tuple[Trouble, ...]:
    """The table. The first trouble that a text shows counts."""
    rows = []
    for name, entry in table("troubles").items():
        fields = dict(entry)
        places = tuple(fields.pop("in"))
        patterns = fields.pop("pattern")
        if isinstance(patterns, str):
            patterns = [patterns]
        rows.append(Trouble(name, places, tuple(map(re.compile, patterns)), **fields))
    return tuple(rows)


def find(text: str, *places: str, **values: str) -> FoundTrouble | None:
    """The first trouble of the table that a cluster's message shows, of these places. values: the
    caller's, for the sentences."""
    for trouble in known():
        if set(trouble.places) & set(places):
            trouble_found = trouble.found_in(text, values)
            if trouble_found:
                return trouble_found
    return None


@dataclass(frozen=True)
class Diagnosis:
    """Why a process failed, by its log. stop: the runner's own reason, empty if it did not stop
    itself; trouble: of the table, None if the log shows none; error: the line that names the last
    error, empty without one."""

    stop: str = ""
    trouble: FoundTrouble | None = None
    error: str = ""

    @property
    def meaning(self) -> str:
        """The reason in sentences; empty if it is unknown."""
        return self.stop or str(self.trouble or "")

    @property
    def line(self) -> str:
        """The line of the log that shows the trouble, or else names the last error; empty for the
        runner's own reason."""
        if self.stop:
            return ""
        if self.trouble:
            return self.trouble.line
        return self.error


def diagnose(logs: str | Sequence[str], *places: str, **values: str) -> Diagnosis:
    """Why a process failed, by the logs of all its machines. places: LOG by default. values: as in
    `find`.

    The runner's own reason counts first. Then the errors that ended processes, with all of their
    causes; only where they say nothing of the reason, other lines count. Warnings never do: they
    are in the logs of successful runs as well."""
    if isinstance(logs, str):
        logs = [logs]
    return _diagnose(read_logs(logs), places or (LOG,), values)


def diagnose_anything(text: str, **values: str) -> Diagnosis:
    """What a text shows whose origin is unknown: a log, or events and descriptions of a cluster.
    values: as in `find`."""
    reading = read_logs([text])
    diagnosis = _diagnose(reading, (LOG, SERVER), values)
    if diagnosis.meaning or reading.has_trace:
        return diagnosis
    of_cluster = [trouble for trouble in known() if not {LOG, SERVER}.intersection(trouble.places)]
    trouble = _first(of_cluster, reading.evidence, values, anywhere=True)
    return replace(diagnosis, trouble=trouble)


def _diagnose(reading: LogReading, places: tuple[str, ...], values: Mapping[str, str]) -> Diagnosis:
    if reading.stop:
        return Diagnosis(stop=reading.stop)
    troubles = [candidate for candidate in known() if set(candidate.places) & set(places)]
    # A cause on one machine comes before what it brings about on the others.
    causes = [candidate for candidate in troubles if not candidate.follows]
    effects = [candidate for candidate in troubles if candidate.follows]
    reasons = [ending for ending in reading.endings if _has_own_reason(ending, effects)]
    if not reasons:
        trouble = _first([*causes, *effects], reading.evidence, values)
        return Diagnosis(trouble=trouble, error=_last_error(reading))
    errors = "\n".join(ending.with_place for ending in reading.endings)
    trouble = _first(causes, errors, values, reading.evidence)
    return Diagnosis(trouble=trouble, error=reasons[-1].error[:SHOWN])


def _has_own_reason(ending: Ending, effects: Sequence[Trouble]) -> bool:
    """Whether an error is a reason itself, rather than the effect of something that the log shows
    elsewhere."""
    if _REASON_ELSEWHERE.search(ending.text):
        return False
    return _first(effects, ending.text, {}) is None


def _first(
    troubles: Iterable[Trouble],
    text: str,
    values: Mapping[str, str],
    log: str = "",
    anywhere: bool = False,
) -> FoundTrouble | None:
    for trouble in troubles:
        shown = trouble.found_in(text, values, log, anywhere)
        if shown:
            return shown
    return None


def _last_error(reading: LogReading) -> str:
    if reading.endings:
        return reading.endings[-1].error[:SHOWN]
    lines = [line.strip() for line in reading.evidence.splitlines() if _NAMES_ERROR.search(line)]
    if lines:
        return lines[-1][:SHOWN]
    return ""


def planned(memory: str) -> str:
    """A sentence about the planned memory of each GPU; empty if unknown."""
    if memory:
        return f"`recipe plan` had estimated {memory} for each GPU."
    return ""


def last_line(log: str) -> str:
    """The last line of a log that is for people, cut to SHOWN."""
    lines = spoken(log)
    if lines:
        return lines[-1].strip()[:SHOWN]
    return ""


def spoken(text: str) -> list[str]:
    """The lines of a log that are for people: neither empty, nor an event of training, nor other
    JSON."""
    lines = []
    for line in map(str.rstrip, text.splitlines()):
        is_json = line.startswith("{") and line.endswith("}")
        if line and MARK not in line and not is_json:
            lines.append(line)
    return lines


def _has_sign(text: str, offset: int, signs: Iterable[str]) -> bool:
    """Whether the line at an offset shows one of these signs."""
    line = _line(text, offset)
    return any(re.search(sign, line) for sign in signs)


def _line(text: str, offset: int) -> str:
    start = text.rfind("\n", 0, offset) + 1
    end = text.find("\n", offset)
    if end < 0:
        return text[start:]
    return text[start:end]


def _package(_text: str, values: Mapping[str, str]) -> dict[str, str]:
    """A missing package, and how to install it. Code that comes with a model may need one outside
    the extras."""
    package = values["module"].partition(".")[0]
    extra = packaged.bringing(package)
    if extra:
        install = packaged.install(extra)
    else:
        distributions = table("distributions")["packages"]
        install = f"pip install {distributions.get(package, package)}"
    return {"package": package, "install": install}


def _ranks(text: str, values: Mapping[str, str]) -> dict[str, str]:
    world_size = int(values.get("world_size") or 0)
    return {"ranks": late(text, world_size)}


_READERS: Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]] = {
    "package": _package,
    "ranks": _ranks,
}
_WAITED = re.compile(
    r"\[Rank (\d+)\] Watchdog caught\s+collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"[^\n]*?Timeout\(ms\)=(\d+)"
)
_REACHED = re.compile(r"Rank (\d+)\][^\n]*last enqueued NCCL work: (-?\d+)")
_WRITES = re.compile(r"\[[rR]ank ?(\d+)\]")  # PyTorch's mark of the process that wrote a line


def late(text: str, world_size: int = 0) -> str:
    """Which rank came late to a collective that never ended, as a sentence; empty if the logs do
    not show who waited. text: the log of one machine or, with `world_size` (ranks), of all of them
    together."""
    waits = _WAITED.findall(text)
    if not waits:
        return ""
    # By rank: the number of the collective that it waited for first, and of the last one that it
    # has begun.
    waited = {int(rank): int(number) for rank, number, _, _ in reversed(waits)}
    reached = {int(rank): int(number) for rank, number in _REACHED.findall(text)}
    writing = {int(rank) for rank in _WRITES.findall(text)} | set(waited) | set(reached)
    ranks = list(range(world_size))
    if not world_size:
        # All ranks of the machine that has these. Every machine has the same number of ranks, in
        # sequence.
        lowest = min(writing)
        last = max(writing)
        count = last - lowest + 1
        while lowest // count != last // count:
            count += 1
        first = lowest // count * count
        ranks = list(range(first, first + count))
    missing = [rank for rank in ranks if rank not in waited]
    for numbers in (waited, reached):
        if not missing and len(set(numbers.values())) > 1:
            lowest_number = min(numbers.values())
            missing = sorted(rank for rank, number in numbers.items() if number == lowest_number)
    _, _, operation, milliseconds = waits[0]
    minutes = f"{int(milliseconds) / 60_000:g} minutes"
    collective = f"collective {max(waited.values())} ({operation}), for {minutes}"
    if missing:
        waiting_ranks = numbered("rank", sorted(set(waited) - set(missing)))
        return f"{numbered('Rank', missing)} came late or never: {waiting_ranks} waited at {collective}."
    if not world_size:
        return f"{numbered('Rank', ranks)} waited at {collective}. The logs of the other machines may show for which rank."
    return f"All of {numbered('rank', ranks)} were at {collective}. None was late, so the network or a GPU had stopped."


def numbered(word: str, numbers: list[int]) -> str:
    """`rank 3`, or `ranks 0 to 2 and 5`, for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    # Two neighbours are both named; of more, only the first and the last.
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0]} to {run[-1]}")
        else:
            parts.extend(map(str, run))
    if len(parts) == 1:
        listed = parts[0]
    else:
        listed = f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{plural(word, len(numbers))} {listed}"
