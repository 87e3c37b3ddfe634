"""What ends a training early (a broken loss, no improvement, a time limit, SIGTERM); which
checkpoint a run resumes from, and how processes agree; all callbacks in order."""

from __future__ import annotations

import math
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import TrainerCallback

from runner import parts
from runner.plan import EngineConfig
from runner.tools import child_process
from runner.tools.files import read_json, read_record, write_json
from runner.tools.run_files import COMPLETE, STOPPED
from runner.trainer import records
from runner.trainer.intervals import seconds_between
from runner.trainer.results import History, Phases
from runner.trainer.settings import EarlyStopping, RunSettings
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState

if TYPE_CHECKING:
    from axolotl.utils.dict import DictDefault
    from torch.utils.data import DataLoader
    from transformers import Trainer


def several() -> bool:
    """Whether there are other processes. torchrun may start a single one, which needs no agreement
    after each step."""
    return bool(torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1)


def any_of(is_true: bool, device: torch.device) -> bool:
    """Whether `is_true` holds on any process; the result is the same on all of them. Every process
    must call it."""
    if not several():
        return is_true
    flag = torch.tensor([float(is_true)], device=device)
    torch.distributed.all_reduce(flag, op=torch.distributed.ReduceOp.MAX)
    return bool(flag.item())


def wait() -> None:
    """Waits until every process has called it."""
    if several():
        torch.distributed.barrier()


def step_of(checkpoint: Path) -> int | None:
    """The step of a complete checkpoint; None for anything else."""
    mark = read_json(checkpoint / COMPLETE)
    is_complete = isinstance(mark, dict) and isinstance(
        read_json(checkpoint / "trainer_state.json"), dict
    )
    if not is_complete:
        return None
    step: int | None = mark.get("step")
    return step


def last_good(folder: Path, resumed_from: str | None = None) -> Path | None:
    """The latest complete checkpoint in `folder`; resumed_from: only of those after a resume from
    this one."""
    complete = [
        (step, path)
        for path in folder.glob("checkpoint-*")
        if (step := step_of(path)) is not None
        and resumed_from in (None, read_record(path / COMPLETE).get("resumed_from"))
    ]
    if complete:
        return max(complete)[1]
    return None


def saved_anyway(args: TrainerArguments, state: TrainerState, control: TrainerControl) -> bool:
    """Whether this step ends an epoch that is evaluated and saved a moment later. A second
    checkpoint, written over the first, would look complete in between."""
    by_epoch = "epoch" in (args.eval_strategy, args.save_strategy)
    return bool(by_epoch and (control.should_training_stop or float(state.epoch).is_integer()))


def choose(cfg: DictDefault, settings: RunSettings, stop: Callable[[str, str], NoReturn]) -> str:
    """Sets `cfg.resume_from_checkpoint` if there is a checkpoint to resume from. Returns the
    checkpoint that the recipe names, which marks the checkpoints that follow it; empty for none.
    stop: ends the run with a reason, if a context length cannot continue the one before."""
    run_checkpoints = Path(cfg.output_dir)
    if cfg.resume_from_checkpoint:
        requested = Path(cfg.resume_from_checkpoint)
        # so that the run folder can move
        if requested.parent == run_checkpoints:
            name = requested.name
        else:
            name = str(requested)
        cfg.resume_from_checkpoint = str(
            last_good(run_checkpoints, name) or requested
        )  # after a kill, the latest since then
        return name
    if not cfg.auto_resume_from_checkpoints:
        return ""
    if int(os.environ.get("RANK", "0")) == 0:
        for path in run_checkpoints.glob("checkpoint-*"):
            if step_of(path) is None:  # incomplete
                shutil.rmtree(path, ignore_errors=True)
    checkpoint = last_good(run_checkpoints)
    if checkpoint is None and (blocks := settings.blocks) and (before := blocks.continue_from):
        checkpoint = last_good(Path(before))
        if checkpoint:
            step = step_of(checkpoint)
        else:
            step = None
        if checkpoint is None or step != blocks.first_step:
            if step:
                its_end = f"ends at step {step:,}"
            else:
                its_end = "has no complete checkpoint"
            stop(
                f"This context length continues at step {blocks.first_step:,}, but `{before}` {its_end}.",
                "Run the context length before it first.",
            )
        # As the Trainer, FSDP or DeepSpeed write it.
        if not any(
            any(checkpoint.glob(name))
            for name in ("optimizer.pt", "optimizer.bin", "optimizer_0", "global_step*")
        ):
            stop(
                f"`{checkpoint}` has no optimizer state, so the curriculum would lose its momentum here.",
                "Save it with `distribution: fsdp` and full state, or with zero2.",
            )
    if checkpoint is not None:
        cfg.resume_from_checkpoint = str(checkpoint)
    return ""


