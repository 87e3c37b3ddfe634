"""The page of `recipe chat`, in a real browser, with models that answer as the test wants."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.parts.serve import chat
from runner.parts.serve.introduction import OfferedQuestion
from tests.parts.report import browser

needs_chromium = pytest.mark.skipif(not browser.found(), reason="no Chromium here")
PHONE = 390  # pixels


class Endless:
    """Two models whose answers never end."""

    names, asked_with = ("original", "trained"), "a question"
    both = (SimpleNamespace(chat=SimpleNamespace(system_prompt=None)),)

    def __init__(self) -> None:
        self.ended = threading.Event()

    def ask(self, question, earlier):
        try:
            for count in range(100_000):
                yield (f"word {count}", "")
                time.sleep(0.001)
        finally:
            self.ended.set()


class Obedient(Endless):
    """Two models that write one word, and end their answer when the test says so."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def ask(self, question, earlier):
        yield ("Well", "")
        assert self.may_end.wait(60)
        yield (f"old {question}", f"new {question} after {len(earlier)}")


@contextmanager
def opened(
    sides: Endless, questions: list[OfferedQuestion], home: Path, width: int = 1200
) -> Iterator[browser.Browser]:
    gradio = pytest.importorskip("gradio")
    with gradio.Blocks() as page:
        chat._chat(gradio, sides, questions)
    page.launch(
        server_name="127.0.0.1",
        prevent_thread_lock=True,
        quiet=True,
        ssr_mode=False,
        inbrowser=False,
    )
    try:
        with browser.Browser(home) as tab:
            tab.open(page.local_url, width)
            tab.until("document.querySelector('textarea')")
            yield tab
    finally:
        page.close()


def button(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find(e => e.innerText == '{text}')"


@needs_chromium
def test_an_answer_that_is_being_written_does_not_come_back_after_a_new_conversation(tmp_path):
    endless = Endless()
    with opened(endless, [OfferedQuestion("Why?")], tmp_path) as tab:
        for _ in range(3):
            endless.ended.clear()
            tab.until(button("Why?"))
            tab.value(f"{button('Why?')}.click()")
            tab.until("/word [1-9]/.test(document.body.innerText)")
            tab.value(f"{button('New conversation')}.click()")
            tab.until("!document.body.innerText.includes('word')")
            assert endless.ended.wait(20), "the answer that nobody waits for ends"
            time.sleep(0.5)
            assert "word" not in tab.value("document.body.innerText")


@needs_chromium
def test_what_is_typed_while_an_answer_is_written_stays_or_is_asked_next(tmp_path):
    obedient = Obedient()
    with opened(obedient, [OfferedQuestion("Why?")], tmp_path) as tab:
        tab.until(button("Why?"))
        tab.value(f"{button('Why?')}.click()")
        tab.until("document.body.innerText.includes('Well')")
        assert "(follows the other answer)" in tab.value("document.body.innerText"), (
            "the other side comes too"
        )
        tab.value("document.querySelector('textarea').focus()")
        for question in ("How?", "When?"):
            tab.type(question)
            tab.value("document.querySelector('button.submit-button').click()")
            tab.until(f"document.body.innerText.includes('{question}')")
            tab.until("document.querySelector('textarea').value == ''")
        tab.until("document.body.innerText.split('(asked next)').length == 5")
        tab.type("half of a ques")
        obedient.may_end.set()
        tab.until("document.body.innerText.includes('new When? after 2')")
        answers = tab.value("document.body.innerText")
        assert "new Why? after 0" in answers and "new How? after 1" in answers
        assert tab.value("document.querySelector('textarea').value") == "half of a ques"


@needs_chromium
def test_a_phone_shows_the_questions_first_with_their_origin_and_the_files_own_answer(tmp_path):
    obedient = Obedient()
    obedient.may_end.set()
    asked = [
        OfferedQuestion("Why?", "taught", "Because it rains."),
        OfferedQuestion("How?", "new", "Slowly."),
        OfferedQuestion("Who?"),
    ]
    with opened(obedient, asked, tmp_path, PHONE) as tab:
        tab.until(button("Why?"))
        tops = [f"{button(question.text)}.getBoundingClientRect().bottom" for question in asked]
        tab.until(f"Math.max({', '.join(tops)}) < 450")
        below = "document.querySelector('[aria-label=\"chatbot conversation\"]').getBoundingClientRect().top"
        assert tab.value(f"Math.max({', '.join(tops)}) <= {below}")
        words = tab.value("document.body.innerText")
        headings = (
            "Questions in the training rows:",
            "Questions held back from training:",
            "Other questions:",
        )
        assert [words.index(heading) for heading in headings] == sorted(
            words.index(heading) for heading in headings
        )
        assert "Because it rains." not in words
        for question, answer in (("Why?", "Because it rains."), ("Who?", chat.NO_ROW)):
            tab.value(f"{button(question)}.click()")
            tab.until(f"document.body.innerText.includes('new {question} after 0')")
            tab.until(f"document.body.innerText.includes('{answer}')")
        assert tab.value("document.documentElement.scrollWidth") <= PHONE, (
            "nothing scrolls sideways"
        )
