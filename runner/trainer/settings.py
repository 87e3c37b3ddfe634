"""Settings of the training process beyond the engine's own (`recipe_runner:` in axolotl.yaml)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class StrictSettings(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Demo(StrictSettings):
    """Questions before and after training. max_new_tokens: tokens of an answer; categories: by
    question; turn_end: the token that ends an answer, beside end-of-text; chat: whether the model
    answers, else it continues a text; of_rows: the number of rows to take questions from if there
    are none; graded_questions: the most questions of rows that are asked, to count the right
    answers."""

    base_model: str
    revision: str = "main"
    system_prompt: str | None = None
    chat: bool = True
    questions: list[str] = []
    of_rows: int = 0
    graded_questions: int = 0
    categories: dict[str, str] = {}
    max_new_tokens: int = 300
    turn_end: str | None = None
    trust_remote_code: bool = False


class BlocksSettings(StrictSettings):
    """Pretraining on packed blocks of one context length. folder: of `train-<sequence_len>.npy` and
    `validation-<sequence_len>.npy`. first_step, last_step: where this length begins and ends;
    steps: of all lengths. continue_from: the folder of the checkpoints of the length before."""

    folder: str
    sequence_len: int
    first_step: int
    last_step: int
    steps: int
    seed: int
    continue_from: str | None = None


class ProofSettings(StrictSettings):
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


class EarlyStopping(StrictSettings):
    """patience: evaluations without improvement; min_improvement: in nats of loss, or as a share of
    1."""

    patience: int
    min_improvement: float = 0.0


class RunSettings(StrictSettings):
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
    time_limit_earlier: list[str] = []
    save_steps: int | None = None
    early_stopping: EarlyStopping | None = None
    demo: Demo | None = None
    persistent_workers: bool = False
    master_weights: Literal["fp32", "bf16"] | None = None
    warmup_ratio: float | None = None
    blocks: BlocksSettings | None = None
    rewards: dict[str, dict[str, Any]] = {}
    proof: ProofSettings = ProofSettings()


class RecipeRunnerArgs(BaseModel):
    """The key that the plugin adds to Axolotl's schema."""

    recipe_runner: RunSettings
