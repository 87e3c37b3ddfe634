"""Sentences and figures for people: what was trained, on what data, and whether it improved."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from runner.parts.evaluate import gates
from runner.parts.report.facts import FIGURES, ROW_TOKENS, DataFacts, RunFacts, StageFacts
from runner.recipe import units
from runner.tools.names import listed
from runner.tools.text import pieces


def fields(records: Iterable[Any], *names: str) -> Iterator[Any]:
    """The rows of a table: these fields of each record."""
    return map(attrgetter(*names), records)


def first(run: RunFacts) -> tuple[str, ...]:
    """Three sentences: model and data; improvement; what that proves. A failed run has three others."""
    if run.failed or run.state.fault:
        return _fault(run)
    if not any(stage.summary for stage in run.trained):
        return (f"Nothing of {run.name} has been trained yet.",)
    return (_trained(run), _better(run), _worth(run))


def model(run: RunFacts) -> str:
    """The model as the recipe names it, or its size or shape if it starts from random weights."""
    tiny = "tiny " if run.rehearsal else ""
    if "parameters" in run.counts and "tokens_in_all" in run.counts:
        return f"A {tiny}model of {amount(run.counts['parameters'])} parameters from random weights"
    shapes = [stage.summary.model for stage in run.trained if stage.summary.model]
    if shapes:
        return f"A {tiny}{shapes[0].get('architecture', 'network')} that distinguishes {shapes[0].get('classes', 'its')} classes of images"
    named = (stage.summary.base_model for stage in run.trained if stage.summary.base_model)
    if run.real_model:
        return run.real_model
    return f"{'A tiny stand-in (its twin) for ' if run.rehearsal else ''}{run.planned.model or next(named, 'A model')}"


def amount(count: float) -> str:
    for size, word in ((1e9, "billion"), (1e6, "million")):
        if count >= size:
            return f"{count / size:.3g} {word}"
    return f"{count:,.0f}"


def _trained(run: RunFacts) -> str:
    whole = [stage for stage in run.trained if stage.summary]
    seconds = units.duration(sum(stage.summary.training_seconds for stage in whole))
    on = f" on {rows(run)}" if rows(run) else ""
    if len(whole) == 1:
        (summary,) = (stage.summary for stage in whole)
        share = summary.trainable_parameters / max(1, summary.total_parameters)
        part = "all" if share == 1 else f"{share:.2%}"
        return f"{model(run)} was trained{on}: {part} of its {amount(summary.total_parameters)} parameters, {count(summary.steps, 'step')} in {seconds}."
    steps = sum(stage.steps_made for stage in whole)
    return f"{model(run)} was trained in {count(len(whole), 'stage')}{on}: {count(steps, 'step')} in {seconds}."


def answer(run: RunFacts, row: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """An answer in pieces, each with whether a rehearsal can have learned it only from the training rows."""
    learned = row.get("learned") if run.rehearsal else ()
    return pieces(row["after"] or "(nothing)", {str(word) for word in learned} if isinstance(learned, list) else ())


def rows(run: RunFacts) -> str:
    """The training data, in words; empty if unknown."""
    known = [facts.record for facts in run.data.values() if facts.record]
    if len(known) != 1:
        # If the data was never on this machine, the proof has counted its rows.
        return count(run.proven[0].proof.rows, "row") if not known and len(run.proven) == 1 else ""
    (record,) = known
    of = f" of {source}" if (source := _source(record)) else ""
    if isinstance(side := record.get("train"), dict) and "tokens" in side:
        return f"{count(side['blocks'], 'block')} of text ({side['tokens']:,} tokens){of}"
    return f"{count(record.get('train_rows', 0), 'image' if record.get('classes') else 'row')}{of}"


def _source(record: Mapping[str, Any]) -> str:
    return str(record.get("source") or "").rstrip("/").rpartition("/")[2]


def count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def better(stage: StageFacts) -> bool | None:
    """Whether the stage improved its model on held-out data; None if unknown."""
    told = stage.summary
    for before, after in (
        (told.first_preference_accuracy, told.last_preference_accuracy),
        (told.first_reward, told.best_reward),
        (accuracy_before(stage), told.best_accuracy),
        # A lower loss is better.
        (told.best_validation_loss, told.first_validation_loss),
    ):
        if before is not None and after is not None:
            return after > before
    return None


def accuracy_before(stage: StageFacts) -> float | None:
    """The share of images that were classified correctly before the first step; None if unknown."""
    return next((entry["accuracy"] for entry in stage.epochs[:1] if "accuracy" in entry), None)


def _better(run: RunFacts) -> str:
    ended = [stage for stage in run.trained if stage.summary]
    if len(ended) == 1:
        return change(ended[0])
    known = {stage.name: good for stage in ended if (good := better(stage)) is not None}
    if not known:
        return "Improvement was not measured, because there were no held-out rows."
    worse = [name for name, good in known.items() if not good]
    if worse:
        return f"Mixed: {_named(worse)} ended no better than {('it' if len(worse) == 1 else 'they')} began, but {len(known) - len(worse)} of {len(known)} stages improved."
    return f"Improved: each of {count(len(known), 'stage')} ended with a better result on held-out rows."


def change(stage: StageFacts) -> str:
    """Better or worse, with its figures."""
    told = stage.summary
    if better(stage) is None:
        return "Improvement was not measured, because there were no held-out rows."
    verdict = "Improved" if better(stage) else "Not improved"
    if told.first_preference_accuracy is not None and told.last_preference_accuracy is not None:
        return f"{verdict}: it prefers the better answer in {told.last_preference_accuracy:.1%} of held-out pairs, up from {told.first_preference_accuracy:.1%}."
    if told.first_reward is not None and told.best_reward is not None:
        return f"{verdict}: the mean reward of its answers to held-out prompts was {told.first_reward:.3f} before training and {told.best_reward:.3f} at best."
    start, best = told.first_validation_loss, told.best_validation_loss
    loss = ""
    if start is not None and best is not None:
        share = f", {abs(1 - best / start):.1%} {'lower' if best < start else 'higher'}" if start else ""
        loss = f"the validation loss fell from {start:.3f} to {best:.3f}{share}"
        if best >= start:
            loss = f"the validation loss was {start:.3f} at the start and {best:.3f} at best"
    named = ""
    if told.best_accuracy is not None:
        before = accuracy_before(stage)
        named = f"it classifies {told.best_accuracy:.1%} of the validation images correctly"
        named += f", up from {before:.1%}" if before is not None else ""
    return f"{verdict}: {'; '.join(filter(None, (named, loss)))}."


def _worth(run: RunFacts) -> str:
    """What the result proves: the state of the gates, that it is a rehearsal, or its cost."""
    gates = ""
    if run.gated:
        closed = [stage.name for stage in run.gated if not stage.open]
        overruled = [stage.name for stage in run.gated if stage.promotion]
        every = "the one gate is" if len(run.gated) == 1 else f"all {len(run.gated)} gates are"
        gates = f"the {_gate(closed)} closed" if closed else f"{every} open"
        gates += f", and the {_gate(overruled)} open because a person overruled it" if overruled else ""
    if run.rehearsal:
        also = f"; {gates}, with thresholds for a rehearsal" if gates else ""
        return f"This was a rehearsal: it proves that the recipe works, and does not show how good the real model will be{also}."
    if gates:
        return f"{gates[:1].upper()}{gates[1:]}."
    stage = run.trained[-1]
    told, seen = stage.summary, stage.foreseen
    what = f"It took {units.duration(told.training_seconds)}"
    if seen.seconds_least is not None and seen.seconds_most is not None:
        what += f" (planned {units.duration(seen.seconds_least)} to {units.duration(seen.seconds_most)})"
    if stage.peak_gib is not None:
        planned = f" (planned {units.gib(seen.tensors)})" if seen.tensors else ""
        what += f" and at most {stage.peak_gib:.1f} GiB on a GPU{planned}"
    return f"{what}."


def _gate(names: Sequence[str]) -> str:
    return f"gate{'s' if len(names) > 1 else ''} after {_named(names)} {'are' if len(names) > 1 else 'is'}"


def _named(names: Sequence[str]) -> str:
    return listed(names).replace("`", "")


def _fault(run: RunFacts) -> tuple[str, ...]:
    failed = run.failed
    where = ""
    if failed:
        steps = failed.last_step
        foreseen = f" of {failed.foreseen.steps:,}" if failed.foreseen.steps and failed.foreseen.steps >= steps else ""
        where = f" in the stage {failed.name}" + (f", after step {steps:,}{foreseen}" if steps else "")
    said = fault(run).splitlines()
    ended = "has failed" if said else "was stopped, or is still running"
    reason = said[0] if said else "No reason was recorded."
    if failed and failed.state.status == "begun":
        again = "continues from the last checkpoint" if failed.trains else "tries again"
        done = sum(stage.status == "finished" for stage in run.stages)
        are = "is" if done == 1 else "are"
        then = f"The same command {again}. {count(done, 'stage')} of {len(run.stages)} {are} finished."
    else:
        then = said[-1] if len(said) > 1 else "The results until then are saved."
    return (f"The {run.kind} of {run.name} {ended}{where}.", reason, then)


def fault(run: RunFacts) -> str:
    """Why a run was stopped, as reported then or recorded by its stage; empty if neither exists."""
    failed = run.failed
    if run.state.fault or failed is None:
        return run.state.fault
    return failed.stopped or failed.meaning


def results(stage: StageFacts) -> Iterator[tuple[str, str]]:
    """The result of a stage, one figure in each line."""
    told = stage.summary
    yield "steps", f"{told.steps:,}"
    yield "epochs", f"{told.epochs:g}"
    if told.early_stop:
        yield "early stopping", told.early_stop.told
    if told.tokens:
        yield "tokens", f"{told.tokens:,}"
    yield "training", units.duration(told.training_seconds)
    for name, (key, form) in FIGURES["results"].items():
        if (value := getattr(told, key)) is not None:
            yield name, format(value, form)
    rows = f"{told.effective_batch_size:,} rows"
    yield "effective batch", f"{rows}, {told.effective_batch_tokens:,} tokens" if told.effective_batch_tokens else rows
    yield "learning rate", f"{told.learning_rate:g}"
    yield "trained parameters", f"{told.trainable_parameters:,} of {told.total_parameters:,}"
    yield "processes", f"{told.world_size}, communicating over {told.backend}" if told.backend else f"{told.world_size}"


def against_plan(run: RunFacts) -> Iterator[tuple[str, str, str, str]]:
    """The plan against the result: stage, figure, planned value, measured value."""
    for stage in (stage for stage in run.trained if stage.foreseen):
        seen, told = stage.foreseen, stage.summary
        if seen.steps is not None:
            yield stage.name, "steps", f"{seen.steps:,}", f"{stage.steps_made:,}"
        if seen.seconds is not None and not run.rehearsal:
            truth = units.duration(told.training_seconds) if told else "not finished"
            yield stage.name, "time", _range(seen.seconds, seen.seconds_least, seen.seconds_most, units.duration), truth
        if seen.tensors is not None and stage.peak_gib is not None:
            yield stage.name, "GPU memory of tensors", units.gib(seen.tensors), f"{stage.peak_gib:.2f} GiB"


def _range(value: float | None, least: float | None, most: float | None, shown: Callable[[float], str]) -> str:
    if value is None:
        return "unknown"
    around = f" ({shown(least)} to {shown(most)})" if least is not None and most is not None else ""
    return f"{shown(value)}{around}"


def full_size(run: RunFacts) -> Iterator[tuple[str, ...]]:
    """The needs of each stage on the machines of the recipe."""
    for seen in run.planned.full_size:
        yield (
            seen.stage,
            f"{seen.gpus} × {seen.gpu}",
            _range(seen.memory, seen.memory_least, seen.memory_most, units.gib),
            _range(seen.usable, None, None, units.gib),
            f"{seen.steps:,}" if seen.steps is not None else "unknown",
            _range(seen.seconds, seen.seconds_least, seen.seconds_most, units.duration),
        )


def metrics(stage: StageFacts) -> Iterator[tuple[str, str]]:
    for name, value in sorted(stage.measured.items()):
        yield name, gates.shown(value)
    for name, why in sorted(stage.missing.items()):
        yield name, f"not measured: {why}"


def data(facts: DataFacts) -> Iterator[tuple[str, str]]:
    """The use of the rows, one figure in each line, for rows of any kind."""
    record = facts.record
    if source := _source(record):
        yield "from", source
    for name, key in FIGURES["counts"].items():
        if isinstance(number := record.get(key), int) and (number or key not in ("test_rows", "lost", "not_taken")):
            yield name, f"{number:,}"
    for side in ("train", "validation"):
        counts = record.get(side)
        for what, number in counts.items() if isinstance(counts, dict) else ():
            yield f"{side}: {what}", f"{number:,}"
    for what, number in (record.get("token_lengths") or {}).items():
        yield FIGURES["lengths"].get(what, f"tokens a row, {what}"), f"{number:,}"
    if record.get("classes"):
        yield "classes", ", ".join(map(str, record["classes"]))
    if record.get("licence"):
        yield "licence", str(record["licence"])


def lengths(facts: DataFacts) -> Iterator[tuple[str, str]]:
    return ((f"{low:,} to {high:,}", f"{number:,}") for low, high, number in facts.bins)


def row(shown: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A row as stretches of text, each with its kind; only the beginning of a very long row."""
    left = ROW_TOKENS
    for kind, tokens in shown["spans"]:
        if left <= 0:
            yield "seen", " …"
            return
        yield kind, "".join(tokens[:left])
        left -= len(tokens)


def origin(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Everything that the result can be traced back to."""
    planned = run.planned
    known = [
        ("recipe", planned.file),
        ("fingerprint of the recipe", planned.fingerprint),
        ("commit of the recipe", planned.commit),
        ("ID of the run", run.state.id),
        ("base model", planned.model),
        ("its version", planned.revision),
        ("its licence", planned.licence),
    ]
    for part, facts in run.data.items():
        of = f" of {part}" if part else ""
        names = {"source": "data", "licence": "licence of the data", "key": "hash of the data"}
        known += [(f"{name}{of}", str(facts.record.get(key) or "")) for key, name in names.items()]
    known += [(f"hash of the weights of {stage.name}", stage.weights) for stage in run.trained]
    yield from ((name, text) for name, text in known if text)
    yield from next((stage.summary.versions for stage in reversed(run.trained) if stage.summary), {}).items()


def loss(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else ""


def good(run: RunFacts) -> bool | None:
    """Whether every stage improved its model; None if unknown."""
    known = [judged for stage in run.trained if stage.summary and (judged := better(stage)) is not None]
    return all(known) if known else None
