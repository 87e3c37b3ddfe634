"""Parts: everything beside the core. A part is a folder with a table of what it adds, `part.toml`.
The core reads the tables. What only one part can do, a function imports from that part, if it is
here.

Our parts are the folders here. Other people's are packages that the entry-point group
`recipe_runner.parts` names.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from runner.tools.problem import Stop

if TYPE_CHECKING:
    from runner.parts.contract import Callbacks, StageHooks

GROUP, TABLE = "recipe_runner.parts", "part.toml"
OWNED = ("sections", "scenarios", "commands")
INSTALL = (
    "Install all of recipe-runner again: `pip install --force-reinstall` brings every part back."
)


@dataclass(frozen=True, kw_only=True)
class Part:
    """What a part adds; every entry is optional. Modules are named below its package and imported
    when they are needed; `runner/parts/contract.py` lists what each must contain."""

    package: str
    # Parts that this one imports; it is not available without all of them.
    needs: tuple[str, ...] = ()
    # Sections of a recipe that belong to this part; their schema is in `sections.yaml`.
    sections: tuple[str, ...] = ()
    # The module with RULES, FILE_RULES and RENDER_NOTES, which judge every recipe.
    rules: str = ""
    # Modules with RULES and FILE_RULES by the setting that they judge; only recipes with that
    # setting load them.
    rules_of: Mapping[str, str] = field(default_factory=dict)
    # Packages by the scenario's name; "" is the part itself.
    scenarios: Mapping[str, str] = field(default_factory=dict)
    # Modules by name: trainers, the planner's formulas for each, kinds of data, measures of a
    # model, programs that ask one.
    engines: Mapping[str, str] = field(default_factory=dict)
    formulas: Mapping[str, str] = field(default_factory=dict)
    preparers: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, str] = field(default_factory=dict)
    asked: Mapping[str, str] = field(default_factory=dict)
    # Modules by the target's name.
    targets: Mapping[str, str] = field(default_factory=dict)
    # The module that forecasts what a recipe needs.
    forecast: str = ""
    # The class, MODULE.CLASS, with what happens before and after a stage.
    stage_hooks: str = ""
    # The function, MODULE.FUNCTION, that adds callbacks to a training.
    callbacks: str = ""
    # Lines of `recipe --help` by command; its module is `commands/NAME.py`, or `command_module`,
    # which has all of them.
    commands: Mapping[str, str] = field(default_factory=dict)
    command_module: str = ""

    @property
    def foreign(self) -> bool:
        """Whether another package owns it."""
        return not self.package.startswith(f"{__name__}.")

    def module(self, name: str) -> str:
        if name:
            return f"{self.package}.{name}"
        return self.package


@cache
def found() -> dict[str, Part]:
    """Every installed part whose needs are installed too, by its name: ours, then other
    people's."""
    here = installed()
    while lacking := [name for name, part in here.items() if not here.keys() >= set(part.needs)]:
        here = {name: part for name, part in here.items() if name not in lacking}
    return here


@cache
def installed() -> dict[str, Part]:
    tables = sorted(Path(__file__).parent.glob(f"*/{TABLE}"))
    ours = {file.parent.name: _read(f"{__name__}.{file.parent.name}", file) for file in tables}
    return ours | {name: _elsewhere(package) for name, package in _others().items()}


def _read(package: str, file: Path) -> Part:
    told: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))
    told |= {name: tuple(listed) for name, listed in told.items() if isinstance(listed, list)}
    return Part(package=package, **told)


def _elsewhere(package: str) -> Part:
    """The part in another package, or the `PART` of its module, as the first parts had it."""
    folders = (home := find_spec(package)) and home.submodule_search_locations
    if folders and (file := Path(folders[0], TABLE)).is_file():
        return _read(package, file)
    part: Part = importlib.import_module(package).PART
    return part


def _others() -> dict[str, str]:
    """Other people's parts: package by name. This reads only our section of installed packages'
    metadata, because `importlib.metadata.entry_points` parses all of it, in a third of the time of
    a whole `recipe check`."""
    texts = []
    for folder in dict.fromkeys(sys.path):
        with suppress(OSError):  # a folder may be gone, or somebody else's
            for name in sorted(os.listdir(folder or None)):  # pathlib's `glob` takes twice as long
                if (
                    name.endswith("-info")
                    and (file := Path(folder, name, "entry_points.txt")).is_file()
                ):
                    texts.append(file.read_text("utf-8", "replace"))
    ours = (text.partition(f"[{GROUP}]\n")[2].partition("\n[")[0] for text in texts)
    lines = (line.partition("=") for part in ours for line in part.splitlines() if "=" in line)
    return {name.strip(): package.strip() for name, _, package in sorted(lines)}


@cache
def table(member: str) -> dict[str, str]:
    """One table of all parts in one, as dotted modules: `targets`, `engines`."""
    return {
        name: part.module(of)
        for part in found().values()
        for name, of in getattr(part, member).items()
    }


@cache
def modules(member: str) -> tuple[ModuleType, ...]:
    """The modules that parts name under `rules` or `forecast`, imported now."""
    named = (part.module(name) for part in found().values() if (name := getattr(part, member)))
    return tuple(map(importlib.import_module, named))


@cache
def stage_hooks() -> tuple[StageHooks, ...]:
    """What every part does before and after a stage."""
    return tuple(hooks_of_part() for hooks_of_part in _members("stage_hooks"))


@cache
def callbacks() -> tuple[Callbacks, ...]:
    """The functions of parts that add callbacks to a training."""
    return _members("callbacks")


def _members(entry: str) -> tuple[Any, ...]:
    """What parts name under an entry as MODULE.MEMBER, imported now."""
    members = []
    for part in found().values():
        module, _, member = getattr(part, entry).rpartition(".")
        if member:
            members.append(getattr(importlib.import_module(part.module(module)), member))
    return tuple(members)


@cache
def commands() -> dict[str, tuple[str, str]]:
    """What `recipe --help` says and the module of each part's command, by its name."""
    return {
        name: (told, part.module(part.command_module or f"commands.{name}"))
        for part in found().values()
        for name, told in part.commands.items()
    }


@cache
def known() -> dict[str, dict[str, Any]]:
    """What each of our parts owns, installed or not; `make schemas` writes it."""
    return dict(json.loads(Path(__file__).with_name("known.json").read_text("utf-8")))


@cache
def missing(kind: str, name: str) -> str:
    """The part of ours that owns a section, scenario or command and is not here; else empty. kind:
    of OWNED."""
    owner = (
        part
        for part, facts in known().items()
        if name in facts.get(kind, ()) and part not in found()
    )
    return next(owner, "")


def has(part: str) -> bool:
    """Whether a part of ours is here. A function that imports another part asks first, so that
    everything else works without it; `tests/test_house.py` lists these imports."""
    return part in found()


def require(part: str) -> None:
    """Raises Stop if a part of ours is not here."""
    if not has(part):
        raise Stop(f"This needs the part `{part}`, which is not installed here.", INSTALL)


def not_here(name: str, part: str) -> str:
    """The message for a part that is not installed, or that needs one that is not."""
    if part in installed():
        lacking = [each for each in installed()[part].needs if each not in found()]
    else:
        lacking = []
    if lacking:
        needs = f"which needs the part `{lacking[0]}`, and that"
    else:
        needs = "which"
    return f"`{name}` belongs to the part `{part}`, {needs} is not installed here."
