"""The part `search`: which trials a section makes, what is said of a wrong one, which trials end
early, and a whole search."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import optuna
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Trainer, TrainingArguments

from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu
from runner.check.validate import examine, load
from runner.commands.cli import _code as command
from runner.commands.options import table
from runner.parts.planner import processor
from runner.parts.search import pruning, trials
from runner.recipe.recipe import Recipe
from runner.run import inference, this_machine
from runner.run import run as running
from runner.run.run_folder import RunFolder, StageFolder
from runner.tools.files import cache_folder, write_json
from runner.tools.problem import Stop
from runner.tools.settings import Settings
from runner.trainer.results import History
from runner.trainer.settings import RunSettings
from tests.conftest import ROOT
from tests.parts.export.runs import base_of
from tests.run.test_training_on_a_processor import without_gpu

SCHEMA = yaml.safe_load((ROOT / "runner/parts/search/sections.yaml").read_text("utf-8"))["search"]
RATES = {"train.learning_rate": [1e-4, 2e-4, 5e-4]}


def section(**search: object) -> Settings:
    return Settings({"over": {}, "between": {}, "seed": 42, "stop_poor": True, **search}, SCHEMA)


def written(folder: Path, **search: object) -> Path:
    shutil.copy(ROOT / "recipes/data/survival-sample.jsonl", folder / "rows.jsonl")
    recipe = {
        "scenario": "lora",
        "name": "searched",
        "model": {"base": "microsoft/Phi-4-mini-instruct"},
        "data": {"path": "rows.jsonl", "question": "[question]", "answer": "[answer]"},
        "machines": {"gpu": "NVIDIA-L40S"},
        "search": search,
    }
    (folder / "searched.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return folder / "searched.yaml"


def test_every_combination_is_a_trial_in_the_order_of_the_lines():
    made = trials.of(section(over={**RATES, "train.lora_rank": [8, 32, 8]}))
    assert [(one.number, *one.settings.values()) for one in made] == [
        (number, *values)
        for number, values in enumerate(itertools.product(RATES["train.learning_rate"], [8, 32]), 1)
    ]


def test_fewer_trials_than_combinations_are_drawn():
    over = {"train.lora_rank": list(range(1, 9)), "train.epochs": [1, 2, 3, 4, 5]}
    made = trials.of(section(over=over, trials=6))
    assert len({tuple(one.settings.values()) for one in made}) == 6
    assert made != trials.of(section(over=over, trials=6, seed=43))


@settings(deadline=None)  # a crowded machine is slow
@given(
    st.integers(1, 50),
    st.integers(1, 500),
    st.floats(1e-6, 1e-2),
    st.floats(1.1, 1e4),
    st.integers(0, 99),
)
def test_what_is_drawn_lies_between_the_bounds(low, more, least, times, seed):
    bounds = {"train.epochs": [low, low + more], "train.learning_rate": [least, least * times]}
    made = trials.of(section(between=bounds, trials=5, seed=seed))
    assert made == trials.of(section(between=bounds, trials=5, seed=seed)) and 2 <= len(made) <= 5
    for one in made:
        assert (
            type(one.settings["train.epochs"]) is int
            and low <= one.settings["train.epochs"] <= low + more
        )
        assert least <= one.settings["train.learning_rate"] <= least * times


def test_a_wide_range_is_drawn_by_its_order_of_magnitude():
    made = trials.of(section(between={"train.learning_rate": [1e-6, 1e-2]}, trials=32))
    assert 10 <= sum(one.settings["train.learning_rate"] < 1e-4 for one in made) <= 22


WRONG = {
    "an unknown setting": {"over": {"train.learning_rat": [1e-4, 2e-4]}},
    "a value that no recipe has": {"over": {"train.learning_rate": [1e-4, 20]}},
    "a text for a number": {"over": {"train.learning_rate": [1e-4, "high"]}},
    "values that contradict another line": {"over": {"train.simpo_margin": [0.5, 1.0]}},
    "one trial": {"over": {"train.learning_rate": [1e-4, 1e-4]}},
    "no trial": {},
    "bounds in the wrong order": {"between": {"train.learning_rate": [1e-3, 1e-5]}, "trials": 4},
    "a range without a number of trials": {"between": {"train.learning_rate": [1e-5, 1e-3]}},
    "too many combinations": {
        "over": {"train.epochs": list(range(1, 9)), "train.lora_rank": [1, 2, 3, 4, 5]}
    },
    "a setting in both": {
        "over": RATES,
        "between": {"train.learning_rate": [1e-5, 1e-3]},
        "trials": 4,
    },
    "itself": {"over": {"search.trials": [2, 3]}},
    "a value without a list": {"over": {"train.learning_rate": 1e-4}},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_section_is_refused_at_its_line(case, tmp_path, golden_message):
    problems = [
        problem
        for problem in examine(written(tmp_path, **WRONG[case]))
        if problem.severity == "error"
    ]
    assert problems and all(problem.line for problem in problems)
    golden_message(problems)


def test_the_trials_are_shown_with_what_each_needs(tmp_path, capsys, monkeypatch, golden_message):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, over={**RATES, "train.lora_rank": [8, 64]}, gpu_hours=1)
    assert command(["search", "searched.yaml", "--dry-run"]) == 0
    golden_message(capsys.readouterr().out)
    assert command(["search", "searched.yaml", "--set", "search.gpu_hours=0.01"]) == 1
    golden_message(capsys.readouterr().err, "more than it may take")
    large = "search.over={model.base: [microsoft/Phi-4-mini-instruct, meta-llama/Llama-3.3-70B-Instruct]}"
    assert command(["search", "searched.yaml", "--set", large]) == 1
    golden_message(capsys.readouterr().err, "a trial that does not fit")
    assert command(["search", str(ROOT / "recipes/minimal/lora.yaml")]) == 1
    golden_message(capsys.readouterr().err, "a recipe without the section")
    assert not (tmp_path / "runs").exists()


def test_the_section_changes_no_other_result(tmp_path):
    whole = load(written(tmp_path, over=RATES))[0]
    assert (
        whole.fingerprint == load(written(tmp_path, over={"train.epochs": [1, 2]}))[0].fingerprint
    )


@pytest.fixture
def slow_processor(tmp_path, monkeypatch) -> None:
    """A machine without a GPU, whose slow processor has 128 GiB."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    card = Gpu(
        PROCESSOR,
        "Slow with 2 threads",
        128,
        128.0,
        "0.0",
        12.0,
        "host",
        1.0,
        "torch 2",
        fp32_tflops=0.2,
    )
    cache_folder().mkdir(parents=True)
    monkeypatch.setattr(
        processor, "measure", lambda: write_json(cache_folder() / MEASURED, asdict(card))
    )
    monkeypatch.setattr(this_machine, "gpus_here", lambda recipe: ([], ""))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)


