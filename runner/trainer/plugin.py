"""The runner's plugin for Axolotl, for what Axolotl has no settings for. Every training process
loads it."""

import inspect
import os
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from axolotl import train as training
from axolotl.common.datasets import TrainDatasetMeta, load_preference_datasets
from axolotl.integrations.base import BasePlugin
from axolotl.loaders import load_processor
from axolotl.prompt_strategies.bradley_terry.chat_template import BTChatTemplateStrategy
from axolotl.prompt_strategies.chat_template import ChatTemplateStrategy
from axolotl.prompt_strategies.dpo import chat_template as dpo
from axolotl.prompt_strategies.kto import user_defined as kto
from axolotl.prompt_strategies.orpo import chat_template as orpo
from axolotl.utils import trainer
from axolotl.utils.dict import DictDefault
from pydantic import BaseModel
from torch import Tensor
from transformers import Trainer, TrainerCallback, set_seed
from transformers.trainer import unwrap_peft_model

from runner import parts
from runner.catalog import table
from runner.tools import child_process, process
from runner.tools.run_files import PROCESSOR
from runner.tools.text import TextTokenizer
from runner.trainer import records, results, seeing, stopping
from runner.trainer.plugin_settings import run_settings
from runner.trainer.settings import RunSettings


class RecipePlugin(BasePlugin):
    """Keeps the run to its plan, and writes its history and results."""

    def __init__(self) -> None:
        super().__init__()
        child_process.watch_parent()
        self.history: results.History  # set when the trainer exists
        self.resumed_from = ""
        self.seeing_before: dict[str, int] = {}
        self.trackers: list[TrainerCallback] = []

    def register(self, cfg: dict[str, object]) -> None:
        process.without_gpu_kernels()
        # With several processes Axolotl 0.19.0 asks the driver about links between GPUs. The CUDA
        # build of torch, which pip installs on Linux, raises if there is no driver.
        if not torch.cuda.is_available():
            trainer.check_cuda_p2p_ib_support = lambda: True

    def get_input_args(self) -> str:
        return f"{__name__}.RecipeRunnerArgs"

    def load_datasets(self, cfg: DictDefault, preprocess: bool = False) -> TrainDatasetMeta | None:
        # Without an accelerator Axolotl 0.19.0 still asks for device LOCAL_RANK when there are
        # several processes (`normalize_config`), and this is the last hook before the model is
        # loaded that comes after it.
        if not torch.cuda.is_available():
            cfg.device_map = None
            if cfg.sample_packing:
                # Packing looks for other processes before the Trainer does, and accelerate 1.13.0
                # would join them without naming a backend.
                PartialState(cpu=True)
        settings = run_settings(cfg)
        training.load_processor = processor_of
        self.trackers = stopping.trackers(cfg, settings)
        if settings.warmup_ratio is not None:
            cfg.warmup_ratio = settings.warmup_ratio  # after Axolotl's own rules
        if cfg.rl == "orpo":
            # Axolotl's reader for it has fixed columns and no system prompt; the one for DPO reads
            # the same rows.
            orpo.default = dpo.default
        if cfg.rl == "kto":
            # Axolotl's reader for it has two fixed templates, not the model's.
            kto.default = labelled
        if cfg.reward_model:
            BTChatTemplateStrategy._tokenize_single_prompt = scored
        if cfg.rl == "simpo":
            # Axolotl 0.19.0 loads a second model, which this trainer never uses.
            training.setup_reference_model = lambda *args, **kwargs: None
        # Axolotl 0.19.0 stores weights in the precision of the computation, and bf16 loses small
        # steps. It reads this setting before `pre_model_load`. DeepSpeed stores fp32 weights
        # itself. Frozen weights need no fp32; only FSDP shards weights of one precision.
        if (
            settings.master_weights == "fp32"
            and not cfg.deepspeed
            and (cfg.fsdp_config or not cfg.unfrozen_parameters)
        ):
            cfg.torch_dtype = torch.float32
        # Without FlashAttention Axolotl 0.19.0 refuses this, because a mask costs memory. It is
        # correct nevertheless: transformers makes the mask from the positions, which restart with
        # each row.
        if settings.flatten:
            cfg.batch_flattening = True
        if settings.proof.attention:
            # After Axolotl's own rules, which allow joined rows for some attentions only.
            cfg.attn_implementation = settings.proof.attention
        if not preprocess:
            self.resumed_from = stopping.choose(cfg, settings, stopping.Watchdog(settings).stop)
        if cfg.rl == "ebft":
            return by_features(cfg)
        if settings.blocks is None:
            return None
        parts.require("pretrain")
        from runner.parts.pretrain import training as pretraining

        checkpoint = cfg.resume_from_checkpoint
        if checkpoint:
            reached = stopping.step_of(Path(checkpoint)) or 0
        else:
            reached = 0
        train, validation, cfg.max_steps = pretraining.load(
            settings.blocks, settings.effective_batch_size, reached
        )
        return TrainDatasetMeta(train, validation, cfg.max_steps)

    def pre_model_load(self, cfg: DictDefault) -> None:
        # Axolotl 0.19.0 leaves seeding to the Trainer, after the model is made: an adapter's first
        # weights would be random, and a run that restarts before its first checkpoint would differ.
        set_seed(cfg.seed)

    def post_model_build(self, cfg: DictDefault, model: torch.nn.Module) -> None:
        stop_convolutions(model)
        if seeing.sees(model):
            seeing.compute_loss_as_for_text(model, bool(cfg.liger_fused_linear_cross_entropy))

    def get_training_args(self, cfg: DictDefault) -> dict[str, Any]:
        settings = run_settings(cfg)
        # A resumed run has its first evaluation in its history; only a time limit needs to time one
        # again.
        checkpoint = cfg.resume_from_checkpoint and Path(cfg.resume_from_checkpoint)
        is_own_run = checkpoint and checkpoint.parent == Path(cfg.output_dir)
        return {
            **(
                {"eval_on_start": False}
                if is_own_run and settings.time_limit_seconds is None
                else {}
            ),
            # Axolotl 0.19.0 honours its own setting only when saving and evaluating by steps.
            "load_best_model_at_end": bool(cfg.load_best_model_at_end),
            **results.TABLES["arguments"],
            # Joined rows have no padding and no mask. Without a mask, every token that also serves
            # as padding, such as the end of a turn, would count as padding.
            "include_num_input_tokens_seen": "all" if cfg.batch_flattening else "non_padding",
            # Otherwise transformers 5.16.1 asks for a GPU that computes in bf16.
            "use_cpu": not torch.cuda.is_available(),
            # Axolotl has no setting for it
            "dataloader_persistent_workers": settings.persistent_workers,
            # One answer for each held-out prompt is enough: rewards are averaged over all of them.
            **({"num_generations_eval": 1} if settings.rewards else {}),
        }

    def post_trainer_create(self, cfg: DictDefault, trainer: Trainer) -> None:
        settings = run_settings(cfg)
        raise_trained_weights(cfg, settings, trainer)
        if not cfg.rl and not cfg.reward_model:
            weigh_by_tokens(trainer)
        if not torch.cuda.is_available():
            # Some optimizers compile their step, which takes longer here than all steps.
            torch.compiler.set_stance("force_eager")
            if cfg.load_in_4bit:
                keep_gradients(trainer.model)
        stopping.no_step_more(trainer)
        if parts.has("proof"):
            from runner.parts.proof import prove

            proof = prove.prove(cfg, trainer, settings)
            if proof.complaint:
                stopping.Watchdog(settings).stop(proof.complaint)
        if settings.proof.only:
            sys.exit(0)
        # What is split afterwards has other parts then.
        if not cfg.fsdp_config and not cfg.deepspeed:
            self.seeing_before = seeing.checksums(trainer.model)
        if int(os.environ.get("RANK", "0")) == 0:
            held_out = trainer.eval_dataset
            if cfg.rl or cfg.reward_model:
                held_out = None
            records.keep_held_out(held_out, Path(settings.run_dir))
        else:
            # It raises KeyError 'Active (gib)' on ranks other than 0 (Axolotl 0.19.0).
            trainer.create_model_card = lambda *args, **kwargs: None

    def add_callbacks_post_trainer(self, cfg: DictDefault, trainer: Trainer) -> list[Any]:
        settings = run_settings(cfg)
        self.history = results.History(settings)
        of_words = not cfg.rl and not cfg.reward_model
        if settings.rewards or cfg.rl == "ebft":
            measure = records.REWARD
        else:
            measure = records.LOSS
        return stopping.callbacks(
            settings,
            self.history,
            of_words=of_words,
            measure=measure,
            resumed_from=self.resumed_from,
            engine_callbacks=self.trackers,
        )

    def post_train(self, cfg: DictDefault, model: torch.nn.Module) -> None:
        before = self.seeing_before
        self.seeing_before = {}  # Axolotl 0.19.0 calls this again after saving
        after = seeing.checksums(model)
        changed = [name for name in before if after.get(name) != before[name]]
        if changed:
            stopping.Watchdog(run_settings(cfg)).stop(
                f"Training on text has changed parts of the model that read images or sound, such as `{changed[0]}`.",
                "Remove what reaches them: lines under `advanced.axolotl`, or plugins.",
            )

    def post_train_unload(self, cfg: DictDefault) -> None:
        if int(os.environ.get("RANK", "0")) != 0:
            return
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        results.finish(run_settings(cfg), self.history, cfg.to_dict())


