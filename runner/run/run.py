"""Runs a recipe on this machine in full size, or rehearses its stages with a tiny model; and
reports the results."""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runner import catalog, parts, scenarios
from runner.catalog.hardware import NO_GPU
from runner.check.validate import changed
from runner.data import packaged_models
from runner.data.prepared import PreparedRows
from runner.parts.contract import Substitutions
from runner.plan import Place, Plan, Prediction, Stage
from runner.recipe import units
from runner.recipe.recipe import Override, Recipe
from runner.run import inference, launch, this_machine
from runner.run.pipeline import Selection, Watch, carry_out, decide, is_done, summaries
from runner.run.run_folder import RunFolder, StageFolder
from runner.run.run_manifest import keep
from runner.run.this_machine import LocalRun
from runner.scenarios import forecasting, translate
from runner.scenarios.shared import common, rehearsal
from runner.tools.files import read_json, read_record, write_json
from runner.tools.problem import Stop, Tell, shortened
from runner.tools.process import threads
from runner.tools.run_files import ANSWERS, RUN
from runner.tools.text import macros
from runner.trainer.records import Summary

SIDES = ("before", "after", "expected")  # of a question: both answers, and that of its training row
GLANCE = 300  # characters of an answer at the end of a run
CPU = "this machine's CPU"  # in sentences
UNASKED = 3600  # seconds of training on a processor that start without a question
UNASKED_REHEARSAL = 900  # the same for a rehearsal with a real model


def run(
    recipe: Recipe,
    folder: RunFolder,
    chosen: Selection,
    tell: Tell,
    watch: Watch,
    changes: Iterable[Override] = (),
    confirm: Callable[[str], bool] = lambda takes: False,
    brief: bool = False,
) -> None:
    """Runs the chosen stages on this machine's GPUs, or on its processor if it has none, and
    reports the results. confirm: asks the user whether something long may start; changes: the
    user's changes of the recipe; brief: whether to print only how long training takes, and the
    answers. Raises Stop if the processor's memory is too small, anything fails, or a gate does not
    open."""
    plan = inference.plan_of(recipe, folder)
    tell_detail: Tell = _nothing if brief else tell
    chosen.of(plan)  # an unknown stage is reported first
    if is_done(plan):
        keep(folder, recipe, plan, changed(recipe, folder.overrides)[0])
        tell_detail("This run is already done. `--fresh` repeats it.")
    else:
        local = this_machine.local_run(recipe, folder, chosen)
        env = {"CUDA_VISIBLE_DEVICES": local.visible_gpus}
        if local.on_processor:
            env["OMP_NUM_THREADS"] = str(threads())
        plan = _with_env(local.plan, env)
        if local.gpus or local.on_processor:
            _print_changes(recipe, local, tell_detail)
        if local.gpus:
            _compare_precision(plan, local.gpus, tell_detail)
        _introduce(plan, tell_detail)
        stages = chosen.of(plan)
        if local.on_processor:
            instead = (
                f"`recipe rehearse {recipe.document.file}` runs all of it here with a tiny model"
            )
            if "openshift" in recipe.settings:
                instead += (
                    f"; `recipe submit {recipe.document.file}` sends it to the cluster's GPUs"
                )
            download = this_machine.download(local)
            if download:
                tell(download)
            _require_patience(
                plan, stages, local.predictions, UNASKED, f"{instead}.", tell, confirm
            )
            packaged_models.make_ready(stages, tell)
            _import_ahead(stages, plan.place)
        keeping = partial(keep, folder, recipe, plan, local.recipe)
        made_with = folder.made_with(changes, local.substitutions, local.on_processor)
        carry_out(plan, stages, tell_detail, watch, made_with, keeping)
    if brief:
        for line in _answers(plan):
            tell(line)
        tell("")
        return
    for line in report(plan):
        tell(line)
    if parts.has("planner"):
        from runner.parts.planner import calibration

        for line in calibration.after(recipe, folder):
            tell(line)


def _nothing(line: str) -> None:
    """Prints nothing."""


def _import_ahead(stages: Iterable[Stage], place: Place) -> None:
    """Lets the engine of the first training be imported while its rows are prepared, if stages are
    forks."""
    engine = next((stage for stage in stages if stage.trains), None)
    if engine is not None:
        launch.ahead(engine, place)


