"""Target nodes: start scripts for plain machines, and what they do before and while they train."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from runner import catalog
from runner.check.validate import load
from runner.data.tokenizers import forget_older
from runner.parts.nodes import node
from runner.parts.nodes import target as nodes
from runner.parts.nodes.node import Hello, Ready
from runner.plan import PLAN_FILE
from runner.recipe.overrides import from_options
from runner.run import pipeline
from runner.run.run_folder import RunFolder
from runner.run.run_manifest import RunManifest, keep
from runner.scenarios import translate
from runner.scenarios.render import emit
from runner.scenarios.shared import twin
from runner.tools import child_process
from runner.tools.files import content_hash, write_all
from runner.tools.problem import Stop
from runner.trainer.records import Summary, TimeUsed
from tests.conftest import ROOT, own_time
from tests.stages import leave

GEMMA = ROOT / "recipes" / "gemma.yaml"
STAGES = ROOT / "recipes" / "sft-dpo.yaml"
SAMPLE = ROOT / "recipes" / "data" / "gemma-sample.txt"


def scripts(folder: Path, *options: str, file: Path = GEMMA) -> list[Path]:
    """The emitted folder of a recipe with settings changed."""
    recipe, _, _ = load(file, from_options(options))
    write_all(folder, emit(recipe, ("nodes",)))
    return sorted((folder / "nodes").glob("run_node*.sh"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def start(script: Path, **env: str) -> subprocess.Popen:
    known = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GPUS", "TOTAL_GPUS", "MAIN_NODE_IP")
    }
    return subprocess.Popen(
        ["bash", str(script)],
        env=known | {"PYTHONPATH": str(ROOT)} | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen, timeout: float) -> str:
    """What a script printed; it and all its processes are ended where it takes too long."""
    try:
        return process.communicate(timeout=timeout)[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def test_what_trains_ends_with_a_script_that_is_killed(tmp_path):
    """They would go on without it, and a script that is started again would find them at work in
    its folder."""
    script = scripts(
        tmp_path, f"nodes.output_dir={tmp_path}/out", f"nodes.python={tmp_path}/bin/python"
    )[0]
    (tmp_path / "bin").mkdir()
    trains = (
        "import os, pathlib, sys, time; from runner.tools import child_process; child_process.watch_parent();"
        "pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(60)"
    )
    stubs = {
        "python": "",
        "axolotl": f'exec {shlex.quote(sys.executable)} -c "{trains}" {tmp_path}/pid',
    }
    for name, text in stubs.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    process = start(script, MAIN_NODE_IP="127.0.0.1", PYTHONPATH=str(ROOT))
    pid = tmp_path / "pid"
    until(lambda: pid.is_file() and pid.read_text())
    process.kill()
    process.wait()
    until(lambda: not child_process.alive(int(pid.read_text())))


def until(holds, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# What is written


@pytest.mark.parametrize(
    ("counts", "batch"),
    [([2, 2], 128), ([4, 4], 256), ([2, 2, 2], 192), ([1], 32), ([2, 4, 1], 224)],
)
def test_each_machine_gets_a_script_with_its_own_rank_and_gpus(counts, batch, tmp_path):
    machines = [
        {"address": f"10.0.0.{rank}", "gpus": list(range(count))}
        for rank, count in enumerate(counts)
    ]
    found = scripts(
        tmp_path,
        f"nodes.machines={json.dumps(machines)}",
        f"machines.nodes={len(counts)}",
        f"machines.gpus_per_node={max(counts)}",
        f"train.effective_batch_size={batch}",
    )
    assert [file.name for file in found] == [f"run_node{rank}.sh" for rank in range(len(counts))]
    for rank, file in enumerate(found):
        text = file.read_text()
        assert f"\nNODE_RANK={rank}\n" in text
        assert f'\nGPUS="${{GPUS:-{",".join(map(str, range(counts[rank])))}}}"\n' in text
        assert f'\nTOTAL_GPUS="${{TOTAL_GPUS:-{sum(counts)}}}"\n' in text
        assert '\nMAIN_NODE_IP="${MAIN_NODE_IP:-10.0.0.0}"\n' in text
        assert f"\nexport PET_NNODES={len(counts)}\n" in text
    config = (tmp_path / "nodes" / "axolotl.yaml").read_text()
    assert f"world_size: {sum(counts)}\n" in config
    assert f"effective_batch_size: {batch}\n" in config


def of_stages(folder: Path, *options: str, file: Path = STAGES) -> list[Path]:
    """The scripts of a recipe of several stages for two machines, with settings changed."""
    machines = json.dumps(
        [{"address": "10.0.0.1", "gpus": [0]}, {"address": "10.0.0.2", "gpus": [0]}]
    )
    plain = [f"nodes.output_dir={folder}/out", f"nodes.machines={machines}", "machines.nodes=2"]
    return scripts(folder, *plain, *options, file=file)


# What only ends something in a script, or names a stage in it.
STRUCTURE = re.compile(r"\s*(;;|esac|done|[a-z0-9]+\))$")


@pytest.mark.parametrize("several", [False, True])
def test_every_line_of_a_script_has_a_comment_before_it(tmp_path, several):
    looked_at = 0
    for file in of_stages(tmp_path) if several else scripts(tmp_path):
        lines = [line.strip() for line in file.read_text().splitlines()]
        for number, line in enumerate(lines):
            if line and not line.startswith("#") and not STRUCTURE.match(line):
                looked_at += 1
                assert lines[number - 1].startswith("# "), f"{file.name}:{number + 1}: {line}"
    assert looked_at > 40


@pytest.mark.parametrize("several", [False, True])
def test_bash_can_read_the_scripts(tmp_path, several):
    for file in of_stages(tmp_path) if several else scripts(tmp_path):
        assert (
            subprocess.run(["bash", "-n", str(file)], capture_output=True, text=True).stderr == ""
        )


def test_shellcheck_finds_nothing_wrong(tmp_path):
    checker = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which(
        "shellcheck"
    )
    if checker is None:
        pytest.skip("shellcheck is not installed; `make install` brings it")
    both = [*scripts(tmp_path / "one"), *of_stages(tmp_path / "several")]
    done = subprocess.run([checker, *map(str, both)], capture_output=True, text=True)
    assert done.stdout + done.stderr == ""


def test_the_scripts_of_several_stages_train_each_in_its_own_folder(tmp_path):
    for rank, file in enumerate(of_stages(tmp_path)):
        text = file.read_text()
        assert '\nwhile [[ "$STAGE" != dpo ]]; do\n' in text
        for stage in ("sft", "dpo"):
            assert (
                f"axolotl train {tmp_path}/out/config/{stage}/axolotl.yaml --launcher torchrun"
                in text
            )
            assert f'"$OUTPUT_DIR/{stage}/train-node$NODE_RANK.log"' in text
            assert (
                f"\n      export TENSORBOARD_LOGGING_DIR={tmp_path}/out/{stage}/tensorboard\n"
                in text
            )
        assert ("node finish" in text) == (rank == 0)
    emitted = {
        str(file.relative_to(tmp_path / "nodes"))
        for file in (tmp_path / "nodes").rglob("*")
        if file.is_file()
    }
    configs = {"recipe.json", "sft/axolotl.yaml", "dpo/axolotl.yaml"}
    assert emitted == {"run_node0.sh", "run_node1.sh", *configs}
    assert node.read(str(tmp_path / "nodes" / "recipe.json")).stage_recipes.keys() == {"sft", "dpo"}


def test_the_scripts_of_several_stages_name_the_data_files_of_all(tmp_path):
    options = []
    for index, name in enumerate(("one", "two")):
        shutil.copyfile(ROOT / "recipes/data/seven-b-preferences.jsonl", tmp_path / f"{name}.jsonl")
        options += [f"stages.{index}.data.path={name}.jsonl", f"stages.{index}.data.hub="]
    options += [
        "stages.0.data.question=[question]",
        "stages.0.data.answer=[chosen]",
        "stages.0.data.sample=",
    ]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        STAGES.read_text("utf-8").replace("sample: data/", f"sample: {ROOT}/recipes/data/")
    )
    for file in of_stages(tmp_path, *options, file=recipe):
        assert re.findall(r"beside the recipe: (.*)", file.read_text()) == [
            "one.jsonl",
            "two.jsonl",
        ]


def test_the_scripts_can_be_run_as_they_are(recipe_command, tmp_path):
    done = recipe_command("render", GEMMA, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert os.access(tmp_path / "nodes" / "run_node0.sh", os.X_OK)
    assert not (tmp_path / "pytorchjob.yaml").exists()


@pytest.mark.parametrize(
    ("name", "target", "section"),
    [("survival", "nodes", "nodes"), ("gemma", "pytorchjob", "openshift")],
)
def test_a_recipe_without_the_section_of_a_target_gets_nothing_for_it(
    name, target, section, recipe_command, tmp_path, golden_message
):
    done = recipe_command(
        "render", ROOT / "recipes" / f"{name}.yaml", "--target", target, "--out", tmp_path
    )
    assert done.returncode == 1
    assert f"`{name}` has no section `{section}`" in done.stderr
    golden_message(done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_may_name_a_cluster_and_plain_machines(tmp_path):
    site = {"namespace": "text", "claims": [{"name": "models", "mount": "/shared/models"}]}
    recipe, _, _ = load(GEMMA, from_options([f"openshift={json.dumps(site)}"]))
    files = {artifact.path: artifact.text for artifact in emit(recipe)}
    assert {"pytorchjob.yaml", "axolotl.yaml", "nodes/axolotl.yaml", "nodes/run_node1.sh"} <= set(
        files
    )
    assert "output_dir: /shared/models/gemma/checkpoints" in files["axolotl.yaml"]
    assert 'nprocPerNode: "2"' in files["pytorchjob.yaml"].replace("'", '"')


# What is refused


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "still <MAIN_NODE_IP>"),
        ({"MAIN_NODE_IP": "10.0.0.1", "GPUS": "2 3"}, "GPUS is 2 3"),
        ({"MAIN_NODE_IP": "10.0.0.1", "TOTAL_GPUS": "four"}, "TOTAL_GPUS is four"),
    ],
    ids=["the main machine's address", "GPUS", "TOTAL_GPUS"],
)
def test_a_script_refuses_what_is_not_filled_in(env, words, tmp_path, golden_message):
    script = scripts(tmp_path, f"nodes.output_dir={tmp_path}/out")[1]
    process = start(script, **env)
    said = finish(process, 30)
    assert said.startswith("run_node1.sh: ") and words in said
    golden_message(said)
    assert process.returncode == 2


def test_a_script_names_the_missing_python(tmp_path):
    script = scripts(tmp_path, f"nodes.output_dir={tmp_path}/out", "nodes.python=/nowhere/python")[
        0
    ]
    process = start(script, MAIN_NODE_IP="127.0.0.1")
    assert "there is no /nowhere/python on this machine" in finish(process, 30)
    assert process.returncode == 2


def test_a_script_refuses_a_python_without_the_packages(tmp_path, golden_message):
    """Another Python of the machine's own, without what is installed here."""
    (tmp_path / "python").write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S "$@"\n', encoding="utf-8"
    )
    (tmp_path / "python").chmod(0o755)
    for script in scripts(
        tmp_path, f"nodes.output_dir={tmp_path}/out", f"nodes.python={tmp_path}/python"
    ):
        process = start(script, MAIN_NODE_IP="127.0.0.1")
        said = finish(process, 30)
        assert said.startswith(f"{script.name}: {tmp_path}/python ") and "nodes.python" in said
        golden_message(said, script.name)
        assert process.returncode == 2