def with_rows(recipe: Recipe, run: RunFolder, status: str = "finished") -> None:
    """The run's folder as after its first stage, or as while that is at work."""
    plan = inference.plan_of(recipe, run)
    stage = StageFolder(plan, plan.stages[0])
    stage.path.mkdir(parents=True, exist_ok=True)
    stage.mark(status, outputs={})


def test_hours_on_this_processor_start_only_after_a_yes(
    tmp_path, slow_processor, monkeypatch, capsys, golden_message
):
    """The recipe's GPU would need four minutes."""
    begun: list[str] = []

    def run(recipe, run, *_):
        begun.append(run.path.name)
        with_rows(recipe, run)
        raise Stop(f"Trial {len(begun)} has failed.")

    monkeypatch.setattr(running, "run", run)
    written(tmp_path, over=RATES)
    assert command(["search", "searched.yaml"]) == 1 and begun == []
    golden_message("".join(capsys.readouterr()))
    assert not (tmp_path / "runs/searched-search/trial-01").exists()
    assert command(["search", "searched.yaml", "--yes"]) == 1
    assert begun == ["trial-01", "trial-02", "trial-03"], (
        "each failed in another way, so the next may do well"
    )
    assert "The 3 trials that are not finished take about" in capsys.readouterr().out


def test_trials_that_this_machine_cannot_hold_are_not_started(
    tmp_path, slow_processor, capsys, golden_message
):
    written(tmp_path, over=RATES)
    large = (
        "--set",
        "model.base=meta-llama/Llama-3.3-70B-Instruct",
        "--set",
        "machines.gpus_per_node=8",
    )
    assert (
        command(["search", "searched.yaml", "--yes", "--set", "machines.gpu=NVIDIA-H200", *large])
        == 1
    )
    golden_message(capsys.readouterr().err)