def processor_of(cfg: DictDefault, tokenizer: TextTokenizer) -> Any:
    """What prepares images for a model that also sees, which Axolotl 0.19.0 loads for rows of text
    too, and saves beside the model; None for a folder without it, such as a twin's."""
    folder = Path(cfg.processor_config)
    if folder.is_dir() and not any((folder / name).is_file() for name in PROCESSOR):
        return None
    return load_processor(cfg, tokenizer)


def labelled(cfg: DictDefault, dataset_idx: int = 0) -> Any:
    """Reads rows with one labelled answer, by Axolotl's reader for DPO, which takes a prompt and
    two answers."""
    read, _ = dpo.default(cfg, dataset_idx)

    def read_one(
        sample: dict[str, object], tokenizer: TextTokenizer | None = None
    ) -> dict[str, Any]:
        answer = sample["completion"]
        two_answers = read(
            {"messages": sample["messages"], "chosen": answer, "rejected": answer},
            tokenizer=tokenizer,
        )
        return {
            "prompt": two_answers["prompt"],
            "completion": two_answers["chosen"],
            "label": sample["label"],
        }

    return read_one, {"remove_columns": "__all__"}


def scored(strategy: ChatTemplateStrategy, row: dict[str, Any]) -> dict[str, Any]:
    """The tokens of a prompt with each of two answers, at most `max_length`. Axolotl's own reader
    has no earlier turns."""
    columns = {}
    for side in ("chosen", "rejected"):
        messages = [*row["messages"], {"role": "assistant", "content": row[side]}]
        tokens = ChatTemplateStrategy._tokenize_single_prompt(strategy, {"messages": messages})
        columns[f"{side}_ids"] = tokens["input_ids"][: strategy.prompter.max_length]
    return columns


