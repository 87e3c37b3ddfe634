"""Rehearsal: the whole way of a recipe on any machine, with a tiny twin in place of the base model.

A rehearsal is the recipe with substitutions, each a Change like `--set`, and then the same check, the same
translation, the same engine and the same results as the full run.
"""

from __future__ import annotations

from pathlib import Path

from runner.execute import rehearse_images, twin
from runner.execute.data import prepare
from runner.execute.data.report import Report
from runner.execute.runs import RunFolder
from runner.execute.training import Tell, Watch, place_for, train
from runner.plan import Place, Plan
from runner.problem import Stop
from runner.recipe import changes as changing
from runner.recipe import placing
from runner.recipe.changes import Change
from runner.recipe.check import judge
from runner.recipe.recipe import Recipe
from runner.scenarios import REHEARSALS, translate

BY = "rehearsal"
MIN_STEPS = 30
MAX_ROWS = 240
MAX_PROCESSES = 2
MIN_GAIN = 0.10


def rehearse(recipe: Recipe, run: RunFolder, data: str | None, data_dir: str | None, tell: Tell, watch: Watch) -> dict:
    """Rehearses a recipe in a run folder; returns the run's summary.

    data: a file with rows to use instead of the recipe's sample. data_dir: where prepared data goes, by default into
    the run folder.

    Raises Stop where anything fails, and where training makes the validation loss less than 10 % better, or, with
    images, tells fewer than 60 % of the validation images right.
    """
    place = place_for(run, accelerator=False, data_dir=data_dir)
    if translate(recipe, place).stages[0].engine == "images":
        return _rehearse_images(recipe, run, place, data, tell, watch)
    recipe, made = _changed(recipe, [*_data_changes(recipe, data), *_own_changes(recipe)])
    tell("Preparing the data")
    twin_dir = run.path / "base_model"
    report = prepare(
        translate(recipe, place).stages[0].data,
        Path(place.data_dir),
        tokenizer_for=lambda texts: twin.tokenizer(texts, twin_dir),
        sample_rows=MAX_ROWS,
    )
    for line in report.lines():
        tell(f"  {line}")
    original = recipe
    recipe, more = _changed(recipe, _model_changes(recipe, twin_dir) + _training_changes(recipe, report))
    made = [*made, *more]
    tell("What stands in for the real thing")
    for line in _substitutions(original, made, report):
        tell(f"  {line}")
    run.mark("running", substitutions=[change.as_json() for change in made])
    tell("Building the tiny twin")
    twin.build(original.model_facts, layers=_layers(original), seed=original.train.seed, folder=twin_dir)
    recipe, _ = _changed(recipe, [Change("model.base", None, str(twin_dir), BY)])
    plan = translate(recipe, place)
    summary = train(plan, run, tell, watch)
    _judge_gain(plan, summary)
    return summary


def _rehearse_images(recipe: Recipe, run: RunFolder, place: Place, data: str | None, tell: Tell, watch: Watch) -> dict:
    recipe, made = _changed(recipe, _data_changes(recipe, data))
    tell("Preparing the images")
    report = prepare(
        translate(recipe, place).stages[0].data, Path(place.data_dir), sample_rows=rehearse_images.MAX_IMAGES
    )
    for line in report.lines():
        tell(f"  {line}")
    recipe, more = _changed(recipe, rehearse_images.changes(recipe, report, BY))
    made = [*made, *more]
    tell("What stands in for the real thing")
    for change in made:
        tell(f"  {change}")
    run.mark("running", substitutions=[change.as_json() for change in made])
    plan = translate(recipe, place)
    summary = train(plan, run, tell, watch)
    rehearse_images.judge(plan, summary)
    return summary


def _changed(recipe: Recipe, wanted: list[Change]) -> tuple[Recipe, list[Change]]:
    document, made = changing.apply(recipe.document, wanted)
    changed, problems = judge(document)
    errors = [problem for problem in problems if problem.severity == "error"]
    if errors or changed is None:
        raise Stop(errors)
    return changed, made


def _data_changes(recipe: Recipe, data: str | None) -> list[Change]:
    """Rows from `--data`, else from the recipe's sample, else from the recipe's own file."""
    if data:
        return changing.from_data_option(data)
    if file := recipe.data.get("sample"):
        why = "the recipe's own sample, so nothing is downloaded"
        return [Change("data.hub", None, None, BY, why), Change("data.path", None, file, BY, why)]
    if recipe.data.get("path"):
        return []
    raise Stop(
        recipe.document.problem(
            ("data",),
            "A rehearsal downloads nothing, and `data` names no local file.",
            "Name one: `recipe rehearse … --data FILE`, or `data.sample` in the recipe.",
            key=True,
        )
    )


