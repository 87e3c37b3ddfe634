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
from runner.tools.text import template, yaml_text
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


def text(source: TrainedModel, form: str, kind: str, proof: Mapping[str, Any], file: str) -> str:
    """The card. form, kind, proof: of the export; file: the name of a GGUF file, else empty."""
    settings = source.run.planned.settings
    recipe = yaml_text(
        {name: value for name, value in settings.items() if name not in _PLACES}
    ).rstrip()
    known = {
        "source": source, "run": source.run, "stage": source.stage, "form": form, "kind": kind, "file": file, "say": sentences,
        "title": FORMATS[form]["title"], "system": (source.chat.system_prompt or "").strip() if source.chat.chat else "",
        "metrics": measured(source), "recipe": recipe, "proof": proof, "version": __version__, "rank": proof.get("max_lora_rank", RANKS[-1]),
    }  # fmt: skip
    return template(HERE / "card.md.jinja").render(known, front=head(source, form)) + "\n"


def head(source: TrainedModel, form: str) -> str:
    """The card's metadata for the hub, as YAML."""
    from huggingface_hub import EvalResult, ModelCardData

    run = source.run
    base = source.hub_base
    results = [
        EvalResult(
            task_type="text-generation", dataset_type="held-out", dataset_name="held-out rows of the run", metric_type=name,
            metric_value=value,
        )
        for name, value in measured(source).items() if isinstance(value, int | float)
    ]  # fmt: skip
    known = FORMATS[form]
    rows = run.planned.settings.get("data") or {}
    if run.rehearsal:
        sets = []
    else:
        sets = [rows, *(rows.get("sets") or [])]
    data = ModelCardData(
        license=run.planned.licence or None,
        base_model=base or None,
        base_model_relation=known["relation"] if base else None,
        datasets=[one["hub"] for one in sets if isinstance(one, dict) and one.get("hub")] or None,
        library_name=known["library"],
        pipeline_tag="text-generation",
        model_name=run.name if results else None,
        eval_results=results or None,
        tags=["recipe-runner", *(["rehearsal"] if run.rehearsal else [])],
    )
    return str(data.to_yaml())


def measured(source: TrainedModel) -> Mapping[str, Any]:
    """The evaluation of this model; empty if the record is of another one."""
    if gates.current(source.folder):
        return source.stage.measurement.metrics
    return {}


# Placeholders for messages, without blanks at the ends, which some templates strip.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "⟪system⟫", "⟪first⟫", "⟪answer⟫", "⟪second⟫"


class Pieces:
    """The texts of a chat template around messages. begin: before everything; system: before and
    after a system prompt; question, answer: before and after each; reply: before the next answer;
    within: whether the system prompt is part of the first question."""

    def __init__(self, tokenizer: Any) -> None:
        """Raises ValueError if they do not make up the whole template, and what templates raise for
        some conversations."""

        def text(system: str | None, *turns: str) -> str:
            said = [
                *([("system", system)] if system else []),
                *zip(cycle(("user", "assistant")), turns),
            ]
            return written(
                tokenizer, [{"role": role, "content": turn} for role, turn in said], asking=True
            )

        head, rest = text(None, _FIRST, _ANSWER, _SECOND).split(_FIRST)
        middle, rest = rest.split(_ANSWER)
        between, tail = rest.split(_SECOND)
        asked = text(None, _FIRST).split(_FIRST)[1]
        said = text(None, _FIRST, _ANSWER).split(_ANSWER)[1]
        # The template's addition for a new answer.
        unasked = written(tokenizer, [{"role": "user", "content": _FIRST}], asking=False).split(
            _FIRST
        )[1]
        if asked.startswith(unasked):
            self.reply = asked.removeprefix(unasked)
        else:
            self.reply = ""
        after_question = asked.removesuffix(self.reply)
        after_answer = said.removesuffix(self.reply)
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
        if tail != asked or any(
            self.text(prompt, turns) != text(prompt, *turns) for prompt, turns in cases
        ):
            raise ValueError(tail)

    def text(self, system: str | None, turns: Sequence[str]) -> str:
        """A conversation: questions and answers in turn, a question last."""
        if system is not None:
            said = f"{self.system[0]}{system}{self.system[1]}"
        else:
            said = ""
        if self.within:
            text = self.begin
        else:
            text = f"{self.begin}{said}"
        for number, turn in enumerate(turns):
            if number % 2 == 0:
                before, after = self.question
            else:
                before, after = self.answer
            text += f"{before}{said if self.within and number == 0 else ''}{turn}{after}"
        return text + self.reply


def pieces(tokenizer: Any) -> Pieces | None:
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
    tokenizer: Any,
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
