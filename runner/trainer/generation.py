"""Asks a model on disk or on the hub, in the format of its training.

`python -m runner.trainer.generation RUN_DIR --taught FILE… --new FILE…` asks the original and the
tuned model the demo's questions, and grades answers to questions of the rows. The files have
training rows and held-out rows; words that the answers learned from training rows are recorded.
"""

import argparse
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, cycle, groupby
from pathlib import Path
from typing import Any

from runner.tools import child_process
from runner.tools.files import read_json, write_json, write_text
from runner.tools.model_classes import language_class_of
from runner.tools.problem import Stop, first_line
from runner.tools.process import hush, without_gpu_kernels, without_scikit_learn
from runner.tools.run_files import ADAPTER, ANSWERS, BEST_MODEL, DEMO, DEMO_OUTPUTS
from runner.tools.text import (
    TextTokenizer,
    from_template,
    learned,
    macros,
    tokenizer_in,
    tokens,
    words,
)
from runner.trainer import grading

Earlier = Sequence[tuple[str, str]]  # the conversation before: questions with their answers
Message = Mapping[str, Any]  # a turn: `role`, `content`, and other fields of templates


@dataclass(frozen=True)
class Chat:
    """A model and how it is asked. max_new_tokens: tokens of an answer. chat: whether a question is
    a turn of a conversation; else it is the beginning of a text that the model continues. turn_end:
    the token that ends an answer, beside end-of-text. adapter: the folder of the adapter that
    training made; `model` contains it already."""

    model: str
    revision: str | None
    tokenizer: str
    system_prompt: str | None
    max_new_tokens: int
    chat: bool = True
    turn_end: str | None = None
    trust_remote_code: bool = False
    adapter: str | None = None


def cannot_load(name: str, error: Exception) -> Stop:
    """The message that a model, or an adapter, cannot be loaded. name: or its folder."""
    if Path(name).is_dir():
        where = "the run folder"
    else:
        where = "the network, or the run folder"
    return Stop(f"The model `{name}` cannot be loaded: {first_line(error)}", f"Check {where}.")


def repetition_penalty(chat: Chat) -> float:
    """The model's own repetition penalty, from its generation settings; 1 for none."""
    from transformers import GenerationConfig

    try:
        generation_settings = GenerationConfig.from_pretrained(
            chat.model, revision=chat.revision or "main"
        )
    except OSError:
        return 1.0
    return float(generation_settings.repetition_penalty or 1.0)


@dataclass(frozen=True)
class LoadedModel:
    """A model in memory. switched: a context that switches its adapter; alone: the lock for one
    question at a time."""

    chat: Chat
    model: Any
    tokenizer: TextTokenizer
    switched: Callable[[], AbstractContextManager[Any]] = nullcontext
    alone: threading.Lock = field(default_factory=threading.Lock)

    def answer(
        self, question: str, earlier: Earlier = (), streamer: Any = None, stop: Any = None
    ) -> str:
        """The answer, without sampling, so that it never varies. streamer, stop: as of
        transformers' `generate`."""
        import torch

        if self.chat.chat:
            prompt = tokens(
                self.tokenizer,
                messages(self.chat.system_prompt, question, earlier=earlier),
                asking=True,
            )
        else:
            prompt = self.tokenizer(question, add_special_tokens=False)["input_ids"]
        read = torch.tensor([prompt], device=self.model.device)
        ends = end_tokens(self.tokenizer, self.chat.turn_end)
        pad = self.tokenizer.pad_token_id
        with self.alone, self.switched(), torch.no_grad():
            output = self.model.generate(
                input_ids=read,
                attention_mask=torch.ones_like(read),
                max_new_tokens=self.chat.max_new_tokens,
                do_sample=False,
                eos_token_id=ends or None,
                pad_token_id=pad if pad is not None else self.tokenizer.eos_token_id,
                streamer=streamer,
                stopping_criteria=stop,
            )
        return self.said(output[0, len(prompt) :])

    def said(self, tokens: object) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text.strip()


