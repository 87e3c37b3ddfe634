"""`recipe doctor RECIPE --gpu`: a few minutes of a stage's training at full size on this machine,
beside its plan. The weights are random numbers in the shape of the recipe's model, and images are
random too, so nothing is downloaded."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from runner import catalog, scenarios
from runner.catalog.hardware import GIB
from runner.check.validate import changed
from runner.commands.options import say
from runner.commands.run import watch
from runner.data.prepared import PreparedRows
from runner.parts.planner import calibration, forecast, processor
from runner.parts.planner.constants import kind
from runner.parts.planner.workload import Workload
from runner.plan import Plan
from runner.recipe import units
from runner.recipe.recipe import Override, Recipe
from runner.run import inference, pipeline, this_machine
from runner.run import run as running
from runner.run.run_folder import RunFolder
from runner.scenarios.shared import common, rehearsal
from runner.tools import packaged
from runner.tools.problem import Stop
from runner.tools.process import threads
from runner.trainer.records import Summary

BY = "doctor --gpu"
# Steps are planned to take this long; the limit ends a machine that is slower than its plan.
SECONDS, LONGEST = 150, "3 min"
ENOUGH_STEPS, FEWEST_STEPS, ROWS = 40, 3, 2000
TABLES = Path(__file__).with_suffix(".toml")
# larger files are weights and the state of the optimizer, which have no use afterwards
LARGE = 1_000_000


class Measured(NamedTuple):
    """The substitutions of a measurement. gpus: the driver's names of those that the recipe may use
    here. run: its folder. blocks: tokens of a block, for one context length of a pretraining."""

    gpus: list[str]
    run: Path
    blocks: int = 0

    def before_data(self, recipe: Recipe, file: str | None) -> list[Override]:
        alone = [{"sequence_len": self.blocks, "until": 1}]
        kind = "others"
        if self.blocks:
            kind = "pretraining"
        table = rehearsal.table(kind, TABLES, alone=alone)
        data: Iterable[Override]
        if recipe.settings["model"].knows("image_size"):
            data = _random_images(recipe, self.run)
        else:
            data = rehearsal.data(recipe, file)
        made = [*data, *rehearsal.split(recipe), *rehearsal.substitutes(recipe, table)]
        made += this_machine.changes_for(recipe, self.gpus)
        if self.gpus:
            label = catalog.label_of(self.gpus[0])
            made.append(Override("machines.gpu", None, label, BY, "this machine's"))
        return made

    def stands_in(self, recipe: Recipe, folder: Path) -> Mapping[str, object]:
        if not recipe.settings["model"].knows("base"):
            return {}  # the network starts from random weights anyway
        twin = rehearsal.twin_of(recipe, folder / rehearsal.TWIN)
        return {"twin": {**twin, "layers": 0}, "sample_rows": ROWS}

    def after_data(self, recipe: Recipe, rows: PreparedRows, folder: Path) -> list[Override]:
        few = "a measurement takes minutes"
        table = rehearsal.table("substitutes", TABLES, twin=str(folder / rehearsal.TWIN))
        made = [
            *rehearsal.substitutes(recipe, table),
            Override("limits.time", None, LONGEST, BY, few),
        ]
        here, _ = changed(recipe, made)
        plan = scenarios.translate(here, RunFolder.at(folder).place())
        (planned,) = forecast.of(here, plan)
        _require_memory(planned)
        steps = planned.steps
        if steps:
            count = ENOUGH_STEPS
            if planned.time and planned.time.step_seconds:
                in_time = int(SECONDS / planned.time.step_seconds)
                count = max(FEWEST_STEPS, min(ENOUGH_STEPS, in_time))
            # One evaluation and one checkpoint, at the end.
            length: dict[str, float | None] = {"eval_steps": count, "save_steps": count}
            if self.blocks:
                length |= {"steps": count, "warmup_ratio": None, "warmup_steps": 1}
            else:
                length["epochs"] = round(recipe.train.epochs * count / steps, 3)
            reason = f"about {count} steps"
            for name, value in length.items():
                made.append(Override(f"train.{name}", None, value, BY, reason))
        return made

    def shown(self, original: Recipe, made: list[Override], rows: PreparedRows) -> Iterator[str]:
        return map(str, made)

    def judge(self, plan: Plan, summaries: list[Summary]) -> None:
        """Nothing is judged."""


def _require_memory(planned: forecast.Forecast) -> None:
    if planned.never_fits:
        need = units.gib(planned.memory.total)
        have = units.gib(planned.usable or 0)
        raise Stop(
            f"Training needs {need} of memory, but {have} are usable here.",
            "`recipe plan` suggests changes that need less. Try one with `--set`.",
        )


def _random_images(recipe: Recipe, folder: Path) -> Iterator[Override]:
    """Images of random pixels in the recipe's size and classes, as a Parquet file in the folder.
    There are enough for two steps with full batches."""
    import numpy as np
    from datasets import Dataset, Features, Image, Value

    model = recipe.model
    data = recipe.data
    file = folder / "random-images.parquet"
    draw = np.random.default_rng(recipe.train.seed)
    pixels = (model.image_size, model.image_size, 3)
    count = max(ROWS, 4 * model.classes, 3 * common.effective_batch_size(recipe))
    rows = {
        data.image_column: [draw.integers(256, size=pixels, dtype=np.uint8) for _ in range(count)],
        data.label_column: [number % model.classes for number in range(count)],
    }
    kinds = Features({data.image_column: Image(), data.label_column: Value("int64")})
    Dataset.from_dict(rows, kinds).to_parquet(str(file))
    for name, value in (("hub", None), ("test_split", None), ("path", str(file))):
        yield Override(f"data.{name}", None, value, BY, "random images of the recipe's size")


def stage_of(recipe: Recipe, run: RunFolder, name: str | None) -> forecast.Forecast:
    """The forecast of a stage of a recipe, by default of the one that needs the most memory. Raises
    Stop if there is no such stage, or if the planner has no formulas for it."""
    plan = scenarios.translate(recipe, run.place())
    try:
        forecasts = forecast.of(recipe, plan, look=False)
    except catalog.UnknownArchitecture as error:
        raise Stop(forecast.unknown_architecture(recipe, error)) from None
    if name:
        forecasts = [each for each in forecasts if each.stage == plan.stage(name)]
    if not forecasts:
        raise Stop(
            "`--gpu` measures a stage that trains and that the planner has formulas for.",
            "`recipe plan` lists these stages. `recipe rehearse` tries every recipe here, with a tiny model.",
        )
    return max(forecasts, key=lambda each: each.memory.total)


def measure(
    recipe: Recipe, run: RunFolder, changes: Iterable[Override], stage: str | None = None
) -> None:
    """Trains in the run folder, prints what it took beside its plan, and keeps that for `recipe
    plan`. Of several stages one is trained, as if it were alone. Raises Stop as `stage_of`, and if
    this machine's memory is too small."""
    chosen = stage_of(recipe, run, stage).stage
    if recipe.stage_recipes:
        say(f"Stage `{chosen.name}` is measured.")
        # the changes are in it
        recipe = recipe.of_stage(chosen.name)
        changes = ()
    if recipe.makes_model:
        blocks = chosen.config["sequence_len"]
    else:
        blocks = 0
    gpus, devices = this_machine.gpus_here(recipe)
    run.mark("running", processor=not gpus)
    if gpus:
        env = {"CUDA_VISIBLE_DEVICES": devices}
    else:
        env = {"OMP_NUM_THREADS": str(threads())}
    if not gpus:
        say("This machine has no GPU, so its CPU is measured.")
        processor.measure()
    running.rehearse(
        recipe,
        run,
        None,
        pipeline.Selection(),
        say,
        watch,
        changes,
        scenario_rehearsal=Measured(gpus, run.path, blocks),
        env=env,
    )
    plan = inference.plan_of(recipe, run)
    (summary,) = pipeline.summaries(plan)
    say(
        f"\ntrained {summary.trainable_parameters:,} of {summary.total_parameters:,} parameters, {summary.steps} steps"
    )
    for line in calibration.after(recipe, run):
        say(line)
    if summary.gpu:
        (planned,) = forecast.of(changed(recipe, run.overrides)[0], plan)
        if summary.gpu_driver_gib:
            shown = planned.memory.shown / GIB
            say(
                f"The driver counted {summary.gpu_driver_gib:.1f} GiB; planned were {shown:.1f} GiB."
            )
        row = public_line(recipe, planned, summary)
        if row:
            say(
                f"\nThis line has nothing private in it; it would help others in benchmarks/outside/public.csv:\n{row}"
            )
    for file in run.path.rglob("*"):
        is_own_file = file.is_file() and not file.is_symlink()
        if is_own_file and file.stat().st_size > LARGE:
            file.unlink()


