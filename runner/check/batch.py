"""Finds the recipes among the YAML files below folders, and judges all of them."""

import codecs
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner import parts
from runner.check import data_file, validate
from runner.recipe import lock, reading
from runner.recipe.recipe import Override
from runner.tools.files import content_hash
from runner.tools.problem import Problem, Stop, errors_of, report_bug
from runner.tools.process import cores
from runner.tools.run_files import RUN

ENDINGS = (".yaml", ".yml")
OWN = {"build", "runs"}  # folders that recipe-runner writes: generated files and runs
# Hardly any other YAML has two of these sections.
SECTIONS = {
    "scenario",
    "model",
    "train",
    "data",
    "machines",
    "openshift",
    "nodes",
    "demo",
    "limits",
    "stages",
}


def find(paths: Iterable[str], strict: bool = False) -> tuple[list[str], list[str]]:
    """The recipe files at these paths, in their order, and other YAML below folders. A folder of
    data counts as one, as a file of data does. strict: all YAML below a folder is a recipe. Raises
    Stop (exit 2) if a folder has none."""
    recipes: list[str] = []
    other_files: list[str] = []
    for path in paths:
        if not os.path.isdir(path):
            recipes.append(path)
            continue
        yaml_files = list(_yaml_below(Path(path)))
        if not yaml_files:
            if data_file.is_folder_of_data(Path(path)):
                recipes.append(path)
                continue
            hint = "Name a recipe, or a folder with recipes."
            raise Stop(f"There is no YAML file below `{path}`.", hint, code=2)
        recipe_files = [file for file in yaml_files if strict or is_meant(file)]
        if not recipe_files:
            if len(yaml_files) == 1:
                no_file_looks = f"The one YAML file below `{path}` does not look"
            else:
                no_file_looks = f"None of the {len(yaml_files)} YAML files below `{path}` looks"
            raise Stop(
                f"{no_file_looks} like a recipe, which has a line `scenario`.",
                "Name a recipe, or check every file with `--strict`.",
                code=2,
            )
        recipes += map(str, recipe_files)
        other_files += map(str, sorted(set(yaml_files) - set(recipe_files)))
    return list(dict.fromkeys(recipes)), list(dict.fromkeys(other_files))


def within(folder: Path) -> list[Path]:
    """The recipes in a folder itself, and not below it, sorted."""
    recipe_files = []
    for file in sorted(folder.iterdir()):
        if _may_be(file.name) and file.is_file() and is_meant(file):
            recipe_files.append(file)
    return recipe_files


def _may_be(name: str) -> bool:
    if name.startswith(".") or name == lock.LOCK:
        return False
    return name.endswith(ENDINGS)


def _yaml_below(root: Path) -> Iterator[Path]:
    """Sorted; leaves out hidden folders, runs and emitted files, which contain old recipes."""
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not _is_left_out(Path(folder, name)))
        for name in sorted(files):
            if _may_be(name):
                yield Path(folder, name)


def _is_left_out(folder: Path) -> bool:
    if folder.name.startswith(".") or folder.name in OWN:
        return True
    return (folder / RUN).is_file()


def is_meant(file: Path) -> bool:
    """Whether the first names in a file's lines are those of a recipe, or of an Axolotl file that a
    part reads."""
    matches = (_SETTING.match(line) for _, line in _lines(file))
    names = {match[1] for match in matches if match}
    if "scenario" in names or len(names & SECTIONS) >= 2:
        return True
    return "base_model" in names and parts.has("axolotl_files")


# At the beginning of a line, or of a file in braces.
_SETTING = re.compile(r"""\{?\s?["']?(\w+)["']?\s*:""")
_NAME = re.compile(r"""name:\s*(["']?)([\w.-]+)\1\s*(?:#.*)?\s*\Z""")


def shared_names(files: Iterable[str]) -> Iterator[Problem]:
    """Notes on recipes of one folder that have the same name, at each except the first."""
    first_files: dict[tuple[Path, str], str] = {}
    for file in files:
        for number, line in _lines(Path(file)):
            match = _NAME.match(line)
            if not match:
                continue
            name = match[2]
            first_file = first_files.setdefault((Path(file).parent, name), file)
            if first_file != file:
                yield Problem(
                    file,
                    number,
                    match.start(2) + 1,
                    f"`{first_file}` also has the name `{name}`, so both would share a run folder and a job.",
                    "Give each recipe its own name.",
                    line,
                    len(name),
                    severity="note",
                    setting="name",
                    check="name-shared",
                )
            break


