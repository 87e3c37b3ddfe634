"""Tiny twin: a model of the same architecture as the base model, small enough for any machine, and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.catalog import Model

VOCABULARY = 1024
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def geometry(model: Model, layers: int, vocabulary: int) -> dict[str, Any]:
    """The twin's sizes: the original's shape (grouped heads, tied or not) at a width of 64."""
    heads = min(4, model.num_attention_heads)
    groups = max(1, model.num_attention_heads // model.num_key_value_heads)
    return {
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // groups),
        "head_dim": 16,
        "vocab_size": vocabulary,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": model.tied,
    }


def build(model: Model, layers: int, seed: int, folder: Path) -> Path:
    """Writes the twin's weights beside the tokenizer that `tokenizer` has left in `folder`; a no-op where they lie there.

    layers: transformer layers, a count. seed: of the random weights.
    """
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(str(folder))
    config = AutoConfig.for_model(
        model.model_type,
        **geometry(model, layers, len(words)),
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )
    torch.manual_seed(seed)
    twin = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    twin.save_pretrained(str(folder / ".weights"))
    # config.json goes last: it says that the twin is whole.
    for file in sorted((folder / ".weights").iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(folder / file.name)
    (folder / ".weights").rmdir()
    return folder


def tokenizer(texts: Iterable[str], folder: Path, vocabulary: int = VOCABULARY) -> Any:
    """A byte-level BPE tokenizer with ChatML's marks and template, trained on `texts` and kept in `folder`.

    vocabulary: entries at most, a count; few texts give fewer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (folder / "tokenizer.json").is_file():
        return _named(AutoTokenizer.from_pretrained(str(folder)))
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHATML
    )
    fast.save_pretrained(str(folder))
    return _named(AutoTokenizer.from_pretrained(str(folder)))


def _named(words: Any) -> Any:
    """What reports call it."""
    words.said_as = "the tiny twin"
    return words
