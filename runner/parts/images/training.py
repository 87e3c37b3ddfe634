"""Training on images with transformers' Trainer, from `images.yaml` to the results of the run."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, set_seed

from runner import scenarios
from runner.parts.images import network
from runner.parts.images.data import SPLITS, Colours, ImageReport
from runner.parts.proof import judging
from runner.tools import child_process
from runner.tools.problem import Stop
from runner.tools.run_files import BEST_IMAGES, FINAL_IMAGES, TENSORBOARD
from runner.trainer import results, stopping
from runner.trainer.records import ACCURACY
from runner.trainer.settings import RunSettings


def train(config: dict[str, Any], prepare_first: bool = False) -> None:
    """Trains, or continues from the last checkpoint, and writes the results; the summary last.
    Raises Stop if the planned GPUs or the prepared images are missing."""
    settings = RunSettings.read(config["recipe_runner"])
    if settings.backend == "nccl" and not torch.cuda.is_available():
        raise Stop("The plan needs GPUs, but this machine has none for training.")
    trackers = stopping.trackers(config, settings)
    args = arguments(config["trainer"], settings)
    folder = Path(config["data"]["folder"])
    if prepare_first:
        with args.main_process_first(local=False):
            if args.process_index == 0:
                for line in scenarios.prepare(config["prepare"], folder).lines():
                    print(line)
    report = ImageReport.read(folder)
    if report is None:
        raise Stop(f"`{folder}` has no prepared images.", "`recipe prepare` creates them.")
    proof = judging.images({split: folder / f"{split}.parquet" for split in SPLITS}, report.shared)
    if args.process_index == 0:
        proof.write(Path(settings.run_dir))
        child_process.tell("proof", folder=settings.run_dir)
    if proof.faults:
        stopping.Watchdog(settings).stop(proof.complaint)
    set_seed(args.seed)
    shape = config["model"]
    model = network.build(shape["architecture"], shape["width"], shape["classes"])
    look = {
        "mean": config["data"]["mean"] or report.mean,
        "std": config["data"]["std"] or report.std,
    }
    pixels = (shape["image_size"], look["mean"], look["std"])
    drawn = {
        "padding": config["data"]["random_crop_padding"],
        "flip": config["data"]["random_flip"],
        "seed": args.seed,
    }
    training = ImageDataset(folder / "train.parquet", *pixels, **drawn)
    validation, test = (ImageDataset(folder / f"{split}.parquet", *pixels) for split in SPLITS[1:])
    history = results.History(settings)
    facts = {"shape": shape, "image_size": shape["image_size"], "classes": report.classes, **look}
    weights = network.Weights(Path(settings.run_dir), facts | {"fingerprint": settings.fingerprint})
    resume = stopping.last_good(Path(args.output_dir))
    # A continued run has the evaluation before training in its history already.
    args.eval_on_start = resume is None
    trainer = Trainer(
        model=model,
        args=args,
        data_collator=lambda batch: batch,  # `ImageDataset` returns whole batches
        train_dataset=training,
        eval_dataset=validation,
        compute_metrics=lambda seen: {
            "accuracy": float((seen.predictions == seen.label_ids).mean())
        },
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
        # A loss of exactly 0 is possible here: the Trainer rounds it, and small sets can be
        # memorised.
        callbacks=stopping.callbacks(
            settings,
            history,
            of_words=False,
            measure=ACCURACY,
            engine_callbacks=[weights, *trackers],
        ),
    )
    stopping.no_step_more(trainer)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    finish(trainer, settings, history, weights, test)
    # A process that leaves while its group is open can end the others.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


def arguments(trainer: dict[str, Any], settings: RunSettings) -> TrainingArguments:
    """The Trainer's arguments. Two have other names in transformers 4.57 than in 5.13 (stock
    images)."""
    known = {field.name for field in dataclasses.fields(TrainingArguments)}
    trainer = dict(trainer)
    if "warmup_ratio" not in known:
        # In these versions, a number below 1 is a share of the steps.
        trainer["warmup_steps"] = min(trainer.pop("warmup_ratio"), 0.9999)
    if "logging_dir" in known:
        trainer["logging_dir"] = os.environ.get(
            "TENSORBOARD_LOGGING_DIR", f"{settings.run_dir}/{TENSORBOARD}"
        )
    cuda = torch.cuda.is_available()
    return TrainingArguments(
        **trainer,
        use_cpu=not cuda,
        ddp_backend=settings.backend if settings.world_size > 1 else None,
        dataloader_pin_memory=cuda,
        **results.TABLES["arguments"],
        remove_unused_columns=False,
    )


def finish(
    trainer: Trainer,
    settings: RunSettings,
    history: results.History,
    weights: network.Weights,
    test: ImageDataset,
) -> None:
    """Writes the final weights, measures the best ones on the test images once, and writes the
    summary."""
    run_dir = Path(settings.run_dir)
    main = trainer.is_world_process_zero()
    if main:
        network.save(run_dir / FINAL_IMAGES, weights.content(trainer.model, trainer.state))
    # Only the first process writes the best weights; all processes read them.
    trainer.accelerator.wait_for_everyone()
    best = network.read(run_dir / BEST_IMAGES)
    measured: dict[str, float] = {}
    if len(test):
        trainer.model.load_state_dict(best["model"])
        measured = trainer.predict(test, metric_key_prefix="test").metrics
    if not main:
        return
    results.keep_log_and_configs(run_dir, Path(trainer.args.output_dir), Path(settings.recipe_file))
    dataclasses.replace(
        results.summary(settings, history, {}, engine="images"),
        model=weights.facts["shape"],
        best_accuracy=best["accuracy"],
        best_epoch=best["epoch"],
        test_accuracy=measured.get("test_accuracy"),
        test_loss=measured.get("test_loss"),
    ).write(run_dir)


class ImageDataset(Dataset):
    """The images of one Parquet file, in memory as bytes: 50,000 of 32×32 take 154 MB. padding,
    flip: for training only, drawn from the seed and the batch's image numbers, so that a resumed
    run draws the same for the same batch. The process's random state is not reliable for this,
    because batches are made before the step that is saved."""

    def __init__(
        self,
        file: Path,
        size: int,
        mean: Colours,
        std: Colours,
        *,
        padding: int = 0,
        flip: bool = False,
        seed: int = 0,
    ) -> None:
        self.pixels, self.labels = read(file, size)
        self.mean, self.std = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
        self.padding = padding
        self.flip = flip
        self.seed = seed

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: list[int]) -> dict[str, torch.Tensor]:
        """A batch at once: `pixel_values` (batch, 3, size, size) as floats, `labels` (batch,)."""
        pixels = self.pixels[indices]
        # 63 bits from these indices in their order.
        told = hashlib.sha256(np.asarray([self.seed, *indices], np.int64).tobytes()).digest()
        draw = torch.Generator().manual_seed(int.from_bytes(told[:8], "little") >> 1)
        if self.padding:
            pixels = random_crop(pixels, self.padding, draw)
        if self.flip:
            pixels = random_flip(pixels, draw)
        return {
            "pixel_values": normalise(pixels, self.mean, self.std),
            "labels": self.labels[indices],
        }


def read(file: Path, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels (N, 3, size, size) as bytes and labels (N,) of a prepared Parquet file."""
    table = pq.read_table(file)
    flat = np.frombuffer(b"".join(table["image"].to_pylist()), np.uint8)
    pixels = (
        torch.from_numpy(flat.reshape(-1, size, size, 3).copy()).permute(0, 3, 1, 2).contiguous()
    )
    return pixels, torch.tensor(table["label"].to_pylist(), dtype=torch.long)


def random_crop(
    pixels: torch.Tensor, padding: int, draw: torch.Generator | None = None
) -> torch.Tensor:
    """Each image (batch, 3, height, width) with `padding` black pixels around it, cropped to its
    size at random."""
    count, _, height, width = pixels.shape
    top, left = torch.randint(0, 2 * padding + 1, (2, count), generator=draw)
    windows = (
        torch.nn.functional.pad(pixels, (padding,) * 4).unfold(2, height, 1).unfold(3, width, 1)
    )
    return windows[torch.arange(count), :, top, left].contiguous()


def random_flip(pixels: torch.Tensor, draw: torch.Generator | None = None) -> torch.Tensor:
    """Mirrors half of the images, chosen at random, left to right."""
    chosen = torch.rand(len(pixels), generator=draw) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), pixels.flip(-1), pixels)


def normalise(pixels: torch.Tensor, mean: torch.Tensor, std: torch.Tensor) -> torch.Tensor:
    """Bytes 0 to 255 as floats with about mean 0 and standard deviation 1."""
    return (pixels.float() / 255 - mean) / std
