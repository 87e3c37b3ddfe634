"""Changes of a recipe that exists, as a copy of `recipe new` gets them: other data, whose form and
columns are guessed, or another model; and the models that this machine can train on its rows."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from runner.check import by_schema, data_file
from runner.check.validate import changed, judge, with_followers
from runner.commands.next_step import has_gpu, run_here
from runner.data import conversation_formats
from runner.data.columns import QUESTION_NAMES
from runner.parts.start import drafting
from runner.parts.start.drafting import BETTER, LABELLED, WORSE, Answers, ModelHere
from runner.recipe.document import Document, path_of
from runner.recipe.overrides import apply
from runner.recipe.recipe import Override, Recipe
from runner.run.this_machine import LocalRun
from runner.tools.files import remote
from runner.tools.problem import Stop

# The settings of `data` that tell how rows become texts.
OF_COLUMNS = (
    "form",
    "text",
    "question",
    "answer",
    "prompt",
    "chosen",
    "rejected",
    "completion",
    "label",
    "answered_by",
    "songs",
)
# The objectives that stay when the new rows are of this kind; labelled answers set their own.
OBJECTIVES = {
    "preferences": ("dpo", "ipo", "hinge", "orpo", "simpo", "reward"),
    "prompts": ("grpo", "ebft"),
}
# The technique that names the settings for data, by scenario; others have those of an adapter.
TECHNIQUES = {"pretrain": "pretrain", "image-classification": "network"}


@dataclass(frozen=True)
class AnswersInPlace(Answers):
    """Answers about the recipe `origin`, which changes instead of a copy of a starter."""

    origin: Document = field(kw_only=True)

    @cached_property
    def document(self) -> Document:
        return self.origin


def other_data(document: Document, name: str) -> list[Override]:
    """The changes of a recipe that learns from other rows; their columns decide its settings. name:
    a file or a folder, from the recipe's folder, or a data set on the hub; `s3://…` is not read.
    Raises Stop if it cannot be read."""
    if remote(name):
        return _complete(document, drafting.overrides_of({"data.path": (name, "")}))
    file = Path(document.file).parent / name
    if file.exists():
        source = str(file.absolute())
    else:
        source = name
    scenario = document.data["scenario"]
    technique = TECHNIQUES.get(scenario, "adapter")
    try:
        kind = kind_of_rows(document, source)
        answers = AnswersInPlace(kind, technique, data=source, origin=document)
        settings = {**_without_columns(document, kind), **answers.data_settings()}
    except Stop as stop:
        raise Stop(stop.text.replace(source, name)) from None
    if by_schema.has(scenario, "data.form"):
        settings |= _form(scenario, kind)
    if "description" in document.data:
        described = f"{answers.of.title} of {Path(name).name}"
        settings["description"] = (described, "what `recipe list` shows")
    changes = list(_complete(document, drafting.overrides_of(settings)))
    for index, change in enumerate(changes):
        if change.setting == "data.path":
            changes[index] = replace(change, after=name)
    return changes


def kind_of_rows(document: Document, name: str) -> str:
    """The kind of data, of `questions.toml`, by its columns. name: a file, by its whole path, or a
    data set on the hub. Raises Stop if it cannot be read."""
    scenario = document.data["scenario"]
    if scenario == "pretrain":
        return "text"
    if scenario == "image-classification":
        return "images"
    if data_file.kind_of(Path(name)) == "text":
        return "text"
    columns = drafting.columns_of(name, texts=Path(name).is_dir())
    known = {column.lower() for column in columns}
    if not known and not drafting.on_hub(name):
        return "text"
    if {BETTER, WORSE} <= known or set(LABELLED) <= known:
        return "preferences"
    if document.lookup(("data", "form")) == "prompts":
        return "prompts"
    if conversation_formats.told(columns):
        return "conversations"
    if document.lookup(("data", "songs")) is not None and "lyrics" in known:
        return "songs"
    asks = any(column in known for column in QUESTION_NAMES)
    if len(known) == 1 or ("text" in known and not asks):
        return "text"
    return "questions"


def other_model(document: Document, base: str) -> list[Override]:
    """The changes of a recipe that trains another model."""
    return _complete(document, drafting.overrides_of({"model.base": (base, "")}))


def models_here(recipe: Recipe) -> Iterator[ModelHere]:
    """The models of the catalog that this machine can train in a day as the recipe says, the
    smallest first, each with its time. Those of a machine without a GPU are few."""
    bases = drafting.small_models(recipe.document.lookup(("data", "form")) == "text")
    if not has_gpu(recipe):
        bases = bases[: drafting.MOST_TRIED_HERE]

    def run_with(base: str) -> LocalRun:
        return run_here(changed(recipe, other_model(recipe.document, base))[0])

    return drafting.trained_in_a_day(bases, run_with)


def _without_columns(document: Document, kind: str) -> dict[str, tuple[Any, str]]:
    """The removal of all settings about the columns of the old rows."""
    section = document.data.get("data") or {}
    gone = [f"data.{name}" for name in OF_COLUMNS if name in section]
    objective = document.lookup(("train", "objective"))
    if objective is not None and objective not in OBJECTIVES.get(kind, ()):
        gone.append("train.objective")
    return dict.fromkeys(gone, (None, ""))


def _form(scenario: str, kind: str) -> Mapping[str, tuple[Any, str]]:
    """The form of rows that has to be named because the scenario's default is another one."""
    default = by_schema.part(scenario, "data.form").get("default")
    if kind == "text" and default != "text":
        return {"data.form": ("text", "plain text")}
    if kind == "questions" and default == "text":
        return {"data.form": ("columns", "a question and an answer, from columns")}
    if kind == "prompts":
        return {"data.form": ("prompts", "questions whose answers rewards judge")}
    return {}


def _complete(document: Document, wishes: Iterable[Override]) -> list[Override]:
    """The changes with those that follow from them, without what the recipe says already."""
    wished = by_schema.as_text(document, wishes)
    changes = with_followers(document, [*wished, *drafting.following(document, wished)])
    problems = judge(apply(document, changes)[0])[1]
    fixes = drafting.single_fixes(problems, {change.setting for change in wished})
    if fixes:
        wished = [*wished, *fixes]
        changes = with_followers(document, [*wished, *drafting.following(document, wished)])
    return [change for change in changes if not _is_said(document, change)]


def _is_said(document: Document, change: Override) -> bool:
    path = path_of(change.setting)
    if change.after is None:
        return path not in document.keys
    return bool(document.lookup(path) == change.after)
