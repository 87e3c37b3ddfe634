"""A recipe, frozen, with every default filled in."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from runner.catalog import Model
from runner.plan import claim_of
from runner.recipe.document import Document, NoteOptions, Path_, ProblemOptions, dotted, path_of
from runner.recipe.stages import PRETRAIN, STAGES, path_in
from runner.tools import packaged
from runner.tools.files import Record, content_hash, is_text_file, remote
from runner.tools.problem import Problem, Stop, shortened
from runner.tools.settings import Schema, Section, Settings

if TYPE_CHECKING:
    from runner.recipe.sections import ImageCodeFromGit, Nodes, Openshift, Sections
else:
    Sections = object

# Settings that cannot change a result, and those within sections.
_OUTSIDE = packaged.toml(__file__, "outside.toml")
OUTSIDE_RESULT = _OUTSIDE["settings"]
_OUTSIDE_IN = _OUTSIDE["within"]
# the option that puts a real model in the place of a rehearsal's twin, as `by` of its Override
REAL = "--model"
DEMO_QUESTIONS = ("questions", "categories")  # settings of the section `demo` that name questions


@dataclass(frozen=True)
class Override(Record):
    """One setting that differs from the file. setting: dotted; before, after: its values, None for
    none; by: the option or variable that sets it; why: one sentence."""

    setting: str = ""
    before: Any = None
    after: Any = None
    by: str = ""
    why: str = ""

    @property
    def path(self) -> tuple[str | int, ...]:
        return path_of(self.setting)

    def __str__(self) -> str:
        reason = self.why or self.by
        return f"{self.setting}: {_shown(self.before)} → {_shown(self.after)}  ({reason})"


def _shown(value: object) -> str:
    if isinstance(value, float):
        text = f"{value:g}"
    elif isinstance(value, bool | list | dict):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = "unset" if value is None else str(value)
    return shortened(text, 60)


def with_defaults(value: object, schema: Schema) -> Any:
    """A copy of `value` with the schema's defaults and sections, except those that are a request
    (`x-only-written`)."""
    if isinstance(value, list) and schema.get("type") == "array":
        return [with_defaults(item, schema.get("items", {})) for item in value]
    if isinstance(value, float) and value.is_integer() and schema.get("type") == "integer":
        return int(value)  # JSON Schema counts 4.0 as a whole number
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    if "x-own-recipe" in schema:
        properties = {}
    else:
        properties = schema.get("properties", {})
    for key, part in properties.items():
        if key in value:
            filled[key] = with_defaults(value[key], part)
            continue
        default = _default(part, filled, value)
        if default is not _NO_DEFAULT:
            filled[key] = default
    return filled


_NO_DEFAULT = object()  # the default of some settings is None


def _default(part: Schema, filled: Section, written: Section) -> Any:
    """The default of a setting that no line gives. part: its schema; filled: the settings before it
    in its section, with defaults; written: those with a line."""
    condition = part.get("x-default-if")
    if condition:
        setting, *pairs = condition
        for setting_value, default in zip(pairs[::2], pairs[1::2], strict=True):
            if filled.get(setting) == setting_value:
                return _NO_DEFAULT if default is None else default
    if "default" in part and part.get("x-default-unless") not in written:
        return with_defaults(part["default"], part)
    half = part.get("x-default-twice")
    if half:
        if isinstance(filled[half], int | float):
            return 2 * filled[half]
        return filled[half]
    is_request = part.get("required") or part.get("x-only-written")
    if part.get("type") == "object" and not is_request:
        return with_defaults({}, part)
    return _NO_DEFAULT


# The kinds of rows of a recipe of one stage, and the settings of `data` that show the kind.
CONVERSATIONS, SONGS, TEXT = "conversations", "songs", "text"
# LABELS: rows with one answer, and a label whether it is good.
PREFERENCES, LABELS, PROMPTS = "preferences", "labels", "prompts"
_SHOWS_ROWS = {
    **dict.fromkeys(("completion", "label"), LABELS),
    **dict.fromkeys(("prompt", "chosen", "rejected"), PREFERENCES),
    "text": TEXT,
    **dict.fromkeys(("form", "question", "answer", "answered_by"), CONVERSATIONS),
}


def rows_of(recipe: Section, schema: Schema) -> str:
    """The kind of rows of a recipe's `data`, from its settings; empty if the scenario of this
    schema has one kind."""
    properties = schema["properties"].get("data", {}).get("properties", {})
    if "x-by-rows" not in properties.get("form", {}):
        return ""
    data = _section(recipe, "data")
    if data.get("songs") is not None:
        return SONGS
    objective = _section(recipe, "train").get("objective")
    sections = _with_sets(data)
    likely_rows = _rows_by_settings(sections)
    form = data.get("form")
    if not form and likely_rows:
        form = likely_rows[0]
    if not form and objective == "kto":
        form = PREFERENCES
    if not form and any(is_text_file(Path(str(section.get("path")))) for section in sections):
        form = TEXT
    if not form:
        form = properties["form"]["default"]
    if form in (PREFERENCES, LABELS):
        if objective == "kto" or (objective is None and LABELS in likely_rows):
            return LABELS
        return PREFERENCES
    if form in (TEXT, PROMPTS):
        return str(form)
    return CONVERSATIONS


def _section(recipe: Section, name: str) -> Section:
    """A section as it is written; empty if it is missing, or no section."""
    section = recipe.get(name)
    if isinstance(section, Mapping):
        return section
    return {}


def _with_sets(data: Section) -> list[Section]:
    """The section `data` as it is written, and its `sets`."""
    sets = data.get("sets")
    if not isinstance(sets, list):
        return [data]
    return [data, *(section for section in sets if isinstance(section, Mapping))]


def _rows_by_settings(sections: list[Section]) -> list[str]:
    """The kinds of rows that the settings of data sets show, the most reliable first."""
    kinds = list[str]()
    for section in sections:
        for name, rows in _SHOWS_ROWS.items():
            if section.get(name) is not None:
                kinds.append(rows)
    return kinds


def sets_of(home: Path_, data: Settings) -> list[tuple[Path_, Settings]]:
    """The data sets of a section at the path `home`, each with its path and its settings: its own,
    and the section's for the others. A section that names one data set is that set itself."""
    sets = enumerate(data.get("sets") or ())
    return [
        ((*home, "sets", index), data.with_own(set_settings)) for index, set_settings in sets
    ] or [(home, data)]


