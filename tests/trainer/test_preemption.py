"""A training that is asked to end saves the step it is at, and goes on from there as if nothing had
happened."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from runner.tools.files import read_json
from runner.trainer import stopping
from runner.trainer.results import History
from runner.trainer.stopping import Pace, Preemption, no_step_more
from tests.trainer.test_time_limit import settings

EPOCH = 6  # steps
EPOCHS = {"eval_strategy": "epoch", "save_strategy": "epoch"}
BATCH = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
STEPS = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 8}


class Asks(TrainerCallback):
    """Sends this process and its data workers SIGTERM, as torchrun does: within a step, or within
    the evaluation after it."""

    def __init__(self, step: int, evaluating: bool = False) -> None:
        self.step, self.evaluating = step, evaluating

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if not self.evaluating and state.global_step == self.step - 1:
            self._send()

    def on_prediction_step(self, args, state, control, **kwargs):
        if self.evaluating and state.global_step == self.step:
            self._send()

    @staticmethod
    def _send() -> None:
        """To this process's whole group, but for those in it that are pytest's own; from another
        one."""
        forks = [child.pid for child in multiprocessing.active_children()]
        group = [str(process) for process in forks if os.getpgid(process) == os.getpgid(0)]
        subprocess.run(["kill", "-TERM", *group, str(os.getpid())], check=True)


def run(folder: Path, strategy: dict, *callbacks: TrainerCallback) -> Trainer:
    """Two epochs of a tiny model with dropout, from its last checkpoint."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "llama", hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=64, pad_token_id=None, attention_dropout=0.3,
    )  # fmt: skip
    config._attn_implementation = "eager"
    rows = [{"input_ids": [n % 60, 2, 3, 4], "labels": [n % 60, 2, 3, 4]} for n in range(4 * EPOCH)]
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"), num_train_epochs=2, learning_rate=0.01, logging_steps=1, use_cpu=True,
        report_to=[], disable_tqdm=True, **BATCH | strategy,
    )  # fmt: skip
    told = settings(folder, None)
    trainer = Trainer(
        AutoModelForCausalLM.from_config(config),
        arguments,
        train_dataset=rows,
        eval_dataset=rows[:4],
        callbacks=[History(told), Pace(told), *callbacks, Preemption(told)],
    )
    no_step_more(trainer)
    last = stopping.last_good(folder / "checkpoints")
    trainer.train(resume_from_checkpoint=str(last) if last else None)
    return trainer


def figures(folder: Path) -> tuple[list, list]:
    history = json.loads((folder / "training_history.json").read_text())
    return [(one["step"], one["loss"]) for one in history["steps"]], [
        (one["step"], one["validation_loss"]) for one in history["epochs"]
    ]


@pytest.mark.parametrize(
    ("strategy", "asks"),
    [
        (EPOCHS, Asks(3)),
        pytest.param(EPOCHS, Asks(EPOCH), marks=pytest.mark.long),
        (EPOCHS, Asks(2 * EPOCH)),
        pytest.param(EPOCHS, Asks(EPOCH, evaluating=True), marks=pytest.mark.long),
        pytest.param(STEPS, Asks(4), marks=pytest.mark.long),
        (STEPS, Asks(4, evaluating=True)),
        (EPOCHS | {"dataloader_num_workers": 1}, Asks(3)),
    ],
    ids=[
        "in an epoch",
        "its end",
        "the very end",
        "its evaluation",
        "at an evaluation",
        "in an evaluation",
        "data workers",
    ],
)
def test_a_run_that_is_asked_to_end_loses_no_step_and_ends_where_the_undisturbed_one_ends(
    tmp_path, strategy, asks
):
    before = signal.getsignal(signal.SIGTERM)
    whole = run(tmp_path / "whole", strategy)
    with pytest.raises(SystemExit) as left:
        run(tmp_path / "asked", strategy, asks)
    signal.signal(signal.SIGTERM, before)  # the process would be over
    assert left.value.code == 143
    last = stopping.last_good(tmp_path / "asked" / "checkpoints")
    assert last is not None and stopping.step_of(last) == asks.step
    assert f"Step {asks.step} is saved" in read_json(tmp_path / "asked" / "stopped.json")["message"]
    again = run(tmp_path / "asked", strategy)
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, again.model.state_dict()[name]), name
    assert figures(tmp_path / "asked") == figures(tmp_path / "whole")


def test_a_run_that_nobody_asks_to_end_leaves_the_signal_as_it_was(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    run(tmp_path, EPOCHS)
    assert signal.getsignal(signal.SIGTERM) == before


def test_before_the_first_step_there_is_nothing_to_save_and_a_process_ends_at_once(
    tmp_path, monkeypatch
):
    sent, before = [], signal.getsignal(signal.SIGTERM)
    asked = Preemption(settings(tmp_path, None))
    try:
        asked.on_train_begin(None, None, None)
        monkeypatch.setattr(stopping.os, "kill", lambda *told: sent.append(told))
        asked._ask(signal.SIGTERM, None)
        assert (
            sent == [(os.getpid(), signal.SIGTERM)]
            and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        )
    finally:
        signal.signal(signal.SIGTERM, before)
