"""Names: the nearest known name, names and texts for people, and names that a cluster accepts."""

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any

# A misspelled name is at least this similar to the right one; two different names rarely are.
ALIKE = 0.87


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most similar to `word`, or None. cutoff: the least similarity, from 0 to 1 (equal)."""
    by_lower = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint, with the nearest name and a space at its end; empty without one."""
    near = nearest(word, known)
    return f"Did you mean `{near}`? " if near else ""


def listed(words: Iterable[str], joint: str = "and") -> str:
    """Names as a list for people: `a`, `b` and `c`."""
    quoted = [f"`{word}`" for word in words]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {joint} {quoted[-1]}" if quoted else ""


def shortened(text: str, most: int) -> str:
    """A text on one line, of at most this many characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def same(text: str) -> str:
    """A text for comparisons; texts that differ only in space and case become equal."""
    return " ".join(text.split()).casefold()


_HUB_PAGE = re.compile(r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?:datasets/)?([^/?#\s]+/[^/?#\s]+)")


def hub_name(address: str) -> str | None:
    """The name of a model or data set, from the address of its page on the hub; None for any other text."""
    found = _HUB_PAGE.match(address.strip())
    return found[1] if found else None


def content_hash(value: Any, length: int = 10) -> str:
    """The first `length` hexadecimal digits of a value's SHA-256; the same on every machine."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:length]


# Kubeflow appends `-worker-N` to a job's name, and a pod's host name has at most 63 characters.
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,51}[a-z0-9])?\Z")


def longest_job_name(machines: int) -> int:
    """The maximum length of the name of a job with this number of machines."""
    return min(53, 63 - len(f"-worker-{machines - 1}"))


def label(text: str) -> str:
    """A value that Kubernetes accepts as a label: at most 63 of [A-Za-z0-9._-], alphanumeric at both ends."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")


def setting(path: Iterable[str | int]) -> str:
    """A setting's full name, `data.sets[1].path`, which `--set` accepts too."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def served(name: str) -> tuple[str, str]:
    """The names of a recipe's models on a server: before training and after it. The hub's cache allows no `--`."""
    plain = re.sub("-{2,}", "-", name)
    return f"{plain}-base", plain
