"""Tiny twin: a model of the same architecture as the base model, small enough for any machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from runner import catalog
from runner.catalog import TWIN_OF, ChatTemplate, Model
from runner.data import tokenizers
from runner.tools.files import read_json, write_json

MADE_FROM = "twin.json"

# Enough that most words are whole, and few enough that a few hundred rows show each.
VOCABULARY = 2048
WIDTH = 64
HEAD = 32
REPETITION_PENALTY = 1.3


class Warming(Protocol):
    """Trains a twin's random weights in place, before anybody sees them."""

    def __call__(self, model: Any, *, tokenizer: Any) -> None: ...


def geometry(model: Model, layers: int, vocabulary: int) -> dict[str, Any]:
    """The twin's sizes: the original's shape (grouped heads, tied or not) at a width of 64 (`WIDTH`). Every layer's are
    multiples of 32, which bitsandbytes 0.50.2 asks of a layer in 4 bits on a processor."""
    # llama.cpp knows no Phi whose heads are together wider than the model.
    heads = min(WIDTH // HEAD if model.model_type == "phi3" else 4, model.num_attention_heads)
    # Gemma 3 scales its scores by a number of its own, in the original that of a head's width, which llama.cpp takes it for.
    scale = {"query_pre_attn_scalar": HEAD} if model.model_type.startswith("gemma3") else {}
    groups = max(1, model.num_attention_heads // model.num_key_value_heads)
    return {
        "hidden_size": WIDTH,
        "intermediate_size": 192,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // groups),
        "head_dim": HEAD,
        **scale,
        "vocab_size": vocabulary,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tied,
    }


def wanted(model: Model, special_tokens: ChatTemplate, layers: int, seed: int, folder: Path) -> dict[str, Any]:
    """What a rehearsal's data stage must make, as plain settings for `tokenizer_for` and `build`.

    layers: transformer layers, a count. seed: of the random weights.
    """
    return {
        "folder": str(folder),
        "model": asdict(model),
        "special_tokens": asdict(special_tokens),
        "vocabulary": VOCABULARY,
        "layers": layers,
        "seed": seed,
    }


def tokenizer_for(twin: Mapping[str, Any], besides: Iterable[str] = ()) -> Callable[[list[str]], Any]:
    """Given the texts of the rows, the twin's tokenizer, trained on them and on those `besides`. What another twin has left is
    taken away."""
    folder = Path(twin["folder"])
    if read_json(folder / MADE_FROM) != dict(twin):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(folder / MADE_FROM, dict(twin))
    template = ChatTemplate(**twin["special_tokens"] | {"tokens": tuple(twin["special_tokens"]["tokens"])})
    return lambda texts: tokenizers.train(chain(texts, besides), folder, _model(twin), template, twin["vocabulary"])


def _model(twin: Mapping[str, Any]) -> Model:
    return read_model(twin["model"])


def read_model(facts: Mapping[str, Any]) -> Model:
    """Facts of a model as they are read back from JSON."""
    return Model(**{**facts, "linear": tuple(facts["linear"])})


def build(twin: Mapping[str, Any], first: Warming | None = None) -> None:
    """Writes the twin's weights beside its tokenizer; a no-op where they lie there. first: what they are made ready by."""
    folder, model = Path(twin["folder"]), _model(twin)
    if (folder / "config.json").is_file():
        return
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(str(folder))
    numbers = {f"{name}_token_id": getattr(words, f"{name}_token_id") for name in ("bos", "eos", "pad")}
    ready = partial(first, tokenizer=words) if first else None
    _write(model, folder, geometry(model, twin["layers"], len(words)), twin["seed"], numbers, ready)


def bare(model: Model, folder: Path) -> None:
    """A twin of two layers without a tokenizer, with an entry for each of the model's own tokens."""
    from transformers import CONFIG_MAPPING

    numbers = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    if model.model_type not in CONFIG_MAPPING:
        # Its own code is not run for a proof; what is proven of rows and batches needs no particular model.
        model = replace(model, model_type="llama")
    _write(model, folder, geometry(model, 2, model.vocab_size), 0, numbers)


def _write(
    model: Model,
    folder: Path,
    sizes: Mapping[str, Any],
    seed: int,
    numbers: Mapping[str, int | None],
    ready: Callable[[Any], None] | None = None,
) -> None:
    """A model of these sizes with random weights, or what `ready` makes of them. numbers: of special tokens."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    # Read back by the catalog: what a config.json does not say is then that of this very model.
    config = AutoConfig.for_model(model.model_type, **sizes, **numbers, **{TWIN_OF: catalog.original(model)})
    torch.manual_seed(seed)
    built = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    if ready:
        ready(built)
        # Few words are known to so small a model, and it would say the likeliest of them for ever.
        built.generation_config.repetition_penalty = REPETITION_PENALTY
    built.save_pretrained(str(folder / ".weights"))
    # config.json goes last: it says that the twin is whole.
    for file in sorted((folder / ".weights").iterdir(), key=lambda file: file.name == "config.json"):
        file.replace(folder / file.name)
    (folder / ".weights").rmdir()