def load(chat: Chat) -> LoadedModel:
    """The model, ready to answer. Raises Stop if it is missing, or cannot be loaded."""
    if Path(chat.model).is_absolute() and not Path(chat.model).is_dir():
        raise Stop(
            f"The model `{chat.model}` is not here.",
            "For a run on the cluster, `recipe fetch RECIPE --stage NAME` downloads the result of another stage.",
        )
    import torch
    from transformers.utils import logging

    without_gpu_kernels()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    cuda = torch.cuda.is_available()
    trust = {"trust_remote_code": chat.trust_remote_code}
    try:
        tokenizer = tokenizer_in(chat.tokenizer, chat.trust_remote_code)
        if cuda:
            dtype = torch.bfloat16
        else:
            dtype = torch.float32
        model_class = language_class_of(chat.model, chat.trust_remote_code, chat.revision)
        model = model_class.from_pretrained(
            chat.model, revision=chat.revision, dtype=dtype, **trust
        )
    except OSError as error:
        raise cannot_load(chat.model, error) from error
    return LoadedModel(chat, model.to("cuda" if cuda else "cpu").eval(), tokenizer)


def prompt(chat: Chat, tokenizer: TextTokenizer, question: str) -> str:
    """The text that the model reads for a question. Tokenising it adds nothing."""
    if not chat.chat:
        return question
    return written(tokenizer, messages(chat.system_prompt, question), asking=True)


def end_tokens(tokenizer: TextTokenizer, turn_end: str | None) -> list[int]:
    """The tokens that end an answer."""
    ends = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(turn_end) if turn_end else None]
    return list(dict.fromkeys(token for token in ends if token is not None))


def written(
    tokenizer: TextTokenizer, conversation: Sequence[Message], *, asking: bool, tools: object = None
) -> str:
    """A conversation as the tokenizer's chat template writes it. asking: with the beginning of an
    answer at its end."""
    options = {"tools": tools or None, "add_generation_prompt": asking}
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, **options))


def bare(message: Message) -> dict[str, Any]:
    """A turn without empty columns, with tool calls as the engine gives them to the template."""
    turn = {name: value for name, value in message.items() if value is not None}
    if "tool_calls" in turn:
        turn["tool_calls"] = calls = list(map(bare, turn["tool_calls"]))
        for call in calls:
            function = call.get("function")
            if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
                call["function"] = {**function, "arguments": json.loads(function["arguments"])}
    return turn


def with_system(template: str, system_prompt: str) -> str:
    """A served chat template, which adds the system prompt of training to conversations without
    one. JSON strings are Jinja strings."""
    prompt = json.dumps(system_prompt.strip(), ensure_ascii=False)
    return (
        from_template(Path(__file__).with_name("system_prompt.jinja"), prompt=prompt).rstrip()
        + template
    )


def messages(
    system_prompt: str | None, question: str, earlier: Earlier = ()
) -> list[dict[str, str]]:
    """A conversation in the form that training and answering share."""
    if system_prompt:
        system = [{"role": "system", "content": system_prompt.strip()}]
    else:
        system = []
    texts = [*chain.from_iterable(earlier), question]
    return [
        *system,
        *(
            {"role": role, "content": text}
            for role, text in zip(cycle(("user", "assistant")), texts)
        ),
    ]


def chats(run_dir: Path, demo: Mapping[str, Any]) -> tuple[Chat, Chat]:
    """The original and the tuned model of a run. Both use the tuned model's tokenizer, which
    carries the template."""
    best = str(run_dir / BEST_MODEL)
    adapter = run_dir / ADAPTER
    names = ("system_prompt", "max_new_tokens", "chat", "turn_end", "trust_remote_code")
    settings = {name: demo[name] for name in names if name in demo}
    if Path(demo["base_model"]).is_dir():
        revision = None
    else:
        revision = demo["revision"]
    before = Chat(demo["base_model"], revision, best, **settings)
    if (adapter / "adapter_config.json").is_file():
        added = str(adapter)
    else:
        added = None
    return before, replace(before, model=best, revision=None, adapter=added)


