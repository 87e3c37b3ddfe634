"""The watchdog stops what would end as a success without being one, and says so in plain words."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

from runner.trainer.settings import RunSettings
from runner.trainer.stopping import TrainingStopped, Watchdog


@pytest.fixture
def watchdog(tmp_path):
    def make(**other):
        settings = {
            "name": "x",
            "fingerprint": "f",
            "run_dir": str(tmp_path),
            "recipe_file": "r",
            "backend": "gloo",
            "world_size": 1,
            "effective_batch_size": 4,
            "base_learning_rate": 1e-4,
            "learning_rate": 1e-4,
            "demo": {"base_model": "m", "system_prompt": None, "turn_end": None},
        }
        words = other.pop("of_words", True)
        dog = Watchdog(RunSettings.read(settings | other), of_words=words)
        dog.vocabulary = 1000
        return dog

    return make


STATE = SimpleNamespace(global_step=7)


def log(dog, **logs):
    dog.on_log(None, STATE, None, logs=logs)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_stops_the_run(watchdog, tmp_path, loss, golden_message):
    with pytest.raises(TrainingStopped, match="step 7"):
        log(watchdog(), loss=loss)
    golden_message(json.loads((tmp_path / "stopped.json").read_text())["message"])


def test_a_loss_of_exactly_0_stops_the_run(watchdog, golden_message):
    with pytest.raises(TrainingStopped, match="step 7 is exactly 0") as stopped:
        log(watchdog(), loss=0.0)
    golden_message(stopped.value)


def test_dpo_may_reach_0(watchdog):
    log(watchdog(of_words=False), loss=0.0)


def test_the_first_loss_of_ipo_is_not_measured_against_the_vocabulary(watchdog):
    """It is 1 / (4 beta²), 25 with the usual beta."""
    log(watchdog(of_words=False), eval_loss=25.0)


def test_a_first_loss_above_what_ignorance_gives_stops_the_run(watchdog, golden_message):
    with pytest.raises(TrainingStopped, match=r"10\.40, above 10\.36") as stopped:
        log(watchdog(), eval_loss=10.4)
    golden_message(stopped.value)
    log(watchdog(), eval_loss=10.3)


def test_a_later_rise_is_the_persons_to_judge(watchdog):
    dog = watchdog()
    log(dog, loss=6.9)
    log(dog, loss=12.0)


def test_other_logs_are_left_alone(watchdog):
    log(watchdog(), grad_norm=math.nan)


def loader(rows: int, batches: int):
    class Loader:
        dataset = range(rows)

        def __len__(self):
            return batches

    return Loader()


def test_processes_that_see_all_the_data_are_stopped(watchdog, golden_message):
    dog = watchdog(world_size=2, effective_batch_size=8)
    args = SimpleNamespace(gradient_accumulation_steps=1, sample_packing=False)
    dog._compare_share(args, loader(rows=80, batches=10))
    with pytest.raises(TrainingStopped, match="reads 20") as stopped:
        dog._compare_share(args, loader(rows=80, batches=20))
    golden_message(stopped.value)


def test_fewer_processes_than_planned_are_stopped(watchdog, golden_message):
    with pytest.raises(TrainingStopped, match="4 processes") as stopped:
        watchdog(world_size=4).on_train_begin(None, STATE, None)
    golden_message(stopped.value)
