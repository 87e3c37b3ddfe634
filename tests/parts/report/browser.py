"""A real browser: Debian's headless Chromium, spoken to over its own pipe."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SECONDS = 90


def found() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One tab. `complaints` has what its console said of errors and warnings, broken rules of the
    page's policy among them."""

    def __init__(self, home: Path) -> None:
        (theirs, to_it), (from_it, ours) = os.pipe(), os.pipe()

        def pipes() -> None:
            # Chromium reads from 3 and writes to 4; either may be in the other's place now.
            read, write = os.dup(theirs), os.dup(ours)
            os.dup2(read, 3)
            os.dup2(write, 4)

        flags = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        )
        self.process = subprocess.Popen(
            [found() or "", *flags, f"--user-data-dir={home}", "about:blank"],
            preexec_fn=pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self.to_it, self.from_it, self.buffer, self.number = to_it, from_it, b"", 0
        self.complaints: list[str] = []
        self.loaded = False
        self.session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.to_it)
        os.close(self.from_it)

    def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to_it, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self._heard(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.from_it], [], [], max(0, end - time.monotonic()))
            more = os.read(self.from_it, 1 << 20) if ready else b""
            assert more, "the browser says nothing"
            self.buffer += more
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def _heard(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(str(params["entry"]["text"]))
        elif method == "Page.loadEventFired":
            self.loaded = True

    def open(self, file: Path | str, width: int = 1200, dark: bool = False) -> None:
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded = False
        self.ask("Page.navigate", url=file if isinstance(file, str) else file.as_uri())
        while not self.loaded:
            self._heard(self._next())

    def resize(self, width: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def value(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + SECONDS
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < end, f"{expression}: not true after {SECONDS} s"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """In the middle of the first element that a selector finds."""
        self.until(f"document.querySelector({json.dumps(selector)})")
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        x, y = (
            self.value(f"(({box}).{start} + ({box}).{end}) / 2")
            for start, end in (("left", "right"), ("top", "bottom"))
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Where the cursor is."""
        self.ask("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0) -> None:
        """key, code: as a browser names and numbers it; modifiers: 2 for Ctrl, 8 for Shift."""
        for kind in ("keyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                modifiers=modifiers,
            )

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def point_at(self, x: float, y: float) -> None:
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
