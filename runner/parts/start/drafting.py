"""A new recipe: answers about data, model and machines, the settings that follow, and a copy of a
starter with them."""

import filecmp
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from itertools import islice, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, NamedTuple

from runner import catalog, scenarios
from runner.catalog.hardware import NO_GPU
from runner.catalog.models import why_no_hub
from runner.check import by_schema, copying, data_file
from runner.check.rules import unknown_model
from runner.check.validate import judge, with_followers
from runner.data import (
    RenderedExample,
    chat_logs,
    conversation_formats,
    data_sets,
    reading,
    row_files,
    rows,
    spreadsheets,
    text_sides,
)
from runner.data.chat_exports import CHAT_COLUMN
from runner.data.columns import (
    ANSWER_NAMES,
    QUESTION_NAMES,
    LikelyPair,
    likely_pair,
    longest_text,
    value_of,
)
from runner.data.html_text import holds_html
from runner.data.row_files import DataRow
from runner.data.support import Support
from runner.parts.planner import forecast, parameters, recipe_offers, samples, storage
from runner.parts.planner.forecast import Forecast
from runner.parts.planner.planned import Planned
from runner.parts.start import header
from runner.parts.start.commands.models import WAYS, Need, needs_of, newest_first
from runner.plan import RowsRequest
from runner.recipe import lock, templates, units
from runner.recipe import overrides as changing
from runner.recipe.document import Document, leaves, path_of
from runner.recipe.reading import parse, read
from runner.recipe.recipe import DEMO_QUESTIONS, Override, Recipe
from runner.run import this_machine
from runner.run.run_folder import folder
from runner.run.this_machine import LocalRun
from runner.tools import packaged
from runner.tools.files import write_text
from runner.tools.problem import Problem, Stop, Unreachable, did_you_mean, errors_of, listed
from runner.tools.settings import Section
from runner.trainer.records import GLANCE, evenly

TABLES = packaged.toml(__file__, "questions.toml")


@dataclass(frozen=True)
class Technique:
    """A way to train a model, with the fields of `questions.toml`."""

    starter: str
    ways: tuple[str, ...] = ()
    of_rows: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    words: str = ""
    least: int = 1
    places: Mapping[str, str] = field(default_factory=lambda: {"data": "data", "text": "data.text"})


class DataKind(NamedTuple):
    """The kind of a person's data, or a starter to copy, with the fields of `questions.toml`."""

    title: str
    rows: str
    techniques: tuple[str, ...]
    keeps: bool = False


TECHNIQUES = {name: Technique(**facts) for name, facts in TABLES["techniques"].items()}
KINDS = {name: DataKind(**facts) for name, facts in TABLES["kinds"].items()}
PLACES = {"here": "", "machines": "nodes", "cluster": "openshift"}
# The place that each section is for, if it is for one alone.
PLACE_OF_SECTION = {
    "nodes": "machines",
    **dict.fromkeys(("openshift", "image", "serve"), "cluster"),
}
WITH_ANSWERS = ("questions", "conversations")  # the kinds of rows whose answers a run can grade
# The kinds of rows that begin with plain text.
TEXTS = ("text", "text-questions", "text-questions-preferences")
SMALL_MODEL = "small"  # the packaged model, which is here after the installation
IN_4_BITS = "the model in 4 bits, so that it fits the GPU"  # why an adapter is a QLoRA
MOST_TRIED_HERE = 9  # models whose time on this machine's CPU is estimated
A_DAY = 24 * 3600
USUAL_HELD_OUT = 0.1  # the share of rows that a new recipe holds back
UNNAMED_COLUMN = "text"  # of a text file, which has no columns
SHARED = "/shared/models"  # the default folder for results on plain machines
COLUMNS: Mapping[str, list[str]] = TABLES["columns"]
_, BETTER, WORSE = PAIR = COLUMNS["preferences"]
LABELLED = COLUMNS["labelled"]
ABOUT: Mapping[str, list[str]] = TABLES["about"]
# The question for a song that is a single column, without words around it, or none.
_ONE_COLUMN = re.compile(r"(\[[^\[\]]*\])?")
SONG = "Generate a song verse in the style of [{artist}] in the genre of [{genre}]."
# From this size on, a file is not prepared only to find questions; this many of its rows are read
# instead.
LARGE, AMONG = 100_000_000, 50
SAMPLED_ROWS = 300  # of a file, to find the columns of questions and answers
DRAWN = 90_000  # the songs that are drawn if the rows of a data set were not counted
# The name of a data set on the hub, and endings that such names do not have.
_HUB = re.compile(r"(?!\.)[\w.-]+/[\w.-]+(:[\w.-]+)?")


def guess(names: Sequence[str], sample: Sequence[DataRow]) -> LikelyPair | None:
    """Templates of the question and of the answer, of two or more columns: by their names and what
    is in them; by names alone where no row can be read. None if what is in the columns is no
    question with an answer."""
    if sample:
        return likely_pair(names, sample)
    question, answer = by_names(names)
    return LikelyPair(f"[{question}]", f"[{answer}]")


def by_names(names: Sequence[str]) -> tuple[str, str]:
    """The columns of the question and of the answer with usual names, else the first and the
    last."""
    known = {name.lower(): name for name in names}
    answer = next((known[name] for name in ANSWER_NAMES if name in known), names[-1])
    others = [name for name in names if name != answer]
    asking = [known[name] for name in QUESTION_NAMES if known.get(name) in others]
    return (asking or others)[0], answer


def on_hub(name: str) -> bool:
    """Whether a name is a data set on the hub, and not a file here."""
    like_a_name = bool(_HUB.fullmatch(name)) and not name.lower().endswith(rows.ENDINGS)
    return like_a_name and not Path(name).expanduser().exists()


def source(home: str, name: str) -> dict[str, tuple[Any, str]]:
    """The settings for the source of rows, in a section of data."""
    if not on_hub(name):
        return {f"{home}.path": (name, "your own file, from this folder")}
    hub, _, subset = name.partition(":")
    named = {f"{home}.hub": (hub, "the data set on the hub")}
    return named | ({f"{home}.subset": (subset, "its part")} if subset else {})


def _preferred(home: str, name: str, own: tuple[str, ...] = ()) -> dict[str, tuple[Any, str]]:
    """The settings for the columns of preferences, in their section. own: templates of the question
    and both answers; empty if the person has not named them. Raises Stop if the data has other
    columns, without `own`."""
    known = {column.lower(): column for column in columns_of(name)}
    if home == "data" and set(LABELLED) <= set(known) and not any(own):
        labelled = {f"{home}.{setting}": (f"[{known[setting]}]", "") for setting in LABELLED}
        return {
            **labelled,
            "train.objective": ("kto", "each answer has a label whether it is good"),
        }
    asks = next(
        (
            column
            for column in (*QUESTION_NAMES, *known)
            if column in known and column not in (BETTER, WORSE)
        ),
        "",
    )
    if not asks and _holds_turns(name, known.get(BETTER, "")):
        asks = BETTER  # whose turns begin with the question
    columns = [known.get(column, "") for column in (asks, BETTER, WORSE)]
    if known and not all(columns):
        if not own or len(known) < 3:
            there = listed(known.values())
            raise Stop(
                f"The columns of `{name}` are {there}.",
                f"Preferences have a column for the question, `{BETTER}` and `{WORSE}`.",
            )
        columns = [column for column in known.values() if f"[{column}]" not in own]
    rest = (f"[{column}]" for column in columns if column)
    named = [template or next(rest, "") for template in own or ("", "", "")]
    preferred = {}
    for setting, text in zip(PAIR, named, strict=True):
        if text:
            preferred[f"{home}.{setting}"] = (text, "")
    return preferred


