"""Plants one fault in a trainer that is otherwise as Axolotl has built it.

`python -m tests.parts.proof.planting FAULT train CONFIG …` is `axolotl train CONFIG …` with that
fault in it. `python -m tests.parts.proof.planting each CONFIG` prints for each of them, and for
none, what the proof says, as JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

UNTRAINED = -100


def end_untrained(cfg: Any, trainer: Any) -> None:
    """A collator that takes every end of text for padding, as those do that know a padding token
    alone."""
    collate, end = trainer.data_collator, trainer.processing_class.eos_token_id

    def collator(rows, **options):
        batch = collate(rows, **options)
        batch["labels"][batch["input_ids"] == end] = UNTRAINED
        return batch

    trainer.data_collator = collator


def padding_trained(cfg: Any, trainer: Any) -> None:
    """Padding is the end of text, and is trained like it."""
    collate, end = trainer.data_collator, trainer.processing_class.eos_token_id

    def collator(rows, **options):
        batch = collate(rows, **options)
        padding = batch["attention_mask"] == 0
        batch["input_ids"][padding] = batch["labels"][padding] = end
        return batch

    trainer.data_collator = collator


def rows_joined(cfg: Any, trainer: Any) -> None:
    """Rows behind each other, which their positions keep apart; no fault."""
    from transformers import DataCollatorWithFlattening

    trainer.data_collator = DataCollatorWithFlattening()


def rows_mixed(cfg: Any, trainer: Any) -> None:
    """Rows behind each other, with positions that go on from one to the next."""
    from transformers import DataCollatorWithFlattening

    trainer.data_collator = DataCollatorWithFlattening(return_position_ids=False)


def no_generation_prompt(cfg: Any, trainer: Any) -> None:
    """A template that writes whole conversations right, and no beginning of an answer."""
    words = trainer.processing_class
    words.chat_template = words.chat_template.replace("if add_generation_prompt", "if false")


def leak(cfg: Any, trainer: Any) -> None:
    """A training row on the validation side, with other spaces and capitals."""
    from datasets import Dataset

    row = Dataset.from_parquet(cfg.datasets[0]["path"])[0]
    for turn in row["messages"]:
        turn["content"] = turn["content"].upper().replace(" ", "  ")
    file = Path(tempfile.mkdtemp(), "validation.parquet")
    Dataset.from_list([row]).to_parquet(str(file))
    cfg.test_datasets[0]["path"] = str(file)


def loss_of_micro_batches(cfg: Any, trainer: Any) -> None:
    """Axolotl 0.19.0 as it is: each micro batch counts alike, however few of its tokens are
    trained."""
    trainer.model_accepts_loss_kwargs = False


def all_trained(cfg: Any, trainer: Any) -> None:
    """Rows that are trained from the first token on."""
    trainer.train_dataset = trainer.train_dataset.map(lambda row: {"labels": row["input_ids"]})


def end_cut_off(cfg: Any, trainer: Any) -> None:
    """Rows whose labels stop before the token that ends the answer."""
    end = trainer.processing_class.eos_token_id

    def without(row):
        pairs = zip(row["input_ids"], row["labels"], strict=True)
        return {"labels": [UNTRAINED if token == end else label for token, label in pairs]}

    trainer.train_dataset = trainer.train_dataset.map(without)


def other_words(cfg: Any, trainer: Any) -> None:
    """Rows of another template than the one that is kept with the model."""
    trainer.processing_class.chat_template = trainer.processing_class.chat_template.replace(
        "<|im_end|>", "<|im_end|> "
    )


FAULTS = {
    "end_untrained": ["end_not_trained"],
    # Rows are padded further in a batch than alone, so that their loss differs, too.
    "padding_trained": ["padding_trained", "accumulation"],
    # Each of eight rows behind another gives another loss than by itself, too.
    "rows_mixed": ["rows_mixed", "accumulation"],
    "no_generation_prompt": ["prompt_differs"],
    "leak": ["leak"],
    "loss_of_micro_batches": ["accumulation"],
    # The line end behind the last turn is then what is trained last.
    "all_trained": ["end_not_trained", "nothing_masked"],
    "end_cut_off": ["end_not_trained"],
    "other_words": ["row_differs"],
    "rows_joined": [],
}
"""What the proof is to say of each."""


def _one(name: str) -> None:
    """The engine with a fault, judged by the runner's plugin as it is."""
    from runner.parts.proof import prove as proving

    prove = proving.prove

    def planted(cfg, trainer, settings):
        globals()[name](cfg, trainer)
        return prove(cfg, trainer, settings)

    proving.prove = planted
    sys.argv = [sys.argv[0], *sys.argv[2:]]
    from axolotl.cli.main import main

    main()


def _each(config: str) -> None:
    """All faults, one after the other, in one trainer that is put back each time."""
    from axolotl.cli.train import do_cli

    from runner.parts.proof import prove as proving

    prove = proving.prove

    def planted(cfg, trainer, settings):
        for name in ("", *FAULTS):
            kept = dict(vars(trainer))
            template, path = trainer.processing_class.chat_template, cfg.test_datasets[0]["path"]
            if name:
                globals()[name](cfg, trainer)
            said = prove(cfg, trainer, settings)
            print("PROOF " + json.dumps([name, said.summed]), flush=True)
            vars(trainer).clear()
            vars(trainer).update(kept)
            trainer.processing_class.chat_template, cfg.test_datasets[0]["path"] = template, path
        sys.exit(0)

    proving.prove = planted
    do_cli(config)


if __name__ == "__main__":
    _each(sys.argv[2]) if sys.argv[1] == "each" else _one(sys.argv[1])
