"""Measures on this processor what loading, saving, resuming and merging take of main memory, and
writes it beside what `recipe plan` says, to benchmarks/results/main-memory.txt. A random model of
214 million parameters; nothing is downloaded.

    python benchmarks/main_memory.py           about a minute on 2 idle cores
    python benchmarks/main_memory.py --write   the same, kept

Each case runs in processes of its own, FSDP's in two that talk over gloo, by the functions that
training calls. What counts is the memory that only they have (RssAnon) at the peak, over that
before the case: files that are only mapped can be dropped again. Saving copies weights from a GPU,
which cannot be seen here where one process holds all of them. Linux alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from runner import catalog
from runner.parts.planner import state
from runner.parts.planner.workload import Adapter, Workload
from runner.plan import Machines

RESULTS = Path(__file__).parent / "results" / "main-memory.txt"
MIB = 2**20
SHAPE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 8192, "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}  # fmt: skip
RANK = 16
PROCESSES = 2


@dataclass(frozen=True)
class Taken:
    """Bytes of one process: what it had of its own before, the most that came to it, and the most
    that was resident in all (`ru_maxrss`, mapped files too)."""

    before: int
    added: int
    maxrss: int


def workload(sharding: str = "none", adapter: bool = False, precision: str = "bf16") -> Workload:
    model = catalog.from_config("main-memory", SHAPE)
    return Workload(
        model,
        machines=Machines(1, 2 if sharding != "none" else 1, "NVIDIA-L40S", 64, 8),
        adapter=Adapter(RANK, model.linear) if adapter else None,
        precision=precision,
        fp32_weights=sharding == "fsdp" and not adapter,
        sharding=sharding,
    )


def planned(moment: str, *of: Any, **more: Any) -> int:
    """What is planned at a moment; merging is in a process of its own."""
    moments = state.moments(workload(*of, **more))
    return moments[moment] - (state.PROCESS if moment == MERGING else 0)


# Processes of a case, and what is planned of it for a machine with so many.
MERGING, RESUMING = "base model to merge with", "state to continue from"
CASES: dict[str, tuple[int, Callable[[], int]]] = {
    "merging, bf16": (1, lambda: planned(MERGING, adapter=True)),
    "merging, fp32": (1, lambda: planned(MERGING, adapter=True, precision="fp32")),
    "loading, FSDP": (2, lambda: planned("weights that every process loads", "fsdp")),
    "saving, FSDP": (2, lambda: planned("weights and state to save", "fsdp")),
    "resuming, FSDP": (2, lambda: planned(RESUMING, "fsdp")),
    "resuming, one GPU": (1, lambda: planned(RESUMING)),
}


# In a process of its own


def own() -> int:
    """Bytes that only this process has."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def most(work: Callable[[], Any]) -> Taken:
    """What a piece of work takes at its peak, looked at every two milliseconds."""
    import ctypes
    import gc

    gc.collect()
    # What was freed goes back first, or the work would take it again unseen.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = peak = own()
    done = threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, own())
            time.sleep(0.002)

    watch = threading.Thread(target=look)
    watch.start()
    try:
        work()
    finally:
        done.set()
        watch.join()
    return Taken(before, peak - before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def drawn(dtype: str) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shape = {name: value for name, value in SHAPE.items() if name != "model_type"}
    return LlamaForCausalLM(LlamaConfig(**shape)).to(getattr(torch, dtype))


def prepare(folder: Path) -> None:
    """A base model in each precision, with a tokenizer and an adapter. In the process that merges,
    whose imports come before."""
    from peft import LoraConfig, get_peft_model
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    for dtype in ("bfloat16", "float32"):
        model = drawn(dtype)
        model.save_pretrained(folder / dtype)
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(
            folder / dtype
        )
        wanted = LoraConfig(
            r=RANK, target_modules=list(workload().model.linear), base_model_name_or_path=None
        )
        adapter = get_peft_model(model, wanted)
        adapter.peft_config["default"].base_model_name_or_path = str(folder / dtype)
        adapter.save_pretrained(folder / f"{dtype}-adapter")


def one(folder: Path) -> dict[str, Taken]:
    """What a single process merges, and goes on from: the Trainer reads the optimizer's file onto
    the processor where there is one GPU (transformers 5.16)."""
    import torch

    from runner.trainer.merging import merge

    prepare(folder)
    found = {}
    for precision, dtype in (("bf16", "bfloat16"), ("fp32", "float32")):
        work = partial(merge, folder / f"{dtype}-adapter", folder / f"{dtype}-merged", precision)
        found[f"merging, {precision}"] = most(work)
    optimizer = stepped(drawn("bfloat16"))
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    del optimizer
    read = partial(torch.load, folder / "optimizer.pt", map_location="cpu", weights_only=True)
    return found | {"resuming, one GPU": most(read)}


def sharded(folder: Path) -> dict[str, Taken]:
    """What two processes load, save and go on from under FSDP2. Axolotl loads the whole model in
    each, in fp32 where the runner asks for it; the rest is as the Trainer does it."""
    import torch
    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin, fsdp_utils
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaForCausalLM

    state, out = PartialState(cpu=True), str(folder / "fsdp")
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="FULL_STATE_DICT")
    accelerator: Any = SimpleNamespace(
        process_index=state.process_index,
        num_processes=state.num_processes,
        is_main_process=state.is_main_process,
        is_fsdp2=True,
        wait_for_everyone=state.wait_for_everyone,
    )
    models = []
    load = most(
        lambda: models.append(
            LlamaForCausalLM.from_pretrained(folder / "bfloat16", dtype=torch.float32)
        )
    )
    mesh = init_device_mesh("cpu", (state.num_processes,))
    for layer in models[0].model.layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(models.pop(), mesh=mesh)
    optimizer = stepped(model)

    def save() -> None:
        fsdp_utils.save_fsdp_model(plugin, accelerator, model, out)
        fsdp_utils.save_fsdp_optimizer(plugin, accelerator, optimizer, model, out)

    def resume() -> None:
        fsdp_utils.load_fsdp_model(plugin, accelerator, model, out)
        fsdp_utils.load_fsdp_optimizer(plugin, accelerator, optimizer, model, out)

    found = {"loading, FSDP": load, "saving, FSDP": most(save), "resuming, FSDP": most(resume)}
    state.destroy_process_group()
    return found