def hello(rank=0, **facts) -> Hello:
    return Hello(
        **{
            "rank": rank,
            "gpus": 2,
            "total": 4,
            "fingerprint": "aa",
            "versions": {"torch": "2.13.0"},
        }
        | facts
    )


def meet(*others: Hello, nodes: int, patience_s: float = 20):
    """A main machine and others in threads; returns what each side raised or was told."""
    port, ends = free_port(), {}

    def other(key, who):
        try:
            node.join(who, "127.0.0.1", port, patience_s, lambda text: None)
            ends[key] = "ready"
        except Stop as stop:
            ends[key] = stop.text

    threads = [threading.Thread(target=other, args=(key, who)) for key, who in enumerate(others)]
    for thread in threads:
        thread.start()
    try:
        # Late, so that the others wait for the port.
        time.sleep(1.5)
        with node.Main(hello(), nodes, port, patience_s, lambda text: None) as main:
            ends["counts"] = main.gather()
            main.ready()
    except Stop as stop:
        ends["main"] = stop.text
    for thread in threads:
        thread.join(30)
    return ends


def test_equal_machines_meet_in_any_order_and_with_any_number_of_gpus():
    ends = meet(hello(2, gpus=1), hello(1, gpus=4), nodes=3)
    assert ends == {"counts": [2, 4, 1], 0: "ready", 1: "ready"}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"fingerprint": "bb"}, "another recipe (bb)"),
        ({"versions": {"torch": "2.12.0"}}, "torch 2.12.0"),
        ({"versions": {}}, "torch none"),
        ({"total": 6}, "TOTAL_GPUS 6"),
        ({"rank": 0}, "a second machine"),
    ],
)
def test_a_machine_that_differs_is_refused_on_both_sides(facts, words, golden_message):
    ends = meet(hello(**{"rank": 1} | facts), nodes=2)
    assert ends["main"] == ends[0] and words in ends[0]
    golden_message(ends[0])


