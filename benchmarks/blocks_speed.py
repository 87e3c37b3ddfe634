"""Blocks: tokens a second and peak memory, against `datasets.map` with Python lists, on the same
text.

    python benchmarks/blocks_speed.py            10 and 100 MB, three times each; some minutes
    python benchmarks/blocks_speed.py --mb 2 10  other sizes

Every measurement is a process of its own; neither way starts others. Peak memory is the kernel's
VmHWM, mapped files included; what the process holds before the first document (interpreter and
libraries) is printed beside it. The text is made of words drawn by a Zipf law, so that tokens
repeat as they do in language; the tokenizer is a byte-level BPE trained on it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one


BLOCK_LEN = 2048
WAYS = ("blocks", "lists")


def make_text(file: Path, megabytes: int) -> None:
    """Documents of 50 to 2,000 words in JSONL, about so many MB, the same on every machine."""
    draw = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgk"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(50_000)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(words) + 1)))
    size = 0
    with file.open("w") as out:
        while size < megabytes * 1_000_000:
            text = " ".join(draw.choices(words, cum_weights=weights, k=draw.randint(50, 2000)))
            size += out.write(json.dumps({"text": text}) + "\n")


def make_tokenizer(file: Path, folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    # No token type ids: most tokenizers of causal models have none.
    names = ["input_ids", "attention_mask"]
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=16_000, special_tokens=["<eos>"], show_progress=False)
    with file.open() as lines:
        words.train_from_iterator(
            (json.loads(line)["text"] for line in itertools.islice(lines, 300)), trainer
        )
    PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token="<eos>", model_input_names=names
    ).save_pretrained(str(folder))


def texts(file: Path):
    with file.open() as lines:
        for line in lines:
            yield json.loads(line)["text"]


def blocks(file: Path, tokenizer, out: Path) -> int:
    from runner.data.blocks import write

    return write(texts(file), tokenizer, BLOCK_LEN, out / "blocks.parquet").blocks * BLOCK_LEN


def lists(file: Path, tokenizer, out: Path) -> int:
    """The straightforward way: one map that tokenises, one that joins and cuts, Python lists in
    every column. The rest of each batch is carried to the next, so that it makes the very same
    blocks."""
    from datasets import Dataset

    rows = Dataset.from_json(str(file), cache_dir=str(out / "cache"))
    rest: dict[str, list[int]] = {"input_ids": [], "attention_mask": []}

    def tokenise(batch):
        return tokenizer([text + tokenizer.eos_token for text in batch["text"]])

    def group(batch):
        lines = {
            name: rest[name] + list(itertools.chain.from_iterable(batch[name])) for name in rest
        }
        whole = len(lines["input_ids"]) // BLOCK_LEN * BLOCK_LEN
        rest.update({name: line[whole:] for name, line in lines.items()})
        cut = {
            name: [line[start : start + BLOCK_LEN] for start in range(0, whole, BLOCK_LEN)]
            for name, line in lines.items()
        }
        return cut | {"labels": cut["input_ids"].copy()}

    rows = rows.map(tokenise, batched=True, remove_columns=rows.column_names)
    rows = rows.map(group, batched=True, remove_columns=rows.column_names)
    rows.to_parquet(str(out / "blocks.parquet"))
    return len(rows) * BLOCK_LEN


def peak_mb() -> float:
    """The most memory that this process has had, in MiB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measure(way: str, file: Path, tokenizer_dir: Path) -> dict:
    """In a process of its own: seconds and peak of one way."""
    import pyarrow.parquet  # noqa: F401  what both ways need is not counted
    from datasets import Dataset  # noqa: F401
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(tokenizer_dir))
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        before = peak_mb()
        start, cpu = time.perf_counter(), time.process_time()
        tokens = {"blocks": blocks, "lists": lists}[way](file, tokenizer, Path(folder))
        return {
            "tokens": tokens,
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - cpu,
            "peak_mb": peak_mb(),
            "before_mb": before,
        }


def in_a_process(way: str, file: Path, tokenizer_dir: Path) -> dict:
    env = os.environ | {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--measure", way, str(file), str(tokenizer_dir)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--mb", type=int, nargs=2, default=[10, 100])
    options.add_argument("--times", type=int, default=3)
    options.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.measure:
        way, file, tokenizer_dir = chosen.measure
        print(json.dumps(measure(way, Path(file), Path(tokenizer_dir))))
        return
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder), chosen.mb, chosen.times)


def report(folder: Path, sizes: list[int], times: int) -> None:
    for size in sizes:
        make_text(folder / f"{size}.jsonl", size)
    make_tokenizer(folder / f"{sizes[0]}.jsonl", folder / "tokenizer")
    found: dict[tuple[str, int], dict] = {}
    for size in sizes:
        # Turn about, so that a slow minute of the machine hits both ways.
        runs = [
            {way: in_a_process(way, folder / f"{size}.jsonl", folder / "tokenizer") for way in WAYS}
            for _ in range(times)
        ]
        for way in WAYS:
            found[way, size] = {
                key: statistics.median(run[way][key] for run in runs) for key in runs[0][way]
            }
        assert found["blocks", size]["tokens"] == found["lists", size]["tokens"]
    print(f"blocks of {BLOCK_LEN} tokens, medians of {times}, {len(os.sched_getaffinity(0))} cores")
    print(
        "way     MB      tokens   seconds  of CPU   tokens/s  peak MiB  (before the first document)"
    )
    for (way, size), row in found.items():
        print(
            f"{way:<6} {size:>4} {row['tokens']:>11,} {row['seconds']:>9.2f} {row['cpu_seconds']:>7.2f} {row['tokens'] / row['seconds']:>10,.0f}"
            f" {row['peak_mb']:>8.0f}  ({row['before_mb']:.0f})"
        )
    small, large = sizes
    for size in sizes:
        print(
            f"speed at {size} MB: {found['lists', size]['seconds'] / found['blocks', size]['seconds']:.2f} times"
        )
    for way in WAYS:
        ratio = found[way, large]["peak_mb"] / found[way, small]["peak_mb"]
        above = [found[way, size]["peak_mb"] - found[way, size]["before_mb"] for size in sizes]
        print(
            f"peak memory of {way}, {large} MB against {small} MB: {ratio:.3f} times"
            f" (above the libraries: {above[0]:.0f} → {above[1]:.0f} MiB)"
        )


if __name__ == "__main__":
    main()
