"""Reads logs of training and of servers: the level of each line, Python's traces, and the error
that ended each process."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from runner.tools import child_process

ERROR, WARNING, INFO, PLAIN, EVENT = "error", "warning", "info", "plain", "event"
OWN_STOP = "TrainingStopped"  # the error by which training stops itself, see `trainer.stopping`

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What a cluster, Ray and vLLM, or PyTorch write before a line: the time, the program, the process.
_PREFIX = re.compile(
    r"(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d) )?"
    r"(?P<program>\(\w+ pid=\d+[^)]*\) )?"
    r"(?P<process>\[(?:rank|default)?\d+\]:\s?)?"
)
_WORDS = {
    "CRITICAL": ERROR,
    "FATAL": ERROR,
    "ERROR": ERROR,
    "WARNING": WARNING,
    "WARN": WARNING,
    "INFO": INFO,
    "DEBUG": INFO,
}
# `[2026-11-28 22:35:29,945] [WARNING] [torchao] `, `WARNING:root:`, `ERROR 11-28 22:35:34
# [core.py:1] `.
_WORD = re.compile(
    rf"(?!\s).{{0,80}}?\b(?P<level>{'|'.join(_WORDS)})\b[\]:|> -]+(?:\d\d-\d\d [\d:]+ )?(?:\[[\w./:]+\] ?)?"
)
_LETTERS = {"F": ERROR, "E": ERROR, "W": WARNING, "I": INFO, "D": INFO}
# Google's form, which PyTorch uses: `W1128 22:35:30.613 21057 torch/x.py:630] `, `[E626
# 06:24:44.903 socket.cpp:957] `.
_LETTER = re.compile(r"\[?(?P<level>[FEWID])(?:\d{3,4} [\d:.]+)?(?: +\d+)? [\w./-]+:\d+\] ?")
_PYTHON_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")
_NCCL = re.compile(r"\S.{0,120}?\bNCCL (?P<level>INFO|WARN) ")
_NCCL_LEVELS = {"INFO": INFO, "WARN": ERROR}  # NCCL has no level for errors
# PyTorch warns of what other processes do; often nothing else shows it.
_ABOUT_OTHERS = re.compile(r"torch\.distributed\.|\[c10d\]|ProcessGroup")

_TRACE = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
# A message without its trace.
_RAISED = re.compile(
    r"(?:[\w.]+\.)?(?:\w+(?:Error|Exception)|TrainingStopped)(?::|$)|[\w.]+\.Error(?::|$)"
)
# Launchers report that a process has ended; the process itself reports why.
_LAUNCHERS = re.compile(r"ChildFailedError|CalledProcessError")


@dataclass(frozen=True)
class Line:
    """A line of a log. text: without what comes before it; process: its mark, empty for none;
    by_logger: whether a logger has written it, with a level."""

    text: str
    process: str = ""
    level: str = PLAIN
    by_logger: bool = False


@dataclass
class Ending:
    """An error. messages: its own, after those of its causes, each as lines; has_trace: whether its
    trace comes with it; by_logger: whether a logger has written the trace, with a level on each
    line. in_frames, is_chained: whether the next line is a frame of the trace, or another trace of
    the same failure; raised_at: the last lines of its last frame."""

    has_trace: bool = False
    by_logger: bool = False
    messages: list[list[str]] = field(default_factory=list)
    in_frames: bool = False
    is_chained: bool = False
    raised_at: deque[str] = field(default_factory=lambda: deque(maxlen=2))

    @property
    def text(self) -> str:
        return "\n".join(line for message in self.messages for line in message)

    @property
    def with_place(self) -> str:
        """Its text below the call that raised it: some errors are explained by it alone."""
        return "\n".join((*self.raised_at, self.text))

    @property
    def error(self) -> str:
        """The line that names the error."""
        return self.messages[-1][0].strip()

    @property
    def stop(self) -> str:
        """The message of a training that stopped itself; empty for any other error."""
        name, _, message = "\n".join(self.messages[-1]).partition(": ")
        if name.rpartition(".")[2] == OWN_STOP:
            return message.strip()
        return ""

    def read(self, text: str) -> None:
        if text.startswith(_CHAINED):
            self.is_chained = True
        elif not self.in_frames:
            self.messages[-1].append(text)
        elif text.strip() and not text[0].isspace():
            self.messages.append([text])
            self.in_frames = False
        else:
            self.raised_at.append(text)


@dataclass
class LogReading:
    """What logs show of a failure. stop: why the runner stopped itself, empty if it did not;
    endings: the last error of each process; evidence: all lines that may show a reason: no
    warnings, no information, no events."""

    stop: str = ""
    endings: list[Ending] = field(default_factory=list)
    evidence: str = ""

    @property
    def has_trace(self) -> bool:
        return any(ending.has_trace for ending in self.endings)


def read_logs(logs: Iterable[str]) -> LogReading:
    """Reads the logs of all machines of a job, each from its beginning or from anywhere later."""
    reading = LogReading()
    for log in logs:
        reader = _LogReader()
        for raw in log.splitlines():
            reader.read(raw)
        endings = reader.last_endings()
        stops = [reader.stop, *(ending.stop for ending in endings)]
        reading.stop = reading.stop or next(filter(None, stops), "")
        reading.endings += endings
        reading.evidence += "".join(f"{line}\n" for line in reader.evidence)
    return reading


def read_line(raw: str) -> Line:
    plain = _COLOUR.sub("", raw)
    prefix = _PREFIX.match(plain)
    assert prefix is not None, "every part of it is optional"
    process = "".join(filter(None, prefix.groups())).strip()
    text = plain[prefix.end() :]
    if child_process.MARK in text:
        return Line(text, process, EVENT)
    if _PYTHON_WARNING.match(text):
        return Line(text, process, WARNING, by_logger=True)
    if _RAISED.match(text):
        return Line(text, process)
    for form, levels in ((_NCCL, _NCCL_LEVELS), (_LETTER, _LETTERS), (_WORD, _WORDS)):
        match = form.match(text)
        if match:
            level = levels[match["level"]]
            if level == WARNING and _ABOUT_OTHERS.search(text):
                level = ERROR
            return Line(text[match.end() :], process, level, by_logger=True)
    return Line(text, process)


class _LogReader:
    """Reads the log of one machine, line by line; several processes may write it."""

    def __init__(self) -> None:
        self.endings: dict[str, list[Ending]] = {}
        self.open: dict[str, Ending] = {}
        self.evidence: list[str] = []
        self.stop = ""
        self.in_stop = self.in_remark = False

    def read(self, raw: str) -> None:
        line = read_line(raw)
        if line.level == EVENT:
            self._read_event(line)
            return
        is_below = line.level == PLAIN and (line.text[:1].isspace() or line.text in ("{", "}"))
        if self.in_remark and is_below:
            return  # the source that Python shows below a warning, or Axolotl's settings
        self.in_remark = line.level in (WARNING, INFO)
        if self.in_remark:
            self.in_stop = False
            self.open.pop(line.process, None)
            return
        self.evidence.append(raw)
        if not self._read_stop(line):
            self._read_error(line)

    def last_endings(self) -> list[Ending]:
        """The last error of each process, but for a launcher's about its child."""
        last = []
        for endings in self.endings.values():
            reasons = []
            for ending in endings:
                if ending.messages and not _LAUNCHERS.search(ending.error):
                    reasons.append(ending)
            last += reasons[-1:]
        return last

    def _read_event(self, line: Line) -> None:
        """Training that begins has outlived everything before; a process that makes a step has
        outlived its error."""
        self.in_stop = self.in_remark = False
        for event in child_process.events(line.text):
            if event.get("event") == "begin":
                self.endings.clear()
                self.open.clear()
                self.evidence.clear()
                self.stop = ""
            elif event.get("event") == "step":
                self.endings.pop(line.process, None)
                self.open.pop(line.process, None)

    def _read_stop(self, line: Line) -> bool:
        """Whether the line belongs to the words by which the runner ended a process."""
        if line.text.startswith(child_process.STOP_MARK):
            self.stop = line.text.removeprefix(child_process.STOP_MARK)
            self.in_stop = True
        elif line.by_logger or line.text.startswith(_TRACE):
            self.in_stop = False
        elif self.in_stop:
            self.stop = f"{self.stop}\n{line.text}".rstrip()
        return self.in_stop

    def _read_error(self, line: Line) -> None:
        """Reads a line of a trace, or of the message after it; a message may come without a
        trace."""
        current = self.open.get(line.process)
        begins_trace = line.text.startswith(_TRACE)
        if begins_trace and current is not None and current.is_chained:
            current.in_frames = True
            current.is_chained = False
        elif begins_trace:
            self._open(
                line.process, Ending(has_trace=True, by_logger=line.by_logger, in_frames=True)
            )
        elif _RAISED.match(line.text) and not (current and current.has_trace):
            self._open(line.process, Ending(messages=[[line.text]]))
        elif current is not None and current.by_logger == line.by_logger:
            current.read(line.text)
        else:
            self.open.pop(line.process, None)

    def _open(self, process: str, ending: Ending) -> None:
        self.open[process] = ending
        self.endings.setdefault(process, []).append(ending)
