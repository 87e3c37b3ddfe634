"""Text that is safe for a terminal; YAML that parsers of YAML 1.1 and 1.2 (PyYAML; kubectl, Helm)
read alike; templates; names that clusters, servers and the hub accept; and a model's tokens of a
text."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from string import Template as Blanks
from typing import TYPE_CHECKING, Any, Protocol, overload

import yaml

from runner.tools.run_files import TEKKEN

if TYPE_CHECKING:
    from jinja2 import Template

# Texts that PyYAML writes without quotes, and that other parsers read as numbers or booleans:
# `840195e251` (a number in the core schema of YAML 1.2, section 10.3.2), octal and binary numbers
# as Go reads them, and YAML 1.1's `y` and `n`.
_OTHERWISE_NO_TEXT = re.compile(
    r"[-+]?(\.[0-9][0-9_]*|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9_]+)?|[-+]?0[oO][0-7_]+|[-+]?0[xX][0-9a-fA-F_]+|[-+]?0[bB][01_]+|[yYnN]"
)
# What a terminal interprets and does not show: escape sequences, control characters except newlines
# and tabs, and marks that change the direction of writing.
_CONTROL = (
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def printable(text: str) -> str:
    """A text without control sequences. It may come from a pod, a cluster or another person's
    recipe."""
    return re.sub(_CONTROL, "", text)


def json_text(value: object) -> str:
    """A value as indented JSON; a dataclass becomes an object."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=asdict)


class AddedToken(Protocol):
    """A token that a tokenizer does not split, as its files describe it."""

    content: str
    special: bool
    normalized: bool


class TextTokenizer(Protocol):
    """What the runner uses of transformers' tokenizers (PreTrainedTokenizerBase 5.16)."""

    name_or_path: str
    chat_template: str | None
    bos_token: str | None
    bos_token_id: int | None
    eos_token: str | None
    eos_token_id: int | None
    pad_token_id: int | None
    all_special_ids: Sequence[int]
    added_tokens_decoder: Mapping[int, AddedToken]

    def __len__(self) -> int: ...

    # Untyped values: lists of tokens for one text, and lists of these for several.
    def __call__(
        self, text: str | Sequence[str], *, add_special_tokens: bool = True
    ) -> Mapping[str, Any]: ...
    def decode(self, tokens: object, *, skip_special_tokens: bool = False) -> str: ...
    def convert_tokens_to_ids(self, token: str) -> int: ...
    @overload
    def convert_ids_to_tokens(self, tokens: int) -> str: ...
    @overload
    def convert_ids_to_tokens(self, tokens: Sequence[int]) -> list[str]: ...
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...
    def get_vocab(self) -> Mapping[str, int]: ...
    def apply_chat_template(self, conversation: object, **options: object) -> Any: ...
    def save_pretrained(self, folder: str) -> object: ...


@cache
def template(file: Path, *folders: Path, **helpers: object) -> "Template":
    """A Jinja template. Those of pages and pictures escape all texts, because anybody can write
    questions and answers. folders: of templates that it imports; helpers: what all of them know
    by name, and as filters."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    shelf = Environment(
        loader=FileSystemLoader((file.parent, *folders)), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=lambda name: str(name).endswith((".html.jinja", ".svg.jinja")),
    )  # fmt: skip
    shelf.globals |= helpers
    shelf.filters |= helpers
    return shelf.get_template(file.name)


def macros(file: Path, *folders: Path, **helpers: object) -> Any:
    """The macros of a `template`, each a function to text."""
    return template(file, *folders, **helpers).module


class Styled(str):
    """A line with colours of our own; what others wrote in it is `printable`."""


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, lists indented below their key, no aliases."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def _string(dumper: _Dumper, text: str) -> yaml.Node:
    if "\n" in text:
        style = "|"
    elif _OTHERWISE_NO_TEXT.fullmatch(text):
        style = "'"
    else:
        style = None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def yaml_text(value: object) -> str:
    """YAML in the order given. PyYAML writes 2e-05 as `2.0e-05`, which it and Axolotl read as a
    number."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def from_template(file: Path, /, **values: object) -> str:
    """The text of a file with its blanks, `$NAME` or `${NAME}`, filled in. Raises KeyError if a
    blank lacks its word, and TypeError if a word lacks its blank."""
    template = Blanks(file.read_text(encoding="utf-8"))
    refuse_unused(file, values, template.get_identifiers())
    return template.substitute(values)


