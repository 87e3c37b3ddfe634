"""Records of a training beside its model: summary, proof, early stop, time limit, held-out rows,
package versions. Without PyTorch, because the plan and a job's status read them too."""

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from runner import __version__
from runner.recipe.recipe import Override
from runner.tools.files import Record, replacing
from runner.tools.run_files import GRADED, HELD_OUT, PROOF, SUMMARY, TIME_LIMIT

Thing = TypeVar("Thing")
Logged = Mapping[str, Any]  # the figures of a step, an epoch or an evaluation, by name
GLANCE = 300  # the most characters of a short question of a demo
# The measure that compares evaluations: the validation loss; or, with more being better, the
# accuracy for images or the reward of a model's own answers.
LOSS, ACCURACY, REWARD = "loss", "accuracy", "reward"


@dataclass(frozen=True)
class EarlyStop(Record):
    """An early stop. patience: evaluations without improvement; step: the last one of `steps`;
    kept: the best one."""

    patience: int = 0
    step: int = 0
    steps: int = 0
    kept: int = 0

    @property
    def told(self) -> str:
        if self.patience == 1:
            evaluations = "the last evaluation"
        else:
            evaluations = f"the last {self.patience} evaluations"
        return f"ended early, after step {self.step:,} of {self.steps:,}: {evaluations} brought no improvement; the best model, from step {self.kept:,}, is saved"


EARLY_STOP_EVENT = (
    "early_stop"  # the event of the training process, with the fields of an EarlyStop
)


def early_stop(
    evaluations: Iterable[Logged], patience: int, least: float, measure: str, step: int, steps: int
) -> EarlyStop | None:
    """The early stop after `step` of `steps`, if as many evaluations as `patience` have brought no
    improvement by more than `least`; else None. evaluations: all in order, with the one before the
    first step; each with `step` and the measure."""
    sign = -1 if measure == LOSS else 1
    values = []
    for entry in evaluations:
        if entry.get(measure) is not None:
            values.append((sign * entry[measure], entry["step"]))
    best = -math.inf
    waited = 0
    for value, _ in values:
        if value - best > least:
            best = value
            waited = 0
        else:
            waited = waited + 1
    if step >= steps or waited < patience:
        return None
    _, kept = max(
        (evaluation for evaluation in values if evaluation[1]),
        key=lambda evaluation: (evaluation[0], -evaluation[1]),
    )
    return EarlyStop(patience, step, steps, kept)


@dataclass(frozen=True)
class TimeUsed(Record):
    """How much of the recipe's training time a stage has used, with restarts, and whether the limit
    ended it."""

    FILE = TIME_LIMIT
    limit_seconds: float = 0.0
    used_seconds: float = 0.0
    reached: bool = False


def elapsed_seconds(run_dirs: Iterable[str | Path]) -> float:
    """Seconds of training in these folders together, with restarts; a folder without a record
    counts as 0."""
    return sum(TimeUsed.read(Path(folder)).used_seconds for folder in run_dirs)


@dataclass(frozen=True)
class GradedAnswers(Record):
    """How many questions of its rows a trained model answers rightly, as `trainer/grading.py`
    compares answers."""

    FILE = GRADED
    taught_right: int = 0  # of questions of training rows
    taught_asked: int = 0
    new_right: int = 0  # of questions of held-out rows
    new_asked: int = 0

    @property
    def shares(self) -> dict[str, float]:
        """The share of right answers, 0 to 1, as the metrics `taught_answers` and `new_answers`, if
        any were asked."""
        shares: dict[str, float] = {}
        if self.taught_asked:
            shares["taught_answers"] = self.taught_right / self.taught_asked
        if self.new_asked:
            shares["new_answers"] = self.new_right / self.new_asked
        return shares

    @property
    def counts(self) -> dict[str, str]:
        """The same shares as counts for people, such as `17 of 20`."""
        counts: dict[str, str] = {}
        if self.taught_asked:
            counts["taught_answers"] = f"{self.taught_right} of {self.taught_asked}"
        if self.new_asked:
            counts["new_answers"] = f"{self.new_right} of {self.new_asked}"
        return counts

    @property
    def has_learned(self) -> bool | None:
        """Whether at least half of the taught questions are answered rightly; None if none was
        asked."""
        share = self.shares.get("taught_answers")
        if share is None:
            return None
        return share >= 0.5

    @property
    def sentence(self) -> str:
        """The counts for people; empty if no question was asked."""
        taught = f"{self.taught_right} of {self.taught_asked} questions from your rows"
        new = f"{self.new_right} of {self.new_asked} new ones"
        if self.taught_asked and self.new_asked:
            return f"It answers {taught} rightly, and {new}."
        if self.taught_asked:
            return f"It answers {taught} rightly."
        if self.new_asked:
            return f"It answers {new} rightly."
        return ""


