"""`recipe edit` in a real browser: what is typed is judged, mended by the form and saved; and
nobody else gets in."""

from __future__ import annotations

import urllib.error
import urllib.request

import pytest

from benchmarks import page_speed
from tests.check.test_online import hub  # noqa: F401 - a fixture
from tests.parts.editor.browsing import CLEAN, editing, in_browser, needs_nicegui, tab_of

pytestmark = [needs_nicegui, pytest.mark.heavy]


@in_browser
def test_a_mistake_is_shown_at_its_line_mended_by_the_form_and_saved(copy, tmp_path):
    before = copy.read_text("utf-8")
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until(CLEAN)
        # Nothing comes from elsewhere, and the token is no longer in the address.
        loaded = tab.value(
            "performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)"
        )
        assert len(loaded) > 10 and set(loaded) == {"127.0.0.1"}
        assert "token" not in tab.value("location.href")
        tab.replace("  sequence_len:", "1024", "8")
        tab.until("document.querySelector('.recipe-line-error')")
        assert tab.value("document.querySelector('.recipe-line-error').textContent").startswith(
            "  sequence_len: 8"
        )
        assert tab.value("document.querySelector('.recipe-error').textContent") == "8"
        tab.until_says(".recipe-summary", "1 error")
        assert "must be at least 32" in tab.says(".recipe-problem")
        assert tab.says(".recipe-waiting").startswith("Fix the errors to see the plan.")
        assert copy.read_text("utf-8") == before
        # The form says it at its field, and mends it.
        tab.push(".recipe-section", "Model")
        field = "[aria-label='Sequence length']"
        tab.until("document.querySelector('.recipe-fields .q-field--error')")
        tab.picture(tmp_path / "mistake.png")
        tab.click(field)
        tab.press("a", 65, modifiers=2)
        tab.type("512")
        tab.press("Enter", 13)
        tab.until(CLEAN)
        tab.until_says(".recipe-state", "unsaved changes")
        assert "  sequence_len: 512 " in tab.text
        tab.click(".recipe-save")
        tab.until_says(".recipe-state", "saved")
        after = copy.read_text("utf-8")
        assert after.split() == before.replace("sequence_len: 1024", "sequence_len: 512").split()
        # Another program writes; what it wrote stays until somebody says otherwise.
        copy.write_text(after + "# from elsewhere\n", encoding="utf-8")
        tab.replace("  sequence_len:", "512", "256")
        tab.until_says(".recipe-state", "unsaved changes")
        tab.click(".recipe-save")
        tab.until("document.querySelector('.recipe-both')")
        assert copy.read_text("utf-8") == after + "# from elsewhere\n"
        tab.push(".recipe-both button", "Use the text of the file")
        tab.until_says(".recipe-state", "saved")
        assert tab.complaints == []


@pytest.mark.long
@in_browser
def test_proposals_meanings_and_the_verdict_come_as_one_types(copy, tmp_path):
    with editing(tmp_path, ".") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until(CLEAN)
        tab.replace("  gpu:", "NVIDIA-L40S", "NVIDIA-A")
        tab.press(" ", 32, modifiers=2)
        tab.until("document.querySelector('.cm-tooltip-autocomplete')")
        offered = tab.says(".cm-tooltip-autocomplete")
        assert "NVIDIA-A40" in offered and "NVIDIA-A100-SXM4-80GB" in offered
        tab.until("document.querySelector('.cm-completionInfo')")
        assert "GiB" in tab.says(".cm-completionInfo")
        tab.press("Escape", 27)
        tab.type("10")
        tab.until("document.querySelector('.recipe-fits')")
        tab.replace("  last_layers:", "2", "20")
        tab.until("document.querySelector('.recipe-too-large')")
        box = "Array.from(document.querySelectorAll('.cm-line')).find(line => line.textContent.startsWith('  last_layers:')).getBoundingClientRect()"
        tab.point_at(tab.value(f"{box}.left + 40"), tab.value(f"{box}.top + 8"))
        tab.until("document.querySelector('.recipe-tooltip')")
        assert "whole number" in tab.says(".recipe-tooltip")
        # A price makes money of hours.
        tab.click("[aria-label='price per GPU hour']")
        tab.type("2.5")
        tab.press("Enter", 13)
        tab.until(
            "document.querySelector('.recipe-verdict').innerText.includes('GPU hours at 2.5 each')"
        )
        assert tab.complaints == []


