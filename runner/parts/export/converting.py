"""`python -m runner.parts.export.converting CONVERTER MODEL OUT TYPE [TURN_END]`: llama.cpp's own converter, in a process of its own,
with what it cannot know of a model that was trained here."""

import argparse
import sys
from pathlib import Path
from typing import Any

from runner.tools.files import read_record
from runner.tools.process import hush
from runner.trainer import child_process


def is_gpt2(tokenizer: Path) -> bool:
    """Whether a `tokenizer.json` parts text into words as GPT-2 does, which llama.cpp calls `gpt-2`: the tokenizers that are
    trained here do."""
    facts = read_record(tokenizer)
    parts: Any = facts.get("pre_tokenizer") or {}
    plain = not facts.get("normalizer") and facts.get("model", {}).get("type") == "BPE"
    by_bytes = parts.get("type") == "ByteLevel" and parts.get("use_regex", True) and not parts.get("add_prefix_space")
    return bool(plain and by_bytes)


def teach(turn_end: str) -> None:
    """Tells the converter the name of a pre-tokenizer that it does not know by its hash, what kind of tokenizer a Phi has, and the
    token that ends an answer. In place of its methods, because it has no options for these."""
    import gguf
    from conversion.base import TextModel
    from conversion.phi import Phi3MiniModel

    by_hash, by_class = TextModel.get_vocab_base_pre, Phi3MiniModel.set_vocab
    add = gguf.SpecialVocab.add_to_gguf

    def name_of(model: Any, tokenizer: Any) -> str:
        try:
            name: str = by_hash(model, tokenizer)
        except NotImplementedError:
            if not is_gpt2(model.dir_model / "tokenizer.json"):
                raise
            return "gpt-2"
        return name

    def of_phi(model: Any) -> None:
        # Told by the tokenizer's class, which transformers 5 does not write any more.
        (by_class if (model.dir_model / "tokenizer.model").is_file() else TextModel._set_vocab_gpt2)(model)

    def with_turn_end(vocabulary: Any, writer: Any, quiet: bool = False) -> None:
        if turn_end:
            vocabulary.special_token_ids["eot"] = int(turn_end)
        add(vocabulary, writer, quiet)

    TextModel.get_vocab_base_pre, Phi3MiniModel.set_vocab = name_of, of_phi
    gguf.SpecialVocab.add_to_gguf = with_turn_end


def main() -> None:
    child_process.watch_parent()
    hush()
    parser = argparse.ArgumentParser()
    for name in ("converter", "model", "out", "type"):
        parser.add_argument(name)
    parser.add_argument("turn_end", nargs="?", default="", help="the number of the token that ends an answer")
    given = parser.parse_args()
    # The converter finds its own library `gguf` beside itself.
    sys.path.insert(0, given.converter)
    import convert_hf_to_gguf

    teach(given.turn_end)
    sys.argv = ["convert_hf_to_gguf.py", given.model, "--outfile", given.out, "--outtype", given.type]
    convert_hf_to_gguf.main()


if __name__ == "__main__":
    main()
