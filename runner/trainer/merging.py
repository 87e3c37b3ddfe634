"""Merging: an adapter becomes part of its base model. `python -m runner.trainer.merging ADAPTER OUT
[PRECISION [trust]]`; the word `trust` lets the model bring its own code."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.tools import child_process
from runner.tools.files import read_json, read_record, replacing_folder
from runner.tools.model_classes import language_class_of
from runner.tools.problem import Stop
from runner.tools.process import hush, without_gpu_kernels, without_scikit_learn
from runner.tools.text import tokenizer_in

if TYPE_CHECKING:
    from peft import PeftModel

PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "auto": "auto"}
Base = tuple[str, str | None]


def base_of(adapter: Path, named_base: Base | None = None) -> Base:
    """Name (or folder) and revision of an adapter's base model: `named_base`, else the adapter's.
    Raises Stop if there is none."""
    facts = read_json(adapter / "adapter_config.json")
    hint = "A finished run of scenario `lora` has one in `lora_adapter/`."
    if not isinstance(facts, dict) or not list(adapter.glob("adapter_model.*")):
        raise Stop(
            f"`{adapter}` contains no adapter (adapter_config.json and adapter_model.safetensors).",
            hint,
        )
    base, revision = named_base or (facts.get("base_model_name_or_path"), facts.get("revision"))
    if not base:
        raise Stop(f"`{adapter}/adapter_config.json` does not name the base model.", hint)
    return base, None if Path(base).is_dir() else revision


def merge(
    adapter: Path,
    out: Path,
    precision: str = "auto",
    trust_remote_code: bool = False,
    named_base: Base | None = None,
) -> Path:
    """Adds an adapter's weights to those of its base model and writes the whole model, with its
    tokenizer, into `out`. precision: of the written weights; `auto` is the base model's own.
    named_base: if it is not the one that the adapter names. The base is read unquantised, even for
    an adapter that was trained on 4 bits, and must fit into main memory. Raises Stop as above;
    OSError or ValueError if a file cannot be read, or adapter and base do not match."""
    from peft import PeftModel
    from safetensors import SafetensorError
    from transformers import AutoModelForSequenceClassification

    without_gpu_kernels()
    base, revision = base_of(adapter, named_base)
    options: dict[str, Any]
    if revision:
        options = {"revision": revision}
    else:
        options = {}
    if read_record(adapter / "adapter_config.json").get("task_type") == "SEQ_CLS":  # a reward model
        model_class: Any = AutoModelForSequenceClassification
        options = {**options, "num_labels": 1}
    else:
        model_class = language_class_of(base, trust_remote_code, revision)
    try:
        model = model_class.from_pretrained(
            base, dtype=PRECISIONS[precision], trust_remote_code=trust_remote_code, **options
        )
        adapted = PeftModel.from_pretrained(model, str(adapter))
        _require_its_layers(adapted, adapter)
        merged = adapted.merge_and_unload()
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(str(error)) from error
    # The adapter's tokenizer carries the chat template of its training.
    if (adapter / "tokenizer_config.json").is_file():
        named_by = str(adapter)
        revision = None
    else:
        named_by = base
    with replacing_folder(out) as partial:
        merged.save_pretrained(str(partial))
        tokenizer_in(named_by, trust_remote_code, revision).save_pretrained(str(partial))
    return out


def _require_its_layers(adapted: "PeftModel", adapter: Path) -> None:
    """Raises ValueError if the model lacks layers that the adapter changes. PEFT 0.20 only warns,
    and the merged model would answer like the base model."""
    from peft import get_peft_model_state_dict
    from safetensors import safe_open

    known_names = set(get_peft_model_state_dict(adapted))
    strange = list[str]()
    for file in adapter.glob("adapter_model.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            strange += sorted(set(tensors.keys()) - known_names)
    if strange:
        model_class = type(adapted.get_base_model()).__name__
        raise ValueError(
            f"The adapter has {len(strange):,} tensors for layers that {model_class} does not have, such as `{strange[0]}`, so they would change nothing. It was trained on another class of the model. Train it again on this base model, which `recipe run` does."
        )


def main(adapter: str, out: str, precision: str = "auto", trust: str = "") -> None:
    child_process.watch_parent()
    hush()
    without_scikit_learn()
    merge(Path(adapter), Path(out), precision, bool(trust))


if __name__ == "__main__":
    main(*sys.argv[1:])
