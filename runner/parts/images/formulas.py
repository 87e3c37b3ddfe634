"""The planner's formulas for image training. They are coarse, because the network fits any card: a
list of convolutions gives parameters, operations and activations, within a tenth of the exact trace
(tests/parts/planner/trace)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from runner import catalog
from runner.catalog.tables import DEPTHS
from runner.parts.planner import constants, duration
from runner.parts.planner.forecast import Changes, Counts, Forecast, splits
from runner.parts.planner.memory import Memory, Moment, at_peak
from runner.parts.planner.row_counts import Rows
from runner.parts.planner.state import State
from runner.parts.planner.workload import FULL, HALF, Run, cadence
from runner.plan import Stage
from runner.recipe.recipe import Recipe

# Python's time to launch one layer's kernels (convolution, norm, ReLU) forward and backward, and
# the optimizer's.
SECONDS_A_LAYER = 5e-4
CONVOLUTION_SHARE = 0.60  # of a data sheet's rate that convolutions reach; assumed


@dataclass(frozen=True, kw_only=True)
class Images(Run):
    """One training run on images. width: channels of the first stage. image_size: pixels, square.
    classes, test_rows: counts; the test images are measured once, at the end."""

    precision: str = "fp32"
    architecture: str = "resnet18"
    width: int = 64
    image_size: int = 32
    classes: int = 10
    test_rows: int = 0


class Convolution(NamedTuple):
    """A square convolution with its norm: channels in and out, kernel and output in pixels. 1×1
    ones bypass a block."""

    fan_in: int
    fan_out: int
    kernel: int
    pixels: int

    @property
    def weights(self) -> int:
        return self.kernel**2 * self.fan_in * self.fan_out

    @property
    def output(self) -> int:
        """Numbers of one image's output."""
        return self.fan_out * self.pixels**2


