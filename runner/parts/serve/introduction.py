"""What a chat tells before the first question: which models these are, what the trained one
learned, and which questions are from its rows."""

import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from runner import catalog
from runner.data import packaged_models
from runner.recipe.recipe import Recipe
from runner.run import inference
from runner.run.run_folder import StageFolder
from runner.run.run_manifest import RunManifest
from runner.tools.files import read_json
from runner.tools.run_files import ANSWERS, BEST_MODEL
from runner.trainer.records import Summary


@dataclass(frozen=True)
class OfferedQuestion:
    """A question that a chat offers."""

    text: str
    origin: str = ""  # `taught` or `new` for one of the rows, as in `inference.ORIGINS`; else empty
    expected: str = ""  # the answer of that row

    @property
    def origin_words(self) -> str:
        return inference.ORIGINS.get(self.origin, "")


def questions(recipe: Recipe, folder: StageFolder) -> list[OfferedQuestion]:
    """The questions of `inference.questions_of`, with what the run recorded of them: first those of
    training rows, then those of held-out rows, then the others."""
    recorded = {row["question"]: row for row in read_json(folder.path / ANSWERS) or ()}
    offered = []
    for text in inference.questions_of(recipe, folder):
        row = recorded.get(text, {})
        offered.append(OfferedQuestion(text, row.get("rows", ""), row.get("expected", "")))
    order = [*inference.ORIGINS, ""]
    return sorted(offered, key=lambda question: order.index(question.origin))


def by_origin(offered: Sequence[OfferedQuestion]) -> list[tuple[str, list[OfferedQuestion]]]:
    """Groups of questions, each with its heading; without a heading if no question is known to be
    of the rows."""
    groups = [
        (origin, list(group))
        for origin, group in groupby(offered, lambda question: question.origin_words)
    ]
    if not any(origin for origin, _ in groups):
        return groups
    # The run compares the first rows of many only, so another question may still be one of the
    # rows.
    questions_by_origin = []
    for origin, group in groups:
        questions_by_origin.append((f"Questions {origin}" if origin else "Other questions", group))
    return questions_by_origin


def expected_answers(offered: Sequence[OfferedQuestion]) -> dict[str, str]:
    """The answer of the row, by question, for questions of the rows."""
    return {question.text: question.expected for question in offered if question.expected}


def about_models(folder: StageFolder) -> list[str]:
    """Which models these are and what the trained one learned, a line each. A model for images has
    no original one."""
    summary = Summary.read(folder.path)
    manifest = RunManifest.read(folder.run.path)
    lines = []
    if summary.base_model:
        lines.append(f"original: {_original(summary.base_model, folder, manifest)}")
    trained = _training(summary, manifest)
    if trained:
        lines.append(f"trained: {trained}")
    if summary.answers:
        learned = summary.answers.sentence
    else:
        learned = ""
    # The twin of a rehearsal writes fragments, which say nothing of the recipe.
    if learned and not folder.run.is_of_twin:
        lines.append(learned)
    return lines


def _original(base_model: str, folder: StageFolder, manifest: RunManifest) -> str:
    """The name of the model that the training began with. base_model: a name on the hub, or a
    folder."""
    path = Path(base_model)
    for packaged_model in catalog.packaged_models():
        if path == packaged_models.folder_of(packaged_model):
            return packaged_model.like.rpartition("/")[2]
    if path.name == BEST_MODEL:
        return f"the model of the stage `{path.parent.name}`"
    if folder.run.is_of_twin:
        return f"a tiny stand-in for {manifest.model}, so both answer in fragments"
    if path.is_absolute():
        return path.name
    return base_model


def _training(summary: Summary, manifest: RunManifest) -> str:
    """On how many rows the model was trained, and when the run began; empty if neither is on
    record."""
    proof = summary.proof or {}
    parts = []
    if proof.get("rows"):
        if proof.get("kind") == "images":
            noun = "images"
        else:
            noun = "rows"
        parts.append(f"on {proof['rows']:,} {noun}")
    if manifest.at:
        began = datetime.datetime.fromisoformat(manifest.at).astimezone()
        parts.append(f"on {began.day} {began:%B %Y}")
    return ", ".join(parts)
