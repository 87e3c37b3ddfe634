"""Answers: what somebody says of data, model and machines, and the settings that follow from it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from runner import catalog
from runner.data import conversation_formats, row_files, rows
from runner.recipe import templates
from runner.recipe.copying import NEW as BY
from runner.recipe.overrides import Override
from runner.tools import packaged
from runner.tools.names import did_you_mean, listed
from runner.tools.problem import Stop

# The secret that pods read a hub token from, as the rule about gated models calls it.
SECRET = "hub-token"


@dataclass(frozen=True)
class Kind:
    """What somebody may have. starter: the recipe that is copied; ways: of `runner.parts.planner.cards`, to train on it, the one that it takes first;
    model: where nobody names another; technique: in words. least: rows at once that it needs, because batch normalisation says
    little on fewer."""

    title: str
    starter: str
    ways: tuple[str, ...] = ()
    model: str = ""
    technique: str = ""
    least: int = 1


_ADAPTER = ("minimal/lora", ("lora", "qlora"), "microsoft/Phi-4-mini-instruct", "a LoRA adapter")
KINDS = {
    "questions": Kind("Questions and answers", *_ADAPTER),
    "conversations": Kind("Conversations", *_ADAPTER),
    "text": Kind("Plain text", "minimal/causal-lm", ("all weights",), "HuggingFaceTB/SmolLM2-360M", "all weights"),
    "songs": Kind("Songs", *_ADAPTER),
    "images": Kind("Images", "minimal/image-classification", technique="a ResNet-18", least=16),
}
PLACES = {"here": "this machine", "machines": "plain machines", "cluster": "OpenShift"}
# Columns that people call so, the likeliest first.
ASKING = ("question", "prompt", "instruction", "input", "query", "ask", "q", "title", "source")
ANSWERING = ("answer", "response", "output", "completion", "reply", "a", "target", "text")


@dataclass(frozen=True)
class Answers:
    """Empty what nobody has said yet. question, answer: templates of columns, or of songs the column that asks for the song and
    that of its words; column: of documents. gpus: in each machine. addresses: of plain machines, the main one first; results:
    a folder that all of them share."""

    kind: str = "questions"
    data: str = ""
    question: str = ""
    answer: str = ""
    column: str = ""
    model: str = ""
    where: str = "here"
    gpu: str = ""
    gpus: int = 1
    machines: int = 1
    addresses: tuple[str, ...] = ()
    results: str = ""
    namespace: str = ""

    @property
    def of(self) -> Kind:
        return KINDS[self.kind]

    @property
    def origin(self) -> Path:
        return packaged.named()[self.of.starter]

    @property
    def base(self) -> str:
        return self.model or self.of.model

    @property
    def form(self) -> str | None:
        """Of conversations, where their columns tell it and no template is named."""
        if self.kind not in ("questions", "conversations") or self.question or self.answer:
            return None
        return conversation_formats.told(self.columns)

    @cached_property
    def columns(self) -> list[str]:
        """Of the data file; none of a folder or of plain text. Raises Stop where they cannot be read."""
        file = Path(self.data).expanduser()
        if not file.exists():
            raise Stop(f"There is no file `{file}`.", "Paths start from this folder.")
        if file.suffix == ".txt" or (file.is_dir() and self.kind in ("text", "images")):
            return []
        try:
            return rows.columns(file)
        except row_files.Unreadable as reason:
            raise Stop(f"`{file}` cannot be read: {reason}", reason.hint) from None

    @property
    def guessed(self) -> tuple[str, str]:
        """Templates for the question and the answer, by what their columns are called, else the first one and the last one."""
        known = {name.lower(): name for name in self.columns}
        if len(known) < 2:
            raise Stop(
                f"`{self.data}` has {'no column' if not known else f'the column {listed(known.values())} alone'}, and questions with "
                "answers are two.",
                "Name another file, or say that it is plain text.",
            )
        answer = next((known[name] for name in ANSWERING if name in known), self.columns[-1])
        asking = (known[name] for name in ASKING if name in known and known[name] != answer)
        question = next(asking, next(name for name in self.columns if name != answer))
        return f"[{question}]", f"[{answer}]"

    def template(self, text: str) -> str:
        """A template as somebody says it: in brackets, or the name of one column. Raises Stop where a column is not there."""
        there = self.columns
        whole = text if "[" in text else f"[{text.strip()}]"
        for name in templates.columns(whole):
            if name not in there:
                hint = f"{did_you_mean(name, there)}Its columns are {listed(there)}."
                raise Stop(f"`{self.data}` has no column `{name}`.", hint)
        return whole

    def wishes(self) -> list[Override]:
        """What the answers change in the starter."""
        said = {**self._of_data(), **self._of_place()}
        return [Override(setting, None, value, BY, why) for setting, (value, why) in said.items()]

    def _of_data(self) -> dict[str, tuple[Any, str]]:
        said: dict[str, tuple[Any, str]] = {}
        if self.data:
            said["data.path"] = (self.data, "your own file, from this folder")
        if self.kind in ("questions", "conversations") and self.data:
            if form := self.form:
                said["data.form"] = (form, "what its rows look like")
                said |= {"data.question": (None, ""), "data.answer": (None, "")}
            else:
                guessed = self.guessed
                said["data.question"] = (self.question or guessed[0], "")
                said["data.answer"] = (self.answer or guessed[1], "")
        if self.kind == "songs" and self.data:
            asks = {"instruction": self.question.strip("[]"), "lyrics": self.answer.strip("[]")}
            named = {name: column for name, column in asks.items() if column not in ("", name)}
            count = max(2, rows.sample(Path(self.data).expanduser()).count)
            said["data.songs"] = ({**named, "count": count}, "all of them are drawn")
            said |= {"data.question": (None, ""), "data.answer": (None, "")}
        if self.column and self.column != "text":
            said["data.text"] = (self.column, "the column with the text")
        if self.model or self.base:
            said["model.base"] = (self.base, "")
        return said

    def _of_place(self) -> dict[str, tuple[Any, str]]:
        said: dict[str, tuple[Any, str]] = {}
        facts = catalog.model(self.base) if self.base else None
        if self.gpu:
            said["machines.gpu"] = (self.gpu, "")
            card = catalog.gpu(self.gpu)
            if card and not card.bf16:
                said["model.precision"] = (card.precision(bool(facts and facts.fp16)), "this card knows no bf16")
        count = len(self.addresses) or self.machines
        if self.gpus != 1:
            said["machines.gpus_per_node"] = (self.gpus, "GPUs in each machine")
        if count != 1:
            said["machines.nodes"] = (count, "machines")
        if self.where == "machines":
            each = [{"address": address, "gpus": list(range(self.gpus))} for address in self.addresses]
            said["nodes.machines"] = (each, "the main one first, each with the numbers of its GPUs")
            said["nodes.output_dir"] = (self.results, "results, on storage that all machines share")
        if self.where == "cluster":
            if facts and facts.gated:
                said["openshift.hub_token_secret"] = (SECRET, "this model takes a token of the hub")
            said["openshift.namespace"] = (self.namespace, "project on the cluster")
        return said
