"""GGUF: a model as llama.cpp and Ollama load it, the proof that llama.cpp says with it what transformers says, and the Modelfile
beside it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.parts.export import llama_cpp
from runner.parts.export.card import shelf
from runner.parts.export.weights import Proof, unproven, words_of
from runner.tools.files import read_record
from runner.tools.problem import Stop
from runner.trainer.generation import Chat, end_tokens, prompt, written

# What the converter writes itself, by torch's name of what the weights are kept in; everything else is quantised from it.
WHOLE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
# Kinds that need no measured importance of the weights, from the largest file to the smallest.
QUANTISED = (
    "q8_0", "q6_k", "q5_k_m", "q5_k_s", "q5_0", "q4_k_m", "q4_k_s", "q4_0", "q3_k_l", "q3_k_m", "q3_k_s", "q2_k",
)  # fmt: skip
KINDS = (*WHOLE.values(), *QUANTISED)
# By how much the log-probability of a word may differ in the mean, in nats: rounding of the arithmetic, of weights to half
# precision and to eight bits, and what fewer bits lose. A file with a wrong layer in it is off by more.
ALLOWED = {"f32": 1e-3, "f16": 0.02, "bf16": 0.05, "q8_0": 0.05, "q6_k": 0.1}
ALLOWED_BELOW = 0.7
# Two words whose logits are nearer than this are as good as each other in fp32.
TIE = 1e-3
ANSWER_TOKENS = 40
# Of a text that stands in for questions, the part that is read before the model goes on.
PROMPT_TOKENS = 32


@dataclass(frozen=True)
class Answer:
    """What transformers says after a prompt, in token numbers, without sampling. text: the prompt; likelihood: the mean log-probability of its words
    in nats; gaps: at each, how far the best logit is above the next one."""

    text: str
    prompt: tuple[int, ...]
    said: tuple[int, ...]
    likelihood: float
    gaps: tuple[float, ...]


def require_known(model: Path, converter: Path) -> None:
    """Raises Stop where the converter does not know a model's architecture."""
    (name, *_) = read_record(model / "config.json").get("architectures") or ["(none)"]
    known = sorted(llama_cpp.architectures(converter))
    if name not in known:
        raise Stop(
            f"llama.cpp's converter, of llama-cpp-python {llama_cpp.VERSION}, does not know the architecture `{name}`.\n"
            f"It knows {', '.join(known)}.",
            "`--format safetensors` exports it for servers that load it as transformers does.",
        )


def write(model: Path, out: Path, kind: str | None, turn_end: int | None, converter: Path) -> str:
    """Writes a model's folder as a GGUF file and gives its kind. kind: of KINDS; None for what the weights are kept in.

    Raises Stop where it cannot be converted.
    """
    own = _kept_in(model)
    kind = kind or own
    # Eight bits and more are written at once; fewer are made of the weights as they are.
    first = kind if kind in WHOLE.values() or kind == "q8_0" else own
    whole = out if first == kind else out.with_name(f".{out.name}.{first}")
    llama_cpp.convert(converter, model, whole, first, turn_end)
    if whole != out:
        llama_cpp.quantise(whole, out, kind)
        whole.unlink()
    return kind


def _kept_in(model: Path) -> str:
    facts = read_record(model / "config.json")
    return WHOLE.get(str(facts.get("dtype") or facts.get("torch_dtype")), "bf16")


