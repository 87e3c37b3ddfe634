"""Packing: the tokenizer, and blocks of each context length as `.npy` files that training maps into memory."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from runner import catalog
from runner.catalog.tables import VALIDATION_BLOCKS
from runner.data import blocks, tokenizers
from runner.data.data_sets import hash_64
from runner.parts.pretrain.stages import END_OF_TEXT, Tokenizer
from runner.tools.files import replacing
from runner.tools.problem import Stop


def tokenizer_for(chosen: Tokenizer, texts: Callable[[], Iterable[str]], folder: Path) -> Any:
    """The tokenizer in `folder`, trained on the texts or taken from `chosen.base`, with the special tokens of chats set.

    Raises Stop where it has more entries than the embedding has rows, or cannot be loaded.
    """
    if chosen.base:
        tokenizer = _taken(chosen.base, chosen.revision, catalog.chat_template("chatml"))
        tokenizer.save_pretrained(str(folder))
    else:
        shutil.rmtree(folder, ignore_errors=True)
        tokenizer = tokenizers.train(texts(), folder, None, catalog.chat_template("chatml"), chosen.vocabulary)
    if len(tokenizer) > chosen.most:
        raise Stop(
            f"The tokenizer has {len(tokenizer):,} entries, and the embedding has rows for {chosen.most:,}.",
            "Take a smaller tokenizer, or raise `model.vocabulary`.",
        )
    return tokenizer


def _taken(base: str, revision: str, template: catalog.ChatTemplate) -> Any:
    from transformers import AutoTokenizer

    options = {} if Path(base).is_dir() else {"revision": revision}
    try:
        tokenizer = AutoTokenizer.from_pretrained(base, **options)
    except (OSError, ValueError) as error:
        raise Stop(
            f"The tokenizer `{base}` cannot be loaded: {str(error).splitlines()[0]}",
            "Check its name, your network and your access.",
        ) from None
    missing = [token for token in (END_OF_TEXT, *template.tokens) if token not in tokenizer.get_vocab()]
    tokenizer.add_special_tokens({"additional_special_tokens": missing} if missing else {})
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.chat_template = (
        template.end,
        END_OF_TEXT,
        tokenizers.jinja(template),
    )
    return tokenizer


def pack(
    texts: Callable[[], Iterable[str]],
    tokenizer: Any,
    tokens: Mapping[int, int],
    share: float,
    seed: int,
    out: Path,
) -> dict[str, dict[str, int]]:
    """Writes `train-<length>.npy` and `validation-<length>.npy`; arrays (blocks, length) of token numbers.

    tokens: for each length how many tokens training will read; the training documents are divided among the
    lengths in these proportions, so that no length learns another's text again. share: part of the documents for
    validation, on which every length is measured.
    Raises Stop where the text is too little for one block of a length.
    """
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    encode, dtype = blocks.encoder(tokenizer), np.uint16 if len(tokenizer) <= 2**16 else np.int32
    report = {}
    for length, home in _homes(tokens, share).items():
        for split, (first, last) in home.items():
            # By its text, so that equal texts stay together and one more redraws none.
            chosen = (text for text in texts() if first <= hash_64(f"{seed}\n{text}") / 2**64 < last)
            most = VALIDATION_BLOCKS if split == "validation" else None
            file = out / f"{split}-{length}.npy"
            counts = _write(file, blocks.tokenise(chosen, encode, end), length, dtype, most)
            report[f"{split}-{length}"] = counts.facts
            if not counts.blocks:
                raise Stop(
                    f"The {'validation' if split == 'validation' else 'training'} text of length {length:,} has "
                    f"{counts.tokens:,} tokens, too few for one block.",
                    "Give more text, raise `data.validation_share`, or shorten the blocks.",
                )
    return report


def _homes(tokens: Mapping[int, int], share: float) -> dict[int, dict[str, tuple[float, float]]]:
    """For each length the stretches of [0, 1) whose documents are its own: validation first, the rest divided."""
    whole, start, homes = sum(tokens.values()), share, {}
    for length, count in tokens.items():
        end = start + (1 - share) * count / whole
        homes[length] = {"train": (start, end), "validation": (0.0, share)}
        start = end
    homes[length]["train"] = (homes[length]["train"][0], 1.1)  # the last one takes what rounding leaves
    return homes


def _write(
    file: Path, documents: Iterator[np.ndarray], length: int, dtype: Any, most_blocks: int | None
) -> blocks.BlockCounts:
    """Writes a `.npy` file of blocks of `length` tokens, which appears when it is complete. documents: the tokens of each."""
    counts = blocks.BlockCounts(length)

    def write_header(out: Any) -> None:
        description = np.lib.format.dtype_to_descr(np.dtype(dtype))
        header = {"descr": description, "fortran_order": False, "shape": (counts.blocks, length)}
        np.lib.format.write_array_header_1_0(out, header)

    with replacing(file) as partial, partial.open("wb") as out:
        write_header(out)
        for group in blocks.cut(documents, counts, most_blocks):
            out.write(group.astype(dtype).tobytes())
        # NumPy's header keeps room for the first axis to grow, so the true count fits where 0 stood.
        out.seek(0)
        write_header(out)
    return counts


def take_packed(source: Path, lengths: Iterable[int], tokenizer: Any, out: Path) -> dict[str, dict[str, int]]:
    """Takes files that somebody has packed already, after looking at them.

    Raises Stop where one is no array of blocks of its length, or holds numbers that the tokenizer does not have.
    """
    report = {}
    for length in lengths:
        for split in ("train", "validation"):
            file = source / f"{split}-{length}.npy"
            try:
                array = np.load(file, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError):
                raise Stop(f"`{file}` is no array of NumPy.", "Write it with numpy.save, a block a row.") from None
            if array.ndim != 2 or array.shape[1] != length or not len(array) or array.dtype.kind not in "iu":
                raise Stop(
                    f"`{file}` is an array {array.shape} of {array.dtype}, and must hold whole numbers (blocks, {length}).",
                    "Write one block a row.",
                )
            highest = max(int(array[start : start + 65536].max()) for start in range(0, len(array), 65536))
            if highest >= len(tokenizer):
                raise Stop(
                    f"`{file}` holds the token {highest:,}, and the tokenizer has {len(tokenizer):,} entries.",
                    "Name the tokenizer that the file was made with under `tokenizer.base`.",
                )
            out.mkdir(parents=True, exist_ok=True)
            link = out / file.name
            link.unlink(missing_ok=True)
            try:
                os.link(file, link)
            except OSError:
                shutil.copyfile(file, link)
            report[f"{split}-{length}"] = blocks.BlockCounts(length, 0, array.size, len(array)).facts
    return report