def by_features(cfg: DictDefault) -> TrainDatasetMeta:
    """The prompts and reference answers as the trainer of energy-based fine-tuning (EBFT, arXiv
    2603.12248) reads them, which compares by `features`: what Axolotl 0.19.0 lacks for it."""
    from axolotl.core.trainers.ebft.trainer import EBFTMixin  # its trainers take 4 seconds

    reward = EBFTMixin._feature_matching_reward

    def features(trainer: Trainer, *texts: object, **columns: object) -> list[float]:
        """What answers are worth, by this name in logs; in evaluations without whitening, after
        which the mean hardly differs from model to model."""
        args = trainer.args
        whitened = args.ebft_use_whitening
        args.ebft_use_whitening = whitened and trainer.model.training
        try:
            worth: list[float] = reward(trainer, *texts, **columns)
            return worth
        finally:
            args.ebft_use_whitening = whitened

    EBFTMixin._feature_matching_reward = features
    datasets = load_preference_datasets(cfg=cfg)
    for side in ("train_dataset", "eval_dataset"):
        dataset = getattr(datasets, side)
        if dataset is not None:
            setattr(datasets, side, dataset.rename_column("answer", "ground_truth"))
    return datasets


def raise_trained_weights(cfg: DictDefault, settings: RunSettings, trainer: Trainer) -> None:
    """Keeps trained weights in fp32, if the recipe says so. Axolotl 0.19.0 freezes weights after
    every earlier hook, and the optimizer is created after this one."""
    # Beside an adapter, PEFT trains a copy of a reward model's last layer in the precision of the
    # base model.
    scores = cfg.reward_model and cfg.adapter and not cfg.fsdp_config
    if cfg.deepspeed or (settings.master_weights != "fp32" and not scores):
        return
    for weights in trainer.model.parameters():
        if weights.requires_grad:
            weights.data = weights.data.float()


