"""Troubles: messages of logs, events and pods when something goes wrong, and their meaning, as a table
(`troubles.toml`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from runner.catalog.tables import Facts, table
from runner.tools import packaged
from runner.tools.child_process import MARK

PLACES = ("log", "unmade", "queue", "placing", "image", "missing", "mount", "taken", "ended", "server")
LOG, UNMADE, QUEUE, PLACING, IMAGE, MISSING, MOUNT, TAKEN, ENDED, SERVER = PLACES
# What a line of any file must hold besides, to be a cluster's message of that kind; a program's own need nothing else.
_KINDS = {
    place: re.compile(pattern)
    for place, pattern in {
        UNMADE: "forbidden|FailedCreate",
        QUEUE: "(?i)queue|kueue|workload|flavor",
        PLACING: "(?i)nodes are available|FailedScheduling|ProvisioningFailed|PersistentVolumeClaim|provision",
        IMAGE: "(?i)image|manifest",
        MISSING: "(?i)secret",
        MOUNT: "(?i)volume|mount",
        TAKEN: "(?i)evict|preempt|NodeLost|low on resource|deletion",
        ENDED: "(?i)job|deadline ?exceeded|backoff ?limit|exitcode|OOMKilled|SIGKILL|Killed",
    }.items()
}
# Optional words of a sentence.
_SPARE = ("advice", "busy", "plan", "ranks")
# Characters of a message that are shown.
SHOWN = 300
# The last lines of a log that name an error: at the beginning of a line, as Python ends a trace, else anywhere.
_ERRORS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?:\[rank\d+\]: )?\s*(?:[\w.]+\.)?(?:\w*(?:Error|Exception)|TrainingStopped)\b.*$",
        r"^.*\b(?:\w*Error|\w*Exception|TrainingStopped)\b.*$",
    )
)
# A launcher's words about the end of a child, which never contain the reason.
_OF_A_CHILD = "ChildFailedError"


@dataclass(frozen=True)
class Trouble:
    """One thing that goes wrong: where it is looked for, its patterns, its meaning and remedy. needs: a word that must
    be known; reads: what adds words from the text; follows: whether another machine usually causes it."""

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

    def found_in(self, text: str, words: Mapping[str, str], anywhere: bool = False) -> FoundTrouble | None:
        """The last match in a text, because earlier ones have passed, or None. anywhere: the text is of unknown origin,
        and the line itself must show what it is about."""
        if self.needs and not words.get(self.needs):
            return None
        for pattern in self.patterns:
            matches = list(pattern.finditer(text))
            if anywhere:
                matches = [match for match in matches if self._of_its_kind(_line(text, match.start()))]
            if matches:
                groups = {name: said for match in matches for name, said in match.groupdict().items() if said}
                firsts = dict.fromkeys(match[1] for match in matches if pattern.groups and match[1])
                at = matches[-1].start()
                line = _line(text, at)
                # For a long line, the part from there on.
                line = (line if len(line) <= SHOWN else text[at : at + len(line)].splitlines()[0]).strip()[:SHOWN]
                own = _READERS[self.reads](text, groups | dict(words)) if self.reads else {}
                said = line.rstrip(".")
                known = {"said": said, "claims": said, "less": "the recipe", "all": ", ".join(firsts)}
                return FoundTrouble(self, line, known | groups | own | dict(words))
        return None

    def _of_its_kind(self, line: str) -> bool:
        return any(place not in _KINDS or _KINDS[place].search(line) for place in self.places)


@dataclass(frozen=True)
class FoundTrouble:
    """A trouble that a text shows. line: the line with the evidence; words: for its sentences."""

    trouble: Trouble
    line: str
    words: Mapping[str, str] = field(default_factory=dict)

    @property
    def means(self) -> str:
        return self.trouble.means.format_map(_WordsOrDots(self.words))

    @property
    def remedy(self) -> str:
        return self.trouble.remedy.format_map(_WordsOrDots(self.words))

    @property
    def with_line(self) -> str:
        """The same, and the words that it is read from."""
        return self._coded(f"{self.means} The log says: {self.line}. {self.remedy}")

    def __str__(self) -> str:
        return self._coded(f"{self.means} {self.remedy}")

    def _coded(self, text: str) -> str:
        tidy = re.sub(r"\.\.+", ".", " ".join(text.split()))
        return f"{tidy} ({self.trouble.code})"


class _WordsOrDots(dict[str, str]):
    """Words for a sentence; a missing one is shown as `…`."""

    def __missing__(self, key: str) -> str:
        return "" if key in _SPARE else "…"


@cache
def known() -> tuple[Trouble, ...]:
    """The table, in the order in which it counts."""

    def row(name: str, entry: Facts) -> Trouble:
        patterns = [entry["pattern"]] if isinstance(entry["pattern"], str) else entry["pattern"]
        rest = {key: said for key, said in entry.items() if key not in ("in", "pattern")}
        return Trouble(name, tuple(entry["in"]), tuple(map(re.compile, patterns)), **rest)

    return tuple(row(name, entry) for name, entry in table("troubles").items())


def find(text: str, *places: str, **words: str) -> FoundTrouble | None:
    """The first trouble of the table that a text shows, among those of these places; without places the text is of
    unknown origin, and all count. words: the caller's, for the sentences."""
    for trouble in known():
        here = not places or set(trouble.places) & set(places)
        if here and (found := trouble.found_in(text, words, anywhere=not places)):
            return found
    return None


