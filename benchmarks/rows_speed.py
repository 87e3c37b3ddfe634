"""Rows: MB a second from JSONL to Parquet, with and without tokens, what the doctor takes, and peak
memory.

    python benchmarks/rows_speed.py              100 MB, each way three times; some minutes
    python benchmarks/rows_speed.py --mb 20      another size
    python benchmarks/rows_speed.py --write      keeps the table in
    benchmarks/results/rows-speed.txt

Every measurement is a process of its own, and the ways take turns; medians are shown, of the doctor
one run. `read and write` is all that `recipe prepare` does but tokens and doctor; `with tokens`
counts the tokens of every row too, and its pace is held against the tokenizer's own, over the same
texts in memory, by the same threads. CPU seconds count the processes that it starts too: beside
other work on the machine they say more than the clock. Peak memory is the kernel's VmHWM of the
process and of the largest one that it starts; what it holds before the first row (interpreter and
libraries) is printed beside it. Words are drawn by a Zipf law; the tokenizer is a byte-level BPE
trained on them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.blocks_speed import peak_mb

RESULTS = Path(__file__).parent / "results" / "rows-speed.txt"
WAYS = ("read and write", "tokens alone", "with tokens", "doctor")


@dataclass(frozen=True)
class Case:
    """Rows that are measured. words: of a mean answer; form: `columns` or `messages`; ways: how
    they are measured."""

    name: str
    words: int
    form: str
    ways: tuple[str, ...]


CASES = (
    Case("short rows", 25, "columns", WAYS[:1]),
    Case("long rows", 150, "columns", WAYS[:1]),
    Case("rows as long as survival's, as messages", 70, "messages", WAYS[:1]),
    Case("rows as long as survival's", 70, "columns", WAYS),
)


def make_rows(file: Path, megabytes: int, case: Case) -> None:
    """Questions and answers in JSONL, about so many MB, the same on every machine."""
    draw = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(50_000)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    # A row is a piece of one long text, from anywhere in it: to draw each word of 100 MB would take
    # longer than what is measured.
    text = draw.choices(words, cum_weights=weights, k=1_000_000)
    size, count = 0, 0
    with file.open("w") as out:
        while size < megabytes * 1_000_000:
            count += 1
            start = draw.randrange(len(text) - 2 * case.words - 10)
            said = text[start : start + 10 + draw.randint(1, 2 * case.words)]
            question, answer = " ".join([*said[1:10], str(count)]), " ".join(said[10:])
            row: dict = {"topic": said[0], "question": question, "answer": answer}
            if case.form == "messages":
                row = {
                    "messages": [
                        {"role": "user", "content": question},
                        {"role": "assistant", "content": answer},
                    ]
                }
            size += out.write(json.dumps(row) + "\n")


def make_tokenizer(file: Path, folder: Path) -> None:
    from benchmarks.blocks_speed import make_tokenizer

    texts = file.with_suffix(".texts")
    with file.open() as lines, texts.open("w") as out:
        for line in itertools.islice(lines, 5000):
            out.write(json.dumps({"text": json.loads(line)["answer"]}) + "\n")
    make_tokenizer(texts, folder)


def asked(file: Path, form: str):
    from runner import catalog
    from runner.data.conversation_formats import ChatData, ChatSet

    place = {"hub": None, "revision": None, "subset": None, "split": None, "path": str(file)}
    templates = (
        {"question": "For [topic], [question]", "answer": "[answer]"} if form == "columns" else {}
    )
    return ChatData(
        sets=(ChatSet(**place, form=form, **templates),),
        system_prompt="You are a patient teacher, and you say what you do not know.",
        special_tokens=catalog.chat_template("chatml"),
        sequence_len=10_000,
        validation_share=0.1,
        seed=42,
    )


def measure(what: str, form: str, file: Path, tokenizer_dir: Path) -> dict:
    """Seconds of one way, by the clock and of processors, and MiB of memory."""
    from runner.data import blocks, chat, items

    tokenizer = None
    if "tokens" in what:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir))
    source = asked(file, form)
    out = file.parent / "out"
    shutil.rmtree(
        out, ignore_errors=True
    )  # rows that are there already would not be prepared again
    made = chat.ChatRows(source)
    before = peak_mb()
    if what in ("read and write", "with tokens"):
        tokenizer_for = (lambda texts: tokenizer) if what == "with tokens" else None
        start = clocks()
        made.prepare(out, tokenizer_for, sys.maxsize)
        end = clocks()
    else:
        with items.folder(out) as place:
            kept = made.read(place, None)
            if what == "tokens alone":
                texts = list(map(made.told, made.spool.items(kept)))
                start = clocks()
                blocks.lengths(texts, tokenizer)
            else:
                start = clocks()
                made.look_through(kept)
            end = clocks()
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "seconds": end[0] - start[0],
        "cpu_seconds": end[1] - start[1],
        "peak_mb": peak_mb(),
        "child_mb": children,
        "before_mb": before,
        "rows": made.report.rows_in,
        "bytes": file.stat().st_size,
        "looked_at": made.report.looked_at,
    }


def clocks() -> tuple[float, float]:
    """Seconds by the clock, and of processors by this process and those that it has started and
    seen end."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)