def _holds_turns(name: str, column: str) -> bool:
    """Whether a column of a file has lists of turns."""
    if not column:
        return False
    sample = sample_of(name)
    return bool(sample) and isinstance(sample[0].get(column), list)


def columns_of(name: str, texts: bool = False, sheet: str | None = None) -> list[str]:
    """The columns of a file or of a data set on the hub; none for plain text, or if the hub does
    not answer. texts: whether files have texts, or folders texts or images; sheet: of a
    spreadsheet. Raises Stop if they cannot be read."""
    file = Path(name).expanduser()
    if on_hub(name):
        hub, _, subset = name.partition(":")
        known: list[str] = catalog.dataset(name).get("columns", [])
        asked = data_sets.DataSource(
            hub=hub, revision="main", subset=subset or None, split="train", path=None
        )
        with suppress(Unreachable):
            if known or not find_spec("datasets") or why_no_hub():
                return known
            return data_sets.hub_columns(asked)
        return []
    if not file.exists():
        refusal = rows.refusal_of_address(name)
        if refusal:
            raise Stop(*refusal)
        hint = f"{rows.hint_of_near_file(file)}Check the path; it is relative to this folder."
        hub, colon, subset = name.partition(":")
        if "/" not in hub and (full_name := catalog.near_dataset(hub)):
            hint = f"Did you mean the data set `{full_name}{colon}{subset}`?"
        raise Stop(
            f"The file `{file}` does not exist.",
            f"{hint} A data set on the hub is OWNER/NAME, or OWNER/NAME:SUBSET.",
        )
    if texts and data_file.holds_plain_texts(file):
        return []
    try:
        return rows.columns(file, sheet=sheet)
    except row_files.Unreadable as reason:
        raise Stop(f"`{file}` cannot be read: {reason}", reason.hint) from None


def sample_of(name: str, sheet: str | None = None) -> list[DataRow]:
    """The first rows of a file or a folder; none if they cannot be read quickly. sheet: of a
    spreadsheet."""
    file = Path(name).expanduser()
    is_large = file.is_file() and file.stat().st_size > LARGE
    is_slow = is_large and file.suffix.lower() not in rows.ROW_BY_ROW
    if on_hub(name) or not file.exists() or is_slow:
        return []
    try:
        return rows.first(file, SAMPLED_ROWS, sheet=sheet)
    except (row_files.Unreadable, Stop, OSError, ValueError):
        return []  # the check of the copy reports it