@dataclass(frozen=True)
class Summary(Record):
    """Losses are cross-entropy in nats a token or an image, accuracies shares of 1, times in
    seconds; None for what a stage does not have.

    recipe: with every default. stage: empty until it is finished. kind: as of a RunFolder. changes,
    substitutions: the user's and the runner's changes of the recipe. adapter: kind, rank, alpha,
    dropout and layers. sets: each data set's share of the training rows. backend: None for one
    process. effective_batch_size: rows a step; effective_batch_tokens: tokens a step of packed
    rows. learning_rate: after scaling. gpu: the driver's name of the card; empty for none.
    step_seconds: the median. gpu_memory_gib, gpu_reserved_gib, gpu_driver_gib: the most that
    PyTorch's tensors and its allocator took of the first GPU, and that its driver counted. planned:
    the forecast for this stage in `planned.json`. best_checkpoint: the name of its folder. model:
    the network's shape, for images. proof: `proof.json` without the rows that it shows. preference
    accuracy: how often DPO's model prefers the better answer, on held-out pairs. reward: the mean
    of the model's own answers to held-out prompts."""

    FILE = SUMMARY
    name: str = ""
    fingerprint: str = ""
    recipe: Mapping[str, Any] | None = None
    stage: str = ""
    kind: str = ""
    changes: tuple[Override, ...] = ()
    substitutions: tuple[Override, ...] = ()
    engine: str = ""
    base_model: str | None = None
    adapter: Mapping[str, Any] | None = None
    sets: Mapping[str, float] = field(default_factory=dict)
    world_size: int = 1
    backend: str | None = None
    effective_batch_size: int = 0
    effective_batch_tokens: int | None = None
    base_learning_rate: float = 0.0
    learning_rate: float = 0.0
    trainable_parameters: int = 0
    total_parameters: int = 0
    steps: int = 0
    epochs: float = 0.0
    tokens: int = 0
    training_seconds: float = 0.0
    gpu: str = ""
    step_seconds: float | None = None
    gpu_memory_gib: float | None = None
    gpu_reserved_gib: float | None = None
    gpu_driver_gib: float | None = None
    planned: Mapping[str, Any] | None = None
    answers: GradedAnswers | None = None  # None if its answers were not graded
    time_limit: TimeUsed | None = None
    early_stop: EarlyStop | None = None
    first_validation_loss: float | None = None
    best_validation_loss: float | None = None
    last_validation_loss: float | None = None
    last_training_loss: float | None = None
    first_preference_accuracy: float | None = None
    last_preference_accuracy: float | None = None
    first_reward: float | None = None
    best_reward: float | None = None
    last_reward: float | None = None
    best_accuracy: float | None = None
    best_epoch: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    model: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None
    best_checkpoint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def losses(self) -> str:
        """The first and the last validation loss, or reward, in words; empty if there was none."""
        losses = ("validation loss", self.first_validation_loss, self.last_validation_loss)
        for name, at_start, last in (losses, ("mean reward", self.first_reward, self.last_reward)):
            if at_start is not None and last is not None:
                return f"{name} {at_start:.3f} → {last:.3f}"
        return ""


Kind = Literal["conversations", "text", "preferences", "scores", "prompts", "images"]


