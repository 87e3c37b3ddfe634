"""Tiny twin: a model of the base model's architecture, small enough for any machine, and warmed up.
It first learns to speak from the project's general text, alone and as answers to the questions of
the training rows, without sentences that share three words in a row with the rows. So words of the
rows that it uses later come from the rows."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, cycle, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.catalog.models import INHERITED, SPOKEN, TWIN_OF, ChatTemplate, Model, of_facts
from runner.catalog.tables import Facts
from runner.data import tokenizers
from runner.data.row_files import Bad
from runner.data.rows import Parquet
from runner.tools.files import read_json, write_json
from runner.tools.process import without_gpu_kernels
from runner.tools.text import TextTokenizer, tokenizer_in, tokens, words

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MADE_FROM = "twin.json"

# Enough that most words are whole, and few enough that a few hundred rows show each.
VOCABULARY = 2048
WIDTH = 64
HEAD = 32
REPETITION_PENALTY = 1.3


def geometry(model: Model, layers: int, vocabulary: int) -> dict[str, Any]:
    """The twin's sizes: the original's shape (grouped heads, tied or not), `WIDTH` wide. All are
    multiples of 32, as bitsandbytes 0.50.2 needs for 4 bits on a processor."""
    # llama.cpp supports no Phi whose heads together are wider than the model.
    heads = min(WIDTH // HEAD if model.model_type == "phi3" else 4, model.num_attention_heads)
    # Gemma 3 scales attention scores by its own number; llama.cpp assumes a head's width, as in the
    # original.
    if model.model_type.startswith("gemma3"):
        scale = {"query_pre_attn_scalar": HEAD}
    else:
        scale = {}
    groups = max(1, model.num_attention_heads // model.num_key_value_heads)
    # What is 0 in the original, such as experts, is 0 here.
    own_sizes = model.own | {
        name: size
        for name, size in model.family.get("twin", {}).items()
        if model.own.get(name, size)
    }
    if "vocab_size_per_layer_input" in own_sizes:
        own_sizes["vocab_size_per_layer_input"] = vocabulary
    kinds = list(dict.fromkeys(own_sizes.get("layer_types", ())))
    if kinds:
        own_sizes["layer_types"] = [kinds[layer % len(kinds)] for layer in range(layers)]
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
        **own_sizes,
    }


def tiny_towers(model: Model) -> dict[str, Facts]:
    """The twin's parts that see or hear."""
    towers = {}
    for name, settings in model.tower_settings.items():
        towers[name] = {**settings, **model.family["towers"][name]["twin"]}
    return towers


def wanted(
    model: Model, special_tokens: ChatTemplate, layers: int, seed: int, folder: Path
) -> dict[str, Any]:
    """The twin that a data stage must make, as plain settings for `tokenizer_for` and `build`.
    layers: 0 for the whole model, in bf16."""
    return {
        "folder": str(folder),
        "model": model.record,
        "special_tokens": asdict(special_tokens),
        "vocabulary": VOCABULARY,
        "layers": layers,
        "seed": seed,
    }


def tokenizer_for(
    twin: Mapping[str, Any], besides: Iterable[str] = ()
) -> Callable[[list[str]], Any]:
    """A function from texts of rows to the twin's tokenizer, trained on them and on `besides`.
    Deletes another twin."""
    folder = Path(twin["folder"])
    if read_json(folder / MADE_FROM) != dict(twin):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(folder / MADE_FROM, dict(twin))
    template = ChatTemplate(
        **twin["special_tokens"] | {"tokens": tuple(twin["special_tokens"]["tokens"])}
    )

    def tokenizer(texts: Iterable[str]) -> Any:
        trained = tokenizers.train(
            chain(texts, besides), folder, of_facts(twin["model"]), template, twin["vocabulary"]
        )
        trained.said_as = str(
            trained.name_or_path
        )  # rows are not judged by its lengths and its template
        return trained

    return tokenizer


def build(twin: Mapping[str, Any], warm_up_model: Callable[..., None] | None = None) -> None:
    """Writes the twin's weights beside its tokenizer, unless they exist. warm_up_model: trains the
    random weights in place."""
    folder = Path(twin["folder"])
    model = of_facts(twin["model"])
    if (folder / "config.json").is_file():
        return
    twin_tokenizer = tokenizer_in(folder)
    numbers = {}
    for name in ("bos", "eos", "pad"):
        numbers[f"{name}_token_id"] = getattr(twin_tokenizer, f"{name}_token_id")
    if warm_up_model:
        ready = partial(warm_up_model, tokenizer=twin_tokenizer)
    else:
        ready = None
    if twin["layers"]:
        _write(
            model,
            folder,
            geometry(model, twin["layers"], len(twin_tokenizer)),
            twin["seed"],
            numbers,
            ready,
            towers=tiny_towers(model),
        )
    else:
        _write(model, folder, model.sizes, twin["seed"], numbers, dtype="bfloat16")