def public_line(recipe: Recipe, planned: forecast.Forecast, summary: Summary) -> str:
    """The measurement as a row of the table of published runs. Empty without a GPU, for a model
    that is not in the catalog, and for last layers and preferences, for which the table has no
    columns."""
    work = planned.workload
    base = recipe.model.get("base")
    if not summary.gpu or base not in catalog.model_ids():
        return ""
    if not isinstance(work, Workload) or work.unfrozen or work.objective != "sft":
        return ""
    facts = SimpleNamespace(
        source="recipe doctor --gpu",
        work=work,
        taken=summary,
        base=base,
        method=kind(work)["method"],
        adapter=SimpleNamespace(rank=0, dropout=0, four_bit=False),
        targets="",
        loss=work.fused_loss,
        tokens="",
        rate="",
    )
    if work.adapter:
        facts.adapter = work.adapter
        facts.targets = "+".join(work.adapter.targets)
    if work.fused_loss == "none":
        facts.loss = "plain"
    if work.lengths.mean:
        facts.tokens = f"{work.lengths.mean:.1f}"
    if summary.step_seconds:
        step = work.row_tokens * work.answers * work.micro_batch_size * work.accumulation
        facts.rate = round(step / summary.step_seconds, 1)
    cells = []
    for fact in packaged.toml(__file__, TABLES.name)["columns"].values():
        cell = attrgetter(fact)(facts) if fact else ""
        if isinstance(cell, bool):
            cell = int(cell)
        cells.append(cell)
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().strip()
