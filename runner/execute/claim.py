"""Claim: fetches the model and prepares the data onto a claim, in a pod without a GPU (`python -m runner.execute.claim`).

It checks free space before each thing that it writes, and does nothing where everything lies there already.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from runner.execute.tokenised import forget_older
from runner.files import content_of, read_json, write_json
from runner.names import content_hash
from runner.problem import Stop

DONE_FILE = ".prepared.json"
MODEL_DONE_FILE = ".fetched.json"
# What a model folder needs: weights in one format, configs, tokenizer.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.py")
# Prepared and tokenised rows are small beside a model; so much must stay free in any case, bytes.
RESERVE = 2**30

Tell = Callable[[str], None]


def carry_out(wanted: Mapping[str, Any], tell: Tell) -> bool:
    """Does what `prepare.json` asks for (see `runner.targets.preparing.wanted`); False where all was done before.

    Raises Stop where the claim has too little space, or model or data cannot be had.
    """
    data_dir = Path(wanted["data_dir"])
    key = content_hash(_made_from(wanted), 32)
    if (read_json(data_dir / DONE_FILE) or {}).get("key") == key:
        tell(f"Everything lies in {data_dir} already.")
        return False
    if wanted["model"]:
        fetch_model(wanted["model"], tell)
    require_space(data_dir, RESERVE, "the prepared data")
    _prepare_data(wanted, data_dir, tell)
    if wanted["tokenise"]:
        tokenise(wanted["tokenise"], tell)
    # Last, because it says that everything before it is there.
    write_json(data_dir / DONE_FILE, {"key": key, "name": wanted["name"]})
    tell("Model and data are ready.")
    return True


def _made_from(wanted: Mapping[str, Any]) -> list[Any]:
    """What is asked for, the engine's config, which decides how rows are tokenised, and what the data files hold."""
    config = Path(wanted["tokenise"]) if wanted["tokenise"] else None
    named = {setting: wanted["data"].get(setting) for setting in ("path", "validation_path")}
    contents = {setting: content_of(Path(name)) for setting, name in named.items() if name and Path(name).exists()}
    return [dict(wanted), config.read_text(encoding="utf-8") if config else None, contents]


def fetch_model(model: Mapping[str, Any], tell: Tell) -> None:
    """Downloads a model's files at its revision, unless they lie there; an interrupted download goes on."""
    folder = Path(model["folder"])
    done = read_json(folder / MODEL_DONE_FILE)
    if done and (done["base"], done["revision"]) == (model["base"], model["revision"]):
        tell(f"The model {model['base']} lies in {folder} already.")
        return
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        facts = HfApi().model_info(model["base"], revision=model["revision"], files_metadata=True)
        # The commit behind a branch, so that a branch that moves half-way does not mix two versions.
        missing = sum(
            file.size or 0
            for file in facts.siblings
            if any(Path(file.rfilename).match(pattern) for pattern in MODEL_FILES)
            and not _whole(folder / file.rfilename, file.size)
        )
        require_space(folder, missing + RESERVE, f"the model {model['base']}")
        tell(f"Fetching {model['base']} at {facts.sha}, {missing / 2**30:.1f} GiB")
        snapshot_download(
            model["base"], revision=facts.sha, local_dir=folder, allow_patterns=list(MODEL_FILES), max_workers=4
        )
    except (HfHubHTTPError, OSError) as error:
        raise Stop(
            f"The model `{model['base']}` at `{model['revision']}` cannot be fetched: {_first_line(error)}",
            "Check its name and the network; a model that needs your consent needs `openshift.hub_token_secret` too.",
        ) from None
    write_json(folder / MODEL_DONE_FILE, {"base": model["base"], "revision": model["revision"], "commit": facts.sha})


def _whole(file: Path, size: int | None) -> bool:
    return file.is_file() and file.stat().st_size == size


def require_space(folder: Path, size: int, what: str) -> None:
    """Raises Stop where the disk that holds `folder` has less than `size` bytes free."""
    there = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(there).free
    if free < size:
        raise Stop(
            f"{there} has {free / 2**30:.1f} GiB free, and {what} needs {size / 2**30:.1f} GiB.",
            "Raise `openshift.claims[].size_gib` of that claim, or delete old runs from it. What lies there already is kept.",
        )


def _prepare_data(wanted: Mapping[str, Any], data_dir: Path, tell: Tell) -> None:
    from runner.execute.data import prepare

    path = wanted["data"].get("path")
    # Images lie in a folder, everything else in a file.
    if path and not Path(path).exists():
        raise Stop(
            f"The data file or folder `{path}` is not in the pod.",
            "Put it below `recipes/data/` and build the image again (with `image.code_from_git`: push it, and name the new "
            "commit), or put the data on the hub and name it under `data.hub`.",
        )

    def tokenizer(_texts: list[str]) -> Any:
        from transformers import AutoTokenizer

        model = wanted["model"]
        return AutoTokenizer.from_pretrained(model["folder"], local_files_only=True) if model else None

    for line in prepare(wanted["data"], data_dir, tokenizer_for=tokenizer).lines():
        tell(line)


def tokenise(config: str, tell: Tell) -> None:
    """Axolotl's own preprocessing: training then finds the rows tokenised."""
    tell("Tokenising")
    forget_older(yaml.safe_load(Path(config).read_text(encoding="utf-8")))
    code = subprocess.run([sys.executable, "-m", "axolotl.cli.main", "preprocess", config]).returncode
    if code != 0:
        raise Stop(
            "Tokenising failed; the reason stands above.", "The prepared data is kept; the next try starts here."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def main() -> int:
    from runner.quiet import hush

    hush()
    wanted = read_json(Path(sys.argv[1]))
    if wanted is None:
        print(f"{sys.argv[1]} is missing or broken.", file=sys.stderr)
        return 1
    try:
        carry_out(wanted, lambda line: print(line, flush=True))
    except Stop as stop:
        print(stop.text, file=sys.stderr, flush=True)
        return stop.code
    return 0


if __name__ == "__main__":
    sys.exit(main())