@dataclass(frozen=True)
class Answers:
    """Missing answers are empty. sheet: of a spreadsheet. question, answer: templates of columns;
    column: of documents. answered_by: a person of a chat. questions, preferences: of later stages.
    hold_back: yes or no. gpus: in each machine. numbers: of the GPUs in plain machines; addresses:
    of these machines, the main one first; results: a folder that they share. prompt, chosen,
    rejected: of preferences. sets: the settings of `--set`, which win over all answers."""

    kind: str = "questions"
    technique: str = ""
    data: str = ""
    sheet: str = ""
    question: str = ""
    answer: str = ""
    answered_by: str = ""
    prompt: str = ""
    chosen: str = ""
    rejected: str = ""
    instruction_form: str = ""
    column: str = ""
    questions: str = ""
    preferences: str = ""
    system_prompt: str = ""
    hold_back: str = ""
    model: str = ""
    where: str = "here"
    gpu: str = ""
    gpus: int = 1
    numbers: tuple[int, ...] = ()
    machines: int = 1
    addresses: tuple[str, ...] = ()
    results: str = ""
    namespace: str = ""
    sets: tuple[Override, ...] = ()
    kinds: ClassVar[Mapping[str, DataKind]] = KINDS
    yes_or_no: ClassVar[tuple[str, str]] = ("yes", "no")

    @property
    def count(self) -> tuple[int, int]:
        """Machines, and GPUs in each."""
        return len(self.addresses) or self.machines, len(self.numbers) or self.gpus

    @property
    def of(self) -> DataKind:
        return KINDS[self.kind]

    @property
    def way(self) -> Technique:
        named = self.technique or self.of.techniques[0]
        return TECHNIQUES[TECHNIQUES[named].of_rows.get(self.of.rows, named)]

    @cached_property
    def document(self) -> Document:
        return read(packaged.named()[self.way.starter])

    @property
    def without_place(self) -> "Answers":
        """These answers for this machine, without the settings for another place."""
        sets = []
        for change in self.sets:
            if change.path[0] not in PLACE_OF_SECTION:
                sets.append(change)
        return replace(self, where="here", addresses=(), sets=tuple(sets))

    @property
    def places(self) -> list[str]:
        return [
            one
            for one, part in PLACES.items()
            if not part or by_schema.has(self.document.data["scenario"], part)
        ]

    def starts(self, setting: str, otherwise: object = "") -> Any:
        """The starter's value of a setting, or `otherwise`."""
        found = self.document.lookup(Override(setting).path)
        if found is None:
            return otherwise
        return found

    @property
    def base(self) -> str:
        starts_from = str(self.starts("model.base"))  # empty for a network of images
        if self.on_cpu and not self.of.keeps and starts_from:
            usual = SMALL_MODEL
        else:
            usual = self.way.model
        return self.model or usual or starts_from

    @property
    def on_cpu(self) -> bool:
        return self.gpu == NO_GPU

    @property
    def form(self) -> str | None:
        """The form of conversations, by their columns; None if it is unknown, or if the person
        names a template."""
        own = self.of.rows in WITH_ANSWERS and not (self.question or self.answer)
        if own and self.data:
            return conversation_formats.told(self.columns)
        return None

    @cached_property
    def chat(self) -> chat_logs.ChatContent | None:
        """The chat between people in a file; None for other data."""
        if self.form != CHAT_COLUMN:
            return None
        return chat_logs.chat_of(Path(self.data).expanduser())

    @property
    def speakers(self) -> Mapping[str, int]:
        """The people of a chat, each with the number of their messages; none for other data."""
        if self.chat is None:
            return {}
        return self.chat.speakers

    @property
    def likely_answerer(self) -> str:
        """The person of a chat who most often follows another; empty for other data."""
        if self.chat is None or not self.speakers:
            return ""
        return self.chat.likely_answerer

    @cached_property
    def columns(self) -> list[str]:
        return columns_of(self.data, self.of.rows in ("images", *TEXTS), self.sheet or None)

    @cached_property
    def sheets(self) -> list[str]:
        """The sheets of a spreadsheet, if their columns differ; else none."""
        file = Path(self.data).expanduser()
        if row_files.ending_of(file) not in spreadsheets.ENDINGS or not file.is_file():
            return []
        try:
            tables = spreadsheets.tables_of(file)
        except row_files.Unreadable:
            return []  # the answer that names the file is refused
        if len({table.header.names for table in tables}) == 1:
            return []
        return [table.sheet for table in tables]

    @cached_property
    def sample(self) -> list[DataRow]:
        """Some rows of a file that is here; none of a data set on the hub, or of a large file that
        can only be read whole."""
        if not self.data:
            return []  # the starter's own rows are not asked about
        return sample_of(self.data, self.sheet or None)

    @property
    def first_pair(self) -> tuple[str, str] | None:
        """The first question with its answer, as the model learns them; None without a row that has
        both."""
        question = self.question or self.guessed[0]
        answer = self.answer or self.guessed[1]
        return data_file.first_pair(self.sample, question, answer)

    @property
    def lacks_columns(self) -> bool:
        """Whether the columns of questions and answers are still unnamed, and what is in them does
        not say which they are."""
        needs_them = self.of.rows in ("questions", "prompts", "songs") and not self.form
        is_named = self.question and self.answer
        return needs_them and bool(self.columns) and not is_named and not all(self.guessed)

    def learned(self) -> tuple[str, str]:
        """Templates of the question and the answer; both empty for unknown columns of a data set on
        the hub. Raises Stop if the columns of a file are unnamed, and what is in them does not say
        which they are."""
        if self.lacks_columns:
            raise Stop(
                f"No two columns of `{self.data}` look like questions and their answers. Its columns are {listed(self.columns)}.",
                "Name them with `--question` and `--answer`, or write the questions into one column and the answers into another.",
            )
        return self.question or self.guessed[0], self.answer or self.guessed[1]

    def require_columns(self) -> None:
        """Raises Stop if the data cannot have a column of questions and one of their answers."""
        if not self.columns and on_hub(self.data):
            return
        known = {name.lower(): name for name in self.columns}
        if len(known) < 2:
            if known:
                has = f"only the column {listed(self.columns)}"
            else:
                has = "no column"
            raise Stop(
                f"`{self.data}` has {has}, but questions with answers need two.",
                "Name another file, or choose plain text.",
            )
        if {BETTER, WORSE} <= set(known):
            raise Stop(
                f"The rows of `{self.data}` are preferences: each question has an answer to prefer, `{known[BETTER]}`, and one to avoid, `{known[WORSE]}`. As questions and answers, both would be learned.",
                "A model learns from them which answers people prefer (DPO). Choose `preferences` as the kind of your data (`--what`).",
            )

    @cached_property
    def guessed(self) -> tuple[str, str]:
        """Templates for the question and the answer, by the columns; empty if these do not say
        which they are. Raises Stop if there are not two columns."""
        if not self.columns and on_hub(self.data):
            return "", ""
        self.require_columns()
        known = {name.lower(): name for name in self.columns}
        others = [known[name] for name in known if name not in ("artist", "genre")]
        if self.of.rows == "songs" and len(known) == len(others) + 2 and others:
            words = longest_text(others, self.sample) or others[-1]
            return SONG.format(**known), f"[{words}]"
        return guess(self.columns, self.sample) or ("", "")

    @property
    def holds_html(self) -> bool:
        """Whether questions or answers have tags of HTML."""
        named = templates.columns(self.question or self.guessed[0])
        named += templates.columns(self.answer or self.guessed[1])
        values = [str(value_of(row, column)) for row in self.sample for column in named]
        return any(map(holds_html, values))

    @property
    def names_answers(self) -> bool:
        """Whether the columns say which answer is better, or are unknown."""
        known = {name.lower() for name in self.columns}
        return not known or {BETTER, WORSE} <= known or set(LABELLED) <= known

    @property
    def holding_text(self) -> str:
        """The column of documents: a usual name, else the first column; `text` for an unknown data
        set."""
        usual = "text" if on_hub(self.data) else ""
        return next(
            (name for name in ("text", "content", *self.columns) if name in self.columns), usual
        )

    @property
    def reads_otherwise(self) -> bool:
        """Whether the questions for songs have another form than in the starter."""
        plain = not on_hub(self.data) and _ONE_COLUMN.fullmatch(self.question)
        return bool(plain) and not first_rows("new", replace(self, instruction_form=""), 1)[1]

    def template(self, text: str) -> str:
        """A typed template: with brackets, or the name of one column. Raises Stop if a column does
        not exist."""
        if "[" in text:
            whole = text
        else:
            whole = f"[{text.strip()}]"
        for name in templates.columns(whole) if self.columns else ():
            if name not in self.columns:
                hint = f"{did_you_mean(name, self.columns)}Its columns are {listed(self.columns)}."
                raise Stop(f"`{self.data}` has no column `{name}`.", hint)
        return whole

    def wishes(self) -> list[Override]:
        """The changes that these answers make to the starter. Raises Stop if the columns of a file
        are others."""
        said = self.data_settings() if self.data else {}
        if self.questions:
            home = self.way.places["questions"]
            own = Answers("questions", data=self.questions)
            told = {}
            for setting, value in own.data_settings().items():
                if value[0] is not None:
                    told[setting] = value
            said |= {home + setting.removeprefix("data"): value for setting, value in told.items()}
            said |= (
                dict.fromkeys((f"{home}.question", f"{home}.answer"), (None, ""))
                if own.form
                else {}
            )
        if self.preferences:
            home = self.way.places["preferences"]
            said |= source(home, self.preferences) | _preferred(home, self.preferences)
        said |= self._of_place()
        if self.system_prompt:
            said["data.system_prompt"] = (
                self.system_prompt,
                "who the model is, in training and when you ask it",
            )
        if self.hold_back == "no":
            said["data.validation_share"] = (0, "no row is held back: the model learns all of them")
        if self.model or self.way.model:
            said["model.base"] = (self.base, "")
        return overrides_of(said)

    def data_settings(self) -> dict[str, tuple[Any, str]]:
        """The settings for the source, the form and the columns of the rows, each with its value
        and why. Raises Stop if the columns do not fit the kind of data."""
        home = self.way.places["data"]
        said = source(home, self.data)
        if self.sheet:
            said[f"{home}.sheet"] = (self.sheet, "the sheet of the spreadsheet")
        if self.of.rows in TEXTS and (column := self.column or self.holding_text):
            said[self.way.places["text"]] = (column, "the column with the text")
        gone = dict.fromkeys(("data.question", "data.answer"), (None, ""))
        if self.of.rows == "preferences":
            form = {"data.form": ("preferences", "what people think of answers")}
            return (
                said
                | gone
                | form
                | _preferred("data", self.data, (self.prompt, self.chosen, self.rejected))
            )
        if self.of.rows in WITH_ANSWERS and set(LABELLED) <= set(self.columns):
            raise Stop(
                f"The answers of `{self.data}` have a label whether they are good. As questions and answers, bad ones would be learned.",
                "A model learns from both (KTO). Choose `preferences` as the kind of your data (`--what`).",
            )
        if self.of.rows == "prompts":
            prompt, right = self.learned()
            said["data.system_prompt"] = (
                self.starts("data.system_prompt"),
                "also says where the rewards look",
            )
            if prompt and right:
                said["data.prompt"] = (prompt, "what the model is asked")
                said["data.answer"] = (right, "what the rewards compare with")
            return said
        if self.of.rows == "text":
            said |= self._text_settings()
        if self.of.rows == "text" and self.starts("data.question"):
            return said | gone | {"data.form": ("text", "plain text")}
        if self.of.rows not in ("questions", "conversations", "songs"):
            return said
        if self.speakers:
            answerer = self.answered_by or self.likely_answerer
            said["data.answered_by"] = (answerer, "the model learns to write like this person")
        if self.form or self.of.rows == "conversations":
            return said | gone | {"data.form": (self.form, "the form of its rows")}
        self.require_columns()
        question, answer = self.learned()
        if self.of.rows == "questions" or not _ONE_COLUMN.fullmatch(question):
            asked: dict[str, tuple[Any, str]] = {}
            if question and answer:
                asked = {"data.question": (question, ""), "data.answer": (answer, "")}
            if self.holds_html:
                asked["data.strip_html"] = (True, "leaves out the tags of HTML")
            return said | asked | ({"data.songs": (None, "")} if self.starts("data.songs") else {})
        facts = catalog.dataset(self.data)
        if on_hub(self.data):
            there = DRAWN
        else:
            file = Path(self.data).expanduser()
            there = samples.sample(file, sheet=self.sheet or None).count
        songs = {
            name: column.strip("[]")
            for name, column in (("instruction", question), ("lyrics", answer))
            if column
        }
        songs |= {"instruction_form": self.instruction_form} if self.instruction_form else {}
        drawn = {**songs, "count": max(2, min(there, facts.get("rows", there)))}
        if self.starts("data.songs"):
            return said | {
                f"data.songs.{name}": (value, "of your songs") for name, value in drawn.items()
            }
        if on_hub(self.data):
            why = "some are drawn"
        else:
            why = "the number of songs; here all of them"
        return said | gone | {"data.songs": (drawn, why)}

    def _block_tokens(self, share: float) -> int | None:
        """The length of blocks of which a text here has some for training, and for validation if a
        share is held back; None if it is too short."""
        longest: int = self._setting_or_default("model.sequence_len")
        if self._texts is None:
            return longest
        sides = text_sides.split(self._texts, share, self._setting_or_default("data.seed"))
        return text_sides.fitting_block(sides, longest)

    @cached_property
    def _texts(self) -> list[str] | None:
        """The documents of a small text here; None if it is large, or on the hub."""
        if on_hub(self.data):
            return None
        column = self.column or self.holding_text or UNNAMED_COLUMN
        return text_sides.texts_of(Path(self.data).expanduser(), column, self.sheet or None)

    def _text_settings(self) -> dict[str, tuple[Any, str]]:
        """The settings with which a short text here has blocks for training and for validation,
        each with its value and why. Raises Stop if it has too little text."""
        settings = dict[str, tuple[Any, str]]()
        block_tokens = self._block_tokens(USUAL_HELD_OUT)
        if block_tokens is None:
            settings["data.validation_share"] = (None, "too little text to hold some of it back")
            block_tokens = self._block_tokens(0)
        if block_tokens is None:
            raise Stop(f"`{self.data}` is too short to train on.", "Give more text.")
        if block_tokens < self._setting_or_default("model.sequence_len"):
            why = "blocks that are short enough for the text"
            settings["model.sequence_len"] = (block_tokens, why)
        return settings

    def _setting_or_default(self, setting: str) -> Any:
        """The starter's value of a setting, or the schema's."""
        scenario = self.document.data["scenario"]
        return self.starts(setting, by_schema.part(scenario, setting).get("default"))

    def _of_place(self) -> dict[str, tuple[Any, str]]:
        said: dict[str, tuple[Any, str]] = {}
        if self.base:
            facts = catalog.model(self.base)
        else:
            facts = None
        if self.gpu:
            said["machines.gpu"] = (self.gpu, "")
            card = catalog.gpu(self.gpu)
            if card and not card.bf16:
                precision = card.precision(bool(facts and facts.fp16))
                said["model.precision"] = (precision, "this card does not support bf16")
        count, gpus = self.count
        if gpus != self.starts("machines.gpus_per_node", 1):
            said["machines.gpus_per_node"] = (gpus, "GPUs in each machine")
        if count != self.starts("machines.nodes", 1):
            said["machines.nodes"] = (count, "machines")
        elsewhere = []
        for section, place in PLACE_OF_SECTION.items():
            if place != self.where and self.starts(section):
                elsewhere.append(section)
        said |= dict.fromkeys(elsewhere, (None, "it runs elsewhere"))
        if self.where == "machines":
            each = []
            for address in self.addresses:
                each.append({"address": address, "gpus": list(self.numbers or range(gpus))})
            if each != self.starts("nodes.machines"):
                said["nodes.machines"] = (
                    each,
                    "the main one first, each with the numbers of its GPUs",
                )
            if self.results or not self.starts("nodes"):
                said["nodes.output_dir"] = (
                    self.results or SHARED,
                    "results, on storage that all machines share",
                )
        if self.where == "cluster":
            if facts and facts.gated:
                # The rule about gated models uses this name of the secret, too.
                said["openshift.hub_token_secret"] = (
                    "hub-token",
                    "this model needs a token for the hub",
                )
            said["openshift.namespace"] = (self.namespace, "project on the cluster")
        return said


