"""llama.cpp: its converter, which lies in the source package of llama-cpp-python, and its library, which that package builds."""

import ast
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.tools.files import cache_folder, replacing_folder, write_json
from runner.tools.problem import Stop
from runner.trainer import child_process

VERSION = "0.3.36"
SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
CONVERTER = "convert_hf_to_gguf.py"
ELSE = "`--format safetensors` exports it for servers that load it as transformers does."
# What of the source package converts: the program, its architectures, and the library that writes the file.
_NEEDED = (CONVERTER, "conversion/", "gguf-py/gguf/", "LICENSE")


def converter() -> Path:
    """The folder with llama.cpp's converter, of the version that the extra `gguf` builds; fetched once by pip, which looks where
    it was told to look for packages, and holds the archive against its hash.

    Raises Stop where it cannot be had.
    """
    folder = cache_folder() / f"llama.cpp-of-llama-cpp-python-{VERSION}"
    if not (folder / CONVERTER).is_file():
        with tempfile.TemporaryDirectory() as fetched:
            archive = _download(Path(fetched))
            with replacing_folder(folder) as partial:
                _unpack(archive, partial)
    return folder


def _download(folder: Path) -> Path:
    wanted = folder / "requirements.txt"
    wanted.write_text(f"llama-cpp-python=={VERSION} --hash=sha256:{SHA256}\n", encoding="utf-8")
    options = ["--require-hashes", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", *options, "-r", str(wanted)],
        capture_output=True,
        text=True,
    )
    archive = next(folder.glob("*.tar.gz"), None)
    if done.returncode or archive is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise Stop(
            f"llama.cpp's converter cannot be fetched: {said[-1] if said else 'pip has left no archive'}",
            f"It is in the source package of llama-cpp-python {VERSION} (77 MB), which pip fetches once, from where it fetches packages.",
        )
    return archive


def _unpack(archive: Path, folder: Path) -> None:
    """What converts, of the folder `vendor/llama.cpp` of the source package."""
    with tarfile.open(archive) as packed:
        for member in packed:
            _, _, name = member.name.partition("/vendor/llama.cpp/")
            if name.startswith(_NEEDED) and member.isfile():
                member.name = name
                packed.extract(member, folder, filter="data")


def architectures(converter: Path) -> Iterator[str]:
    """The architectures that the converter knows and that write text, by their names in a `config.json`. Read from its source,
    because loading it takes seconds."""
    tree = ast.parse((converter / "conversion" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "TEXT_MODEL_MAP" and node.value:
            yield from (name for name in ast.literal_eval(node.value) if "ForCausalLM" in name or "LMHead" in name)


def convert(converter: Path, model: Path, out: Path, kind: str, turn_end: int | None) -> None:
    """Writes a model's folder as a GGUF file. kind: f32, f16, bf16 or q8_0. turn_end: the number of the token that ends an answer.

    Raises Stop where the converter refuses it.
    """
    end = [str(turn_end)] if turn_end is not None else []
    done = _run("converting", str(converter), str(model), str(out), kind, *end)
    if done.returncode or not out.is_file():
        raise Stop(f"llama.cpp's converter cannot convert this model: {_why(done)}", ELSE)


def quantise(whole: Path, out: Path, kind: str) -> None:
    """Writes a GGUF file with fewer bits a weight. Raises Stop where llama.cpp refuses."""
    done = _run("native", "quantise", str(whole), str(out), kind)
    if done.returncode:
        raise Stop(f"llama.cpp cannot write this model as {kind}: {_why(done)}", "Name another kind with `--quantize`.")


def read(file: Path, task: Mapping[str, Any]) -> dict[str, Any]:
    """What llama.cpp makes of a file, as `runner.parts.export.native.read` has it. Raises Stop where it cannot load it."""
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder) / "task.json"
        write_json(given, task)
        done = _run("native", "read", str(file), str(given))
    if done.returncode:
        raise Stop(f"llama.cpp cannot load what its converter has made of this model: {_why(done)}", ELSE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {child_process.PARENT: str(os.getpid())}
    command = [sys.executable, "-m", f"runner.parts.export.{program}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", env=env)


def _why(done: subprocess.CompletedProcess[str]) -> str:
    """The reason in what a process has said: of llama.cpp its first error, of Python the last line."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    first = next((line for line in lines if "error loading" in line), None)
    if done.returncode < 0:
        return f"it was ended by {signal.Signals(-done.returncode).name}"
    return first or (lines[-1] if lines else "it does not say why")
