"""Report: what a run has learned, as a person wants to know it at its end."""

from __future__ import annotations

from collections.abc import Iterator

from runner import parts
from runner.plan import Plan
from runner.run.pipeline import summaries
from runner.run.stage_folder import StageFolder
from runner.tools.files import read_json
from runner.tools.names import shortened
from runner.tools.run_files import ANSWERS
from runner.trainer.records import Summary


def introduction(plan: Plan) -> Iterator[str]:
    """What a person wants to know of a model that is trained from nothing: its size, and what it will read."""
    if "tokens_in_all" in plan.facts:
        parts = ", ".join(f"{name} {count:,}" for name, count in plan.facts["tokens"].items())
        yield f"{plan.facts['parameters']:,} parameters; {plan.facts['tokens_in_all']:,} tokens to train on ({parts})"


def report(plan: Plan) -> Iterator[str]:
    """Of a single stage that has trained all that it says of itself, of several a line each; then the demo questions,
    before and after, and who has overruled which gate."""
    run, trained = StageFolder(plan, plan.stages[0]).run, summaries(plan)
    if len(trained) == 1:
        yield from _details(trained[0])
    else:
        yield ""
        yield from map(_line, trained)
    if "tokens_in_all" in plan.facts:
        yield from _tokens(plan, trained)
    for stage in plan.stages:
        rows = read_json(StageFolder(plan, stage).path / ANSWERS) if stage.trains else None
        yield from _answers(rows or [], run.kind == "rehearsal")
    for on_record in parts.hooks("on_record"):
        yield from on_record(plan)
    yield ""
    yield f"Everything is in {run.shown}/"


def _details(summary: Summary) -> Iterator[str]:
    first, best = summary.first_validation_loss, summary.best_validation_loss
    share = summary.trainable_parameters / max(1, summary.total_parameters)
    yield (
        f"trained {summary.trainable_parameters:,} of {summary.total_parameters:,} parameters ({share:.2%}), "
        f"{summary.steps} steps in {summary.training_seconds:.0f} s"
    )
    packed = f" packed rows, {tokens:,} tokens" if (tokens := summary.effective_batch_tokens) else ""
    if summary.early_stop:
        yield summary.early_stop.told
    yield f"effective batch {summary.effective_batch_size}{packed}, learning rate {summary.learning_rate:g}"
    if first and best is not None:
        yield f"validation loss {first:.3f} → {best:.3f}, {1 - best / first:.1%} better"
    if summary.best_accuracy is not None:
        tested = f", {summary.test_accuracy:.1%} of the test images" if summary.test_accuracy is not None else ""
        yield (
            f"accuracy {summary.best_accuracy:.1%} of the validation images, in epoch {summary.best_epoch or 0:g}{tested}"
        )


def _line(summary: Summary) -> str:
    accuracy = summary.last_preference_accuracy
    preferred = f", prefers the better answer in {accuracy:.0%}" if accuracy is not None else ""
    early = f"; {summary.early_stop.told}" if summary.early_stop else ""
    return f"{summary.stage:<16} step {summary.steps:>9,}  {summary.losses}{preferred}{early}"


def _tokens(plan: Plan, trained: list[Summary]) -> Iterator[str]:
    """How many tokens pretraining has truly seen, counted by the trainer over all context lengths."""
    lengths = [summary for summary in trained if summary.stage in plan.facts["tokens"]]
    if lengths:
        seen, last = lengths[-1].tokens, lengths[-1].stage
        yield f"{seen:,} of {plan.facts['tokens_in_all']:,} tokens trained on, up to {last}"


def _answers(rows: list[dict[str, str]], rehearsed: bool) -> Iterator[str]:
    if rows and rehearsed:
        yield ""
        yield "A tiny model speaks in scraps; what counts is whose words they are, before and after:"
    for row in rows:
        yield ""
        yield f"  {row['question']}"
        yield f"    before: {shortened(row['before'], 100) or '(nothing)'}"
        yield f"    after:  {shortened(row['after'], 100) or '(nothing)'}"