def overrides_of(said: Mapping[str, tuple[object, str]]) -> list[Override]:
    overrides = []
    for setting, (value, why) in said.items():
        overrides.append(Override(setting, None, value, copying.NEW, why))
    return overrides


STEPS = 100  # a model hardly learns in fewer steps, so few rows get smaller batches
# What a person has chosen: no change that makes the recipe fit a GPU may replace it.
CHOSEN = ("machines.", "model.base.")


@dataclass(frozen=True)
class Draft:
    """A copy of the recipe `origin` under another name. changes: all changes of the copy; wished:
    those that the person asked for; moved: those that only write a file's new path; files: by the
    setting that names each."""

    origin: Document
    text: str
    changes: tuple[Override, ...]
    wished: tuple[Override, ...]
    moved: tuple[Override, ...]
    files: Mapping[str, str]
    target: Path

    @cached_property
    def judged(self) -> tuple[Recipe | None, list[Problem]]:
        folder = Path(self.origin.file).parent
        # Files that are not copied yet are examined at their old path.
        there = {}
        for name, file in self.files.items():
            if not Path(beside(file, folder)).exists():
                there[name] = folder / file
        moved = [Override(name, None, str(file)) for name, file in there.items() if file.is_file()]
        return judge(parse(str(self.target), copying.edit(self.text, moved)))

    @property
    def mended_later(self) -> list[Problem]:
        """The problem that a newly named model is unknown, which a lock file beside the copy
        fixes."""
        recipe, problems = self.judged
        named = any(change.setting == "model.base" for change in self.wished)
        problems_mended_later = []
        for problem in problems:
            if named and recipe and problem == unknown_model(recipe):
                problems_mended_later.append(problem)
        return problems_mended_later

    @property
    def errors(self) -> list[Problem]:
        later = self.mended_later
        return [problem for problem in errors_of(self.judged[1]) if problem not in later]

    @property
    def recipe(self) -> Recipe:
        """Raises Stop with every error."""
        if self.errors or self.judged[0] is None:
            raise Stop(self.errors)
        return self.judged[0]


