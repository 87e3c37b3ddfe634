"""What a training leaves on record beside its model: its summary, its proof, and the versions of its packages."""

import importlib.metadata
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from runner import __version__
from runner.recipe.overrides import Override
from runner.tools.files import Record
from runner.tools.run_files import PROOF, SUMMARY
from runner.trainer.limits import EarlyStop, TimeUsed


@dataclass(frozen=True)
class Summary(Record):
    """Losses are cross-entropy in nats a token or an image, accuracies shares of 1, times in seconds; None where a stage has
    none of a kind.

    name, fingerprint, recipe: what was trained, the recipe with every default; stage: of which stage, once that is finished.
    kind: `run` or `rehearsal`; changes, substitutions: what the person and the runner have changed in the recipe.
    adapter: kind, rank, alpha, dropout and layers. backend: how processes talked, None for one.
    sets: of several data sets, the part of the training rows that each has, 0 to 1, by its name.
    effective_batch_size: rows a step; effective_batch_tokens: tokens a step where rows were packed; learning_rate: after scaling.
    best_checkpoint: the name of its folder. early_stop: what ended training before its last step, None where it came to its end.
    gpu: the card's name as its driver gives it, empty without one. step_seconds: of a step, the median; gpu_memory_gib,
    gpu_reserved_gib: the most that PyTorch's tensors, and its allocator, took of the first GPU. planned: of the same what was said
    before, as `planned.json` has it; None where that is not on record.
    proof: of what is trained, as `proof.json` has it, without the rows that it shows. model: of images, the shape of the
    network. preference accuracy: how often DPO's model prefers the better answer, on held-out pairs.
    """

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
    planned: Mapping[str, Any] | None = None
    time_limit: TimeUsed | None = None
    early_stop: EarlyStop | None = None
    first_validation_loss: float | None = None
    best_validation_loss: float | None = None
    last_validation_loss: float | None = None
    last_training_loss: float | None = None
    first_preference_accuracy: float | None = None
    last_preference_accuracy: float | None = None
    best_accuracy: float | None = None
    best_epoch: float | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    model: Mapping[str, Any] | None = None
    proof: Mapping[str, Any] | None = None
    best_checkpoint: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def out_of_time(self) -> bool:
        return self.time_limit is not None and self.time_limit.reached

    @property
    def losses(self) -> str:
        """The first and the last validation loss in words; empty where there was none."""
        first, last = self.first_validation_loss, self.last_validation_loss
        return f"validation loss {first:.3f} → {last:.3f}" if first is not None and last is not None else ""


Kind = Literal["conversations", "text", "preferences", "images"]


@dataclass(frozen=True)
class Proof(Record):
    """What was judged of a stage's rows, and the result. Counts of tokens are of all training rows."""

    FILE = PROOF
    # Of the rows.
    kind: str = ""
    # The rows that the engine trains on.
    rows: int = 0
    # The rows that were compared with what the template writes; of images, those that were measured.
    judged: int = 0
    # The batches that the engine's collator made of the judged rows, and the tokens of padding in them.
    batches: int = 0
    padding: int = 0
    # Tokens with and without a label.
    trained: int = 0
    seen: int = 0
    # Tokens of the judged rows that the engine leaves out, and the number of rows that they are in.
    cut: int = 0
    rows_cut: int = 0
    # How rows share a batch: `padded`, `flattened` or `packed`.
    joined: str = ""
    # The attention that was judged; empty where no model was run.
    attention: str = ""
    # The largest change of a row's logits when the row before it changes.
    logits_moved: float | None = None
    # The first loss of eight rows in one batch, and in eight.
    loss_at_once: float | None = None
    loss_accumulated: float | None = None
    # Questions of the demo or of the evaluation that are in the training rows.
    asked: tuple[str, ...] = ()
    # What was not judged completely, and why.
    notes: tuple[str, ...] = ()
    # Each with `kind` and `message`; none where all is well.
    faults: tuple[Mapping[str, str], ...] = ()
    # Rows as `row`, `tokens` and `spans`; each span is the name `trained`, `seen` or `cut` and its tokens.
    shown: tuple[Mapping[str, Any], ...] = ()
    # The time that the proof took.
    seconds: float = 0.0

    @property
    def summed(self) -> dict[str, Any]:
        """The proof for a run's summary, without the rows themselves."""
        return {name: value for name, value in asdict(self).items() if name != "shown"}

    @property
    def complaint(self) -> str:
        """What is wrong, for a person; empty where nothing is."""
        return "\n".join(fault["message"] for fault in self.faults)


PACKAGES = ("axolotl", "torch", "transformers", "peft", "trl", "accelerate", "datasets", "deepspeed")


def versions() -> dict[str, str]:
    installed = {"recipe-runner": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
