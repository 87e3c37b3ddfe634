"""The texts beside an exported model: its card, the README.md, whose facts are those of the run's page (`report/facts.py`) in the
same sentences; and the Modelfile beside a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from runner import __version__
from runner.parts.evaluate import gates
from runner.parts.export.trained_model import TrainedModel
from runner.parts.report import sentences
from runner.tools.text import yaml_text
from runner.tools.vllm import RANKS
from runner.trainer.generation import written

if TYPE_CHECKING:
    from jinja2 import Environment

# Sections of a recipe that say where it ran and not what was made.
_PLACES = ("name", "description", "openshift", "nodes", "communication", "machines", "limits", "image", "demo")
_LIBRARY = {"safetensors": "transformers", "adapter": "peft", "gguf": "gguf"}
# How a model came from its base, as the hub calls it.
_RELATION = {"safetensors": "finetune", "adapter": "adapter", "gguf": "quantized"}


def text(source: TrainedModel, form: str, kind: str, proof: Mapping[str, Any], file: str) -> str:
    """The card. form, kind, proof: of the export; file: the name of a GGUF file, else empty."""
    known = {
        "source": source, "run": source.run, "stage": source.stage, "form": form, "kind": kind, "file": file, "say": sentences,
        "system": (source.chat.system_prompt or "").strip() if source.chat.chat else "",
        "metrics": measured(source), "data": list(_data(source)), "origin": list(_origin(source)), "recipe": _recipe(source),
        "proof": list(_proof(proof)), "version": __version__, "rank": proof.get("max_lora_rank", RANKS[-1]),
    }  # fmt: skip
    return f"---\n{head(source, form)}\n---\n\n{_templates().get_template('card.md.jinja').render(known)}"


def _templates() -> Environment:
    """The templates of the texts beside a model."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False, keep_trailing_newline=True,
    )  # fmt: skip
    found.filters |= {"plain": plain, "cell": cell}
    return found


def head(source: TrainedModel, form: str) -> str:
    """What the hub reads, as YAML, in its own words."""
    from huggingface_hub import EvalResult, ModelCardData

    run, base = source.run, source.hub_base
    results = [
        EvalResult(
            task_type="text-generation", dataset_type="held-out", dataset_name="held-out rows of the run", metric_type=name,
            metric_value=value,
        )
        for name, value in measured(source).items() if isinstance(value, int | float)
    ]  # fmt: skip
    data = ModelCardData(
        license=run.planned.licence or None,
        base_model=base or None,
        base_model_relation=_RELATION[form] if base else None,
        datasets=_hub_data(source) or None,
        library_name=_LIBRARY[form],
        pipeline_tag="text-generation",
        model_name=run.name if results else None,
        eval_results=results or None,
        tags=["recipe-runner", *(["rehearsal"] if run.rehearsal else [])],
    )
    return str(data.to_yaml())


def measured(source: TrainedModel) -> Mapping[str, Any]:
    """What was measured of this very model; nothing if it was of another one."""
    return source.stage.measured if gates.current(source.folder) else {}


def _hub_data(source: TrainedModel) -> list[str]:
    """The data sets on the hub that a run, and no rehearsal, was trained on."""
    if source.run.rehearsal:
        return []
    data = source.run.planned.settings.get("data") or {}
    sets = [data, *(data.get("sets") or [])]
    return [one["hub"] for one in sets if isinstance(one, dict) and one.get("hub")]


def _data(source: TrainedModel) -> Iterator[tuple[str, str]]:
    for part, facts in source.run.data.items():
        for name, value in sentences.data(facts):
            yield (f"{part}: {name}" if part else name), value


def _origin(source: TrainedModel) -> Iterator[tuple[str, str]]:
    """As on the page, but without folders of this machine."""
    for name, value in sentences.origin(source.run):
        yield name, PurePosixPath(value).name if value.startswith("/") else value


def _recipe(source: TrainedModel) -> str:
    settings = source.run.planned.settings
    return yaml_text({name: value for name, value in settings.items() if name not in _PLACES}).rstrip()


