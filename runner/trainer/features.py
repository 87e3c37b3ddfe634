"""Energy-based fine-tuning (EBFT, arXiv 2603.12248): what Axolotl 0.19.0 lacks for it."""

from typing import Any

from axolotl.common.datasets import TrainDatasetMeta, load_preference_datasets
from axolotl.core.trainers.ebft.trainer import EBFTMixin
from axolotl.utils.dict import DictDefault

_reward = EBFTMixin._feature_matching_reward


def rows(cfg: DictDefault) -> TrainDatasetMeta:
    """The prompts and reference answers as its trainer reads them, which compares by `features`."""
    EBFTMixin._feature_matching_reward = features
    made = load_preference_datasets(cfg=cfg)
    for side in ("train_dataset", "eval_dataset"):
        if (there := getattr(made, side)) is not None:
            setattr(made, side, there.rename_column("answer", "ground_truth"))
    return made


def features(trainer: Any, *texts: Any, **columns: Any) -> list[float]:
    """What answers are worth, by this name in logs; in evaluations without whitening, after which the mean hardly differs
    from model to model."""
    args = trainer.args
    whitened = args.ebft_use_whitening
    args.ebft_use_whitening = whitened and trainer.model.training
    try:
        worth: list[float] = _reward(trainer, *texts, **columns)
        return worth
    finally:
        args.ebft_use_whitening = whitened