def _with_env(plan: Plan, env: dict[str, str]) -> Plan:
    return replace(
        plan, stages=tuple(replace(stage, env={**stage.env, **env}) for stage in plan.stages)
    )


def _require_patience(
    plan: Plan,
    stages: list[Stage],
    predictions: Mapping[str, Prediction],
    unasked: float,
    instead: str,
    tell: Tell,
    confirm: Callable[[str], bool],
) -> None:
    """Prints how long each chosen stage takes on this machine's processor, and asks if the stages
    that start take more than `unasked` seconds. instead: what takes less, as a sentence. Raises
    Stop after a no, or if this machine's memory is too small."""
    for stage in stages:
        if stage.trains:
            prediction = predictions.get(stage.name, Prediction(stage.name))
            this_machine.require_memory(prediction, instead)
            needs = this_machine.needs(prediction)
            if needs:
                tell(needs)
    total = seconds_to_train(plan, stages, predictions)
    if total > unasked and not confirm(training_takes(total, CPU)):
        raise Stop("Nothing was started.", instead)


def seconds_to_train(
    plan: Plan, stages: list[Stage], predictions: Mapping[str, Prediction]
) -> float:
    """How long the stages that start from the beginning take; infinite if that is unknown."""
    total = 0.0
    for decision in decide(plan, stages):
        if decision.stage.trains and decision.action not in ("keep", "go on"):
            prediction = predictions.get(decision.stage.name, Prediction())
            if prediction.seconds is None:
                return math.inf
            total += prediction.seconds
    return total


def training_takes(seconds: float, machine: str) -> str:
    """How long training takes, as a sentence. machine: as in `CPU`."""
    if seconds == math.inf:
        return f"How long training takes on {machine} is unknown."
    return f"Training takes about {units.duration(seconds)} on {machine}."


def _compare_precision(plan: Plan, gpus: list[str], tell: Tell) -> None:
    """Prints a note if the planned precision does not fit this machine's GPU."""
    card = catalog.gpu(catalog.label_of(gpus[0]))
    if card is None:
        return
    for stage_kind, chosen_precision in plan.facts.get("precision", {}).items():
        if chosen_precision == "fp8":
            able = card.fp8
        else:
            able = card.bf16 or chosen_precision == "fp32"
        if not able:
            tell(
                f"  {stage_kind}: planned in {chosen_precision}, which {card.title} does not support; set `model.precision`"
            )
        elif card.fp8 and chosen_precision == "bf16" and stage_kind in plan.facts["fp8_stages"]:
            tell(
                f"  {stage_kind}: planned in bf16; {card.title} could do fp8 with `machines.gpu: {card.name}`"
            )


def _print_changes(recipe: Recipe, local: LocalRun, tell: Tell) -> None:
    """Prints what changes so that the recipe runs on this machine. The batch, and with it an own
    learning rate, may follow the number of GPUs."""
    planned_gpu = catalog.gpu(recipe.machines.gpu)
    for name in sorted(set(local.gpus)):
        if catalog.label_of(name) != recipe.machines.gpu:
            tell(
                f"The recipe is for {planned_gpu.title if planned_gpu else recipe.machines.gpu}, and this machine has {name}."
            )
    if local.on_processor:
        if recipe.machines.gpu == NO_GPU:
            reason = "The recipe names no GPU"
        else:
            reason = "This machine has no GPU"
        tell(
            f"{reason}, so training uses this machine's CPU. Settings that need a GPU are replaced:"
        )
    for override in local.substitutions:
        tell(f"  {override}")
    if "train" not in recipe.settings:
        return
    for title, figure in (
        ("effective batch", common.effective_batch_size),
        ("learning rate", common.learning_rate),
    ):
        if figure(recipe) != figure(local.recipe):
            tell(f"  {title}: {figure(recipe):g} → {figure(local.recipe):g}  (follows the GPUs)")


