"""Serving what a stage has left, and what it began with, on this machine: one process with OpenAI's API, which answers as training
has asked.

vLLM serves a base model and adapters beside it, and no second whole model; so it is taken where it is installed and an adapter
was trained. Everything else is served by transformers' own command.
"""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner.parts.serve.served import opened
from runner.run.launch import end, end_of, engine_environment, fault
from runner.tools import names
from runner.tools.files import write_json, write_text
from runner.tools.problem import Stop
from runner.tools.process import HOST, free_port
from runner.tools.run_files import SERVING
from runner.tools.vllm import SERVER, room_for, saved
from runner.trainer.generation import Chat, end_tokens, repetition_penalty, with_system

# What a folder must have so that a model is loaded from it; the tokenizer is that of training for both.
WEIGHTS = ("config.json", "*.safetensors", "*.safetensors.index.json", "*.py")
SECONDS = 0.3
_KEPT_HERE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


def engine_for(chat: Chat) -> str:
    """The server that is taken where nobody names one."""
    return "vllm" if find_spec("vllm") and chat.adapter and not refusal(Path(chat.adapter)) else "transformers"


def refusal(adapter: Path) -> str:
    """Why vLLM would not serve an adapter; empty where it would."""
    return next(saved(adapter).refusals(), "")


@dataclass(frozen=True)
class LocalServer:
    """A server at work. url: where it answers; models: the names that it knows."""

    url: str
    models: tuple[str, ...]
    process: subprocess.Popen[str]
    log: Path

    def wait(self) -> None:
        """Until it ends. Raises Stop, because it should not."""
        raise _fault(self.process.wait(), self.log)


@contextmanager
def serving(engine: str, name: str, before: Chat, after: Chat, folder: Path, port: int) -> Iterator[LocalServer]:
    """A server, once it answers, for as long as it is wanted. name: of the recipe. folder: of the stage. port: 0 for any that is
    free.

    Raises Stop where it does not start, with the reason.
    """
    _require(engine, after)
    import torch

    gpu = torch.cuda.is_available()
    home, port = folder / SERVING, free_port(port)
    lay_out(home, name, before, after)
    models = names.served(name) if engine == "transformers" or after.adapter else names.served(name)[1:]
    make = _vllm if engine == "vllm" else _transformers
    env = engine_environment() | _KEPT_HERE | {"HF_HUB_CACHE": str(home)}
    empty, log, url = home / "empty", home / "serve.log", f"http://{HOST}:{port}"
    empty.mkdir()
    with log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "runner.parts.serve.server_wrapper",
                str(empty),
                *make(home, name, after, port, gpu),
            ],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        _ready(process, url, log)
        if engine == "transformers":
            for model in models:
                _load(url, model, log)
        yield LocalServer(url, models, process, log)
    finally:
        end(process)


def _require(engine: str, after: Chat) -> None:
    if engine == "vllm" and find_spec("vllm") is None:
        raise Stop("vLLM is not installed here.", "Install it, or leave out `--engine vllm`.")
    if engine == "vllm" and after.adapter and (why := refusal(Path(after.adapter))):
        raise Stop(f"vLLM does not serve this adapter: {why}.", "Leave out `--engine vllm`.")
    if engine == "transformers" and find_spec("openai") is None:
        raise ModuleNotFoundError("No module named 'openai'", name="openai")


def _ready(process: subprocess.Popen[str], url: str, log: Path) -> None:
    """Waits until the server answers, however long its weights take."""
    while process.poll() is None:
        try:
            opened(f"{url}/health", seconds=SECONDS * 10).close()
            return
        except OSError:
            time.sleep(SECONDS)
    raise _fault(process.returncode, log)


def _load(url: str, model: str, log: Path) -> None:
    """Has transformers' server load a model now, so that the first question does not wait. It tells how far it is, a line each."""
    with opened(f"{url}/load_model", {"model": model}) as lines:
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")]
    if failed := [event.get("message", "") for event in events if event.get("status") == "error"]:
        raise Stop(f"The server cannot load `{model}`: {failed[0]}", f"The whole log: {log}")