# From a key to the verdict in the page, on a machine that does something else besides.
AIM_MS, NOISY = 200, 2.5


@pytest.mark.long
@in_browser
@pytest.mark.parametrize("starter", page_speed.EDITS)
def test_a_verdict_takes_at_most_a_fifth_of_a_second(starter):
    assert page_speed.median(page_speed.taken(starter)) < AIM_MS * NOISY


@pytest.mark.long
@in_browser
@pytest.mark.parametrize(("starter", "kinds"), [("seven-b", 4), ("resnet", 0), ("survival", 0)])
def test_three_rows_of_each_kind_are_shown(recipe_command, tmp_path, starter, kinds):
    assert recipe_command("new", "mine", "--from", starter, cwd=tmp_path).returncode == 0
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until("document.querySelector('.recipe-bar')")
        tab.push(".recipe-tabs .q-tab", "Data")
        tab.push(".recipe-show-rows", "Show three rows")
        tab.until(f"document.querySelectorAll('.recipe-row').length == {3 * (kinds or 1)}")
        assert tab.value("document.querySelectorAll('.recipe-kind').length") == kinds
        drawn = tab.value(
            "Array.from(document.querySelectorAll('.recipe-row img')).map((one) => one.naturalWidth)"
        )
        assert drawn == ([32] * 3 if starter == "resnet" else [])
        assert tab.complaints == []


@pytest.mark.long
@in_browser
def test_check_asks_the_hub_and_what_it_says_stands_at_its_line(tmp_path, hub):  # noqa: F811
    from tests.check.test_online import RECIPE

    (tmp_path / "mine.yaml").write_text(
        RECIPE.replace('"[question]"', '"[query]"', 1), encoding="utf-8"
    )
    asked = {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "",
    }
    with (
        editing(tmp_path, "mine.yaml", **asked) as address,
        tab_of(address, tmp_path / "profile") as tab,
    ):
        tab.until_says(".recipe-summary", "no errors")
        hub.asked.clear()
        tab.click(".recipe-check")
        tab.until_says(".recipe-summary", "1 error")
        assert hub.asked
        assert tab.says(".recipe-is-error .recipe-where") == "line 7" and "query" in tab.says(
            ".recipe-is-error"
        )
        # The line in the text is marked by another message than the list below it.
        tab.until("document.querySelector('.recipe-line-error')")
        assert tab.value("document.querySelector('.recipe-line-error').textContent").startswith(
            "    - {hub: someone/rows"
        )
        assert tab.complaints == []


@pytest.mark.long
@in_browser
def test_what_cannot_be_read_is_said_and_leaves_the_text(copy, tmp_path):
    """YAML that is broken, a file that is no text, and one that nobody may read."""
    (tmp_path / "latin.yaml").write_bytes("scenario: lora\nname: caf\xe9\n".encode("latin-1"))
    windows = copy.read_bytes().replace(b"epochs: 4", b"epochs: 6").replace(b"\n", b"\r\n")
    (tmp_path / "windows.yaml").write_bytes(windows)
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until(CLEAN)
        tab.replace("  epochs:", "epochs: 4", "epochs: [4")
        tab.until("document.querySelector('.recipe-line-error')")
        assert (
            tab.value("getComputedStyle(document.querySelector('.recipe-fields')).display")
            == "none"
        )
        assert tab.says(".recipe-waiting")
        tab.replace("  epochs:", "[4", "4")
        tab.until(CLEAN)
        tab.until_says(".recipe-state", "saved")
        _choose(tab, "latin.yaml")
        tab.until("document.querySelector('.q-notification')")
        assert "not UTF-8 text" in tab.says(".q-notification")
        assert tab.text == copy.read_text("utf-8")
        _choose(tab, "windows.yaml")
        # What is typed before its text is there comes first, and the other file stays.
        tab.until("view.state.doc.toString().includes('epochs: 6')")
        tab.until(CLEAN)
        tab.replace("  epochs:", "6", "5")
        tab.until_says(".recipe-state", "unsaved changes")
        # Changes come first.
        _choose(tab, "mine.yaml")
        tab.until("document.querySelector('.recipe-file').innerText.includes('windows.yaml')")
        tab.click(".recipe-save")
        tab.until_says(".recipe-state", "saved")
        written = (tmp_path / "windows.yaml").read_bytes()
        assert written == windows.replace(b"epochs: 6", b"epochs: 5")
        assert tab.complaints == []