def rehearse(
    recipe: Recipe,
    run: RunFolder,
    data: str | None,
    chosen: Selection,
    tell: Tell,
    watch: Watch,
    changes: Iterable[Override] = (),
    model: str | None = None,
    scenario_rehearsal: Substitutions | None = None,
    env: dict[str, str] | None = None,
    confirm: Callable[[str], bool] = lambda takes: True,
) -> None:
    """Rehearses the chosen stages of a recipe in a run folder and reports the results.

    data: a file with rows to use instead of the recipe's sample. changes: the person's changes of
    the recipe. model: a real model, a packaged one or a folder, that is trained instead of a twin.
    scenario_rehearsal: in the place of the scenario's substitutions; env: of training beside.
    confirm: asks the user whether a real model may train for more than a quarter of an hour. Raises
    Stop if anything fails, a gate does not open, or too little is learned (see the scenario's
    `rehearsal`).
    """
    scenario_rehearsal = scenario_rehearsal or scenarios.rehearsal(recipe.scenario)
    record_before = read_record(run.path / RUN)
    place = run.place()
    before_data = scenario_rehearsal.before_data(recipe, data)
    rehearsed, substitutions = changed(
        recipe, [*before_data, *(rehearsal.real(recipe, model) if model else ())]
    )
    plan = translate(rehearsed, place)
    chosen.of(plan)  # an unknown stage is reported before the long list
    # The first stage also makes the twin of the base model, from the rows that it prepares.
    additions: Mapping[str, object]
    if model:
        additions = {"sample_rows": rehearsal.MAX_ROWS, "real_model": True}
    else:
        additions = scenario_rehearsal.stands_in(recipe, run.path)
    prepares, *further_stages = plan.stages
    prepares = common.written(
        recipe, replace(prepares, config={**prepares.config, **additions}, files=())
    )
    plan = replace(plan, stages=(prepares, *further_stages))

    def carried(stages: list[Stage]) -> list[Summary]:
        facts = run.made_with(changes, substitutions, run.state.processor)
        return carry_out(
            plan, stages, tell, watch, facts, partial(keep, run, recipe, plan, rehearsed)
        )

    # A twin replaces nearly everything, which only the run's page lists.
    listed = model is not None or run.kind != "rehearsal"
    if listed:
        tell(f"Substitutions for the {run.kind}")
        for override in substitutions:
            tell(f"  {override}")
    _introduce(plan, tell)
    if scenario_rehearsal.after_data is not None:
        # More substitutions depend on the rows, so the rows come first; meanwhile the engine is
        # imported.
        stages = chosen.of(plan)
        _import_ahead(stages, place)
        carried([stage for stage in stages if stage.name == common.DATA])
        rows = PreparedRows.read(Path(place.data_dir))
        if not StageFolder(plan, prepares).finished:
            raise Stop(
                "The stage `data` is not finished, and training depends on its rows.",
                "Leave out `--stage`.",
            )
        if model:
            following = rehearsal.training(rehearsed, rows, real=True)
        else:
            following = scenario_rehearsal.after_data(rehearsed, rows, run.path)
        rehearsed, more = changed(rehearsed, following)
        if listed:
            tell("More substitutions, which depend on the rows")
            for line in scenario_rehearsal.shown(recipe, more, rows):
                tell(f"  {line}")
        substitutions += more
        # The stage that prepared the rows stays as it ran, before the twin replaced the model.
        plan = replace(plan, stages=(prepares, *translate(rehearsed, place).stages[1:]))
    plan = _with_env(plan, env or ({"OMP_NUM_THREADS": str(threads())} if model else {}))
    if model:
        predictions = {}
        for prediction in forecasting().on_processor(rehearsed, plan):
            predictions[prediction.stage] = prediction
        instead = "`--set train.epochs=1` takes less time, and so do fewer rows."
        try:
            _require_patience(
                plan, chosen.of(plan), predictions, UNASKED_REHEARSAL, instead, tell, confirm
            )
        except BaseException:
            # Rows alone are no run: the session puts back what was here before.
            if record_before:
                write_json(run.path / RUN, record_before)
            raise
    elif not listed:
        tell(
            f"{len(substitutions)} settings are replaced, so that a tiny twin of the model trains on this CPU. The result page lists them."
        )
    done = carried(chosen.of(plan))
    if run.kind == "rehearsal":
        for line in report(plan):
            tell(line)
    try:
        scenario_rehearsal.judge(plan, done)
    except Stop as stop:
        run.mark(run.state.status, fault=stop.text)
        raise


