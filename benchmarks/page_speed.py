"""How long `recipe edit` takes from a key to the verdict that a real browser has painted, by
starter.

`python benchmarks/page_speed.py [STARTER ...]` prints medians. It takes the extra `edit`, and
Chromium.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.parts.editor.browsing import editing, tab_of

# A line of a starter, and what is typed there in turn; each changes what the plan says.
EDITS = {
    "survival": ("  epochs:", "4356728935672"),
    "lyrics": ("  epochs:", "2356728935672"),
    "resnet": ("  width:", ("64", *("32", "48", "16", "24", "40", "56") * 2)),
    "seven-b": ("      hidden_size:", ("4096", *("2048", "4096") * 6)),
}
# The first ones load what later ones have.
WARM = 3
# Of an ordinary screen.
WIDTH, HEIGHT = 1440, 900
WATCH = """
window.took = [];
document.addEventListener("beforeinput", () => { window.began = performance.now(); }, true);
new MutationObserver(() => {
  if (!window.began) return;
  const began = window.began;
  window.began = 0;
  requestAnimationFrame(() => setTimeout(() => window.took.push(performance.now() - began)));
}).observe(document.querySelector(".recipe-said-of-plan"), { subtree: true, childList: true, characterData: true });
"""


def taken(starter: str) -> list[float]:
    """Milliseconds from a key to its verdict, of each that is typed into a copy of a starter."""
    line, values = EDITS[starter]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        new = [sys.executable, "-m", "runner", "new", "mine", "--from", starter]
        subprocess.run(
            new,
            cwd=folder,
            check=True,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        with (
            editing(folder, "mine.yaml") as address,
            tab_of(address, folder / "profile", width=WIDTH, height=HEIGHT) as tab,
        ):
            tab.until("document.querySelector('.recipe-bar')")
            tab.value(f"{WATCH}; 0")
            for count, (before, after) in enumerate(pairwise(values), 1):
                tab.replace(line, before, after)
                tab.until(f"window.took.length == {count}")
            return list(tab.value("window.took")[WARM:])


def main() -> None:
    for starter in sys.argv[1:] or EDITS:
        found = taken(starter)
        print(
            f"{starter:<10} {median(found):4.0f} ms from a key to the verdict (median of {len(found)}; {min(found):.0f} to {max(found):.0f})"
        )


if __name__ == "__main__":
    main()
