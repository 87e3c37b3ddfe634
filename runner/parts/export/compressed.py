"""Weights with fewer bits for vLLM, in FP8 or in four bits, as llm-compressor writes them; and the
proof that the model still answers as the trained one.

llm-compressor runs in a process of its own, because it prints progress that nothing turns off.
"""

import io
import json
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.parts.evaluate import evaluate
from runner.parts.export import card, gguf
from runner.parts.export.trained_model import (
    Proof,
    TrainedModel,
    loaded,
    unproven,
    without_weights,
    words_of,
)
from runner.tools.problem import Stop
from runner.tools.process import hush
from runner.tools.run_files import HELD_OUT
from runner.trainer.generation import bare, load, written
from runner.trainer.records import evenly, read_held_out

FORMATS = {form: facts for form, facts in card.FORMATS.items() if "loss" in facts}
PACKAGES = ("llmcompressor", "compressed_tensors")
# Without their dependencies: llm-compressor asks for a newer accelerate than Axolotl pins, and
# works with that one.
INSTALL = "pip install --no-deps llmcompressor==0.14.0.1 compressed-tensors==0.19.0"
# The weights that share a scale in four bits, of a size that divides the width of every layer.
GROUPS = (128, 64, 32)
# Training rows that GPTQ measures the layers with, and the most tokens of each (llm-compressor's
# own examples).
ROWS, TOKENS = 512, 2048
PROOF_ROWS = 64  # held-out rows, which a CPU reads in minutes for a model of 7B


def require_known(source: TrainedModel, form: str) -> int:
    """The group size for a model; 0 for FP8, which needs none. Raises Stop if llm-compressor is not
    installed, weights are not in linear layers, or no group divides their widths."""
    import torch

    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise Stop(
            f"This needs the package `{missing[0]}`, which is not installed.",
            f"{INSTALL}\n(Its requirements name a newer accelerate than Axolotl's; it works with Axolotl's.)",
        )
    model = without_weights((str(source.model), None), source.chat.trust_remote_code)
    for name, weight in model.named_parameters():
        if weight.ndim == 3 and "expert" in name:
            raise Stop(
                f"The experts of this model are in one tensor (`{name}`), which llm-compressor leaves as it is.",
                "`--format safetensors` exports the model; vLLM itself makes FP8 of its experts with `--quantization fp8`.",
            )
    widths = set()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear) and layer is not model.get_output_embeddings():
            widths.add(layer.in_features)
    group = _group_size(widths)
    if not widths or (form == "int4" and not group):
        wide = ", ".join(map(str, sorted(widths)))
        groups_text = ", ".join(map(str, GROUPS))
        raise Stop(
            f"The layers of this model have widths of {wide}, which no group of four-bit weights divides ({groups_text}).",
            "Use `--format fp8`.",
        )
    if form == "int4":
        return group
    return 0


def _group_size(widths: Collection[int]) -> int:
    """The largest group that divides all widths; 0 if none does."""
    for size in GROUPS:
        if widths and all(width % size == 0 for width in widths):
            return size
    return 0


def write(source: TrainedModel, folder: Path, form: str, group: int) -> None:
    """Replaces the weights in a copy of the model by compressed ones. group: of `require_known`.
    Raises Stop."""
    if group:
        rows = list(_training_rows(source))
    else:
        rows = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        out = Path(name) / "model"
        done = gguf.apart(
            compress, str(folder), str(out), group, rows, source.chat.trust_remote_code
        )
        if done.returncode or not (out / "config.json").is_file():
            raise Stop(
                f"llm-compressor cannot write this model in {form}: {gguf.why(done)}",
                "`--format safetensors` exports it with all its bits.",
            )
        for file in folder.glob("*.safetensors*"):
            file.unlink()
        for file in (out / "config.json", *out.glob("*.safetensors*")):
            file.rename(folder / file.name)
            (folder / file.name).chmod(0o644)