def test_a_machine_that_does_not_come_is_named(golden_message):
    ends = meet(nodes=2, patience_s=1)
    assert list(ends) == ["main"] and "run_node1.sh" in ends["main"]
    golden_message(ends["main"])


def test_a_main_machine_that_does_not_come_is_named():
    port = free_port()
    with pytest.raises(Stop, match=rf"does not answer at 127\.0\.0\.1:{port}: "):
        node.join(hello(1), "127.0.0.1", port, 0.5, lambda text: None)


def test_a_main_machine_that_prepares_longer_than_anybody_waits_is_waited_for():
    port, patience_s, ends = free_port(), 1.0, []

    def join() -> None:
        try:
            node.join(hello(1), "127.0.0.1", port, patience_s, lambda text: None)
            ends.append("ready")
        except Stop as stop:
            ends.append(stop.text)

    with node.Main(hello(), 2, port, patience_s, lambda text: None) as main:
        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        main.gather()
        time.sleep(2.5 * patience_s)
        main.ready()
        thread.join(20)
    assert ends == ["ready"]


def test_a_main_machine_that_falls_silent_has_stopped(monkeypatch):
    """Its port takes connections, and nobody speaks there any more."""
    monkeypatch.setattr(node, "SILENT_S", 1.0)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(Stop, match="The main machine has stopped"),
    ):
        node.join(hello(1), "127.0.0.1", silent.getsockname()[1], 0.5, lambda text: None)


