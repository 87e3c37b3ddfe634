"""The page of `recipe chat`, in a real browser, with models that answer as the test wants."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from runner.parts.serve import chat
from tests.parts.report import browser


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


@pytest.mark.skipif(not browser.found(), reason="no Chromium here")
def test_an_answer_that_is_being_written_does_not_come_back_after_a_new_conversation(tmp_path):
    gradio = pytest.importorskip("gradio")
    endless = Endless()
    with gradio.Blocks() as page:
        chat._chat(gradio, endless, ["Why?"])
    page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, ssr_mode=False, inbrowser=False)
    try:
        with browser.Browser(tmp_path) as tab:
            tab.open(page.local_url)
            for _ in range(3):
                endless.ended.clear()
                tab.until("[...document.querySelectorAll('button')].find(e => e.innerText == 'Why?')")
                tab.value("[...document.querySelectorAll('button')].find(e => e.innerText == 'Why?').click()")
                tab.until("/word [1-9]/.test(document.body.innerText)")
                tab.value(
                    "[...document.querySelectorAll('button')].find(e => e.innerText == 'New conversation').click()"
                )
                tab.until("!document.body.innerText.includes('word')")
                assert endless.ended.wait(20), "the answer that nobody waits for ends"
                time.sleep(0.5)
                assert "word" not in tab.value("document.body.innerText")
    finally:
        page.close()
