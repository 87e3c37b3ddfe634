"""Exporting: a model of a run into a folder for others, which appears there once it is proven to be the model that was trained."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner import __version__
from runner.parts.evaluate import language
from runner.parts.export import card, gguf, llama_cpp, trained_model
from runner.parts.export.trained_model import Proof, TrainedModel, unproven, words_of
from runner.tools.files import Record, read_record, replacing_folder, sha256, write_json, write_text
from runner.tools.names import label
from runner.tools.own_words import GENERAL_TEXT
from runner.tools.problem import Stop
from runner.tools.run_files import BEST_MODEL, EXPORTED
from runner.tools.vllm import room_for, saved
from runner.trainer.generation import Chat, end_tokens, repetition_penalty

Tell = Callable[[str], None]
FORMATS = ("safetensors", "adapter", "gguf")
CARD = "README.md"
# What a tokenizer consists of, and what else belongs to a model, as transformers names them.
_WORDS = (
    "tokenizer*", "special_tokens_map.json", "chat_template*", "added_tokens.json", "vocab.*", "merges.txt",
)  # fmt: skip


@dataclass(frozen=True)
class Export(Record):
    """What is on record beside an export. run, stage: of what; model: hash of the trained model; format, kind: of it,
    the kind of a GGUF file; files: SHA-256 by name; proof: what was compared, and how it came out; version: of the
    runner."""

    FILE = EXPORTED
    run: str = ""
    stage: str = ""
    model: str = ""
    format: str = ""
    kind: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    proof: Mapping[str, float] = field(default_factory=dict)
    version: str = ""


def export(source: TrainedModel, form: str, kind: str | None, out: Path | None, tell: Tell) -> Path:
    """Exports a model and gives the folder with it. form: of FORMATS; kind: of a GGUF file, of `gguf.KINDS`, None for what the weights
    are kept in; out: the folder, by default one in the run.

    Raises Stop before anything is written if it cannot be served or its place is taken, and after it, with nothing
    left, if it is not proven to be what was trained.
    """
    folder = out or place(source, form, kind)
    about = Export(run=source.run.state.id, stage=source.stage.name, model=source.stage.weights, format=form)
    _require_room(folder, about)
    write = _writer(source, form, kind)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with replacing_folder(folder) as partial:
        made_kind, proof = write(partial, tell)
        made = Export(**vars(about) | {"kind": made_kind, "proof": proof, "version": __version__})
        tell_of(source, partial, made)
    return folder


def tell_of(source: TrainedModel, folder: Path, made: Export) -> None:
    """Writes the card of what is in a folder, and the record of its files. What was measured since is on the card then."""
    file = next((file.name for file in folder.glob("*.gguf")), "")
    write_text(folder / CARD, card.text(source, made.format, made.kind, made.proof, file))
    files = {file.name: sha256(file) for file in sorted(folder.iterdir()) if file.name != EXPORTED}
    write_json(folder / EXPORTED, vars(made) | {"files": files})


def place(source: TrainedModel, form: str, kind: str | None) -> Path:
    """The default folder of an export."""
    return source.home / (f"{form}-{kind}" if kind else form)


def _require_room(folder: Path, about: Export) -> None:
    """Raises Stop if a folder holds anything but an earlier export of the same in the same format."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    known = Export.read(folder)
    same = known and (known.run, known.stage, known.format) == (about.run, about.stage, about.format)
    if folder.exists() and (folder.is_symlink() or not same):
        what = f"the {known.format} of another model" if known else "other things than an export of this model"
        raise Stop(f"`{folder}` holds {what}.", "Name an empty or a new folder with `--out`.")


Writer = Callable[[Path, Tell], tuple[str, Proof]]


def _writer(source: TrainedModel, form: str, kind: str | None) -> Writer:
    """What writes a format. Raises Stop if it would write what no server can serve."""
    if form == "adapter":
        return _adapter(source)
    if form == "gguf":
        return _gguf(source, kind)
    return lambda folder, tell: ("", _safetensors(source, folder, tell))


def _safetensors(source: TrainedModel, folder: Path, tell: Tell) -> Proof:
    """The model as transformers and vLLM load it."""
    for file in sorted(source.model.iterdir()):
        if file.is_file() and file.name not in (CARD, EXPORTED):
            shutil.copy2(file, folder / file.name)
            (folder / file.name).chmod(0o644)
    _end_answers(source, folder)
    proof = _proven_weights(source, folder, tell)
    _read_back(source, folder)
    tell("Its files contain the chat template and the end token of training.")
    return proof