def bare(model: Model, folder: Path) -> None:
    """A twin of two layers without a tokenizer, with an entry for each of the model's own
    tokens."""
    from transformers import CONFIG_MAPPING

    numbers: dict[str, int | None] = dict.fromkeys(("bos_token_id", "eos_token_id"))
    # Gemma 4 puts it where images would be.
    numbers["pad_token_id"] = 0 if model.sees else None
    if model.model_type not in CONFIG_MAPPING:
        # Its own code is not run for a proof; proofs of rows and batches need no particular model.
        model = replace(model, model_type="llama")
    sizes = geometry(model, 2, model.vocab_size)
    _write(model, folder, sizes, 0, numbers, towers=tiny_towers(model))


def _write(
    model: Model,
    folder: Path,
    sizes: Mapping[str, Any],
    seed: int,
    numbers: Mapping[str, int | None],
    ready: Callable[[Any], None] | None = None,
    dtype: str = "float32",
    towers: Mapping[str, Facts] | None = None,
) -> None:
    """Writes a model of these sizes with random weights, which `ready` may train. numbers: of
    special tokens. towers: as in `Model.class_settings`."""
    import torch
    from transformers import AutoConfig

    from runner.tools.model_classes import language_class

    without_gpu_kernels()
    # The catalog reads TWIN_OF: facts that a config.json lacks are then those of the original.
    original = {name: getattr(model, name) for name in ("id", "linear", *INHERITED, *SPOKEN)}
    settings = model.class_settings({**sizes, **numbers}, towers)
    config = AutoConfig.for_model(model.model_type, **settings, **{TWIN_OF: original})
    torch.manual_seed(seed)
    with _drawing_once():
        built = language_class(config).from_config(config, dtype=getattr(torch, dtype))
    for name, weights in built.named_parameters():
        weights.requires_grad_(not model.is_of_tower(name))
    if ready:
        ready(built)
        # So small a model knows few words, and would repeat the likeliest ones without end.
        built.generation_config.repetition_penalty = REPETITION_PENALTY
    built.save_pretrained(str(folder / ".weights"))
    # config.json comes last: it shows that the twin is complete.
    for file in sorted(
        (folder / ".weights").iterdir(), key=lambda file: file.name == "config.json"
    ):
        file.replace(folder / file.name)
    (folder / ".weights").rmdir()


DRAWN = 2**18 - 5  # random numbers; a prime, so that no two rows of a matrix are alike


@contextmanager
def _drawing_once() -> Iterator[None]:
    """A context in which larger tensors repeat their first random numbers: drawing billions takes a
    CPU minutes."""
    from torch import Tensor

    def repeating(draw: Callable[..., Any]) -> Callable[..., Any]:
        def fill(weights: Any, *args: Any, **kwargs: Any) -> Any:
            numbers = weights.view(-1)
            filled = len(draw(numbers[:DRAWN], *args, **kwargs))
            while filled < len(numbers):
                repeated = numbers[filled : 2 * filled]
                repeated.copy_(numbers[: len(repeated)])
                filled += len(repeated)
            return weights

        return fill

    names = ("normal_", "uniform_")
    for name in names:
        setattr(Tensor, name, repeating(getattr(Tensor, name)))
    try:
        yield
    finally:
        for name in names:
            delattr(Tensor, name)  # the class above has the original


STEPS = 100
BLOCKS, LENGTH = 6, 96  # blocks of a step, and the tokens of each
# Tokens of the question before a paragraph: the system prompt is most of it, and the same for all.
ASKED = 48
# Words in a row that only the rows may teach.
OWN_WORDS = 3
SHORTEST = 8  # words of a paragraph
# Larger than usual initial weights: a hundred steps would not reach such values.
EMBEDDING_SIZE, MATRIX_SIZE = 0.1, 0.6
MATRIX_RATE, OTHER_RATE, LAST_RATE = 2e-2, 1e-2, 0.05
MOMENTUM = 0.95
NEWTON = (3.4445, -4.7750, 2.0315)  # of the polynomial that brings singular values to 1
RISING = 10  # steps
NOT_LEARNED = -100


def in_a_row(text: str) -> set[tuple[str, ...]]:
    text_words = words(text)
    return set(zip(*(text_words[start:] for start in range(OWN_WORDS)), strict=False))