FAILURE = "Training failed. The hub does not answer. (Request ID: {trial}-7f3a)\nThe whole log: {folder}/train.log"


@pytest.mark.parametrize(("step", "begun"), [(False, 2), (True, 3)])
def test_a_failure_that_values_cannot_change_ends_the_search(
    step, begun, tmp_path, slow_processor, monkeypatch, capsys, golden_message
):
    """A failure after the first step, such as too little memory, is the result of a trial."""
    seen = []

    def run(recipe, run, chosen, tell, watch, *_):
        seen.append(run.path.name)
        with_rows(recipe, run)
        with watch() as progress:
            progress({"event": "begin", "step": 0, "steps": 9})
            if step:
                progress({"event": "step", "step": 1, "steps": 9, "loss": 2.0})
        raise Stop(FAILURE.format(trial=run.path.name, folder=run.path))

    monkeypatch.setattr(running, "run", run)
    written(tmp_path, over=RATES)
    assert command(["search", "searched.yaml", "--yes"]) == 1
    assert len(seen) == begun
    if not step:
        golden_message("\n".join(capsys.readouterr().err.splitlines()[-2:]))


FULL = "Training failed. The disk is full.\nThe log says: OSError: [Errno 28] No space left on device: step {number}"


@pytest.mark.parametrize(
    ("rows", "failure", "begun"),
    [
        # Every trial prepares the same rows with the same tokenizer.
        (False, "The rows of {number} cannot be loaded.", 1),
        # A full disk also comes after many steps.
        (True, FULL, 1),
        (True, "Training failed. The loss of trial {number} is not a number.", 3),
    ],
    ids=["no rows", "full disk", "its own failure"],
)
def test_a_failure_that_is_the_same_for_all_values_ends_the_search_at_once(
    rows, failure, begun, tmp_path, slow_processor, monkeypatch, capsys, golden_message
):
    seen = []

    def run(recipe, run, chosen, tell, watch, *_):
        seen.append(run.path.name)
        with_rows(recipe, run, "finished" if rows else "begun")
        if rows:
            with watch() as progress:
                progress({"event": "step", "step": 1, "steps": 9, "loss": 2.0})
        raise Stop(failure.format(number=len(seen)))

    monkeypatch.setattr(running, "run", run)
    written(tmp_path, over=RATES)
    assert command(["search", "searched.yaml", "--yes"]) == 1
    assert len(seen) == begun
    if not rows:
        golden_message("\n".join(capsys.readouterr().err.splitlines()[-2:]))


def test_another_model_may_be_there_where_one_is_not(tmp_path, slow_processor, monkeypatch, capsys):
    """Values of the model or the data can change why the first stage fails."""
    seen = []

    def run(recipe, run, *_):
        seen.append(run.path.name)
        with_rows(recipe, run, "begun")
        raise Stop(f"{recipe.model.base} is gated.")

    monkeypatch.setattr(running, "run", run)
    models = ["google/gemma-3-270m-it", "HuggingFaceTB/SmolLM2-135M-Instruct"]
    written(tmp_path, over={"model.base": models})
    assert command(["search", "searched.yaml", "--yes"]) == 1
    assert len(seen) == 2


