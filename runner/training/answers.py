"""Answers: a model on disk or on the hub is asked in the words it was trained with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.run_files import BEST_MODEL


@dataclass(frozen=True)
class Chat:
    """Who is asked and how. max_new_tokens: tokens of an answer; turn_end: the token that ends it, beside end-of-text.
    chat: whether questions are put as a conversation, or as the beginning of a text that the model continues."""

    model: str
    revision: str | None
    tokenizer: str
    system_prompt: str | None
    max_new_tokens: int
    chat: bool = True
    turn_end: str | None = None
    trust_remote_code: bool = False


def answers(chat: Chat, questions: Iterable[str]) -> Iterator[str]:
    """Each question's answer, without sampling, so that the same model always says the same.

    Raises OSError where the model cannot be loaded.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(chat.tokenizer, trust_remote_code=chat.trust_remote_code)
    cuda = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(
        chat.model,
        revision=chat.revision,
        dtype=torch.bfloat16 if cuda else torch.float32,
        trust_remote_code=chat.trust_remote_code,
    )
    model = model.to("cuda" if cuda else "cpu").eval()
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(chat.turn_end) if chat.turn_end else None]
    ends = [token for token in ends if token is not None]
    for question in questions:
        prompt = written(tokenizer, messages(chat.system_prompt, question), asking=True) if chat.chat else question
        tokens = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(model.device)
        with torch.no_grad():
            output = model.generate(
                **tokens,
                max_new_tokens=chat.max_new_tokens,
                do_sample=False,
                eos_token_id=ends or None,
                pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            )
        yield tokenizer.decode(output[0, tokens["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def written(tokenizer: Any, conversation: list[dict[str, Any]], *, asking: bool, tools: Any = None) -> str:
    """A conversation as the tokenizer's chat template writes it. asking: with the beginning of the answer behind it, as a model
    is asked, here and by a server."""
    options = {"tools": tools} if tools else {}
    text: str = tokenizer.apply_chat_template(conversation, add_generation_prompt=asking, tokenize=False, **options)
    return text


def messages(system_prompt: str | None, question: str, answer: str | None = None) -> list[dict[str, str]]:
    """A conversation as both training and asking see it."""
    system = [{"role": "system", "content": system_prompt.strip()}] if system_prompt else []
    reply = [{"role": "assistant", "content": answer}] if answer is not None else []
    return [*system, {"role": "user", "content": question}, *reply]


def chats(run_dir: Path, demo: dict[str, Any]) -> tuple[Chat, Chat]:
    """The original and the tuned model of a run. Both use the tuned model's tokenizer, which carries the template."""
    best = str(run_dir / BEST_MODEL)
    shared = {
        "tokenizer": best,
        "system_prompt": demo["system_prompt"],
        "max_new_tokens": demo["max_new_tokens"],
        "chat": demo["chat"],
        "turn_end": demo.get("turn_end"),
        "trust_remote_code": demo.get("trust_remote_code", False),
    }
    before = Chat(
        model=demo["base_model"],
        revision=None if Path(demo["base_model"]).is_dir() else demo["revision"],
        **shared,
    )
    return before, Chat(model=best, revision=None, **shared)
