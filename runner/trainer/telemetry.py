"""Telemetry: the history of a training and the events that it prints."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from runner.tools import child_process, packaged
from runner.tools.child_process import MEASURING, SAVING, TRAINING
from runner.tools.files import write_json
from runner.tools.run_files import HISTORY
from runner.trainer.records import EarlyStop, Logged
from runner.trainer.settings import RunSettings

TABLES = packaged.toml(__file__, "tables.toml")


class History(TrainerCallback):
    """Writes `training_history.json`: `seconds` of training so far; `steps` (loss, learning_rate, grad_norm,
    samples_per_second, tokens_per_second, gpu_memory_gib, gpu_reserved_gib, gpu_driver_gib); `epochs` (train_loss,
    validation_loss; accuracy, 0 to 1, for classes; `[measures]` of tables.toml; epoch 0 is before training). Steps and
    evaluations of GRPO also have the mean of each reward, `reward.NAME`, and steps `[answers]`."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.file = Path(settings.run_dir) / HISTORY
        self.steps: list[Logged] = []
        self.epochs: list[Logged] = []
        self.parameters: Logged = {}
        self.started = self.last_time = time.monotonic()
        self.earlier = 0.0
        self.last_step = self.last_tokens = 0
        self.final: Logged = {}  # fields of the Summary, when training has ended
        self.early_stop: EarlyStop | None = None  # set by `stopping.Patience`
        self.measured: dict[str, float] = {}
        self.peaks: Logged = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.parameters = count_parameters(model)
        self.started = self.last_time = time.monotonic()
        self.last_step, self.last_tokens = state.global_step, state.num_input_tokens_seen
        if state.global_step and self.file.is_file():
            # Steps after the checkpoint happen again.
            before = json.loads(self.file.read_text(encoding="utf-8"))
            self.steps = [entry for entry in before["steps"] if entry["step"] <= state.global_step]
            self.epochs = [entry for entry in before["epochs"] if entry["step"] <= state.global_step]
            self.earlier = before.get("seconds", 0.0)
        _tell(state, "begin", steps=state.max_steps, step=state.global_step, **self.parameters)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, with the parts that a stop or a kill ended."""
        return round(self.earlier + time.monotonic() - self.started, 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        # TRL logs its measures; they are not among the metrics of an evaluation.
        logs = logs or {}
        names = TABLES["scores" if "eval_margin" in logs else "measures"]
        self.measured = _measured(logs, names, "eval_rewards/") or self.measured
        self.peaks = _peaks(logs, self.peaks)  # of evaluations between two steps as well
        if "loss" not in logs:
            return
        now, cuda = time.monotonic(), torch.cuda.is_available()
        free, total = torch.cuda.mem_get_info() if cuda else (0, 0)
        seconds = max(now - self.last_time, 1e-9)
        steps = state.global_step - self.last_step
        tokens = state.num_input_tokens_seen - self.last_tokens
        entry = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0, 4),
            "loss": logs["loss"],
            "learning_rate": logs.get("learning_rate"),
            "grad_norm": logs.get("grad_norm"),
            "samples_per_second": round(steps * self.settings.effective_batch_size / seconds, 3),
            "tokens_per_second": round(tokens / seconds, 1) if tokens else None,
            **self.peaks,
            "gpu_driver_gib": round((total - free) / 2**30, 2) if cuda else None,
            **_measured(logs, TABLES["answers"], "rewards/"),
        }
        self.last_time, self.last_step, self.last_tokens = now, state.global_step, state.num_input_tokens_seen
        self.peaks = {}
        self.steps.append(entry)
        self._write(state)
        _tell(state, "step", steps=state.max_steps, **entry)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        metrics, since = metrics or {}, self.epochs[-1]["step"] if self.epochs else -1
        losses = [entry["loss"] for entry in self.steps if since < entry["step"] <= state.global_step]
        entry = {
            "epoch": round(state.epoch or 0, 4),
            "step": state.global_step,
            "train_loss": round(sum(losses) / len(losses), 6) if losses else None,
            # The loss of answers that are compared with each other is about 0, whatever they are worth.
            "validation_loss": None if "reward" in self.measured else metrics.get("eval_loss"),
            **self.measured,
            **({"accuracy": metrics["eval_accuracy"]} if "eval_accuracy" in metrics and not self.measured else {}),
        }
        self.measured = {}
        self.epochs = [known for known in self.epochs if known["step"] != state.global_step] + [entry]
        self.last_time = time.monotonic()  # evaluations do not count as training time
        self._write(state)
        _tell(state, "evaluation", **entry)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        best = state.best_model_checkpoint
        self.final = {
            "steps": state.global_step,
            "epochs": round(state.epoch or 0, 4),
            "tokens": int(state.num_input_tokens_seen),
            "training_seconds": self.seconds,
            "best_checkpoint": Path(best).name if best else None,
        }
        self._write(state)

    def _write(self, state: Any) -> None:
        if state.is_world_process_zero:
            write_json(self.file, {"seconds": self.seconds, "steps": self.steps, "epochs": self.epochs})


def _peaks(logs: Logged, before: Logged) -> Logged:
    """The most GPU memory since the last entry, GiB. Axolotl logs the peaks since its own last log, and then resets
    PyTorch's counters (0.19.0, utils/bench.py)."""
    if not torch.cuda.is_available():
        return dict.fromkeys(TABLES["peaks"])
    own = {"gpu_memory_gib": torch.cuda.max_memory_allocated(), "gpu_reserved_gib": torch.cuda.max_memory_reserved()}
    read = TABLES["peaks"].items()
    return {name: max(before.get(name, 0.0), logs.get(key, 0.0), round(own[name] / 2**30, 2)) for name, key in read}


def _measured(logs: Logged, names: Mapping[str, str], rewards: str) -> dict[str, Any]:
    """TRL's measures by our names, and the mean of each reward; its key begins with `rewards`."""
    means = [key for key in logs if key.startswith(rewards) and key.endswith("/mean")]
    each = {f"reward.{key[len(rewards) : -len('/mean')]}": logs[key] for key in means}
    return {name: logs[key] for name, key in names.items() if key in logs} | each


def count_parameters(model: Any) -> dict[str, int]:
    """Trainable and total parameters; a tied weight counts once, a ZeRO-3 or FSDP shard as the whole weight."""
    total = trainable = 0
    for parameter in model.parameters():
        size = getattr(parameter, "ds_numel", None) or parameter.numel()
        if type(parameter).__name__ == "Params4bit":  # bitsandbytes packs two numbers into a byte
            size *= 2 * parameter.element_size()
        total += size
        trainable += size if parameter.requires_grad else 0
    return {"trainable_parameters": trainable, "total_parameters": total}


class Phases(TrainerCallback):
    """Prints what the process does next. It comes last, because the other callbacks decide that."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _tell(state, "phase", phase=MEASURING if args.eval_on_start else TRAINING)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if control.should_evaluate or control.should_save:
            _tell(state, "phase", phase=MEASURING if control.should_evaluate else SAVING)

    on_epoch_end = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # After a save it is False: the Trainer resets it before it calls its callbacks.
        _tell(state, "phase", phase=SAVING if control.should_save else TRAINING)

    on_save = on_evaluate

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        _tell(state, "phase", phase=SAVING)


def _tell(state: Any, event: str, **facts: Any) -> None:
    """Prints an event; only the first process does."""
    if state.is_world_process_zero:
        child_process.tell(event, **facts)
