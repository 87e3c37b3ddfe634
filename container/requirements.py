"""Prints what `pip install .[EXTRA]` would ask for, so that the image can install it before the
code is there."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
lines = [
    *project["dependencies"],
    *(line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]),
]
print("\n".join(lines))
