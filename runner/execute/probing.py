"""Probing: what this machine has. Facts alone; `runner.execute.doctor` says what they mean."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from runner import catalog

PACKAGES = (
    "axolotl",
    "torch",
    "transformers",
    "peft",
    "trl",
    "accelerate",
    "datasets",
    "deepspeed",
    "bitsandbytes",
    "flash-attn",
    "liger-kernel",
    "torchao",
    "lm_eval",
    "ray",
    "datatrove",
    "spacy",
)
# What torchrun on one machine and the training operator meet on.
PORTS = (29500, 23456)


@dataclass(frozen=True)
class Card:
    """A GPU that is here: name as the driver gives it, memory in GiB, compute capability (`9.0`)."""

    name: str
    memory_gib: float
    capability: str

    @property
    def label(self) -> str:
        """The name as a cluster's label has it."""
        return catalog.label_of(self.name)

    @property
    def fp8(self) -> bool:
        return tuple(map(int, self.capability.split("."))) >= (9, 0)


@dataclass(frozen=True)
class Machine:
    """memory_gib, disk_gib (free at `folder`), shm_gib: GiB. links: how GPUs reach each other, as the driver draws it.
    ports_taken: of PORTS. hub: None where it answers, else why not. gated: models asked for, with why they cannot be had.
    """

    python: str
    packages: dict[str, str | None]
    cards: tuple[Card, ...] = ()
    driver: str = ""
    links: str = ""
    memory_gib: float = 0.0
    shm_gib: float = 0.0
    disk_gib: float = 0.0
    folder: str = "."
    cores: int = 1
    ports_taken: tuple[int, ...] = ()
    hub: str | None = None
    token: bool = False
    gated: dict[str, str | None] = field(default_factory=dict)


def probe(folder: Path, models: tuple[str, ...] = ()) -> Machine:
    """This machine, as far as it can be seen. folder: where results would go. models: names on the hub to ask for."""
    hub = _hub()
    return Machine(
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        cards=_cards(),
        driver=_said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        links=_said("nvidia-smi", "topo", "-m"),
        memory_gib=_memory_gib(),
        shm_gib=_free_gib(Path("/dev/shm")),
        disk_gib=_free_gib(folder),
        folder=str(folder),
        cores=len(os.sched_getaffinity(0)),
        ports_taken=tuple(port for port in PORTS if _taken(port)),
        hub=hub,
        token=_token(),
        gated={name: hub or _refused(name) for name in models},
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cards() -> tuple[Card, ...]:
    try:
        import torch
    except ImportError:
        return ()
    cards = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        cards.append(Card(facts.name, round(facts.total_memory / 2**30, 1), f"{facts.major}.{facts.minor}"))
    return tuple(cards)


def _said(*command: str) -> str:
    """What a command prints; nothing where it is not there or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _memory_gib() -> float:
    """Main memory, or what a container may use of it where that is less."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(file).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            whole = min(whole, int(text))
    return whole / 2**30


def _free_gib(folder: Path) -> float:
    """Free space where `folder` is or would be, GiB; 0 where it cannot be told."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        return shutil.disk_usage(folder).free / 2**30
    except OSError:
        return 0.0


def _taken(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def _hub() -> str | None:
    """None where the hub answers; else why it does not, in plain words."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "HF_HUB_OFFLINE is set"
    import urllib.error
    import urllib.request

    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=5)
    except urllib.error.HTTPError:
        return None  # it answers, if only to say no
    except (OSError, ValueError) as error:
        return f"{address} does not answer ({getattr(error, 'reason', error)})"
    return None


def _token() -> bool:
    try:
        from huggingface_hub import get_token
    except ImportError:
        return bool(os.environ.get("HF_TOKEN"))
    return get_token() is not None


def _refused(name: str) -> str | None:
    """None where the hub lets this account read the repository; else its reason."""
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
    except ImportError:
        return "huggingface_hub is not installed"
    try:
        HfApi().auth_check(name)
    except GatedRepoError:
        return "its owner has to grant access first"
    except RepositoryNotFoundError:
        return "there is no such repository, or it is private"
    except (HfHubHTTPError, OSError) as error:
        return str(error).split("\n")[0]
    return None
