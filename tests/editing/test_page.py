"""`recipe edit` in a real browser: what is typed is judged, mended by the form, saved and rehearsed; and nobody else gets in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.report import browser

pytestmark = [
    pytest.mark.skipif(find_spec("nicegui") is None, reason="NiceGUI is not here (pip install 'recipe-runner[edit]')"),
    pytest.mark.heavy,
]
in_browser = pytest.mark.skipif(browser.found() is None, reason="no Chromium here (apt-get install chromium)")


def heeds() -> None:
    """^C is heeded, also where the tests themselves run in the background of a shell, which leaves it out."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def editing(folder: Path, path: str):
    """The address of a page for a recipe in a folder."""
    command = [sys.executable, "-m", "runner", "edit", path, "--port", "0"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    said = folder / "said.txt"
    with (
        said.open("w") as errors,
        subprocess.Popen(
            command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=heeds
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
    assert said.read_text("utf-8").strip() == "Interrupted."


@pytest.fixture
def copy(recipe_command, tmp_path) -> Path:
    done = recipe_command("new", "mine", "--from", "survival", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path / "mine.yaml"


@contextmanager
def tab_of(address: str, profile: Path):
    with browser.Browser(profile) as tab:
        tab.open(address)
        # So high that every line is there.
        tab.ask("Emulation.setDeviceMetricsOverride", width=1440, height=2600, deviceScaleFactor=1, mobile=False)
        tab.until("document.querySelector('.recipe-bar') && document.querySelector('.recipe-attached')")
        yield tab


def summary(tab: browser.Browser) -> str:
    return tab.value("document.querySelector('.recipe-summary').innerText")


# The first line that begins so.
LINE = "Array.from(document.querySelectorAll('.cm-line')).find(line => line.textContent.startsWith('{}'))"


def select(tab: browser.Browser, line: str, text: str) -> None:
    """Selects a piece of the text in the editor, in the line that begins so, as a mouse would."""
    found = tab.value(
        f"(() => {{ const walk = document.createTreeWalker({LINE.format(line)}, NodeFilter.SHOW_TEXT);"
        f" while (walk.nextNode()) {{ const at = walk.currentNode.data.indexOf({text!r}); if (at >= 0) {{"
        " const range = document.createRange(); range.setStart(walk.currentNode, at);"
        f" range.setEnd(walk.currentNode, at + {len(text)}); document.querySelector('.cm-content').focus();"
        " getSelection().removeAllRanges(); getSelection().addRange(range); return true; } } })()"
    )
    assert found, f"{text} is not in the line {line}"


@pytest.mark.long
@in_browser
def test_a_mistake_is_shown_at_its_line_mended_by_the_form_and_saved(copy, tmp_path):
    before = copy.read_text("utf-8")
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until("document.querySelector('.recipe-summary').innerText == 'no errors, no notes'")
        # Nothing comes from elsewhere, and the token is no longer in the address.
        loaded = tab.value("performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)")
        assert len(loaded) > 10 and set(loaded) == {"127.0.0.1"}
        assert "token" not in tab.value("location.href")
        select(tab, "  sequence_len:", "1024")
        tab.type("8")
        tab.until("document.querySelector('.recipe-line-error')")
        assert tab.value("document.querySelector('.recipe-line-error').textContent").startswith("  sequence_len: 8")
        assert tab.value("document.querySelector('.recipe-error').textContent") == "8"
        tab.until("document.querySelector('.recipe-summary').innerText.startsWith('1 error')")
        assert "must be at least 32" in tab.value("document.querySelector('.recipe-problem').innerText")
        assert copy.read_text("utf-8") == before
        # The form says it at its field, and mends it.
        tab.value("Array.from(document.querySelectorAll('.recipe-section')).find(b => b.innerText == 'Model').click()")
        field = "[aria-label='Sequence length']"
        tab.until(f'document.querySelector("{field}")')
        tab.until("document.querySelector('.recipe-fields .q-field--error')")
        tab.picture(tmp_path / "mistake.png")
        tab.click(field)
        tab.press("a", 65, modifiers=2)
        tab.type("512")
        tab.press("Enter", 13)
        tab.until("document.querySelector('.recipe-summary').innerText == 'no errors, no notes'")
        tab.until("document.querySelector('.recipe-state').innerText == 'unsaved changes'")
        assert tab.value(LINE.format("  sequence_len:") + ".textContent").startswith("  sequence_len: 512 ")
        tab.click(".recipe-save")
        tab.until("document.querySelector('.recipe-state').innerText == 'saved'")
        after = copy.read_text("utf-8")
        assert after.split() == before.replace("sequence_len: 1024", "sequence_len: 512").split()
        # Another program writes; what it wrote stays until somebody says otherwise.
        copy.write_text(after + "# from elsewhere\n", encoding="utf-8")
        select(tab, "  sequence_len:", "512")
        tab.type("256")
        tab.until("document.querySelector('.recipe-state').innerText == 'unsaved changes'")
        tab.click(".recipe-save")
        tab.until("document.querySelector('.recipe-both')")
        assert copy.read_text("utf-8") == after + "# from elsewhere\n"
        tab.value("Array.from(document.querySelectorAll('.recipe-both button'))[1].click()")
        tab.until("document.querySelector('.recipe-state').innerText == 'saved'")
        assert tab.complaints == []


@pytest.mark.long
@in_browser
def test_proposals_meanings_and_the_verdict_come_as_one_types(copy, tmp_path):
    with editing(tmp_path, ".") as address, tab_of(address, tmp_path / "profile") as tab:
        select(tab, "  gpu:", "NVIDIA-L40S")
        tab.type("NVIDIA-A")
        tab.press(" ", 32, modifiers=2)
        tab.until("document.querySelector('.cm-tooltip-autocomplete')")
        offered = tab.value("document.querySelector('.cm-tooltip-autocomplete').innerText")
        assert "NVIDIA-A40" in offered and "NVIDIA-A100-SXM4-80GB" in offered
        tab.until("document.querySelector('.cm-completionInfo')")
        assert "GiB" in tab.value("document.querySelector('.cm-completionInfo').innerText")
        tab.press("Escape", 27)
        tab.type("10")
        tab.until("document.querySelector('.recipe-too-large')")
        box = LINE.format("  last_layers:") + ".getBoundingClientRect()"
        tab.point_at(tab.value(f"{box}.left + 40"), tab.value(f"{box}.top + 8"))
        tab.until("document.querySelector('.recipe-tooltip')")
        assert "whole number" in tab.value("document.querySelector('.recipe-tooltip').innerText")
        assert tab.complaints == []


# From a key to the verdict in the page, on a machine that does something else besides.
AIM_MS, NOISY = 200, 2.5


@pytest.mark.long
@in_browser
def test_a_verdict_takes_at_most_a_fifth_of_a_second(copy, tmp_path):
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.value(
            "window.took = []; new MutationObserver(() => {"
            " const said = document.querySelector('.recipe-memory')?.innerText;"
            " if (window.began && said && said != window.said) {"
            " window.took.push(performance.now() - window.began); window.began = 0; window.said = said; } })"
            ".observe(document.body, {subtree: true, childList: true, characterData: true}), 0"
        )
        # Each length takes another amount of memory; the first ones warm up.
        now, sizes = "1024", (512, 640, 700, 768, 800, 896, 960, 512, 640)
        for count, size in enumerate(sizes, 1):
            select(tab, "  sequence_len:", now)
            tab.value(
                "window.said = document.querySelector('.recipe-memory').innerText, window.began = performance.now()"
            )
            now = str(size)
            tab.type(now)
            tab.until(f"window.took.length == {count}")
        took = sorted(tab.value("window.took")[3:])
        print("from key to verdict, ms:", took)
        assert took[len(took) // 2] < AIM_MS * NOISY, took


def test_nobody_gets_in_without_the_token_or_from_another_page(copy, tmp_path):
    def status(address: str, **headers: str) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=60) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    with editing(tmp_path, "mine.yaml") as address:
        base, _, token = address.partition("?token=")
        cookie = f"recipe-edit-{base.rstrip('/').rpartition(':')[2]}={token}"
        assert status(base) == status(f"{base}?token=other") == status(f"{base}editor.js") == 403
        assert status(f"{base}_nicegui_ws/socket.io/?EIO=4&transport=polling") == 403
        assert status(base, Cookie=cookie) == status(f"{base}editor.js", Cookie=cookie) == 200
        assert status(f"{base}editor.js", Cookie=cookie, Origin="http://127.0.0.1:1") == 403


@pytest.mark.long
@in_browser
def test_a_rehearsal_runs_to_its_end_with_a_live_curve_and_a_report(copy, tmp_path):
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        select(tab, "  epochs:", "4")
        tab.type("3")
        tab.until("document.querySelector('.recipe-rehearse').innerText.includes('Save and rehearse')")
        tab.click(".recipe-rehearse")
        tab.until("document.querySelector('.recipe-rehearse').innerText.includes('Stop')")
        assert "epochs: 3" in copy.read_text("utf-8")
        for said in ("Rehearsing: step ", "The rehearsal is done."):
            for _ in range(4):  # as long as a browser is waited for, each
                with suppress(AssertionError):
                    tab.until(f"document.querySelector('.recipe-said').innerText.startsWith({said!r})")
                    break
        assert tab.value("document.querySelector('.recipe-said').innerText") == "The rehearsal is done."
        assert "validation loss" in tab.value("document.querySelector('.recipe-log').innerText")
        tab.picture(tmp_path / "rehearsed.png")
        assert tab.complaints == []
        tab.open(address.partition("?")[0] + "report?name=mine")
        tab.until("document.title.includes('mine')")
