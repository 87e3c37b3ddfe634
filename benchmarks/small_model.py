"""How fast `small` trains on this machine, beside a plain PyTorch loop on the same rows.

    python benchmarks/small_model.py [--rounds N] [--neighbours N] [--set KEY=VALUE]

Each round runs recipes/museum.yaml for one pass with `recipe run`, and then the loop with the same
model, adapter, rows and micro batches, each in a process of its own. Both figures are medians over
the steps, in seconds, of the process that trains. `--neighbours` keeps that many other processes
busy meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runner.tools.files import read_json

RECIPE = ROOT / "recipes" / "museum.yaml"
# One pass without the demo, without evaluation on the way: only the steps are timed.
ONE_PASS = ("train.epochs=1", "demo.graded_questions=0", "train.logging_steps=1")
WARM_UP_STEPS = 2
BUSY = "while True: pass"


def run_recipe(folder: Path, changes: list[str]) -> float:
    """Runs the recipe; returns its median seconds a step, from the times of its log lines."""
    words = [word for change in (*ONE_PASS, *changes) for word in ("--set", change)]
    command = [sys.executable, "-m", "runner", "run", str(RECIPE), "--yes", "--out", str(folder)]
    subprocess.run([*command, *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    summary = read_json(folder / "training_summary.json")
    return float(summary["step_seconds"])


def run_loop(folder: Path) -> float:
    """Runs the plain loop on the rows of that run; returns its median seconds a step."""
    command = [sys.executable, str(Path(__file__)), "--loop", str(folder)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def train_plainly(folder: Path) -> None:
    """One pass over a run's rows with PyTorch alone; prints the median seconds a step."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    config = json.loads((folder / "loop.json").read_text("utf-8"))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(config["model"], dtype=torch.float32)
    adapter = LoraConfig(
        r=config["rank"],
        lora_alpha=config["alpha"],
        lora_dropout=0.0,
        target_modules=config["layers"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, adapter)
    model.train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config["learning_rate"])
    seconds = []
    for batch in batches(config["rows"], config["micro_batch_size"], config["padding"]):
        began = time.perf_counter()
        loss = model(**{name: torch.tensor(values) for name, values in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    print(statistics.median(seconds[WARM_UP_STEPS:]))


def batches(rows: list[dict[str, list[int]]], size: int, padding: int) -> Iterator[dict[str, Any]]:
    """Micro batches of tokenised rows, padded to the longest row of each."""
    for start in range(0, len(rows) - size + 1, size):
        batch = rows[start : start + size]
        longest = max(len(row["input_ids"]) for row in batch)
        filled: dict[str, Any] = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in batch:
            missing = longest - len(row["input_ids"])
            filled["input_ids"].append(row["input_ids"] + [padding] * missing)
            filled["labels"].append(row["labels"] + [-100] * missing)
            filled["attention_mask"].append([1] * len(row["input_ids"]) + [0] * missing)
        yield filled


def describe_loop(folder: Path) -> None:
    """Writes what the loop needs to know of a run: its model, adapter and tokenised rows."""
    import yaml
    from pyarrow import parquet
    from transformers import AutoTokenizer

    config = yaml.safe_load((folder / "config" / "axolotl.yaml").read_text("utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(config["base_model"])
    conversations = parquet.read_table(folder / "data" / "train.parquet")["messages"].to_pylist()
    described = {
        "model": config["base_model"],
        "rank": config["lora_r"],
        "alpha": config["lora_alpha"],
        "layers": config.get("lora_target_modules") or "all-linear",
        "learning_rate": config["learning_rate"],
        "micro_batch_size": config["micro_batch_size"],
        "padding": tokenizer.pad_token_id,
        "rows": [tokenise(tokenizer, messages) for messages in conversations],
    }
    (folder / "loop.json").write_text(json.dumps(described), "utf-8")


def tokenise(tokenizer: Any, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """A conversation as the recipe trains on it: its last answer alone has labels."""
    prompt = tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_dict=False
    )
    tokens = tokenizer.apply_chat_template(messages, return_dict=False)
    labels = [-100] * len(prompt) + tokens[len(prompt) :]
    return {"input_ids": tokens, "labels": labels}


@contextmanager
def busy_neighbours(count: int) -> Iterator[None]:
    """Other processes that compute without end, for as long as the block runs."""
    neighbours = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--neighbours", type=int, default=0)
    arguments.add_argument("--set", action="append", default=[], dest="changes")
    arguments.add_argument("--loop", type=Path, help=argparse.SUPPRESS)
    asked = arguments.parse_args()
    if asked.loop:
        train_plainly(asked.loop)
        return
    pairs = []
    with busy_neighbours(asked.neighbours):
        for number in range(asked.rounds):
            with tempfile.TemporaryDirectory() as home:
                folder = Path(home) / "run"
                recipe_seconds = run_recipe(folder, asked.changes)
                describe_loop(folder)
                loop_seconds = run_loop(folder)
            pairs.append((recipe_seconds, loop_seconds))
            print(
                f"round {number + 1}: recipe {recipe_seconds:.3f} s a step, "
                f"loop {loop_seconds:.3f} s, ratio {loop_seconds / recipe_seconds:.2f}",
                flush=True,
            )
    ratios = [loop_seconds / recipe_seconds for recipe_seconds, loop_seconds in pairs]
    print(f"median of the ratios: {statistics.median(ratios):.2f} of the loop's pace")


if __name__ == "__main__":
    main()
