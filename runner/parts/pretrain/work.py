"""The work before pretraining: `text` creates a tokenizer, and blocks of each context length as
`.npy` files that training maps into memory; `init` draws the first weights."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from runner import catalog
from runner.catalog.tables import VALIDATION_BLOCKS
from runner.data import RenderedExample, blocks, rows, tokenizers
from runner.data.data_sets import hash_64
from runner.data.report import lines_of
from runner.parts.pretrain import architecture
from runner.parts.pretrain.architecture import (
    END_OF_TEXT,
    Data,
    FirstWeights,
    Tokenizer,
    packed_blocks,
)
from runner.tools.files import replacing, replacing_folder, write_text
from runner.tools.problem import Stop, Tell
from runner.tools.process import helping_pod
from runner.tools.run_files import REPORT
from runner.tools.text import TextTokenizer, tokenizer_in


def text(everything: Data, tell: Tell) -> None:
    """Prepares tokenizer and blocks below `out`. Of several pods the first does it all; others help
    to clean."""
    out = Path(everything.out)
    text = everything.text
    weights = dict(everything.lengths)
    lines = list[str]()
    if text.packed:
        tokenizer = tokenizer_for(everything.tokenizer, (), out / "tokenizer")
        counts = take_packed(Path(text.packed), weights, tokenizer, out / "blocks")
    else:
        from runner.parts.pretrain import cleaning

        cleaned = cleaning.clean(text, out, everything.cleaning)
        pod = helping_pod()
        if pod:
            tell(f"Pod {pod} has cleaned its part.")
            return
        lines += cleaned.lines()
        # More documents would hardly change the tokenizer's entries, and take memory.
        first = islice(cleaning.documents(out), 1_000_000)
        tokenizer = tokenizer_for(everything.tokenizer, first, out / "tokenizer")
        share = text.validation_share
        seed = text.seed
        counts = pack(
            lambda: cleaning.documents(out), tokenizer, weights, share, seed, out / "blocks"
        )
    lines += lines_of("blocks", len(tokenizer), everything, counts, template=architecture.LINES)
    tell("\n".join(["text:", *(f"  {line}" for line in lines)]))
    write_text(out / REPORT, "\n".join(lines) + "\n")


def tokenizer_for(chosen: Tokenizer, texts: Iterable[str], folder: Path) -> Any:
    """The tokenizer in `folder`, trained on the texts or taken from `chosen.base`, with ChatML's
    special tokens. Raises Stop if it has more entries than the embedding has rows, or cannot be
    loaded."""
    template = catalog.chat_template("chatml")
    if chosen.base:
        try:
            tokenizer = tokenizer_in(chosen.base, revision=chosen.revision)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise Stop(
                f"The tokenizer `{chosen.base}` cannot be loaded: {reason}",
                "Check its name, your network and your access.",
            ) from None
        missing = []
        for token in (END_OF_TEXT, *template.tokens):
            if token not in tokenizer.get_vocab():
                missing.append(token)
        tokenizer.add_special_tokens({"additional_special_tokens": missing} if missing else {})
        tokenizer.eos_token = template.end
        tokenizer.pad_token = END_OF_TEXT
        tokenizer.chat_template = tokenizers.jinja(template)
        tokenizer.save_pretrained(str(folder))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        tokenizer = tokenizers.train(texts, folder, None, template, chosen.vocabulary)
    if len(tokenizer) > chosen.most:
        raise Stop(
            f"The tokenizer has {len(tokenizer):,} entries, but the embedding has {chosen.most:,} rows.",
            "Use a smaller tokenizer, or raise `model.vocabulary`.",
        )
    return tokenizer


def pack(
    texts: Callable[[], Iterable[str]],
    tokenizer: TextTokenizer,
    tokens: Mapping[int, int],
    share: float,
    seed: int,
    out: Path,
) -> dict[str, dict[str, int]]:
    """Writes `train-<length>.npy` and `validation-<length>.npy`, arrays (blocks, length). tokens:
    that training reads, by length; the training documents are divided in these proportions, so that
    no length repeats another's text. share: of the documents for validation, on which every length
    is measured. Raises Stop if a length has too little text."""
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    if len(tokenizer) <= 2**16:
        dtype = np.uint16
    else:
        dtype = np.int32
    # For each length the part of [0, 1) that its documents are drawn in: validation first, the rest
    # divided.
    report = {}
    whole = sum(tokens.values())
    start = share
    for number, (length, count) in enumerate(tokens.items(), 1):
        # The last one takes what rounding leaves.
        if number < len(tokens):
            until = start + (1 - share) * count / whole
        else:
            until = 1.1
        for split, first, last in (("train", start, until), ("validation", 0.0, share)):
            # Drawn by its text, so equal texts stay together, and a new text moves no other.
            chosen = (
                text for text in texts() if first <= hash_64(f"{seed}\n{text}") / 2**64 < last
            )
            if split == "validation":
                most = VALIDATION_BLOCKS
            else:
                most = None
            tokenised = blocks.tokenise(chosen, tokenizer, end)
            counts = _write_blocks(out / f"{split}-{length}.npy", tokenised, length, dtype, most)
            report[f"{split}-{length}"] = vars(counts)
            if not counts.blocks:
                if split == "validation":
                    side = "validation"
                else:
                    side = "training"
                raise Stop(
                    f"The {side} text of length {length:,} has {counts.tokens:,} tokens, too few for one block.",
                    "Add more text, raise `data.validation_share`, or shorten the blocks.",
                )
        start = until
    return report


def _write_blocks(
    file: Path, documents: Iterator[np.ndarray], length: int, dtype: object, most_blocks: int | None
) -> blocks.BlockCounts:
    counts = blocks.BlockCounts()

    def write_header(out: object) -> None:
        header = {
            "descr": np.dtype(dtype).str,
            "fortran_order": False,
            "shape": (counts.blocks, length),
        }
        np.lib.format.write_array_header_1_0(out, header)

    with replacing(file) as partial, partial.open("wb") as out:
        write_header(out)
        for group in blocks.cut(documents, length, counts, most_blocks):
            out.write(group.astype(dtype).tobytes())
        # NumPy's header keeps room for the first axis to grow, so the true count fits in the place
        # of the 0.
        out.seek(0)
        write_header(out)
    return counts


def take_packed(
    source: Path, lengths: Iterable[int], tokenizer: TextTokenizer, out: Path
) -> dict[str, dict[str, int]]:
    """Uses packed files after checking them. Raises Stop if one is not an array of blocks of its
    length, or has numbers that the tokenizer lacks."""
    report = {}
    for length in lengths:
        for split in ("train", "validation"):
            file = source / f"{split}-{length}.npy"
            array = packed_blocks(file, length)
            highest = max(
                int(array[start : start + 65536].max()) for start in range(0, len(array), 65536)
            )
            if highest >= len(tokenizer):
                raise Stop(
                    f"`{file}` contains the token {highest:,}, but the tokenizer has {len(tokenizer):,} entries.",
                    "Name the tokenizer of this file under `tokenizer.base`.",
                )
            out.mkdir(parents=True, exist_ok=True)
            link = out / file.name
            link.unlink(missing_ok=True)
            try:
                os.link(file, link)
            except OSError:
                shutil.copyfile(file, link)
            report[f"{split}-{length}"] = vars(blocks.BlockCounts(0, array.size, len(array)))
    return report


def _documents(everything: Data) -> dict[str, Iterator[RenderedExample]]:
    documents = (  # before cleaning
        RenderedExample.of_document(str(row[one.column]))
        for one in everything.text.sets
        for row in rows.good(one)
        if row.get(one.column)
    )
    return {"pretrain": documents}


# What shows the rows that a function here prepares (see `runner.scenarios.first`).
FIRST = {"text": _documents}


def init(weights: FirstWeights, tell: Tell) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    words = tokenizer_in(weights.tokenizer)
    numbers = {
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    config = AutoConfig.for_model(**weights.architecture, **numbers)
    torch.manual_seed(weights.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, weights.dtype))
    count = sum(parameter.numel() for parameter in model.parameters())
    if count != weights.parameters:
        raise Stop(
            f"The model has {count:,} parameters, but the recipe makes {weights.parameters:,}."
        )
    with replacing_folder(Path(weights.out)) as partial:
        model.save_pretrained(str(partial))
        words.save_pretrained(str(partial))
    tell(f"drew {count:,} parameters in {weights.dtype}, seed {weights.seed}")