@pytest.mark.parametrize("killed", [True, False])
def test_a_main_machine_that_ends_while_it_prepares_has_stopped(killed):
    code = (
        "import os, sys, time; from tests.parts.nodes.test_nodes import hello, node\n"
        f"with node.Main(hello(), 2, int(sys.argv[1]), 20, print) as main:\n"
        f"    main.gather(); time.sleep(1.5); {'os._exit(9)' if killed else 'raise SystemExit(1)'}"
    )
    port, said = free_port(), []
    process = subprocess.Popen([sys.executable, "-c", code, str(port)], cwd=ROOT)
    with pytest.raises(Stop, match="The main machine has stopped"):
        node.join(hello(1), "127.0.0.1", port, 60, said.append)
    assert any("Same recipe and packages" in line for line in said)
    assert process.wait(30) != 0


def store(port: int) -> TCPStore:
    """As torchrun opens it on the main machine."""
    return TCPStore(
        "127.0.0.1", port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=10)
    )


def test_a_training_that_ends_on_the_port_is_no_meeting():
    """torchrun of the stage before has a store there too, until it ends on the main machine."""
    port, ends = free_port(), []
    training = store(port)
    joined = threading.Thread(
        target=lambda: ends.append(node.join(hello(1), "127.0.0.1", port, 30, lambda text: None)),
        daemon=True,
    )
    joined.start()
    time.sleep(1.5)
    assert not training.check(["arrivals"])
    del training
    with node.Main(hello(), 2, port, 20, lambda text: None) as main:
        main.gather()
        main.ready(Ready("dpo", {"dpo/axolotl.yaml": "1", "/model.safetensors": ""}))
    joined.join(20)
    assert [ready.stage for ready in ends] == ["dpo"]


def test_a_main_machine_that_trains_without_this_one_is_not_waited_for_longer():
    port = free_port()
    training = store(port)
    with pytest.raises(Stop, match="has started without this one"):
        node.join(hello(1), "127.0.0.1", port, 1, lambda text: None)
    del training


@pytest.mark.parametrize("says", ["SSH-2.0-x" * 9, "[1]\n"])
def test_a_port_of_another_program_is_no_main_machine(says):
    port = free_port()
    talks = "import socket, sys; s = socket.create_server(('', int(sys.argv[1])))\nwhile 1: s.accept()[0].sendall(sys.argv[2].encode())"
    with subprocess.Popen([sys.executable, "-c", talks, str(port), says]) as other:
        with pytest.raises(Stop, match="answers, but it is not the main machine"):
            node.join(hello(1), "127.0.0.1", port, 30, lambda text: None)
        other.kill()


def test_a_port_that_is_taken_is_named():
    with (
        socket.create_server(("", 0)) as other,
        pytest.raises(Stop, match=r"Port \d+ of this machine cannot be opened"),
    ):
        node.Main(hello(), 2, other.getsockname()[1], 1, lambda text: None)


