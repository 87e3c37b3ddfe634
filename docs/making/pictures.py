"""Pictures of what commands say, for the pages: SVG, drawn by rich of real output, without a font from elsewhere.

Those of quick commands are made with the pages (pages.py). `python docs/making/pictures.py` makes those of whole rehearsals, in a
few minutes, and that of `recipe edit`, which `python docs/making/pictures.py edit` makes alone: both take Debian's Chromium.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text
from saying import said

PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 94
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Of a rehearsal's many lines, those from the proof to the first answers.
FIRST, ANSWERS = "  proven in ", "The twin is tiny"


def quick() -> dict[Path, str]:
    """What `list`, `check` and `plan` say of a copy of a starter, by where the picture lies."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        starters = said("list", folder=folder, columns=COLUMNS)  # where nobody has rehearsed anything yet
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
    """A terminal with a command and what it has said, long lines cut, as SVG. name: tells its styles from those of other pictures."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(f"$ {command}", style="bold"))
    for line in Text.from_ansi(text).split(allow_blank=True):
        line.truncate(COLUMNS, overflow="ellipsis")
        console.print(line)
    console.print()
    svg = console.export_svg(title=command, theme=MONOKAI, unique_id=f"terminal-{name}")
    svg = re.sub(r"\s*(?:<!-- Generated.*?-->|@font-face \{.*?\})", "", svg, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def rehearsed() -> None:
    """Rehearses copies of two starters, and keeps a picture of the first one's end and of the tops of both pages."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit("The picture of a page needs Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = _rehearse(folder, "my-demo", "survival")
        (PICTURES / "rehearse.svg").write_text(drawing("rehearse", "recipe rehearse my-demo.yaml", _end(text)), "utf-8")
        _picture(browser, folder / "runs/my-demo-rehearsal/report.html", PICTURES / "first-page.png")
        _rehearse(folder, "my-images", "minimal/image-classification")
        _picture(browser, folder / "runs/my-images-rehearsal/report.html", PICTURES / "page.png")


def edited() -> None:
    """Types into a copy of a starter what no longer fits its GPU, and keeps a picture of what the page of `recipe edit` says."""
    from tests.parts.editor.browsing import editing, tab_of

    with tempfile.TemporaryDirectory() as name:
        folder, file = Path(name), PICTURES / "edit.png"
        said("new", "my-demo", "--from", "survival", folder=folder)
        with (
            editing(folder, "my-demo.yaml") as address,
            tab_of(address, folder / "profile", width=1180, height=680) as tab,
        ):
            tab.push(".recipe-section", "Machines")
            tab.replace("  last_layers:", "2", "30")
            tab.until("document.querySelector('.recipe-too-large')")
            # The problem leads to its line.
            tab.click(".recipe-problem")
            tab.until("document.querySelector('.recipe-line-error') && document.querySelector('.q-field--error')")
            tab.picture(file)
        _in_few_colours(file)


def _rehearse(folder: Path, copy: str, starter: str) -> str:
    """What the rehearsal of a copy of a starter says. Exits where it fails."""
    said("new", copy, "--from", starter, folder=folder)
    done = subprocess.run(
        [sys.executable, "-m", "runner", "rehearse", f"{copy}.yaml"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr)
    return done.stdout + done.stderr[done.stderr.rfind("\nRehearsal passed") :]


def _picture(browser: str, page: Path, file: Path) -> None:
    """The top of a page."""
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1100,900")
    subprocess.run([browser, *flags, f"--screenshot={file}", page.as_uri()], check=True, capture_output=True)
    _in_few_colours(file)


def _in_few_colours(file: Path) -> None:
    """That makes it a third as large."""
    from PIL import Image

    Image.open(file).convert("RGB").quantize(72).save(file, optimize=True)
    print(file.relative_to(ROOT))


def _end(text: str) -> str:
    """From the proof to the verdict, the answers to the first question, and the last two lines."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(FIRST))
    answers = next(at for at, line in enumerate(lines) if line.startswith(ANSWERS))
    asked = [at for at, line in enumerate(lines) if not line and at > answers]
    shown = "\n".join(["…", *lines[first : asked[1]], "…", *lines[-2:]])
    # A terminal shows these words in bold.
    return re.sub(r"\*(\w+)\*", "\x1b[1m\\1\x1b[0m", shown.replace("*asterisks*", "*bold*"))


if __name__ == "__main__":
    edited()
    if sys.argv[1:] != ["edit"]:
        rehearsed()
