"""Pictures of what commands say, for the pages: SVG, drawn by rich of real output, without a font
from elsewhere.

Those of quick commands are made with the pages (pages.py). `python docs/making/pictures.py` makes
those of whole rehearsals, in a few minutes, and that of `recipe edit`, which `python
docs/making/pictures.py edit` makes alone. After `make demo`, `python docs/making/pictures.py chat
runs/museum` makes that of the chat page. All take Debian's Chromium.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from saying import said

from runner.tools.files import read_json
from runner.tools.run_files import ANSWERS

if TYPE_CHECKING:
    from tests.parts.report.browser import Browser

PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 94
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Of a rehearsal's many lines, those from the proof on.
FIRST = "  proven in "
# Longer than a model on a processor takes for an answer.
ANSWER_SECONDS = 120
# What the chat page shows in place of an answer that is not begun.
FOLLOWS = "(follows the other answer)"


def quick() -> dict[Path, str]:
    """What `list`, `check` and `plan` say of a copy of a starter, by where the picture lies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starters = said(
            "list", folder=folder, columns=COLUMNS
        )  # where nobody has rehearsed anything yet
        said("new", "my-demo", "--from", "survival", folder=folder)
        recipe = folder / "my-demo.yaml"
        right = recipe.read_text("utf-8")
        recipe.write_text(right.replace("  epochs: ", "  epocs: "), encoding="utf-8")
        wrong = said("check", recipe.name, folder=folder, columns=COLUMNS)
        recipe.write_text(right, encoding="utf-8")
        plan = said("plan", recipe.name, folder=folder, columns=COLUMNS)
    drawn = {
        "list": ("recipe list", starters),
        "check": ("recipe check my-demo.yaml", wrong),
        "plan": ("recipe plan my-demo.yaml", plan),
    }
    return {PICTURES / f"{name}.svg": drawing(name, *what) for name, what in drawn.items()}


def drawing(name: str, command: str, text: str) -> str:
    """A terminal with a command and what it has said, long lines cut, as SVG. name: tells its
    styles from those of other pictures."""
    console = Console(
        width=COLUMNS,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(Text(f"$ {command}", style="bold"))
    for line in Text.from_ansi(text).split(allow_blank=True):
        line.truncate(COLUMNS, overflow="ellipsis")
        console.print(line)
    console.print()
    svg = console.export_svg(title=command, theme=MONOKAI, unique_id=f"terminal-{name}")
    svg = re.sub(r"\s*(?:<!-- Generated.*?-->|@font-face \{.*?\})", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def rehearsed() -> None:
    """Rehearses copies of two starters, and keeps a picture of the first one's end and of the tops
    of both pages."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("The picture of a page needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = _rehearse(folder, "my-demo", "survival")
        (PICTURES / "rehearse.svg").write_text(
            drawing("rehearse", "recipe rehearse my-demo.yaml", _end(text)), "utf-8"
        )
        _picture(
            browser, folder / "runs/my-demo-rehearsal/report.html", PICTURES / "first-page.png"
        )
        _rehearse(folder, "my-images", "minimal/image-classification")
        _picture(browser, folder / "runs/my-images-rehearsal/report.html", PICTURES / "page.png")


def edited() -> None:
    """Opens the page of `recipe edit` with a copy of a starter, and keeps a picture of what it
    begins with."""
    from tests.parts.editor.browsing import editing, tab_of

    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), PICTURES / "edit.png"
        said("new", "my-demo", "--from", "museum", folder=folder)
        with (
            editing(folder, "my-demo.yaml") as address,
            tab_of(address, folder / "profile", width=1180, height=330, more=False) as tab,
        ):
            # The times of training here come after the verdict.
            tab.until("document.querySelector('.recipe-time')?.innerText")
            tab.until("document.querySelector('.recipe-model').innerText.includes(' here')")
            tab.picture(file)
        _in_few_colours(file)


def chatted(run: Path) -> None:
    """Asks both models of a run of the museum what a ticket costs, and keeps a picture of the chat
    page."""
    from tests import servers
    from tests.parts.report.browser import Browser

    file, museum = PICTURES / "chat.png", ROOT / "recipes/museum.yaml"
    answers = next(row for row in read_json(run / ANSWERS) if "ticket" in row["question"])
    with (
        tempfile.TemporaryDirectory() as profile,
        servers.shown("chat", museum, run, "--page") as (url, _),
        Browser(Path(profile)) as tab,
    ):
        tab.open(url, width=1100)
        tab.ask(
            "Emulation.setDeviceMetricsOverride",
            width=1100,
            height=720,
            deviceScaleFactor=1,
            mobile=False,
        )
        labelled = f"e => e.innerText.includes({json.dumps(answers['question'])})"
        button = f"[...document.querySelectorAll('button')].find({labelled})"
        _until(tab, button)
        tab.value(f"{button}.click()")
        for side in ("before", "after"):
            last_words = answers[side].split()[-4:]
            _until(tab, f"document.body.innerText.includes({json.dumps(' '.join(last_words))})")
        # The file's own answer, which is there at once, may be that of the trained model.
        _until(tab, f"!document.body.innerText.includes({json.dumps(FOLLOWS)})")
        time.sleep(ANSWER_SECONDS / 10)
        tab.picture(file)
    _in_few_colours(file)


def _until(tab: Browser, expression: str) -> None:
    """Waits until something is true on a page. Exits if that takes longer than an answer."""
    end = time.monotonic() + ANSWER_SECONDS
    while not tab.value(f"!!({expression})"):
        if time.monotonic() > end:
            sys.exit(f"The page does not show it: {expression}")
        time.sleep(0.2)


def _rehearse(folder: Path, copy: str, starter: str) -> str:
    """What the rehearsal of a copy of a starter says. Exits where it fails."""
    said("new", copy, "--from", starter, folder=folder)
    done = subprocess.run(
        [sys.executable, "-m", "runner", "rehearse", f"{copy}.yaml"],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr)
    return done.stdout + done.stderr[done.stderr.rfind("\nRehearsal passed") :]


def _picture(browser: str, page: Path, file: Path) -> None:
    """The top of a page."""
    flags = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--window-size=1100,900",
    )
    subprocess.run(
        [browser, *flags, f"--screenshot={file}", page.as_uri()], check=True, capture_output=True
    )
    _in_few_colours(file)


def _in_few_colours(file: Path) -> None:
    """That makes it a third as large."""
    from PIL import Image

    Image.open(file).convert("RGB").quantize(72).save(file, optimize=True)
    print(file.relative_to(ROOT))


def _end(text: str) -> str:
    """From the proof to the last two lines."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(FIRST))
    return "\n".join(["…", *lines[first:]])


if __name__ == "__main__":
    if sys.argv[1:2] == ["chat"]:
        chatted(Path(sys.argv[2]))
    else:
        edited()
        if sys.argv[1:] != ["edit"]:
            rehearsed()
