"""The page of `recipe edit` in a real browser: its process, a tab on it, and what is done and seen
there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.parts.report.browser import Browser, found

needs_nicegui = pytest.mark.skipif(
    find_spec("nicegui") is None, reason="NiceGUI is not here (pip install 'recipe-runner[edit]')"
)
in_browser = pytest.mark.skipif(
    found() is None, reason="no Chromium here (apt-get install chromium)"
)
STUB_PAGE = Path(__file__).with_name("stub_page.py")
# So high that every line of the text is there.
WIDTH, HEIGHT = 1440, 2600
CLEAN = "document.querySelector('.recipe-summary')?.innerText == 'no errors, no notes'"


@contextmanager
def editing(folder: Path, path: str, recipe_command: Sequence[str] = (), **env: str):
    """The address of a page for a recipe in a folder. recipe_command: what stands in for the
    command `recipe` that it runs; env: more of the environment."""
    command = [sys.executable, "-m", "runner", "edit", path, "--port", "0"]
    if recipe_command:
        command = [sys.executable, str(STUB_PAGE), path, *recipe_command]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **env}
    said = folder / "said.txt"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout
            line = process.stdout.readline()
            assert line.startswith("The page: http://127.0.0.1:"), line
            yield line.split()[2]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
    ended = said.read_text("utf-8").strip()
    assert ended == "Stopped by ^C. The same command starts again.", ended


class Tab(Browser):
    """The page in a tab of its own browser."""

    def show(
        self,
        address: str,
        width: int = WIDTH,
        height: int = HEIGHT,
        dark: bool = False,
        more: bool = True,
    ) -> None:
        """Opens the page, and what is under `More`, and waits until its text can be typed in and
        has been judged."""
        self.open(address, dark=dark)
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.until(
            "document.querySelector('.recipe-attached') && document.querySelector('.recipe-summary')"
        )
        code = "import('nicegui-codemirror').then((m) => void (window.view = m.EditorView.findFromDOM(document.querySelector('.cm-editor'))))"
        self.ask("Runtime.evaluate", expression=code, awaitPromise=True)
        if more:
            self.click(".recipe-more > summary")

    def give(self, file: Path) -> None:
        """Chooses a file in the dialog of the button `Upload`."""
        root = self.ask("DOM.getDocument")["root"]["nodeId"]
        input_of_files = ".recipe-uploader input[type=file]"
        self.until(f"document.querySelector('{input_of_files}')")
        found = self.ask("DOM.querySelector", nodeId=root, selector=input_of_files)
        self.ask("DOM.setFileInputFiles", nodeId=found["nodeId"], files=[str(file)])

    def fill(self, label: str, text: str) -> None:
        """Types in place of what a field has, and leaves it."""
        self.click(f"[aria-label='{label}']")
        self.press("a", 65, modifiers=2)
        self.type(text)
        self.press("Tab", 9)

    def select(self, line: str, text: str) -> None:
        """Selects a piece of the text, in the first line that begins so and has it."""
        found = self.value(
            "(() => { for (let number = 1; number <= view.state.doc.lines; number++) {"
            " const line = view.state.doc.line(number);"
            f" const at = line.text.startsWith({json.dumps(line)}) ? line.text.indexOf({json.dumps(text)}) : -1;"
            " if (at < 0) continue; view.focus();"
            f" view.dispatch({{selection: {{anchor: line.from + at, head: line.from + at + {len(text)}}}}});"
            " return true; } })()"
        )
        assert found, f"{text} is not in the line {line}"

    def replace(self, line: str, text: str, by: str) -> None:
        """Types in place of a piece of the text."""
        self.select(line, text)
        self.type(by)

    @property
    def text(self) -> str:
        return self.value("view.state.doc.toString()")

    def says(self, selector: str) -> str:
        """The text of the first element that a selector finds."""
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def until_says(self, selector: str, text: str, seconds: float = 90) -> None:
        """Waits until that element's text begins so."""
        end = time.monotonic() + seconds
        begins = f"document.querySelector({json.dumps(selector)})?.innerText.startsWith({json.dumps(text)})"
        while not self.value(f"!!({begins})"):
            assert time.monotonic() < end, f"`{selector}` says: {self.says(selector)}"
            time.sleep(0.1)

    def push(self, selector: str, text: str) -> None:
        """The button with that text, of those that a selector finds."""
        named = f"Array.from(document.querySelectorAll({json.dumps(selector)})).find((one) => one.innerText.trim() == {json.dumps(text)})"
        self.until(named)
        self.value(f"{named}.click()")


@contextmanager
def tab_of(address: str, profile: Path, **look):
    with Tab(profile) as tab:
        tab.show(address, **look)
        yield tab
