"""Cleaning: processor seconds by step, with datatrove's own tokenizer and with ours, and shared by
pods.

    python benchmarks/cleaning_speed.py texts.jsonl               minutes for ten MB
    python benchmarks/cleaning_speed.py texts.jsonl --pods 2 4

Every way is a process of its own, one for each pod, and all ways must leave the same bytes. What is
counted is processor seconds and not time, because other work on the machine changes the one much
less than the other; pods take as long as the longest of them in each step, for they wait for one
another there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from runner.parts.pretrain import cleaning, executors
from runner.parts.pretrain.architecture import Cleaning, Corpus, CorpusSet
from runner.parts.pretrain.cleaning import clean
from runner.tools.process import INDEX


def corpus(file: str) -> Corpus:
    """All that seven-b asks of text."""
    source = {"path": file, "hub": None, "subset": None, "split": None, "revision": None}
    return Corpus(
        sets=(CorpusSet(**source, column="text", limit=None),),
        packed=None,
        language="en",
        min_words=50,
        max_words=100_000,
        drop_repetitive=True,
        drop_low_quality=True,
        deduplicate="near",
        validation_share=0.01,
        seed=42,
    )


def measure(file: str, folder: str, pods: int, own: bool) -> None:
    """One process's part; prints the processor seconds of each step, JSON."""
    if own:
        cleaning.words_of = cleaning.load_word_tokenizer
    executors.LOOK_SECONDS = 0.2
    spent: dict[str, float] = {}
    step = cleaning._run

    def counted(name, *arguments, **named):
        before = os.times()
        left = step(name, *arguments, **named)
        spent[name] = sum(os.times()[:4]) - sum(before[:4])
        return left

    cleaning._run = counted
    where = (
        Cleaning(executor="pods", pods=pods, workers=1)
        if pods > 1
        else Cleaning(tasks=1, workers=1)
    )
    clean(corpus(file), Path(folder), where)
    print(json.dumps(spent))


def run(file: str, folder: Path, pods: int, own: bool) -> list[dict[str, float]]:
    command = [
        sys.executable,
        __file__,
        file,
        "--measure",
        str(folder),
        "--pods",
        str(pods),
        *(["--own"] if own else []),
    ]
    started = [
        subprocess.Popen(
            command,
            env=os.environ
            | {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), INDEX: str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for index in range(pods)
    ]
    said = [process.communicate()[0] for process in started]
    return [json.loads(text.splitlines()[-1]) for text in said]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--pods", type=int, nargs="*", default=[2])
    parser.add_argument("--measure")
    parser.add_argument("--own", action="store_true")
    chosen = parser.parse_args()
    file = os.path.abspath(chosen.file)
    if chosen.measure:
        return measure(file, chosen.measure, chosen.pods[0], chosen.own)
    size, left, alone = os.path.getsize(file) / 1e6, set(), 0.0
    print(f"{size:.1f} MB\n{'':<24}{'CPU s':>8}{'MB/CPU s':>10}")
    for title, pods, own in (
        ("datatrove's tokenizer", 1, True),
        ("ours", 1, False),
        *((f"{count} pods, the longest", count, False) for count in chosen.pods),
    ):
        with tempfile.TemporaryDirectory() as folder:
            spent = run(file, Path(folder), pods, own)
            left.add(
                hashlib.sha256(Path(folder, "text", "documents.jsonl").read_bytes()).hexdigest()
            )
        longest = {name: max(each[name] for each in spent) for name in spent[0]}
        total = sum(longest.values())
        alone = alone if pods > 1 else total
        share = f"   {total / alone:.2f} of one" if pods > 1 else ""
        print(f"{title:<24}{total:>8.1f}{size / total:>10.2f}{share}")
        print(
            "  "
            + ", ".join(
                f"{name} {seconds:.1f}" for name, seconds in longest.items() if seconds > 0.5
            ),
            flush=True,
        )
    assert len(left) == 1, "the ways have left different bytes"


if __name__ == "__main__":
    main()
