"""Tokenizers: loaded or trained, with their chat template; and the rows that Axolotl has
tokenised."""

import base64
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.catalog import ChatTemplate, Model
from runner.tools import packaged, text
from runner.tools.files import content_hash, read_json, sha256, write_json
from runner.tools.problem import Stop, first_line
from runner.tools.run_files import TEKKEN
from runner.tools.text import tokenizer_in

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LONGEST_WORD = (
    200  # the training of a tokenizer cuts longer words into parts of this many characters
)


@dataclass(frozen=True)
class Pretrained:
    """A model's tokenizer. base: a folder, or a name on the hub at `revision`."""

    base: str
    revision: str | None = None
    trust_remote_code: bool = False


# Given texts, the tokenizer to count them with; None if there is none on this machine.
TokenizerFor = Callable[[Iterable[str]], Any]

FILES = (
    *(
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "tokenizer.model",
    ),
    TEKKEN,
)
# The chat template that is not a template: mistral-common writes and splits the turns.
MISTRAL = "mistral_common"


def content(base: str) -> str:
    """A hash of a tokenizer's files in a folder; for a name on the hub, the name itself."""
    files = [Path(base) / name for name in FILES]
    if Path(base).is_dir():
        return content_hash([sha256(file) for file in files if file.is_file()], 32)
    return base


def load(base: str, revision: str | None, trust_remote_code: bool, local_only: bool = False) -> Any:
    """A model's tokenizer, from this machine, else, unless `local_only`, from the hub; None if it
    is not available. Raises Stop if it has code of its own that may not run, or fails."""
    for local in (True,) if local_only else (True, False):
        try:
            return tokenizer_in(base, trust_remote_code, revision, local)
        except Exception as error:
            if "trust_remote_code" in str(error):
                raise Stop(
                    f"The tokenizer of `{base}` brings its own code, and the recipe does not trust it.",
                    "Read that code. Then write `trust_remote_code: true` under `model`, or use another model.",
                ) from None
            if isinstance(error, (OSError, ValueError)):
                continue
            if not trust_remote_code:
                raise
            # Unknown code may fail in any way.
            raise Stop(
                f"The code of the tokenizer of `{base}` does not run here: {first_line(error)}",
                "Ask its makers which versions of transformers it needs, or use another model.",
            ) from None
    return None


def unfit(template: str, base: str, tekken: bool) -> tuple[str, str] | None:
    """Why a chat template does not fit a model's tokenizer, and the remedy. tekken: whether that is
    mistral-common's."""
    if tekken == (template == MISTRAL):
        return None
    if tekken:
        return (
            f"`{base}` has a file `tekken.json`, so its tokenizer is that of mistral-common, which takes no other chat template.",
            "Write `chat_template: mistral_common`; or use a copy of the model without this file, if `tokenizer.json` is there too.",
        )
    return (
        f"`{base}` has no file `tekken.json`, which mistral-common reads.",
        "Write `chat_template: auto`, which uses the tokenizer that is there.",
    )


def train(
    texts: Iterable[str], folder: Path, model: Model | None, template: ChatTemplate, vocabulary: int
) -> Any:
    """A byte-level BPE tokenizer with the special tokens of `model` and `template`, trained on
    `texts` and saved in `folder`. vocabulary: the maximum number of tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if any((folder / name).is_file() for name in (TEKKEN, "tokenizer.json")):
        return tokenizer_in(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if model:
        model_tokens = (model.eos_token, model.pad_token)
    else:
        model_tokens = ("", "")
    special = {
        "eos_token": model_tokens[0] or template.end,
        "pad_token": model_tokens[1] or "<|endoftext|>",
    }
    if model and model.bos_token:
        special["bos_token"] = model.bos_token
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(
            dict.fromkeys([special["pad_token"], *special.values(), *template.tokens])
        ),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # The time to learn from a word grows with the square of its length: hours for one of a million
    # characters.
    tokenizer.train_from_iterator(
        (re.sub(rf"(\S{{{LONGEST_WORD}}})", r"\1 ", text) for text in texts), trainer
    )
    if template.axolotl == MISTRAL:
        write_json(folder / TEKKEN, _tekken(tokenizer))
    else:
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, chat_template=jinja(template), **special
        )
        fast.save_pretrained(str(folder))
    return tokenizer_in(folder)


def _tekken(tokenizer: "Tokenizer") -> Mapping[str, Any]:
    """A byte-level BPE as mistral-common reads it: the 256 bytes, and then the merged ones in their
    order."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    added = {str(token) for token in tokenizer.get_added_tokens_decoder().values()}
    merged = sorted(
        (number, token) for token, number in tokenizer.get_vocab().items() if len(token) > 1
    )
    tokens_as_bytes = [bytes([byte]) for byte in range(256)]
    for _, token in merged:
        if token not in added:
            tokens_as_bytes.append(bytes(map(byte_of.__getitem__, token)))
    tekken_table = packaged.toml(__file__, "tekken.toml")
    special = []
    for rank, token in enumerate(tekken_table["special"]):
        special.append({"rank": rank, "token_str": token, "is_control": True})
    config = {
        "pattern": tekken_table["pattern"],
        "num_vocab_tokens": len(tokens_as_bytes),
        "default_vocab_size": len(tokens_as_bytes) + len(special),
        "default_num_special_tokens": len(special),
        "version": tekken_table["version"],
    }
    vocabulary = []
    for rank, word in enumerate(tokens_as_bytes):
        vocabulary.append(
            {
                "rank": rank,
                "token_bytes": base64.b64encode(word).decode(),
                "token_str": word.decode(errors="replace"),
            }
        )
    return {"config": config, "vocab": vocabulary, "special_tokens": special}


def jinja(chat_template: ChatTemplate) -> str:
    """The template in Jinja, as tokenizers have it, for conversations with any roles."""

    def filled(part: str, role: str = "", content: str = "message['content']") -> str:
        quoted = "'" + part.replace("\n", "\\n") + "'"
        return quoted.replace("{role}", f"' + {role} + '").replace(
            "{content}", f"' + {content} + '"
        )

    lines = text.template(Path(__file__).with_name("chat_template.jinja"), filled=filled).render(
        known=chat_template
    )
    return lines.replace("\n", "")


# The environment variable with the number of Axolotl's tokenising processes.
TOKENISING_PROCESSES = "AXOLOTL_DATASET_NUM_PROC"
# Each tokenising process imports Axolotl again, which takes as long as some thousand rows.
ROWS_A_PROCESS = 5_000


def processes(config: Mapping[str, object], most: int) -> int:
    """The best number of processes for tokenising the rows of an Axolotl config, at most `most`; 0:
    none, so that Axolotl's own process tokenises them."""
    import pyarrow.parquet as parquet

    rows: int = sum(
        parquet.read_metadata(file).num_rows for file in _files(config) if file.suffix == ".parquet"
    )
    return min(rows // ROWS_A_PROCESS, most)


def _files(config: Mapping[str, Any]) -> list[Path]:
    paths = []
    for key in ("datasets", "test_datasets"):
        for data in config.get(key) or ():
            paths.append(Path(data["path"]))
    return [path for path in paths if path.is_file()]


def forget_older(config: Mapping[str, Any]) -> None:
    """Deletes tokenised rows of earlier files at the same paths: Axolotl 0.19.0 finds them by path
    alone."""
    if "dataset_prepared_path" not in config:
        return  # a pretraining reads blocks
    folder = Path(config["dataset_prepared_path"])
    now = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in _files(config)]
    made_from = folder.with_name(f"{folder.name}-from.json")
    if read_json(made_from) != now:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(made_from, now)
