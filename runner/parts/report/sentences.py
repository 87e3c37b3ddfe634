"""Sentences and figures for people: what was trained, on what data, and whether it improved. The
words are in `sentences.txt.jinja` and `figures.toml`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.parts.evaluate import gates
from runner.parts.report.facts import FIGURES, ROW_TOKENS, DataFacts, RunFacts, StageFacts
from runner.recipe import units
from runner.run.inference import ORIGINS  # noqa: F401 - for the page
from runner.tools.problem import listed
from runner.tools.text import filled, pieces, template

if TYPE_CHECKING:
    from jinja2 import Template


def in_template(name: str) -> Template:
    """A template of this part, with the filters of all of them."""
    return template(
        Path(__file__).with_name(name), duration=units.duration, gib=units.gib, listed=listed
    )


def _said(macro: str, *about: object) -> str:
    return " ".join(str(getattr(in_template("sentences.txt.jinja").module, macro)(*about)).split())


def fields(records: Iterable[Any], *names: str) -> Iterator[Any]:
    """The rows of a table: these fields of each record."""
    return map(attrgetter(*names), records)


def first(run: RunFacts) -> tuple[str, ...]:
    """Three sentences: model and data; improvement; what that proves. A failed run has three
    others."""
    if run.failed or run.state.fault:
        why = run.reason.splitlines() or ["No reason was recorded."]
        begun = run.failed and run.failed.state.status == "begun"
        if len(why) > 1:
            rest = why[-1]
        else:
            rest = "The results until then are saved."
        return (_said("stopped", run), why[0], _said("again", run) if begun else rest)
    ended = [stage for stage in run.trained if stage.summary]
    if not ended:
        return (f"Nothing of {run.name} has been trained yet.",)
    return tuple(_said(macro, run, ended) for macro in ("trained", "better", "worth"))


def reasons(run: RunFacts) -> list[str]:
    """Why a run ended, and what its log says, a line each; empty for a run whose state is
    unknown."""
    sentences: Any = in_template("sentences.txt.jinja").module
    return str(sentences.reasons(run)).splitlines()


def answer(run: RunFacts, row: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """An answer in pieces, each with whether a rehearsal can have learned it only from the training
    rows."""
    if run.rehearsal:
        learned = row.get("learned")
    else:
        learned = ()
    return pieces(
        row["after"] or "(nothing)",
        {str(word) for word in learned} if isinstance(learned, list) else (),
    )


def _figures(table: str, known: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The figures of a table in `figures.toml`: the first of its forms whose words are known, if
    that is not empty."""
    texts = ((name, next(filled(forms, known), "")) for name, forms in FIGURES[table].items())
    return ((name, text) for name, text in texts if text)


# Fields of a summary that are unknown if they are zero or empty.
NONE_IF_ZERO = ("tokens", "effective_batch_tokens", "backend", "early_stop")


def results(stage: StageFacts) -> Iterator[tuple[str, str]]:
    """The result of a stage, one figure in each line."""
    told = stage.summary
    known = {name: value for name, value in vars(told).items() if value or name not in NONE_IF_ZERO}
    known["training"] = units.duration(told.training_seconds)
    if told.answers:
        known |= told.answers.counts
    return _figures("results", known)


def metrics(stage: StageFacts) -> Iterator[tuple[str, str]]:
    for name, value in sorted(stage.measurement.metrics.items()):
        yield name, gates.shown(value)
    for name, why in sorted(stage.measurement.missing.items()):
        yield name, f"not measured: {why}"


def data(facts: DataFacts) -> Iterator[tuple[str, str]]:
    """The use of the rows, one figure in each line, for rows of any kind."""
    record = facts.record
    if facts.source:
        yield "from", facts.source
    for name, key in FIGURES["counts"].items():
        if isinstance(number := record.get(key), int) and (
            number or key not in ("test_rows", "lost", "not_taken")
        ):
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
    yield from _figures("origin", {"run": run})
    for part, facts in run.data.items():
        of = f" of {part}" if part else ""
        known = {name: value for name, value in facts.record.items() if value}
        yield from ((f"{name}{of}", text) for name, text in _figures("origin_of_data", known))
    yield from (
        (f"hash of the weights of {stage.name}", stage.weights)
        for stage in run.trained
        if stage.weights
    )
    yield from next(
        (stage.summary.versions for stage in reversed(run.trained) if stage.summary), {}
    ).items()