@dataclass(frozen=True)
class Proof(Record):
    """What was judged of a stage's rows, and the result.

    kind: of the rows. rows: those that the engine trains on. judged: the rows that were compared
    with what the template writes; of images, those that were measured. batches, padding: that the
    engine's collator made of the judged rows, and the tokens of padding in them. trained, seen:
    tokens of all training rows with and without a label. cut, rows_cut: tokens of the judged rows
    that the engine leaves out, and the number of rows that they are in. joined: how rows share a
    batch: `padded`, `flattened` or `packed`. attention: the one that was judged; empty if no model
    was run. logits_moved: the largest change of a row's logits when the row before it changes.
    loss_at_once, loss_accumulated: the first loss of eight rows in one batch, and in eight. seeing:
    frozen tensors of parts that read images or sound. held_out: whether rows are held back from
    training. asked: questions of the demo or of the evaluation that are in the training rows.
    notes: what was not judged completely, and why. rewards: what rewards gave to known answers, in
    words. faults: each with `kind` and `message`; none if all is well. shown: rows as `row`,
    `tokens` and `spans`; each span is the name `trained`, `seen` or `cut` and its tokens. seconds:
    of the proof."""

    FILE = PROOF
    kind: str = ""
    rows: int = 0
    judged: int = 0
    batches: int = 0
    padding: int = 0
    trained: int = 0
    seen: int = 0
    cut: int = 0
    rows_cut: int = 0
    joined: str = ""
    attention: str = ""
    logits_moved: float | None = None
    loss_at_once: float | None = None
    loss_accumulated: float | None = None
    seeing: int = 0
    held_out: bool = True
    asked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rewards: tuple[str, ...] = ()
    faults: tuple[Mapping[str, str], ...] = ()
    shown: tuple[Logged, ...] = ()
    seconds: float = 0.0

    @property
    def summed(self) -> Logged:
        """The proof for a run's summary, without the rows themselves."""
        return {name: value for name, value in asdict(self).items() if name != "shown"}

    @property
    def shares(self) -> list[tuple[str, int, float]]:
        """Tokens that are trained, seen and cut: the name, the count, and the share of all."""
        counts = (("trained", self.trained), ("seen", self.seen), ("cut", self.cut))
        shares = []
        for name, count in counts:
            shares.append((name, count, count / max(1, sum(number for _, number in counts))))
        return shares

    @property
    def complaint(self) -> str:
        """The faults in words; empty without any."""
        return "\n".join(fault["message"] for fault in self.faults)


# The most held-out rows and tokens that are saved: enough to distinguish models, and read in
# seconds.
HELD_OUT_ROWS = 512
HELD_OUT_TOKENS = 1_000_000
IN_ALL = b"rows_in_all"


class HeldOut(NamedTuple):
    """rows: each row's tokens and labels (-100: not trained); in_all: the number of held-out
    rows."""

    rows: tuple[tuple[list[int], list[int]], ...]
    in_all: int


def keep_held_out(dataset: Any, folder: Path) -> None:
    """Writes rows of a tokenised data set, evenly spaced if it has too many rows or tokens; nothing
    without one."""
    file = folder / HELD_OUT
    if dataset is not None and hasattr(dataset, "__getitem__"):
        count = len(dataset)
    else:
        count = 0
    if not count or not {"input_ids", "labels"} <= set(dataset[0]):
        file.unlink(missing_ok=True)
        return
    import pyarrow as pa
    from pyarrow import parquet

    rows = evenly(range(count), HELD_OUT_ROWS)
    lengths = [len(dataset[row]["input_ids"]) for row in rows]
    # Ending at the limit would keep the first rows alone, which may be all of one data set.
    fewer = next(
        (n for n in range(len(rows), 1, -1) if sum(evenly(lengths, n)) <= HELD_OUT_TOKENS), 1
    )
    kept = [dataset[row] for row in evenly(rows, fewer)]
    column_type = pa.list_(pa.int32())
    columns = {}
    for name in ("input_ids", "labels"):
        columns[name] = [list(map(int, row[name])) for row in kept]
    table = pa.table({name: pa.array(column, column_type) for name, column in columns.items()})
    with replacing(file) as partial:
        parquet.write_table(
            table.replace_schema_metadata({IN_ALL: str(count)}), partial, compression="zstd"
        )


def evenly(items: Sequence[Thing], count: int) -> list[Thing]:
    """`count` of them at even distances; all of them if they are fewer."""
    count = min(count, len(items))
    return [items[number * len(items) // count] for number in range(count)]


def read_held_out(file: Path) -> HeldOut | None:
    """The rows in a file; None if there are none."""
    if not file.is_file():
        return None
    from pyarrow import parquet

    table = parquet.read_table(file)
    rows = zip(table["input_ids"].to_pylist(), table["labels"].to_pylist(), strict=True)
    return HeldOut(tuple(rows), int(table.schema.metadata[IN_ALL]))


PACKAGES = (
    "axolotl",
    "torch",
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "datasets",
    "deepspeed",
)


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """The versions of Python, of the runner, and of those packages that are installed."""
    from importlib import metadata  # too slow to import in a check

    installed = {"recipe-runner": __version__, "python": platform.python_version()}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed
