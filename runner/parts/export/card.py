"""The texts beside an exported model: its card, with the sentences of the run's page, and a GGUF
file's Modelfile."""

from collections.abc import Mapping, Sequence
from itertools import cycle, product
from pathlib import Path
from typing import Any

from runner import __version__
from runner.parts.evaluate import gates
from runner.parts.export.trained_model import TrainedModel
from runner.parts.report import sentences
from runner.tools import packaged
from runner.tools.text import TextTokenizer, template, yaml_text
from runner.tools.vllm import RANKS
from runner.trainer.generation import written

HERE = Path(__file__).parent
# Sections of a recipe with no influence on the model.
_PLACES = (
    "name",
    "description",
    "openshift",
    "nodes",
    "communication",
    "machines",
    "limits",
    "image",
    "demo",
)
FORMATS: Mapping[str, Mapping[str, Any]] = packaged.toml(__file__, "formats.toml")


def text(
    source: TrainedModel, form: str, file_kind: str, proof: Mapping[str, object], file: str
) -> str:
    """The card. form, proof: of the export; file_kind, file: of a GGUF file, else empty."""
    settings = source.run.planned.settings
    recipe = yaml_text(
        {name: value for name, value in settings.items() if name not in _PLACES}
    ).rstrip()
    system_prompt = ""
    if source.chat.chat:
        system_prompt = (source.chat.system_prompt or "").strip()
    card = template(HERE / "card.md.jinja").render(
        source=source,
        run=source.run,
        stage=source.stage,
        form=form,
        kind=file_kind,
        file=file,
        say=sentences,
        title=FORMATS[form]["title"],
        system=system_prompt,
        metrics=measured(source),
        recipe=recipe,
        proof=proof,
        version=__version__,
        rank=proof.get("max_lora_rank", RANKS[-1]),
        front=head(source, form),
    )
    return f"{card}\n"


def head(source: TrainedModel, form: str) -> str:
    """The card's metadata for the hub, as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    run = source.run
    base = source.hub_base
    results = []
    for name, value in measured(source).items():
        if isinstance(value, int | float):
            results.append(EvalResult(
            task_type="text-generation", dataset_type="held-out", dataset_name="held-out rows of the run", metric_type=name,
            metric_value=value,
        ))  # fmt: skip
    facts = FORMATS[form]
    datasets: list[str] = []
    tags = ["recipe-runner"]
    if run.rehearsal:
        tags.append("rehearsal")
    else:
        datasets = _datasets(run.planned.settings.get("data") or {})
    relation = None
    if base:
        relation = facts["relation"]
    model_name = None
    if results:
        model_name = run.name
    data = ModelCardData(
        license=run.planned.licence or None,
        base_model=base or None,
        base_model_relation=relation,
        datasets=datasets or None,
        library_name=facts["library"],
        pipeline_tag="text-generation",
        model_name=model_name,
        eval_results=results or None,
        tags=tags,
    )
    return str(data.to_yaml())


def _datasets(data: Mapping[str, Any]) -> list[str]:
    """The names on the hub of a recipe's data sets."""
    sets = [data, *(data.get("sets") or [])]
    hub_names = []
    for data_set in sets:
        if isinstance(data_set, dict) and data_set.get("hub"):
            hub_names.append(data_set["hub"])
    return hub_names


def measured(source: TrainedModel) -> Mapping[str, Any]:
    """The evaluation of this model; empty if the record is of another one."""
    if gates.current(source.folder):
        return source.stage.measurement.metrics
    return {}


# Placeholders for messages, without blanks at the ends, which some templates strip.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "⟪system⟫", "⟪first⟫", "⟪answer⟫", "⟪second⟫"


