"""Energy-based fine-tuning (EBFT, arXiv 2603.12248) by Axolotl 0.19.0: what its trainers lack here."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from axolotl.common.datasets import TrainDatasetMeta, load_datasets, load_preference_datasets
from axolotl.core.trainers.ebft.strided import AxolotlStridedEBFTTrainer
from axolotl.core.trainers.ebft.trainer import EBFTMixin
from axolotl.utils.dict import DictDefault
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode
from transformers import DataCollatorForSeq2Seq

UNTRAINED = -100


def strided(cfg: DictDefault) -> bool:
    """Whether continuations within rows are compared, instead of whole answers to prompts."""
    return bool(cfg.rl == "ebft" and cfg.ebft.mode == "strided")


def rows(cfg: DictDefault) -> TrainDatasetMeta:
    """The rows as the trainer reads them. Axolotl's own forms for it have fixed columns and no chat template, and fill
    every row with padding, in which continuations would start too. So these rows are those of the next token."""
    if strided(cfg):
        cfg.trainer_cls = f"{__name__}.StridedTrainer"
        return load_datasets(cfg=DictDefault({**cfg, "rl": None}))
    EBFTMixin._feature_matching_reward = features
    made = load_preference_datasets(cfg=cfg)
    for side in ("train_dataset", "eval_dataset"):
        if (there := getattr(made, side)) is not None:
            setattr(made, side, there.rename_column("answer", "ground_truth"))
    return made


_reward = EBFTMixin._feature_matching_reward


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


def start_of(labels: Sequence[int], context: int, prefix: int) -> int:
    """The place of a row's first continuation: behind its context, and its question with `prefix` tokens of the answer."""
    asked = next((place for place, label in enumerate(labels) if label != UNTRAINED), len(labels))
    return max(context, asked + prefix if asked else 0)


def has_room(row: Mapping[str, Sequence[int]], cfg: DictDefault) -> bool:
    """Whether a row of tokens is long enough for a continuation."""
    start = start_of(row["labels"], cfg.ebft.context_length, cfg.ebft.min_completion_prefix)
    return bool(start + cfg.ebft.generate_max_len <= len(row["labels"]))


class _OnProcessor(TorchFunctionMode):
    """Keeps weights on the processor: the trainer sends its copy of the model to the first GPU, whether there is one."""

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            args = [torch.device("cpu") if isinstance(one, torch.device) else one for one in args]
        return func(*args, **(kwargs or {}))


class StridedTrainer(AxolotlStridedEBFTTrainer):
    """The trainer of continuations, also without a GPU, with batches of rows of any length, and with evaluations, whose
    `eval_reward` is the mean of what continuations within held-out rows are worth."""

    def __init__(self, model: Any, args: Any, train_dataset: Any, **kwargs: Any) -> None:
        if args.gradient_checkpointing:
            # FlexAttention's masks fail without it (Axolotl 0.19.0, utils/schemas/validation.py), and then each layer
            # needs a gradient at its input, trained or not.
            args.gradient_checkpointing_kwargs = {"use_reentrant": True}
            model.enable_input_require_grads()
        if torch.cuda.is_available():
            super().__init__(model, args, train_dataset, **kwargs)
        else:
            with _OnProcessor():
                super().__init__(model, args, train_dataset, **kwargs)
            self._feature_device, self._feature_use_flex = torch.device("cpu"), False
            self.feature_network.config._attn_implementation = "eager"
        self.data_collator = DataCollatorForSeq2Seq(self.processing_class)
        self.worth: list[float] = []

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch, by Axolotl's own continuations, masks, rewards and baselines.

        Continuations are written side by side: token `step` of block `block` is the (step × blocks + block)-th behind
        the row. Axolotl's own loss (0.19.0) takes each token's probability from the token beside it, which belongs to
        another block, and its worth from yet another, so that nothing is learned. Beside an adapter it has no outputs
        for evaluations, and for rows without room no gradient."""
        tokens, labels = inputs["input_ids"], inputs["labels"]
        (rows, width), device = tokens.shape, tokens.device
        steps, stride, samples = self.ebft_generate_max_len, self.ebft_stride, self.ebft_n_samples
        least = (self.ebft_context_length, self.ebft_min_completion_prefix)
        start = max(start_of(row, *least) for row in labels.tolist())
        blocks = (width - steps - start) // stride + 1
        if blocks <= 0:
            loss = 0 * sum(weights.sum() for weights in model.parameters() if weights.requires_grad)
            return (loss, {"loss": loss}) if return_outputs else loss
        whole = self._generate_strided_blocks(model, tokens.repeat_interleave(samples, 0), blocks, anchor_offset=start)
        dtype, places = next(model.parameters()).dtype, torch.arange(blocks, device=device) * stride + start
        sizes = (whole.shape[1], width, steps, blocks, 1)  # of one row, as all are alike
        mask, positions = self._build_strided_mask(*sizes, device, dtype, anchor_offset=start)
        # Which token each one of a continuation, and each one of the data behind them, comes from.
        before = [places - 1, torch.arange((steps - 1) * blocks, device=device) + width]
        written, of_data = whole[:, width:], labels[:, 1:].repeat_interleave(samples, 0)
        if self.ebft_ce_coef:
            before.append(torch.arange(width - 1, device=device))
            written = torch.cat([written, of_data], 1)
        read = {"attention_mask": mask, "position_ids": positions, "logits_to_keep": torch.cat(before)}
        each = []
        for row, words in zip(whole, written, strict=True):  # several at once would need as many times the memory
            logits = model(row[None], **read).logits[0].float()
            each.append(cross_entropy(logits, words, reduction="none", ignore_index=UNTRAINED))
        losses = torch.stack(each)
        with torch.no_grad():
            every = (whole, mask, positions.expand(len(whole), -1), tokens, blocks, rows, samples)
            worth = self._compute_block_rewards(*every, anchor_offset=start)
            ends = inputs["attention_mask"].sum(1, keepdim=True)
            real = (places + steps <= ends).repeat_interleave(samples, 0).float()  # not in the padding
            better = self._compute_advantages(worth, rows, samples, blocks).float() * real
        self.worth.append(float((worth.flatten(0, 1) * real).sum() / real.sum().clamp(min=1)))
        of_blocks = losses[:, : steps * blocks] * better.repeat(1, steps)
        loss = self.ebft_rl_coef * of_blocks.sum() / (steps * real.sum()).clamp(min=1)
        if self.ebft_ce_coef:
            trained = (of_data != UNTRAINED).sum().clamp(min=1)
            loss = loss + self.ebft_ce_coef * losses[:, steps * blocks :].sum() / trained
        return (loss, {"loss": loss}) if return_outputs else loss

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs and self.worth:
            logs["reward"] = sum(self.worth) / len(self.worth)
            logs |= {f"ebft/{name}": getattr(self, f"_last_{name}") for name in ("alignment", "diversity", "cfm")}
            self.worth.clear()
        super().log(logs, *args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        trained, whitened = self.worth, self.args.ebft_use_whitening
        self.worth, self.ebft_use_whitening = [], False  # as in `features`
        output = super().evaluation_loop(*args, **kwargs)
        mean = torch.tensor([sum(self.worth), len(self.worth)], device=self.args.device)
        total, count = self.accelerator.reduce(mean).tolist()
        output.metrics["eval_reward"] = total / max(1, count)
        self.worth, self.ebft_use_whitening = trained, whitened
        return output