def _own_changes(recipe: Recipe) -> list[Change]:
    """What the scenario puts in place of its own settings before its data is prepared."""
    own = REHEARSALS.get(recipe.scenario)
    return [*own(recipe, BY), Change("resume_from", None, None, BY, "a rehearsal begins anew")] if own else []


def _model_changes(recipe: Recipe, twin_dir: Path) -> list[Change]:
    wanted = [
        Change("model.revision", None, None, BY, "the twin is local"),
        Change("model.precision", None, "fp32", BY, "runs on any processor"),
        Change("model.attention", None, "sdpa", BY, "FlashAttention needs a GPU"),
        Change(
            "distribution",
            None,
            "ddp",
            BY,
            "DeepSpeed and FSDP need GPUs; DDP over gloo divides the rows the same way",
        ),
        Change(
            "demo.max_new_tokens",
            None,
            min(40, recipe.demo.max_new_tokens),
            BY,
            "a tiny model has little to say",
        ),
    ]
    return [change for change in wanted if recipe.document.lookup(change.path) is not None]


def _training_changes(recipe: Recipe, report: Report) -> list[Change]:
    """Processes for machines, and batches small enough for at least 30 steps."""
    train = recipe.train
    processes = min(MAX_PROCESSES, sum(recipe.gpu_counts))
    micro, accumulation, epochs = (
        min(train.micro_batch_size, 8),
        min(train.gradient_accumulation_steps, 2),
        train.epochs,
    )

    def steps() -> int:
        return int(report.train_rows // (micro * accumulation * processes) * epochs)

    while steps() < MIN_STEPS and micro > 2:
        micro //= 2
    while steps() < MIN_STEPS and accumulation > 1:
        accumulation -= 1
    while steps() < MIN_STEPS and micro > 1:
        micro //= 2
    while steps() < MIN_STEPS:
        epochs += 1
    few = f"at least {MIN_STEPS} steps from {report.train_rows} rows"
    on_cpu = f"{processes} process{'es' if processes > 1 else ''} on the CPU, talking over gloo"
    third = max(1, steps() // 3)
    # Settings that some scenarios have and others do not.
    own = [
        Change("train.eval_batch_size", None, micro, BY, few),
        Change("train.warmup_steps", None, max(1, steps() // 10), BY, "few steps"),
        Change("train.eval_steps", None, third, BY, "few steps"),
        Change("train.save_steps", None, third, BY, "few steps"),
    ]
    return [
        *placing.on_one_machine(recipe, processes, BY, on_cpu),
        Change("train.micro_batch_size", None, micro, BY, few),
        Change("train.gradient_accumulation_steps", None, accumulation, BY, few),
        Change("train.epochs", None, epochs, BY, few),
        Change("train.effective_batch_size", None, None, BY, "computed from the lines above"),
        Change("train.learning_rate", None, 0.005, BY, "random weights need larger steps"),
        Change("train.optimizer", None, "adamw_torch", BY, "runs on any processor"),
        Change("train.logging_steps", None, 1, BY, "few steps"),
        Change("train.report_to", None, "tensorboard", BY, "needs no account"),
        *(change for change in own if change.path[-1] in train),
    ]


def _layers(recipe: Recipe) -> int:
    """Enough layers that some stay frozen."""
    return min(recipe.model_facts.num_hidden_layers, (recipe.train.get("last_layers") or 0) + 2)


def _substitutions(original: Recipe, made: list[Change], report: Report):
    facts = original.model_facts
    shape = twin.geometry(facts, _layers(original), twin.VOCABULARY)
    yield (
        f"model.base: {original.model.base} → a tiny twin  ({shape['num_hidden_layers']} of {facts.num_hidden_layers} layers, "
        f"width {shape['hidden_size']} of {facts.hidden_size:,}, random weights, a tokenizer trained on these rows)"
    )
    if report.sampled_from is not None:
        yield f"rows: {report.sampled_from:,} → {report.train_rows + report.validation_rows}  (a seeded draw)"
    yield from map(str, made)


def _judge_gain(plan: Plan, summary: dict) -> None:
    first, best = summary["first_validation_loss"], summary["best_validation_loss"]
    steps = summary["steps"]
    if steps < MIN_STEPS:
        raise Stop(
            f"The rehearsal made {steps} steps, and {MIN_STEPS} are needed to judge it.",
            "Give it more rows with `--data`.",
        )
    gain = 1 - best / first if first else 0.0
    if gain < MIN_GAIN:
        raise Stop(
            f"The rehearsal of `{plan.name}` did not learn: the validation loss went from {first:.3f} to {best:.3f}, "
            f"{gain:.1%} better, and {MIN_GAIN:.0%} are needed.",
            "Look at the prepared rows, and at what is trained.",
        )
