"""Checkpoints between evaluations, by steps and by the clock; and training that ends when
evaluations bring nothing any more."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

from runner.tools import child_process
from runner.trainer import intervals, records
from runner.trainer import stopping as stopped
from runner.trainer.records import ACCURACY, LOSS, EarlyStop, early_stop
from runner.trainer.settings import EarlyStopping
from runner.trainer.stopping import Pace, Patience
from tests.conftest import own_time
from tests.trainer.test_preemption import EPOCHS, Asks, figures, run
from tests.trainer.test_time_limit import settings

BY_TWO = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
BEST = {
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
}


class Saved(TrainerCallback):
    """Notes each checkpoint, and how often it was written."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_save(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)


class Clock(TrainerCallback):
    """A clock that goes on by so many seconds a step, and by so many a checkpoint; before the
    callbacks that look at it."""

    def __init__(self, monkeypatch, step: float, checkpoint: float) -> None:
        self.now, self.step, self.checkpoint = 0.0, step, checkpoint
        own_time(monkeypatch, stopped, monotonic=lambda: self.now)

    def on_step_end(self, args, state, control, **kwargs):
        self.now += self.step

    def on_save(self, args, state, control, **kwargs):
        self.now += self.checkpoint


def asked(save_steps: int | None) -> Pace:
    return Pace(replace(settings("", None), save_steps=save_steps))


def test_checkpoints_of_their_own_steps_lie_between_those_of_epochs(tmp_path):
    saved = Saved()
    run(tmp_path, EPOCHS, asked(4), saved)
    assert saved.steps == [4, 6, 8, 12], "the end of the second epoch is saved once"


@pytest.mark.long
def test_without_a_word_the_clock_decides_by_what_writing_takes(tmp_path, monkeypatch):
    saved = Saved()
    run(tmp_path / "quick", EPOCHS, Clock(monkeypatch, 101.0, 0.0), asked(None), saved)
    assert saved.steps == [3, 6, 9, 12]
    # After 301 s the first; it took 40 s, so that 2,629 s come before the next, and the epoch's end
    # before those.
    slow = Saved()
    run(tmp_path / "slow", EPOCHS, Clock(monkeypatch, 301.0, 40.0), asked(None), slow)
    assert slow.steps == [1, 6, 12]
    # Writing takes 4 s, and the next is worth it after 831 s.
    frequent = Saved()
    run(tmp_path / "frequent", EPOCHS, Clock(monkeypatch, 301.0, 4.0), asked(None), frequent)
    assert frequent.steps == [1, 4, 6, 9, 12]


def test_the_clocks_interval_is_youngs():
    assert intervals.seconds_between(0.1) == intervals.LEAST_SECONDS == 300
    for writing in (2.0, 12.0, 100.0):
        costs = {
            share: writing / (interval := share * intervals.seconds_between(writing))
            + interval / 2 / intervals.INTERRUPTED_SECONDS
            for share in (0.9, 1.0, 1.1)
        }
        assert min(costs, key=costs.get) == 1.0, (
            "what is written and what is lost cost least together"
        )
        assert writing / intervals.seconds_between(writing) < 0.03


def fruitless(values: list[float], least: float, measure: str = LOSS) -> int:
    """The most evaluations without improvement that end training."""
    seen = [{"step": step, measure: value} for step, value in enumerate(values)]
    return max(
        (wanted for wanted in range(1, 9) if early_stop(seen, wanted, least, measure, 8, 9)),
        default=0,
    )


def test_what_counts_as_improvement():
    assert fruitless([], 0.0) == 0
    assert fruitless([3.0, 2.0, 2.0, 2.1], 0.0) == 2
    assert fruitless([3.0, 2.0, 2.2, 1.9], 0.0) == 0
    assert fruitless([3.0, 2.98, 2.96, 2.94], 0.05) == 0, "small steps down add up"
    assert fruitless([3.0, 2.98, 2.97], 0.05) == 2
    assert fruitless([0.1, 0.5, 0.5, 0.4], 0.0, ACCURACY) == 2


def test_the_best_model_is_named_where_training_ended_early():
    seen = [
        {"step": step, "loss": loss} for step, loss in ((0, 1.0), (10, 2.0), (20, 1.8), (30, 1.9))
    ]
    ended = early_stop(seen, 3, 0.0, "loss", 30, 100)
    assert ended == EarlyStop(patience=3, step=30, steps=100, kept=20), (
        "what was there before training is not kept"
    )
    assert "after step 30 of 100" in ended.told and "from step 20, is saved" in ended.told
    assert (
        early_stop(seen, 3, 0.0, "loss", 30, 30) is None
        and early_stop(seen, 4, 0.0, "loss", 30, 100) is None
    )
    again = json.loads(json.dumps({"patience": 3, "step": 30, "steps": 100, "kept": 20}))
    assert EarlyStop.of(again) == ended


def stopping(wanted: int) -> Patience:
    history = SimpleNamespace(early_stop=None)
    return Patience(EarlyStopping(patience=wanted, min_improvement=100.0), history)


def test_training_ends_when_evaluations_bring_nothing_and_remembers_over_a_restart(
    tmp_path, capsys
):
    """The first evaluation counts, and no other is better by 100."""
    whole = run(tmp_path / "whole", BY_TWO | BEST, stopping(2))
    assert whole.state.global_step == 6
    (told,) = [
        event
        for event in child_process.events(capsys.readouterr().out)
        if event["event"] == records.EARLY_STOP_EVENT
    ]
    assert (told["step"], told["steps"]) == (6, 12)
    with pytest.raises(SystemExit):
        run(tmp_path / "asked", BY_TWO | BEST, stopping(2), Asks(5))
    again = run(tmp_path / "asked", BY_TWO | BEST, stopping(2))
    assert again.state.global_step == 6 and figures(tmp_path / "asked") == figures(
        tmp_path / "whole"
    )
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, again.model.state_dict()[name]), name


@pytest.mark.long
def test_a_run_that_was_killed_after_its_early_end_does_not_go_on(tmp_path):
    whole = run(tmp_path, BY_TWO | BEST, stopping(2))
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    saved = Saved()
    again = run(tmp_path, BY_TWO | BEST, stopping(2), saved)
    assert again.state.global_step == whole.state.global_step == 6
    assert (
        saved.steps == []
        and sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before
    )
    assert again.state.best_model_checkpoint == whole.state.best_model_checkpoint
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, again.model.state_dict()[name]), name


@pytest.mark.long
def test_a_run_that_was_killed_after_its_last_checkpoint_makes_no_step_more(tmp_path):
    """Its last step lies within an epoch, as where the steps of all epochs are counted together."""
    strategy = EPOCHS | {
        "max_steps": 10,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
    }
    whole = run(tmp_path, strategy)
    before = figures(tmp_path)
    again = run(tmp_path, strategy)
    assert again.state.global_step == 10 and figures(tmp_path) == before
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, again.model.state_dict()[name]), name
