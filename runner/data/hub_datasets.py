"""Datasets of the hub: their rows, their columns, their licence, and what to say where the hub does not give them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from runner.data.data_sets import Source
from runner.tools.problem import Stop


class Unreachable(Stop):
    """The hub does not answer, which says nothing of the dataset."""


def rows(source: Source, stream: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows as (number from 1, row), as they come where `stream` is set, else kept on disk first. Raises Stop where the dataset
    cannot be read, Unreachable where that is for the hub's sake."""
    try:
        # A stream asks the hub only when its first row is wanted.
        yield from enumerate(_loaded(source, stream), 1)
    except Exception as error:
        raise no_dataset(source, error) from None


def columns(source: Source) -> list[str]:
    """The names of a dataset's columns, from what the hub says of it or from its first row, as it will be read later. Raises
    as `rows` does."""
    from datasets.utils.logging import set_verbosity_error

    set_verbosity_error()
    try:
        dataset = _loaded(source, stream=True)
        return list(dataset.column_names or next(iter(dataset), ()))
    except Exception as error:
        raise no_dataset(source, error) from None


def _loaded(source: Source, stream: bool) -> Any:
    from datasets import load_dataset

    return load_dataset(source.hub, source.subset, split=source.split, revision=source.revision, streaming=stream)


def licence(source: Source) -> str:
    """What a dataset's page on the hub says about its licence, for a person; empty for a file."""
    if source.file:
        return ""
    from huggingface_hub import HfApi

    try:
        facts = HfApi().dataset_info(str(source.hub), revision=source.revision, timeout=10)
    except Exception:  # of as many kinds as in `reason_of`
        return f"not known, the hub cannot be asked; look at the page of {source.hub} before you publish a model"
    names = [tag.partition(":")[2] for tag in facts.tags or () if tag.startswith("license:")]
    if not names:
        return f"none on the page of {source.hub}; ask its makers before you publish a model"
    return f"{' '.join(names)}, as {source.hub} says; keep to it where you publish a model"


def no_dataset(source: Source, error: Exception) -> Stop:
    """What to say where the hub does not give a dataset."""
    reason = reason_of(error)
    kind = Unreachable if reason == UNREACHABLE else Stop
    return kind(
        f"The dataset `{source.hub}` cannot be loaded from the hub: {reason}",
        "Check its name, your network and your access; or download it and name it under `data.path`.",
    )


UNREACHABLE = "it cannot be reached from this machine."


def reason_of(error: Exception) -> str:
    """The library raises some twenty kinds of errors here: offline, no such dataset, gated, no such split."""
    kind, said = type(error).__name__, str(error).strip()
    if kind in ("DatasetNotFoundError", "RepositoryNotFoundError", "GatedRepoError"):
        return (
            "there is none of that name that you may read; a gated or private one needs `hf auth login`, or HF_TOKEN."
        )
    words = f"{kind} {said}".lower()
    if any(sign in words for sign in ("connect", "client has been closed", "name or service", "timed out", "offline")):
        return UNREACHABLE
    if several := re.search(r"config name is missing.*?\[(.*?)\]", said, re.IGNORECASE | re.DOTALL):
        return f"it has several subsets, and `subset` has to name one of them: {several[1]}."
    return said.split("\n")[0]
