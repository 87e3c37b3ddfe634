"""How long `recipe check` takes: beside the bare import of its two libraries, and for 1,000 recipes.

`python benchmarks/check_speed.py [--runs N]` prints medians of whole processes, run in turn.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SURVIVAL = ROOT / "recipes" / "survival.yaml"
BARE = [sys.executable, "-c", "import yaml, jsonschema"]


def check(*paths: Path | str) -> list[str]:
    """The command that a person runs: the installed script, or the module where there is none."""
    script = Path(sys.executable).with_name("recipe")
    return [*([str(script)] if script.exists() else [sys.executable, "-m", "runner"]), "check", *map(str, paths)]


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def side_by_side(runs: int) -> tuple[float, float, float]:
    """Median seconds of `recipe check` and of the bare import, and the median of their ratios pair by pair."""
    command = check(SURVIVAL)
    seconds(command), seconds(BARE)  # warm the disk cache
    pairs = [(seconds(command), seconds(BARE)) for _ in range(runs)]
    ours, bare = ([pair[side] for pair in pairs] for side in (0, 1))
    return statistics.median(ours), statistics.median(bare), statistics.median(a / b for a, b in pairs)


def thousand(count: int = 1000) -> float:
    """Seconds for one `recipe check` of a folder of `count` recipes."""
    with tempfile.TemporaryDirectory() as folder:
        text = SURVIVAL.read_text(encoding="utf-8")
        data = Path(folder) / "data"
        data.mkdir()
        (data / "survival-sample.jsonl").write_bytes((ROOT / "recipes" / "data" / "survival-sample.jsonl").read_bytes())
        for number in range(count):
            (Path(folder) / f"demo-{number}.yaml").write_text(
                text.replace("name: survival ", f"name: demo-{number} "), encoding="utf-8"
            )
        return seconds(check(folder))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=15)
    ours, bare, ratio = side_by_side(arguments.parse_args().runs)
    print(f"recipe check, one recipe          {ours * 1000:6.0f} ms   (median)")
    print(f"python -c 'import yaml, jsonschema' {bare * 1000:4.0f} ms   (median)")
    print(f"ratio                             {ratio:6.2f}      (median of pairs; the aim is at most 2)")
    print(f"recipe check, 1,000 recipes       {thousand():6.1f} s")


if __name__ == "__main__":
    main()
