"""What `recipe plan --exact` makes of every causal language model that transformers has.

    python benchmarks/any_architecture.py                     a table of all of them, about 20
    minutes on 2 idle cores
    python benchmarks/any_architecture.py llama mamba …       of these types alone
    python benchmarks/any_architecture.py --models FOLDER     and of each config.json in a folder of
    FOLDER
    python benchmarks/any_architecture.py --write             keeps the table in benchmarks/results/

Each is its class's default config, or the one in a folder, with few layers, written to a folder as
a `config.json`, and traced from there as a recipe's model is: two rows of 32 tokens at once, all
weights trained, bf16, FlashAttention and checkpointing, unless the trace says that training would
not start so. A line says parameters, GiB of weights and at the peak, operations of a micro batch
for each weight and token, and the seconds that it took; or why it cannot be traced. Anything but a
figure or a sentence ends it with its traceback.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parent.parent)
)  # this clone's package, not an installed one

from benchmarks.estimate_accuracy import versions
from runner import catalog
from runner.parts.planner.formulas import Traced
from runner.parts.planner.trace.tracing import any_architecture
from runner.parts.planner.workload import Workload
from runner.plan import Machines
from runner.tools.problem import Stop

TABLE = Path(__file__).parent / "results" / "any-architecture.txt"
LAYERS = 4
ROWS, TOKENS = 2, 32

# Counts of layers, whatever a config calls them; and lists with an entry for each.
_COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
)
_COUNTS += ("num_encoder_layers", "num_decoder_layers")

_INSTEAD = re.compile(r"attention: (\w+)|gradient_checkpointing: false")


def kinds() -> list[str]:
    """Every type of model that transformers has a class of causal language models for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def default(kind: str, fewer: bool) -> dict[str, Any]:
    """The default `config.json` of a type. fewer: with LAYERS wherever it counts more, its parts'
    included.

    Raises whatever a class raises that does not take its own defaults, or what is left of them.
    """
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    if fewer:
        config = AutoConfig.for_model(
            kind, **_fewer(json.loads(config.to_json_string(use_diff=False)))
        )
    return dict(json.loads(config.to_json_string()))


def published(file: Path) -> dict[str, Any]:
    """A model's own `config.json`, with LAYERS wherever it counts more, and lists with an entry for
    each as long."""
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    fewer = _fewer(config)
    counts = {config[name] for name in fewer if name in _COUNTS}
    listed = {
        name: value[:LAYERS]
        for name, value in config.items()
        if isinstance(value, list) and len(value) in counts
    }
    return config | fewer | listed


def _fewer(config: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and any(count in value for count in _COUNTS):
            changed[name] = {"model_type": value["model_type"]} | _fewer(value)
        elif name in _COUNTS and isinstance(value, int) and value > LAYERS:
            changed[name] = LAYERS
    return changed


@dataclass(frozen=True)
class Tried:
    """One type: its trace, or the sentence that says why there is none. how: `4 layers` or `whole`,
    and what else was needed."""

    kind: str
    how: str
    traced: Traced | None
    why: str
    seconds: float

    def __str__(self) -> str:
        if self.traced is None:
            return f"{self.kind:<26} {self.why}"
        each = self.traced.flops / self.traced.parameters / ROWS / TOKENS
        return (
            f"{self.kind:<26} {self.how:<50} {self.traced.parameters:>16,} {self.traced.weights / 2**30:>9.2f} "
            f"{self.traced.peak / 2**30:>9.2f} {each:>6.2f} {self.seconds:>4.0f}"
        )


def attempt(kind: str, folder: Path) -> Tried:
    """The trace of a type's default with few layers, or whole where so few do not fit its other
    settings."""
    found = _attempt(kind, folder / kind, fewer=True)
    return found if found.traced else _attempt(kind, folder / f"{kind}-whole", fewer=False)


def of_folder(model: Path, folder: Path) -> Tried:
    """The trace of a model by its own `config.json`, with few layers."""
    return _traced(
        model.name,
        published(model / "config.json"),
        folder / f"model-{model.name}",
        [f"{LAYERS} layers"],
    )


def _attempt(kind: str, folder: Path, fewer: bool) -> Tried:
    try:
        config = default(kind, fewer)
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return Tried(kind, "", None, f"transformers cannot build its default config: {said}", 0)
    return _traced(kind, config, folder, [f"{LAYERS} layers" if fewer else "whole"])


def _traced(kind: str, config: Mapping[str, Any], folder: Path, how: list[str]) -> Tried:
    started = time.monotonic()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    fields: dict[str, Any] = {}
    while True:
        try:
            traced = any_architecture(workload(kind, config, **fields), folder)
        except Stop as stop:
            # What a run would be refused for is said with what to write instead, and that is tried.
            instead = _INSTEAD.search(stop.text)
            if instead is None or instead[0] in how:
                return Tried(kind, "", None, stop.text.splitlines()[0], time.monotonic() - started)
            how.append(instead[0])
            fields |= {"attention": instead[1]} if instead[1] else {"checkpointing": False}
        else:
            return Tried(kind, ", ".join(how), traced, "", time.monotonic() - started)


def workload(kind: str, config: Mapping[str, Any], **fields: Any) -> Workload:
    text = next(
        (part for part in config.values() if isinstance(part, dict) and "vocab_size" in part), {}
    )
    sizes = {"hidden_size": 1, "num_hidden_layers": 1, "vocab_size": 1, **text, **config}
    towers = catalog.table("families").get(kind, {}).get("towers", {})
    if towers and not any(config.get(name) for name in towers):
        # The default of a class that may see, Gemma 4's, does not.
        sizes["model_type"] = text.get("model_type", kind)
    model = catalog.from_config(kind, sizes)
    return Workload(
        **{
            "model": model,
            "machines": Machines(1, 1, "NVIDIA-H100-80GB-HBM3", 256, 32),
            "sequence_len": TOKENS,
            "micro_batch_size": ROWS,
            "evaluation_batch_size": ROWS,
        }
        | fields
    )


def table(tried: Iterable[Tried]) -> Iterator[str]:
    yield f"{'type':<26} {'how':<50} {'parameters':>16} {'weights':>9} {'peak GiB':>9} {'ops':>6} {'s':>4}"
    found = []
    for one in tried:
        found.append(one)
        yield str(one)
    yield f"{sum(one.traced is not None for one in found)} of {len(found)} traced"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    models = sorted(asked.models.glob("*/config.json")) if asked.models else []
    lines = [versions()]
    print(*lines)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        parts = [table(attempt(kind, here) for kind in asked.kinds or kinds())]
        parts += [table(of_folder(file.parent, here) for file in models)] if models else []
        for line in chain.from_iterable(parts):
            print(line, flush=True)
            lines.append(line)
    if asked.write:
        TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