def draft(
    document: Document, name: str, wishes: list[Override], mending: Sequence[Override] = ()
) -> Draft:
    """The copy of a recipe under a new name, with changes, before anything is written. Errors with
    a single possible fix are fixed by `mending`, and for another model notes too, but no setting
    that the person asked for."""
    origin = Path(document.file)
    target = Path(f"{name}.yaml")
    wished = by_schema.as_text(document, wishes)
    asked = {change.setting for change in wishes}
    changes = [*wished, *mending]
    own = _with_followers(document, changes)
    # Every file and folder that a recipe names, in any section. Models on the hub are neither.
    named = {path: file for path, file in leaves(document.data, bool) if path[-1] in ABOUT["files"]}
    for change in own:
        named.pop(change.path, None)
    files = {}
    for path, file in named.items():
        if isinstance(file, str):
            files[".".join(map(str, path))] = file
    called = {setting: beside(file, origin.parent) for setting, file in files.items()}
    moved = [
        Override(setting, None, name, copying.NEW)
        for setting, name in called.items()
        if name != files[setting]
    ]
    changed = with_followers(document, own)
    text = copying.edited(copying.edit(copying.rename(document, name), moved), changed)
    schema = packaged.schema_file(document.data["scenario"])
    text = copying.for_file(text, schema.name, f"recipes/{origin.name}", target.name)
    if any(is_subject(document, change) for change in changed):
        text = header.with_header(text, parse(target.name, text), str(document.data["name"]))
    else:
        text = header.without_advice(text)
    made = Draft(document, text, (*moved, *changed), tuple(wished), tuple(moved), files, target)
    if mending:
        return made
    mends = single_fixes(made.judged[1] if "model.base" in asked else made.errors, asked)
    if mends:
        return draft(document, name, wishes, mends)
    return made


def single_fixes(problems: Iterable[Problem], asked: Collection[str]) -> list[Override]:
    """The changes that alone solve a problem, without those of settings that the person asked
    for."""
    return [
        Override(problem.mends[0], None, problem.mends[1], copying.NEW, problem.message.rstrip("."))
        for problem in problems
        if problem.mends and problem.mends[0] not in asked
    ]


def beside(name: str, folder: Path) -> str:
    """The path in the copy of a file or folder that a recipe in `folder` names. Files are copied
    below the folder of the copy, also from above the recipe (`../data/x.csv`). Folders may be
    large, so they are not copied."""
    if not Path(name).is_absolute() and os.path.isdir(folder / name):
        return Path(os.path.relpath(folder / name)).as_posix()
    return re.sub(r"^(\.\./)+", "", name)


def drafted(name: str, answers: Answers, more: Iterable[Override] = ()) -> Draft:
    """The recipe of some answers. more: settings that win over the answers, but not over those of
    `--set`."""
    return draft(answers.document, name, [*answers.wishes(), *more, *answers.sets])


def makes_recipe(data: str, columns: Sequence[str] = ()) -> bool:
    """Whether `recipe new` makes a recipe of a file of data without further answers. columns: or
    with these templates of the question and the answer, if it needs them."""
    kind = data_file.kind_of(Path(data)) or "questions"
    answers = Answers(kind, data=data, gpu=NO_GPU)
    try:
        if columns:
            if kind != "questions" or not answers.lacks_columns:
                return False
            question, answer = columns
            answers = replace(answers, question=question, answer=answer)
        return not drafted("my-demo", answers).errors
    except Stop:
        return False


def first_rows(name: str, answers: Answers, most: int) -> tuple[RowsRequest, list[RenderedExample]]:
    """The data of the first stage that reads any, on this machine, and its first rows as the model
    sees them; none for images. Raises Stop if they cannot be read."""
    recipe = drafted(name, answers.without_place).recipe
    data = next(
        stage.data
        for stage in scenarios.translate(recipe, scenarios.place(recipe)).stages
        if stage.data
    )
    return data, [row for row in islice(scenarios.seen(data) or (), most) if not row.picture]


def choices(answers: Answers, card: str = "") -> list[tuple[catalog.Model, Need]]:
    """The catalog's models for such data, the newest first, and of a year the smallest, each with
    the need of the first way that fits a card. card: a GPU that the models must fit; empty for any
    GPU."""
    found = []
    for model in newest_first(catalog.model_ids()):
        if answers.of.rows != "text" and not model.chat_template:
            continue
        need = need_of(model, answers, card)
        if need:
            found.append((model, need))
    return found


class ModelHere(NamedTuple):
    """A model that this machine can train on some rows. seconds: of all stages; memory: bytes that
    the largest stage needs, 0 if unknown."""

    base: str
    seconds: float
    memory: int


def trained_here(name: str, answers: Answers) -> Iterator[ModelHere]:
    """The models that this machine's CPU can train on such data in a day, the smallest first."""
    row_count: int | None = None

    def run_with(base: str) -> LocalRun:
        nonlocal row_count
        of_model = replace(answers, model=base)
        if row_count is None:
            row_count = _training_rows(Planned.of(drafted(name, of_model).recipe))
        recipe = drafted(name, of_model, teaching_settings(of_model, row_count)).recipe
        return this_machine.processor_run(recipe, folder(recipe.name, "run"))

    return trained_in_a_day(small_models(answers.of.rows == "text")[:MOST_TRIED_HERE], run_with)


def small_models(of_text: bool) -> list[str]:
    """The packaged model, and the catalog's for such data, the smallest first. of_text: whether the
    rows are plain text, for which a model needs no chat template."""
    packaged_ones = [packaged.like for packaged in catalog.packaged_models()]
    models = filter(None, map(catalog.model, catalog.model_ids()))
    by_size = sorted(models, key=lambda model: model.parameters or math.inf)
    suited = [
        model.id
        for model in by_size
        if model.id not in packaged_ones and (of_text or model.chat_template)
    ]
    return [SMALL_MODEL, *suited]


