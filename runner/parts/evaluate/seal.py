"""Seal: a keyed digest of a record, HMAC-SHA256 (RFC 2104), which shows that a number was edited.

A person's key is in the folder of their settings, and never in a run or on a cluster. A namespace
has a key that is derived from it, in a Secret that everybody who may create pods there can read. It
is worthless elsewhere."""

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.tools.files import settings_folder
from runner.tools.problem import Stop
from runner.tools.run_files import SEAL_KEY

DIGEST = "digest"
# The key of a namespace, and a digest with this key, begin with its name.
_OF_NAMESPACE = re.compile(r"([-a-z0-9]{1,63}):[0-9a-f]{64}")
SHORTEST = 32


def key(make: bool, namespace: str = "") -> str:
    """The key, from the environment (a Secret) or the user's file. make: create a missing one;
    namespace: derive the key of this namespace. Raises Stop if there is no key, or the file cannot
    be read or written."""
    file = settings_folder() / "key"
    try:
        key_text = os.environ.get(SEAL_KEY, "").strip()
        if not key_text and make and not file.exists():
            _make(file)
        if not key_text and file.exists():
            key_text = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise Stop(
            f"The key that seals measurements cannot be used: {error}",
            f"It is in `{file}`. The environment variable `{SEAL_KEY}` can hold it instead.",
        ) from None
    if not key_text:
        raise Stop(
            "There is no key to seal measurements with.",
            f"`recipe evaluate` creates one in `{file}`, and `recipe submit` creates the Secret that pods read.",
        )
    if len(key_text) < SHORTEST:
        raise Stop(
            f"The key that seals measurements has {len(key_text)} characters, but needs {SHORTEST}.",
            f"Delete `{file}`, or remove `{SEAL_KEY}` from the environment. The next measurement creates a new key.",
        )
    if namespace:
        return f"{namespace}:{_mac(key_text, f'namespace {namespace}')}"
    return key_text


def _mac(key: str, text: str) -> str:
    return hmac.new(key.encode(), text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _make(file: Path) -> None:
    """Creates a key that only this user may read. The key of another process that was faster is
    kept."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as key_file:
        key_file.write(f"{secrets.token_hex(32)}\n")
    try:
        os.link(partial, file)
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def sealed(facts: Mapping[str, object], make: bool) -> dict[str, Any]:
    """A record's JSON form with its digest. make: as for `key`, which may raise Stop."""
    return {**facts, DIGEST: digest(facts, key(make))}


def digest(facts: Mapping[str, object], key: str) -> str:
    """The digest of a record's JSON form without its own digest."""
    plain = {name: value for name, value in facts.items() if name != DIGEST}
    text = json.dumps(plain, sort_keys=True, ensure_ascii=False)
    space = _OF_NAMESPACE.fullmatch(key)
    if space:
        return f"{space[1]}:{_mac(key, text)}"
    return _mac(key, text)


def broken(facts: Mapping[str, object]) -> str:
    """Why a record does not count as sealed; empty if it does."""
    recorded_digest = facts.get(DIGEST)
    if not isinstance(recorded_digest, str) or not recorded_digest:
        return "the record is not sealed, so its author is unknown"
    try:
        own_key = key(make=False)
        space = _OF_NAMESPACE.fullmatch(recorded_digest)
        if space and not _OF_NAMESPACE.fullmatch(own_key):  # a pod sealed it, and a person reads it
            own_key = key(make=False, namespace=space[1])
    except Stop as stop:
        return stop.text.partition("\n")[0]
    if not hmac.compare_digest(
        recorded_digest.encode("utf-8", "surrogatepass"), digest(facts, own_key).encode()
    ):
        return "the record was edited, or sealed with another key than yours"
    return ""