def _proven_weights(source: TrainedModel, folder: Path, tell: Tell) -> Proof:
    """Proves the weights of a whole model against the one that the stage began with."""
    trust = source.chat.trust_remote_code
    if source.base is None:
        tell("The model that training started from is not here, so the export was compared only with its record.")
        return {}
    with _base_at_hand(source.base[0]):
        if source.adapter is None:
            proof = trained_model.trained(folder, source.base, trust)
            tell(f"Training has changed {proof['changed_tensors']} of {proof['tensors']} tensors of its base model.")
        else:
            proof = trained_model.merged(folder, source.adapter, source.base, trust)
            tell(
                f"Its {proof['changed_tensors']} adapted layers are the base model's with the adapter added (within "
                f"{proof['largest_difference']:.1e} of the largest change); all others are the base model's."
            )
        return proof


@contextmanager
def _base_at_hand(name: str) -> Iterator[None]:
    """Raises Stop if a base model cannot be loaded in the block."""
    try:
        yield
    except OSError as error:
        said = (str(error).splitlines() or ["it is not there"])[0]
        raise Stop(
            f"The base model `{name}` cannot be loaded, so the export cannot be verified: {said}",
            "Check the network, or the run folder.",
        ) from None


def _end_answers(source: TrainedModel, folder: Path) -> None:
    """Has servers, which go by `generation_config.json`, end an answer with the token of training."""
    file = folder / "generation_config.json"
    facts = read_record(file)
    known = facts.get("eos_token_id")
    ends = [*(known if isinstance(known, list) else [known] if known is not None else [])]
    wanted = list(dict.fromkeys([*ends, *end_tokens(words_of(source.chat, folder), source.chat.turn_end)]))
    if wanted != ends:
        write_json(file, facts | {"eos_token_id": wanted})


def _read_back(source: TrainedModel, folder: Path) -> None:
    from transformers import GenerationConfig

    trained, words = words_of(source.chat, source.model), words_of(source.chat, folder)
    if words.chat_template != trained.chat_template:
        raise unproven("its chat template is not the trained one")
    known = GenerationConfig.from_pretrained(str(folder)).eos_token_id
    for token in end_tokens(words, source.chat.turn_end):
        if token not in (known if isinstance(known, list) else [known]):
            raise unproven(f"no answer would end with `{words.convert_ids_to_tokens(token)}`, as in training")


def _adapter(source: TrainedModel) -> Writer:
    """The adapter alone, for a server with its base model."""
    adapter, trust = source.adapter, source.chat.trust_remote_code
    if adapter is None:
        raise Stop(
            f"The stage `{source.stage.name}` trains the model itself and no adapter.",
            "`--format safetensors` exports the model.",
        )
    if source.base is None:
        raise Stop(
            "The adapter's base model is not here, so nobody can say whether it fits.", "Bring the base model back."
        )
    base = source.base
    with _base_at_hand(base[0]):
        modules = trained_model.modules_of(base, trust)
    if found := list(trained_model.faults(adapter, modules)):
        raise Stop(
            "Servers cannot serve this adapter: " + "; ".join(found) + ".",
            "`--format safetensors` exports the model with the adapter in it."
            if adapter.follows_formula
            else f"The run's `{BEST_MODEL}/` has the adapter in it, as PEFT has merged it; no export proves that merge.",
        )

    def write(folder: Path, tell: Tell) -> tuple[str, Proof]:
        for name in (trained_model.WEIGHTS, "adapter_config.json", *_WORDS):
            for file in sorted(adapter.folder.glob(name)):
                shutil.copy2(file, folder / file.name)
        # The machine that loads it does not have this machine's folders.
        facts = read_record(folder / "adapter_config.json")
        named = {"base_model_name_or_path": source.hub_base, "revision": source.run.planned.revision or None}
        write_json(folder / "adapter_config.json", facts | (named if source.hub_base else {}))
        with _base_at_hand(base[0]):
            proof = trained_model.beside(folder, base, source.model, _prompts(source), trust)
        tell("Beside its base model it answers as the merged model does, and not as the base model.")
        rank = saved(adapter.folder).rank
        return "", proof | {"rank": rank, "max_lora_rank": room_for(rank) or rank}

    return write