def _proof(proof: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in proof.items():
        yield name.replace("_", " "), f"{value:.3g}" if isinstance(value, float) else str(value)


def plain(text: str) -> str:
    """A text as Markdown shows it, and no browser runs it."""
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


def cell(text: str) -> str:
    """The same in a cell of a table."""
    return " ".join(plain(text).split()).replace("|", "\\|")


# Placeholders for a message's words, without blanks at their ends, which some templates strip.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "⟪system⟫", "⟪first⟫", "⟪answer⟫", "⟪second⟫"


@dataclass(frozen=True)
class Pieces:
    """What a chat template writes around messages. begin: before all; system: before and after a system prompt, which
    comes before the first question; question, answer: before and after each; reply: before the answer that is to
    come."""

    begin: str
    system: tuple[str, str]
    question: tuple[str, str]
    answer: tuple[str, str]
    reply: str
    within: bool

    def text(self, system: str | None, turns: Sequence[str]) -> str:
        """A conversation, questions and answers in turn, a question last."""
        said = f"{self.system[0]}{system}{self.system[1]}" if system is not None else ""
        text = self.begin if self.within else f"{self.begin}{said}"
        for number, turn in enumerate(turns):
            before, after = self.question if number % 2 == 0 else self.answer
            text += f"{before}{said if self.within and number == 0 else ''}{turn}{after}"
        return text + self.reply


def pieces(tokenizer: Any) -> Pieces | None:
    """A tokenizer's template in pieces; None if it cannot be put together again from them."""
    try:
        return _pieces(tokenizer)
    except (ValueError, TypeError):
        return None
    except Exception as error:  # templates raise errors of jinja2 for conversations that they do not like
        if type(error).__module__.startswith("jinja2"):
            return None
        raise


def _pieces(tokenizer: Any) -> Pieces | None:
    def text(system: str | None, *turns: str) -> str:
        start = [{"role": "system", "content": system}] if system else []
        roles = ("user", "assistant") * len(turns)
        conversation = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
        return written(tokenizer, [*start, *conversation], asking=True)

    whole = text(None, _FIRST, _ANSWER, _SECOND)
    head, rest = whole.split(_FIRST)
    middle, rest = rest.split(_ANSWER)
    between, tail = rest.split(_SECOND)
    asked = text(None, _FIRST).split(_FIRST)[1]
    said = text(None, _FIRST, _ANSWER).split(_ANSWER)[1]
    reply = _reply(tokenizer, asked)
    after_question = asked.removesuffix(reply)
    after_answer = said.removesuffix(reply)
    before_question = between.removeprefix(after_answer)
    begin = head.removesuffix(before_question)
    before_answer = middle.removeprefix(after_question)
    with_system = text(_SYSTEM, _FIRST)
    system_head, system_rest = with_system.split(_SYSTEM)
    after_system = system_rest.split(_FIRST)[0]
    within = not after_system.endswith(before_question) or not before_question
    if within:
        system = (system_head.removeprefix(begin).removeprefix(before_question), after_system)
    else:
        system = (system_head.removeprefix(begin), after_system.removesuffix(before_question))
    made = Pieces(begin, system, (before_question, after_question), (before_answer, after_answer), reply, within)
    cases: tuple[tuple[str | None, tuple[str, ...]], ...] = (
        (None, (_FIRST,)), (_SYSTEM, (_FIRST,)), (None, (_FIRST, _ANSWER, _SECOND)), (_SYSTEM, (_FIRST, _ANSWER, _SECOND)),
    )  # fmt: skip
    return made if all(made.text(*case) == text(case[0], *case[1]) for case in cases) and tail == asked else None


def _reply(tokenizer: Any, asked: str) -> str:
    """What a template adds when it is asked for an answer."""
    conversation = [{"role": "user", "content": _FIRST}]
    told = written(tokenizer, conversation, asking=False).split(_FIRST)[1]
    return asked.removeprefix(told) if asked.startswith(told) else ""


def go_template(parts: Pieces) -> str:
    """The pieces as a template of Go over Ollama's messages (its `docs/template.md`)."""
    system = f"{_go(parts.system[0])}{{{{ $.System }}}}{_go(parts.system[1])}"
    begin, first = f"{_go(parts.begin)}{{{{ if .System }}}}{system}{{{{ end }}}}", ""
    if parts.within:
        # The first question is the message after the system prompt, if there is one.
        first = f"{{{{ if and $.System (eq $i $first) }}}}{system}{{{{ end }}}}"
        begin = (
            '{{ $first := 0 }}{{ range $i, $_ := .Messages }}{{ if and (eq $i 0) (eq .Role "system") }}{{ $first = 1 }}'
            f"{{{{ end }}}}{{{{ end }}}}{_go(parts.begin)}"
        )
    return (
        f"{begin}{{{{ range $i, $_ := .Messages }}}}"
        f'{{{{ if eq .Role "user" }}}}{_go(parts.question[0])}{first}{{{{ .Content }}}}{_go(parts.question[1])}'
        f'{{{{ else if eq .Role "assistant" }}}}{_go(parts.answer[0])}{{{{ .Content }}}}{_go(parts.answer[1])}'
        f"{{{{ end }}}}{{{{ end }}}}{_go(parts.reply)}"
    )


def _go(text: str) -> str:
    """Text as a template of Go has it."""
    return text.replace("{{", '{{ "{{" }}')


def _without_bos(tokenizer: Any, parts: Pieces | None) -> Pieces | None:
    """Without the token that begins a text, where llama.cpp writes it itself."""
    begins = tokenizer.bos_token and tokenizer("a")["input_ids"][:1] == [tokenizer.bos_token_id]
    return replace(parts, begin=parts.begin.removeprefix(tokenizer.bos_token)) if parts and begins else parts


def modelfile(
    gguf: str,
    tokenizer: Any,
    chat: bool,
    system_prompt: str | None,
    ends: Sequence[str],
    context: int | None,
    penalty: float,
) -> str:
    """The Modelfile. gguf: the name of the file beside it; chat: whether the model has learned to answer, else it continues with a text;
    ends: tokens that end an answer; context: tokens that rows had at most; penalty: of repetitions, 1 for none."""
    parts = _without_bos(tokenizer, pieces(tokenizer)) if chat else None
    system = system_prompt.strip() if chat and system_prompt and '"""' not in system_prompt else ""
    return _templates().get_template("modelfile.jinja").render(
        gguf=gguf, chat=chat, template=go_template(parts) if parts else "", system=system, ends=list(dict.fromkeys(ends)), context=context,
        penalty=penalty,
    )  # fmt: skip