def test_the_port_is_free_when_all_have_met():
    port = free_port()
    with node.Main(hello(), 2, port, 20, lambda text: None) as main:
        joined = threading.Thread(
            target=node.join, args=(hello(1), "127.0.0.1", port, 20, lambda text: None)
        )
        joined.start()
        main.gather()
        main.ready()
    socket.create_server(("", port)).close()
    joined.join(20)


def test_whoever_only_knocks_is_no_machine():
    port, found = free_port(), []
    with node.Main(hello(), 2, port, 20, lambda text: None) as main:
        thread = threading.Thread(target=lambda: found.extend(main.gather()))
        thread.start()
        socket.create_connection(("127.0.0.1", port)).close()
        other = threading.Thread(
            target=lambda: node.join(hello(1), "127.0.0.1", port, 20, lambda text: None),
            daemon=True,
        )
        other.start()
        thread.join(20)
        main.ready()
        other.join(20)
    assert found == [2, 2]


@contextmanager
def waiting(port: int, rank: int):
    """A machine that has said hello and waits; at the end its script is killed."""
    ended, line = threading.Event(), json.dumps([f"machine {rank}", hello(rank)._asdict()])

    def beat() -> None:
        while not ended.wait(0.05):
            with socket.create_connection(("127.0.0.1", port)) as main:
                main.sendall(f"{line}\n".encode())
                main.makefile().readline()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("order", [(1, 2), (2, 1)], ids=["it comes first", "it comes last"])
def test_a_script_that_was_ended_may_be_started_again(order):
    port, found, ends = free_port(), [], []

    def join(rank: int) -> None:
        node.join(hello(rank, gpus=rank + 2), "127.0.0.1", port, 20, lambda text: None)
        ends.append(rank)

    with node.Main(hello(), 3, port, 20, lambda text: None) as main:
        gathering = threading.Thread(target=lambda: found.extend(main.gather()), daemon=True)
        gathering.start()
        with waiting(port, 1):
            time.sleep(1)
        others = [threading.Thread(target=join, args=(rank,), daemon=True) for rank in order]
        for other in others:
            other.start()
            time.sleep(0.3)
        gathering.join(10)
        main.ready()
        for other in others:
            other.join(10)
    assert (found, sorted(ends)) == ([2, 3, 4], [1, 2])


def test_a_second_machine_with_the_number_of_one_that_waits_is_refused(golden_message):
    port, ends = free_port(), []

    def gather() -> None:
        with pytest.raises(Stop) as stop:
            main.gather()
        ends.append(stop.value.text)

    with node.Main(hello(), 3, port, 20, lambda text: None) as main:
        gathering = threading.Thread(target=gather, daemon=True)
        gathering.start()
        with waiting(port, 1):
            with pytest.raises(Stop) as stop:
                node.join(hello(1), "127.0.0.1", port, 20, lambda text: None)
            gathering.join(10)
    assert ends == [stop.value.text] and "machine 1" in ends[0]
    golden_message(ends[0])


def test_rows_tokenised_from_other_data_are_forgotten(tmp_path):
    """Axolotl 0.19.0 would find them again by the path of the data, which has not changed."""
    data, tokenised = tmp_path / "train.parquet", tmp_path / "scratch" / "tokenised"
    config = {"datasets": [{"path": str(data)}], "dataset_prepared_path": str(tokenised)}
    data.write_bytes(b"one")
    forget_older(config)
    tokenised.mkdir()
    forget_older(config)
    assert tokenised.is_dir()
    data.write_bytes(b"two, of another length")
    forget_older(config)
    assert not tokenised.exists()


def test_a_results_folder_that_is_not_shared_is_named(tmp_path, monkeypatch, golden_message):
    recipe, _, _ = load(GEMMA, from_options([f"nodes.output_dir={tmp_path}/out"]))
    monkeypatch.setattr(node, "PATIENCE_WITH_STORAGE_S", 0.0)
    with pytest.raises(Stop) as stop:
        node._shared(recipe, 1, Ready("train", {"plan.json": "0"}))
    assert stop.value.text.startswith("Machine 1 ") and f"`{tmp_path}/out`" in stop.value.text
    golden_message(stop.value)