@in_browser
@pytest.mark.long
def test_what_is_typed_while_the_form_writes_is_kept_and_both_are_saved(copy, tmp_path):
    """In the same moment: the form's change goes by the server, which knows nothing yet of what is
    typed."""
    wanted = copy.read_text("utf-8").replace("sequence_len: 1024", "sequence_len: 512")
    with editing(tmp_path, "mine.yaml") as address, tab_of(address, tmp_path / "profile") as tab:
        tab.until(CLEAN)
        tab.push(".recipe-section", "Model")
        tab.click("[aria-label='Sequence length']")
        tab.press("a", 65, modifiers=2)
        tab.type("512")
        tab.value(
            "document.querySelector(\"[aria-label='Sequence length']\")"
            ".dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true})),"
            "view.dispatch({changes: {from: 0, insert: '# typed 🙂 meanwhile\\n'}})"
        )
        tab.until("view.state.doc.toString().includes('sequence_len: 512')")
        tab.until(CLEAN)
        tab.click(".recipe-save")
        tab.until_says(".recipe-state", "saved")
        assert copy.read_text("utf-8") == tab.text
        assert tab.text.split() == ["#", "typed", "🙂", "meanwhile", *wanted.split()]
        assert tab.complaints == []


def _choose(tab, name: str) -> None:
    tab.click(".recipe-file")
    tab.push(".q-menu .q-item", name)


@in_browser
def test_the_curve_and_the_log_of_a_rehearsal_keep_their_height_on_every_screen(copy, tmp_path):
    def height(selector: str) -> float:
        return tab.value(f"document.querySelector('{selector}').getBoundingClientRect().height")

    with editing(tmp_path, str(copy)) as address, tab_of(address, tmp_path / "profile") as tab:
        # As after the first rehearsal.
        tab.value("document.querySelector('.recipe-work').classList.remove('hidden')")
        tab.until("document.querySelector('.recipe-curve')?.getBoundingClientRect().width > 100")
        for width in (390, 768, 1024, 1440):
            tab.resize(width)
            assert height(".recipe-curve") == height(".recipe-log") == 240
            assert tab.value("document.documentElement.scrollWidth") <= width


def test_nobody_gets_in_without_the_token_or_from_another_page(copy, tmp_path):
    def status(address: str, **headers: str) -> int:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(address, headers=headers), timeout=60
            ) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    with editing(tmp_path, "mine.yaml") as address:
        base, _, token = address.partition("?token=")
        cookie = f"recipe-edit-{base.rstrip('/').rpartition(':')[2]}={token}"
        assert status(base) == status(f"{base}?token=other") == status(f"{base}editor.js") == 403
        assert status(f"{base}report?name=mine") == 403
        assert status(f"{base}_nicegui_ws/socket.io/?EIO=4&transport=polling") == 403
        assert status(base, Cookie=cookie) == status(f"{base}editor.js", Cookie=cookie) == 200
        assert status(f"{base}editor.js", Cookie=cookie, Origin="http://127.0.0.1:1") == 403

        def said(path: str) -> str:
            asked = urllib.request.Request(f"{base}{path}", headers={"Cookie": cookie})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return answer.read().decode()

        # A name is never markup, nor a way out of the folder; and a file that is gone is said.
        assert "&lt;b&gt;mine" in said("report?name=%3Cb%3Emine")
        assert "is not the name of a recipe" in said("report?name=../../elsewhere")
        # Before the first run, the page explains how to get one, and leads back.
        no_report = said("report?name=mine")
        assert (
            "There is no run of mine" in no_report and "press Rehearse or Train here" in no_report
        )
        assert '<a href="/">' in no_report
        copy.unlink()
        assert "This file does not exist." in said("")