def _introduce(plan: Plan, tell: Tell) -> None:
    """Prints the size and the tokens of a model that is trained from random weights."""
    if "tokens_in_all" in plan.facts:
        by_length = ", ".join(f"{name} {count:,}" for name, count in plan.facts["tokens"].items())
        tell(
            f"{plan.facts['parameters']:,} parameters; {plan.facts['tokens_in_all']:,} tokens to train on ({by_length})"
        )


def report(plan: Plan) -> Iterator[str]:
    """The details of one trained stage, or a line for each of several; the demo's answers;
    overridden gates."""
    run = StageFolder(plan, plan.stages[0]).run
    trained = summaries(plan)
    templates = macros(Path(__file__).with_name("report.jinja"))
    yield from str(
        templates.details(*trained) if len(trained) == 1 else templates.several(trained)
    ).splitlines()
    # In pretraining, the trainer counts tokens over all context lengths.
    lengths = [summary for summary in trained if summary.stage in plan.facts.get("tokens", ())]
    if lengths:
        token_count = lengths[-1].tokens
        last = lengths[-1].stage
        yield f"{token_count:,} of {plan.facts['tokens_in_all']:,} tokens trained on, up to {last}"
    if run.kind == "rehearsal" and not plan.stages[0].config.get("real_model"):
        yield from _what_a_twin_proves(plan)
    else:
        yield from _answers(plan)
    for hooks in parts.stage_hooks():
        yield from hooks.report_lines(plan)
    yield ""
    yield f"All results are in {run.shown}/"


def _what_a_twin_proves(plan: Plan) -> Iterator[str]:
    """One line instead of a twin's answers, which are fragments."""
    if any(_answers_of(plan, stage) for stage in plan.stages):
        yield ""
        yield "This proves the way from your rows to a model that answers. The twin's answers are fragments; `recipe compare` shows them."


def _answers(plan: Plan) -> Iterator[str]:
    """The demo's answers before and after training, side by side; in a rehearsal with the words
    that were learned."""
    rehearsed = StageFolder(plan, plan.stages[0]).run.kind == "rehearsal"
    for stage in plan.stages:
        rows = _answers_of(plan, stage)
        if rows and rehearsed:
            yield ""
            yield "Compare the answers before and after training."
            if any(row.get("learned") for row in rows):
                if sys.stdout.isatty():
                    marked = "in bold"
                else:
                    marked = "in *asterisks*"
                yield f"Words {marked} were learned from the training rows."
        for row in rows:
            shortened_row = {**row, "learned": row.get("learned", ()) if rehearsed else ()}
            for side in SIDES:
                if side in row:
                    shortened_row[side] = shortened(row[side], GLANCE)
            yield from inference.side_by_side([shortened_row])
        if rows:
            yield from _verdict_on_answers(plan, stage)


# Passes after which an adapter on a few hundred rows has learned facts
# (benchmarks/results/taught-answers.txt).
PASSES_FOR_FACTS = 10


def _verdict_on_answers(plan: Plan, stage: Stage) -> Iterator[str]:
    """How many questions of the rows are answered rightly and, if those are few, what may help."""
    summary = StageFolder(plan, stage).summary
    if summary is None or summary.answers is None or not summary.answers.sentence:
        return
    yield ""
    yield summary.answers.sentence
    if summary.answers.has_learned is not False:
        return
    if 0 < summary.epochs < PASSES_FOR_FACTS:
        seconds = summary.training_seconds * PASSES_FOR_FACTS / summary.epochs
        yield (
            f"It has read the rows {_times(summary.epochs)}. `train.epochs: {PASSES_FOR_FACTS}` would take about "
            f"{units.duration(seconds)} here."
        )
    else:
        yield "A higher `train.learning_rate` or `train.lora_rank`, or a larger model, may help."


def _times(epochs: float) -> str:
    if round(epochs) == 1:
        return "once"
    return f"{epochs:.0f} times"


def _answers_of(plan: Plan, stage: Stage) -> list[Mapping[str, Any]]:
    if stage.trains:
        rows = read_json(StageFolder(plan, stage).path / ANSWERS)
    else:
        rows = None
    return rows or []