def test_a_machine_waits_until_it_sees_the_files_of_this_start(tmp_path, monkeypatch):
    """Those of an earlier start lie there already, and a network file system shows them for a
    while."""
    recipe, _, _ = load(GEMMA, from_options([f"nodes.output_dir={tmp_path}/out"]))
    place = nodes.place(recipe)
    files = {"axolotl.yaml": "seed: 2\n", "plan.json": translate(recipe, place).as_json()}
    config = Path(place.config_dir)
    config.mkdir(parents=True)
    for name, text in (files | {"axolotl.yaml": "seed: 1\n", "recipe.json": "{}"}).items():
        (config / name).write_text(text)
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (config / "axolotl.yaml").write_text(files["axolotl.yaml"])

    own_time(monkeypatch, node, sleep=sleep)
    hashes = {name: content_hash(text) for name, text in files.items()}
    plan = node._shared(recipe, 1, Ready("train", hashes))
    assert len(slept) == 1 and plan.stages[-1].config["dataset_prepared_path"]


@pytest.mark.parametrize(("reached", "status"), [(False, "finished"), (True, "stopped")])
def test_a_run_that_the_time_limit_ends_is_not_finished(tmp_path, monkeypatch, reached, status):
    recipe, _, _ = load(GEMMA, from_options([f"nodes.output_dir={tmp_path}"]))
    plan = translate(recipe, nodes.place(recipe))
    config = Path(plan.place.config_dir)
    config.mkdir()
    (config / "plan.json").write_text(plan.as_json())
    leave(plan, plan.stages[-1], time_limit=TimeUsed(limit_seconds=60.0, reached=reached))
    monkeypatch.setattr(node, "report", lambda _plan: [])
    node.finish.callback(str(tmp_path))
    assert json.loads((tmp_path / "run.json").read_text())["status"] == status


def test_a_run_on_plain_machines_is_beside_its_plan_and_learned_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    recipe, _, _ = load(GEMMA, from_options([f"nodes.output_dir={tmp_path}/out"]))
    plan = translate(recipe, nodes.place(recipe))
    run, training = RunFolder(tmp_path / "out"), plan.stage("train")
    keep(run, recipe, plan)
    (Path(plan.place.config_dir) / "plan.json").write_text(plan.as_json())
    (said,) = RunManifest.read(run.path).foreseen
    leave(
        plan,
        training,
        gpu=recipe.machines.gpu,
        step_seconds=2 * said.step_seconds,
        gpu_memory_gib=7.0,
        gpu_reserved_gib=7.5,
    )
    monkeypatch.setattr(node, "report", lambda _plan: [])
    node.finish.callback(str(run.path))
    assert "a step took" in (told := capsys.readouterr().out) and "(+100 %)" in told
    summary = Summary.read(run.path)
    assert (
        summary.planned == asdict(said) and summary.planned["steps"] and summary.planned["memory"]
    )
    (learned,) = json.loads((tmp_path / "settings" / "recipe-runner" / "learned.json").read_text())[
        "runs"
    ]
    assert learned["gpu"] == recipe.machines.gpu and learned["allocated"] == 7 * 2**30


def begun(folder: Path, checkpoint: bool):
    """The recipe of a run that was begun in this folder with another learning rate."""
    recipe, _, _ = load(GEMMA, from_options([f"nodes.output_dir={folder}"]))
    (folder / "run.json").write_text('{"id": "1", "kind": "run"}')
    (folder / "stage.json").write_text(
        '{"stage": "train", "status": "running", "inputs": {"learning_rate": 7}}'
    )
    if checkpoint:
        (folder / "checkpoints" / "checkpoint-9").mkdir(parents=True)
    return recipe


def test_a_results_folder_of_another_run_is_left_alone(tmp_path):
    recipe = begun(tmp_path, checkpoint=True)
    with pytest.raises(Stop, match="of this recipe from before it changed") as stop:
        node.lead(recipe, [2, 2], 4, accelerator=False, tell=lambda text: None)
    assert stop.value.text.splitlines()[-1] == node.ELSEWHERE
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "checkpoints",
        "run.json",
        "stage.json",
    ]


def test_a_results_folder_where_nothing_was_trained_is_used(tmp_path, monkeypatch):
    recipe, said = begun(tmp_path, checkpoint=False), []

    def launch(stage, place, progress) -> None:
        said.append(f"{stage.name} is launched")
        Path(place.data_dir).mkdir(exist_ok=True)
        Path(place.data_dir, "train.parquet").write_text("rows")

    monkeypatch.setattr(pipeline, "launch", launch)
    node.lead(recipe, [2, 2], 4, accelerator=False, tell=said.append)
    assert "data is launched" in said and "train is launched" not in said, (
        "each machine trains by itself"
    )
    assert [file.name for file in (tmp_path / "config").iterdir() if file.name == PLAN_FILE]
    assert json.loads((tmp_path / "stage.json").read_text())["inputs"]["learning_rate"] != 7


