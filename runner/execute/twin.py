"""Tiny twin: a model of the same architecture as the base model, small enough for any machine, and its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.catalog import TWIN_OF, ChatTemplate, Model

VOCABULARY = 1024
WIDTH = 64
# An adapter leaves the LM head as it is, and a random one can say little: behind the last norm a state has length
# sqrt(WIDTH) = 8, so that with weights of 0.02, as models start from, logits stay within ±1.3. At five times that they
# reach ±6, and of a few hundred words an adapter can make some likely.
FIXED_HEAD_SCALE = 5.0
FIXED_HEAD_VOCABULARY = 320
# The tokenizer learns from longer words in parts of so many characters.
LONGEST_WORD = 200


def geometry(model: Model, layers: int, vocabulary: int) -> dict[str, Any]:
    """The twin's sizes: the original's shape (grouped heads, tied or not) at a width of 64 (`WIDTH`). Every layer's are
    multiples of 32, which bitsandbytes 0.50.2 asks of a layer in 4 bits on a processor."""
    heads = min(4, model.num_attention_heads)
    groups = max(1, model.num_attention_heads // model.num_key_value_heads)
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 192,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // groups),
        "head_dim": 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tied,
    }


def build(model: Model, layers: int, seed: int, folder: Path, fixed_head: bool = False) -> Path:
    """Writes the twin's weights beside the tokenizer that `tokenizer` has left in `folder`; a no-op where they lie there.

    layers: transformer layers, a count. seed: of the random weights. fixed_head: the LM head is not trained, as beside an
    adapter; a random one must then be wide enough that something can be said through it.
    """
    if (folder / "config.json").is_file():
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    words = AutoTokenizer.from_pretrained(str(folder))
    config = AutoConfig.for_model(
        model.model_type,
        **geometry(model, layers, len(words)),
        bos_token_id=words.bos_token_id,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        # Read back by the catalog: what a config.json does not say is then that of this very model.
        **{TWIN_OF: model.id},
    )
    torch.manual_seed(seed)
    twin = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if fixed_head:
        with torch.no_grad():
            twin.get_output_embeddings().weight.mul_(FIXED_HEAD_SCALE)
    twin.save_pretrained(str(folder / ".weights"))
    # config.json goes last: it says that the twin is whole.
    for file in sorted((folder / ".weights").iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(folder / file.name)
    (folder / ".weights").rmdir()
    return folder


def tokenizer(
    texts: Iterable[str], folder: Path, model: Model | None, template: ChatTemplate, vocabulary: int = VOCABULARY
) -> Any:
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
