"""A model's tokenizer, and a conversation in its tokens."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.tools.run_files import TEKKEN


def tokenizer_in(base: Path | str, trust: bool = False, revision: str | None = None, local: bool = False) -> Any:
    """The tokenizer in a folder, which needs no model beside it, or of a model on the hub. trust: whether it may bring
    its own code; local: whether nothing is downloaded."""
    from transformers import AutoTokenizer
    from transformers.tokenization_mistral_common import MistralCommonBackend

    options = {"local_files_only": local, "revision": revision or "main"}
    if Path(base, TEKKEN).is_file():
        tokenizer = MistralCommonBackend.from_pretrained(str(base), **options)
    else:
        tokenizer = AutoTokenizer.from_pretrained(str(base), trust_remote_code=trust, **options)
    # Mistral-common's does not know its origin.
    tokenizer.name_or_path = tokenizer.name_or_path or str(base)
    return tokenizer


def tokens(tokenizer: Any, conversation: Sequence[Mapping[str, Any]], *, asking: bool, tools: Any = None) -> list[int]:
    """The tokens of a conversation in the model's template. They differ from those of the written text with
    mistral-common, which reads no special tokens in a text. asking: whether the model answers next."""
    options = {"tools": tools or None, "add_generation_prompt": asking}
    return list(tokenizer.apply_chat_template(conversation, return_dict=False, **options))