def convolutions(work: Images) -> Iterator[Convolution]:
    """Every convolution in the order of the forward pass (He et al. 2015, arXiv 1512.03385, section
    4.2): a 3×3 stem, then stages of basic blocks, each after the first halving the pixels and
    doubling the channels."""
    pixels = work.image_size
    channels = work.width
    yield Convolution(3, channels, 3, pixels)
    for stage, depth in enumerate(DEPTHS[work.architecture]):
        wide = work.width << stage
        pixels = -(-pixels // 2) if stage else pixels
        for _ in range(depth):
            if channels != wide:
                yield Convolution(channels, wide, 1, pixels)
            yield Convolution(channels, wide, 3, pixels)
            yield Convolution(wide, wide, 3, pixels)
            channels = wide


def of_stage(recipe: Recipe, stage: Stage, rows: Rows, look: bool) -> ImageForecast:
    """The forecast for a stage, from the config of the image trainer."""
    model = stage.config["model"]
    trainer = stage.config["trainer"]
    work = Images(
        machines=stage.machines,
        **model,
        precision="bf16" if trainer["bf16"] else "fp16" if trainer["fp16"] else "fp32",
        micro_batch_size=trainer["per_device_train_batch_size"],
        evaluation_batch_size=trainer["per_device_eval_batch_size"],
        accumulation=trainer["gradient_accumulation_steps"],
        optimizer=trainer["optim"],
        sharding="none" if stage.machines.world_size == 1 else "ddp",
        epochs=trainer["num_train_epochs"],
        learning_rate=trainer["learning_rate"],
        warmup_ratio=trainer["warmup_ratio"] if trainer["lr_scheduler_type"] != "constant" else 0.0,
        rows=rows.training,
        evaluation_rows=rows.validation,
        test_rows=catalog.dataset(stage.data.get("hub")).get("test_rows", 0)
        if stage.data.get("test_split")
        else 0,
        keep=trainer["save_total_limit"],
        **cadence(trainer, stage.config["recipe_runner"]),
    )
    return ImageForecast(stage, work, rows)


@dataclass(frozen=True)
class ImageForecast(Forecast):
    """The needs of a stage that trains on images."""

    workload: Images

    @property
    def model(self) -> str:
        return f"{self.workload.architecture}, {self.workload.width} channels wide, {self.workload.classes} classes"

    @cached_property
    def counts(self) -> Counts:
        """Convolutions without bias, two numbers a channel for each norm, and the classifier with
        its bias."""
        layers = list(convolutions(self.workload))
        total = sum(layer.weights + 2 * layer.fan_out for layer in layers)
        total += (layers[-1].fan_out + 1) * self.workload.classes
        return Counts(total, total)

    @property
    def _kept(self) -> list[int]:
        """Bytes that autograd saves for one image: the image, and for each convolution its output,
        which the norm needs, and the output of the ReLU after it."""
        wide = self._width
        image = 3 * self.workload.image_size**2
        copy = 0 if wide == FULL else HALF * image
        outputs = (
            wide * layer.output * (1 if layer.kernel == 1 else 2)
            for layer in convolutions(self.workload)
        )
        return [FULL * image + copy, *outputs]

    @property
    def _width(self) -> int:
        """Bytes of a number in the layers."""
        if self.workload.precision == "fp32":
            return FULL
        return HALF

    @property
    def _state(self) -> State:
        layers = list(convolutions(self.workload))
        gradients = FULL * self.counts.total
        weights = gradients + 2 * FULL * sum(
            layer.fan_out for layer in layers
        )  # running statistics of norms
        if self.workload.optimizer == "sgd":
            optimizer = 0
        else:
            optimizer = 2 * gradients
        return State(
            weights,
            gradients,
            optimizer,
            buffers=gradients if self.workload.sharding == "ddp" else 0,
        )

    @cached_property
    def memory(self) -> Memory:
        work = self.workload
        state = self._state
        rows = self.workload.micro_batch_size
        base = state.weights + state.optimizer + state.buffers
        layers = list(convolutions(work))
        kept = self._kept
        if work.accumulation > 1:
            there = state.gradients
        else:
            there = 0
        alive = rows * sum(kept)
        moments = []
        for layer, own in zip(reversed(layers), reversed(kept), strict=False):
            fresh = FULL * layer.weights
            # The gradients of input and output, of the bypass, and of the weights beside earlier
            # ones.
            flight = 3 * self._width * rows * layer.output + (fresh if work.accumulation > 1 else 0)
            there = min(state.gradients, there + fresh)
            moments.append(Moment("backward", base, there, alive, temporary=flight))
            alive -= rows * own
        # The plain AdamW works on lists of tensors and holds the roots of all second moments at
        # once.
        if work.optimizer == "adamw_torch":
            roots = state.gradients
        else:
            roots = 0
        moments.append(Moment("step", base, state.gradients, 0, temporary=roots))
        # In evaluation, memory holds the images, a block's input, and the inputs and outputs of its
        # layers.
        evaluated = work.evaluation_batch_size * (kept[0] + 5 * self._width * layers[0].output)
        return at_peak(work, state, moments, base + evaluated)

    @property
    def steps(self) -> int | None:
        """Each epoch ends with a smaller step."""
        work = self.workload
        if work.rows is None:
            return None
        return max(1, math.ceil(math.ceil(work.rows / work.effective_batch_size) * work.epochs))

    @property
    def warmup_steps(self) -> int:
        """transformers' Trainer rounds up."""
        return math.ceil((self.steps or 0) * self.workload.warmup_ratio)

    def flops(self, rows: int, training: bool = True) -> float:
        """Two operations for each weight and output pixel, and for each of two gradients; images
        have no gradient."""
        once = [2 * layer.weights * layer.pixels**2 for layer in convolutions(self.workload)]
        return rows * (3 * sum(once) - once[0] if training else sum(once))

    def pass_seconds(self, gpu: catalog.Gpu, rows: int, training: bool = True) -> float:
        """One micro batch. Activations are written once and read twice or more, and backward moves
        as much again. With small images, the GPU waits for Python, which launches every layer's
        kernels."""
        compute = self.flops(rows, training) / (self.workload.rate(gpu) * CONVOLUTION_SHARE)
        moved = rows * sum(self._kept) * (6 if training else 2) + self.counts.total * FULL
        launching = (
            len(list(convolutions(self.workload))) * SECONDS_A_LAYER * (1 if training else 0.3)
        )
        seconds = max(
            compute + moved / (gpu.memory_gb_s * 1e9 * duration.BANDWIDTH_SHARE), launching
        )
        return seconds * constants.constants(gpu.name).slowness

    def time_on(self, gpu: catalog.Gpu) -> duration.Duration | None:
        work = self.workload
        state = self._state
        count = self.steps
        if count is None:
            return None
        world = work.machines.world_size

        def waiting(gbit_s: float) -> float:
            return (
                0.5
                * 2
                * (world - 1)
                / world
                * state.gradients
                / duration.slowest_link(work.machines, gpu, gbit_s)
            )

        update = (2 * state.optimizer + 3 * state.gradients) / (
            gpu.memory_gb_s * 1e9 * duration.BANDWIDTH_SHARE
        )
        own = self.pass_seconds(gpu, work.micro_batch_size) * work.accumulation
        batch_seconds = self.pass_seconds(gpu, work.evaluation_batch_size, training=False)
        held_out = (work.evaluation_rows or 0, work.test_rows)
        validation, test = (
            math.ceil(rows / world / work.evaluation_batch_size) * batch_seconds
            for rows in held_out
        )
        evaluations = work.times_in(work.evaluation_steps, count) + 1
        return duration.of_run(
            work,
            gpu,
            count,
            own + waiting(work.network.gbit_s) + update,
            waiting,
            evaluations=evaluations,
            evaluation_seconds=evaluations * validation + test,
            reading=0,
            # `checkpoint_latest.pth` has the weights again.
            checkpoint=2 * state.weights + state.optimizer,
            rows_a_step=work.effective_batch_size,
            tokens_a_step=0,
            flops=self.flops(work.micro_batch_size),
        )

    def fitting(self, recipe: Recipe, gpu: catalog.Gpu, budget: float) -> Iterator[Changes]:
        work = self.workload
        narrow = self.workload.width // 2

        def fits(other: Images) -> bool:
            return replace(self, workload=other).memory.total <= budget

        for rows, accumulation in splits(work, smaller=True):
            if fits(work.with_rows(rows, accumulation)):
                yield {
                    "train.micro_batch_size": rows,
                    "train.gradient_accumulation_steps": accumulation,
                }
                break
        if work.precision == "fp32" and gpu.bf16 and fits(replace(work, precision="bf16")):
            yield {"model.precision": "bf16"}
        if fits(replace(work, width=narrow)):
            yield {"model.width": narrow}

    def written(self) -> dict[str, int]:
        """Prepared pixels, a checkpoint (weights and optimizer), and three weight files, the latest
        with optimizer."""
        work = self.workload
        state = self._state
        images = (work.rows or 0) + (work.evaluation_rows or 0) + work.test_rows
        return {
            "prepared data": images * 3 * work.image_size**2,
            "checkpoint": state.weights + state.optimizer,
            "weights (latest, best, final)": 3 * state.weights + state.optimizer,
        }

    def beside(self) -> dict[str, int]:
        """Every process holds all images as bytes."""
        return {"images": self.stage.machines.gpus_per_node * self.written()["prepared data"]}

    def notes(self) -> Mapping[str, str]:
        work = self.workload
        pixels = f"micro batch {work.micro_batch_size} images of {work.image_size} × {work.image_size} pixels"
        return {"activations": f"{pixels}, {work.precision}", "optimizer": work.optimizer}
