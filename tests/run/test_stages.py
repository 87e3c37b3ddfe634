"""Which stages run, and on what: what changed runs again, nothing else does, and what took training
is not lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from runner import parts
from runner.check.validate import load
from runner.plan import PLAN_FILE, Plan
from runner.run import pipeline
from runner.run.pipeline import Selection
from runner.run.run import rehearse
from runner.run.run_folder import RunFolder, StageFolder, check_weights
from runner.scenarios import saved_plan
from runner.tools.problem import Stop
from tests.conftest import ROOT
from tests.stages import finish, leave, plan_in

WEIGHTS = "best_model/model.safetensors"


@pytest.fixture
def finished(tmp_path) -> Callable[..., Plan]:
    """A run of seven-b whose every stage looks finished; gives a function for changed plans."""
    finish(plan_in(tmp_path, "seven-b"))
    return lambda *options, **place: plan_in(tmp_path, "seven-b", *options, **place)


def repeated(plan: Plan) -> list[str]:
    return [
        decision.stage.name
        for decision in pipeline.decide(plan, plan.stages)
        if decision.action != "keep"
    ]


def begin(plan: Plan, name: str) -> list[str]:
    """What is said when a stage begins; its engine is not started."""
    folder, said = StageFolder(plan, plan.stage(name)), []
    pipeline.begin(folder, pipeline.decision_on(folder), said.append)
    return said


def test_nothing_runs_again_where_nothing_changed(finished):
    assert repeated(finished()) == []


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (("stages.3.train.lora_rank=32",), ["lora"]),
        (("stages.2.train.beta=0.2",), ["dpo", "lora"]),
        (("stages.1.train.learning_rate=1e-5",), ["sft", "dpo", "lora"]),
        # What is proven of its rows before a GPU is held is proven anew; pretraining reads nothing
        # of that.
        (("stages.1.train.packing=none",), ["data", "sft", "dpo", "lora"]),
        (
            ("stages.0.train.learning_rate=1e-4",),
            ["pretrain-512", "pretrain-1024", "pretrain-2048", "sft", "dpo", "lora"],
        ),
        (("stages.0.train.logging_steps=5",), []),
        (("stages.0.gates.0=perplexity < 3",), []),
        (("stages.1.train.report_to=none",), []),
        (("openshift.queue=fast",), []),
        (("stages.1.speed.data_workers=8",), []),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_only_stages_whose_inputs_changed_run_again(finished, options, names):
    assert repeated(finished(*options)) == names


def test_the_reason_is_said(finished):
    plan = finished("stages.2.train.beta=0.2")
    said = [str(decision) for decision in pipeline.decide(plan, plan.stages)]
    assert "dpo: runs again (rl_beta: 0.1 → 0.2)" in said
    assert "lora: runs again (`dpo` before it runs again)" in said
    assert "sft: done, its result is reused" in said


def test_results_that_are_not_as_they_were_left_are_made_again(finished, tmp_path):
    plan = finished()
    (tmp_path / "sft" / "best_model" / "model.safetensors").write_text("something else")
    assert repeated(plan) == ["sft", "dpo", "lora"]
    (tmp_path / "sft" / "best_model" / "model.safetensors").unlink()
    assert repeated(plan) == ["sft", "dpo", "lora"]


def test_what_took_training_is_moved_aside_before_a_stage_runs_again(finished, tmp_path):
    def again(name: str, learning_rate: str) -> list[str]:
        return begin(
            finished(
                f"stages.1.train.learning_rate={learning_rate}",
                f"stages.0.model.seed={learning_rate[0]}",
            ),
            name,
        )

    trained = (tmp_path / "sft" / WEIGHTS).read_bytes()
    assert again("sft", "1e-5")[1:] == [
        f"sft: the old result has moved to {tmp_path}/sft.before; delete it when you no longer need it",
        f"sft: starting; log in {tmp_path}/sft/train.log",
    ]
    assert (tmp_path / "sft.before" / WEIGHTS).read_bytes() == trained and not (
        tmp_path / "sft" / WEIGHTS
    ).exists()
    # Nothing was trained since.
    assert len(again("sft", "2e-6")) == 2 and not (tmp_path / "sft.before-2").exists()
    (tmp_path / "sft" / "checkpoints" / "checkpoint-500").mkdir(parents=True)
    assert f"moved to {tmp_path}/sft.before-2;" in again("sft", "3e-6")[1]
    assert (tmp_path / "sft.before-2" / "checkpoints" / "checkpoint-500").is_dir()
    assert (tmp_path / "sft.before" / WEIGHTS).read_bytes() == trained, (
        "one that was moved earlier stays"
    )
    # What has no record could be anybody's.
    (tmp_path / "lora" / "stage.json").unlink()
    assert f"moved to {tmp_path}/lora.before;" in again("lora", "2e-5")[1]
    # Random weights are quickly made again, and so is all of a rehearsal.
    assert len(again("init", "4e-6")) == 2
    RunFolder(tmp_path, "rehearsal").mark("running")
    assert len(again("dpo", "4e-6")) == 2
    assert not [*tmp_path.glob("init.*"), *tmp_path.glob("dpo.*")]


def test_nothing_is_taken_away_for_a_stage_that_has_no_time_left(finished, tmp_path):
    (tmp_path / "pretrain-512" / "time_limit.json").write_text('{"used_seconds": 100.0}')
    (tmp_path / "sft" / "time_limit.json").write_text('{"used_seconds": 100.0}')
    for place in ({}, {"on_cluster": True}):
        with pytest.raises(Stop, match="is used up"):
            begin(finished("limits.time=90 s", "stages.1.train.learning_rate=1e-5", **place), "sft")
        assert (tmp_path / "sft" / WEIGHTS).is_file() and not (tmp_path / "sft.before").exists()
    # What the stage itself has used was for what goes.
    assert (
        "starting"
        in begin(finished("limits.time=150 s", "stages.1.train.learning_rate=1e-5"), "sft")[-1]
    )


def in_its_pod(plan: Plan, name: str) -> Plan:
    """The plan as the pod of a stage reads it."""
    return saved_plan.from_json(
        next(file.text for file in plan.stage(name).files if file.path == PLAN_FILE)
    )


def test_in_pods_a_changed_stage_is_cleared_because_no_claim_has_room_for_two(tmp_path):
    def plan(*options: str) -> Plan:
        return in_its_pod(plan_in(tmp_path, "seven-b", *options, on_cluster=True), "sft")

    finish(plan())
    (tmp_path / "sft" / "checkpoints" / "old-key" / "checkpoint-500").mkdir(parents=True)
    said = begin(plan("stages.1.train.learning_rate=1e-5"), "sft")
    assert said[0].startswith("sft: runs again (learning_rate") and "moved" not in "".join(said)
    assert (
        not (tmp_path / "sft" / "checkpoints").exists()
        and not (tmp_path / "sft" / WEIGHTS).exists()
    )
    assert not [*tmp_path.glob("*.before*")]
    assert (tmp_path / "pretrain-2048" / WEIGHTS).is_file(), "no other stage is touched"


def test_in_pods_a_changed_recipe_of_one_training_clears_its_results_and_nothing_of_others(
    tmp_path,
):
    """The folder may lie on a claim beside things that nobody here has made."""
    run = tmp_path / "models"

    def plan(*options: str) -> Plan:
        place = {"on_cluster": True, "prepared": True, "data_dir": f"{run}/prepared"}
        return in_its_pod(plan_in(run, "survival", *options, **place), "train")

    finish(plan())
    others = (
        "prepared/train.parquet",
        "base-models/smol/model.safetensors",
        "another-run/best_model/x",
        "notes.txt",
    )
    for name in others:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("precious")
    (run / "checkpoints" / "old-key" / "checkpoint-500").mkdir(parents=True)
    folder = StageFolder(plan(), plan().stage("data"))
    folder.mark("finished", outputs=folder.outputs())
    said = begin(plan("train.learning_rate=1e-5"), "train")
    assert said[0].startswith("train: runs again (")
    assert not (run / WEIGHTS).exists() and not (run / "checkpoints").exists()
    assert not (run / "training_summary.json").exists() and not [*tmp_path.rglob("*.before*")]
    assert [(run / name).read_text() for name in others] == ["precious"] * len(others)


@pytest.mark.parametrize(
    ("recipe", "name", "rows"), [("seven-b", "sft", "sft/"), ("survival", "train", "")]
)
def test_rows_tokenised_before_an_interruption_are_not_trained_on_once_the_data_has_changed(
    recipe, name, rows, tmp_path
):
    plan = plan_in(tmp_path, recipe)
    finish(
        plan,
        *[
            stage.name
            for stage in plan.stages
            if stage.name in ("data", "init") or "pretrain" in stage.name
        ],
    )
    begin(plan, name)
    tokenised = Path(plan.stage(name).config["dataset_prepared_path"])
    (tokenised / "abc").mkdir(parents=True)
    # Killed here, the same command goes on with what is tokenised.
    assert begin(plan, name)[-1].startswith(f"{name}: continuing")
    assert (tokenised / "abc").is_dir()
    # Killed again, and the data is made anew under the same path.
    (tmp_path / "data" / rows / "train.parquet").write_text("other rows, from other documents")
    data = StageFolder(plan, plan.stage("data"))
    data.mark("finished", outputs=data.outputs())
    said = begin(plan, name)
    assert said[0] == f"{name}: runs again (data produced other results)"
    assert not tokenised.exists()


def start(plan: Plan, chosen: Selection, said: list[str]) -> None:
    pipeline.carry_out(plan, chosen.of(plan), said.append, lambda: nullcontext(lambda event: None))


@pytest.mark.parametrize(
    ("options", "exchanged", "stage", "words"),
    [
        (
            ("stages.1.train.learning_rate=1e-5",),
            None,
            "dpo",
            "other inputs than now: learning_rate: 2e-05",
        ),
        (
            ("stages.1.train.learning_rate=1e-5",),
            None,
            "lora",
            "`sft` was made from other inputs than now",
        ),
        ((), f"sft/{WEIGHTS}", "dpo", f"`sft` has changed since it was made (`{WEIGHTS}`)"),
        (
            (),
            "data/dpo/train.parquet",
            "dpo",
            "`data` has changed since it was made (`dpo/train.parquet`)",
        ),
        (
            ("stages.3.data.seed=7",),
            "data/lora/train.parquet",
            "dpo",
            "gate after `pretrain-2048` is closed",
        ),
    ],
    ids=["settings", "settings further up", "weights", "rows", "what it does not read"],
)
def test_a_stage_chosen_by_name_starts_only_on_what_the_recipe_would_make(
    finished, tmp_path, options, exchanged, stage, words, golden_message
):
    if exchanged:
        (tmp_path / exchanged).write_text("something else")
    with pytest.raises(Stop) as stop:
        start(finished(*options), Selection(stage=stage), [])
    assert words in stop.value.text
    golden_message(stop.value)
    assert RunFolder(tmp_path).state.status == "stopped"


def test_a_stage_that_leaves_no_results_of_this_recipe_is_not_finished(tmp_path, monkeypatch):
    plan, said = plan_in(tmp_path, "survival"), []
    finish(plan, "data")

    def launch(stage, place, progress) -> None:
        leave(plan, stage, fingerprint="of another recipe")

    monkeypatch.setattr(pipeline, "launch", launch)
    with pytest.raises(Stop, match="without results"):
        start(plan, Selection(), said)
    assert not StageFolder(plan, plan.stage("train")).finished
    monkeypatch.setattr(pipeline, "launch", lambda stage, place, progress: leave(plan, stage))
    start(plan, Selection(), said)
    assert (
        StageFolder(plan, plan.stage("train")).finished
        and RunFolder(tmp_path).state.status == "finished"
    )
    said.clear()
    start(plan, Selection(), said)
    assert said[0].startswith("This run is already done.")


def test_a_changed_length_of_blocks_repeats_only_what_reads_it(finished, tmp_path):
    plan = finished()
    data = StageFolder(plan, plan.stage("data"))
    (tmp_path / "data" / "blocks" / "train-2048.npy").write_text("others")
    data.mark("finished", outputs=data.outputs())
    assert repeated(plan) == ["pretrain-2048", "sft", "dpo", "lora"]


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        (Selection(), 8),
        (Selection(stage="sft"), 1),
        (Selection(first="sft"), 3),
        (Selection(last="init"), 2),
        (Selection(first="sft", last="dpo"), 2),
    ],
    ids=str,
)
def test_stages_are_chosen_by_name(chosen, names, tmp_path):
    assert len(chosen.of(plan_in(tmp_path, "seven-b"))) == names


@pytest.mark.parametrize(
    "chosen",
    [
        Selection(stage="sfft"),
        Selection(first="dpo", last="sft"),
        Selection(stage="sft", first="sft"),
    ],
    ids=str,
)
def test_a_choice_of_stages_that_means_nothing_is_refused(chosen, tmp_path):
    with pytest.raises(Stop) as stop:
        chosen.of(plan_in(tmp_path, "seven-b"))
    assert stop.value.code == 2


def test_weights_that_were_cut_short_do_not_load(tmp_path):
    save_file({"a": np.ones((4, 5), np.float32)}, tmp_path / "model.safetensors")
    check_weights(tmp_path)
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(Stop, match="cannot be loaded"):
        check_weights(tmp_path)


@pytest.mark.parametrize("recipe", ["survival", "resnet"])
def test_a_rehearsal_of_the_training_alone_says_that_its_data_is_missing(recipe, tmp_path):
    run, said = RunFolder(tmp_path, "rehearsal"), []
    known, _, _ = load(ROOT / "recipes" / f"{recipe}.yaml")
    with pytest.raises(Stop) as stop:
        rehearse(
            known,
            run,
            None,
            Selection(stage="train"),
            said.append,
            lambda: nullcontext(lambda event: None),
        )
    assert "`data`" in stop.value.text and "not finished" in stop.value.text
    assert not (tmp_path / "checkpoints").exists()


def test_without_the_part_that_reads_gates_every_gate_is_closed(tmp_path, monkeypatch):
    """In a pod, too: an image may lack the part, and a plan says which gates there are."""
    plan = plan_in(tmp_path, "seven-b")
    finish(plan)
    there = {name: part for name, part in parts.found().items() if name != "evaluate"}
    parts.stage_hooks.cache_clear()
    monkeypatch.setattr(parts, "found", lambda: there)
    try:
        for act in (pipeline.guard, pipeline.judge):
            with pytest.raises(Stop, match="the part `evaluate`, which is not installed"):
                act(StageFolder(plan, plan.stage("sft")), print)
        pipeline.guard(StageFolder(plan, plan.stage("data")), print)
    finally:
        parts.stage_hooks.cache_clear()
