"""Chatting with the models of a stage, which stay in memory, side by side, in the terminal or on a gradio page."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from runner.recipe.recipe import Recipe
from runner.run import inference as ask
from runner.run.run_folder import StageFolder
from runner.tools.process import HOST, free_port
from runner.trainer.generation import Earlier, LoadedModel, cannot_load, load

Turn = tuple[str, tuple[str, ...]]  # a question and the answer of each side


class Models(NamedTuple):
    """Two models that answer in words, one after the other, because they share a processor. A chat model knows its own
    earlier answers; a model that continues a text starts again each time."""

    both: tuple[LoadedModel, LoadedModel]
    names: tuple[str, ...] = ("original", "trained")

    @property
    def asked_with(self) -> str:
        return "a question" if self.both[0].chat.chat else "the beginning of a text"

    def ask(self, question: str, earlier: Sequence[Turn]) -> Iterator[tuple[str, ...]]:
        """The answer of each side so far, repeatedly; the complete ones last. earlier: the conversation so far."""
        said = ["" for _ in self.both]
        for number, loaded in enumerate(self.both):
            turns = [(asked, answers[number]) for asked, answers in earlier]
            for said[number] in stream(loaded, question, turns):
                yield tuple(said)


class Pictures(NamedTuple):
    """The one model of a recipe for images, whose training began with random weights."""

    classes: Callable[[Path], Mapping[str, float]]
    names: tuple[str, ...] = ("trained",)
    asked_with: str = "the file of a picture"

    def ask(self, question: str, earlier: Sequence[Turn]) -> Iterator[tuple[str, ...]]:
        """As in `Models`. Raises Stop if the file is not a picture."""
        yield (ask.shares(self.classes(Path(question).expanduser())),)


Sides = Models | Pictures


def sides(recipe: Recipe, folder: StageFolder) -> Sides:
    """The loaded models of a stage. Raises Stop if there is none."""
    if classes := ask.of_pictures(folder):
        return Pictures(classes)
    before, after = ask.models(recipe, folder)
    first = load(before)
    if not after.adapter:
        return Models((first, load(after)))
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        both = PeftModel.from_pretrained(first.model, after.adapter).eval()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise cannot_load(after.adapter, error) from error
    # With an adapter, one model is in memory, whose adapter is switched on and off.
    original = LoadedModel(before, both, first.tokenizer, both.disable_adapter, first.alone)
    return Models((original, LoadedModel(after, both, first.tokenizer, alone=first.alone)))


def stream(loaded: LoadedModel, question: str, earlier: Earlier = ()) -> Iterator[str]:
    """A model's answer so far, while it is generated; the complete answer last. It can be cancelled."""
    from transformers import StoppingCriteriaList

    tokens: list[int] | None = None
    texts, unwanted = queue.Queue[str | None](), threading.Event()

    def put(value: Any) -> None:
        """Keeps all tokens, because the words of a part differ from those of the whole."""
        nonlocal tokens
        if tokens is None:
            tokens = []  # the first value is the prompt
            return
        tokens += value.tolist()
        texts.put(loaded.said(tokens).rstrip("\ufffd"))  # the end may be half of a character

    streamer = SimpleNamespace(put=put, end=lambda: None)
    stop = StoppingCriteriaList([lambda *_, **__: unwanted.is_set()])
    # A cancelled answer ends with its next token, and Python must not end earlier.
    with ThreadPoolExecutor(1) as worker:
        answer = worker.submit(loaded.answer, question, earlier, streamer, stop)
        answer.add_done_callback(lambda _: texts.put(None))
        try:
            yield from iter(texts.get, None)
            yield answer.result()
        finally:
            unwanted.set()


def show_page(sides: Sides, title: str, questions: Sequence[str], port: int, ready: Callable[[str], None]) -> None:
    """Shows the page until ^C. port: 0 for any; ready: gets the address. Raises Stop if the port is not available."""
    # gradio would otherwise look for updates and report this start.
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
    import gradio

    with gradio.Blocks(title=title, analytics_enabled=False, fill_height=isinstance(sides, Models)) as page:
        gradio.Markdown(f"# {title}")
        if isinstance(sides, Models):
            _chat(gradio, sides, questions)
        else:
            _pictures(gradio, sides)
    # The theme would download its fonts.
    theme = gradio.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    page.launch(
        server_name=HOST,
        server_port=free_port(port),
        share=False,
        inbrowser=False,
        quiet=True,
        prevent_thread_lock=True,
        ssr_mode=False,
        footer_links=[],
        theme=theme,
    )
    ready(page.local_url)
    page.block_thread()


@dataclass
class _Conversation:
    """The conversation that one page shows. A new one begins with a new list, so that an answer to an earlier one,
    which is still being written, notices it and ends."""

    turns: list[Turn] = field(default_factory=list)


def _chat(gradio: Any, sides: Models, questions: Sequence[str]) -> None:
    """Both models side by side. The questions of the demo are buttons, which begin a new conversation."""
    system_prompt = sides.both[0].chat.system_prompt
    if system_prompt:
        with gradio.Accordion("System prompt, as trained", open=False):
            gradio.Textbox(system_prompt, show_label=False, interactive=False)
    conversation = gradio.State(_Conversation())
    with gradio.Row():
        boards = [gradio.Chatbot(label=name, buttons=["copy"], allow_tags=False, height=420) for name in sides.names]
    line = gradio.Textbox(placeholder=f"Type {sides.asked_with}", show_label=False, submit_btn=True)
    with gradio.Row():
        buttons = [gradio.Button(question, size="sm") for question in questions]
    again = gradio.Button("New conversation", variant="secondary", size="sm")

    def asked(question: str, current: _Conversation) -> Iterator[tuple[Any, ...]]:
        turns = current.turns
        if question.strip():
            for said in sides.ask(question, tuple(turns)):
                if turns is not current.turns:
                    break
                yield ("", *_boards([*turns, (question, tuple(text or "…" for text in said))]))
            else:
                turns.append((question, said))
        # Also after a new conversation: gradio (6.10) may send this answer's last part after the empty boards.
        yield ("", *_boards(current.turns))

    def clicked(question: str, current: _Conversation) -> Iterator[tuple[Any, ...]]:
        current.turns = []
        yield from asked(question, current)

    def begin(current: _Conversation) -> tuple[Any, ...]:
        current.turns = []
        return ("", *_boards([]))

    shown = [line, *boards]
    line.submit(asked, [line, conversation], shown, api_name="ask")
    for button in buttons:
        button.click(clicked, [button, conversation], shown, api_visibility="private")
    for clear in (again.click, *(board.clear for board in boards)):
        clear(begin, [conversation], shown, api_visibility="private")


def _boards(turns: Sequence[Turn]) -> list[list[dict[str, str]]]:
    return [
        [
            {"role": role, "content": text}
            for question, said in turns
            for role, text in (("user", question), ("assistant", said[side] or "(nothing)"))
        ]
        for side in range(2)
    ]


def _pictures(gradio: Any, sides: Pictures) -> None:
    with gradio.Row():
        picture = gradio.Image(type="filepath", label="picture", sources=["upload", "clipboard"])
        classes = gradio.Label(label="what the trained model sees", num_top_classes=5)

    def asked(file: str | None) -> dict[str, float]:
        return dict(sides.classes(Path(file))) if file else {}

    picture.change(asked, [picture], [classes], api_name="ask")
