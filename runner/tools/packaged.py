"""Tables beside modules; starter recipes and schemas (in the wheel beside the code, else at the
root); installing extras."""

import re
import shlex
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from runner.tools.problem import Problem, Stop


class Tables(Mapping[str, Any]):
    """A TOML file of ours, whose headers begin lines and no other line begins with `[`. Each table
    at its top is parsed when it is read, because a check needs few of hundreds."""

    def __init__(self, file: Path, text: str) -> None:
        head, *tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
        self._file = file
        self._whole = text
        self._read = self._parse(head)
        self._texts = dict.fromkeys(self._read, "")
        for table in tables:
            quoted, bare = re.findall(r'\A\[+(?:"(.+?)"|([\w-]+))', table)[0]
            self._texts[quoted or bare] = self._texts.get(quoted or bare, "") + table

    def __getitem__(self, name: str) -> Any:
        if name not in self._read:
            self._read |= self._parse(self._texts[name])
        return self._read[name]

    def _parse(self, text: str) -> dict[str, Any]:
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            return parse_toml(self._file, self._whole)  # fails too, but knows the line in the file

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@cache
def toml(module: str, name: str) -> Mapping[str, Any]:
    """The file of that name beside a module, read once. module: its `__file__`."""
    file = Path(module).with_name(name)
    text = file.read_text("utf-8")
    if file.is_relative_to(Path(__file__).parents[1]):
        return Tables(file, text)
    return parse_toml(file, text)  # others may write any TOML


def parse_toml(file: Path, text: str) -> dict[str, Any]:
    """The content of a TOML file. Raises Stop with the line that is wrong."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Stop(_toml_problem(file, text, str(error))) from None


def _toml_problem(file: Path, text: str, error: str) -> Problem:
    place = re.search(r" \(at line (\d+), column (\d+)\)", error)
    if place is None:
        return Problem(
            str(file), 0, 0, f"This file is not valid TOML: {error}.", "Complete its last table."
        )
    lines = text.splitlines()
    number = int(place[1])
    line = lines[number - 1]
    first_number = lines.index(line) + 1
    if line.startswith("[") and first_number < number:
        message = f"The table `{line}` is in this file twice, first in line {first_number}."
        return Problem(str(file), number, 1, message, "Delete one of them.", line, len(line))
    message = f"This file is not valid TOML: {error.replace(place[0], '')}."
    return Problem(str(file), number, int(place[2]), message, "Fix this line.", line)


@cache
def folder(folder_name: str) -> Path:
    """The folder `recipes` or `schemas` that came with this installation."""
    package_folder = Path(__file__).resolve().parents[1]
    in_wheel = package_folder / "_packaged" / folder_name
    if in_wheel.is_dir():
        return in_wheel
    return package_folder.parent / folder_name


def starters() -> list[Path]:
    return sorted(folder("recipes").glob("*.yaml"))


def minimal() -> list[Path]:
    """The minimal starters: only what you must decide; everything else has a default."""
    return sorted(folder("recipes").glob("minimal/*.yaml"))


def named() -> dict[str, Path]:
    """Every starter by the name that `recipe new --from` takes: `lora.yaml` in `minimal` is
    `minimal/lora`."""
    return {
        file.relative_to(folder("recipes")).with_suffix("").as_posix(): file
        for file in (*starters(), *minimal())
    }


def recipe_file(name: str) -> Path:
    """The recipe at that path, or the starter of that name if there is no such file."""
    path = Path(name)
    if path.exists():
        return path
    return named().get(name, path)


# The file beside the schemas with what several of them refer to.
DEFINITIONS = "definitions.json"


def schema_file(scenario: str) -> Path:
    return folder("schemas") / f"{scenario}.schema.json"


def definitions_file() -> Path:
    return folder("schemas") / DEFINITIONS


def bringing(package: str) -> str | None:
    for extra, packages in toml(__file__, "extras.toml").items():
        if package in packages:
            return extra
    return None


# The extras whose packages there are for Linux alone, and for the Pythons that Axolotl runs on (see
# install.py).
OF_TRAINING = ("data", "flash", "gguf", "ring", "serve", "small", "train")
TRAINING_PYTHONS = ((3, 11), (3, 12))
SYSTEMS = {"win32": "Windows", "darwin": "macOS"}


def why_no_training() -> str:
    """Why this machine's Python cannot train, with the way out; empty if it can."""
    version = sys.version_info[:2]
    if sys.platform == "linux" and version in TRAINING_PYTHONS:
        return ""
    system = SYSTEMS.get(sys.platform, "Linux")
    ways = "`recipe submit` trains on a cluster."
    if sys.platform == "win32":
        ways += " On this machine, install recipe-runner inside WSL (`wsl --install`)."
    elif sys.platform == "linux":
        ways += " Here, run `make install PYTHON=python3.12` in the project's folder."
    return (
        "What trains a model needs Linux with Python 3.11 or 3.12, "
        f"and this is {system} with Python {version[0]}.{version[1]}.\n{ways}"
    )


def remedy(extra: str) -> str:
    """The command that installs an extra; where none can, why, and the way out."""
    if extra in OF_TRAINING and (reason := why_no_training()):
        return reason
    return install(extra)


def install(extra: str) -> str:
    """The command that installs an extra beside this installation: from its checkout, else from the
    installed package's own metadata, because the project may not be in a registry."""
    root = Path(__file__).resolve().parents[2]
    # Its build needs the installed torch.
    if extra in ("flash", "ring"):
        options = " --no-build-isolation"
    else:
        options = ""
    if (root / "pyproject.toml").is_file():
        return f"pip install{options} -c {shlex.quote(f'{root}/constraints.txt')} -e {shlex.quote(f'{root}[{extra}]')}"
    from importlib.metadata import PackageNotFoundError, requires

    requirements: list[str] = []
    with suppress(PackageNotFoundError):
        requirements += requires("recipe-runner") or []
    marked = (line.partition(";") for line in requirements)
    wanted = []
    for requirement, _, marker in marked:
        if re.search(rf"""extra == ['"]{extra}['"]""", marker):
            wanted.append(requirement.strip())
    if not wanted:
        return f"Install what the extra `{extra}` of this project names."
    return f"pip install{options} {shlex.join(wanted)}"