@dataclass(frozen=True)
class Recipe(Sections):
    """A recipe, as far as its schema accepts it. Sections are read as attributes:
    `recipe.train.epochs`."""

    document: Document  # as written, for the place of each setting
    settings: Settings  # with defaults
    model_facts: Model | None  # facts about its base model, if there are any
    # If it has `stages`: each of them as a recipe of its own, by name.
    stage_recipes: Mapping[str, Recipe] = field(default_factory=dict)
    is_stage: bool = False  # whether it is one of the stages of another recipe
    earlier: tuple[Recipe, ...] = ()  # if it is a stage: the recipes of the stages before it

    if not TYPE_CHECKING:

        def __getattr__(self, key: str) -> Any:
            if key.startswith("_"):
                raise AttributeError(key)
            self.__dict__[key] = value = getattr(self.settings, key)
            return value

    def problem(
        self,
        setting: Path_ | str,
        message: str,
        hint: str = "",
        **options: Unpack[ProblemOptions],
    ) -> Problem:
        """A Problem at a setting, by its path or dotted name."""
        if isinstance(setting, str):
            setting = path_of(setting)
        return self.document.problem(setting, message, hint, **options)

    def note(
        self, setting: Path_ | str, message: str, hint: str = "", **options: Unpack[NoteOptions]
    ) -> Problem:
        return self.problem(setting, message, hint, severity="note", **options)

    @property
    def rows(self) -> str:
        """The kind of rows of `data`, if recipes of its scenario can have several kinds (see
        `rows_of`)."""
        data = self.settings["data"]
        if data.get("form") == PROMPTS:
            return PROMPTS
        rows_by_setting = {"songs": SONGS, "text": TEXT, "chosen": PREFERENCES, "label": LABELS}
        for name, rows in rows_by_setting.items():
            if name in data:
                return rows
        return CONVERSATIONS

    @property
    def makes_model(self) -> bool:
        """Whether it makes its model from random weights, by pretraining."""
        return bool(self.scenario == PRETRAIN)

    @property
    def pretraining(self) -> Recipe | None:
        """The recipe that makes the model from random weights: this one, or one of its stages."""
        for recipe in (self, *self.stage_recipes.values()):
            if recipe.makes_model:
                return recipe
        return None

    @property
    def pretrained(self) -> bool:
        """Whether it is a stage of a model that an earlier stage makes from random weights."""
        return any(stage.makes_model for stage in self.earlier)

    @property
    def scores(self) -> bool:
        """Whether it trains a reward model, which gives answers scores and writes none."""
        return (self.settings.get("train") or {}).get("objective") == "reward"

    @property
    def by_features(self) -> bool:
        """Whether texts of the model are compared with the data's by their features (EBFT)."""
        return (self.settings.get("train") or {}).get("objective") == "ebft"

    def of_stage(self, name: str) -> Recipe:
        """The recipe of a stage: this one, unless it has `stages`."""
        return self.stage_recipes.get(self._listed(name), self)

    def _listed(self, stage: str) -> str:
        """The name, in the recipe's list, of a stage of the plan; pretraining has one for each
        context length."""
        if stage.startswith(f"{PRETRAIN}-"):
            for name, stage_recipe in self.stage_recipes.items():
                if stage_recipe.makes_model:
                    return name
        return stage

    def setting_of(self, stage: str, setting: str) -> str:
        """The dotted name of a stage's setting in this recipe. setting: in the stage's own (see
        `of_stage`)."""
        name = self._listed(stage)
        if name not in self.stage_recipes:
            return setting
        index = list(self.stage_recipes).index(name)
        return dotted(path_in(self.document, index, path_of(setting)))

    @cached_property
    def file(self) -> Path:
        return Path(self.document.file)

    @cached_property
    def folder(self) -> Path:
        """The folder that the recipe's relative paths start from."""
        return self.file.parent

    @property
    def facts(self) -> Model:
        """The facts about the base model. Raises Stop if it is unknown."""
        if self.model_facts is None:
            raise Stop(
                self.document.problem(
                    ("model", "base"),
                    f"The model `{self.model.base}` is unknown.",
                    "Name one that `recipe check` accepts.",
                )
            )
        return self.model_facts

    @property
    def model_revision(self) -> str:
        """The base model's branch, tag or commit on the hub; the commit of a lock file, if there is
        one."""
        return (self.model_facts and self.model_facts.revision) or self.model.revision

    @property
    def base_folder(self) -> Path | None:
        """The base model's folder, relative to the recipe's; None if the base model is not a
        folder."""
        facts = self.model_facts
        name = self.model.base
        is_local = facts and facts.source == f"{name}/config.json" and not remote(name)
        if is_local:
            return self.folder / name
        return None

    @property
    def code_from_git(self) -> ImageCodeFromGit | None:
        """`url` and `commit` of the code that pods clone; None if the recipe names none."""
        image = self.settings.get("image") or {}
        code: ImageCodeFromGit | None = image.get("code_from_git")
        return code

    @cached_property
    def sections(self) -> dict[str, Settings]:
        """The recipe's sections by name, without those that the schema refused."""
        return self.settings.sections()

    @cached_property
    def data_sections(self) -> tuple[tuple[Path_, Settings], ...]:
        """Each section `data`, the recipe's own or those of its stages, with its path, unless the
        schema has refused it."""
        homes: dict[Path_, Any] = {("data",): self.sections.get("data")}
        for index, stage_recipe in enumerate(self.stage_recipes.values()):
            homes[(STAGES, index, "data")] = stage_recipe.settings.get("data")
        return tuple((home, data) for home, data in homes.items() if isinstance(data, Settings))

    def longest_row(self, home: Path_) -> tuple[Path_, int | None]:
        """The setting that limits rows of the data section or set at `home`, and its number of
        tokens, or None."""
        if home[0] == STAGES:
            index = int(home[1])
            stage_recipe = list(self.stage_recipes.values())[index]
            setting, limit = stage_recipe.longest_row(home[2:])
            return path_in(self.document, index, setting), limit
        section = self.settings.get("model")
        if isinstance(section, Settings):
            limit = section.get("sequence_len")
        else:
            limit = None
        return ("model", "sequence_len"), limit

    def data_sets(self) -> Iterator[tuple[Path_, Settings]]:
        """Every data set of the recipe, with its path and its settings."""
        for home, data in self.data_sections:
            yield from sets_of(home, data)

    def data_files(self) -> Iterator[tuple[Path_, Settings, Path]]:
        """Every data set that is a file on this machine, with its path, its settings and the
        file."""
        for home, data in self.data_sets():
            name = data.get("path")
            if not name:
                continue
            file = self.folder / name
            if file.is_file():
                yield home, data, file

    def local_files(self) -> Iterator[tuple[Path_, str]]:
        """This machine's files and folders that training needs, each with the path of its
        setting."""
        for setting, name in self._sources():
            if not self.elsewhere(name):
                yield setting, name

    def addresses(self) -> Iterator[tuple[Path_, str]]:
        """The addresses of data and models on servers for files, in the same form."""
        for setting, name in self._sources():
            if remote(name):
                yield setting, name

    def _sources(self) -> list[tuple[Path_, str]]:
        sources = list[tuple[Path_, str]]()
        for home, data in self.data_sets():
            if data.get("path"):
                sources.append(((*home, "path"), data["path"]))
        for home, data in self.data_sections:
            for setting in ("validation_path", "packed"):
                if data.get(setting):
                    sources.append(((*home, setting), data[setting]))
        model = self.settings.get("model", {}).get("base")
        if model and (self.base_folder or remote(model)):
            sources.append((("model", "base"), model))
        tokenizer = (self.settings.get("tokenizer") or {}).get("base")
        if tokenizer and (self.folder / tokenizer).is_dir():
            sources.append((("tokenizer", "base"), tokenizer))
        return sources

    def on_claim(self, path: str) -> bool:
        """Whether a path is on a claim, so that it outlives the pods."""
        site: Openshift | None = self.settings.get("openshift")
        return site is not None and claim_of(path, site.claims) is not None

    def elsewhere(self, path: str) -> bool:
        """Whether a path is not meant for this machine: it is on a claim, or an address."""
        return remote(path) or self.on_claim(path)

    @cached_property
    def gpu_counts(self) -> tuple[int, ...]:
        """The number of GPUs of each machine; plain machines (`nodes`) may have different
        numbers."""
        plain: Nodes | None = self.settings.get("nodes")
        if plain:
            return tuple(len(machine.gpus) for machine in plain.machines)
        return (self.machines.gpus_per_node,) * self.machines.nodes

    @property
    def demo_questions(self) -> tuple[tuple[str | None, str], ...]:
        """The questions before and after training, each with its category or None."""
        demo = self.settings.get("demo") or {}
        plain = ((None, question) for question in demo.get("questions") or ())
        of_categories = list[tuple[str | None, str]]()
        for category in demo.get("categories") or ():
            for question in category.questions:
                of_categories.append((category.name, question))
        return (*plain, *of_categories)

    def place_of_question(self, question: str) -> Path_:
        """The path of a question of the demo; that of the section, if it was set elsewhere."""
        question_paths = (path for path in self.document.values if path[:1] == ("demo",))
        for path in question_paths:
            if self.document.lookup(path) == question:
                return path
        return ("demo",)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of every setting that can change what is trained."""
        settings = {}
        for key, value in self.settings.plain().items():
            if key not in OUTSIDE_RESULT:
                settings[key] = value
        for section, names in _OUTSIDE_IN.items():
            values = settings.get(section)
            if isinstance(values, dict):
                settings[section] = _without(values, names)
                sets = values.get("sets")
                if sets:
                    settings[section]["sets"] = [_without(data_set, names) for data_set in sets]
        if STAGES in settings:
            settings[STAGES] = [stage.fingerprint for stage in self.stage_recipes.values()]
        # Equal counts are in `machines` already.
        if len(set(self.gpu_counts)) > 1:
            settings["gpu_counts"] = self.gpu_counts
        if self.model_facts and self.model_facts.revision:
            settings["commit"] = self.model_facts.revision
        return content_hash(settings)


def _without(section: Section, names: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in names}
