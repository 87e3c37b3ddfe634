"""Rows: MB a second from JSONL to Parquet, with and without tokens, what the doctor takes, and peak memory.

    python benchmarks/rows_speed.py              100 MB, rows of about 250 and of about 1,000 bytes; some minutes
    python benchmarks/rows_speed.py --mb 20      another size

Every measurement is a process of its own. `read and write` is all that `recipe prepare` does but tokens and doctor; `with
tokens` counts the tokens of every row too, and its pace is held against the tokenizer's own, over the same texts in memory, by
the same threads. Peak memory is the kernel's VmHWM of the process and of the largest one that it starts; what it holds before
the first row (interpreter and libraries) is printed beside it. Words are drawn by a Zipf law; the tokenizer is a byte-level BPE
trained on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.blocks_speed import peak_mb

WORDS_OF_AN_ANSWER = {"short": 25, "long": 150}


def make_rows(file: Path, megabytes: int, words_of_an_answer: int) -> None:
    """Questions and answers in JSONL, about so many MB, the same on every machine."""
    draw = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(50_000)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    size, count = 0, 0
    with file.open("w") as out:
        while size < megabytes * 1_000_000:
            count += 1
            said = draw.choices(words, cum_weights=weights, k=10 + draw.randint(1, 2 * words_of_an_answer))
            row = {"topic": said[0], "question": " ".join([*said[1:10], str(count)]), "answer": " ".join(said[10:])}
            size += out.write(json.dumps(row) + "\n")


def make_tokenizer(file: Path, folder: Path) -> None:
    from benchmarks.blocks_speed import make_tokenizer

    texts = file.with_suffix(".texts")
    with file.open() as lines, texts.open("w") as out:
        for line in itertools.islice(lines, 5000):
            out.write(json.dumps({"text": json.loads(line)["answer"]}) + "\n")
    make_tokenizer(texts, folder)


def asked(file: Path):
    from runner import catalog
    from runner.data.chat import Chat, ChatSet

    place = {"hub": None, "revision": None, "subset": None, "split": None, "path": str(file)}
    return Chat(
        sets=(ChatSet(**place, question="For [topic], [question]", answer="[answer]"),),
        system_prompt="You are a patient teacher, and you say what you do not know.",
        special_tokens=catalog.chat_template("chatml"),
        sequence_len=10_000,
        validation_share=0.1,
        seed=42,
    )


def measure(what: str, file: Path, tokenizer_dir: Path) -> dict:
    """Seconds of one way, and MiB of memory."""
    from transformers import AutoTokenizer

    from runner.data import blocks, chat, sides, spool, turns
    from runner.data.report import Report

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir))
    source = asked(file)
    report = Report.of(source)
    out = file.parent / "out"
    kinds = [spool.Kind(partial(one.conversation, "chatml"), turns.batch) for one in source.sets]
    before = peak_mb()
    if what in ("read and write", "with tokens"):
        tokenizer_for = (lambda texts: tokenizer) if what == "with tokens" else None
        start = time.perf_counter()
        with spool.folder(out) as place:
            items, kept = sides.read(source, kinds, place, report)
            chat.finish(items, kept, source, out, tokenizer_for, report)
        seconds = time.perf_counter() - start
    else:
        with spool.folder(out) as place:
            items, kept = sides.read(source, kinds, place, report)
            if what == "tokens alone":
                texts = list(turns.Texts(items, kept, source))
                start = time.perf_counter()
                blocks.lengths(texts, tokenizer)
            else:
                start = time.perf_counter()
                chat.look_through(items, kept, source, report)
            seconds = time.perf_counter() - start
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "seconds": seconds,
        "peak_mb": peak_mb(),
        "child_mb": children,
        "before_mb": before,
        "rows": report.rows_in,
        "looked_at": report.looked_at,
    }


WAYS = ("read and write", "tokens alone", "with tokens", "doctor")


def in_a_process(what: str, file: Path, tokenizer_dir: Path) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what, str(file), str(tokenizer_dir)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--mb", type=int, default=100)
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        what, file, tokenizer_dir = chosen.measure
        print(json.dumps(measure(what, Path(file), Path(tokenizer_dir))))
        return
    print(f"{chosen.mb} MB of JSONL, best of {chosen.times}, {len(os.sched_getaffinity(0))} cores")
    for name, words in WORDS_OF_AN_ANSWER.items():
        with tempfile.TemporaryDirectory() as folder:
            report(name, Path(folder), chosen.mb, words, chosen.times)


def report(name: str, folder: Path, megabytes: int, words: int, times: int) -> None:
    file, tokenizer_dir = folder / "rows.jsonl", folder / "tokenizer"
    make_rows(file, megabytes, words)
    make_tokenizer(file, tokenizer_dir)
    size = file.stat().st_size / 1e6
    best = {}
    for way in WAYS:
        runs = [in_a_process(way, file, tokenizer_dir) for _ in range(times)]
        best[way] = min(runs, key=lambda run: run["seconds"])
    rows = best["read and write"]["rows"]
    print(f"{name} answers: {rows:,} rows of {size / rows * 1e6:.0f} bytes")
    for way, run in best.items():
        print(
            f"  {way:<15}{run['seconds']:>8.1f} s {size / run['seconds']:>8.1f} MB/s   peak {run['peak_mb']:.0f} MiB "
            f"({run['before_mb']:.0f} before the first row), its processes {run['child_mb']:.0f} MiB"
        )
    share = best["tokens alone"]["seconds"] / best["with tokens"]["seconds"]
    print(f"  with tokens: {share:.0%} of the tokenizer's own pace")
    print(f"  the doctor looked at {best['doctor']['looked_at']:,} of {rows:,} rows")


if __name__ == "__main__":
    main()
