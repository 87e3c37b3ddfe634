"""Tokenizers: trained on texts, with the chat template that they carry; for tiny twins, and for pipelines in full size."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.catalog import ChatTemplate, Model

# Longer words are learned from in parts of so many characters.
LONGEST_WORD = 200


def train(texts: Iterable[str], folder: Path, model: Model | None, template: ChatTemplate, vocabulary: int) -> Any:
    """A byte-level BPE tokenizer with the special tokens of `model` (None where there is none yet) and the marks of
    `template`, trained on `texts` and kept in `folder`. vocabulary: tokens at most, a count."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if (folder / "tokenizer.json").is_file():
        return AutoTokenizer.from_pretrained(str(folder))
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    known = (model.eos_token, model.pad_token) if model else ("", "")
    special = {"eos_token": known[0] or template.end, "pad_token": known[1] or "<|endoftext|>"}
    if model and model.bos_token:
        special["bos_token"] = model.bos_token
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(dict.fromkeys([special["pad_token"], *special.values(), *template.tokens])),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Learning from a word takes time with the square of its length: hours for one of a million characters.
    parted = (re.sub(rf"(\S{{{LONGEST_WORD}}})", r"\1 ", text) for text in texts)
    words.train_from_iterator(parted, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=jinja(template), **special)
    fast.save_pretrained(str(folder))
    return AutoTokenizer.from_pretrained(str(folder))


def jinja(template: ChatTemplate) -> str:
    """The template as a tokenizer carries it, for conversations of any roles."""

    def quoted(text: str) -> str:
        return "'" + text.replace("\n", "\\n") + "'"

    role = f"('{template.assistant}' if message['role'] == 'assistant' else message['role'])"
    turn = quoted(template.turn).replace("{role}", f"' + {role} + '").replace("{content}", "' + message['content'] + '")
    return (
        f"{{% for message in messages %}}{{{{ {turn} }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {quoted(template.reply)} }}}}{{% endif %}}"
    )
