"""A ResNet for small images by its geometry: layers, parameters, what autograd keeps, operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.catalog.trainers import DEPTHS
from runner.estimate.activations import FULL, HALF
from runner.estimate.counts import Counts
from runner.plan import Machines


@dataclass(frozen=True)
class Images:
    """What one training run on images asks of its GPUs.

    width: channels of the first stage; image_size in pixels; precision: fp32, bf16 or fp16. micro_batch_size,
    evaluation_batch_size: images on one GPU at once. sharding: none or ddp. rows, evaluation_rows: images, None where
    nobody has counted; test_rows: measured once, at the end. keep: checkpoints kept. network: its kind, ethernet or rdma.
    """

    machines: Machines
    architecture: str = "resnet18"
    width: int = 64
    image_size: int = 32
    classes: int = 10
    precision: str = "fp32"
    micro_batch_size: int = 32
    evaluation_batch_size: int = 32
    accumulation: int = 1
    optimizer: str = "adamw_torch_fused"
    sharding: str = "none"
    epochs: float = 1.0
    learning_rate: float = 0.0
    warmup_ratio: float = 0.0
    warmup_steps: int = 0
    rows: int | None = None
    evaluation_rows: int | None = None
    test_rows: int = 0
    keep: int = 1
    network: str = "ethernet"

    @property
    def effective_batch_size(self) -> int:
        return self.micro_batch_size * self.accumulation * self.machines.world_size

    def with_rows(self, rows: int) -> Images:
        return replace(self, micro_batch_size=rows, evaluation_batch_size=rows)


@dataclass(frozen=True)
class Convolution:
    """A convolution with its norm: channels in and out, kernel and output in pixels (square), input in pixels.

    relu: whether one follows at once. shortcut: whether it is the 1×1 one beside a block; last: whether it ends a block.
    """

    fan_in: int
    fan_out: int
    kernel: int
    pixels_in: int
    pixels: int
    relu: bool = True
    shortcut: bool = False
    last: bool = False

    @property
    def weights(self) -> int:
        return self.kernel**2 * self.fan_in * self.fan_out

    @property
    def output(self) -> int:
        """Numbers of one image's output."""
        return self.fan_out * self.pixels**2

    @property
    def input(self) -> int:
        return self.fan_in * self.pixels_in**2


def convolutions(work: Images) -> Iterator[Convolution]:
    """Every convolution in the order of the forward pass (He et al. 2015, arXiv 1512.03385, section 4.2): a 3×3 stem,
    then stages of basic blocks, each after the first halving the pixels and doubling the channels."""
    pixels, channels = work.image_size, work.width
    yield Convolution(3, channels, 3, pixels, pixels)
    for stage, depth in enumerate(DEPTHS[work.architecture]):
        wide = work.width << stage
        for block in range(depth):
            half = -(-pixels // 2) if stage and not block else pixels
            if half != pixels or channels != wide:
                yield Convolution(channels, wide, 1, pixels, half, relu=False, shortcut=True)
            yield Convolution(channels, wide, 3, pixels, half)
            yield Convolution(wide, wide, 3, half, half, relu=False, last=True)
            pixels, channels = half, wide


def counts(work: Images) -> Counts:
    """Convolutions without bias, two numbers a channel for each norm, and the classifier with its bias."""
    layers = list(convolutions(work))
    total = sum(layer.weights + 2 * layer.fan_out for layer in layers)
    total += (layers[-1].fan_out + 1) * work.classes
    return Counts(total, total)


def kept(work: Images) -> list[int]:
    """Bytes that autograd keeps of each convolution for one image: its output, which the norm needs, and the output of
    the ReLU, which the next convolution needs too; a norm alone keeps no output. The image itself is the first entry."""
    layers, wide = list(convolutions(work)), width(work)
    image = layers[0].input * (FULL if work.precision == "fp32" else FULL + HALF)
    return [image, *(wide * layer.output * (2 if layer.relu or layer.last else 1) for layer in layers)]


def width(work: Images) -> int:
    return FULL if work.precision == "fp32" else HALF


def copy_of(work: Images, layer: Convolution) -> int:
    """Bytes of a layer's weights in half precision, which autocast makes for it."""
    return 0 if work.precision == "fp32" else HALF * layer.weights


def flops(work: Images, rows: int, training: bool = True) -> float:
    """Two operations a weight and output pixel, as many for each of the two gradients; the first layer's input has none."""
    layers = list(convolutions(work))
    once = sum(2 * layer.weights * layer.pixels**2 for layer in layers)
    return rows * (3 * once - 2 * layers[0].weights * layers[0].pixels ** 2 if training else once)