class Pieces:
    """The texts of a chat template around messages."""

    begin: str  # before everything
    system: tuple[str, str]  # before and after a system prompt
    question: tuple[str, str]  # before and after each
    answer: tuple[str, str]  # before and after each
    reply: str  # before the next answer
    within: bool  # whether the system prompt is part of the first question

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Raises ValueError if they do not make up the whole template, and what templates raise for
        some conversations."""

        def text(system: str | None, *turns: str) -> str:
            messages: list[dict[str, str]] = []
            if system:
                messages.append({"role": "system", "content": system})
            for role, turn in zip(cycle(("user", "assistant")), turns):
                messages.append({"role": role, "content": turn})
            return written(tokenizer, messages, asking=True)

        head, after_head = text(None, _FIRST, _ANSWER, _SECOND).split(_FIRST)
        middle, after_middle = after_head.split(_ANSWER)
        between, tail = after_middle.split(_SECOND)
        question_end = text(None, _FIRST).split(_FIRST)[1]
        answer_end = text(None, _FIRST, _ANSWER).split(_ANSWER)[1]
        # Without the template's addition for a new answer.
        bare_question = written(tokenizer, [{"role": "user", "content": _FIRST}], asking=False)
        bare_question_end = bare_question.split(_FIRST)[1]
        if question_end.startswith(bare_question_end):
            self.reply = question_end.removeprefix(bare_question_end)
        else:
            self.reply = ""
        after_question = question_end.removesuffix(self.reply)
        after_answer = answer_end.removesuffix(self.reply)
        before = between.removeprefix(after_answer)
        self.begin = head.removesuffix(before)
        self.question = (before, after_question)
        self.answer = (middle.removeprefix(after_question), after_answer)
        system_head, system_rest = text(_SYSTEM, _FIRST).split(_SYSTEM)
        before_system = system_head.removeprefix(self.begin)
        after_system = system_rest.split(_FIRST)[0]
        self.within = not after_system.endswith(before) or not before
        inside = (before_system.removeprefix(before), after_system)
        if self.within:
            self.system = inside
        else:
            self.system = (before_system, after_system.removesuffix(before))
        cases = product((None, _SYSTEM), ((_FIRST,), (_FIRST, _ANSWER, _SECOND)))
        if tail != question_end or any(
            self.text(prompt, turns) != text(prompt, *turns) for prompt, turns in cases
        ):
            raise ValueError(tail)

    def text(self, system: str | None, turns: Sequence[str]) -> str:
        """A conversation: questions and answers in turn, a question last."""
        system_text = ""
        if system is not None:
            system_text = f"{self.system[0]}{system}{self.system[1]}"
        text = self.begin
        if not self.within:
            text += system_text
        for number, turn in enumerate(turns):
            if number % 2 == 0:
                before, after = self.question
            else:
                before, after = self.answer
            if self.within and number == 0:
                before += system_text
            text += f"{before}{turn}{after}"
        return text + self.reply


def pieces(tokenizer: TextTokenizer) -> Pieces | None:
    """A tokenizer's template in pieces; None if they do not make up the whole template."""
    from jinja2 import TemplateError

    try:
        return Pieces(tokenizer)
    except (ValueError, TypeError, TemplateError):  # templates refuse some conversations
        return None


def go_template(parts: Pieces) -> str:
    """The pieces as a Go template over Ollama's messages."""
    return template(HERE / "ollama.jinja").render(parts=parts)


def modelfile(
    gguf: str,
    tokenizer: TextTokenizer,
    chat: bool,
    system: str | None,
    ends: Sequence[str],
    context: int | None,
    penalty: float,
) -> str:
    """The Modelfile. gguf: the name of the file; chat: whether the model answers questions, else it
    continues a text; system: the system prompt; ends: tokens that end an answer; context: the
    longest row in tokens; penalty: for repetitions, 1 for none."""
    parts = pieces(tokenizer) if chat else None
    if (
        parts
        and tokenizer.bos_token
        and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    ):
        # llama.cpp writes the token that begins a text itself.
        parts.begin = parts.begin.removeprefix(tokenizer.bos_token)
    if chat and system and '"""' not in system:
        system = system.strip()
    else:
        system = ""
    return template(HERE / "modelfile.jinja").render(
        gguf=gguf, chat=chat, template=go_template(parts) if parts else "", system=system, ends=list(dict.fromkeys(ends)), context=context,
        penalty=penalty,
    )  # fmt: skip