def weigh_by_tokens(trainer: Trainer) -> None:
    """Weighs each micro batch by its tokens, by transformers' own rule (5.16.1). Axolotl 0.19.0
    looks for a parameter `num_items_in_batch` of the inner model and never finds it. Each micro
    batch would then have the same weight, so the loss would depend on accumulation."""
    model = unwrap_peft_model(trainer.accelerator.unwrap_model(trainer.model))
    parameters = inspect.signature(model.forward).parameters.values()
    takes_others = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    trainer.model_accepts_loss_kwargs = bool(getattr(model, "accepts_loss_kwargs", takes_others))


def stop_convolutions(model: torch.nn.Module) -> None:
    """Keeps convolutions over tokens (LFM2's) within a row of joined ones: neither Axolotl 0.19.0
    nor transformers 5.16.1 tells them where a row begins. Axolotl refuses to train with their
    kernel for GPUs, so this one replaces no faster one."""
    if not table("families").get(model.config.model_type, {}).get("convolutions"):
        return
    home: Any = sys.modules[type(model).__module__]
    plain = home.causal_conv1d_fn

    def with_places(
        _: object, arguments: tuple[object, ...], keywords: dict[str, object]
    ) -> tuple[Any, dict[str, Any]]:
        return arguments, {**keywords, "seq_idx": keywords.get("position_ids")}

    def within_rows(
        states: Tensor, weight: Tensor, bias: Tensor | None = None, seq_idx: Tensor | None = None
    ) -> Tensor:
        # states, output: (batch, channels, tokens). weight: (channels, taps). seq_idx: each token's
        # place in its row.
        output: Tensor = plain(states, weight, bias)
        # Generation may put the states of earlier tokens before them.
        if seq_idx is None or seq_idx.shape[-1] != states.shape[-1]:
            return output
        taps = weight.shape[-1]
        places = seq_idx.expand(len(states), -1)
        row, token = (places < taps - 1).nonzero(as_tuple=True)
        first_tokens = torch.zeros_like(output[row, :, token])
        if bias is not None:
            first_tokens = first_tokens + bias
        for back in range(taps):
            in_row = (places[row, token] >= back)[:, None]
            earlier_states = states[row, :, (token - back).clamp(0)]
            first_tokens = first_tokens + in_row * earlier_states * weight[:, -1 - back]
        output[row, :, token] = first_tokens.to(output.dtype)
        return output

    home.causal_conv1d_fn = within_rows
    model.base_model.register_forward_pre_hook(with_places, with_kwargs=True)


def keep_gradients(model: torch.nn.Module) -> None:
    """Stops bitsandbytes 0.50.2 from packing 4-bit weights for AVX-512 when a model is evaluated on
    a CPU: the product with packed weights has no gradient, so training after the first evaluation
    would change almost nothing."""
    for layer in model.modules():
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False


class RecipeRunnerArgs(BaseModel):
    """The key that the plugin adds to Axolotl's schema."""

    recipe_runner: RunSettings