def _fault(code: int, log: Path) -> Stop:
    return Stop(f"{fault(end_of(log, 0), code, 'Serving')}\nThe whole log: {log}")


def lay_out(home: Path, name: str, before: Chat, after: Chat) -> None:
    """Both models in the form of the hub's cache, by which a server knows them by name: weights by links, and the tokenizer,
    template, end tokens and generation settings of training."""
    from transformers import AutoTokenizer

    shutil.rmtree(home, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(after.tokenizer, trust_remote_code=after.trust_remote_code)
    _exactly(tokenizer)
    if tokenizer.chat_template and after.system_prompt:
        tokenizer.chat_template = with_system(tokenizer.chat_template, after.system_prompt)
    for called, chat in zip(names.served(name), (before, after), strict=True):
        # As huggingface_hub 1.x keeps a model: a name for the one revision, and its files.
        cached = home / f"models--{called}"
        write_text(cached / "refs" / "main", "0")
        folder = cached / "snapshots" / "0"
        folder.mkdir(parents=True)
        for file in _weights(chat):
            (folder / file.name).symlink_to(file.resolve())
        tokenizer.save_pretrained(str(folder))
        penalty = {"repetition_penalty": repetition_penalty(chat)}
        write_json(folder / "generation_config.json", generation(tokenizer, after) | penalty)


def folder_of(home: Path, called: str) -> Path:
    """Where `lay_out` has put a model."""
    return home / f"models--{called}" / "snapshots" / "0"


def generation(tokenizer: Any, chat: Chat) -> dict[str, Any]:
    """How a server answers where a request does not say: without sampling, up to the tokens that end a turn."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return {
        "do_sample": False,
        "eos_token_id": end_tokens(tokenizer, chat.turn_end),
        "pad_token_id": pad,
        "max_new_tokens": chat.max_new_tokens,
    }


def _exactly(tokenizer: Any) -> None:
    """Text becomes its own tokens and no others: templates write beginnings themselves, and plain text was trained without."""
    from tokenizers.processors import TemplateProcessing

    for name in ("add_bos_token", "add_eos_token"):
        if hasattr(tokenizer, name):
            setattr(tokenizer, name, False)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])


def _weights(chat: Chat) -> list[Path]:
    """The files of a model, from its folder or the hub."""
    folder = Path(chat.model)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(chat.model, revision=chat.revision, allow_patterns=list(WEIGHTS)))
        except OSError as error:
            raise Stop(
                f"The model `{chat.model}` cannot be loaded: {str(error).splitlines()[0]}", "Check the network."
            ) from None
    return [file for pattern in WEIGHTS for file in sorted(folder.glob(pattern))]


def _transformers(home: Path, name: str, after: Chat, port: int, gpu: bool) -> list[str]:
    """The module and its arguments."""
    command = ["transformers.cli.transformers", "serve", "--host", HOST, "--port", str(port)]
    command += ["--dtype", "bfloat16" if gpu else "float32", "--device", "auto" if gpu else "cpu"]
    # Models stay loaded.
    return [*command, "--model-timeout", "-1", *(["--trust-remote-code"] if after.trust_remote_code else [])]


def _vllm(home: Path, name: str, after: Chat, port: int, gpu: bool) -> list[str]:
    """The module and its arguments: with an adapter for both models; else for the trained one alone."""
    base, trained = names.served(name)
    adapter = Path(after.adapter) if after.adapter else None
    whole = base if adapter else trained
    served = folder_of(home, whole)
    # It samples unless it is told not to; `do_sample` means nothing to it.
    greedy = {"temperature": 0.0, "max_new_tokens": after.max_new_tokens}
    command = [SERVER, "--model", str(served), "--served-model-name", whole]
    command += ["--host", HOST, "--port", str(port), "--dtype", "bfloat16" if gpu else "float32"]
    command += ["--generation-config", str(served), "--override-generation-config", json.dumps(greedy)]
    if adapter:
        command += [
            "--enable-lora",
            "--lora-modules",
            f"{trained}={adapter}",
            "--max-lora-rank",
            str(room_for(saved(adapter).rank)),
        ]
    return [*command, *(["--trust-remote-code"] if after.trust_remote_code else [])]
