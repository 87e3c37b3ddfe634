"""What the runner tells the training process beyond the engine's own settings (`recipe_runner:` in axolotl.yaml)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Demo(BaseModel):
    """What is asked before and after. max_new_tokens: tokens of an answer; categories: of questions that have one;
    turn_end: the token that ends an answer, where it is not end-of-text; chat: whether the model has learned to
    answer, else it continues a text; of_rows: so many validation rows are asked about where there are no questions."""

    model_config = ConfigDict(extra="forbid")

    base_model: str
    revision: str = "main"
    system_prompt: str | None = None
    chat: bool = True
    questions: list[str] = []
    of_rows: int = 0
    categories: dict[str, str] = {}
    max_new_tokens: int = 300
    turn_end: str | None = None
    trust_remote_code: bool = False


class BlocksSettings(BaseModel):
    """Pretraining on packed blocks of one context length.

    folder: `train-<sequence_len>.npy` and `validation-<sequence_len>.npy`. first_step: steps done before this length;
    last_step: where it ends; steps: of all lengths. continue_from: checkpoints of the length before.
    """

    model_config = ConfigDict(extra="forbid")

    folder: str
    sequence_len: int
    first_step: int
    last_step: int
    steps: int
    seed: int
    continue_from: str | None = None


class ProofSettings(BaseModel):
    """What is proven of rows and batches before the first step.

    questions: a file of questions, as JSON lines with `question`, that the model is measured by later. show: rows to show.
    only: end when all is proven, and train nothing. attention: what is asked in place of the `planned` one, where that is not here.
    prepared: the folder of a proof that was made when the data was, of what GPUs are not asked again.
    """

    model_config = ConfigDict(extra="forbid")

    questions: str | None = None
    show: int = 2
    only: bool = False
    attention: str | None = None
    planned: str | None = None
    prepared: str | None = None


class EarlyStopping(BaseModel):
    """When training ends before its steps are made. patience: evaluations without improvement; min_improvement: what counts as
    one, in nats of validation loss, or of images as a share of them, 0 to 1."""

    model_config = ConfigDict(extra="forbid")

    patience: int
    min_improvement: float = 0.0


class RunSettings(BaseModel):
    """What the plan expects of the run; the watchdog holds the run to it.

    world_size: processes in all; effective_batch_size: rows a step; learning_rate: after scaling.
    time_limit_seconds: the longest that training may take; None for no limit. time_limit_earlier: run folders of the
    stages before this one, whose training counts too.
    save_steps: steps between two checkpoints, beside those with each evaluation; None for as often as they are worth it.
    early_stopping: None where training makes all its steps.
    demo: None where there is nothing to ask, as with images.
    effective_batch_tokens: tokens a step where rows are packed into rows of full length; None where a step has rows as they are.
    flatten: join the rows of a micro batch where Axolotl would refuse to, without FlashAttention.
    persistent_workers: keep data workers between epochs and evaluations. master_weights: what weights are kept in
    between steps, None as Axolotl has it. blocks: packed blocks in place of Axolotl's own datasets. proof: of what is trained.
    """

    model_config = ConfigDict(extra="forbid")

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
    blocks: BlocksSettings | None = None
    proof: ProofSettings = ProofSettings()


class RecipeRunnerArgs(BaseModel):
    """The key that the plugin adds to Axolotl's schema."""

    recipe_runner: RunSettings
