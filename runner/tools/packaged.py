"""Where the starter recipes and the schemas lie: in the wheel beside the code, in a checkout at its root."""

from functools import cache
from pathlib import Path


@cache
def folder(kind: str) -> Path:
    """The folder `recipes` or `schemas` that came with this installation."""
    here = Path(__file__).resolve().parents[1]
    in_wheel = here / "_packaged" / kind
    return in_wheel if in_wheel.is_dir() else here.parent / kind


def starters() -> list[Path]:
    """The starter recipes, sorted by name."""
    return sorted(folder("recipes").glob("*.yaml"))


def minimal() -> list[Path]:
    """The minimal starters: what must be decided, and everything else by default."""
    return sorted(folder("recipes").glob("minimal/*.yaml"))


def named() -> dict[str, Path]:
    """Every starter by the name that `recipe new --from` takes: `lora.yaml` in `minimal` is `minimal/lora`."""
    return {file.relative_to(folder("recipes")).with_suffix("").as_posix(): file for file in (*starters(), *minimal())}


def schema_file(scenario: str) -> Path:
    return folder("schemas") / f"{scenario}.schema.json"
