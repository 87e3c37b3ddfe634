"""TRL's own GRPO trainer in a plain script, on the prompts, the twin and the numbers of a
rehearsal.

    python -m tests.parts.rewards.plain_answers RUN

Prints JSON: the loss and the mean reward of each step, and the mean rewards on held-out prompts,
here and in the rehearsal.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from runner.parts.rewards import scoring


def of(history: Any, name: str) -> list[float]:
    return [entry[name] for entry in history if name in entry]


def rewards(rules: dict[str, Any]) -> list[Any]:
    def made(name: str, score: scoring.Score) -> Any:
        def reward(prompts: Any, completions: Any, answer: Any, **other: Any) -> list[float]:
            rows = zip(prompts, completions, answer, strict=True)
            return [
                score(prompt[-1]["content"], said[-1]["content"], right)
                for prompt, said, right in rows
            ]

        reward.__name__ = name
        return reward

    return [made(name, score) for name, score in scoring.scores(rules).items()]


def main(run: Path) -> None:
    told = yaml.safe_load((run / "config/axolotl.yaml").read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(run / "base_model")
    files = {side: str(run / f"data/{side}.parquet") for side in ("train", "validation")}
    rows = load_dataset("parquet", data_files=files)
    batch = told["micro_batch_size"] * told["gradient_accumulation_steps"]
    steps = len(rows["train"]) * told["trl"]["num_generations"] // batch * told["num_epochs"]
    config = GRPOConfig(
        per_device_train_batch_size=told["micro_batch_size"],
        per_device_eval_batch_size=told["eval_batch_size"],
        gradient_accumulation_steps=told["gradient_accumulation_steps"],
        num_train_epochs=told["num_epochs"],
        # Axolotl makes two steps of one (0.19.0, _configure_warmup_and_logging).
        warmup_steps=2 if (rising := int(0.03 * steps)) == 1 else rising,
        lr_scheduler_type=told["lr_scheduler"],
        optim=told["optimizer"],
        beta=told["rl_beta"],
        num_generations_eval=1,
        eval_strategy="steps",
        eval_on_start=True,
        **{
            name: told[name]
            for name in ("learning_rate", "weight_decay", "max_grad_norm", "seed", "eval_steps")
        },
        **{
            name: told["trl"][name]
            for name in ("num_generations", "generation_batch_size", "max_completion_length")
        },
        **{name: told["trl"][name] for name in ("temperature", "reward_weights")},
        **{
            "output_dir": str(run / "plain"),
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
        },
        **{"bf16": False, "use_cpu": True, "gradient_checkpointing": False, "disable_tqdm": True},
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(run / "base_model", attn_implementation="sdpa"),
        reward_funcs=rewards(told["recipe_runner"]["rewards"]),
        args=config,
        # Axolotl shuffles rows once, before the Trainer does.
        train_dataset=rows["train"].shuffle(seed=told["seed"]),
        eval_dataset=rows["validation"].shuffle(seed=told["seed"]),
        processing_class=tokenizer,
    )
    trainer.train()
    (state, *_) = sorted(
        (run / "checkpoints").glob("checkpoint-*/trainer_state.json"),
        key=lambda one: -len(str(one)),
    )
    both = {
        "plain": trainer.state.log_history,
        "rehearsed": json.loads(state.read_text("utf-8"))["log_history"],
    }
    names = ("loss", "reward", "eval_reward")
    print(
        json.dumps(
            {side: {name: of(history, name) for name in names} for side, history in both.items()}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
