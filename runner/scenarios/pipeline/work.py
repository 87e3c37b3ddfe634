"""The stages of a pipeline that train nothing: its data, and first weights (see `runner.entrypoints.prepare`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.problem import Stop
from runner.training.run_files import REPORT

if TYPE_CHECKING:
    from runner.data.split import TokenizerFor

Tell = Callable[[str], None]

# Documents that a tokenizer learns from; more change its entries hardly, and take memory.
TOKENIZER_DOCUMENTS = 1_000_000


def data(wanted: Mapping[str, Any], tell: Tell) -> None:
    """Clean text, a tokenizer, blocks for each context length, and the rows of SFT, DPO and LoRA, below `out`."""
    out = Path(wanted["out"])
    lines: list[str] = []
    for title, part in (("text", _text), ("sft", _sft), ("dpo", _dpo), ("lora", _lora)):
        if title in wanted:
            lines += [f"{title}:", *(f"  {line}" for line in part(wanted, out))]
            # Each part is told as soon as it is there, and all of them are kept for people.
            tell("\n".join(lines[lines.index(f"{title}:") :]))
    (out / REPORT).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _text(wanted: Mapping[str, Any], out: Path) -> Iterator[str]:
    from itertools import islice

    from runner.scenarios.pipeline import packing

    text, weights = wanted["text"], dict(wanted["lengths"])
    if text["packed"]:
        words = packing.tokenizer_for(wanted["tokenizer"], lambda: (), out / "tokenizer")
        counts = packing.take_packed(Path(text["packed"]), weights, words, out / "blocks")
    else:
        from runner.data import cleaning

        yield from cleaning.clean(text, out, wanted.get("cleaning")).lines()

        def first() -> Iterator[str]:
            return islice(cleaning.documents(out), TOKENIZER_DOCUMENTS)

        words = packing.tokenizer_for(wanted["tokenizer"], first, out / "tokenizer")
        share, seed = text["validation_share"], text["seed"]
        counts = packing.pack(lambda: cleaning.documents(out), words, weights, share, seed, out / "blocks")
    yield f"tokenizer            {len(words):>11,}   entries, of {wanted['tokenizer']['most']:,} rows of the embedding"
    for name, side in counts.items():
        told = (
            f"blocks of {side['tokens']:,} tokens, taken as they are"
            if text["packed"]
            else f"blocks from {side['tokens']:,} tokens of {side['documents']:,} documents; {side['dropped']:,} tokens "
            "after the last whole block"
        )
        yield f"{name:<20} {side['blocks']:>11,}   {told}"


def _words(out: Path) -> TokenizerFor:
    def load(_: Iterable[str]) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(str(out / "tokenizer"))

    return load


def _with_tokenizer(rows: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """What rows are wanted, counted with the tokenizer that lies in `out`: with another one they are others."""
    return {**rows, "tokenizer": {"base": str(out / "tokenizer")}}


def _sft(wanted: Mapping[str, Any], out: Path) -> Iterator[str]:
    from runner.data import chat

    return chat.prepare(_with_tokenizer(wanted["sft"], out), out / "sft", tokenizer_for=_words(out)).lines()


def _dpo(wanted: Mapping[str, Any], out: Path) -> Iterator[str]:
    from runner.scenarios.pipeline import preferences

    return preferences.prepare(wanted["dpo"], out / "dpo").lines()


def _lora(wanted: Mapping[str, Any], out: Path) -> list[str]:
    from runner.scenarios.pipeline import mixing

    return mixing.prepare(
        _with_tokenizer(wanted["lora"], out), out / "lora", out / "sft" / "train.parquet", _words(out)
    )


def init(wanted: Mapping[str, Any], tell: Tell) -> None:
    """Draws the first weights of the recipe's architecture and puts the tokenizer beside them."""
    import shutil

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    out = Path(wanted["out"])
    words = AutoTokenizer.from_pretrained(wanted["tokenizer"])
    config = AutoConfig.for_model(
        **wanted["architecture"],
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    torch.manual_seed(wanted["seed"])
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, wanted["dtype"]))
    count = sum(parameter.numel() for parameter in model.parameters())
    if count != wanted["parameters"]:
        raise Stop(f"The model has {count:,} parameters, and the recipe makes {wanted['parameters']:,}.")
    fresh = out.with_name(f".{out.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    model.save_pretrained(str(fresh))
    words.save_pretrained(str(fresh))
    shutil.rmtree(out, ignore_errors=True)
    fresh.rename(out)
    tell(f"drew {count:,} parameters in {wanted['dtype']}, seed {wanted['seed']}")
