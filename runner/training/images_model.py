"""The ResNet for small images, and its weights as files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification

from runner.catalog.trainers import DEPTHS


class SmallResNetForImageClassification(ResNetForImageClassification):
    """transformers' ResNet with the stem that 32×32 images need.

    Its own stem (7×7, stride 2, then a max pool) has no settings and would leave 8×8 of 32×32 pixels before the first
    block. Here it is 3×3 with stride 1 and padding 1 and no pool, as in He et al. 2015 (arXiv 1512.03385), section 4.2.
    Its name ends as it does because transformers chooses the loss by the end of a class's name.
    """

    # Its loss is the mean of a batch; the Trainer must divide it by the accumulation steps.
    accepts_loss_kwargs = False

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__(config)
        stem = self.resnet.embedder
        convolution = nn.Conv2d(
            config.num_channels, config.embedding_size, kernel_size=3, stride=1, padding=1, bias=False
        )
        # As transformers draws the others.
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        stem.embedder.convolution = convolution
        stem.pooler = nn.Identity()


def build(architecture: str, width: int, classes: int) -> SmallResNetForImageClassification:
    """A network with random weights. width: channels of the first stage; each further stage doubles them."""
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


def save(file: Path, content: Mapping[str, Any]) -> None:
    """Writes beside the file and renames over it, so that a reader never sees half of one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
    torch.save(dict(content), partial)
    os.replace(partial, file)


def read(file: Path) -> dict[str, Any]:
    """What `save` wrote; only tensors and plain values are accepted, so opening it cannot run code."""
    return torch.load(file, map_location="cpu", weights_only=True)


def load(file: Path) -> tuple[SmallResNetForImageClassification, dict[str, Any]]:
    """The trained network in `best_model.pth`, `final_model.pth` or `checkpoint_latest.pth`, ready to be asked, and all
    else that the file says: `classes` (names), `mean`, `std`, `image_size`, `accuracy`, `epoch`."""
    content = read(file)
    shape = content["shape"]
    model = build(shape["architecture"], shape["width"], shape["classes"])
    model.load_state_dict(content["model"])
    return model.eval(), content
