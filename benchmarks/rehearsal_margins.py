"""How far each starter's rehearsal is from failing, on several processors and with several seeds.

    python benchmarks/rehearsal_margins.py                          every starter, seeds 1 to 5: about two hours on 2 cores
    python benchmarks/rehearsal_margins.py survival --seeds 1 2     of these starters and seeds alone

Environment variables of PyTorch and oneDNN make one machine compute as other processors do. A seed replaces every `seed` of the
recipe. Each line has the measured value, its threshold and the margin: how far it is beyond the threshold, in the same unit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from runner.check.validate import load
from runner.files import read_json
from runner.scenarios.image_classification.rehearsal import MIN_ACCURACY
from runner.scenarios.pipeline.curriculum import AFTER
from runner.scenarios.shared.rehearsal import MIN_GAIN, MIN_STEPS

ROOT = Path(__file__).resolve().parent.parent
PROCESSORS = ("ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=SSE41")
Threshold = tuple[str, float, float]


def seeds(settings: Mapping[str, Any], home: str = "") -> Iterator[str]:
    """Every setting of a recipe that starts random draws, dotted."""
    for name, value in settings.items():
        if name == "seed":
            yield f"{home}{name}"
        elif isinstance(value, Mapping):
            yield from seeds(value, f"{home}{name}.")


def gain(first: float, last: float) -> float:
    return 1 - last / first


def thresholds(run: Path, scenario: str) -> Iterator[Threshold]:
    """What a finished rehearsal was judged by: the name, the measured value and the lowest that passes."""
    stages = {file.parent.name: read_json(file) for file in run.rglob("training_summary.json")}
    if scenario == "image-classification":
        yield from (("accuracy", one["best_accuracy"], MIN_ACCURACY) for one in stages.values())
    elif scenario != "pipeline":
        for one in stages.values():
            yield "steps", one["steps"], MIN_STEPS
            yield "gain", gain(one["first_validation_loss"], one["best_validation_loss"]), MIN_GAIN
    else:
        lengths = [stages[name] for name in read_json(run / "config" / "plan.json")["facts"]["tokens"]]
        yield "gain of pretraining", gain(lengths[0]["first_validation_loss"], lengths[-1]["last_validation_loss"]), 0
        for name in AFTER:
            yield f"gain of {name}", gain(stages[name]["first_validation_loss"], stages[name]["best_validation_loss"]), 0
        dpo = stages["dpo"]
        yield "rise of dpo's accuracy", dpo["last_preference_accuracy"] - dpo["first_preference_accuracy"], 0
    for file in run.rglob("evaluation.json"):
        yield f"{file.parent.name}: generated_tokens", read_json(file)["metrics"]["generated_tokens"], 1


def rehearsed(file: Path, processor: str, seed: int) -> Iterator[Threshold]:
    """The thresholds of one rehearsal; where it failed, its last words on stderr, and what of them was measured."""
    recipe = load(file)[0]
    changes = [part for name in seeds(recipe.settings) for part in ("--set", f"{name}={seed}")]
    variable, _, value = processor.partition("=")
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "runner", "rehearse", str(file), *changes, "--out", folder],
            env=os.environ | {variable: value, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            cwd=folder, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            print(done.stdout[-500:] + done.stderr[-2000:], file=sys.stderr)
            yield "passed", 0, 1
        yield from thresholds(Path(folder), recipe.scenario)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("starters", nargs="*", default=[file.stem for file in sorted((ROOT / "recipes").glob("*.yaml"))])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--processors", nargs="+", default=PROCESSORS)
    asked = parser.parse_args()
    print(f"{'recipe':<10} {'processor':<28} seed {'threshold':<26} {'lowest':>7} {'measured':>9} {'margin':>8}")
    for seed, starter, processor in product(asked.seeds, asked.starters, asked.processors):
        for name, measured, lowest in rehearsed(ROOT / "recipes" / f"{starter}.yaml", processor, seed):
            figures = f"{lowest:>7.2f} {measured:>9.4f} {measured - lowest:>8.4f}"
            print(f"{starter:<10} {processor:<28} {seed:>4} {name:<26} {figures}", flush=True)


if __name__ == "__main__":
    main()