def warm_up(
    model: PreTrainedModel,
    *,
    tokenizer: TextTokenizer,
    documents: Sequence[str],
    rows: Path,
    seed: int,
) -> None:
    """Trains all weights in place: the same rows and seed give the same weights. documents: plain
    text, paragraphs between empty lines. rows: the folder with the prepared rows; only training
    questions are asked."""
    import torch

    from runner.trainer.generation import taught

    prompts = _asked(rows, tokenizer)
    taken_phrases = set[tuple[str, ...]]()
    for side in ("train", "validation"):
        if not (rows / f"{side}.parquet").is_file():
            continue  # no row is held back
        for text in taught(_rows(rows / f"{side}.parquet"), tokenizer):
            taken_phrases |= in_a_row(text)
    texts = list(paragraphs(documents, taken_phrases))
    if not texts:
        return  # the rows are this very text
    blocks = _blocks(texts, prompts, tokenizer, random.Random(seed))
    embeddings = set()
    for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
        embeddings.add(id(layer.weight))
    matrices = list[Any]()
    other_weights = list[Any]()
    learning = [weights for weights in model.parameters() if weights.requires_grad]
    with torch.no_grad():
        for weights in learning:
            is_matrix = weights.dim() == 2 and id(weights) not in embeddings
            (matrices if is_matrix else other_weights).append(weights)
            if weights.dim() == 2:
                weights.normal_(
                    0.0, MATRIX_SIZE / weights.shape[1] ** 0.5 if is_matrix else EMBEDDING_SIZE
                )
    adamw = torch.optim.AdamW(other_weights, betas=(0.9, 0.95), weight_decay=0.0)
    momenta = [torch.zeros_like(matrix) for matrix in matrices]
    model.train()
    for step, (read, learned) in enumerate(blocks):
        model(input_ids=torch.tensor(read), labels=torch.tensor(learned)).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        share = min(1.0, (step + 1) / RISING) * max(LAST_RATE, 1 - step / STEPS)
        adamw.param_groups[0]["lr"] = OTHER_RATE * share
        adamw.step()
        for matrix, momentum in zip(matrices, momenta, strict=True):
            _muon(matrix, momentum, MATRIX_RATE * share)
        model.zero_grad()


def _muon(matrix: Any, momentum: Any, rate: float) -> None:
    """A step of Muon (Jordan et al., 2024) in place: it changes a matrix equally in every
    direction, which helps with so few steps. In fp32, because torch's own computes in bf16, which
    takes a processor ten times as long."""
    import torch

    with torch.no_grad():
        momentum.lerp_(matrix.grad, 1 - MOMENTUM)
        update = matrix.grad.lerp(momentum, MOMENTUM)
        tall = update.shape[0] > update.shape[1]
        update = update.T if tall else update
        update = update / update.norm().clamp(min=1e-7)
        for _ in range(3):
            square = update @ update.T
            update = (
                NEWTON[0] * update + (NEWTON[1] * square + NEWTON[2] * square @ square) @ update
            )
        matrix.sub_(
            update.T if tall else update,
            alpha=rate * max(1, matrix.shape[0] / matrix.shape[1]) ** 0.5,
        )


def paragraphs(documents: Iterable[str], taken_phrases: set[tuple[str, ...]]) -> Iterator[str]:
    """The paragraphs of prose, without the sentences that have `OWN_WORDS` words in a row in common
    with `taken_phrases`."""
    for document in documents:
        for paragraph in document.split("\n\n"):
            if "\n" in paragraph:
                continue  # a list, a table or code
            sentences = re.split(r"(?<=[.?!])\s+", paragraph)
            remaining = " ".join(
                sentence for sentence in sentences if not in_a_row(sentence) & taken_phrases
            )
            if len(words(remaining)) >= SHORTEST:
                yield remaining


def _blocks(
    texts: Sequence[str],
    prompts: Sequence[list[int]],
    tokenizer: TextTokenizer,
    draw: random.Random,
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """`STEPS` steps of blocks to learn, with labels: each paragraph alone, and one after each
    prompt, in an order that is drawn again whenever all are read. Without end tokens, because with
    them some twins would write nothing."""
    answers = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    readings = list(zip(answers, answers, strict=True))
    for prompt, answer in zip(prompts, cycle(answers), strict=False):
        question = prompt[-ASKED:]
        readings.append(([*question, *answer], [NOT_LEARNED] * len(question) + answer))
    read = list[int]()
    learned = list[int]()
    size = BLOCKS * LENGTH
    for _ in range(STEPS):
        while len(read) < size:
            draw.shuffle(readings)
            for numbers, labels in readings:
                read += numbers
                learned += labels
        rows = range(0, size, LENGTH)
        yield (
            [read[start : start + LENGTH] for start in rows],
            [learned[start : start + LENGTH] for start in rows],
        )
        read = read[size:]
        learned = learned[size:]


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    return (row for _, row in Parquet().rows(file) if not isinstance(row, Bad))


def _asked(rows: Path, tokenizer: TextTokenizer) -> list[list[int]]:
    """The tokens of each training row's first question, in the model's format; nothing for plain
    text."""
    prompts = []
    for row in _rows(rows / "train.parquet"):
        turns = takewhile(lambda turn: turn["role"] != "assistant", row.get("messages") or ())
        messages = [{"role": turn["role"], "content": turn["content"] or ""} for turn in turns]
        if messages:
            prompts.append(tokens(tokenizer, messages, asking=True))
    return prompts
