"""`python -m runner.parts.export.native quantise FILE OUT KIND | read FILE TASK`: llama.cpp's library, in a process of its own, because
what fails in it ends the process and not the sentence."""

import ctypes
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp as library
import numpy as np

from runner.trainer import child_process

ERROR = 4  # ggml's level for them, GGML_LOG_LEVEL_ERROR
FP32 = 0  # ggml's type, GGML_TYPE_F32


def _say(level: int, text: bytes, data: Any) -> None:
    """Errors alone: what else it says is pages."""
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


# Kept, because C does not.
_LOG = library.llama_log_callback(_say)


class Loaded:
    """A GGUF file on this processor, for texts of at most `context` tokens."""

    def __init__(self, file: str, context: int) -> None:
        options = library.llama_model_default_params()
        options.n_gpu_layers = 0
        # As the file has them: weights in another order are another arithmetic, and need more of a processor.
        options.use_extra_bufts = False
        self.model = library.llama_model_load_from_file(file.encode(), options)
        if not self.model:
            raise SystemExit(1)
        self.vocabulary = library.llama_model_get_vocab(self.model)
        room = library.llama_context_default_params()
        room.n_ctx = room.n_batch = room.n_ubatch = context
        # The cache in fp32 too, because halves of it would show as another model.
        room.type_k = room.type_v = FP32
        room.flash_attn_type = library.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = library.llama_init_from_model(self.model, room)

    def metadata(self, name: str) -> str:
        size = library.llama_model_meta_val_str(self.model, name.encode(), ctypes.create_string_buffer(1), 1)
        text = ctypes.create_string_buffer(max(0, size) + 1)
        library.llama_model_meta_val_str(self.model, name.encode(), text, len(text))
        return text.value.decode()

    def tokens(self, text: str) -> list[int]:
        raw = text.encode()
        room = (library.llama_token * (len(raw) + 8))()
        count = library.llama_tokenize(self.vocabulary, raw, len(raw), room, len(room), False, True)
        return list(room[:count])

    def ends(self, token: int) -> bool:
        """Whether an answer ends with this token."""
        return bool(library.llama_vocab_is_eog(self.vocabulary, token))

    def answer(self, prompt: Sequence[int], said: Sequence[int]) -> tuple[list[int], float]:
        """What it would say in place of each word of an answer, and the mean log-probability of those words, in nats."""
        library.llama_memory_clear(library.llama_get_memory(self.context), True)
        self._read(prompt)
        chosen, total = [], 0.0
        for token in said:
            raw = library.llama_get_logits_ith(self.context, -1)
            size = library.llama_vocab_n_tokens(self.vocabulary)
            logits = np.ctypeslib.as_array(raw, shape=(size,)).astype(np.float64)
            chosen.append(int(logits.argmax()))
            total += float(logits[token] - logits.max()) - math.log(np.exp(logits - logits.max()).sum())
            self._read([token])
        return chosen, total / max(1, len(said))

    def _read(self, tokens: Sequence[int]) -> None:
        numbers = (library.llama_token * len(tokens))(*tokens)
        if library.llama_decode(self.context, library.llama_batch_get_one(numbers, len(tokens))):
            raise SystemExit("llama.cpp cannot read a prompt")


def read(file: str, task: dict[str, Any]) -> dict[str, Any]:
    """What llama.cpp makes of a file. task: `texts` to cut into tokens, `ends` that may end an answer, and `answers`, each with
    `prompt` and `said`, in token numbers, and `context`, their longest."""
    loaded = Loaded(file, task["context"])
    return {
        "chat_template": loaded.metadata("tokenizer.chat_template"),
        "ends": [loaded.ends(token) for token in task["ends"]],
        "texts": [loaded.tokens(text) for text in task["texts"]],
        "answers": [loaded.answer(one["prompt"], one["said"]) for one in task["answers"]],
    }


def quantise(file: str, out: str, kind: str) -> int:
    options = library.llama_model_quantize_default_params()
    options.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind.upper()}")
    return int(library.llama_model_quantize(file.encode(), out.encode(), options))


def main(arguments: list[str]) -> int:
    child_process.watch_parent()
    library.llama_log_set(_LOG, None)
    what, *given = arguments
    if what == "quantise":
        return quantise(*given)
    file, task = given
    print(json.dumps(read(file, json.loads(Path(task).read_text(encoding="utf-8")))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