# A model that knows nothing starts at ln(vocabulary); half as much again means that its weights are
# broken.
CEILING = 1.5


class TrainingStopped(RuntimeError):
    """The run was stopped on purpose; the message is for the user."""


class Watchdog(TrainerCallback):
    """Compares the run with the plan when training begins, and checks every logged loss. of_words:
    whether the loss is that of words, which is never 0, and at first near the logarithm of the
    vocabulary."""

    def __init__(self, settings: RunSettings, of_words: bool = True) -> None:
        self.settings = settings
        self.of_words = of_words
        self.vocabulary: int | None = None
        self.first_loss_seen = False

    def on_train_begin(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        train_dataloader: DataLoader | None = None,
        **kwargs: object,
    ) -> None:
        self.vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
        # Processes that are not connected would each train everything alone, and exit 0.
        expected = self.settings.world_size
        process_state = PartialState()
        if process_state.num_processes != expected:
            self.stop(
                f"The plan needs {expected} processes that train together, but {process_state.num_processes} connected. Each would train on all the data alone.",
                "Start them with the launcher that the plan names.",
            )
        if expected > 1:
            together = (
                process_state.distributed_type not in (DistributedType.NO,)
                and torch.distributed.is_initialized()
            )
            if together:
                backend = torch.distributed.get_backend()
            else:
                backend = "none"
            if self.settings.backend not in backend:
                self.stop(
                    f"The plan uses {self.settings.backend} between the processes, but they use {backend}.",
                    "",
                )
        self._compare_share(args, train_dataloader)

    def on_log(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if self.vocabulary:
            ignorance = math.log(self.vocabulary)
        else:
            ignorance = math.inf
        step = state.global_step
        for name, loss_name in (("loss", "loss"), ("eval_loss", "validation loss")):
            if not logs or name not in logs:
                continue
            if not math.isfinite(loss := float(logs[name])):
                self.stop(
                    f"The {loss_name} at step {step} is {loss}: training has diverged.",
                    "Lower `learning_rate`, or use `precision: bf16` (`fp32` on a GPU without bf16).",
                )
            if loss == 0 and self.of_words:
                self.stop(
                    f"The {loss_name} at step {step} is exactly 0, which no real text gives. The model's weights or the data's labels are broken.",
                    "Check the prepared data, and the model that training started from.",
                )
            if (
                self.of_words
                and not self.first_loss_seen
                and loss > (ceiling := CEILING * ignorance)
            ):
                self.stop(
                    f"The first {loss_name} is {loss:.2f}, above {ceiling:.2f}; a model that knows nothing has {ignorance:.2f}. The weights that training started from are broken or were not loaded.",
                    "",
                )
            self.first_loss_seen = True

    def _compare_share(self, args: TrainerArguments, dataloader: DataLoader | None) -> None:
        """Each process must see its share of the rows and no more."""
        dataset = getattr(dataloader, "dataset", None)
        if (
            dataloader is None
            or dataset is None
            or not hasattr(dataset, "__len__")
            or getattr(args, "sample_packing", False)
        ):
            return
        rows = len(dataset)
        batches = len(dataloader)
        share = rows * args.gradient_accumulation_steps / self.settings.effective_batch_size
        if answers := getattr(
            args, "num_generations", None
        ):  # TRL 1.9 leaves out prompts that do not fill a step
            share = rows // (args.generation_batch_size // answers) * args.steps_per_generation
        if not math.floor(share) <= batches <= math.ceil(share):
            self.stop(
                f"Each process should read {math.ceil(share)} batches in an epoch, its share of {rows} rows, but it reads {batches}. The data is not divided as planned.",
                "",
            )

    def stop(self, message: str, remedy: str = "") -> NoReturn:
        """Ends training on every process; the first one writes the reason for the parent
        process."""
        message = f"{message} {remedy}".strip()
        if PartialState().is_main_process:
            write_json(Path(self.settings.run_dir) / STOPPED, {"message": message})
        raise TrainingStopped(message)


def no_step_more(trainer: Trainer) -> None:
    """Lets the trainer skip the rest of an epoch when training is over. transformers 5.16.1 checks
    that only after a step, so a run of 104 steps with epochs of 21 makes a 105th; older versions
    have no such method."""
    run_epoch = getattr(trainer, "_run_epoch", None)
    if run_epoch is None:
        return

    def run(*args: object, **kwargs: object) -> None:
        if not trainer.control.should_training_stop:
            run_epoch(*args, **kwargs)

    trainer._run_epoch = run


class Patience(TrainerCallback):
    """Early stopping. It counts evaluations in the Trainer's own log, which is in every checkpoint,
    so that a resumed run has waited as long as the interrupted one. transformers' own callback
    forgets its counter (5.16.1, unless `restore_callback_states_from_checkpoint`), and ignores a
    large improvement in many small steps.

    It comes last of those that ask for checkpoints: in a run that had ended already, an older
    Trainer makes one more step (see `no_step_more`), which must be neither measured nor saved."""

    def __init__(
        self, wanted: EarlyStopping, history: History, measure: str = records.LOSS
    ) -> None:
        self.wanted = wanted
        self.history = history
        self.measure = measure
        self.over = False

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._judge(state, control)
        self.over = self.history.early_stop is not None

    def on_step_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.over:
            control.should_training_stop = True
            control.should_evaluate = control.should_save = False

    on_epoch_end = on_step_end

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.global_step:
            self._judge(state, control)

    def _judge(self, state: TrainerState, control: TrainerControl) -> None:
        """Ends training if too many evaluations have brought no improvement."""
        evaluations = (
            {"step": entry["step"], self.measure: entry.get(f"eval_{self.measure}")}
            for entry in state.log_history
        )
        wanted = (self.wanted.patience, self.wanted.min_improvement, self.measure)
        ended = records.early_stop(evaluations, *wanted, state.global_step, state.max_steps)
        self.history.early_stop = ended
        control.should_training_stop |= ended is not None
        if ended and state.is_world_process_zero:
            child_process.tell(records.EARLY_STOP_EVENT, **asdict(ended))


class Pace(TrainerCallback):
    """Asks for checkpoints, and ends training in time, by what steps, evaluations and checkpoints
    take; and ends a resumed training that has no steps left. resumed_from: the checkpoint that the
    recipe names to go back to; empty for none.

    A checkpoint is due every `save_steps` steps, or, without that setting, as often as its cost is
    worth it (`intervals.seconds_between`). It does not change what is learned, so the clock may
    decide: the first process's, for all processes. One is marked once all of it is on disk; without
    the mark it counts as broken.

    `time_limit_seconds` are counted over restarts and, in a pipeline, with the stages before. An
    evaluation and a checkpoint follow the last step, as at the end of an epoch, so that the best
    model is kept. The limit reserves time for one more step, evaluation and checkpoint, as long as
    the longest so far; only the first checkpoint, whose time is unknown, may end after the
    limit."""

    def __init__(self, settings: RunSettings, resumed_from: str = "") -> None:
        self.every = settings.save_steps
        self.limit = settings.time_limit_seconds
        self.resumed_from = resumed_from
        self.run_dir = Path(settings.run_dir)
        self.earlier = records.elapsed_seconds(settings.time_limit_earlier)
        self.before = 0.0
        self.began = self.last = self.saved = time.monotonic()
        self.longest = dict.fromkeys(("step", "evaluation", "checkpoint"), 0.0)
        self.reached = False

    @property
    def used(self) -> float:
        """Seconds of this training so far, with those before a restart."""
        return self.before + time.monotonic() - self.began

    def _took(self, phase: str) -> None:
        """Evaluations and checkpoints begin where a step (or training) began or ended; nothing else
        takes long."""
        now = time.monotonic()
        self.longest[phase] = max(self.longest[phase], now - self.last)
        self.last = now

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        control.should_training_stop |= state.global_step >= state.max_steps
        if state.global_step:
            self.before = records.elapsed_seconds([self.run_dir])
        self.began = self.last = self.saved = time.monotonic()

    def on_step_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.last = time.monotonic()

    def on_step_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._took("step")
        ends = (
            control.should_training_stop or self.reached
        )  # here by itself, or already by the limit
        needed = self.earlier + self.used + sum(self.longest.values())
        if self.limit is not None and not ends and any_of(needed > self.limit, args.device):
            self.reached = True
            control.should_training_stop = control.should_log = True
            # With epochs, the Trainer evaluates and saves at the end of this one, which is now.
            control.should_evaluate |= args.eval_strategy == "steps"
            control.should_save |= args.save_strategy == "steps"
            if state.is_world_process_zero:
                steps = f"{state.global_step} of {state.max_steps}"
                print(
                    f"The time limit of {self.limit:g} s ended training after step {steps}.",
                    flush=True,
                )
        if self.every is not None:
            due = bool(state.global_step % self.every == 0)
        else:
            over = self.last - self.saved >= seconds_between(self.longest["checkpoint"])
            due = any_of(over and state.is_world_process_zero, args.device)
        if due and not saved_anyway(args, state, control):
            control.should_save = True

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._took("evaluation")

    def on_save(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._took("checkpoint")
        self.saved = self.last
        self.on_train_end(args, state, control)
        # Each process writes a part of its own, its random state at least.
        wait()
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir():
            facts = {"step": state.global_step, "tokens": int(state.num_input_tokens_seen)}
            write_json(folder / COMPLETE, facts | {"resumed_from": self.resumed_from})

    def on_train_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.is_world_process_zero and self.limit is not None:
            records.TimeUsed(self.limit, round(self.used, 1), self.reached).write(self.run_dir)


ENDED = 128 + signal.SIGTERM  # the exit status by which a shell reports SIGTERM


class Preemption(TrainerCallback):
    """Ends all processes after the same step, once one of them got SIGTERM and the checkpoint of
    that step is complete.

    Processes get the signal at different moments, or not at all if another machine goes away. So
    they agree at points that all of them pass: the end of a step, of an evaluation, and of a
    checkpoint. An evaluation that is due after this step comes first, because a resumed run would
    not make up for it.

    It comes after `Pace`, which has then marked the checkpoint."""

    def __init__(self, settings: RunSettings) -> None:
        self.run_dir = Path(settings.run_dir)
        self.asked = self.leaving = False
        self.process = 0
        self.waits = False  # whether there is a step to save
        self.before: Any = None

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.process = os.getpid()
        self.before = signal.signal(signal.SIGTERM, self._ask)
        os.register_at_fork(after_in_child=self._leave_group)

    def on_train_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """What follows is repeated from the last checkpoint, so SIGTERM may end it at once."""
        signal.signal(signal.SIGTERM, self.before)
        self.waits = False
        self.process = 0

    def _leave_group(self) -> None:
        """torchrun signals the whole group (torch 2.13), but the step needs its data workers, which
        are forks. They end when their parent is gone."""
        if self.process:
            os.setpgid(0, 0)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.waits or os.getpid() != self.process:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.asked = True

    def _decide(self, args: TrainerArguments) -> bool:
        self.leaving = self.leaving or any_of(self.asked, args.device)
        return self.leaving

    def on_step_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.waits = True
        if self._decide(args):
            control.should_log = True
            # After a resume from here, an evaluation that follows this step would be skipped.
            control.should_save |= not saved_anyway(args, state, control)

    def on_epoch_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        control.should_save |= self.leaving

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.waits and self._decide(args):
            control.should_save = True

    def on_save(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if self.waits and self._decide(args):
            if state.is_world_process_zero:
                message = " ".join(
                    (
                        "Training was asked to stop (SIGTERM). A cluster does this when it takes a machine back.",
                        f"Step {state.global_step:,} is saved, and the same command continues from there.",
                    )
                )
                print(message, flush=True)
                write_json(self.run_dir / STOPPED, {"message": message})
            # A launcher that sees one process end ends the others, which may still write.
            wait()
            raise SystemExit(ENDED)


def trackers(config: EngineConfig, settings: RunSettings) -> list[TrainerCallback]:
    """Callbacks that send curves to a server, instead of those of the engine, whose config they
    change."""
    if not parts.has("tracking"):
        return []
    from runner.parts.tracking import training

    return training.trackers(config, settings)


def callbacks(
    settings: RunSettings,
    history: History,
    *,
    of_words: bool,
    measure: str = records.LOSS,
    resumed_from: str = "",
    engine_callbacks: Sequence[TrainerCallback] = (),
) -> list[TrainerCallback]:
    """All callbacks of a training, in their order. of_words: whether it learns words, for
    Watchdog. measure: what Patience waits for. resumed_from: the checkpoint, for Pace.
    engine_callbacks: these watch, too."""
    watching = [Watchdog(settings, of_words), history, *engine_callbacks]
    for callbacks_of_part in parts.callbacks():
        watching += callbacks_of_part(settings, history)  # some of them end a training
    asking = [Pace(settings, resumed_from)]  # for checkpoints, at their steps
    if settings.early_stopping:
        asking.append(Patience(settings.early_stopping, history, measure))
    # These act on what the others asked for at a step.
    return [*watching, *asking, Preemption(settings), Phases()]
