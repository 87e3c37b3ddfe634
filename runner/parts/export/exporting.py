"""Exporting a run's model to a folder, which appears only once the export is proven to be the
trained model: for servers, as an adapter alone, or as GGUF, which llama.cpp and Ollama load."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner import __version__
from runner.parts.evaluate import evaluate
from runner.parts.export import card, compressed, gguf, trained_model
from runner.parts.export.trained_model import Proof, TrainedModel, unproven, words_of
from runner.tools.files import Record, read_record, replacing_folder, sha256, write_json, write_text
from runner.tools.problem import Stop, Tell
from runner.tools.run_files import BEST_MODEL, EXPORTED, TEKKEN
from runner.tools.text import GENERAL_TEXT, TextTokenizer, label
from runner.tools.vllm import ignored, rank_of, refusals, room_for
from runner.trainer.generation import Chat, end_tokens, repetition_penalty

CARD = "README.md"
# The files of a tokenizer.
_WORDS = (
    "tokenizer*", TEKKEN, "special_tokens_map.json", "chat_template*", "added_tokens.json", "vocab.*", "merges.txt",
)  # fmt: skip


@dataclass(frozen=True)
class Export(Record):
    """The record beside an export."""

    FILE = EXPORTED
    run: str = ""  # its origin
    stage: str = ""  # its origin
    model: str = ""  # hash of the trained model
    format: str = ""
    kind: str = ""  # only for GGUF
    files: Mapping[str, str] = field(default_factory=dict)  # SHA-256 by name
    proof: Mapping[str, float] = field(default_factory=dict)  # results of comparisons
    version: str = ""  # of the runner


def export(
    source: TrainedModel, form: str, file_kind: str | None, out: Path | None, tell: Tell
) -> Path:
    """Exports a model and returns the folder. form: safetensors, adapter or gguf; file_kind: of a
    GGUF file, of KINDS, by default that of the weights; out: by default a folder in the run. Raises
    Stop, leaving nothing, if the folder is taken, no server could load the export, or it is not
    proven."""
    folder = out or place(source, form, file_kind)
    origin = Export(
        run=source.run.state.id, stage=source.stage.name, model=source.stage.weights, format=form
    )
    existing = Export.read(folder)
    empty = folder.is_dir() and not any(folder.iterdir())
    parts = (origin.run, origin.stage, origin.format)
    same = existing and (existing.run, existing.stage, existing.format) == parts
    if folder.exists() and not empty and (folder.is_symlink() or not same):
        if existing:
            content = f"the {existing.format} of another model"
        else:
            content = "something other than an export of this model"
        raise Stop(f"`{folder}` holds {content}.", "Name an empty or a new folder with `--out`.")
    with replacing_folder(folder) as new:
        written_kind = ""
        if form == "gguf":
            written_kind, proof = _gguf(source, file_kind, new, tell)
        elif form == "adapter":
            proof = _adapter(source, new, tell)
        elif form in compressed.FORMATS:
            group = compressed.require_known(source, form)
            proof = _safetensors(source, new, tell)
            compressed.write(source, new, form, group)
            answers = compressed.prove(source, new, form, *_texts(source))
            loss = answers[f"loss_in_{form}"]
            tell(
                f"In {form} its loss is {loss:.3f} nats a token, before {answers['loss']:.3f}. It chooses {answers['same_tokens']} of {answers['answer_tokens']} tokens of the trained model's answers. Its weights take {answers['bytes']:,} bytes, before {answers['bytes_before']:,}."
            )
            proof |= answers
        else:
            proof = _safetensors(source, new, tell)
        record = Export(
            **vars(origin) | {"kind": written_kind, "proof": proof, "version": __version__}
        )
        tell_of(source, new, record)
    return folder


def tell_of(source: TrainedModel, folder: Path, record: Export) -> None:
    """Writes the card of an exported model, with today's evaluation, and the record of its
    files."""
    gguf_name = next((file.name for file in folder.glob("*.gguf")), "")
    text = card.text(source, record.format, record.kind, record.proof, gguf_name)
    write_text(folder / CARD, text)
    files = {}
    for file in sorted(folder.iterdir()):
        if file.name != EXPORTED:
            files[file.name] = sha256(file)
    write_json(folder / EXPORTED, vars(record) | {"files": files})


def place(source: TrainedModel, form: str, file_kind: str | None) -> Path:
    """The default folder of an export."""
    if file_kind:
        return source.home / f"{form}-{file_kind}"
    return source.home / form


def _safetensors(source: TrainedModel, folder: Path, tell: Tell) -> Proof:
    """The model as transformers and vLLM load it."""
    from transformers import GenerationConfig

    for file in sorted(source.model.iterdir()):
        if file.is_file() and file.name not in (CARD, EXPORTED):
            shutil.copy2(file, folder / file.name)
            (folder / file.name).chmod(0o644)
    file = folder / "generation_config.json"  # servers read the end tokens here
    facts = read_record(file)
    end_numbers = _as_list(facts.get("eos_token_id"))
    tokenizer = words_of(source.chat, folder)
    trained_ends = end_tokens(tokenizer, source.chat.turn_end)
    ends = list(dict.fromkeys([*end_numbers, *trained_ends]))
    if ends != end_numbers:
        write_json(file, facts | {"eos_token_id": ends})
    proof = _proven_weights(source, folder, tell)
    if tokenizer.chat_template != words_of(source.chat, source.model).chat_template:
        raise unproven("its chat template is not the trained one")
    end_numbers = _as_list(GenerationConfig.from_pretrained(str(folder)).eos_token_id)
    for token in end_tokens(tokenizer, source.chat.turn_end):
        if token not in end_numbers:
            raise unproven(
                f"no answer would end with `{tokenizer.convert_ids_to_tokens(token)}`, as in training"
            )
    tell("Its files contain the chat template and the end token of training.")
    return proof


def _proven_weights(source: TrainedModel, folder: Path, tell: Tell) -> Proof:
    """Proves the weights of a complete model by comparing them with those that training started
    from."""
    trust = source.chat.trust_remote_code
    if source.base is None:
        tell(
            "The model that training started from is not here, so the export was compared only with its record."
        )
        return {}
    with _base_at_hand(source.base[0]):
        if source.adapter is None:
            proof = trained_model.trained(folder, source.base, trust)
            tell(
                f"Training has changed {proof['changed_tensors']} of {proof['tensors']} tensors of its base model."
            )
        else:
            proof = trained_model.merged(folder, source.adapter, source.base, trust)
            tell(
                f"Its {proof['changed_tensors']} adapted layers are the base model's with the adapter added (within {proof['largest_difference']:.1e} of the largest change); all others are the base model's."
            )
        return proof


@contextmanager
def _base_at_hand(name: str) -> Iterator[None]:
    """Raises Stop if the block cannot load a base model."""
    try:
        yield
    except OSError as error:
        reason = (str(error).splitlines() or ["it is not there"])[0]
        raise Stop(
            f"The base model `{name}` cannot be loaded, so the export cannot be verified: {reason}",
            "Check the network, or the run folder.",
        ) from None


def _as_list(tokens: object) -> list[Any]:
    if isinstance(tokens, list):
        return tokens
    if tokens is not None:
        return [tokens]
    return []


def _adapter(source: TrainedModel, folder: Path, tell: Tell) -> Proof:
    """The adapter alone, for a server with its base model."""
    adapter = source.adapter
    trust = source.chat.trust_remote_code
    if adapter is None:
        raise Stop(
            f"The stage `{source.stage.name}` trains the model itself and no adapter.",
            "`--format safetensors` exports the model.",
        )
    if source.base is None:
        raise Stop(
            "The adapter's base model is not here, so the adapter cannot be verified.",
            "Restore the base model.",
        )
    base = source.base
    with _base_at_hand(base[0]):
        base_model = trained_model.without_weights(base, trust)
    modules = {name for name, _ in base_model.named_modules()}
    obstacles = list(refusals(adapter.config))
    strange = sorted(set(adapter.layers).difference(modules))
    if getattr(base_model.config, "vision_config", None) is not None:
        strange = sorted({*strange, *ignored(adapter.layers)})
    if not adapter.layers:
        obstacles.append("it changes no layer")
    elif strange:
        further = f", and {len(strange) - 1:,} others" if len(strange) > 1 else ""
        obstacles.append(
            f"it changes `{strange[0]}`{further}, but the base model has no such layer; a server would answer like the base model, without a message"
        )
    if obstacles:
        faults = "; ".join(obstacles)
        message, remedy = (
            f"Servers cannot serve this adapter: {faults}.",
            "`--format safetensors` exports the model with the adapter in it.",
        )
        if adapter.config.get("modules_to_save"):
            # With whole layers the merged model is not base + scale · B · A, so no export of it can
            # be proven.
            remedy = f"The run's `{BEST_MODEL}/` contains the model that PEFT merged; no export verifies that merge."
        raise Stop(message, remedy)

    for name in (trained_model.WEIGHTS, "adapter_config.json", *_WORDS):
        for file in sorted(adapter.folder.glob(name)):
            shutil.copy2(file, folder / file.name)
    facts = read_record(
        folder / "adapter_config.json"
    )  # the folders of this machine mean nothing elsewhere
    if source.hub_base:
        facts["base_model_name_or_path"] = source.hub_base
        facts["revision"] = source.run.planned.revision or None
    write_json(folder / "adapter_config.json", facts)
    texts, chat = _texts(source)
    prompts = [numbers for _, numbers in gguf.prompts(words_of(chat), chat, texts)]
    with _base_at_hand(base[0]):
        proof = trained_model.beside(folder, base, source.model, prompts, trust)
    tell(
        "With its base model it answers as the merged model does, and not as the base model alone."
    )
    rank = rank_of(adapter.config)
    return proof | {"rank": rank, "max_lora_rank": room_for(rank) or rank}


def _gguf(
    source: TrainedModel, file_kind: str | None, folder: Path, tell: Tell
) -> tuple[str, Proof]:
    """A file for llama.cpp and Ollama, with a Modelfile; and its kind."""
    import llama_cpp as library  # noqa: F401 - fails here, before anything is downloaded

    converter = gguf.converter()
    config = read_record(source.model / "config.json")
    (name, *_) = config.get("architectures") or ["(none)"]
    supported = sorted(gguf.architectures(converter))
    if name not in supported:
        known = ", ".join(supported)
        raise Stop(
            f"llama.cpp's converter, of llama-cpp-python {gguf.VERSION}, does not know the architecture `{name}`.\nIt knows {known}.",
            "`--format safetensors` exports it for servers that load it as transformers does.",
        )
    chat_of_model = source.chat
    tokenizer = words_of(chat_of_model)
    proof = _proven_weights(source, source.model, tell)
    if chat_of_model.turn_end:
        end = tokenizer.convert_tokens_to_ids(chat_of_model.turn_end)
    else:
        end = None
    with _for_converter(source, tokenizer) as model:
        unnamed = folder / "model.gguf"
        trust = chat_of_model.trust_remote_code
        # Of a model that also sees, the converter leaves out the other parts, and nothing else.
        fewest_numbers = trained_model.numbers_for_text((str(source.model), None), trust)
        written_kind = gguf.write(model, unnamed, file_kind, end, converter, fewest_numbers)
    file = unnamed.rename(folder / f"{label(source.run.name)}-{written_kind}.gguf")
    texts, chat = _texts(source)
    comparison = gguf.prove(
        file, written_kind, chat, texts, GENERAL_TEXT.read_text(encoding="utf-8")
    )
    tell(
        f"llama.cpp cuts text into the same tokens, and generates {comparison['same_tokens']} of {comparison['tokens']} tokens as transformers does, to {comparison['prompts']} prompts (at most {comparison['largest_difference_nats']:.1e} nats apart)."
    )
    tell("The file contains the chat template and the end token of training.")
    ends = []
    for token in end_tokens(tokenizer, chat_of_model.turn_end):
        ends.append(str(tokenizer.convert_ids_to_tokens(token)))
    context = source.folder.stage.config.get("sequence_len")
    penalty = repetition_penalty(chat_of_model)
    modelfile = card.modelfile(
        file.name,
        tokenizer,
        chat_of_model.chat,
        chat_of_model.system_prompt,
        ends,
        context,
        penalty,
    )
    write_text(folder / "Modelfile", modelfile)
    return written_kind, proof | comparison


@contextmanager
def _for_converter(source: TrainedModel, tokenizer: TextTokenizer) -> Iterator[Path]:
    """The model's folder as the converter needs it. It reads SentencePiece tokenizers from the base
    model's own file, which transformers 5 no longer writes, and some settings that it no longer
    writes either."""
    from transformers.utils import cached_file

    name = "tokenizer.model"
    settings = "tokenizer_config.json"
    tokenizer_file = source.model / "tokenizer.json"
    by_bytes = tokenizer_file.is_file() and "ByteLevel" in tokenizer_file.read_text(
        encoding="utf-8"
    )
    is_complete = by_bytes or (source.model / name).is_file()
    sentencepiece = None
    if not is_complete and source.base:
        base, revision = source.base
        with _base_at_hand(base):
            sentencepiece = cached_file(
                base, name, revision=revision, _raise_exceptions_for_missing_entries=False
            )
    if not sentencepiece:
        yield source.model
        return
    with tempfile.TemporaryDirectory() as copy:
        for file in source.model.iterdir():
            (Path(copy) / file.name).symlink_to(file)
        (Path(copy) / name).symlink_to(Path(sentencepiece).resolve())
        (Path(copy) / settings).unlink(missing_ok=True)
        # What transformers 4 wrote too, and the converter reads: the special tokens, and whether a
        # text begins with a blank.
        kept = {}
        for number, token in tokenizer.added_tokens_decoder.items():
            kept[str(number)] = {
                "content": token.content,
                "special": token.special,
                "normalized": token.normalized,
            }
        facts = read_record(source.model / settings) | {"added_tokens_decoder": kept}
        if source.chat.chat:
            # llama.cpp adds that blank also after each special token, such as the first of a
            # conversation. So a chat's setting is what the tokenizer does there.
            behind = tokenizer(f"{tokenizer.eos_token}a", add_special_tokens=False)["input_ids"]
            facts["add_prefix_space"] = tokenizer.convert_ids_to_tokens(behind)[1].startswith("▁")
        write_json(Path(copy) / settings, facts)
        yield Path(copy)


def _texts(source: TrainedModel) -> tuple[tuple[str, ...], Chat]:
    """The demo's questions, and how they are asked; without questions, beginnings of the general
    text to continue."""
    if source.questions:
        return source.questions, source.chat
    tokenizer = words_of(source.chat)
    rows = [row[: gguf.PROMPT_TOKENS] for row, _ in evaluate.general_rows(tokenizer)]
    texts = tuple(map(tokenizer.decode, rows))
    return texts, replace(source.chat, chat=False)