def refuse_unused(file: Path, names: Iterable[str], places: Iterable[str]) -> None:
    """Raises TypeError if a template has no place for a word."""
    unused = sorted(set(names) - set(places))
    if unused:
        raise TypeError(
            f"{file.name} has no place for {', '.join(unused)}; its places are {', '.join(sorted(places))}"
        )


def filled(forms: Iterable[str], values: Mapping[str, object]) -> Iterator[str]:
    """The forms with their `{words}` filled in, without those of which a word is missing or
    None."""
    present = {name: value for name, value in values.items() if value is not None}
    for form in forms:
        with suppress(KeyError):
            yield form.format_map(present)


# The project's own general text: every model is measured on it, and a twin first learns from it.
GENERAL_TEXT = Path(__file__).with_name("general_text.txt")
_WORD = re.compile(r"(\w+(?:['’]\w+)*)")  # an apostrophe inside a word is part of it


def words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def learned(after: str, before: str, question: str, taught: Collection[str]) -> list[str]:
    """The words of an answer that only the training rows can have taught: not those of the answer
    before training, of the question, and of general text. taught: the words of the rows'
    answers."""
    elsewhere = {*words(before), *words(question), *words(GENERAL_TEXT.read_text("utf-8"))}
    learned_words = []
    for word in dict.fromkeys(words(after)):
        if word in taught and word not in elsewhere:
            learned_words.append(word)
    return learned_words


def pieces(text: str, wanted: Collection[str]) -> Iterator[tuple[str, bool]]:
    """A text in pieces, and whether each is one of these words."""
    return ((piece, piece.casefold() in wanted) for piece in _WORD.split(text) if piece)


def same(text: str) -> str:
    """A text for comparisons; texts that differ only in space and case become equal."""
    return " ".join(text.split()).casefold()


def hub_name(address: str) -> str | None:
    """The name of a model or data set, from the address of its page on the hub; None for any other
    text."""
    page = r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?:datasets/)?([^/?#\s]+/[^/?#\s]+)"
    match = re.match(page, address.strip())
    if match:
        return match[1]
    return None


# Kubeflow appends `-worker-N` to a job's name, and a pod's host name has at most 63 characters.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?\Z")


def longest_job_name(machines: int) -> int:
    """The maximum length of the name of a job with this number of machines."""
    return min(53, 63 - len(f"-worker-{machines - 1}"))


def label(text: str) -> str:
    """A value that Kubernetes accepts as a label: at most 63 of [A-Za-z0-9._-], alphanumeric at
    both ends."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def served(name: str) -> tuple[str, str]:
    """The names of a recipe's models on a server: before training and after it. The hub's cache
    allows no `--`."""
    plain = re.sub("-{2,}", "-", name)
    return f"{plain}-base", plain


def tokenizer_in(
    base: Path | str, trust: bool = False, revision: str | None = None, local: bool = False
) -> Any:
    """The tokenizer in a folder, which needs no model beside it, or of a model on the hub. trust:
    whether it may bring its own code; local: whether nothing is downloaded."""
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


def tokens(
    tokenizer: TextTokenizer,
    conversation: Sequence[Mapping[str, object]],
    *,
    asking: bool,
    tools: object = None,
) -> list[int]:
    """The tokens of a conversation in the model's template. They differ from those of the written
    text with mistral-common, which reads no special tokens in a text. asking: whether the model
    answers next."""
    options = {"tools": tools or None, "add_generation_prompt": asking}
    return list(tokenizer.apply_chat_template(conversation, return_dict=False, **options))