def names(files: Iterable[Path]) -> Iterator[str]:
    """The name of each recipe that has one."""
    for file in files:
        for _, line in _lines(file):
            match = _NAME.match(line)
            if match:
                yield match[2]
                break


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    with suppress(OSError):
        if file.stat().st_size <= reading.MAX_BYTES:
            raw = file.read_bytes()
        else:
            raw = b""
        text = raw.decode(
            "utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig",
            "replace",
        )
        yield from enumerate(text.splitlines(), 1)


WORTH_A_PROCESS = (
    100  # checking this many recipes takes several times as long as starting a process
)


def processes(files: Sequence[Path | str]) -> int:
    """How many processes are worth starting. Those of others cannot read this one's standard
    input."""
    wanted = len(files) // WORTH_A_PROCESS
    if wanted > 1 and "-" not in files:
        return min(wanted, cores())
    return 1


# The least severe problem that makes a check fail. We have no warnings; who asks for failures on
# them, as of other tools, gets those on errors.
FAIL_ON = ("error", "warning", "note")


@dataclass(frozen=True)
class CheckReport:
    """The result of `recipe check`. checked, bugs: the numbers of recipes, and of those that
    crashed the runner."""

    checked: int
    problems: tuple[Problem, ...]
    bugs: int = 0

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(errors_of(self.problems))

    def failing(self, least: str = "error") -> tuple[Problem, ...]:
        """The problems at least as severe as `least`, a value of FAIL_ON."""
        if least == "note":
            return self.problems
        return self.errors

    def exit_code(self, fail_on: str = "error") -> int:
        """That of `recipe check`. fail_on: a value of FAIL_ON."""
        if self.bugs:
            return 3
        if self.failing(fail_on):
            return 1
        return 0

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """A text for each problem, in their order, by which a baseline recognises it. It stays the
        same when the line moves, and when a release words the message differently."""
        counts = dict[tuple[str, ...], int]()
        fingerprints = []
        for problem in self.problems:
            file = problem.file.replace("\\", "/").removeprefix("./")
            facts = (file, problem.rule, problem.setting, problem.source.strip())
            # The same line may be wrong twice, and the same line may be there twice.
            counts[facts] = counts.get(facts, 0) + 1
            fingerprints.append(content_hash([*facts, counts[facts]], 32))
        return tuple(fingerprints)

    def as_json(self) -> Mapping[str, object]:
        """For other programs: errors, and notes in a separate list."""
        problems = []
        notes = []
        for problem, fingerprint in zip(self.problems, self.fingerprints, strict=True):
            entry = {**problem.as_json(), "fingerprint": fingerprint}
            if problem.severity == "error":
                problems.append(entry)
            else:
                notes.append(entry)
        return {"checked": self.checked, "problems": problems, "notes": notes}


def judged(
    files: Sequence[Path | str],
    changes: Sequence[Override] = (),
    online: bool = False,
    allowed: Collection[str] = (),
    jobs: int = 1,
) -> CheckReport:
    """Judges every file, with the same changes, in `jobs` processes. A bug on one file does not
    affect the others."""
    examine_file = partial(_examined, changes=changes, online=online, allowed=allowed)
    if jobs == 1 or len(files) == 1:
        verdicts = list(map(examine_file, files))
    else:
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(min(jobs, len(files))) as pool:
            share = max(1, len(files) // jobs // 8)
            verdicts = list(pool.map(examine_file, files, chunksize=share))
    problems = list[Problem]()
    bugs = 0
    for file_problems, crashed in verdicts:
        problems += file_problems
        bugs += crashed
    problems += shared_names(map(str, files))
    return CheckReport(len(files), tuple(problems), bugs)


def _examined(
    file: Path | str, changes: Sequence[Override], online: bool, allowed: Collection[str]
) -> tuple[list[Problem], bool]:
    try:
        return validate.examine(file, changes, online, allowed), False
    except Exception:
        return [Problem(str(file), 0, 0, report_bug(), check="bug")], True


# Formats a report for other programs. Arguments: the files as the user named them, and the report.
Format = Callable[[Sequence[str], CheckReport], str]