def _gguf(source: TrainedModel, kind: str | None) -> Writer:
    """A file for llama.cpp and Ollama, with a Modelfile beside it."""
    import llama_cpp as library  # noqa: F401 - said here, before anything is fetched or written

    converter = llama_cpp.converter()
    gguf.require_known(source.model, converter)

    def write(folder: Path, tell: Tell) -> tuple[str, Proof]:
        asked = source.chat
        tokenizer = words_of(asked)
        proof = _proven_weights(source, source.model, tell)
        end = tokenizer.convert_tokens_to_ids(asked.turn_end) if asked.turn_end else None
        with _for_converter(source, tokenizer) as model:
            unnamed = folder / "model.gguf"
            made = gguf.write(model, unnamed, kind, end, converter)
        file = unnamed.rename(folder / f"{label(source.run.name)}-{made}.gguf")
        texts, chat = _texts(source)
        said = gguf.prove(file, made, chat, texts, GENERAL_TEXT.read_text(encoding="utf-8"))
        tell(
            f"llama.cpp reads text in the same tokens, and says {said['same_tokens']} of {said['tokens']} tokens as transformers "
            f"does, to {said['prompts']} prompts (at most {said['largest_difference_nats']:.1e} nats apart)."
        )
        tell("The file contains the chat template and the end token of training.")
        ends = [str(tokenizer.convert_ids_to_tokens(token)) for token in end_tokens(tokenizer, asked.turn_end)]
        context = source.folder.stage.config.get("sequence_len")
        told = card.modelfile(
            file.name, tokenizer, asked.chat, asked.system_prompt, ends, context, repetition_penalty(asked)
        )
        write_text(folder / "Modelfile", told)
        return made, proof | said

    return write


@contextmanager
def _for_converter(source: TrainedModel, tokenizer: Any) -> Iterator[Path]:
    """The model's folder as the converter needs it: it reads tokenizers of SentencePiece from the base model's own
    file, which transformers 5 does not write again, and some of its settings neither."""
    from transformers.utils import cached_file

    name, settings = "tokenizer.model", "tokenizer_config.json"
    words = source.model / "tokenizer.json"
    by_bytes = words.is_file() and "ByteLevel" in words.read_text(encoding="utf-8")
    whole = by_bytes or (source.model / name).is_file()
    found = None
    if not whole and source.base:
        base, revision = source.base
        with _base_at_hand(base):
            found = cached_file(base, name, revision=revision, _raise_exceptions_for_missing_entries=False)
    if not found:
        yield source.model
        return
    with tempfile.TemporaryDirectory() as made:
        for file in source.model.iterdir():
            (Path(made) / file.name).symlink_to(file)
        (Path(made) / name).symlink_to(Path(found).resolve())
        (Path(made) / settings).unlink(missing_ok=True)
        write_json(Path(made) / settings, read_record(source.model / settings) | _told(tokenizer, source.chat.chat))
        yield Path(made)


def _told(tokenizer: Any, chat: bool) -> dict[str, Any]:
    """What transformers 4 has written into the settings of a tokenizer, and the converter reads there: the special
    tokens, and whether a text begins with a blank. llama.cpp begins with one behind each of those tokens too, so in a
    conversation, which begins with one, what counts is what the tokenizer does there."""
    kept = {
        str(number): {"content": token.content, "special": token.special, "normalized": token.normalized}
        for number, token in tokenizer.added_tokens_decoder.items()
    }
    if not chat:
        return {"added_tokens_decoder": kept}
    behind = tokenizer(f"{tokenizer.eos_token}a", add_special_tokens=False)["input_ids"]
    blank = tokenizer.convert_ids_to_tokens(behind)[1].startswith("▁")
    return {"added_tokens_decoder": kept, "add_prefix_space": blank}


def _texts(source: TrainedModel) -> tuple[tuple[str, ...], Chat]:
    """The demo's questions, and how they are asked; if there are none, beginnings of the general text, which is
    continued."""
    if source.questions:
        return source.questions, source.chat
    words = words_of(source.chat)
    rows = [row[: gguf.PROMPT_TOKENS] for row, _ in language.general_rows(words)]
    return tuple(words.decode(row) for row in rows), replace(source.chat, chat=False)


def _prompts(source: TrainedModel) -> list[list[int]]:
    texts, chat = _texts(source)
    return [numbers for _, numbers in gguf.prompts(words_of(chat), chat, texts)]