# What is trained


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, Path]:
    """A twin, and texts of a number of blocks that any 1 to 3 processes share without a rest,
    because what is left over is shared differently."""
    folder = tmp_path_factory.mktemp("small")
    recipe, _, _ = load(GEMMA)
    documents = SAMPLE.read_text("utf-8").strip().split("\n\n")
    marks = catalog.chat_template("chatml")
    facts = twin.wanted(recipe.model_facts, marks, 2, 1, folder / "model")
    words = twin.tokenizer_for(facts)(documents)
    twin.build(facts)
    files = {"model": folder / "model"}
    for name, ordered in (("train", documents[:30]), ("validation", documents[30:])):
        for count in range(len(ordered), 0, -1):
            blocks = sum(len(ids) + 1 for ids in words(ordered[:count])["input_ids"]) // 64
            if blocks and blocks % 6 == 0:
                break
        assert blocks >= 6
        files[name] = folder / f"{name}.txt"
        files[name].write_text("\n\n".join(ordered[:count]))
    return files


def trained(
    folder: Path, small: dict[str, Path], machines: list[int], accumulation: int, **env: str
) -> dict:
    """The scripts of a run on this machine's processors, all started; the run's summary and steps.

    machines: GPUs of each in the recipe; env `GPUS_1` is GPUS of machine 1.
    """
    # A path without blanks, as `nodes.python` must be, wherever this clone lies.
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "venv").symlink_to(sys.prefix)
    python = folder / "venv" / "bin" / "python"
    port = free_port()
    found = scripts(
        folder,
        f"model.base={small['model']}",
        "model.precision=fp32",
        "model.attention=sdpa",
        "model.gradient_checkpointing=false",
        "model.sequence_len=64",
        "train.cross_entropy=plain",
        "train.micro_batch_size=2",
        "train.eval_batch_size=2",
        f"train.gradient_accumulation_steps={accumulation}",
        "train.effective_batch_size=",
        "train.epochs=1",
        "train.warmup_steps=1",
        "train.learning_rate=0.005",
        "train.optimizer=adamw_torch",
        "train.logging_steps=1",
        "data.hub=",
        "data.validation_split=",
        f"data.path={small['train']}",
        f"data.validation_path={small['validation']}",
        "demo.questions=",
        f"machines.nodes={len(machines)}",
        f"machines.gpus_per_node={max(machines)}",
        f"nodes.machines={json.dumps([{'address': '127.0.0.1', 'gpus': list(range(gpus))} for gpus in machines])}",
        f"nodes.port={port}",
        f"nodes.output_dir={folder}/out",
        f"nodes.python={python}",
    )
    shared = {
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        **{name: value for name, value in env.items() if not name.startswith("GPUS_")},
    }
    own = [
        {"GPUS": env[f"GPUS_{rank}"]} if f"GPUS_{rank}" in env else {}
        for rank in range(len(machines))
    ]
    # The main one last: the others wait for its port.
    processes = [
        start(found[rank], **shared, **own[rank]) for rank in reversed(range(len(machines)))
    ]
    said = [finish(process, 400) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(machines), "\n\n".join(said)[
        -6000:
    ]
    out = folder / "out"
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert "All results are in" in said[-1], said[-1]
    return json.loads((out / "training_summary.json").read_text()) | {
        "said": said,
        "losses": [
            entry["loss"]
            for entry in json.loads((out / "training_history.json").read_text())["steps"]
        ],
    }


@pytest.mark.long
def test_two_machines_make_the_losses_of_one_process_on_the_same_batches(small, tmp_path):
    """Machine 1 is given two GPUs where the recipe says one, so the machines are uneven and the
    figures follow."""
    two = trained(tmp_path / "two", small, [1, 1], 1, GPUS_1="0,1", TOTAL_GPUS="3")
    one = trained(tmp_path / "one", small, [1], 3)
    assert (two["world_size"], two["backend"], two["effective_batch_size"]) == (3, "gloo", 6)
    assert (one["world_size"], one["backend"], one["effective_batch_size"]) == (1, None, 6)
    assert len(one["losses"]) == one["steps"] == two["steps"] >= 5
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-4)
    assert two["best_validation_loss"] == pytest.approx(one["best_validation_loss"], abs=1e-4)
    assert one["losses"][-1] < one["losses"][0] - 0.3
    assert (tmp_path / "two" / "out" / "train-node1.log").stat().st_size > 0
    assert re.search(r"nodes.machines.1.gpus: \[0\] → \[0, 1\]", "".join(two["said"]))


