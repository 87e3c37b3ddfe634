"""What people see of rewards: a person's code before it runs, and answers with their rewards."""

from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

from runner.plan import Plan
from runner.run.stage_folder import StageFolder
from runner.tools.files import read_json
from runner.tools.names import shortened
from runner.tools.run_files import SAMPLES
from runner.tools.text import macros

SHOWN = 3  # samples of an evaluation


def before_stage(folder: StageFolder, tell: Callable[[str], None], where: str) -> None:
    """Shows a person's code before the first stage in which it runs."""
    running = [stage for stage in folder.plan.stages if stage.trains or stage.config.get("proofs")]
    config = next((stage.config for stage in running if stage.trains and "trl" in stage.config), {})
    rule = (config.get("recipe_runner") or {}).get("rewards", {}).get("python")
    if rule and running[0].name == folder.stage.name:
        tell(f"`{rule['named']}` runs in training, to score answers. This is its code (sha256 {rule['sha256']}):")
        for line in rule["code"].splitlines():
            tell(f"  | {line}")


def samples(plan: Plan) -> Iterator[str]:
    """Answers to held-out prompts with their rewards, from the first evaluation and the last."""
    words = macros(Path(__file__).with_name("samples.jinja"), shortened=shortened)
    for stage in plan.stages:
        rows = read_json(StageFolder(plan, stage).path / SAMPLES) if stage.trains else None
        by_step = [list(group) for _, group in groupby(rows or (), lambda row: row["step"])]
        for group in (by_step[0], by_step[-1]) if len(by_step) > 1 else by_step:
            yield from str(words.samples(group[:SHOWN])).splitlines()
