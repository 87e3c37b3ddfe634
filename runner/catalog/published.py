"""What the hub or a folder says of a model, read from its small files alone: no weights, and no code of its own."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.catalog.models import SPOKEN, Model, chat_template, from_config, near_model, unsuitable_type
from runner.catalog.tables import Facts, table
from runner.tools.problem import Stop

CONFIG = "config.json"
# Newer tokenizers have their template in a file of its own.
TEMPLATE = "chat_template.jinja"
BESIDE = ("tokenizer_config.json", "generation_config.json", TEMPLATE)
Fetch = Callable[[str], Path | None]


def why_no_hub() -> str | None:
    """None where the hub answers; else why it does not, in plain words."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    import urllib.error
    import urllib.request

    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5)
    except urllib.error.HTTPError:
        return None  # it answers, if only to say no
    except (OSError, ValueError) as error:
        return f"{address} does not answer ({getattr(error, 'reason', error)})"
    return None


def in_folder(folder: Path, name: str) -> Model:
    """The model in a folder, under a name. Raises Stop where there is none."""

    def fetch(file: str) -> Path | None:
        return folder / file if (folder / file).is_file() else None

    return _described(name, fetch)


def on_hub(name: str, revision: str) -> Model:
    """The model of that name and revision on the hub, with the commit that this is now. Raises Stop where it cannot be had."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def fetch(file: str) -> Path | None:
        try:
            return Path(hf_hub_download(name, file, revision=facts.sha))
        except RemoteEntryNotFoundError:
            return None

    try:
        facts = HfApi().model_info(name, revision=revision)
        model = _described(name, fetch)
    except GatedRepoError:
        raise Stop(
            f"`{name}` is gated: its licence must be accepted before its files can be had.",
            f"Accept it at https://huggingface.co/{name}, then `hf auth login`, or set HF_TOKEN.",
        ) from None
    except RevisionNotFoundError:
        raise Stop(
            f"`{name}` has no revision `{revision}`.", "Name a branch, a tag or a commit; without one it is `main`."
        ) from None
    except RepositoryNotFoundError:
        raise Stop(f"The hub has no model `{name}` that you may read.", _instead(name)) from None
    except HFValidationError:
        raise Stop(f"`{name}` is neither a folder here nor a name on the hub.", _near(name)) from None
    except (HTTPError, OSError) as error:
        raise Stop(
            f"The hub cannot be asked for `{name}`: {(str(error).strip() or type(error).__name__).splitlines()[0]}",
            "Check the network, and HF_ENDPOINT where you have a hub of your own; or name a folder that holds the model.",
        ) from None
    licences = [tag.partition(":")[2] for tag in facts.tags or () if tag.startswith("license:")]
    return replace(model, revision=facts.sha or "", licence=" ".join(licences), gated=bool(facts.gated))


def _near(name: str) -> str:
    near = near_model(name)
    known = f"Did you mean `{near}`? That one is in the catalog. " if near else ""
    return f"{known}Check the name; a private model needs `hf auth login`, or HF_TOKEN."


def _instead(name: str) -> str:
    """What is there in place of a model: a dataset of that name, or a name that is near."""
    from httpx import HTTPError
    from huggingface_hub import HfApi

    try:
        HfApi().dataset_info(name)
    except (HTTPError, OSError):
        return _near(name)
    return "That is the name of a dataset. A recipe names it under `data.hub`; `model.base` is to be a model."


def _described(name: str, fetch: Fetch) -> Model:
    config = _json(fetch(CONFIG), name)
    if not config:
        message = f"`{name}` has no `{CONFIG}`, so it is no model that transformers can load."
        raise Stop(message, "Is it an adapter, or GGUF?")
    if known := unsuitable_type(config):
        raise Stop(f"`{name}` cannot be trained with the packages that the runner uses.", f"{known.why}.")
    try:
        model = from_config(name, config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        kind = config.get("model_type", "no type")
        lacks = f"lacks {error}" if isinstance(error, KeyError) else "has sizes that are no numbers"
        raise Stop(
            f"`{name}` ({kind}) is no language model of text that the runner knows: its `{CONFIG}` {lacks}.",
            "Models that read images too, and mixtures of experts with other sizes, cannot be trained here.",
        ) from None
    words, ends = (_json(fetch(file), name) for file in BESIDE[:2])
    file = fetch(TEMPLATE)
    own = file.read_text(encoding="utf-8", errors="replace") if file else words.get("chat_template") or ""
    said: Facts = {key: _token(words.get(key)) or getattr(model, key) for key in SPOKEN if key != "chat_template"}
    number = ends.get("eos_token_id")
    first = number[0] if isinstance(number, list) and number else number
    said["eos_token"] = said["eos_token"] or _token((words.get("added_tokens_decoder") or {}).get(str(first)))
    said["pad_token"] = said["pad_token"] or said["eos_token"]
    said["chat_template"] = _template(model.chat_template, json.dumps(own, ensure_ascii=False), words)
    return replace(model, **said)


def _json(file: Path | None, name: str) -> Mapping[str, Any]:
    if file is None:
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise Stop(f"`{file.name}` of `{name}` cannot be read as JSON.", "Copy it again from where it came.") from None
    return content if isinstance(content, dict) else {}


def _token(value: Any) -> str:
    """A token, which a tokenizer's config has as text or with facts about it."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else ""


def _template(kin: str, own: str, words: Mapping[str, Any]) -> str:
    """The catalog's template whose tokens the model's own template writes, its kin's first and else the one with the most;
    for a model without one its kin's, where its tokenizer has those tokens. Empty where none fits: then its own is used."""
    known = {name: chat_template(name).tokens for name in table("templates")}
    added = {_token(value) for value in (words.get("added_tokens_decoder") or {}).values()}
    if own in ('""', "[]"):
        return kin if kin and set(known[kin]) <= added else ""
    fitting = [name for name, tokens in known.items() if len(tokens) > 1 and all(token in own for token in tokens)]
    return kin if kin in fitting else max(fitting, key=lambda name: len(known[name]), default="")
