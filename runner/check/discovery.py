"""Finding: which files below a folder are recipes. A file that is named is always judged; in a folder others are left alone."""

import codecs
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from runner.recipe import lock, reading
from runner.tools.problem import Problem, Stop
from runner.tools.run_files import RUN

ENDINGS = (".yaml", ".yml")
# What the product itself leaves in a folder: emitted files, runs, and a site.
OWN = {"build", "runs"}
# A recipe has these sections, and hardly any other YAML has two of them.
SECTIONS = {"scenario", "model", "train", "data", "machines", "openshift", "nodes", "demo", "limits", "pretrain", "sft"}


@dataclass(frozen=True)
class RecipeFiles:
    """recipes: the files to judge, in the order that they were named; others: YAML below folders that is no recipe."""

    recipes: tuple[str, ...]
    others: tuple[str, ...]


def find(paths: Iterable[str], strict: bool = False) -> RecipeFiles:
    """The recipe files that the arguments mean. strict: whether all YAML below a folder is to be judged. Raises Stop (exit 2)
    where a folder holds none."""
    recipes: list[str] = []
    others: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            recipes.append(path)
            continue
        below = list(_yaml_below(Path(path)))
        if not below:
            raise Stop(f"There is no YAML file below `{path}`.", "Name a recipe, or a folder that holds some.", code=2)
        meant = [file for file in below if strict or is_meant(file)]
        if not meant:
            number = "The one YAML file" if len(below) == 1 else f"None of the {len(below)} YAML files"
            looks = "does not look" if len(below) == 1 else "looks"
            message = f"{number} below `{path}` {looks} like a recipe, which has the line `scenario`."
            raise Stop(message, "Name a recipe, or judge every file with `--strict`.", code=2)
        recipes += map(str, meant)
        others += map(str, sorted(set(below) - set(meant)))
    return RecipeFiles(tuple(dict.fromkeys(recipes)), tuple(dict.fromkeys(others)))


def within(folder: Path) -> list[Path]:
    """The recipes in a folder itself, and not below it, sorted."""
    return [file for file in sorted(folder.iterdir()) if _may_be(file.name) and file.is_file() and is_meant(file)]


def _may_be(name: str) -> bool:
    """Whether a file of that name may be a recipe: YAML, not hidden, and no lock file."""
    return name.endswith(ENDINGS) and not name.startswith(".") and name != lock.LOCK


def _yaml_below(root: Path) -> Iterator[Path]:
    """Sorted; not in folders that are hidden or that the product has left: a run and emitted files hold recipes as they were."""
    for folder, names, files in os.walk(root):
        shown = (name for name in names if not name.startswith(".") and name not in OWN)
        names[:] = sorted(name for name in shown if not Path(folder, name, RUN).is_file())
        yield from (Path(folder, name) for name in sorted(files) if _may_be(name))


def is_meant(file: Path) -> bool:
    """Whether somebody meant this file as a recipe, told by the names at the beginning of its lines, so that it need not be YAML."""
    lines = _lines(file)
    written = {found[1] for _, line in lines if (found := _SETTING.match(line))}
    return "scenario" in written or len(written & SECTIONS) >= 2


# At the beginning of a line, or of a file in braces.
_SETTING = re.compile(r"""\{?\s?["']?(\w+)["']?\s*:""")
_NAME = re.compile(r"""name:\s*(["']?)([\w.-]+)\1\s*(?:#.*)?\s*\Z""")


def shared_names(files: Iterable[str]) -> Iterator[Problem]:
    """Notes on recipes of one folder that have one name, at each but the first."""
    first: dict[tuple[Path, str], str] = {}
    for file in files:
        for number, line in _lines(Path(file)):
            if not (found := _NAME.match(line)):
                continue
            other = first.setdefault((Path(file).parent, found[2]), file)
            if other != file:
                message = f"`{other}` has the name `{found[2]}` too, so both would have one run folder and one job."
                hint, width = "Give each a name of its own.", len(found[2])
                yield Problem(file, number, found.start(2) + 1, message, hint, line, width, severity="note")
            break


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """A file's lines with their numbers, as far as it can be read."""
    with suppress(OSError):
        raw = file.read_bytes() if file.stat().st_size <= reading.MAX_BYTES else b""
        text = raw.decode("utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig", "replace")
        yield from enumerate(text.splitlines(), 1)