def _training_rows(source: TrainedModel) -> Iterator[list[int]]:
    """The token numbers of training rows at even distances; of the general text where they are not
    here."""
    from pyarrow import dataset

    tokenizer = words_of(source.chat)
    sets = source.folder.stage.config.get("datasets") or [{}]
    file = Path(str(sets[0].get("path", "")))
    if file.suffix != ".parquet" or not file.is_file():
        for row, _ in evaluate.general_rows(tokenizer):
            yield list(row)
        return
    table = dataset.dataset(file)
    present = [name for name in ("input_ids", "messages", "tools") if name in table.schema.names]
    chosen = evenly(range(table.count_rows()), ROWS)
    for row in table.take(chosen, columns=present).to_pylist():
        numbers = row.get("input_ids")
        if not numbers:
            tools = None
            if row.get("tools"):
                tools = json.loads(row["tools"])
            messages = list(map(bare, row["messages"]))
            text = written(tokenizer, messages, asking=False, tools=tools)
            numbers = tokenizer(text, add_special_tokens=False)["input_ids"]
        yield numbers[:TOKENS]


def prove(
    source: TrainedModel, folder: Path, form: str, texts: tuple[str, ...], chat: Any
) -> Proof:
    """Proves that compressed weights are the trained model's: their loss on held-out rows, or on
    the general text without any, and the first tokens of answers. texts, chat: prompts, and how
    they are asked. Raises Stop."""
    import torch
    from accelerate.utils.memory import clear_device_cache

    tokenizer = words_of(source.chat)
    held_out = read_held_out(source.folder.path / HELD_OUT)
    all_rows: Sequence[evaluate.Row]
    if held_out:
        all_rows = held_out.rows
    else:
        all_rows = evaluate.general_rows(tokenizer)
    rows = evenly(all_rows, PROOF_ROWS)
    answers = list(gguf.answers(chat, tokenizer, texts))
    before, _ = evaluate.loss(load(replace(source.chat, model=str(source.model))).model, rows)
    clear_device_cache(garbage_collection=True)
    with redirect_stderr(io.StringIO()):  # compressed-tensors shows its progress there
        model = load(replace(source.chat, model=str(folder))).model
    after, counted = evaluate.loss(model, rows)
    bounds = FORMATS[form]
    same = 0
    begins_differently: list[str] = []
    for answer in answers:
        with torch.no_grad():
            tokens = torch.tensor([[*answer.prompt, *answer.said]], device=model.device)
            logits = model(input_ids=tokens).logits[0, len(answer.prompt) - 1 : -1]
        chosen = logits.argmax(-1).tolist()
        pairs = zip(chosen, answer.said, strict=True)
        same += sum(token == trained for token, trained in pairs)
        if chosen[0] != answer.said[0] and answer.gaps[0] > bounds["clear"]:
            begins_differently.append(answer.text)
    cost = after - before
    allowed = bounds["loss"]
    if not cost <= allowed:
        raise unproven(
            f"its loss is {cost:.2g} nats a token higher, but {form} may cost at most {allowed:g}",
            "Use a format with more bits: `fp8` instead of `int4`, or `safetensors`.",
        )
    if begins_differently:
        prompt = " ".join(begins_differently[0].split())[:60]
        raise unproven(f"its answer to “{prompt}…” begins with another word")
    return {
        "loss": before,
        f"loss_in_{form}": after,
        "tokens": counted,
        "prompts": len(answers),
        "same_tokens": same,
        "answer_tokens": sum(len(answer.said) for answer in answers),
        "bytes_before": _bytes_of_weights(source.model),
        "bytes": _bytes_of_weights(folder),
    }


def _bytes_of_weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def compress(model: str, out: str, group: int, rows: list[list[int]], trust: bool) -> None:
    """Writes a model's folder with fewer bits. group: of a scale's weights, 0 for FP8; rows: in
    token numbers; trust: in the model's own code."""
    hush()
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier

    loaded_model = loaded(model, trust_remote_code=trust)
    options = {}
    if not group:
        recipe: Any = QuantizationModifier(
            targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head"]
        )
    else:
        scales = {
            "num_bits": 4,
            "type": "int",
            "symmetric": True,
            "strategy": "group",
            "group_size": group,
        }
        groups = {"all": {"targets": ["Linear"], "weights": scales}}
        recipe = GPTQModifier(config_groups=groups, ignore=["lm_head"])
        data = Dataset.from_dict({"input_ids": rows})
        options = {"dataset": data, "max_seq_length": TOKENS, "num_calibration_samples": len(data)}
    oneshot(model=loaded_model, recipe=recipe, **options)
    loaded_model.save_pretrained(out, save_compressed=True)
