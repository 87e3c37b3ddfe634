"""Short rows padded, joined and packed, in the batches that Axolotl makes of a recipe's rows:
tokens that are computed, and losses.

    python benchmarks/packing.py [RECIPE] [--data FILE] [--set SETTING=VALUE] [--losses N]

RECIPE: one with `train.packing`, survival unless named; --data: rows in place of its sample;
--losses: micro batches whose losses are compared. A tiny twin stands in for the model, with a
byte-level BPE of 8,192 words trained on the rows for its tokenizer, and the processor for the GPU.
Joined rows are read twice: under a mask, as in a rehearsal, and through transformers' own way for
FlashAttention, whose kernel is emulated row by row. Exit 1 where a loss differs by more than 1e-5.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from runner import catalog, scenarios
from runner.check.validate import load
from runner.plan import Place, Stage
from runner.recipe import overrides
from runner.recipe.recipe import Recipe
from runner.run.launch import WITHOUT_GPU
from runner.scenarios import translate
from runner.scenarios.shared import axolotl, twin

# Read when Axolotl, accelerate and the hub's library are imported, which the functions do.
ENVIRONMENT = WITHOUT_GPU | {
    "AXOLOTL_DO_NOT_TRACK": "1", "AXOLOTL_LOG_LEVEL": "ERROR", "AXOLOTL_DATASET_NUM_PROC": "0", "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
}  # fmt: skip
WAYS = ("none", "flatten", "pack")
VOCABULARY = 8192
CLOSE = 1e-5
# What lets it run on a processor; the batches are those of the recipe.
ON_A_PROCESSOR = (
    "model.precision=fp32", "model.attention=sdpa", "train.kernels=none", "train.optimizer=adamw_torch",
    "machines.nodes=1", "machines.gpus_per_node=1", "distribution=ddp", "limits=",
)  # fmt: skip


def staged(
    file: Path, folder: Path, data: str | None, options: list[str], way: str
) -> tuple[Recipe, Stage]:
    """The recipe's training stage with its rows packed in a way, on a processor."""
    recipe, _, _ = load(file)
    sample = data or recipe.data.get("sample")
    there = "train" in recipe.settings and "cross_entropy" in recipe.train
    wanted = [*ON_A_PROCESSOR, *options, *(["train.cross_entropy=plain"] if there else [])]
    # A rehearsal's `auto` joins rows on a processor.
    packing = {"flatten": "auto"}.get(way, way)
    changes = [
        *overrides.from_options(
            ["data.hub=", f"data.path={Path(sample).resolve() if data else sample}"]
        ),
        *overrides.from_options(
            [*wanted, "train.effective_batch_size=", f"train.packing={packing}"]
        ),
    ]
    recipe, _, _ = load(file, changes)
    at = Place(
        *(str(folder / name) for name in ("config", "data", "run", "scratch")), accelerator=False
    )
    return recipe, translate(recipe, at).stages[-1]


def prepare(recipe: Recipe, stage: Stage, folder: Path) -> Path:
    """Rows as the recipe prepares them, and a twin with a tokenizer of their words."""
    home = folder / "base_model"
    tokens = axolotl.special_tokens(recipe) or catalog.chat_template("chatml")
    tiny = twin.wanted(recipe.facts, tokens, 2, 1, home) | {"vocabulary": VOCABULARY}
    scenarios.prepare(stage.data, folder / "data", tokenizer_for=twin.tokenizer_for(tiny))
    twin.build(tiny)
    return home


def engine(stage: Stage, home: Path, folder: Path, way: str) -> Any:
    """Axolotl's trainer for the stage, with its data loaders."""
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets
    from axolotl.integrations.base import PluginManager
    from axolotl.train import setup_model_and_trainer

    config = dict(stage.config) | {
        "base_model": str(home),
        "dataset_prepared_path": str(folder / f"tokenised-{way}"),
    }
    file = folder / f"{way}.yaml"
    file.write_text(yaml.safe_dump(config))
    with redirect_stdout(sys.stderr):
        cfg = load_cfg(str(file))
        meta = PluginManager.get_instance().load_datasets(cfg, preprocess=False) or load_datasets(
            cfg=cfg
        )
        return setup_model_and_trainer(cfg, meta)[0]


def batches(trainer: Any, seed: int = 42) -> Iterator[dict[str, Any]]:
    """The batches of an epoch, in the same order of rows for the same seed."""
    torch.manual_seed(seed)
    yield from trainer.get_train_dataloader()


def losses(model: Any, of: list[dict[str, Any]]) -> list[float]:
    model.eval()
    with torch.no_grad():
        return [model(**batch, use_cache=False).loss.item() for batch in of]


