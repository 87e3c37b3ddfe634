"""`recipe why` on what lies on this machine: a run folder, logs of several machines, a file, what
is piped in."""

from __future__ import annotations

import io
import json
import tomllib

import pytest

from runner.commands import cli
from runner.tools.run_files import SUMMARY
from tests.catalog.test_log_reading import OFFLINE_KERNEL, trace
from tests.conftest import ROOT
from tests.parts.report.test_page import made

SHOWN = tomllib.loads((ROOT / "tests/fixtures/troubles.toml").read_text("utf-8"))
OOM = SHOWN["gpu memory"]["log"]


def ended(tmp_path, recipe: str = "survival"):
    """A run whose training has ended in the middle."""
    _, plan, run = made(tmp_path / "run", recipe)
    (run.path / SUMMARY).unlink()
    facts = json.loads((run.path / "stage.json").read_text())
    (run.path / "stage.json").write_text(json.dumps(facts | {"status": "begun"}))
    run.mark("stopped")
    return plan, run


def why(capsys, *arguments: str) -> str:
    assert cli._code(["why", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_run_says_the_allocators_line_and_what_was_planned(tmp_path, capsys, golden_message):
    _, run = ended(tmp_path)
    (run.path / "train.log").write_text(f"loading\n{OOM}")
    planned = json.loads((run.path / "planned.json").read_text())
    planned["foreseen"] = [{"stage": "train", "memory": 24 * 2**30}]
    (run.path / "planned.json").write_text(json.dumps(planned))
    said = why(capsys, run.path)
    assert (
        "in the stage train, after step 8" in said
        and "`recipe plan` had estimated 24.0 GiB for each GPU." in said
    )
    assert "of which 11.06 MiB is free" in said
    golden_message(said)


def test_the_logs_of_plain_machines_tell_together_who_came_late(tmp_path, capsys):
    """Four machines with a GPU each; the third has left no word of NCCL's."""
    plan, run = ended(tmp_path)
    world = plan.stage("train").machines.world_size
    assert world == 4
    waits = "[rank%d]:[E1] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000)"
    for rank in (0, 1, 3):
        (run.path / f"train-node{rank}.log").write_text(waits % (rank, rank))
    (run.path / "train-node2.log").write_text("[rank2]: nothing\n")
    said = why(capsys, run.path)
    assert (
        "Rank 2 came late or never: ranks 0, 1 and 3 waited at collective 7 (ALLREDUCE), for 10 minutes."
        in said
    )


def test_a_run_that_was_stopped_by_itself_says_so_first(tmp_path, capsys):
    _, run = ended(tmp_path)
    (run.path / "train.log").write_text(OOM)
    (run.path / "stopped.json").write_text(
        json.dumps({"message": "The loss at step 3 is nan: training has broken."})
    )
    assert "The loss at step 3 is nan" in why(capsys, run.path)


def test_a_run_without_a_word_says_that(tmp_path, capsys):
    _, run = ended(tmp_path)
    assert "No reason was recorded." in why(capsys, run.path)


def test_a_finished_run_says_what_it_has_trained(tmp_path, capsys):
    _, _, run = made(tmp_path / "run", "survival")
    said = why(capsys, run.path)
    assert "was trained" in said and "reason" not in said


def test_a_recipe_that_is_for_this_machine_means_its_latest_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "mine.yaml"
    text = (ROOT / "recipes/survival.yaml").read_text()
    head = text[: text.index("\nopenshift:")]
    recipe.write_text(head)
    _, run = ended(tmp_path / "runs")
    run.path.rename(tmp_path / "runs/survival")
    (tmp_path / "runs/survival/train.log").write_text(OOM)
    assert "micro_batch_size" in why(capsys, recipe)
    # `recipe logs` asks a cluster.
    assert cli._code(["why", str(recipe)]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == f"Next: recipe report {recipe}"


@pytest.mark.parametrize("piped", [False, True])
def test_a_log_is_read_from_a_file_and_from_a_pipe(tmp_path, capsys, monkeypatch, piped):
    (tmp_path / "pod.txt").write_text(OOM)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(OOM.encode() + b"\xff")))
    said = why(capsys, "-" if piped else tmp_path / "pod.txt")
    assert said.startswith("The GPU's memory is too small for this recipe. ")
    assert "CUDA out of memory. Tried to allocate 22.00 MiB." in said.splitlines()[1]


def test_a_folder_of_logs_is_read_together(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a/pod.log").write_text(SHOWN["asked to end"]["log"])
    (tmp_path / "b/pod.log").write_text(SHOWN["ecc"]["log"])
    assert why(capsys, tmp_path).startswith("A GPU has lost bits of its memory")


def test_a_warning_of_a_modern_processor_hides_no_error(tmp_path, capsys):
    """Seen on every machine whose processor has avx512_bf16."""
    (tmp_path / "pod.txt").write_text(OFFLINE_KERNEL + trace("KeyError: 'turns'"))
    assert (
        why(capsys, tmp_path / "pod.txt")
        == "No known problem was found in it.\nIts last error: KeyError: 'turns'\n"
    )


def test_the_reason_of_a_program_of_ours_is_shown_in_full(tmp_path, capsys):
    (tmp_path / "pod.txt").write_text(
        f"{OFFLINE_KERNEL}Stopped by recipe-runner: There are no rows.\nWrite some.\n"
    )
    assert why(capsys, tmp_path / "pod.txt") == "There are no rows.\nWrite some.\n"


def test_what_nobody_knows_is_said_with_its_last_error(tmp_path, capsys):
    (tmp_path / "pod.txt").write_text("begin\nValueError: of ours\nend\n")
    assert why(capsys, tmp_path / "pod.txt") == (
        "No known problem was found in it.\nIts last error: ValueError: of ours\n"
    )


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (["nothing-here"], "nothing-here", 1),
        (["folder"], "not a run folder, and contains no log.", 1),
        (["folder", "--set", "a=1"], "`--set` and `--stage` need a recipe.", 2),
        (
            [str(ROOT / "recipes/resnet.yaml")],
            "no run on this machine. This machine is not logged in to a cluster",
            1,
        ),
    ],
)
def test_what_is_none_is_said(tmp_path, monkeypatch, capsys, arguments, words, code):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "folder").mkdir()
    assert cli._code(["why", *arguments]) == code
    assert words in capsys.readouterr().err
