"""A whole pipeline through the real engine with a tiny twin: what it learns, its gates, and what
reads its run."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.check.validate import changed as with_overrides
from runner.check.validate import load
from runner.data.prepared import PreparedRows
from runner.parts.evaluate import seal
from runner.parts.jobs import kubernetes
from runner.plan import Place
from runner.recipe.overrides import from_options
from runner.scenarios import rehearsal, translate
from runner.tools import child_process
from tests.conftest import ROOT
from tests.parts.openshift.pods import once, operate, pods
from tests.parts.report import pages
from tests.rendering import render

pytestmark = pytest.mark.heavy

# Shorter blocks than the recipe's 512 to 2,048 tokens: a rehearsal trains on them for a third of
# the time.
SHORTER = [
    f"stages.0.train.curriculum.{number}.sequence_len={128 * 2**number}" for number in range(3)
]
SEVEN_B = (
    ROOT / "recipes" / "seven-b.yaml",
    *(word for option in SHORTER for word in ("--set", option)),
)
TRAINED = ("pretrain-128", "pretrain-256", "pretrain-512", "sft", "dpo", "lora")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory, recipe_command):
    """One rehearsal of the whole recipe; the folder and what it printed."""
    out = tmp_path_factory.mktemp("rehearsal") / "run"
    done = recipe_command(
        "rehearse", *SEVEN_B, "--out", out, env={"HF_HUB_OFFLINE": "1"}, timeout=1200
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    return out, done.stdout


def history(out: Path, stage: str) -> dict:
    return json.loads((out / stage / "training_history.json").read_text("utf-8"))


def test_a_rehearsal_runs_every_stage_and_every_gate(rehearsed):
    out, said = rehearsed
    for stage in TRAINED:
        assert list((out / stage / "best_model").glob("*.safetensors")), stage
    for stage in ("pretrain-512", "sft", "dpo", "lora"):
        assert f"{stage}: gate" in said
    assert said.count("135,168") >= 2, "the tokens are said before and after"
    assert "MISSED" not in said


def test_the_page_to_show_has_every_stage_and_gate(rehearsed):
    out, _ = rehearsed
    page = pages.read(out / "report.html")
    for name in TRAINED:
        pages.holds_the_figures_of(page, out / name)
    assert [
        page.said.count(f"Gate after {name}: open")
        for name in ("pretrain-512", "sft", "dpo", "lora")
    ] == [1] * 4
    assert "all 4 gates are open, with thresholds for a rehearsal" in page.said


def test_the_learning_rate_runs_on_over_the_lengths(rehearsed):
    out, _ = rehearsed
    found = {
        step["step"]: step["learning_rate"]
        for name in TRAINED[:3]
        for step in history(out, name)["steps"]
    }
    assert sorted(found) == list(range(1, 121))
    top, low, warmup, whole = 0.01, 0.001, 10, 120
    for step, rate in found.items():
        done = step - 1  # steps before this one: the rate that it was taken with
        cosine = low + (top - low) * 0.5 * (
            1 + math.cos(math.pi * (done - warmup) / (whole - warmup))
        )
        wanted = top * done / warmup if done < warmup else cosine
        assert rate == pytest.approx(wanted, rel=1e-5, abs=1e-12), step


def test_the_tokens_are_those_of_the_plan(rehearsed):
    out, _ = rehearsed
    seen = [
        json.loads((out / name / "training_summary.json").read_text("utf-8"))["tokens"]
        for name in TRAINED[:3]
    ]
    assert seen == [24_576, 24_576 + 36_864, 135_168]


def test_a_length_goes_on_with_the_model_of_the_one_before(rehearsed):
    out, _ = rehearsed
    for before, after in (TRAINED[:2], TRAINED[1:3]):
        last = history(out, before)["epochs"][-1]["validation_loss"]
        first = history(out, after)["steps"][0]["loss"]
        assert first < last + 0.5, "an optimizer that starts anew would throw the model back"


def test_dpo_learns_to_prefer_the_better_answer(rehearsed):
    summary = json.loads((rehearsed[0] / "dpo" / "training_summary.json").read_text("utf-8"))
    assert summary["first_preference_accuracy"] < 0.6 <= summary["last_preference_accuracy"]


def test_the_same_command_again_does_nothing_again(rehearsed, recipe_command):
    done = recipe_command("rehearse", *SEVEN_B, "--out", rehearsed[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "This rehearsal is already done" in done.stdout and "starting" not in done.stdout
    told = [line for line in done.stdout.splitlines() if line.endswith(": done already")]
    # The data is looked at twice: other substitutions depend on the rows.
    assert list(dict.fromkeys(told)) == [
        f"{stage}: done already" for stage in ("data", "init", *TRAINED)
    ]


def test_an_unreachable_threshold_stops_at_that_gate(rehearsed, recipe_command):
    out, _ = rehearsed
    done = recipe_command(
        "rehearse", *SEVEN_B, "--out", out, "--set", "stages.1.gates.1=generated_tokens < 1"
    )
    assert done.returncode == 1
    assert (
        "The gate after `sft` is closed" in done.stderr
        and "generated_tokens: required < 1" in done.stderr
    )
    assert "dpo: " not in done.stdout.split("sft: gate")[1]


def test_a_gate_is_read_with_exit_0_or_1(rehearsed, recipe_command):
    out, _ = rehearsed
    good = recipe_command("gate", *SEVEN_B, "sft", "--run", out)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "is open" in good.stdout and "metric" in good.stdout
    bad = recipe_command(
        "gate", *SEVEN_B, "sft", "--run", out, "--set", "stages.1.gates.1=generated_tokens < 1"
    )
    assert bad.returncode == 1 and "MISSED" in bad.stdout and "is closed" in bad.stdout
    ungated = recipe_command("gate", *SEVEN_B, "pretrain-128", "--run", out)
    assert ungated.returncode == 1 and "MISSED" not in ungated.stdout
    assert "Stages with a gate: `pretrain-512`, `sft`, `dpo` and `lora`." in ungated.stdout
    assert "Stage `pretrain-128` has no gate. Write requirements under `gates`" in ungated.stderr


def test_a_person_may_overrule_a_gate_and_is_on_record(rehearsed, recipe_command, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(rehearsed[0], out)
    strict = ("--set", "stages.3.gates.1=generated_tokens < 1")
    who = ("--by", "Ada Lovelace", "--reason", "the demo is tomorrow")
    assert recipe_command("promote", *SEVEN_B, "lora", "--run", out, *who).returncode == 1, (
        "an open gate needs nobody"
    )
    assert (
        recipe_command(
            "promote", *SEVEN_B, "lora", "--run", out, *strict, "--by", "", "--reason", "x"
        ).returncode
        == 2
    )
    done = recipe_command("promote", *SEVEN_B, "lora", "--run", out, *strict, *who)
    assert done.returncode == 0, done.stdout + done.stderr
    read = recipe_command("gate", *SEVEN_B, "lora", "--run", out, *strict)
    assert read.returncode == 0 and "PROMOTED" in read.stdout and "Ada Lovelace" in read.stdout
    again = recipe_command("rehearse", *SEVEN_B, "--out", out, *strict)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (
        again.stdout.count("the demo is tomorrow") >= 1
        and "missed: generated_tokens" in again.stdout
    )
    stricter = recipe_command(
        "gate", *SEVEN_B, "lora", "--run", out, "--set", "stages.3.gates.1=generated_tokens <= 0"
    )
    assert stricter.returncode == 1, "a promotion holds for the gate that it overruled alone"


def test_weights_that_somebody_exchanged_close_the_gate(rehearsed, recipe_command, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(rehearsed[0], out)
    record = json.loads((out / "sft" / "evaluation.json").read_text("utf-8"))
    (out / "sft" / "evaluation.json").write_text(
        json.dumps(seal.sealed(record | {"model": "0" * 32}, make=False))
    )
    done = recipe_command("gate", *SEVEN_B, "sft", "--run", out)
    assert done.returncode == 1 and "measured on another model" in done.stdout


def test_ask_says_which_stage_answers(rehearsed, recipe_command):
    done = recipe_command("ask", *SEVEN_B, "How do I tie a bowline?", "--run", rehearsed[0])
    assert done.returncode == 0, done.stdout + done.stderr
    *changes, first, empty, said = done.stdout.split("\n", len(SHORTER) + 2)
    assert [line.partition(":")[0] for line in changes] == [
        option.partition("=")[0] for option in SHORTER
    ]
    assert (
        first.startswith("The model that `lora` trained in this rehearsal: ")
        and not empty
        and said.strip()
    )


def test_runs_are_compared_stage_by_stage(rehearsed, recipe_command, tmp_path):
    one, other = rehearsed[0], tmp_path / "other"
    shutil.copytree(one, other)
    strict = ("--set", "stages.1.gates.1=generated_tokens < 1")
    who = ("--by", "Ada Lovelace", "--reason", "the demo is tomorrow")
    assert recipe_command("promote", *SEVEN_B, "sft", "--run", other, *strict, *who).returncode == 0
    (other / "lora" / "evaluation.json").unlink()
    done = recipe_command("compare", *SEVEN_B, "--run", one, "--with", other, *strict)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in done.stdout.splitlines()
        if "│" in line
    ]
    assert [row[0] for row in table if row[0]] == list(TRAINED)
    cells = {row[1]: row[2:] for row in table}
    assert cells["gate generated_tokens < 1"][0].startswith("MISSED:")
    loss = json.loads((one / "lora" / "training_summary.json").read_text("utf-8"))[
        "last_validation_loss"
    ]
    assert (
        cells["validation loss"][0].endswith(f"→ {loss:.4g}")
        and cells["validation loss"][1] == cells["validation loss"][0]
    )
    assert cells["promotion"][0] == "" and cells["promotion"][1].startswith("PROMOTED against its")
    # It takes several lines, and it is the last.
    last = max(index for index, row in enumerate(table) if row[1] == "gate generated_tokens >= 1")
    assert " ".join(row[3] for row in table[last:]).startswith("MISSED: no evaluation was recorded")


@pytest.mark.long
def test_another_checkpoint_is_measured_and_opens_no_gate(rehearsed, recipe_command, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(rehearsed[0], out)
    checkpoint = sorted((out / "sft" / "checkpoints").glob("checkpoint-*"))[0]
    done = recipe_command("evaluate", *SEVEN_B, "sft", "--run", out, "--checkpoint", checkpoint)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "perplexity" in done.stdout
    assert recipe_command("gate", *SEVEN_B, "sft", "--run", out).returncode == 1
    assert recipe_command("evaluate", *SEVEN_B, "sft", "--run", out).returncode == 0
    assert recipe_command("gate", *SEVEN_B, "sft", "--run", out).returncode == 0


# The whole way on a claim: what the manifests' own commands do, with config maps of the rehearsal
# in the place of theirs


def config_map(folder: Path, models: Path, stage: str, *options: str) -> dict[str, Path]:
    """The mounts of a stage's pods: the claim, and the files that a rehearsal's stage has in its
    config map. After the data, more is substituted."""
    recipe, _, _ = load(SEVEN_B[0], from_options([*SHORTER, *options]))
    run, own = models / "seven-b", rehearsal("stages")
    home = folder / f"config-{len(list(folder.iterdir()))}"
    place = Place(
        str(home),
        str(run / "data"),
        str(run),
        str(folder / "s"),
        False,
    )
    changed, _ = with_overrides(recipe, own.before_data(recipe, None))
    if rows := PreparedRows.read(run / "data"):
        changed, _ = with_overrides(changed, own.after_data(changed, rows, run))
    for file in translate(changed, replace(place, on_cluster=True)).stage(stage).files:
        (home / stage).mkdir(parents=True, exist_ok=True)
        (home / stage / file.path).write_text(file.text, encoding="utf-8")
    return {f"/etc/recipe-runner/{stage}": home / stage, "/shared/models": models}


def rendered(path: str) -> dict[str, Any]:
    recipe, _, _ = load(SEVEN_B[0], from_options(SHORTER))
    files = {file.path: file.text for file in render(translate(recipe, kubernetes.place(recipe)))}
    return yaml.safe_load(files[path])


@pytest.mark.long
def test_the_gate_jobs_own_command_measures_and_opens_on_the_claim(rehearsed, tmp_path):
    models = tmp_path / "models"
    shutil.copytree(rehearsed[0], models / "seven-b")
    record = models / "seven-b" / "sft" / "evaluation.json"
    record.unlink()
    # The next stage's pod comes too early, and looks for itself.
    (early,) = pods(
        rendered("dpo/pytorchjob.yaml"), config_map(tmp_path, models, "dpo"), tmp_path / "early"
    )
    early.start()
    assert early.process.wait(120) == child_process.DECIDED
    assert "gate after `sft` is closed" in early.text
    done = once(rendered("sft/gate.yaml"), config_map(tmp_path, models, "sft"), tmp_path / "gate")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        done.stdout.splitlines()[-1] == "The gate after `sft` is open."
        and "perplexity" in done.stdout
    )
    assert math.isfinite(json.loads(record.read_text("utf-8"))["metrics"]["perplexity"])
    (late,) = pods(
        rendered("dpo/pytorchjob.yaml"), config_map(tmp_path, models, "dpo"), tmp_path / "late"
    )
    late.start()
    assert late.process.wait(120) == 0 and "dpo: done already" in late.text
    strict = config_map(tmp_path, models, "sft", "stages.1.gates.1=generated_tokens < 1")
    shut = once(rendered("sft/gate.yaml"), strict, tmp_path / "strict")
    assert shut.returncode == 1
    assert "MISSED: it misses the threshold" in shut.stdout
    assert shut.stdout.splitlines()[-1] == "The gate after `sft` is closed."


@pytest.fixture
def short_path():
    """A socket's name holds 107 characters, and multiprocessing puts its sockets below a pod's
    TMPDIR."""
    with tempfile.TemporaryDirectory(prefix="pods-") as folder:
        yield Path(folder)


@pytest.mark.long
def test_stages_trained_by_their_jobs_own_commands_pass_their_gates(short_path):
    tmp_path = short_path
    models, said = tmp_path / "models", {}
    models.mkdir()
    for stage in ("data", "init", *TRAINED[:3], "sft"):
        mounts = config_map(tmp_path, models, stage)
        if stage in ("data", "init"):
            done = once(rendered(f"{stage}/job.yaml"), mounts, tmp_path / "jobs" / stage)
            assert done.returncode == 0, done.stdout + done.stderr
        else:
            job = rendered(f"{stage}/pytorchjob.yaml")
            # One process here, where the recipe has eight; the config map is the one of a single
            # one.
            job["spec"]["nprocPerNode"] = "1"
            (pod,) = pods(job, mounts, tmp_path / "pods" / stage)
            operate(job, [pod], lambda: None, timeout=400)
            said[stage] = pod.text
        state = json.loads((models / "seven-b" / stage / "stage.json").read_text("utf-8"))
        assert state["status"] == "finished" and state["outputs"] and state["keys"][""], stage
        if stage == TRAINED[2]:
            done = once(rendered(f"{stage}/gate.yaml"), mounts, tmp_path / "gate")
            assert done.returncode == 0, done.stdout + done.stderr
    checkpoints = list((models / "seven-b" / "pretrain-128" / "checkpoints").iterdir())
    key = json.loads((models / "seven-b" / "pretrain-128" / "stage.json").read_text("utf-8"))[
        "keys"
    ][""]
    assert [folder.name for folder in checkpoints] == [key]
    assert "sft: starting" in said["sft"]
