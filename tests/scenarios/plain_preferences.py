"""TRL's own trainer in a plain script, on the rows, the twin and the numbers of a rehearsal.

    python -m tests.scenarios.plain_preferences RUN

Prints JSON: the losses of each step, here and in the rehearsal.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    set_seed,
)
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer


def losses(steps: Any) -> list[float]:
    return [entry["loss"] for entry in steps if "loss" in entry]


def main(run: Path) -> None:
    told = yaml.safe_load((run / "config/axolotl.yaml").read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(run / "base_model")
    rows = load_dataset("parquet", data_files=str(run / "data/train.parquet"), split="train")

    rl = told.get("rl", "reward")

    def texts(row: dict[str, Any]) -> dict[str, Any]:
        if rl == "reward":
            # As TRL itself writes it: the score is that of the last token, which in ChatML is a
            # line break.
            sides = ("chosen", "rejected")
            return {
                side: [*row["messages"], {"role": "assistant", "content": row[side]}]
                for side in sides
            }
        prompt = tokenizer.apply_chat_template(
            row["messages"], tokenize=False, add_generation_prompt=True
        )

        def answer(message: Any) -> str:
            turn = (
                message if isinstance(message, dict) else {"role": "assistant", "content": message}
            )
            return tokenizer.apply_chat_template([*row["messages"], turn], tokenize=False)[
                len(prompt) :
            ].rstrip()

        if "label" in row:
            return {
                "prompt": prompt,
                "completion": answer(row["completion"]),
                "label": row["label"],
            }
        return {
            "prompt": prompt,
            "chosen": answer(row["chosen"]),
            "rejected": answer(row["rejected"]),
        }

    # Axolotl shuffles rows once, before the Trainer does.
    rows = rows.map(texts, remove_columns=rows.column_names).shuffle(seed=told["seed"])
    batch = told["micro_batch_size"] * told["gradient_accumulation_steps"]
    steps = len(rows) * told["num_epochs"] // batch
    warmup = int(0.03 * steps)
    numbers = {
        "per_device_train_batch_size": told["micro_batch_size"],
        "gradient_accumulation_steps": told["gradient_accumulation_steps"],
        "num_train_epochs": told["num_epochs"],
        "warmup_steps": 2 if warmup == 1 else warmup,  # Axolotl makes two of one
        "lr_scheduler_type": told["lr_scheduler"],
        "optim": told["optimizer"],
        "max_length": told["sequence_len"],
        **{name: told[name] for name in ("learning_rate", "weight_decay", "max_grad_norm", "seed")},
        **{
            "output_dir": str(run / "plain"),
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
        },
        **{"bf16": False, "use_cpu": True, "gradient_checkpointing": False, "disable_tqdm": True},
    }
    trainer_class, config = {
        **{"orpo": (ORPOTrainer, ORPOConfig), "simpo": (CPOTrainer, CPOConfig)},
        **{"dpo": (DPOTrainer, DPOConfig), "kto": (KTOTrainer, KTOConfig)},
        "reward": (RewardTrainer, RewardConfig),
    }[rl]
    kind, own = AutoModelForCausalLM, {}
    if rl == "reward":
        kind, own = AutoModelForSequenceClassification, {"num_labels": 1}
        # The layer of the score is new. Its first numbers are drawn while the model is loaded, as
        # in the rehearsal.
        set_seed(told["seed"])
    else:
        numbers["beta"] = told["rl_beta"]
    if rl == "simpo":
        numbers |= {"loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": told["simpo_gamma"]}
    if rl == "kto":
        numbers |= {"desirable_weight": 1.0, "undesirable_weight": told["kto_undesirable_weight"]}
    model = kind.from_pretrained(run / "base_model", attn_implementation="sdpa", **own)
    trainer = trainer_class(
        model=model, args=config(**numbers), train_dataset=rows, processing_class=tokenizer
    )
    trainer.train()
    (state, *_) = sorted(
        (run / "checkpoints").glob("checkpoint-*/trainer_state.json"),
        key=lambda one: -len(str(one)),
    )
    ours = json.loads(state.read_text("utf-8"))["log_history"]
    print(json.dumps({"plain": losses(trainer.state.log_history), "rehearsed": losses(ours)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
