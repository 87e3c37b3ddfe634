"""What the runner tells the training process beyond the engine's own settings (`recipe_runner:` in axolotl.yaml)."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict


class Demo(BaseModel):
    """What is asked before and after. max_new_tokens: tokens of an answer. chat: whether the model has learned to
    answer; else it continues a text."""

    model_config = ConfigDict(extra="forbid")

    base_model: str
    revision: str = "main"
    system_prompt: str | None = None
    chat: bool = True
    questions: list[str] = []
    max_new_tokens: int = 300


class RunSettings(BaseModel):
    """What the plan expects of the run; the watchdog holds the run to it.

    demo: None where there is nothing to ask, as with images. world_size: processes in all; effective_batch_size: rows a step; learning_rate: after scaling.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    fingerprint: str
    run_dir: str
    recipe_file: str
    backend: Literal["nccl", "gloo"]
    world_size: int
    effective_batch_size: int
    base_learning_rate: float
    learning_rate: float
    demo: Demo | None = None


class RecipeRunnerArgs(BaseModel):
    """The key that the plugin adds to Axolotl's schema."""

    recipe_runner: RunSettings