def in_a_process(what: str, form: str, file: Path, tokenizer_dir: Path) -> dict:
    done = subprocess.run(
        [sys.executable, __file__, "--measure", what, form, str(file), str(tokenizer_dir)],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--mb", type=int, default=100)
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--write", action="store_true")
    options.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        what, form, file, tokenizer_dir = chosen.measure
        print(json.dumps(measure(what, form, Path(file), Path(tokenizer_dir))))
        return
    said = []
    for line in table(chosen.mb, chosen.times):
        print(line, flush=True)
        said.append(line)
    if chosen.write:
        RESULTS.write_text("\n".join(said) + "\n")


def table(megabytes: int, times: int) -> Iterator[str]:
    cores = len(os.sched_getaffinity(0))
    yield (
        f"benchmarks/rows_speed.py --mb {megabytes} --times {times}, {date.today()}, {cores} cores, Python "
        f"{platform.python_version()}, orjson {version('orjson')}, pyarrow {version('pyarrow')}"
    )
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            yield ""
            yield from of_case(case, Path(folder), megabytes, times)
    yield ""


def of_case(case: Case, folder: Path, megabytes: int, times: int) -> Iterator[str]:
    file, tokenizer_dir = folder / "rows.jsonl", folder / "tokenizer"
    make_rows(file, megabytes, case)
    if "with tokens" in case.ways:
        make_tokenizer(file, tokenizer_dir)
    runs: dict[str, list[dict]] = {way: [] for way in case.ways}
    load = os.getloadavg()[0]
    for turn in range(times):
        # The doctor takes a minute, and its pace is nobody's limit.
        for way in case.ways if turn == 0 else [way for way in case.ways if way != "doctor"]:
            runs[way].append(in_a_process(way, case.form, file, tokenizer_dir))
    one = runs["read and write"][0]
    megabytes_of_file = one["bytes"] / 1e6
    yield (
        f"{case.name}: {one['rows']:,} of {one['bytes'] / one['rows']:.0f} bytes, {case.form}; "
        f"the machine's load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    yield f"{'':<16}{'s':>7}{'MB/s':>7}{'CPU s':>7}{'MB/CPU s':>10}   peak MiB, of that before the first row, largest process it starts"
    middle = {}
    for way, measured in runs.items():
        middle[way] = {
            name: statistics.median(run[name] for run in measured) for name in measured[0]
        }
        of = middle[way]
        yield (
            f"{way:<16}{of['seconds']:>7.1f}{megabytes_of_file / of['seconds']:>7.1f}{of['cpu_seconds']:>7.1f}"
            f"{megabytes_of_file / of['cpu_seconds']:>10.1f}   {of['peak_mb']:.0f}, {of['before_mb']:.0f}, {of['child_mb']:.0f}"
        )
    if "with tokens" in runs:
        pairs = list(zip(runs["tokens alone"], runs["with tokens"], strict=True))
        clock, cpu = (
            statistics.median(own[name] / all_[name] for own, all_ in pairs)
            for name in ("seconds", "cpu_seconds")
        )
        yield f"with tokens: {clock:.0%} of the tokenizer's own pace by the clock, {cpu:.0%} by CPU seconds (medians of pairs)"
    if "doctor" in runs:
        yield f"the doctor looked at {runs['doctor'][0]['looked_at']:,} of {one['rows']:,} rows"


if __name__ == "__main__":
    main()
