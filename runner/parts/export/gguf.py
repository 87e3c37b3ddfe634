"""GGUF: a model as llama.cpp and Ollama load it, and the proof that llama.cpp answers with it as transformers does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.parts.export import llama_cpp
from runner.parts.export.trained_model import Proof, loaded, unproven, words_of
from runner.tools import packaged
from runner.tools.files import read_record
from runner.tools.problem import Stop, worded
from runner.tools.run_files import TEKKEN
from runner.trainer.generation import Chat, end_tokens, prompt

KINDS: dict[str, dict[str, Any]] = packaged.toml(__file__, "kinds.toml")
WHOLE = {facts["torch"]: kind for kind, facts in KINDS.items() if "torch" in facts}
TIE = 1e-3  # two words whose logits are closer than this are equally good in fp32
ANSWER_TOKENS = 40
PROMPT_TOKENS = 32  # the length of a prompt from a text that replaces questions


@dataclass(frozen=True)
class Answer:
    """The answer of transformers to a prompt, in token numbers, without sampling. text: the prompt; likelihood: the
    mean log-probability of its words in nats; gaps: for each word, the distance of the two best logits."""

    text: str
    prompt: tuple[int, ...]
    said: tuple[int, ...]
    likelihood: float
    gaps: tuple[float, ...]


def write(model: Path, out: Path, kind: str | None, turn_end: int | None, converter: Path) -> str:
    """Writes a model as a GGUF file; returns its kind. kind: of KINDS, by default that of the weights. Raises Stop."""
    if (model / TEKKEN).is_file():
        raise Stop(*worded("export.no-tekken-in-gguf", model=model))
    facts = read_record(model / "config.json")
    own = WHOLE.get(str(facts.get("dtype") or facts.get("torch_dtype")), "bf16")
    kind = kind or own
    # The converter itself writes eight bits and more; fewer bits need a file with the original weights first.
    first = kind if kind in WHOLE.values() or kind == "q8_0" else own
    whole = out if first == kind else out.with_name(f".{out.name}.{first}")
    llama_cpp.convert(converter, model, whole, first, turn_end)
    if whole != out:
        llama_cpp.quantise(whole, out, kind)
        whole.unlink()
    return kind


def answers(chat: Chat, tokenizer: Any, texts: Sequence[str]) -> Iterator[Answer]:
    """The answer of transformers to each prompt, in fp32 and from the weights alone."""
    import torch

    model = loaded(chat.model, None, torch.float32, chat.trust_remote_code).eval()
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
        gaps = tuple((best[:, 0] - best[:, 1]).tolist())
        yield Answer(text, tuple(numbers), tuple(said.tolist()), float(likely), gaps)


def prompts(tokenizer: Any, chat: Chat, texts: Sequence[str]) -> Iterator[tuple[str, list[int]]]:
    """Each prompt, as text and in token numbers: a question formatted as in training, or the beginning of a text."""
    for text in texts:
        asked = prompt(chat, tokenizer, text)
        yield asked, list(tokenizer(asked, add_special_tokens=False)["input_ids"])


def prove(file: Path, kind: str, chat: Chat, texts: Sequence[str], general: str) -> Proof:
    """Proves that a GGUF file is the model of `chat`: it has the template and the end tokens; llama.cpp splits text
    into the same tokens, and answers as transformers does. texts: questions, or beginnings of texts; general: any text.
    Returns the comparison. Raises Stop if the proof fails."""
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
            raise unproven(f"llama.cpp cuts text into other tokens, for example “{' '.join(text.split())[:60]}…”")
    same, off, allowed = 0, 0.0, KINDS[kind]["allowed"]
    for answer, (chosen, likelihood) in zip(said, found["answers"], strict=True):
        off = max(off, abs(likelihood - answer.likelihood))
        agreed = [here == there for here, there in zip(chosen, answer.said, strict=True)]
        same += sum(agreed)
        if kind == "f32" and any(not ok and gap > TIE for ok, gap in zip(agreed, answer.gaps, strict=True)):
            raise unproven(f"llama.cpp answers with other tokens: {chosen} for {list(answer.said)}")
    if not off <= allowed:
        raise unproven(*worded("export.worse-in-llama-cpp", off=off, kind=kind, allowed=allowed))
    words = sum(len(answer.said) for answer in said)
    return {"prompts": len(said), "tokens": words, "same_tokens": same, "largest_difference_nats": off}
