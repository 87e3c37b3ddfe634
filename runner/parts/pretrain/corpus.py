"""Corpus: text to be cleaned, and where that is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from runner.data.data_sets import DataSet, DataSets


@dataclass(frozen=True, kw_only=True)
class CorpusSet(DataSet):
    """Documents. column: of the text. limit: documents to read, all of them where None."""

    column: str
    limit: int | None


@dataclass(frozen=True, kw_only=True)
class Corpus(DataSets):
    """Documents, and which of them are dropped.

    packed: a folder of blocks to take instead, as somebody has made them. language: of the text, as datatrove names it. min_words, max_words: of a document, counts.
    validation_share: part of the documents, 0 to 1, that a draw by `seed` keeps for validation. max_lost_share: of them, that
    may be none.
    """

    sets: tuple[CorpusSet, ...]
    packed: str | None
    language: str
    min_words: int
    max_words: int
    drop_repetitive: bool
    drop_low_quality: bool
    deduplicate: Literal["near", "exact", "off"]
    validation_share: float
    max_lost_share: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Cleaning:
    """Where text is cleaned; it changes no document.

    tasks: parts that are worked on by themselves, a count; None for as many as keep this machine, or all pods, busy.
    pods: that share the work, of an indexed Job; they have `cpus` each. workers: tasks at once, of pods in each, -1 for as many as
    there is room for. mem_per_cpu_gb: GB a core. time: of a task at most, as
    `[days-]hours:minutes:seconds`. partition, qos, sbatch_args: of Slurm. address: of a cluster of Ray.
    """

    executor: Literal["local", "pods", "slurm", "ray"] = "local"
    pods: int | None = None
    cpus: int = 1
    tasks: int | None = None
    workers: int = -1
    partition: str | None = None
    time: str | None = None
    cpus_per_task: int = 1
    mem_per_cpu_gb: int = 2
    qos: str | None = None
    sbatch_args: Mapping[str, Any] = field(default_factory=dict)
    address: str | None = None
