"""How far each starter's rehearsal is from failing, on several processors and with several seeds.

    python benchmarks/rehearsal_margins.py                          every starter, seeds 1 to 5: 120
    runs, about two hours of one core
    python benchmarks/rehearsal_margins.py survival --seeds 1 2     of these starters and seeds
    alone

Environment variables of PyTorch and oneDNN make one machine compute as other processors do. A seed
replaces every `seed` of the recipe. Each line has the measured value, the lowest that passes, and
the margin between them, in the same unit. The runs stay in build/margins, and one that passed there
is not repeated.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this clone's package, not an installed one

from runner.check.validate import load
from runner.parts.images.translation import MIN_ACCURACY
from runner.scenarios.shared.rehearsal import MIN_GAIN, MIN_RISE, MIN_STEPS
from runner.tools.files import read_json

STARTERS = [file.stem for file in sorted((ROOT / "recipes").glob("*.yaml"))]
PROCESSORS = ("ATEN_CPU_CAPABILITY=default", "ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=SSE41")


def seeds(settings: Mapping[str, Any], home: str = "") -> Iterator[str]:
    """Every setting of a recipe that starts random draws, dotted."""
    for name, value in settings.items():
        if name == "seed":
            yield f"{home}{name}"
        elif isinstance(value, Mapping):
            yield from seeds(value, f"{home}{name}.")


def judged(run: Path, scenario: str) -> Iterator[tuple[str, float, float]]:
    """What a rehearsal is judged by: the name, the measured value and the lowest that passes."""
    stages = {file.parent.name: read_json(file) for file in run.rglob("training_summary.json")}
    lengths = list(read_json(run / "config" / "plan.json")["facts"].get("tokens", ()))
    if lengths:
        first = stages[lengths[0]]["first_validation_loss"]
        last = stages[lengths[-1]]["last_validation_loss"]
        yield "fall of the loss, pretraining", 1 - last / first, 0
    for length in lengths:
        del stages[length]
    for file in run.rglob("evaluation.json"):
        tokens = read_json(file)["metrics"].get("generated_tokens")
        if tokens is not None:
            yield f"generated tokens, {file.parent.name}", tokens, 1
    for stage, one in stages.items():
        name = f", {stage}" if len(stages) > 1 else ""
        if scenario == "image-classification":
            yield "accuracy", one["best_accuracy"], MIN_ACCURACY
        elif one.get("first_reward") is not None:
            yield f"rise of the reward{name}", one["best_reward"] - one["first_reward"], MIN_RISE
        else:
            if not one.get("early_stop"):
                yield f"steps{name}", one["steps"], MIN_STEPS
            yield (
                f"fall of the loss{name}",
                1 - one["best_validation_loss"] / one["first_validation_loss"],
                MIN_GAIN,
            )
            if (first := one.get("first_preference_accuracy")) is not None:
                yield f"rise of the accuracy{name}", one["last_preference_accuracy"] - first, 0


def rehearsed(starter: str, processor: str, seed: int) -> Iterator[tuple[str, float, float]]:
    """The thresholds of one rehearsal; of one that failed, this alone. Its output is in its
    folder."""
    file, (variable, value) = ROOT / "recipes" / f"{starter}.yaml", processor.split("=")
    recipe, run = load(file)[0], ROOT / "build" / "margins" / f"{starter}-{processor}-{seed}"
    run.mkdir(parents=True, exist_ok=True)
    if read_json(run / "passed.json") is None:
        names = [*seeds(recipe.settings)]
        for index, stage in enumerate(recipe.stage_recipes.values()):
            names += [f"stages.{index}.{name}" for name in seeds(stage.settings)]
        changes = [part for name in names for part in ("--set", f"{name}={seed}")]
        command = [
            sys.executable,
            "-m",
            "runner",
            "rehearse",
            str(file),
            *changes,
            "--out",
            str(run / "run"),
            "--fresh",
        ]
        env = os.environ | {variable: value, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (run / "output.txt").open("w") as out:
            done = subprocess.run(command, env=env, cwd=run, stdout=out, stderr=out)
        if done.returncode:
            yield "FAILED, see output.txt", 0, 1
            return
        (run / "passed.json").write_text("true")
    yield from judged(run / "run", recipe.scenario)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("starters", nargs="*", default=STARTERS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--processors", nargs="+", default=PROCESSORS)
    asked = parser.parse_args()
    print(
        f"{'recipe':<9} {'processor':<27} seed {'judged by':<29} {'lowest':>7} {'measured':>9} {'margin':>8}"
    )
    for seed, starter, processor in product(asked.seeds, asked.starters, asked.processors):
        for name, measured, lowest in rehearsed(starter, processor, seed):
            figures = f"{lowest:>7.2f} {measured:>9.4f} {measured - lowest:>8.4f}"
            print(f"{starter:<9} {processor:<27} {seed:>4} {name:<29} {figures}", flush=True)


if __name__ == "__main__":
    main()