FIRST_ROWS = (
    1000  # training rows whose words are looked for in the answers; in many rows every word occurs
)


def taught(rows: Iterable[Mapping[str, Any]], tokenizer: TextTokenizer) -> Iterator[str]:
    """The learned texts of prepared rows: answers, or all of plain text."""
    for row in rows:
        if "messages" in row:
            for turn in row["messages"]:
                if turn["role"] == "assistant":
                    yield turn["content"] or ""
        elif "input_ids" in row:
            yield tokenizer.decode(row["input_ids"], skip_special_tokens=True)


def first_rows(files: Iterable[str | Path]) -> list[dict[str, Any]]:
    """The first rows of each file of prepared rows."""
    from pyarrow import parquet

    rows: list[dict[str, Any]] = []
    for file in files:
        batch = next(parquet.ParquetFile(file).iter_batches(FIRST_ROWS), None)
        if batch is not None:
            rows += batch.to_pylist()
    return rows


def learned_words(rows: Sequence[Mapping[str, Any]], tokenizer: TextTokenizer) -> set[str]:
    """The words that training rows teach. Preferences have the learned answer in a column; a
    completion with a bad label is not learned."""
    preferred = (
        row.get("chosen") or (row.get("label") and row["completion"]) or "" for row in rows
    )
    return {word for text in chain(taught(rows, tokenizer), preferred) for word in words(text)}


def main(run_dir: Path, taught_files: Sequence[str], new_files: Sequence[str]) -> None:
    """Writes `demo_outputs/answers.json` and, for people, `demo_outputs/answers.md`; and
    `demo_outputs/graded.json`, if the rows are questions with answers."""
    child_process.watch_parent()
    hush()
    without_scikit_learn()
    demo = read_json(run_dir / DEMO)
    chat_before, chat_after = chats(run_dir, demo)
    before = list(map(load(chat_before).answer, demo["questions"]))
    trained = load(chat_after)
    after = list(map(trained.answer, demo["questions"]))
    tokenizer = tokenizer_in(run_dir / BEST_MODEL, demo.get("trust_remote_code", False))
    rows_taught = first_rows(taught_files)
    rows_new = first_rows(new_files)
    own_words = learned_words(rows_taught, tokenizer)
    by_kind = {
        "taught": list(grading.questions_with_answers(rows_taught)),
        "new": list(grading.questions_with_answers(rows_new)),
    }
    from_rows = {
        row.question: (origin, row.answer)
        for origin in ("new", "taught")
        for row in by_kind[origin]
    }
    categories = demo.get("categories") or {}
    answers = []
    for question, old, new in zip(demo["questions"], before, after, strict=True):
        if question in categories:
            row = {"category": categories[question]}
        else:
            row = {}
        row |= {
            "question": question,
            "before": old,
            "after": new,
            "learned": learned(new, old, question, own_words),
        }
        if question in from_rows:
            row["rows"], row["expected"] = from_rows[question]
        answers.append(row)
    write_json(run_dir / ANSWERS, answers)
    groups = groupby(answers, key=lambda row: row.get("category"))
    text = macros(Path(__file__).with_name("answers.jinja")).answers(demo["base_model"], groups)
    write_text(run_dir / DEMO_OUTPUTS / "answers.md", text)

    def beginning(answer: str) -> str:
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"][: chat_after.max_new_tokens]
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    count = demo.get("graded_questions", 0)
    graded = grading.grade(trained.answer, beginning, by_kind["taught"], by_kind["new"], count)
    graded.write(run_dir)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--taught", nargs="*", default=[])
    parser.add_argument("--new", nargs="*", default=[])
    arguments = parser.parse_args()
    main(arguments.run_dir, arguments.taught, arguments.new)