def trained_in_a_day(
    bases: Iterable[str], run_with: Callable[[str], LocalRun]
) -> Iterator[ModelHere]:
    """The models that fit this machine and train in a day, in the same order. run_with: the run
    here with a model; may raise Stop."""
    for base in bases:
        with suppress(Stop):
            stages = run_with(base).predictions.values()
            times = [stage.seconds for stage in stages if stage.seconds is not None]
            is_known = bool(times) and len(times) == len(stages)
            if is_known and sum(times) < A_DAY and not any(stage.too_large for stage in stages):
                yield ModelHere(base, sum(times), max(stage.memory or 0 for stage in stages))


def teaching_settings(answers: Answers, row_count: int | None) -> list[Override]:
    """The settings with which an adapter for a small model learns the facts of its rows. None for
    other models, ways to train and data, for which they were not measured, and for many rows."""
    has_answers = answers.of.rows in WITH_ANSWERS
    if answers.of.keeps or not has_answers or "lora" not in answers.way.ways:
        return []
    teaching = catalog.teaching(answers.base, answers.on_cpu)
    if teaching is None or row_count is None:
        return []
    epochs = teaching.epochs(row_count)
    if epochs is None:
        return []
    settings = {each.setting: (each.value, each.why) for each in teaching.settings}
    settings["train.epochs"] = (epochs, "passes; fewer than five teach a style, but no facts")
    return overrides_of(settings)


def _training_rows(planned: Planned) -> int | None:
    """The rows of the first stage that trains, without those held back; None if uncounted."""
    return planned.forecasts[0].workload.rows


def need_of(model: catalog.Model, answers: Answers, card: str = "") -> Need | None:
    """The need of the first way to train that fits a card; None if there is none. card: the only
    one that counts; empty for any."""
    needs = needs_of(model)
    for way in answers.way.ways:
        cards = needs[way].cards if way in needs else ()
        if cards and card in ("", *cards):
            return needs[way]
    return None


def finished(name: str, answers: Answers) -> Draft:
    """The complete recipe: with a batch that fits its GPU and makes enough steps, other changes to
    fit, questions from its own data, and a description. Raises Stop if it has errors, or if no
    change makes it fit its GPU."""
    told: dict[str, tuple[Any, str]] = {}
    if not answers.of.keeps:
        count = math.prod(answers.count)
        if answers.base:
            of = f" for {answers.base.rpartition('/')[2]}"
        else:
            of = ""
        gpus = f"{'one' if count == 1 else count} {answers.gpu.removeprefix('NVIDIA-')}"
        if answers.on_cpu:
            gpus = "this machine's CPU"
        if answers.form:
            title = KINDS["conversations"].title
        else:
            title = answers.of.title
        described = f"{title} of {Path(answers.data).name}{of}, {answers.way.words}, on {gpus}"
        told["description"] = (described, "")
        # Three short questions of validation rows, far from each other. Of rows with answers a run
        # chooses the questions itself, of those that it learns and of those held back.
        if on_hub(answers.data) or answers.of.rows in WITH_ANSWERS:
            asked = {}
        else:
            asked = dict.fromkeys(_held_out(name, answers))
        few = evenly(list(filter(_can_be_asked, asked)), 3)
        if few:
            told["demo.questions"] = (few, "the model answers them before and after training")
    more = overrides_of(told)
    return drafted(name, answers, [*_fitting(name, answers, more), *more])


def _can_be_asked(beginning: str) -> bool:
    """Whether the beginning of a text is short and no heading."""
    is_short = 0 < len(beginning) <= GLANCE and beginning.isprintable()
    return is_short and not beginning.startswith("#")


def _held_out(name: str, answers: Answers) -> list[str]:
    """The questions of the rows that preparation would hold out, or the beginnings of documents; if
    the file is large, of its first rows. Raises Stop if the rows cannot be read."""
    data, first = first_rows(name, answers, AMONG)
    beginning = [example.asked for example in first]
    files = [Path(one["path"]) for one in data.get("sets", ()) if one["path"]]
    if not beginning or sum(file.stat().st_size for file in files if file.is_file()) > LARGE:
        return beginning
    # Too few rows, or too many bad ones, are reported when they are prepared.
    with suppress(Stop):
        if data["kind"] == "plain-text":
            from runner.data import blocks

            held_out_questions = []
            for example in reading(blocks.first)(data, "validation"):
                held_out_questions.append(example.asked)
            return held_out_questions
        from pyarrow import parquet

        with TemporaryDirectory() as folder:
            # With a sample, here of all rows, preparation skips checks that only reports need.
            scenarios.prepare(data, Path(folder), sample_rows=sys.maxsize)
            asked = parquet.read_table(
                Path(folder) / "validation.parquet", columns=["full-question"]
            )
        return [str(question) for question in asked["full-question"].to_pylist()]
    return beginning


