"""Training and chat from the page: one command at a time, stopped with its checkpoint, asked about
if it is long; and the children end with the page's server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from runner.check.validate import load
from runner.parts.editor import judging
from runner.parts.editor.chat_process import ChatProcess
from runner.parts.editor.run_process import REHEARSAL, TRAINING, RunProcess
from runner.run.run_folder import folder
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.parts.editor.browsing import editing, in_browser, needs_nicegui, tab_of

STUB = [sys.executable, str(Path(__file__).with_name("stub_recipe.py"))]
NOTHING_YET = (
    "There is nothing to chat with yet: press Train here, and come back when training has finished."
)
STATE = ".recipe-said"
SECONDS = 60


@pytest.fixture
def museum(recipe_command, tmp_path, monkeypatch) -> Path:
    """A recipe for the small model, in the current folder, as children of this process find it."""
    done = recipe_command("new", "mine", "--from", "museum", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "mine.yaml"


def until(holds, seconds: float = SECONDS) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def commands(folder: Path) -> list[list]:
    """The commands that the stub got so far: their words, and the process as the last."""
    file = folder / "commands"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@contextmanager
def running(process: RunProcess):
    try:
        yield process
    finally:
        process.close()


def until_step(process: RunProcess, step: int) -> None:
    def reached() -> bool:
        process.read()
        return bool(process.losses) and process.losses[-1][0] >= step

    until(reached)


def test_one_command_runs_at_a_time(museum, tmp_path):
    with running(RunProcess(STUB)) as process:
        process.start(TRAINING, museum)
        until_step(process, 2)
        for work in (TRAINING, REHEARSAL):
            with pytest.raises(Stop) as refused:
                process.start(work, museum)
            assert refused.value.text == (
                "A training is running already.\nWait until it ends, or press Stop."
            )
        process.stop()
        until(lambda: not process.running)
        process.start(REHEARSAL, museum)
        with pytest.raises(Stop, match=r"^A rehearsal is running already\."):
            process.start(TRAINING, museum)
    words = [entry[:-1] for entry in commands(tmp_path)]
    assert words[0] == ["run", "--yes", str(museum)]
    assert words[1:] in ([], [["rehearse", str(museum)]])  # it may end before it begins


def test_the_progress_has_steps_loss_and_time_left(museum):
    with running(RunProcess(STUB)) as process:
        process.start(TRAINING, museum)
        assert process.state == "Training: preparing."
        until_step(process, 1)
        first = process.losses[-1][0]
        until_step(process, first + 4)
        assert process.state.startswith("Training: step ")
        step, loss = process.losses[-1]
        assert f"step {step} of 40, loss {loss:.3f}, about " in process.state
        seconds = int(process.state.removesuffix(" s left.").rpartition(" ")[2])
        # A step every 0.2 s, on a machine that does something else besides.
        assert 0.19 * (40 - step) <= seconds + 1 < 5 * (40 - step)


def test_stop_keeps_the_checkpoint_and_the_next_start_goes_on(museum, tmp_path):
    with running(RunProcess(STUB)) as process:
        process.start(TRAINING, museum)
        until_step(process, 3)
        process.stop()
        until(lambda: not process.running)
        process.read()
        assert process.state == (
            "The training was stopped. The next one continues from the last checkpoint."
        )
        saved = int((tmp_path / "checkpoint").read_text())
        assert saved >= 3
        process.start(TRAINING, museum)
        until_step(process, saved + 1)
        assert process.lines == [f"continues after step {saved}"]
        (tmp_path / "finish").touch()
        until(lambda: not process.running)
        assert process.state == (
            "The training is finished. Chat asks the trained model, and Report shows what it learned."
        )
        (tmp_path / "mine.yaml").unlink()
        process.start(TRAINING, museum)
        until(lambda: not process.running)
        assert process.state == "The training failed. The last lines below explain why."


def test_a_training_goes_on_without_a_tab_and_a_rehearsal_does_not(museum):
    with running(RunProcess(STUB)) as process:
        process.watching = 2
        process.start(TRAINING, museum)
        until_step(process, 1)
        process.leave()
        process.leave()
        time.sleep(0.5)
        assert process.running
        process.stop()
        until(lambda: not process.running)
        process.watching = 2
        process.start(REHEARSAL, museum)
        until_step(process, 1)
        process.leave()
        time.sleep(0.5)
        assert process.running
        process.leave()
        until(lambda: not process.running)


def test_closing_waits_until_a_command_has_ended(museum):
    process = RunProcess(STUB)
    process.start(TRAINING, museum)
    until_step(process, 1)
    process.close()
    assert not process.running
    process.close()  # again it does nothing


def test_chat_needs_a_finished_training_and_starts_once(museum, tmp_path):
    chat = ChatProcess(STUB)
    home = folder("mine", "run")
    try:
        for status in ("", "running", "stopped"):
            if status:
                home.path.mkdir(parents=True, exist_ok=True)
                home.mark(status, recipe="mine")
            with pytest.raises(Stop) as refused:
                chat.address(museum, home)
            assert refused.value.text == NOTHING_YET
        assert commands(tmp_path) == []
        home.mark("finished")
        address = chat.address(museum, home)
        assert address.startswith("http://127.0.0.1:") and chat.address(museum, home) == address
        (*words, first), *others = commands(tmp_path)
        assert words == ["chat", str(museum), "--run", str(home.path), "--page", "--port", "0"]
        assert others == []
        # Another training has another model.
        home.mark("finished", fault="")
        assert chat.address(museum, home) != address
        (_, (*_, second)) = commands(tmp_path)
        assert not is_running(first) and is_running(second)
        chat.close()
        assert not is_running(second)
    finally:
        chat.close()


def test_a_chat_that_does_not_start_says_why(museum, tmp_path):
    home = folder("mine", "run")
    home.path.mkdir(parents=True)
    home.mark("finished", recipe="mine")
    chat = ChatProcess([sys.executable, "-c", "print('The model is broken.')"])
    with pytest.raises(Stop) as refused:
        chat.address(museum, home)
    assert refused.value.text == "The model is broken."


@pytest.mark.parametrize(("epochs", "asks"), [(1, False), (1000, True)])
def test_a_training_of_more_than_an_hour_is_asked_about(museum, epochs, asks):
    text = museum.read_text("utf-8").replace("epochs: 8", f"epochs: {epochs}")
    museum.write_text(text, encoding="utf-8")
    training = judging.training_here(load(museum)[0])
    assert training.machine == "this machine's CPU"
    assert training.sentence.startswith("Training takes about ")
    if asks:
        assert training.remaining > 3600
        assert training.question == f"{training.sentence} Start it?"
    else:
        assert training.question == ""


PAGE = """import sys, time
from pathlib import Path
from runner.parts.editor.chat_process import ChatProcess
from runner.parts.editor.run_process import TRAINING, RunProcess
from runner.run.run_folder import folder
file, *stub = sys.argv[1:]
chat, process, home = ChatProcess(stub), RunProcess(stub), folder("mine", "run")
home.path.mkdir(parents=True)
home.mark("finished", recipe="mine")
chat.address(Path(file), home)
process.start(TRAINING, Path(file))
time.sleep(600)
"""


def test_training_and_chat_end_when_the_page_is_killed(museum, tmp_path):
    with subprocess.Popen([sys.executable, "-c", PAGE, str(museum), *STUB], cwd=tmp_path) as page:
        until(lambda: len(commands(tmp_path)) == 2)
        processes = [entry[-1] for entry in commands(tmp_path)]
        assert all(map(is_running, processes))
        page.kill()
    until(lambda: not any(map(is_running, processes)), 10)


@pytest.mark.parametrize("words", [("run", "--yes", "mine.yaml"), ("chat", "mine.yaml")])
def test_the_commands_of_the_page_end_with_their_parent(museum, tmp_path, words):
    """Without their parent they end at once, and do not even say what else is wrong."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    done = subprocess.run(
        [sys.executable, "-m", "runner", *words],
        cwd=tmp_path,
        env=os.environ | {"RECIPE_RUNNER_PARENT": str(gone.pid)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1
    assert "There is no run of" not in done.stderr and not (tmp_path / "runs").exists()


@needs_nicegui
@pytest.mark.heavy
@in_browser
def test_the_page_trains_is_stopped_goes_on_and_chats(museum, tmp_path):
    look = {"width": 1366, "height": 768, "more": False}
    with editing(tmp_path, "mine.yaml", STUB) as address:
        with tab_of(address, tmp_path / "profile", **look) as tab:
            base = address.partition("?")[0]
            tab.value("window.open = (address) => { window.asked = address; }, 0")
            tab.click(".recipe-chat")
            tab.until("window.asked == '/chat?file=mine.yaml'")
            assert not tab.value("document.querySelector('.recipe-stop').checkVisibility()")
            tab.fill("Passes", "3")
            tab.until(
                "document.querySelector('.recipe-train-here').innerText.includes('Save and train here')"
            )
            tab.click(".recipe-train-here")
            tab.until_says(STATE, "Training: step ")
            assert "epochs: 3" in museum.read_text("utf-8")
            # Another tab shows the same training, and cannot start a second one.
            with tab_of(address, tmp_path / "other", **look) as other:
                other.until_says(STATE, "Training: step ")
                for button in (".recipe-train-here", ".recipe-rehearse"):
                    other.click(button)
                    other.until(
                        "Array.from(document.querySelectorAll('.q-notification')).some((one) => one.innerText.includes('A training is running already.'))"
                    )
                assert other.complaints == []
            assert len(commands(tmp_path)) == 1
            curve = "getElement(document.querySelector('.recipe-curve')).chart.getOption().series[0].data.length"
            tab.until(f"{curve} > 3")
            tab.click(".recipe-stop")
            tab.until_says(STATE, "The training was stopped. The next one continues")
            saved = int((tmp_path / "checkpoint").read_text())
            tab.click(".recipe-train-here")
            tab.until_says(".recipe-log", f"continues after step {saved}")
            (tmp_path / "finish").touch()
            tab.until_says(STATE, "The training is finished. Chat asks the trained model")
            tab.open(f"{base}chat?file=mine.yaml")
            tab.until("document.body.innerText.startsWith('chat of process')")
            (tmp_path / "finish").unlink()
            (tmp_path / "checkpoint").unlink()
            tab.show(address, **look)
            tab.click(".recipe-train-here")
            tab.until_says(STATE, "Training: step ")
            assert tab.complaints == []
        # A training goes on when the tabs are closed. It ends with the server, as the chat does,
        # and leaves its checkpoint.
        processes = [entry[-1] for entry in commands(tmp_path)]
        assert [command for command, *_ in commands(tmp_path)] == ["run", "run", "chat", "run"]
        assert list(map(is_running, processes)) == [False, False, True, True]
    assert not any(map(is_running, processes))
    assert int((tmp_path / "checkpoint").read_text()) > 0


@needs_nicegui
@pytest.mark.heavy
def test_the_page_of_chat_says_that_there_is_nothing_yet(museum, tmp_path):
    with editing(tmp_path, "mine.yaml", STUB) as address:
        base, _, token = address.partition("?token=")
        cookie = f"recipe-edit-{base.rstrip('/').rpartition(':')[2]}={token}"

        def page(path: str) -> str:
            request = urllib.request.Request(f"{base}{path}", headers={"Cookie": cookie})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.read().decode()

        assert f"<p>{NOTHING_YET}</p>" in page("chat?file=mine.yaml")
        assert '<a href="/">' in page("chat?file=mine.yaml")
        assert "is not a recipe of this page" in page("chat?file=../other.yaml")
    assert commands(tmp_path) == []


@needs_nicegui
@pytest.mark.heavy
@in_browser
def test_a_long_training_asks_first(museum, tmp_path):
    text = museum.read_text("utf-8").replace("epochs: 8", "epochs: 1000")
    museum.write_text(text, encoding="utf-8")
    with (
        editing(tmp_path, "mine.yaml", STUB) as address,
        tab_of(address, tmp_path / "profile", more=False) as tab,
    ):
        dialog = ".recipe-long-training"
        for answer, count in (("Cancel", 0), ("Train", 1)):
            tab.click(".recipe-train-here")
            tab.until_says(dialog, "Training takes about ")
            question = tab.says(dialog).splitlines()[0]
            assert " h on this machine's CPU. Start it?" in question
            tab.push(f"{dialog} button", answer)
            tab.until(f"!document.querySelector('{dialog}')")
            if count:
                tab.until_says(STATE, "Training: step ")
            assert len(commands(tmp_path)) == count
        assert tab.complaints == []


@pytest.mark.heavy
@pytest.mark.long
def test_a_real_training_is_stopped_with_its_checkpoint_goes_on_and_chats(museum):
    """With the packaged model, for two passes."""
    text = museum.read_text("utf-8").replace("epochs: 8", "epochs: 2")
    museum.write_text(text, encoding="utf-8")
    home = folder("mine", "run")
    chat = ChatProcess()
    try:
        with running(RunProcess()) as process:
            process.start(TRAINING, museum)
            until(lambda: process.read() or process.losses, 600)
            process.stop()
            until(lambda: not process.running, 120)
            assert process.state.startswith("The training was stopped.")
            assert list(home.path.rglob("checkpoint-*"))
            process.start(TRAINING, museum)
            until(lambda: process.read() or not process.running, 900)
            assert process.state.startswith("The training is finished."), process.lines
        address = chat.address(museum, home)
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert "mine: before and after training" in answer.read().decode()
    finally:
        chat.close()