def stepped(model: Any) -> Any:
    """AdamW after a step."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


PARTS = {"one": (1, one), "sharded": (PROCESSES, sharded)}


# In the process that asks


def asked(part: str, folder: Path, processes: int = 1) -> dict[str, list[Taken]]:
    """What each of the part's processes took, by case."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    shared |= {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--part", part, "--folder", str(folder)],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"`{part}` failed; its processes said why.")
    found: dict[str, list[Taken]] = {}
    for text in said:
        for case, taken in json.loads(text.splitlines()[-1]).items():
            found.setdefault(case, []).append(Taken(**taken))
    return found


def measured() -> dict[str, list[Taken]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, list[Taken]] = {}
        for part, (processes, _) in PARTS.items():
            found |= asked(part, folder, processes)
    return {case: found[case] for case in CASES}


def table(found: dict[str, list[Taken]]) -> str:
    """The file: MiB, and planned over measured, less 1."""
    import torch
    import transformers

    lines = [
        f"Main memory over that at rest, MiB: a random Llama of 214 million parameters, torch {torch.__version__}, "
        f"transformers {transformers.__version__}.",
        "planned: what `recipe plan` reckons for the machine; measured: RssAnon at the peak over before, of all processes where",
        "they load and of the first where it saves or goes on, because the others gather on their GPUs; others: what they took here;",
        "resident: the highest ru_maxrss of one process, mapped files and Python among it. A first merge loads its packages too.",
        "",
        f"{'case':<20}{'processes':>10}{'planned':>10}{'measured':>10}{'error':>8}{'others':>10}{'resident':>10}",
    ]
    for case, taken in found.items():
        processes, planned = CASES[case][0], CASES[case][1]()
        others = sum(each.added for each in taken[1:])
        counted = taken[0].added + (others if case.startswith("loading") else 0)
        lines.append(
            f"{case:<20}{processes:>10}{planned / MIB:>10.0f}{counted / MIB:>10.0f}{planned / counted - 1:>+8.1%}"
            f"{others / MIB:>10.0f}{max(each.maxrss for each in taken) / MIB:>10.0f}"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--part", choices=list(PARTS))
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.part:
        found = PARTS[given.part][1](given.folder)
        print(json.dumps({case: asdict(taken) for case, taken in found.items()}))
        return
    text = table(measured())
    print(text, end="")
    if given.write:
        RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