def apart(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of a packed batch, each as a batch of its own."""
    for line in range(len(batch["input_ids"])):
        starts = (batch["position_ids"][line] == 0).nonzero().flatten().tolist()
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            own = {name: batch[name][line, start:end][None] for name in ("input_ids", "labels")}
            if (own["labels"][:, 1:] != -100).any():  # what fills a packed row up has no labels
                yield own


@contextmanager
def emulated_flash_attention(model: Any) -> Iterator[None]:
    """transformers' way to FlashAttention, its kernels emulated on a processor: each row by itself,
    told apart by lengths."""
    import transformers.modeling_flash_attention_utils as flash
    from torch.nn.functional import scaled_dot_product_attention

    def rows(query: Any, key: Any, value: Any, causal: bool, scale: float | None) -> Any:
        heads = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return scaled_dot_product_attention(
            *heads, is_causal=causal, scale=scale, enable_gqa=True
        ).transpose(1, 2)

    def varlen(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: int, max_seqlen_k: int,
        causal: bool = False, softmax_scale: float | None = None, **others: Any,
    ) -> Any:  # fmt: skip
        edges = cu_seqlens_q.tolist()
        pieces = [slice(*edge) for edge in pairwise(edges)]
        made = [
            rows(q[None, one], k[None, one], v[None, one], causal, softmax_scale)[0]
            for one in pieces
        ]
        return torch.cat(made)

    def whole(
        q: Any,
        k: Any,
        v: Any,
        causal: bool = False,
        softmax_scale: float | None = None,
        **others: Any,
    ) -> Any:
        return rows(q, k, v, causal, softmax_scale)

    names = (
        "_loaded_implementation",
        "_flash_fn",
        "_flash_varlen_fn",
        "_pad_fn",
        "_unpad_fn",
        "_process_flash_kwargs_fn",
    )
    kept, chosen = {name: getattr(flash, name) for name in names}, model.config._attn_implementation
    processing = flash._lazy_define_process_function(varlen)
    new = ("flash_attention_2", whole, varlen, flash._pad_input, flash._unpad_input, processing)
    for name, value in zip(names, new, strict=True):
        setattr(flash, name, value)
    model.config._attn_implementation = "flash_attention_2"
    try:
        yield
    finally:
        model.config._attn_implementation = chosen
        for name, value in kept.items():
            setattr(flash, name, value)


def measure(
    file: Path, folder: Path, data: str | None, options: list[str], count: int
) -> dict[str, float]:
    """Prints the table; gives the largest differences of a loss, by what was compared."""
    differ: dict[str, float] = {}
    stages = {way: staged(file, folder, data, options, way) for way in WAYS}
    home, padded, plain = prepare(*stages["none"], folder), [], 0.0
    for way, (_, stage) in stages.items():
        trainer = engine(stage, home, folder, way)
        model, first, steps, computed, read = trainer.model, [], 0, 0, 0
        for batch in batches(trainer):
            steps, computed = steps + 1, computed + batch["input_ids"].numel()
            rows = apart(batch) if way == "pack" else ()
            read += sum(row["input_ids"].numel() for row in rows)
            if len(first) < count:
                first.append({name: part for name, part in batch.items() if torch.is_tensor(part)})
        if not steps:
            print(f"{way:<9} these rows do not fill one micro batch")
            continue
        if way == "none":
            lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
            micro, whole = stage.config["micro_batch_size"], sum(lengths)
            print(
                f"{len(lengths):,} rows, {whole / len(lengths):.0f} tokens a mean row, {max(lengths):,} the longest; {micro} a "
                f"micro batch, {stage.config['sequence_len']:,} the sequence length"
            )
            print(
                f"{'packing':<9}{'micro batches':>14}{'tokens computed':>17}{'of that rows':>14}{'saved':>8}"
            )
            padded, plain = losses(model, first), computed / whole
        elif way == "flatten":
            differ["joined, under a mask"] = _most(padded, losses(model, first))
            with emulated_flash_attention(model):
                differ["joined, as FlashAttention reads them"] = _most(padded, losses(model, first))
        else:
            differ["packed, against each row alone"] = _most(
                [_alone(model, batch) for batch in first], losses(model, first)
            )
        # Packing leaves a last micro batch out that is not full.
        read = read or whole
        print(
            f"{way:<9}{steps:>14,}{computed:>17,}{read / computed:>14.1%}{1 - computed / read / plain:>8.1%}"
        )
    for what, most in differ.items():
        print(f"loss, {what}: {most:.1e} apart at most, over {count} micro batches")
    return differ


def _alone(model: Any, batch: dict[str, Any]) -> float:
    """The loss of a packed batch from each of its rows alone."""
    rows = list(apart(batch))
    weights = [int((row["labels"][:, 1:] != -100).sum()) for row in rows]
    return sum(
        loss * weight for loss, weight in zip(losses(model, rows), weights, strict=True)
    ) / sum(weights)


def _most(one: list[float], other: list[float]) -> float:
    assert one and len(one) == len(other)
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = Path(__file__).resolve().parent.parent / "recipes" / "survival.yaml"
    parser.add_argument("recipe", nargs="?", type=Path, default=here)
    parser.add_argument("--data")
    parser.add_argument("--set", action="append", default=[], dest="options")
    parser.add_argument("--losses", type=int, default=8)
    given = parser.parse_args()
    os.environ |= ENVIRONMENT
    with tempfile.TemporaryDirectory() as folder:
        differ = measure(given.recipe, Path(folder), given.data, given.options, given.losses)
    return int(max(differ.values()) > CLOSE)


if __name__ == "__main__":
    sys.exit(main())
