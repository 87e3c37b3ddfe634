"""A rehearsal from the page: with a live curve to its end, stopped, failed, and ended with the
page."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.parts.editor.browsing import CLEAN, editing, in_browser, needs_nicegui, tab_of

pytestmark = [needs_nicegui, in_browser, pytest.mark.heavy, pytest.mark.long]

SAID = ".recipe-said"
# Of a rehearsal on a machine that does something else besides.
SECONDS = 400
# The points of both lines of the curve.
POINTS = "getElement(document.querySelector('.recipe-curve')).chart.getOption().series.map((line) => line.data.length)"

# Whether the last line of the log is in view.
LAST_LINE = "((log, end) => end && end.bottom <= log.bottom + 1)(...['', ' > div > div:last-child'].map((inner) => document.querySelector('.recipe-log' + inner)?.getBoundingClientRect()))"


def processes(folder: Path) -> list[str]:
    """The command lines of processes that work on something in a folder, the page's own left
    out."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if (
            any(str(folder) in word for word in words)
            and "edit" not in words
            and "chrom" not in words[0]
        ):
            found.append(" ".join(words))
    return found


def until_gone(folder: Path, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while left := processes(folder):
        assert time.monotonic() < end, left
        time.sleep(0.2)


def test_a_rehearsal_is_stopped_goes_on_and_ends_with_a_curve_and_a_report(copy, tmp_path):
    with editing(tmp_path, str(copy)) as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until(CLEAN)
        tab.replace("  epochs:", "4", "3")
        tab.until(
            "document.querySelector('.recipe-rehearse').innerText.includes('Save and rehearse')"
        )
        tab.click(".recipe-rehearse")
        tab.until("document.querySelector('.recipe-stop').checkVisibility()")
        assert "epochs: 3" in copy.read_text("utf-8")
        tab.until_says(SAID, "Rehearsing: step ", SECONDS)
        assert processes(tmp_path)
        tab.click(".recipe-stop")
        tab.until_says(SAID, "The rehearsal was stopped.")
        until_gone(tmp_path)
        tab.until("!document.querySelector('.recipe-stop').checkVisibility()")
        tab.click(".recipe-rehearse")
        tab.until_says(SAID, "Rehearsing: step ", SECONDS)
        tab.until(f"{POINTS}[0] > 3")
        tab.until_says(
            SAID,
            "The rehearsal passed: the whole recipe works here, with a tiny model. Report shows what it learned.",
            SECONDS,
        )
        training, validation = tab.value(POINTS)
        assert training > 10 and validation > 1
        assert "validation loss" in tab.says(".recipe-log")
        # The log shows its last line, also after the page has become narrow.
        tab.resize(390)
        tab.until(LAST_LINE)
        tab.picture(tmp_path / "rehearsed.png")
        tab.value("window.open = (address) => { window.asked = address; }, 0")
        tab.click(".recipe-report")
        tab.until("window.asked == '/report?name=mine'")
        assert tab.complaints == []
        tab.open(address.partition("?")[0] + "report?name=mine")
        tab.until("document.title.includes('mine') && document.querySelector('svg')")


def test_a_rehearsal_that_fails_says_why(copy, tmp_path):
    rows = tmp_path / "data" / "survival-sample.jsonl"
    rows.write_text(rows.read_text("utf-8").splitlines()[0] + "\n", encoding="utf-8")
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until_says(".recipe-summary", "no errors")
        tab.click(".recipe-rehearse")
        tab.until_says(SAID, "The rehearsal failed", SECONDS)
        assert "too few" in tab.says(".recipe-log").lower()
        assert "Rehearse" in tab.says(".recipe-rehearse")
        assert tab.complaints == []


@pytest.mark.parametrize("closed", ["tab", "page"])
def test_a_rehearsal_ends_with_the_last_tab_and_with_the_page(copy, tmp_path, closed):
    with editing(tmp_path, str(copy)) as address:
        with tab_of(address, tmp_path / "profile") as tab:
            tab.until(CLEAN)
            tab.click(".recipe-rehearse")
            tab.until_says(SAID, "Rehearsing: step ", SECONDS)
            # Loaded anew it shows the same rehearsal.
            tab.show(address)
            tab.until_says(SAID, "Rehearsing: step ")
            assert processes(tmp_path)
            assert tab.complaints == []
        if closed == "tab":
            until_gone(tmp_path)
    until_gone(tmp_path)


PAGE = """import sys, time
from pathlib import Path
from runner.parts.editor.run_process import REHEARSAL, RunProcess
process = RunProcess()
process.start(REHEARSAL, Path(sys.argv[1]))
time.sleep(600)
"""


def test_a_rehearsal_ends_when_its_page_is_killed(copy, tmp_path):
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", PAGE, str(copy)], cwd=tmp_path, env=env) as page:
        end = time.monotonic() + SECONDS
        while not list(tmp_path.glob("runs/*/*/*.log")):
            assert page.poll() is None and time.monotonic() < end
            time.sleep(0.2)
        assert processes(tmp_path)
        page.kill()
    until_gone(tmp_path, 10)  # it takes longer to its own end
