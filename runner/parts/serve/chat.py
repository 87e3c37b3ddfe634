"""Chatting with the models of a stage, which stay in memory, side by side, in the terminal or on a
gradio page."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from runner.parts.serve.introduction import OfferedQuestion, by_origin, expected_answers
from runner.recipe.recipe import Recipe
from runner.run import inference as ask
from runner.run.run_folder import StageFolder
from runner.tools.process import HOST, free_port
from runner.trainer.generation import Earlier, LoadedModel, cannot_load, load

Turn = tuple[str, tuple[str, ...]]  # a question and the answer of each side
YOUR_FILE = "your file"  # the heading above the answers of the rows themselves
NO_ROW = "(no answer on record)"  # a run records those of its own questions alone


class Models(NamedTuple):
    """Two models that answer in words, one after the other, because they share a processor. A chat
    model knows its own earlier answers; a model that continues a text starts again each time."""

    both: tuple[LoadedModel, LoadedModel]
    names: tuple[str, ...] = ("original", "trained")

    @property
    def asked_with(self) -> str:
        if self.both[0].chat.chat:
            return "a question"
        return "the beginning of a text"

    def ask(self, question: str, earlier: Sequence[Turn]) -> Iterator[tuple[str, ...]]:
        """The answer of each side so far, repeatedly; the complete ones last. earlier: the
        conversation so far."""
        answers = ["" for _ in self.both]
        for side, loaded in enumerate(self.both):
            turns = []
            for earlier_question, earlier_answers in earlier:
                turns.append((earlier_question, earlier_answers[side]))
            for answers[side] in stream(loaded, question, turns):
                yield tuple(answers)


def unfinished(answers: Sequence[str]) -> tuple[str, ...]:
    """What each side shows while the answers are written, one after the other: the words so far, or
    that they come."""
    written_first, *written_next = answers
    return (
        written_first or "…",
        *(text or "(follows the other answer)" for text in written_next),
    )


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
    classes = ask.of_pictures(folder)
    if classes:
        return Pictures(classes)
    before, after = ask.models(recipe, folder)
    loaded = load(before)
    if not after.adapter:
        return Models((loaded, load(after)))
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        adapted = PeftModel.from_pretrained(loaded.model, after.adapter).eval()
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise cannot_load(after.adapter, error) from error
    # With an adapter, one model is in memory, whose adapter is switched on and off.
    original = LoadedModel(before, adapted, loaded.tokenizer, adapted.disable_adapter, loaded.alone)
    return Models(
        (
            original,
            LoadedModel(after, adapted, loaded.tokenizer, alone=loaded.alone),
        )
    )


def stream(loaded: LoadedModel, question: str, earlier: Earlier = ()) -> Iterator[str]:
    """A model's answer so far, while it is generated; the complete answer last. It can be
    cancelled."""
    from transformers import StoppingCriteriaList

    tokens: list[int] | None = None
    texts = queue.Queue[str | None]()
    unwanted = threading.Event()

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


def show_page(
    sides: Sides,
    title: str,
    model_lines: Sequence[str],
    questions: Sequence[OfferedQuestion],
    port: int,
    ready: Callable[[str], None],
) -> None:
    """Shows the page until ^C. model_lines: about the models. port: 0 for any; ready: gets the
    address. Raises Stop if the port is not available."""
    # gradio would otherwise look for updates and report this start.
    os.environ.update(GRADIO_ANALYTICS_ENABLED="False", HF_HUB_DISABLE_TELEMETRY="1")
    import gradio

    with gradio.Blocks(
        title=title, analytics_enabled=False, fill_height=isinstance(sides, Models)
    ) as page:
        # Two spaces at its end keep a line apart from the next in one paragraph.
        gradio.Markdown(f"# {title}\n\n" + "  \n".join(model_lines))
        if isinstance(sides, Models):
            _chat(gradio, sides, questions)
        else:
            _pictures(gradio, sides)
    # The theme would download its fonts.
    theme = gradio.themes.Default(
        font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
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
    """The conversation that one page shows. A new one begins with a new list of turns, so that an
    answer to an earlier one, which is still being written, notices it and ends."""

    turns: list[Turn] = field(default_factory=list)
    writing: Turn | None = None  # the question that is being answered, with the answers so far
    waiting: list[str] = field(default_factory=list)  # questions that are asked next

    def begin(self) -> None:
        self.turns = []
        self.writing = None
        self.waiting = []

    @property
    def shown(self) -> list[Turn]:
        """Everything that the boards show, in order."""
        turns: list[Turn] = []
        for question, answers in self.turns:
            turns.append((question, tuple(text or "(nothing)" for text in answers)))
        if self.writing:
            question, answers = self.writing
            turns.append((question, unfinished(answers)))
        for question in self.waiting:
            turns.append((question, ("(asked next)",) * 2))
        return turns

    def answer(self, sides: Models) -> Iterator[None]:
        """Answers the first question that waits, if any. It yields whenever `shown` may have
        changed."""
        if self.waiting:
            turns = self.turns
            question = self.waiting.pop(0)
            answers: tuple[str, ...] = ("", "")
            self.writing = (question, answers)
            yield
            try:
                for answers in sides.ask(question, tuple(turns)):
                    if turns is not self.turns:
                        break
                    self.writing = (question, answers)
                    yield
                else:
                    turns.append((question, answers))
            finally:
                if turns is self.turns:
                    self.writing = None
        # Also after a new conversation: gradio (6.10) may send this answer's last part after the
        # empty boards.
        yield


def _chat(gradio: Any, sides: Models, questions: Sequence[OfferedQuestion]) -> None:
    """Both models side by side. The questions of the demo are buttons, which begin a new
    conversation."""
    expected = expected_answers(questions)
    names = list(sides.names)
    if expected:
        names.append(YOUR_FILE)
    conversation = gradio.State(_Conversation())
    buttons = _question_buttons(gradio, questions)
    system_prompt = sides.both[0].chat.system_prompt
    if system_prompt:
        with gradio.Accordion("System prompt, as trained", open=False):
            gradio.Textbox(system_prompt, show_label=False, interactive=False)
    with gradio.Row(equal_height=True):
        # They grow with the answers, so that a phone, which shows them one below the other, shows
        # all of them.
        boards = []
        for name in names:
            boards.append(
                gradio.Chatbot(
                    label=name,
                    buttons=["copy"],
                    allow_tags=False,
                    height=None,
                    min_height=130,
                    max_height=420,
                )
            )
    line = gradio.Textbox(placeholder=f"Type {sides.asked_with}", show_label=False, submit_btn=True)
    again = gradio.Button("New conversation", variant="secondary", size="sm")

    def draw(current: _Conversation) -> tuple[Any, ...]:
        return tuple(_board(column) for column in _columns(current.shown, expected))

    def typed(question: str, current: _Conversation) -> tuple[Any, ...]:
        if question.strip():
            current.waiting.append(question)
        return ("", *draw(current))

    def clicked(question: str, current: _Conversation) -> tuple[Any, ...]:
        begin(current)
        current.waiting.append(question)
        return draw(current)

    def begin(current: _Conversation) -> tuple[Any, ...]:
        current.begin()
        return draw(current)

    def answer(current: _Conversation) -> Iterator[tuple[Any, ...]]:
        for _ in current.answer(sides):
            yield draw(current)

    # A question is taken at once, also while an answer is written, and only then waits for the
    # models. The answers never write into the text box, so that what is being typed stays there.
    at_once = {"queue": False, "trigger_mode": "multiple", "show_progress": "hidden"}
    in_turn = {"concurrency_limit": 1, "concurrency_id": "models", "trigger_mode": "multiple"}
    questions_asked = [
        line.submit(
            typed, [line, conversation], [line, *boards], api_visibility="private", **at_once
        )
    ]
    for button in buttons:
        questions_asked.append(
            button.click(
                clicked, [button, conversation], boards, api_visibility="private", **at_once
            )
        )
    for event in questions_asked:
        event.then(
            answer,
            [conversation],
            boards,
            api_visibility="private",
            show_progress="hidden",
            **in_turn,
        )
    for clear in (again.click, *(board.clear for board in boards)):
        clear(begin, [conversation], boards, api_visibility="private", **at_once)


def _question_buttons(gradio: Any, questions: Sequence[OfferedQuestion]) -> list[Any]:
    buttons: list[Any] = []
    for heading, group in by_origin(questions):
        if heading:
            gradio.Markdown(f"{heading}:")
        with gradio.Row():
            for question in group:
                buttons.append(gradio.Button(question.text, size="sm"))
    return buttons


def _columns(turns: Sequence[Turn], expected: Mapping[str, str]) -> list[list[tuple[str, str]]]:
    """Each question with its answer, for each board. expected: the answers of the rows; empty if
    there is no board for them."""
    columns = []
    for side in range(2):
        columns.append([(question, answers[side]) for question, answers in turns])
    if expected:
        columns.append([(question, expected.get(question, NO_ROW)) for question, _ in turns])
    return columns


def _board(column: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """A board of gradio: each question with the text below it."""
    board: list[dict[str, str]] = []
    for question, answer in column:
        board.append({"role": "user", "content": question})
        board.append({"role": "assistant", "content": answer})
    return board


def _pictures(gradio: Any, sides: Pictures) -> None:
    with gradio.Row():
        picture = gradio.Image(type="filepath", label="picture", sources=["upload", "clipboard"])
        classes = gradio.Label(label="what the trained model sees", num_top_classes=5)

    def asked(file: str | None) -> dict[str, float]:
        if file:
            return dict(sides.classes(Path(file)))
        return {}

    picture.change(asked, [picture], [classes], api_name="ask")
