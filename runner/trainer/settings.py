"""Settings of the training process beyond the engine's own (`recipe_runner:` in axolotl.yaml).
`runner.scenarios.shared.common.run_settings` makes them."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, TypedDict


class Stated:
    """Base of settings that are written to a file without the defaults: only what their maker
    stated is in it, in that order. A stated None is nothing where it is the default."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}
    _stated: tuple[str, ...]

    def __new__(cls, **stated: object) -> Self:
        settings = super().__new__(cls)
        object.__setattr__(settings, "_stated", tuple(stated))
        return settings

    @classmethod
    def read(cls, plain: object) -> Self:
        """The settings in the form of `plain`. Raises ValueError for any other form."""
        from pydantic import TypeAdapter  # only the training process needs it

        settings: Self = TypeAdapter(cls).validate_python(plain)
        return settings

    def plain(self) -> dict[str, Any]:
        """What was stated, as plain values."""
        values = {}
        for name in self._stated:
            value = getattr(self, name)
            if isinstance(value, Stated):
                values[name] = value.plain()
            elif value is not None or not hasattr(type(self), name):
                values[name] = value
        return values


def _null() -> None:
    """The default of a setting that is written also where it is null. Axolotl's config drops nulls,
    so a reader may miss it."""


@dataclass(frozen=True, kw_only=True)
class Demo(Stated):
    """Questions before and after training. max_new_tokens: tokens of an answer; categories: by
    question; turn_end: the token that ends an answer, beside end-of-text; chat: whether the model
    answers, else it continues a text; of_rows: the number of rows to take questions from if there
    are none; graded_questions: the most questions of rows that are asked, to count the right
    answers."""

    base_model: str
    revision: str = "main"
    system_prompt: str | None = field(default_factory=_null)
    chat: bool = True
    questions: list[str] = field(default_factory=list)
    of_rows: int | None = None
    graded_questions: int = 0
    categories: dict[str, str] = field(default_factory=dict)
    max_new_tokens: int = 300
    turn_end: str | None = field(default_factory=_null)
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class BlocksSettings(Stated):
    """Pretraining on packed blocks of one context length. folder: of `train-<sequence_len>.npy` and
    `validation-<sequence_len>.npy`. first_step, last_step: where this length begins and ends;
    steps: of all lengths. continue_from: the folder of the checkpoints of the length before."""

    folder: str
    sequence_len: int
    first_step: int
    last_step: int
    steps: int
    seed: int
    continue_from: str | None = field(default_factory=_null)


@dataclass(frozen=True, kw_only=True)
class ProofSettings(Stated):
    """The proof of rows and batches before the first step. questions: a file of JSON lines with
    `question`, for the evaluation after training. show: rows to show. only: end after the proof.
    attention: replaces the `planned` one, which needs a GPU. prepared: the folder of the proof that
    was made with the data, whose forward passes are not repeated on GPUs."""

    questions: str | None = None
    show: int = 2
    only: bool = False
    attention: str | None = None
    planned: str | None = None
    prepared: str | None = None


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Stated):
    """patience: evaluations without improvement; min_improvement: in nats of loss, or as a share of
    1."""

    patience: int
    min_improvement: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunSettings(Stated):
    """What the plan expects of the run; the watchdog compares.

    world_size: processes in all. effective_batch_size: rows a step; effective_batch_tokens: tokens
    a step of packed rows. learning_rate: after scaling. time_limit_earlier: run folders of the
    stages before, whose training time counts too. save_steps: steps between two checkpoints beside
    those of evaluations; None for as often as they are worth it. demo: None if there is nothing to
    ask, as with images. flatten: join the rows of a micro batch, also without FlashAttention.
    persistent_workers: keep data workers between epochs and evaluations. master_weights: the
    precision of stored weights; None for Axolotl's. warmup_ratio: only if Axolotl refuses its own.
    blocks: packed blocks instead of Axolotl's own data sets. rewards: the rules of each, by its
    name, if the model learns from its own answers."""

    name: str
    fingerprint: str
    run_dir: str
    recipe_file: str
    backend: Literal["nccl", "gloo"]
    world_size: int
    effective_batch_size: int
    effective_batch_tokens: int | None = None
    flatten: bool = False
    base_learning_rate: float
    learning_rate: float
    time_limit_seconds: float | None = None
    time_limit_earlier: list[str] = field(default_factory=list)
    save_steps: int | None = None
    early_stopping: EarlyStopping | None = None
    demo: Demo | None = None
    persistent_workers: bool = False
    master_weights: Literal["fp32", "bf16"] | None = None
    warmup_ratio: float | None = None
    blocks: BlocksSettings | None = None
    rewards: dict[str, dict[str, Any]] = field(default_factory=dict)
    proof: ProofSettings = field(default_factory=ProofSettings)


class RunOptions(TypedDict, total=False):
    """The fields of RunSettings that do not follow from every recipe in the same way."""

    flatten: bool
    rewards: dict[str, dict[str, Any]]
    persistent_workers: bool
    warmup_ratio: float
    master_weights: Literal["fp32", "bf16"]
    demo: Demo
    blocks: BlocksSettings
    proof: ProofSettings
    time_limit_earlier: list[str]


class StageOptions(TypedDict, total=False):
    """The fields of RunSettings that change where a training becomes a stage of several."""

    fingerprint: str
    proof: ProofSettings
    time_limit_earlier: list[str]