def _fitting(name: str, answers: Answers, more: list[Override]) -> list[Override]:
    """The changes that make the recipe fit its GPU and its machine, with a batch for about STEPS
    steps or more."""
    changes: list[Override] = []

    def again(*made: Override) -> Planned:
        changes.extend(made)
        recipe = drafted(name, answers, [*changes, *more]).recipe
        try:
            return Planned.of(recipe)
        except catalog.UnknownArchitecture as error:
            raise Stop(forecast.unknown_architecture(recipe, error)) from None

    traced = _fitting_by_trace(name, answers, more)
    if traced:
        return traced
    planned = again()
    if answers.of.keeps and planned.fits is not False:
        return []
    teaching = teaching_settings(answers, _training_rows(planned))
    if teaching:
        planned = again(*teaching)
    if planned.fits is False and "qlora" in answers.way.ways:
        planned = again(Override("train.adapter", None, "qlora", copying.NEW, IN_4_BITS))
    planned = again(*_memory(planned))
    if planned.fits is False:
        # An offer must leave the model and its machines unchanged.
        offered = (offer.changes for offer in recipe_offers.of(planned))
        kept = (
            one for one in offered if not any(f"{each.setting}.".startswith(CHOSEN) for each in one)
        )
        found = next(kept, None)
        if found is None:
            raise _too_large(answers)
        planned = again(
            *(replace(change, by=copying.NEW, why="so that it fits the GPU") for change in found)
        )
    if answers.of.keeps:
        return changes
    stage = planned.forecasts[0]
    work = stage.workload
    if teaching:
        # Measured, however many steps they make.
        batch = work.micro_batch_size * work.accumulation
    else:
        batch = _batch(stage)
    wanted = max(answers.way.least, work.fewest_rows, batch)
    micro = min(wanted, _power(stage.largest_micro_batch or work.micro_batch_size))
    if not teaching or (work.micro_batch_size, work.accumulation) != (micro, wanted // micro):
        planned = again(*_batch_sizes(micro, wanted // micro))
    again(*_memory(planned))
    return list({change.setting: change for change in changes}.values())


def _fitting_by_trace(name: str, answers: Answers, more: list[Override]) -> list[Override]:
    """The same for a model without formulas, by what its ways to train need with one row at a time;
    empty if that is unknown. Raises Stop if none fits the GPU."""
    model = catalog.model(answers.base) if answers.base else None
    if model is None or parameters.has_formulas(model.model_type) or answers.of.keeps:
        return []
    card = catalog.gpu(answers.gpu)
    if card is None:
        if answers.on_cpu:
            raise _unknown_here(model, answers)
        return []
    needs = needs_of(model, card)
    if not needs:
        return []
    ways = [way for way in answers.way.ways if way in needs and card.name in needs[way].cards]
    if not ways:
        raise _too_large(answers)
    settings = WAYS[ways[0]]["settings"]
    changes = []
    for setting, value in settings.items():
        changes.append(Override(setting, None, value, copying.NEW, IN_4_BITS))
    recipe = drafted(name, answers, [*changes, *more]).recipe
    plan = scenarios.translate(recipe, scenarios.place(recipe))
    stage = next(iter(forecast.of(recipe, plan, any_architecture=True)))
    wanted = max(answers.way.least, stage.workload.fewest_rows, _batch(stage))
    return [*changes, *_batch_sizes(1, wanted)]


def _unknown_here(model: catalog.Model, answers: Answers) -> Stop:
    needs = needs_of(model)
    cards = [needs[way].cards for way in answers.way.ways if way in needs]
    smallest = next((names[0] for names in cards if names), None)
    if smallest:
        remedy = f"Add `--gpu {smallest}`, the smallest card that it fits, or choose another model."
    else:
        remedy = "Name a GPU with `--gpu`; `recipe gpus` lists them. Or choose another model."
    return Stop(
        f"How long `{model.id}` takes without a GPU is unknown: there are no formulas for models of the type `{model.model_type}`.",
        remedy,
    )


def _too_large(answers: Answers) -> Stop:
    return Stop(
        f"`{answers.base}` does not fit {answers.gpu} with any settings.",
        "Name a larger GPU or a smaller model; `recipe models` shows what fits where.",
    )


def _batch(stage: Forecast) -> int:
    """The rows of a step with which the stage makes about STEPS steps or more."""
    usual = stage.workload.micro_batch_size * stage.workload.accumulation
    steps = stage.steps or STEPS
    return _power(usual * min(1, steps / STEPS))


def _batch_sizes(micro_batch_size: int, accumulation: int) -> list[Override]:
    return overrides_of(
        {
            "train.gradient_accumulation_steps": (
                accumulation,
                "micro batches added up before each step",
            ),
            "train.micro_batch_size": (micro_batch_size, "rows at once on one GPU"),
        }
    )


def _memory(planned: Planned) -> list[Override]:
    """The necessary main memory of machines, if it is more than in the recipe."""
    gib = storage.wanted_memory(planned.plan, planned.forecasts)
    if gib * 2**30 <= units.size(planned.recipe.machines.memory):
        return []
    return overrides_of(
        {
            "machines.memory": (
                f"{gib} GiB",
                "main memory that it needs; write what your machine has",
            )
        }
    )


def _power(count: float) -> int:
    """The largest power of two up to `count`."""
    return 1 << max(0, int(count).bit_length() - 1)


def write(made: Draft) -> list[Path]:
    """Writes the recipe and its files, and returns the files; writes nothing if the recipe has
    errors."""
    scenario = made.origin.data["scenario"]
    folder = Path(made.origin.file).parent
    model = str(made.origin.lookup(("model", "base")))
    lock_file = Path(lock.LOCK)
    schema = Path(packaged.schema_file(scenario).name)
    with ExitStack() as undo:
        copied = _copied(made.files.values(), folder, undo)
        # The model's entry in the lock file beside the origin, too.
        entry = lock.entries(folder / lock.LOCK).get(model)
        if entry is not None and model not in lock.entries(lock_file):
            if lock_file.exists():
                undo.callback(write_text, lock_file, lock_file.read_text(encoding="utf-8"))
            else:
                undo.callback(lock_file.unlink, missing_ok=True)
            lock.add(lock_file, model, entry)
            copied.append(lock_file)
        vars(made).pop("judged", None)  # a lock file and other copies are there by now
        if made.errors:
            raise Stop(
                [
                    *made.errors,
                    Problem(
                        str(made.target),
                        0,
                        0,
                        "This file was not written.",
                        "Give the settings above other values with `--set`, for example `--set 'data.question=[Question]'`.",
                    ),
                ]
            )
        undo.pop_all()
    write_text(made.target, made.text)
    write_text(schema, by_schema.schema_text(scenario))
    return [*copied, schema]


def _copied(named: Iterable[str], folder: Path, undo: ExitStack) -> list[Path]:
    """Copies the files that a recipe names from its folder to this one. undo: removes them after an
    error."""
    files = [name for name in named if not Path(name).is_absolute() and (folder / name).is_file()]
    sources: dict[Path, Path] = {}
    for name in files:
        file = Path(beside(name, folder))
        there = sources.setdefault(file, file if file.exists() else folder / name)
        if not filecmp.cmp(there, folder / name, shallow=False):
            raise Stop(
                f"The copy needs `{folder / name}` as `{file}`, but `{there}` is another file.",
                "Make the copy in another folder, or move that file.",
            )
    copied = [file for file, source in sources.items() if source != file]
    for file in copied:
        for parent in reversed(file.parents):
            if not parent.exists():
                parent.mkdir()
                undo.callback(parent.rmdir)
        shutil.copyfile(sources[file], file)
        undo.callback(file.unlink)
    return copied


def starter(source: str) -> Document:
    """The recipe that `--from` means: a file, or a starter recipe by name."""
    starters = packaged.named()
    if Path(source).is_file():
        return read(source)
    if source in starters:
        return read(starters[source])
    meant = did_you_mean(source, starters) or did_you_mean(f"minimal/{source}", starters)
    raise Stop(
        f"`{source}` is neither a starter recipe nor a file.",
        f"{meant}Starter recipes: {listed(starters)}.",
    )


def minimal_starter(source: str) -> Document:
    """The minimal starter of a starter's scenario: one with the same data, else the one with the
    scenario's name."""
    if source not in packaged.named():
        starter(source)
        starters = listed(path.stem for path in packaged.starters())
        raise Stop(
            f"`--minimal` needs a starter recipe, but `{source}` is a file.",
            f"Name one: {starters}.",
        )
    wanted = read(packaged.named()[source])
    scenario = wanted.data["scenario"]
    hub = wanted.lookup(("data", "hub"))
    technique = wanted.lookup(("stages", 0, "technique"))
    fitting = [
        document
        for file in packaged.minimal()
        if (document := read(file)).data["scenario"] == scenario
    ]
    if not fitting:
        raise Stop(f"The scenario `{scenario}` has no minimal starter.", "Leave out `--minimal`.")
    return max(
        fitting,
        key=lambda one: (
            one.lookup(("data", "hub")) == hub,
            one.lookup(("stages", 0, "technique")) == technique,
            Path(one.file).stem == scenario,
        ),
    )


def _with_followers(document: Document, changes: list[Override]) -> list[Override]:
    """A copy's changes, and those that follow from a new model or new data: settings that were
    about the old one go, and the description is another. What the person changes too stays."""
    all_changes = [*changes, *following(document, changes)]
    is_another = any(is_subject(document, change) for change in changes)
    is_described = any(change.setting == "description" for change in changes)
    if is_another and "description" in document.data and not is_described:
        called = document
        # The check of the copy reports changes that are impossible.
        with suppress(Stop):
            called, _ = changing.apply(document, all_changes)
        words = header.description(called, str(document.data["name"]))
        all_changes += overrides_of({"description": (words, "what `recipe list` shows")})
    return all_changes


def is_subject(document: Document, change: Override) -> bool:
    """Whether a change makes what a recipe's first lines and description say untrue: one of data,
    model or machines."""
    if _is_new(document, change):
        return True
    return change.path[0] in copying.MACHINES and change.after != document.lookup(change.path)


def following(document: Document, changes: Sequence[Override]) -> list[Override]:
    """The changes that follow from a new model or new data: settings that were about the old one
    go. What the person changes too stays."""
    others = list[Override]()
    settings = {change.setting for change in changes}
    for change in changes:
        if not _is_new(document, change):
            continue
        before = document.lookup(change.path)
        if change.setting != "model.base":
            others += _about_data(document, change, settings)
        elif before is not None:
            named = (
                name
                for name in ABOUT["model"]
                if document.lookup(path_of(name)) not in (None, "main", False)
            )
            others += overrides_of(dict.fromkeys(named, (None, f"was about {before}")))
    return [
        one
        for one in others
        if not any(f"{one.setting}.".startswith(f"{own}.") for own in settings)
    ]


def _is_new(document: Document, change: Override) -> bool:
    """Whether a change names another model or other data."""
    is_data = change.path[-1] in ("path", "hub") and "data" in change.path
    is_another = change.after not in (None, document.lookup(change.path))
    return is_another and (is_data or change.setting == "model.base")


def _about_data(document: Document, change: Override, settings: set[str]) -> Iterator[Override]:
    """The changes that follow from a new `path` or `hub` of data. settings: those that the person
    changes."""
    home, _, last = change.setting.rpartition(".")
    section = document.lookup(change.path[:-1])
    if not isinstance(section, dict) or change.after == section.get("sample"):
        return  # the recipe's own data, which the other settings are about

    def other(name: str, value: object = None, why: str = "belonged to the old data") -> Override:
        return Override(f"{home}.{name}", None, value, change.by, why)

    columns: list[str]
    if last == "hub":
        columns = catalog.dataset(change.after).get("columns", [])
    else:
        columns = []
    if last == "path":
        with suppress(row_files.Unreadable, OSError, ValueError):
            columns = rows.columns(Path(change.after), section.get("split"), section.get("sheet"))
    same_subject = (
        home == "data"
        and last == "path"
        and _is_same_subject(document, section, Path(change.after))
    )
    about = [*ABOUT["source"], *ABOUT["validation"]]
    given = {f"{home}.question", f"{home}.answer"} & settings
    are_songs = "songs" in section and not given
    if not same_subject and not are_songs:
        about.append("system_prompt")
    there = [name for name in ("question", "answer") if isinstance(section.get(name), str)]
    named = {column for name in there for column in templates.columns(section[name])}
    if conversation_formats.told(columns) and not named <= set(columns):
        about += there  # conversations without the columns of these templates
    gone = [name for name in about if name in section and name != last]
    yield from map(other, gone)
    if set(gone) & set(ABOUT["validation"]) and "validation_share" not in section:
        yield other("validation_share", USUAL_HELD_OUT, "a share of the new data")
    if given and "songs" in section:
        yield other("songs", None, "the questions name their columns")
    elif not given:
        yield from starmap(other, _song_columns(section, columns))
        if len(there) == 2 and not set(there) & set(gone) and not named <= set(columns):
            yield from starmap(other, _question_columns(columns, sample_of(str(change.after))))
    if home == "data" and not same_subject and isinstance(demo := document.lookup(("demo",)), dict):
        # The demo's questions about the old data; those about the new data come from its rows.
        asked = [name for name in DEMO_QUESTIONS if name in demo]
        for name in (
            ["demo"] if asked and len(asked) == len(demo) else [f"demo.{name}" for name in asked]
        ):
            yield Override(name, None, None, change.by, "asked about the old data")


def _is_same_subject(document: Document, section: Section, file: Path) -> bool:
    """Whether the rows of a new file support the recipe's prompt and demo questions, whatever their
    columns are called."""
    demo = document.lookup(("demo",))
    if isinstance(demo, dict):
        questions = demo.get("questions")
    else:
        questions = None
    if not questions or "songs" in section:
        return False
    support = Support(questions, section.get("system_prompt") or "")
    try:
        for row in rows.first(file, JUDGED_ROWS, section.get("split"), section.get("sheet")):
            support.add(" ".join(value for value in row.values() if isinstance(value, str)))
    except (row_files.Unreadable, Stop, OSError, ValueError):
        return False  # the check of the copy reports it
    return support.is_same_subject()


JUDGED_ROWS = 5000  # of a new file


def _question_columns(
    names: list[str], sample: Sequence[DataRow]
) -> Iterator[tuple[str, str, str]]:
    """The settings for the columns of questions and answers, each with its value and why, if the
    new data has such columns."""
    if len(names) < 2:
        return
    pair = guess(names, sample)
    if pair:
        for setting, template in zip(("question", "answer"), pair, strict=True):
            yield setting, template, "its name in the new file"


def _song_columns(section: Section, found: list[str]) -> list[tuple[str, Any, str]]:
    """The settings for the columns of songs, each with its value and why, if the new data has two
    or more with other names; artist and genre can make a question."""
    songs = section.get("songs")
    known = {name.lower(): name for name in found}
    if isinstance(songs, dict):
        named = [songs.get(name, name) for name in ("instruction", "lyrics")]
    else:
        named = []
    if len(found) < 2 or set(named) <= set(found):
        return []
    asking, answer = by_names(found)
    if {"artist", "genre"} <= set(known) and "instruction" not in known:
        why = "of the new columns"
        return [
            ("songs", None, why),
            ("question", SONG.format(**known), why),
            ("answer", f"[{answer}]", why),
        ]
    if asking.lower() not in QUESTION_NAMES:
        return []  # a first column is seldom a request for a song
    why = "its name in the new file"
    return [("songs.instruction", asking, why), ("songs.lyrics", answer, why)]
