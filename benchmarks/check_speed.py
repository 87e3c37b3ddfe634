"""How much processor time `recipe check` takes: of one recipe and of 1,000 different ones, beside
the bare import of its libraries.

`python benchmarks/check_speed.py [--runs N]` prints medians of whole processes, run in turn, and of
their ratios pair by pair: a machine that is busy makes both slower.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SURVIVAL = ROOT / "recipes" / "survival.yaml"
BARE = [sys.executable, "-c", "import yaml, jsonschema"]
# Modules are compiled once and kept, as where the package is installed.
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
}
ENVIRONMENT["PYTHONPATH"] = str(ROOT)


@dataclass(frozen=True)
class Taken:
    """Seconds of a process: of the clock, and of processors, those of its own processes
    included."""

    wall: float
    processor: float


def check(*arguments: Path | str) -> list[str]:
    return [sys.executable, "-m", "runner", "check", *map(str, arguments)]


def taken(command: list[str]) -> Taken:
    before, start = _processor(), time.perf_counter()
    subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)
    return Taken(time.perf_counter() - start, _processor() - before)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def beside_the_import(runs: int) -> tuple[float, float, float]:
    """Median processor seconds of `recipe check` and of the bare import, and the median of their
    ratios pair by pair."""
    command = check(SURVIVAL)
    taken(command), taken(BARE)  # compile, and warm the disk cache
    pairs = [(taken(command).processor, taken(BARE).processor) for _ in range(runs)]
    ours, bare = ([pair[side] for pair in pairs] for side in (0, 1))
    return (
        statistics.median(ours),
        statistics.median(bare),
        statistics.median(a / b for a, b in pairs),
    )


def recipes(folder: Path, count: int) -> None:
    """So many recipes, each another: in its name, and in what is judged and estimated."""
    text = SURVIVAL.read_text(encoding="utf-8")
    (folder / "data").mkdir()
    sample = "data/survival-sample.jsonl"
    (folder / sample).write_bytes((SURVIVAL.parent / sample).read_bytes())
    for number in range(count):
        own = {
            "name: survival ": f"name: demo-{number} ",
            "last_layers: 2 ": f"last_layers: {1 + number % 7} ",
            "epochs: 4 ": f"epochs: {1 + number % 5} ",
            "learning_rate: 5.0e-5 ": f"learning_rate: {1 + number}.0e-7 ",
        }
        changed = text
        for before, after in own.items():
            assert before in text, before
            changed = changed.replace(before, after)
        (folder / f"demo-{number}.yaml").write_text(changed, encoding="utf-8")


def many(count: int = 1000, jobs: int = 1) -> Taken:
    """One `recipe check` of a folder of `count` recipes."""
    with tempfile.TemporaryDirectory() as folder:
        recipes(Path(folder), count)
        return taken(check(folder, "--jobs", str(jobs)))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=15)
    ours, bare, ratio = beside_the_import(arguments.parse_args().runs)
    print(f"recipe check, one recipe            {ours * 1000:6.0f} ms of a processor (median)")
    print(f"python -c 'import yaml, jsonschema' {bare * 1000:6.0f} ms (median)")
    print(f"ratio                               {ratio:6.2f} (median of pairs; at most 2.2)")
    for jobs in (1, 2):
        whole = many(jobs=jobs)
        print(
            f"recipe check --jobs {jobs}, 1,000 recipes {whole.wall:6.1f} s, {whole.processor:.1f} s of processors: "
            f"{whole.processor / bare:.0f} times that import"
        )


if __name__ == "__main__":
    main()
