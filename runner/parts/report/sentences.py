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


def _sentence(macro: str, *facts: object) -> str:
    module = in_template("sentences.txt.jinja").module
    return " ".join(str(getattr(module, macro)(*facts)).split())


def fields(records: Iterable[object], *names: str) -> Iterator[Any]:
    """The rows of a table: these fields of each record."""
    return map(attrgetter(*names), records)


def first(run: RunFacts) -> tuple[str, ...]:
    """Three sentences: model and data; improvement; what that proves. A failed run has three
    others."""
    if run.failed or run.state.fault:
        reason = run.reason.splitlines() or ["No reason was recorded."]
        if run.failed and run.failed.state.status == "begun":
            consequence = _sentence("again", run)
        elif len(reason) > 1:
            consequence = reason[-1]
        else:
            consequence = "The results until then are saved."
        return (_sentence("stopped", run), reason[0], consequence)
    ended = [stage for stage in run.trained if stage.summary]
    if not ended:
        return (f"Nothing of {run.name} has been trained yet.",)
    return tuple(_sentence(macro, run, ended) for macro in ("trained", "better", "worth"))


def reasons(run: RunFacts) -> list[str]:
    """Why a run ended, and what its log says, a line each; empty for a run whose state is
    unknown."""
    sentences: Any = in_template("sentences.txt.jinja").module
    return str(sentences.reasons(run)).splitlines()


def answer(run: RunFacts, row: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """An answer in pieces, each with whether a rehearsal can have learned it only from the training
    rows."""
    text = row["after"] or "(nothing)"
    learned_words = row.get("learned")
    if run.rehearsal and isinstance(learned_words, list):
        return pieces(text, set(map(str, learned_words)))
    return pieces(text, set())


def _figures(table: str, values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The figures of a table in `figures.toml`: the first of its forms whose values exist, if that
    is not empty."""
    for name, forms in FIGURES[table].items():
        text = next(filled(forms, values), "")
        if text:
            yield name, text


# Fields of a summary that are unknown if they are zero or empty.
NONE_IF_ZERO = ("tokens", "effective_batch_tokens", "backend", "early_stop")


def results(stage: StageFacts) -> Iterator[tuple[str, str]]:
    """The result of a stage, one figure in each line."""
    summary = stage.summary
    values = {}
    for name, value in vars(summary).items():
        if value or name not in NONE_IF_ZERO:
            values[name] = value
    values["training"] = units.duration(summary.training_seconds)
    if summary.answers:
        values |= summary.answers.counts
    return _figures("results", values)


def metrics(stage: StageFacts) -> Iterator[tuple[str, str]]:
    for name, value in sorted(stage.measurement.metrics.items()):
        yield name, gates.shown(value)
    for name, reason in sorted(stage.measurement.missing.items()):
        yield name, f"not measured: {reason}"


def data(facts: DataFacts) -> Iterator[tuple[str, str]]:
    """The use of the rows, one figure in each line, for rows of any kind."""
    record = facts.record
    if facts.source:
        yield "from", facts.source
    for name, key in FIGURES["counts"].items():
        number = record.get(key)
        is_hidden = number == 0 and key in ("test_rows", "lost", "not_taken")
        if isinstance(number, int) and not is_hidden:
            yield name, f"{number:,}"
    for side in ("train", "validation"):
        counts = record.get(side)
        if isinstance(counts, dict):
            for name, number in counts.items():
                yield f"{side}: {name}", f"{number:,}"
    token_lengths = record.get("token_lengths") or {}
    for name, number in token_lengths.items():
        heading = FIGURES["lengths"].get(name, f"tokens a row, {name}")
        yield heading, f"{number:,}"
    if record.get("classes"):
        yield "classes", ", ".join(map(str, record["classes"]))
    if record.get("licence"):
        yield "licence", str(record["licence"])


def row(proof_row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A row as stretches of text, each with its kind; only the beginning of a very long row."""
    tokens_to_show = ROW_TOKENS
    for span_kind, tokens in proof_row["spans"]:
        if tokens_to_show <= 0:
            yield "seen", " …"
            return
        yield span_kind, "".join(tokens[:tokens_to_show])
        tokens_to_show -= len(tokens)


def origin(run: RunFacts) -> Iterator[tuple[str, str]]:
    """Everything that the result can be traced back to."""
    yield from _figures("origin", {"run": run})
    for part, facts in run.data.items():
        of_part = f" of {part}" if part else ""
        values = {name: value for name, value in facts.record.items() if value}
        for name, text in _figures("origin_of_data", values):
            yield f"{name}{of_part}", text
    for stage in run.trained:
        if stage.weights:
            yield f"hash of the weights of {stage.name}", stage.weights
    for stage in reversed(run.trained):
        if stage.summary:
            yield from stage.summary.versions.items()
            return