class Line(torch.nn.Module):
    """Learns `target` from ones, unless its rate is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ones: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.weight * ones - target) ** 2).mean()}


def trained(folder: Path, study: optuna.Study, rate: float) -> int:
    """Trains as a trial of the study; gives the steps that it made."""
    record = pruning.TrialRecord(
        str(folder.parent / "journal"), study.study_name, study.ask().number
    )
    folder.mkdir()
    record.write(folder)
    facts = {
        "name": "x",
        "fingerprint": "x",
        "run_dir": str(folder),
        "recipe_file": "",
        "backend": "gloo",
    }
    sizes = {
        "world_size": 1,
        "effective_batch_size": 4,
        "base_learning_rate": rate,
        "learning_rate": rate,
    }
    settings = RunSettings.read(facts | sizes)
    rows = [{"ones": torch.ones(1), "target": torch.full((1,), 3.0)} for _ in range(16)]
    history = History(settings)
    arguments = {
        "num_train_epochs": 8,
        "per_device_train_batch_size": 4,
        "eval_strategy": "epoch",
        "use_cpu": True,
    }
    arguments |= {"label_names": ["target"]}
    trainer = Trainer(
        model=Line(),
        args=TrainingArguments(
            str(folder), report_to=[], learning_rate=rate, disable_tqdm=True, **arguments
        ),
        train_dataset=rows,
        eval_dataset=rows,
        callbacks=[history, *pruning.callbacks(settings, history)],
    )
    trainer.train()
    study.tell(record.trial, history.epochs[-1]["validation_loss"])
    return trainer.state.global_step


def test_a_trial_in_the_worse_half_ends_early_and_no_other(tmp_path):
    study = pruning.study(str(tmp_path / "journal"), "one", higher=False)
    assert trained(tmp_path / "good", study, 0.1) == 32
    assert trained(tmp_path / "bad", study, 0.0) == 4, "after its first evaluation"
    assert trained(tmp_path / "better", study, 0.3) == 32
    again = pruning.study(str(tmp_path / "journal"), "one", higher=False)
    assert [pruning.ENDED in one.user_attrs for one in again.trials] == [False, True, False]
    assert again.best_trial.number == 2


def test_a_run_that_is_no_trial_has_no_such_callback(tmp_path):
    settings = RunSettings(
        name="x",
        fingerprint="x",
        run_dir=str(tmp_path),
        recipe_file="",
        backend="gloo",
        world_size=1,
        effective_batch_size=4,
        base_learning_rate=0.1,
        learning_rate=0.1,
    )
    assert pruning.callbacks(settings, History(settings)) == []


@pytest.mark.long
def test_a_search_that_was_killed_repeats_no_finished_trial_and_writes_the_best(
    recipe_command, tmp_path
):
    base_of("survival", tmp_path / "base")
    path = written(tmp_path, over={"train.learning_rate": [1e-2, 1e-7]})
    recipe = yaml.safe_load(path.read_text())
    recipe["model"] = {"base": "base", "sequence_len": 256}
    sizes = {"epochs": 1, "micro_batch_size": 8, "gradient_accumulation_steps": 1, "lora_rank": 4}
    recipe |= {"train": sizes, "demo": {"max_new_tokens": 8}}
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    search = [sys.executable, "-m", "runner", "search", "searched.yaml", "--yes"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | without_gpu(tmp_path)
    home = tmp_path / "runs/searched-search"
    process = subprocess.Popen(search, cwd=tmp_path, env=environment, start_new_session=True)
    for _ in range(600):
        if (home / "trial-02/run.json").is_file():
            break
        assert process.poll() is None
        time.sleep(1)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finished = (home / "trial-01/training_summary.json").stat().st_mtime_ns
    done = recipe_command(
        "search", "searched.yaml", "--yes", cwd=tmp_path, env=without_gpu(tmp_path)
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Trial 1 of 2" not in done.stdout and "Trial 2 of 2" in done.stdout
    assert (home / "trial-01/training_summary.json").stat().st_mtime_ns == finished
    table = done.stdout.partition("VALIDATION LOSS")[2].splitlines()[1:3]
    (*best, loss, _, note), (*other, worse, _) = map(str.split, table)
    assert (best, other, note) == (["1", "0.01"], ["2", "1.0e-7"], "best") and float(loss) < float(
        worse
    )
    page = (home / "report.html").read_text()
    assert "trial-01" in page and "trial-02" in page
    best = load(tmp_path / "searched-best.yaml")[0]
    assert best.train.learning_rate == 1e-2 and "search" not in best.settings
    assert "searched-best.yaml" in done.stderr
    again = recipe_command(
        "search", "searched.yaml", "--yes", cwd=tmp_path, env=without_gpu(tmp_path)
    )
    assert again.returncode == 0 and "Trial 2 of 2" not in again.stdout


def test_a_table_whose_last_column_is_empty_is_printed(capsys):
    """As the results of a rehearsed search in which no trial ended early."""
    table([("TRIAL", "STEPS", ""), ("1", "5", "")])
    assert capsys.readouterr().out == "TRIAL  STEPS\n1      5\n"