def planned(memory: str) -> str:
    """A sentence about the planned memory of each GPU; empty if unknown."""
    return f"`recipe plan` had estimated {memory} for each GPU." if memory else ""


def remedy(name: str) -> str:
    """The remedy of a trouble, by its name."""
    return str(table("troubles")[name]["remedy"])


def last_error(log: str, whatever: bool = False) -> str:
    """The last line of a log that names an error, cut to SHOWN; empty without one. whatever: then the log's last
    line."""
    for pattern in _ERRORS:
        said: list[str] = [line.strip() for line in pattern.findall(log) if _OF_A_CHILD not in line]
        if said:
            return said[-1][:SHOWN]
    lines = spoken(log) if whatever else []
    return lines[-1].strip()[:SHOWN] if lines else ""


def spoken(text: str) -> list[str]:
    """The lines of a log that are for people: neither empty, nor an event of training, nor other JSON."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and MARK not in line]
    return [line for line in lines if not (line.startswith("{") and line.endswith("}"))]


def _line(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]


def _package(_text: str, words: Mapping[str, str]) -> dict[str, str]:
    """A missing package, and how to install it. Code that comes with a model may need one outside the extras."""
    package = packaged.package(words["module"])
    extra = packaged.bringing(package)
    return {"package": package, "install": packaged.install(extra) if extra else f"pip install {package}"}


_READERS: Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]] = {
    "package": _package,
    "ranks": lambda text, words: {"ranks": late(text, int(words.get("world_size") or 0))},
}


_WAITED = re.compile(
    r"\[Rank (\d+)\] Watchdog caught\s+collective operation timeout: WorkNCCL\(SeqNum=(\d+), OpType=(\w+)"
    r"[^\n]*?Timeout\(ms\)=(\d+)"
)
_REACHED = re.compile(r"Rank (\d+)\][^\n]*last enqueued NCCL work: (-?\d+)")
# PyTorch's mark of the process that writes a line.
_SPEAKS = re.compile(r"\[[rR]ank ?(\d+)\]")


def _of_one_machine(speaking: set[int]) -> range:
    """The ranks on the machine of these: every machine has the same number, counted on from the one before."""
    first, last = min(speaking), max(speaking)
    count = next(count for count in range(last - first + 1, last + 2) if first // count == last // count)
    return range(first // count * count, (first // count + 1) * count)


def late(text: str, world_size: int = 0) -> str:
    """Which rank came late to a collective that never ended, as a sentence; empty if the logs do not show who waited.
    text: the log of one machine or, with `world_size` (ranks), of all of them together."""
    found = _WAITED.findall(text)
    if not found:
        return ""
    # By rank: the number of the collective that it waited for first, and of the last one that it has begun.
    waited = {int(rank): int(number) for rank, number, _, _ in reversed(found)}
    reached = {int(rank): int(number) for rank, number in _REACHED.findall(text)}
    speaking = {int(rank) for rank in _SPEAKS.findall(text)} | set(waited) | set(reached)
    known = list(range(world_size) if world_size else _of_one_machine(speaking))
    missing = [rank for rank in known if rank not in waited]
    for numbers in (waited, reached):
        if not missing and len(set(numbers.values())) > 1:
            missing = sorted(rank for rank, number in numbers.items() if number == min(numbers.values()))
    _, _, what, milliseconds = found[0]
    at = f"collective {max(waited.values())} ({what}), for {int(milliseconds) / 60_000:g} minutes"
    if missing:
        others = _ranks(sorted(set(waited) - set(missing)))
        return f"{_ranks(missing).capitalize()} came late or never: {others} waited at {at}."
    if not world_size:
        return f"{_ranks(known).capitalize()} waited at {at}. The logs of the other machines may show for which rank."
    return f"All of {_ranks(known)} were at {at}. None was late, so the network or a GPU had stopped."


def _ranks(ranks: list[int]) -> str:
    """`rank 3`, or `ranks 0 to 2 and 5`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    # Two neighbours are both named; of more, only the first and the last.
    parts = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"
