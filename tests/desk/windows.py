"""`recipe` as on Windows, as far as Linux can imitate it: `python windows.py ARGUMENTS`.

Imitated are what the runner itself asks of the system: the platform's name, modules and functions
that only Unix has, signals, paths with backslashes, files that end their lines with CR LF, and a
default encoding that is not UTF-8. What other packages do is left as it is, so they are imported
before; what trains is not installed. Only a real machine shows the rest: locks of Windows,
replacing a file that is open, reserved names, the console, and the processes of an editor.
"""

from __future__ import annotations

import builtins
import io
import os
import pathlib
import posixpath
import signal
import ssl
import sys
import warnings
from collections.abc import Callable
from itertools import chain
from types import ModuleType
from typing import Any

# What others import, and what looks at the platform when it is imported.
import asyncio  # noqa: F401  isort: skip
import http.server  # noqa: F401  isort: skip
import subprocess  # noqa: F401  isort: skip
import tempfile  # noqa: F401  isort: skip
import click
import jinja2  # noqa: F401
import jsonschema  # noqa: F401
import kubernetes  # noqa: F401
import portalocker  # noqa: F401
import psutil  # noqa: F401
import rich.console
import rich.progress
import rich.table  # noqa: F401
import yaml  # noqa: F401

UNIX_MODULES = ("fcntl", "grp", "pwd", "pty", "readline", "resource", "termios", "tty")
UNIX_FUNCTIONS = (
    *("chown", "fork", "getegid", "geteuid", "getgid", "getpgid", "getpgrp", "getuid", "killpg"),
    *("mkfifo", "register_at_fork", "sched_getaffinity", "setpgid", "setsid"),
    *("sysconf", "uname"),
)
UNIX_SIGNALS = ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCHLD")


def without_unix() -> None:
    from runner.tools import packaged

    extras = packaged.toml(packaged.__file__, "extras.toml")
    of_training = (extras[extra] for extra in packaged.OF_TRAINING)
    for name in (*UNIX_MODULES, *chain.from_iterable(of_training)):
        sys.modules[name] = None  # type: ignore[assignment]
    for name in UNIX_FUNCTIONS:
        delattr(os, name)
    for name in UNIX_SIGNALS:
        delattr(signal, name)
    # Python's own reader of Windows's certificates.
    ssl.enum_certificates = lambda store: []  # type: ignore[attr-defined]
    signal.SIGBREAK = signal.SIGINT  # type: ignore[attr-defined]
    sys.platform = "win32"


def _slashes(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\\", "/")
    return value


def _backslashes(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("/", "\\")
    return value


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("runner")


def paths_with_backslashes() -> None:
    """Text of a path has backslashes, and a path is found by both kinds of slashes."""
    posix_text = pathlib.PurePosixPath.__str__
    flavour = type(pathlib.PosixPath._flavour)  # type: ignore[attr-defined]

    class WindowsFlavour(flavour):  # type: ignore[misc, valid-type]
        def parse_parts(self, parts: list[str]) -> Any:
            return super().parse_parts([_slashes(os.fspath(part)) for part in parts])

    windows_path: Any = pathlib.PosixPath
    windows_path._flavour = WindowsFlavour()
    windows_path.__fspath__ = posix_text
    windows_path.as_posix = posix_text
    windows_path.__str__ = lambda self: _backslashes(posix_text(self))
    windows_path.__bytes__ = lambda self: os.fsencode(posix_text(self))

    def both_slashes(function: Callable[..., Any], gives_path: bool) -> Callable[..., Any]:
        def imitated(*given: Any, **named: Any) -> Any:
            if not _is_ours(sys._getframe(1)):
                return function(*map(_slashes, given), **named)
            found = function(*map(_slashes, given), **named)
            return _backslashes(found) if gives_path else found

        return imitated

    # `posixpath` stays as it is, as on Windows.
    os.path = ModuleType("ntpath")  # type: ignore[assignment]
    vars(os.path).update(vars(posixpath))
    for name in ("abspath", "dirname", "join", "normpath", "realpath", "relpath", "expanduser"):
        setattr(os.path, name, both_slashes(getattr(posixpath, name), gives_path=True))
    for name in ("basename", "exists", "isabs", "isdir", "isfile", "splitext"):
        setattr(os.path, name, both_slashes(getattr(posixpath, name), gives_path=False))
    for name in ("stat", "lstat", "listdir", "scandir", "mkdir", "replace", "rename", "unlink"):
        setattr(os, name, both_slashes(getattr(os, name), gives_path=False))


def files_of_windows() -> None:
    """Lines of a written file end with CR LF, unless somebody says otherwise; and a file that ours
    open without an encoding is an error, because Windows has another one."""
    original = io.open

    def opened(file: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        named |= dict(zip(("buffering", "encoding", "errors", "newline"), given, strict=False))
        writes = any(letter in mode for letter in "wax")
        if writes and "b" not in mode and named.get("newline") is None:
            named["newline"] = "\r\n"
        return original(_slashes(file), mode, **named)

    io.open = opened  # type: ignore[assignment]
    builtins.open = opened  # type: ignore[assignment]
    warnings.filterwarnings("error", category=EncodingWarning, module="runner")


if __name__ == "__main__":
    from runner.commands import cli

    without_unix()
    paths_with_backslashes()
    files_of_windows()
    assert click
    cli.main()