def test_gpus_that_do_not_add_up_are_refused_on_every_machine(small, tmp_path):
    with pytest.raises(AssertionError) as failed:
        trained(tmp_path, small, [1, 1], 1, GPUS_1="0,1")
    for words in ("1 + 2 = 3 GPUs", "TOTAL_GPUS is 2.", "TOTAL_GPUS=3"):
        assert str(failed.value).count(words) == 2


# Several stages


RECIPE = """
scenario: stages
name: two-stages
model: {{base: {model}, precision: fp32, attention: sdpa, gradient_checkpointing: false, sequence_len: 256}}
stages:
  - name: sft
    technique: full
    data: {{path: questions.jsonl, question: "[q]", answer: "[a]", validation_share: 0.25}}
    train: {{epochs: 2, micro_batch_size: 2, optimizer: adamw_torch, learning_rate: 0.005, logging_steps: 1, cross_entropy: plain, kernels: none}}
    gates: [perplexity < {most}]
  - name: dpo
    technique: lora
    data: {{path: pairs.jsonl, form: preferences, prompt: "[q]", chosen: "[good]", rejected: "[bad]", validation_share: 0.25}}
    train: {{epochs: 1, micro_batch_size: 2, optimizer: adamw_torch, learning_rate: 0.001, logging_steps: 1, kernels: none}}
    gates: [preference_accuracy >= 0]
machines: {{gpu: NVIDIA-L40S, nodes: 2, memory: 8 GB, cpus: 2}}
nodes: {{output_dir: {out}, port: {port}, python: {python}, machines: [{{address: 127.0.0.1, gpus: [0]}}, {{address: 127.0.0.1, gpus: [0]}}]}}
"""


@pytest.fixture(scope="module")
def speaker(tmp_path_factory) -> Path:
    """A twin of a model with a chat template."""
    folder = tmp_path_factory.mktemp("speaker") / "model"
    recipe, _, _ = load(ROOT / "recipes" / "minimal" / "full.yaml")
    facts = twin.wanted(recipe.model_facts, catalog.chat_template("chatml"), 2, 1, folder)
    twin.tokenizer_for(facts)(SAMPLE.read_text("utf-8").split("\n\n"))
    twin.build(facts)
    return folder


def two_machines(folder: Path, model: Path, most: float) -> tuple[list[int], list[str]]:
    """Exit codes and output of both machines' scripts of a recipe of two stages. most: perplexity
    at the gate."""
    folder.mkdir(exist_ok=True)
    venv, file = folder / "venv", folder / "recipe.yaml"
    if not venv.exists():
        venv.symlink_to(sys.prefix)
        rows = [
            {"q": f"What is {n}?", "a": f"It is {n}.", "good": f"It is {n}.", "bad": "No."}
            for n in range(16)
        ]
        for name in ("questions", "pairs"):
            (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    facts = {"model": model, "most": most, "out": folder / "out", "port": free_port()}
    file.write_text(RECIPE.format(**facts, python=venv / "bin" / "python"))
    found = scripts(folder, file=file)
    for name in ("questions", "pairs"):
        shutil.copyfile(folder / f"{name}.jsonl", folder / "nodes" / f"{name}.jsonl")
    env = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    processes = [start(script, **env) for script in reversed(found)]
    said = [finish(process, 400) for process in processes]
    return [process.returncode for process in reversed(processes)], said[::-1]


@pytest.mark.long
def test_two_machines_train_the_stages_one_after_the_other(speaker, tmp_path):
    """A closed gate ends both scripts; started again, they go on behind it."""
    codes, said = two_machines(tmp_path, speaker, 1.001)
    assert codes == [1, 1], said
    for output in said:
        assert "`dpo` does not start" in output or "later stages do not start" in output, output[
            -3000:
        ]
    out = tmp_path / "out"
    before = (out / "sft" / "best_model" / "model.safetensors").read_bytes()
    assert not (out / "dpo" / "checkpoints").exists()
    codes, said = two_machines(tmp_path, speaker, 1e6)
    assert codes == [0, 0], "\n\n".join(said)[-6000:]
    assert (out / "sft" / "best_model" / "model.safetensors").read_bytes() == before
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    assert (
        f"base_model: {out}/sft/best_model\n"
        in (out / "dpo" / "config" / "axolotl.yaml").read_text()
    )
    for stage in ("sft", "dpo"):
        known = json.loads((out / stage / "training_summary.json").read_text())
        assert (known["world_size"], known["backend"]) == (2, "gloo")
        assert (out / stage / "train-node1.log").stat().st_size > 0
    assert "All results are in" in said[0]
