"""The fork server: a program in a fork has the environment, the output and the end of one that
begins by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from runner.tools.child_process import alive
from runner.trainer import fork_server
from runner.trainer.fork_server import fork, forking
from tests.conftest import ROOT

# A program with nothing to import before.
NAME = "told_apart"
PROGRAM = """
import os, sys, time
print(os.getpid(), os.getpgid(0), sys.argv[1:], os.environ.get("GREETING"), os.environ.get("BEFORE"), flush=True)
if "ask" in sys.argv:
    from runner.trainer import fork_server
    fork_server.PROGRAMS[__spec__.name] = ()
    fork_server.run([sys.executable, "-m", __spec__.name, *sys.argv[sys.argv.index("ask") + 1 :]], os.environ)
if "later" in sys.argv:
    import atexit
    from pathlib import Path
    atexit.register(Path(sys.argv[2]).write_text, "done")
    atexit.register(print, "bye")
if "threads" in sys.argv:
    import torch
    print(torch.get_num_threads(), "threads", flush=True)
if "fail" in sys.argv: raise RuntimeError("as it was asked to")
if "wait" in sys.argv: time.sleep(60)
sys.exit(7)
"""


@pytest.fixture
def started(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text(PROGRAM)
    places = os.pathsep.join((str(tmp_path), str(ROOT)))
    monkeypatch.setitem(fork_server.PROGRAMS, NAME, ())
    own = {"PYTHONPATH": places, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    monkeypatch.setenv("PYTHONPATH", places)

    def start(*arguments: str, **more: str):
        return fork([sys.executable, "-m", NAME, *arguments], os.environ | own | more)

    return start


def parent_of(pid: int) -> int:
    """The server, of a program in a fork."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_programs_in_forks_have_their_own_arguments_environment_and_exit_status(started):
    with forking(os.environ):
        first = started("a b", "c", GREETING="hello", BEFORE="1")
        said = first.stdout.read().split(" ", 1)
        assert (said[1], first.wait()) == (f"{first.pid} ['a b', 'c'] hello 1\n", 7)
        second = started(GREETING="again")
        assert second.stdout.read() == f"{second.pid} {second.pid} [] again None\n"
        assert (second.wait(), first.pid != second.pid) == (7, True)


def test_a_fork_has_its_own_number_of_threads(started, monkeypatch):
    """OpenMP reads the variable when torch is imported, in the server."""
    monkeypatch.setitem(fork_server.PROGRAMS, NAME, ("torch",))
    with forking(os.environ | {"OMP_NUM_THREADS": "1"}):
        for count in ("2", "1"):
            program = started("threads", OMP_NUM_THREADS=count)
            assert (
                program.stdout.read().splitlines()[-1] == f"{count} threads" and program.wait() == 7
            )


def test_a_fork_s_own_programs_are_forks_of_the_same_server_and_of_its_group(started):
    with forking(os.environ):
        program = started("ask", "wait")
        assert (
            program.stdout.readline() == f"{program.pid} {program.pid} ['ask', 'wait'] None None\n"
        )
        its_own = program.stdout.readline().split()
        pid, group = map(int, its_own[:2])
        assert (pid != program.pid, group, its_own[2:]) == (
            True,
            program.pid,
            ["['wait']", "None", "None"],
        )
        assert parent_of(pid) == parent_of(program.pid)
        os.killpg(program.pid, signal.SIGTERM)
        assert program.wait(10) == -signal.SIGTERM
        assert not program.stdout.read(), "its program has ended too, or the pipe would be open"


def test_whoever_asks_for_a_program_learns_that_it_failed(started):
    with forking(os.environ):
        program = started("ask", "fail")
        said = program.stdout.read()
        assert "as it was asked to" in said and "CalledProcessError" in said and program.wait() == 1


