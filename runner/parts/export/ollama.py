"""Ollama: the Modelfile beside a GGUF file. Ollama writes prompts by templates of Go and not by the one in the file, so the trained
template is taken apart and held against itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.trainer.generation import written

# Words that stand for a message's own, without blanks at their ends, which some templates strip.
_SYSTEM, _FIRST, _ANSWER, _SECOND = "⟪system⟫", "⟪first⟫", "⟪answer⟫", "⟪second⟫"


@dataclass(frozen=True)
class Pieces:
    """What a chat template writes around messages. begin: before all; system: before and after a system prompt, which stands
    before the first question; question, answer: before and after each; reply: before the answer that is to come."""

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
    """A tokenizer's template in pieces; None where it cannot be put together again from them."""
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
        # The first question is the message after the system prompt, where there is one.
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
    """The Modelfile. gguf: the name of the file beside it; chat: whether the model has learned to answer, else it goes on with a text;
    ends: tokens that end an answer; context: tokens that rows had at most; penalty: of repetitions, 1 for none."""
    lines = [
        "# ollama create NAME -f Modelfile",
        f"FROM ./{gguf}",
        "",
        "# Without sampling, as the answers of the run were made.",
        "PARAMETER temperature 0",
        f"PARAMETER repeat_penalty {penalty:g}",
        "PARAMETER repeat_last_n -1",
    ]
    if context:
        lines += ["# As long as training's rows.", f"PARAMETER num_ctx {context}"]
    lines += [f'PARAMETER stop "{end}"' for end in dict.fromkeys(ends)]
    parts = _without_bos(tokenizer, pieces(tokenizer)) if chat else None
    if parts:
        lines += ["", "# The trained template, in Go's words.", f'TEMPLATE """{go_template(parts)}"""']
    elif chat:
        lines += [
            "",
            "# The trained template is in the GGUF file. It cannot be said in Go's words, so ask by llama.cpp instead,",
        ]
        lines += ["# or look whether Ollama knows it: `ollama show NAME --template`."]
    else:
        lines += ["", "# It goes on with a text, and knows no conversations.", 'TEMPLATE "{{ .Prompt }}"']
    if chat and system_prompt and '"""' not in system_prompt:
        lines += ["", "# The system prompt of training.", f'SYSTEM """{system_prompt.strip()}"""']
    return "\n".join(lines) + "\n"