def answers(chat: Chat, tokenizer: Any, texts: Sequence[str]) -> Iterator[Answer]:
    """What transformers says to each question, or after the beginning of each text, in fp32 and by the weights alone."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        chat.model, dtype=torch.float32, trust_remote_code=chat.trust_remote_code
    ).eval()
    stops = end_tokens(tokenizer, chat.turn_end)
    for text, numbers in prompts(tokenizer, chat, texts):
        tokens = torch.tensor([numbers])
        with torch.no_grad():
            whole = model.generate(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=min(ANSWER_TOKENS, chat.max_new_tokens),
                do_sample=False, repetition_penalty=1.0, eos_token_id=stops or None, pad_token_id=(stops or [0])[0],
            )  # fmt: skip
            logits = model(input_ids=whole).logits[0, len(numbers) - 1 : -1]
        said = whole[0, len(numbers) :]
        likely = logits.log_softmax(-1).gather(1, said[:, None]).mean()
        best = logits.topk(2).values
        yield Answer(
            text, tuple(numbers), tuple(said.tolist()), float(likely), tuple((best[:, 0] - best[:, 1]).tolist())
        )


def prompts(tokenizer: Any, chat: Chat, texts: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Each prompt, as text and in numbers: a question as the model was trained to see it, or the beginning of a text."""
    for text in texts:
        asked = prompt(chat, tokenizer, text)
        yield asked, list(tokenizer(asked, add_special_tokens=False)["input_ids"])


def prove(file: Path, kind: str, chat: Chat, texts: Sequence[str], general: str) -> Proof:
    """Proves that a GGUF file is the model of `chat`: its template and the end of an answer are in it, llama.cpp reads text in the
    same tokens, and says to each question what transformers says. texts: questions, or beginnings of texts; general: any text.

    Gives what was compared. Raises Stop where it is not so.
    """
    tokenizer = words_of(chat)
    said = list(answers(chat, tokenizer, texts))
    read = [*(text for text, _ in prompts(tokenizer, chat, [general])), *(answer.text for answer in said)]
    stops = end_tokens(tokenizer, chat.turn_end)
    task = {
        "texts": read,
        "ends": stops,
        "answers": [{"prompt": answer.prompt, "said": answer.said} for answer in said],
        "context": max(len(answer.prompt) + len(answer.said) for answer in said) + 8,
    }
    found = llama_cpp.read(file, task)
    if found["chat_template"] != (tokenizer.chat_template or ""):
        raise unproven("the chat template in the file is not the trained one")
    for token, known in zip(stops, found["ends"], strict=True):
        if not known:
            raise unproven(f"no answer would end with `{tokenizer.convert_ids_to_tokens(token)}`, as in training")
    for text, tokens in zip(read, found["texts"], strict=True):
        if tokens != tokenizer(text, add_special_tokens=False)["input_ids"]:
            raise unproven(f"llama.cpp cuts text into other tokens, that of “{' '.join(text.split())[:60]}…” for one")
    return _same_answers(kind, said, found["answers"])


def _same_answers(kind: str, said: Sequence[Answer], read: Sequence[tuple[list[int], float]]) -> Proof:
    """Holds what llama.cpp would say against what transformers says."""
    same, off, allowed = 0, 0.0, ALLOWED.get(kind, ALLOWED_BELOW)
    for answer, (chosen, likelihood) in zip(said, read, strict=True):
        off = max(off, abs(likelihood - answer.likelihood))
        agreed = [here == there for here, there in zip(chosen, answer.said, strict=True)]
        same += sum(agreed)
        if kind == "f32" and any(not ok and gap > TIE for ok, gap in zip(agreed, answer.gaps, strict=True)):
            raise unproven(f"llama.cpp answers with other tokens: {chosen} for {list(answer.said)}")
    if not off <= allowed:
        raise unproven(
            f"the words of an answer are {off:.2g} nats more or less likely in llama.cpp, and {allowed:g} may be lost as {kind}",
            "Name a kind with more bits with `--quantize`.",
        )
    words = sum(len(answer.said) for answer in said)
    return {"prompts": len(said), "tokens": words, "same_tokens": same, "largest_difference_nats": off}


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
    parts = _without_bos(tokenizer, pieces(tokenizer)) if chat else None
    system = system_prompt.strip() if chat and system_prompt and '"""' not in system_prompt else ""
    return shelf().get_template("modelfile.jinja").render(
        gguf=gguf, chat=chat, template=go_template(parts) if parts else "", system=system, ends=list(dict.fromkeys(ends)), context=context,
        penalty=penalty,
    )  # fmt: skip
