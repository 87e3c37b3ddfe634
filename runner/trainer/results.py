"""What a training tells and leaves: its history and the events that it prints; and when it is over,
written by the first process, its model, the demo's answers and the summary."""

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import TrainerCallback

from runner.plan import EngineConfig, precision_of
from runner.tools import child_process, packaged, run_files
from runner.tools.child_process import MEASURING, SAVING, TRAINING
from runner.tools.files import read_json, read_record, replacing_folder, write_json, write_text
from runner.tools.text import TextTokenizer, tokenizer_in
from runner.trainer import fork_server
from runner.trainer.generation import first_rows, with_system
from runner.trainer.grading import TAUGHT_SHARE
from runner.trainer.records import (
    GLANCE,
    EarlyStop,
    GradedAnswers,
    Logged,
    Proof,
    Summary,
    TimeUsed,
    evenly,
    versions,
)
from runner.trainer.settings import Demo, RunSettings
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState

TABLES = packaged.toml(__file__, "tables.toml")
CHOSEN: Mapping[str, Any] = {
    "first": itemgetter(0),
    "last": itemgetter(-1),
    "lowest": min,
    "highest": max,
}


class History(TrainerCallback):
    """Writes `training_history.json`: `seconds` of training so far; `steps` (loss, learning_rate,
    grad_norm, samples_per_second, tokens_per_second, gpu_memory_gib, gpu_reserved_gib,
    gpu_driver_gib); `epochs` (train_loss, validation_loss; accuracy, 0 to 1, for classes;
    `[measures]` of tables.toml; epoch 0 is before training). Steps and evaluations of GRPO also
    have the mean of each reward, `reward.NAME`, and steps `[answers]`."""

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.file = Path(settings.run_dir) / run_files.HISTORY
        self.steps: list[Logged] = []
        self.epochs: list[Logged] = []
        self.parameters: Logged = {}
        # Known from the beginning of training: Axolotl 0.19.0 ends the process group before it
        # calls `post_train`.
        self.backend: str | None = None
        self.started = self.last_time = time.monotonic()
        self.earlier = 0.0
        self.last_step = self.last_tokens = 0
        self.final: Logged = {}  # fields of the Summary, when training has ended
        self.early_stop: EarlyStop | None = None  # set by `stopping.Patience`
        self.measured: dict[str, float] = {}
        self.peaks: Logged = {}

    def on_train_begin(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        **kwargs: object,
    ) -> None:
        self.parameters = count_parameters(model)
        self.backend = communication_backend()
        self.started = self.last_time = time.monotonic()
        self.last_step = state.global_step
        self.last_tokens = state.num_input_tokens_seen
        if state.global_step and self.file.is_file():
            # Steps after the checkpoint happen again.
            before = json.loads(self.file.read_text(encoding="utf-8"))
            self.steps = [entry for entry in before["steps"] if entry["step"] <= state.global_step]
            self.epochs = [
                entry for entry in before["epochs"] if entry["step"] <= state.global_step
            ]
            self.earlier = before.get("seconds", 0.0)
        _tell(state, "begin", steps=state.max_steps, step=state.global_step, **self.parameters)

    @property
    def seconds(self) -> float:
        """Seconds of training so far, with the parts that a stop or a kill ended."""
        return round(self.earlier + time.monotonic() - self.started, 1)

    def on_log(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        # TRL logs its measures; they are not among the metrics of an evaluation.
        logs = logs or {}
        names = TABLES["scores" if "eval_margin" in logs else "measures"]
        self.measured = _measured(logs, names, "eval_rewards/") or self.measured
        self.peaks = _peaks(logs, self.peaks)  # of evaluations between two steps as well
        if "loss" not in logs:
            return
        now = time.monotonic()
        cuda = torch.cuda.is_available()
        if cuda:
            free, total = torch.cuda.mem_get_info()
        else:
            free = 0
            total = 0
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
        self.last_time = now
        self.last_step = state.global_step
        self.last_tokens = state.num_input_tokens_seen
        self.peaks = {}
        self.steps.append(entry)
        self._write(state)
        _tell(state, "step", steps=state.max_steps, **entry)

    def on_evaluate(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        metrics = metrics or {}
        if self.epochs:
            since = self.epochs[-1]["step"]
        else:
            since = -1
        losses = [
            entry["loss"] for entry in self.steps if since < entry["step"] <= state.global_step
        ]
        entry = {
            "epoch": round(state.epoch or 0, 4),
            "step": state.global_step,
            "train_loss": round(sum(losses) / len(losses), 6) if losses else None,
            # The loss of answers that are compared with each other is about 0, whatever they are
            # worth.
            "validation_loss": None if "reward" in self.measured else metrics.get("eval_loss"),
            **self.measured,
            **(
                {"accuracy": metrics["eval_accuracy"]}
                if "eval_accuracy" in metrics and not self.measured
                else {}
            ),
        }
        self.measured = {}
        self.epochs = [epoch for epoch in self.epochs if epoch["step"] != state.global_step] + [
            entry
        ]
        self.last_time = time.monotonic()  # evaluations do not count as training time
        self._write(state)
        _tell(state, "evaluation", **entry)

    def on_train_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        best = state.best_model_checkpoint
        self.final = {
            "steps": state.global_step,
            "epochs": round(state.epoch or 0, 4),
            "tokens": int(state.num_input_tokens_seen),
            "training_seconds": self.seconds,
            "best_checkpoint": Path(best).name if best else None,
        }
        self._write(state)

    def _write(self, state: TrainerState) -> None:
        if state.is_world_process_zero:
            write_json(
                self.file, {"seconds": self.seconds, "steps": self.steps, "epochs": self.epochs}
            )


def _peaks(logs: Logged, before: Logged) -> Logged:
    """The most GPU memory since the last entry, GiB. Axolotl logs the peaks since its own last log,
    and then resets PyTorch's counters (0.19.0, utils/bench.py)."""
    if not torch.cuda.is_available():
        return dict.fromkeys(TABLES["peaks"])
    torch_peaks = {
        "gpu_memory_gib": torch.cuda.max_memory_allocated(),
        "gpu_reserved_gib": torch.cuda.max_memory_reserved(),
    }
    read = TABLES["peaks"].items()
    peaks = {}
    for name, key in read:
        peaks[name] = max(
            before.get(name, 0.0), logs.get(key, 0.0), round(torch_peaks[name] / 2**30, 2)
        )
    return peaks


def _measured(logs: Logged, names: Mapping[str, str], rewards: str) -> dict[str, Any]:
    """TRL's measures by our names, and the mean of each reward; its key begins with `rewards`."""
    means = [key for key in logs if key.startswith(rewards) and key.endswith("/mean")]
    by_reward = {f"reward.{key[len(rewards) : -len('/mean')]}": logs[key] for key in means}
    return {name: logs[key] for name, key in names.items() if key in logs} | by_reward


def count_parameters(model: torch.nn.Module) -> dict[str, int]:
    """Trainable and total parameters; a tied weight counts once, a ZeRO-3 or FSDP shard as the
    whole weight."""
    total = trainable = 0
    for parameter in model.parameters():
        size = getattr(parameter, "ds_numel", None) or parameter.numel()
        if type(parameter).__name__ == "Params4bit":  # bitsandbytes packs two numbers into a byte
            size *= 2 * parameter.element_size()
        total += size
        if parameter.requires_grad:
            trainable += size
    return {"trainable_parameters": trainable, "total_parameters": total}


class Phases(TrainerCallback):
    """Prints what the process does next. It comes last, because the other callbacks decide that."""

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _tell(state, "phase", phase=MEASURING if args.eval_on_start else TRAINING)

    def on_step_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if control.should_evaluate or control.should_save:
            _tell(state, "phase", phase=MEASURING if control.should_evaluate else SAVING)

    on_epoch_end = on_step_end

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        # After a save it is False: the Trainer resets it before it calls its callbacks.
        _tell(state, "phase", phase=SAVING if control.should_save else TRAINING)

    on_save = on_evaluate

    def on_train_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        _tell(state, "phase", phase=SAVING)


def _tell(state: TrainerState, event: str, **facts: object) -> None:
    """Prints an event; only the first process does."""
    if state.is_world_process_zero:
        child_process.tell(event, **facts)


def keep_best(checkpoints: Path, folder: Path) -> Path:
    """Moves the final weights, which are the best ones, with their other files from the checkpoints
    into `folder`."""
    with replacing_folder(folder) as partial:
        for entry in sorted(checkpoints.iterdir()):
            if entry.is_file() and entry.suffix in {
                ".json",
                ".safetensors",
                ".jinja",
                ".model",
                ".txt",
                ".bin",
            }:
                shutil.move(entry, partial / entry.name)
    return folder


def communication_backend() -> str | None:
    """What the processes of this training talk by on their devices, `nccl` or `gloo`; None for one
    process alone."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return None
    # For each kind of device, because a process may have several: `cpu:gloo,cuda:nccl`.
    by_device = dict(pair.split(":") for pair in torch.distributed.get_backend_config().split(","))
    return by_device.get(PartialState().device.type)


def summary(
    settings: RunSettings, history: History, config: EngineConfig, engine: str = "axolotl"
) -> Summary:
    """The summary of a finished training."""
    evaluations: dict[str, Any] = {
        field: CHOSEN[which](values)
        for field, (measure, which) in TABLES["evaluations"].items()
        if (
            values := [entry[measure] for entry in history.epochs if entry.get(measure) is not None]
        )
    }
    return Summary(
        **{name: getattr(settings, name) for name in TABLES["names"]["settings"]},
        recipe=read_json(Path(settings.recipe_file)),
        engine=engine,
        base_model=config.get("base_model"),
        adapter={name: config[key] for name, key in TABLES["adapter"].items()}
        if config.get("adapter")
        else None,
        backend=history.backend,
        **history.parameters,
        **history.final,
        **_taken(settings, history),
        # A record from before the limit was removed means nothing.
        time_limit=TimeUsed.read(Path(settings.run_dir))
        if settings.time_limit_seconds is not None
        else None,
        early_stop=history.early_stop,
        answers=GradedAnswers.read(Path(settings.run_dir)) or None,
        **evaluations,
        last_training_loss=history.steps[-1]["loss"] if history.steps else None,
        proof=proof.summed if (proof := Proof.read(Path(settings.run_dir))) else None,
        versions=versions(),
    )


def _taken(settings: RunSettings, history: History) -> dict[str, Any]:
    """The run's GPU memory and time per step, without the first entry, whose steps warm up."""
    steps = history.steps[1:] or history.steps
    paces = [pace for entry in steps if (pace := entry["samples_per_second"])]
    memory = ("gpu_memory_gib", "gpu_reserved_gib", "gpu_driver_gib")
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "",
        "step_seconds": settings.effective_batch_size / statistics.median(paces) if paces else None,
        **{
            name: max((entry.get(name) or 0.0 for entry in steps), default=0.0) or None
            for name in memory
        },
    }


# The words of a text's beginning, and enough tokens for them.
WORDS, TOKENS = 8, 32
COLUMN = "full-question"


def with_questions(demo: Demo, config: EngineConfig, run_dir: Path) -> Demo:
    """The demo with questions from the rows of the engine's config, if it has none of its own: of
    questions with answers, more from training rows than from held-out rows, because it shows what
    was learned; of others, only held-out ones."""
    if demo.questions or not demo.of_rows:
        return demo
    held_out = _questions(_parquet_files(config, "test_datasets"), demo, run_dir)
    taught: list[str] = []
    if demo.graded_questions:
        # Of the first rows, as the answers that are shown beside them: there may be millions.
        rows = first_rows(_parquet_files(config, "datasets"))
        of_training = _short(row[COLUMN].strip() for row in rows if row.get(COLUMN))
        held_out_questions = set(held_out)
        taught = []
        for question in of_training:
            if question and question not in held_out_questions:
                taught.append(question)
    if taught:
        most_new = demo.of_rows - round(demo.of_rows * TAUGHT_SHARE)
    else:
        most_new = demo.of_rows
    new = evenly(held_out, most_new)
    questions = [*evenly(taught, demo.of_rows - len(new)), *new]
    return replace(demo, questions=questions)


def _parquet_files(config: EngineConfig, name: str) -> list[Path]:
    paths = (Path(data_set["path"]) for data_set in config.get(name) or ())
    return [path for path in paths if path.suffix == ".parquet" and path.is_file()]


def _questions(files: Iterable[Path], demo: Demo, run_dir: Path) -> list[str]:
    return _short(chain.from_iterable(_asked(file, demo, run_dir) for file in files))


def _short(questions: Iterable[str]) -> list[str]:
    """Each question once; only the short ones, if there are any."""
    distinct = dict.fromkeys(questions)
    short = [question for question in distinct if len(question) <= GLANCE]
    return short or list(distinct)


def _asked(file: Path, demo: Demo, run_dir: Path) -> Iterator[str]:
    """The question of each row; for blocks of text the beginnings of their documents."""
    from pyarrow import parquet

    rows = parquet.ParquetFile(file)
    if COLUMN in rows.schema_arrow.names:
        yield from filter(None, (text.strip() for text in rows.read([COLUMN])[COLUMN].to_pylist()))
    elif "input_ids" in rows.schema_arrow.names:
        tokenizer = tokenizer_in(run_dir / run_files.BEST_MODEL, demo.trust_remote_code)
        for block in rows.read(["input_ids"])["input_ids"].to_pylist():
            yield from _beginnings(block, tokenizer)


def _beginnings(block: Sequence[int], tokenizer: TextTokenizer) -> Iterator[str]:
    for start in (
        index + 1 for index, token in enumerate(block) if token == tokenizer.eos_token_id
    ):
        document = block[start : start + TOKENS]
        text_words = tokenizer.decode(list(document), skip_special_tokens=True).split()
        # The last word may continue in the part that was not read.
        if tokenizer.eos_token_id not in document and len(text_words) > WORDS:
            yield " ".join(text_words[:WORDS])


def keep_template(demo: Demo, model: Path) -> None:
    """Writes a chat template with the system prompt of training for servers, also beside an adapter
    alone."""
    if not demo.system_prompt:
        return
    tokenizer = tokenizer_in(model, demo.trust_remote_code)
    if isinstance(tokenizer.chat_template, str):
        for folder in filter(Path.is_dir, (model, model.with_name(run_files.ADAPTER))):
            write_text(
                folder / run_files.SERVED_TEMPLATE,
                with_system(tokenizer.chat_template, demo.system_prompt),
            )


def _alone(module: str, *arguments: str) -> None:
    """Runs a module in a process of its own, which loads models as a user would and frees its
    memory at its end."""
    names = TABLES["names"]["launcher"]
    prefixes = tuple(TABLES["names"]["launcher-prefixes"])
    plain_environment = {}
    for name, value in os.environ.items():
        if name not in names and not name.startswith(prefixes):
            plain_environment[name] = value
    fork_server.run([sys.executable, "-m", module, *arguments], plain_environment)


def keep_log_and_configs(run_dir: Path, checkpoints: Path, recipe_file: Path) -> None:
    """Copies the configs that ran and, as `train.log`, Axolotl's own log, because on a cluster
    nothing else does."""
    if run_files.LOG_KEPT not in os.environ and (checkpoints / "debug.log").is_file():
        shutil.copyfile(checkpoints / "debug.log", run_dir / run_files.LOG)
    configs = run_dir / run_files.CONFIG
    if recipe_file.parent != configs and recipe_file.is_file():
        configs.mkdir(exist_ok=True)
        for file in filter(Path.is_file, recipe_file.parent.iterdir()):
            shutil.copyfile(file, configs / file.name)


def keep_processor(config: EngineConfig, model: Path) -> None:
    """Saves, beside a model that also sees, what prepares images for it: vLLM does not start
    without it, even if no request has an image."""
    if "vision_config" not in read_record(model / "config.json"):
        return
    from transformers.utils import cached_file

    base = config["base_model"]
    revision = config.get("revision_of_model")
    for name in run_files.PROCESSOR:
        file = cached_file(
            base, name, revision=revision, _raise_exceptions_for_missing_entries=False
        )
        if file and not (model / name).is_file():
            shutil.copyfile(file, model / name)


def finish(settings: RunSettings, history: History, config: EngineConfig) -> None:
    """Saves the best model, and the best adapter beside it in `lora_adapter/`; the demo's answers;
    and the summary."""
    run_dir = Path(settings.run_dir)
    checkpoints = Path(config["output_dir"])
    best = run_dir / run_files.BEST_MODEL
    if config.get("adapter"):
        adapter = keep_best(checkpoints, run_dir / run_files.ADAPTER)
        _merge(adapter, best, config)
    else:
        keep_best(checkpoints, best)
    keep_processor(config, best)
    keep_log_and_configs(run_dir, checkpoints, Path(settings.recipe_file))
    (run_dir / run_files.GRADED).unlink(missing_ok=True)  # of an earlier training in this folder
    if settings.demo is not None:
        demo = with_questions(settings.demo, config, run_dir)
        write_json(run_dir / run_files.DEMO, asdict(demo))
        keep_template(demo, best)
        if demo.questions:
            _ask(run_dir, config)
    # Last, because its presence means that everything else is complete.
    summary(settings, history, config).write(run_dir)


def _merge(adapter: Path, best: Path, config: EngineConfig) -> None:
    """Makes the best model from the base model and the adapter, which then names that model."""
    facts = read_json(adapter / "adapter_config.json")
    # Merging or serving it later needs the same base model.
    facts["base_model_name_or_path"] = config["base_model"]
    facts["revision"] = config.get("revision_of_model")
    write_json(adapter / "adapter_config.json", facts)
    arguments = [str(adapter), str(best), precision_of(config)]
    if config.get("trust_remote_code"):
        arguments.append("trust")
    _alone("runner.trainer.merging", *arguments)
    # Servers that have the adapter alone get its generation settings with it.
    generation = best / "generation_config.json"
    if generation.is_file():
        shutil.copy(generation, adapter / generation.name)


def _ask(run_dir: Path, config: EngineConfig) -> None:
    """Asks the demo's questions, in a process of its own."""
    child_process.tell("phase", phase=child_process.ASKING)
    taught = map(str, _parquet_files(config, "datasets"))
    new = map(str, _parquet_files(config, "test_datasets"))
    _alone("runner.trainer.generation", str(run_dir), "--taught", *taught, "--new", *new)