def test_what_is_imported_ahead_is_there_when_the_program_is_asked_for(
    started, tmp_path, monkeypatch
):
    (tmp_path / "large.py").write_text(
        f"import os; open({str(tmp_path / 'imported')!r}, 'a').write(f'{{os.getpid()}} ')"
    )
    monkeypatch.setitem(fork_server.PROGRAMS, NAME, ("large",))
    with forking(os.environ):
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT))),
            "CUDA_VISIBLE_DEVICES": "",
        }
        fork_server.ahead([sys.executable, "-m", NAME], env)
        deadline = time.monotonic() + 20
        while not (tmp_path / "imported").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        program = started("wait")
        server = parent_of(program.pid)
        assert (tmp_path / "imported").read_text() == f"{server} ", "once, and before the fork"
        os.killpg(program.pid, signal.SIGTERM)
        assert program.wait(10) == -signal.SIGTERM


def test_the_server_imports_while_a_program_of_it_runs(started, tmp_path, monkeypatch):
    (tmp_path / "large.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.setitem(fork_server.PROGRAMS, "larger", ("large",))
    with forking(os.environ):
        program = started("wait")
        assert program.stdout.readline()
        fork_server.ahead([sys.executable, "-m", "larger"], {"CUDA_VISIBLE_DEVICES": ""})
        deadline = time.monotonic() + 20
        while not (tmp_path / "imported").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert (tmp_path / "imported").exists() and alive(program.pid)
        os.killpg(program.pid, signal.SIGKILL)
        assert program.wait(10) == -signal.SIGKILL


def test_a_program_that_fails_in_a_fork_says_why(started):
    with forking(os.environ):
        program = started("fail")
        assert "RuntimeError: as it was asked to" in program.stdout.read() and program.wait() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_in_a_fork_ends_by_a_signal_like_another(started, number):
    with forking(os.environ):
        program = started("wait")
        assert program.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.1)
        os.killpg(program.pid, number)
        assert program.wait(10) == -number


def test_a_server_that_is_gone_leaves_programs_to_processes_of_their_own(started):
    with forking(os.environ):
        program = started("wait")
        os.kill(parent_of(program.pid), signal.SIGKILL)
        os.killpg(program.pid, signal.SIGKILL)
        assert program.wait(10) == 1
        assert started() is None


def test_nothing_is_forked_on_gpus_of_several_processes_or_unasked(started):
    assert started() is None
    with forking(os.environ):
        assert started(CUDA_VISIBLE_DEVICES="0") is None
        assert started("--launcher", "torchrun") is None
        assert fork([sys.executable, "-c", "pass"], {"CUDA_VISIBLE_DEVICES": ""}) is None


def test_a_program_ends_when_whoever_asked_for_it_is_gone(started, tmp_path):
    """The launcher is killed, and can end nothing any more."""
    code = (
        "import os, sys; from runner.trainer import fork_server as server; from runner.tools.child_process import PARENT\n"
        f"server.PROGRAMS[{NAME!r}] = ('runner.tools.child_process',)\n"
        "env = os.environ | {'CUDA_VISIBLE_DEVICES': '', PARENT: str(os.getpid())}\n"
        "with server.forking(env):\n"
        f"    program = server.fork([sys.executable, '-m', {NAME!r}, 'wait'], env)\n"
        "    print(program.stdout.readline().split()[0], flush=True)\n"
        "    program.wait()\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True
    ) as launcher:
        pid = int(launcher.stdout.readline())
        launcher.kill()
        deadline = time.monotonic() + 20
        while alive(pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(pid)


def test_what_a_program_has_put_off_to_its_end_is_done_before_it_ends(started, tmp_path):
    with forking(os.environ):
        program = started("later", str(tmp_path / "done"))
        assert program.stdout.read().endswith("bye\n") and program.wait() == 7
        assert (tmp_path / "done").read_text() == "done"


def test_a_package_that_is_missing_ends_the_program_that_needs_it_and_not_the_server(
    started, monkeypatch
):
    with forking(os.environ):
        monkeypatch.setitem(fork_server.PROGRAMS, NAME, ("a_package_that_is_missing",))
        fork_server.ahead([sys.executable, "-m", NAME], os.environ | {"CUDA_VISIBLE_DEVICES": ""})
        first = started()
        assert (first.stdout.read(), first.wait()) == (f"{first.pid} {first.pid} [] None None\n", 7)
