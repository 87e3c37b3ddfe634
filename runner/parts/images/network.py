"""The ResNet for small images, and a run's files of weights: latest, best and final."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification, TrainerCallback

from runner.catalog.tables import DEPTHS
from runner.tools.files import replacing
from runner.tools.run_files import BEST_IMAGES, LATEST_IMAGES
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState


class SmallResNetForImageClassification(ResNetForImageClassification):
    """transformers' ResNet with a stem for 32×32 images: 3×3 with stride 1 and padding 1, without a
    pool, as in He et al. 2015 (arXiv 1512.03385), section 4.2. The stem of transformers (7×7,
    stride 2, then a max pool) has no settings and leaves 8×8 of 32×32 pixels. transformers chooses
    the loss by the end of the class's name."""

    # its loss is the mean of a batch; the Trainer must divide it by the accumulation steps
    accepts_loss_kwargs = False

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        stem = self.resnet.embedder
        convolution = nn.Conv2d(
            config.num_channels, config.embedding_size, 3, stride=1, padding=1, bias=False
        )
        # As transformers initialises the others.
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        stem.embedder.convolution = convolution
        stem.pooler = nn.Identity()


def build(architecture: str, width: int, classes: int) -> SmallResNetForImageClassification:
    """A network with random weights. width: channels of the first stage; each further stage doubles
    them."""
    return SmallResNetForImageClassification(
        ResNetConfig(
            num_channels=3,
            embedding_size=width,
            hidden_sizes=[width << stage for stage in range(len(DEPTHS[architecture]))],
            depths=list(DEPTHS[architecture]),
            layer_type="basic",
            num_labels=classes,
        )
    )


def save(file: Path, content: Mapping[str, object]) -> None:
    """Writes a file atomically, so that a reader never sees half of one."""
    with replacing(file) as partial:
        torch.save(dict(content), partial)


def read(file: Path) -> dict[str, Any]:
    """The content of a file of `save`; only tensors and plain values are accepted, so opening it
    cannot run code."""
    content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def load(file: Path) -> tuple[SmallResNetForImageClassification, dict[str, Any]]:
    """The trained network in `best_model.pth`, `final_model.pth` or `checkpoint_latest.pth`, in
    evaluation mode, and the other content of the file: `classes` (names), `mean`, `std`,
    `image_size`, `accuracy`, `epoch`."""
    content = read(file)
    shape = content["shape"]
    model = build(shape["architecture"], shape["width"], shape["classes"])
    model.load_state_dict(content["model"])
    return model.eval(), content


class Weights(TrainerCallback):
    """Writes `best_model.pth` at every new best validation accuracy, and `checkpoint_latest.pth`,
    which also has the optimizer and the schedule, with every checkpoint. facts: the content of
    every file beside the weights."""

    def __init__(self, run_dir: Path, facts: dict[str, Any]) -> None:
        self.run_dir = run_dir
        self.facts = facts
        self.best_accuracy = -1.0
        self.accuracy: float | None = None

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        if state.global_step and (self.run_dir / BEST_IMAGES).is_file():
            self.best_accuracy = read(self.run_dir / BEST_IMAGES)["accuracy"]

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        self.accuracy = (more.get("metrics") or {}).get("eval_accuracy")
        # Before the first step there is no trained model.
        if self.accuracy is None or not state.global_step or self.accuracy <= self.best_accuracy:
            return
        self.best_accuracy = self.accuracy
        if state.is_world_process_zero:
            save(self.run_dir / BEST_IMAGES, self.content(more["model"], state))

    def on_save(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **more: Any
    ) -> None:
        if state.is_world_process_zero:
            resumed = {name: more[name].state_dict() for name in ("optimizer", "lr_scheduler")}
            save(self.run_dir / LATEST_IMAGES, self.content(more["model"], state) | resumed)

    def content(self, model: nn.Module, state: TrainerState) -> dict[str, Any]:
        """accuracy: share of the validation images, 0 to 1, at the last evaluation."""
        return self.facts | {
            "model": {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()},
            "accuracy": self.accuracy,
            "epoch": state.epoch,
            "step": state.global_step,
        }
