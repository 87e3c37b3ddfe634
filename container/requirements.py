"""Prints what `pip install .[EXTRA]` would ask for, so that the image can install it before the
code is there."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = "pyproject.toml"


def main() -> None:
    project = tomllib.loads(Path(PYPROJECT).read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"])
    for extra in sys.argv[1:]:
        lines += requirements_of(extra, project)
    # Two extras may ask for the same.
    print("\n".join(dict.fromkeys(lines)))


def requirements_of(extra: str, project: dict) -> list[str]:
    """What an extra asks for. An extra may name others, as `recipe-runner[files]`: pip would look
    for that on PyPI, where the project is not, so those are written out."""
    name = re.escape(project["name"])
    requirements: list[str] = []
    for line in project["optional-dependencies"][extra]:
        others = re.fullmatch(rf"{name}\[(.+)\]", line)
        if others is None:
            requirements.append(line)
            continue
        for other in others[1].split(","):
            requirements += requirements_of(other.strip(), project)
    return requirements


if __name__ == "__main__":
    main()
