"""The stages of a pipeline that train nothing: its data, and first weights (see `runner.entrypoints.prepare`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.data import RenderedExample
from runner.data.tokenizers import Pretrained
from runner.parts.pretrain.stages import Data, FirstWeights
from runner.tools.files import replacing_folder
from runner.tools.problem import Stop
from runner.tools.process import helping_pod
from runner.tools.run_files import REPORT

if TYPE_CHECKING:
    from runner.data.tokenizers import TokenizerFor

Tell = Callable[[str], None]

# Documents that a tokenizer learns from; more change its entries hardly, and take memory.
TOKENIZER_DOCUMENTS = 1_000_000


def data(everything: Data, tell: Tell) -> None:
    """Clean text, a tokenizer, blocks for each context length, and the rows of SFT, DPO and LoRA, below `out`. Of several pods
    the first does all that; the others help it to clean."""
    if pod := helping_pod():
        from runner.parts.pretrain import cleaning

        cleaning.help_clean(everything.text, Path(everything.out), everything.cleaning)
        tell(f"Pod {pod} has cleaned its part.")
        return
    lines: list[str] = []
    for title, part in _parts(everything, Path(everything.out)):
        lines += [f"{title}:", *(f"  {line}" for line in part)]
        # Each part is told as soon as it is there, and all of them are kept for people.
        tell("\n".join(lines[lines.index(f"{title}:") :]))
    Path(everything.out, REPORT).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _parts(everything: Data, out: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Each part with its report, made when it is its turn."""
    from runner.data import chat
    from runner.data.report import rows_of
    from runner.parts.pretrain.post_training_rows import prepare_mixture, prepare_preferences

    # What lies in the folder counts too: with another tokenizer the rows are others.
    tokenizer, load = Pretrained(str(out / "tokenizer")), _tokenizer(out)
    yield "text", _text(everything, out)
    report = chat.prepare(replace(everything.sft, tokenizer=tokenizer), out / "sft", tokenizer_for=load)
    rows_of(report, asdict(everything.sft)).write(out / "sft")
    yield "sft", report.lines()
    report = prepare_preferences(replace(everything.dpo, tokenizer=tokenizer), out / "dpo", load)
    rows_of(report, asdict(everything.dpo)).write(out / "dpo")
    yield "dpo", report.lines()
    if everything.lora:
        general = out / "sft" / "train.parquet"
        mixture = replace(everything.lora, tokenizer=tokenizer)
        report, mixed = prepare_mixture(mixture, out / "lora", general, load)
        rows_of(report, asdict(everything.lora)).write(out / "lora")
        yield "lora", [*report.lines(), *mixed]


def _text(everything: Data, out: Path) -> Iterator[str]:
    from itertools import islice

    from runner.parts.pretrain import packing

    text, weights = everything.text, dict(everything.lengths)
    if text.packed:
        tokenizer = packing.tokenizer_for(everything.tokenizer, lambda: (), out / "tokenizer")
        counts = packing.take_packed(Path(text.packed), weights, tokenizer, out / "blocks")
    else:
        from runner.parts.pretrain import cleaning

        yield from cleaning.clean(text, out, everything.cleaning).lines()

        def first() -> Iterator[str]:
            return islice(cleaning.documents(out), TOKENIZER_DOCUMENTS)

        tokenizer = packing.tokenizer_for(everything.tokenizer, first, out / "tokenizer")
        share, seed = text.validation_share, text.seed
        counts = packing.pack(lambda: cleaning.documents(out), tokenizer, weights, share, seed, out / "blocks")
    yield f"tokenizer            {len(tokenizer):>11,}   entries, of {everything.tokenizer.most:,} rows of the embedding"
    for name, side in counts.items():
        told = (
            f"blocks of {side['tokens']:,} tokens, taken as they are"
            if text.packed
            else f"blocks from {side['tokens']:,} tokens of {side['documents']:,} documents; {side['dropped']:,} tokens "
            "after the last whole block"
        )
        yield f"{name:<20} {side['blocks']:>11,}   {told}"


def _tokenizer(out: Path) -> TokenizerFor:
    def load(_: Iterable[str]) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(out / "tokenizer"))

    return load


def _seen(everything: Data) -> dict[str, Iterator[RenderedExample]]:
    """The rows of each stage, documents as they are before they are cleaned."""
    from runner.data import chat
    from runner.parts.pretrain import post_training_rows

    kinds = {
        "pretrain": _documents(everything),
        "sft": chat.first(everything.sft),
        "dpo": post_training_rows.first(everything.dpo),
    }
    return kinds | ({"lora": chat.first(everything.lora)} if everything.lora else {})


def _documents(everything: Data) -> Iterator[RenderedExample]:
    from runner.data import rows

    for one in everything.text.sets:
        for row in rows.good(one):
            if row.get(one.column):
                yield RenderedExample.of_document(str(row[one.column]))


# What shows the rows that a function here prepares (see `runner.scenarios.first`).
FIRST = {"data": _seen}


def init(weights: FirstWeights, tell: Tell) -> None:
    """Draws the first weights of the recipe's architecture and puts the tokenizer beside them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(weights.tokenizer)
    config = AutoConfig.for_model(
        **weights.architecture,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(weights.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, weights.dtype))
    count = sum(parameter.numel() for parameter in model.parameters())
    if count != weights.parameters:
        raise Stop(f"The model has {count:,} parameters, and the recipe makes {weights.parameters:,}.")
    with replacing_folder(Path(weights.out)) as partial:
        model.save_pretrained(str(partial))
        tokenizer.save_pretrained(str(partial))
    tell(f"drew {count:,} parameters in {weights.dtype}, seed {weights.seed}")
