"""Hardware: what this machine has. Facts alone; `doctor` says what they mean."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from runner import catalog
from runner.catalog.models import why_no_hub
from runner.tools.problem import Stop
from runner.tools.process import free_port

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
    "kernels",
    "liger-kernel",
    "torchao",
    "lm_eval",
    "ray",
    "datatrove",
    "spacy",
)
# What torchrun on one machine and the training operator meet on.
PORTS = (29500, 23456)
# FlashAttention as transformers takes it where the package is not there: from the hub, or from a folder that LOCAL_KERNELS
# names for it (the kernels library's own variable).
FLASH_KERNEL = "kernels-community/flash-attn2"


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
    cards: those that programs may see; visible: CUDA_VISIBLE_DEVICES, None where it is not set. flash_kernel: where
    FlashAttention's kernel lies, None where it would come from the hub. ports: looked at; ports_taken: of them.
    hub: None where it answers, else why not. gated: models asked for, with why they cannot be had.
    """

    python: str
    packages: dict[str, str | None]
    cards: tuple[Card, ...] = ()
    visible: str | None = None
    driver: str = ""
    links: str = ""
    memory_gib: float = 0.0
    shm_gib: float = 0.0
    disk_gib: float = 0.0
    folder: str = "."
    cores: int = 1
    flash_kernel: str | None = None
    ports: tuple[int, ...] = PORTS
    ports_taken: tuple[int, ...] = ()
    hub: str | None = None
    token: bool = False
    gated: dict[str, str | None] = field(default_factory=dict)


def probe(folder: Path, models: tuple[str, ...] = (), ports: tuple[int, ...] = PORTS) -> Machine:
    """This machine, as far as it can be seen. folder: where results would go. models: names on the hub to ask for. ports:
    those to be free."""
    hub = why_no_hub()
    return Machine(
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        cards=_cards(),
        visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        driver=_said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split("\n")[0],
        links=_said("nvidia-smi", "topo", "-m"),
        memory_gib=_memory_gib(),
        shm_gib=_free_gib(Path("/dev/shm")),
        disk_gib=_free_gib(folder),
        folder=str(folder),
        cores=len(os.sched_getaffinity(0)),
        flash_kernel=_flash_kernel(),
        ports=ports,
        ports_taken=tuple(port for port in ports if _taken(port)),
        hub=hub,
        token=_token(),
        gated={name: hub or _refused(name) for name in models},
    )


def labels() -> list[str]:
    """The labels of this machine's GPUs, as its driver names them; none where it has none."""
    said = _said("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    return [catalog.label_of(line.strip()) for line in said.splitlines() if line.strip()]


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


def _flash_kernel() -> str | None:
    """The folder that FlashAttention's kernel is loaded from, as LOCAL_KERNELS names it (NAME=FOLDER, `:` between them)."""
    for entry in os.environ.get("LOCAL_KERNELS", "").split(":"):
        name, _, folder = entry.partition("=")
        if name == FLASH_KERNEL and Path(folder).is_dir():
            return folder
    return None


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
    try:
        free_port(port)
    except Stop:
        return True
    return False


def _token() -> bool:
    try:
        from huggingface_hub import get_token
    except ImportError:
        return bool(os.environ.get("HF_TOKEN"))
    return get_token() is not None


def _refused(name: str) -> str | None:
    """None where the hub lets this account read the repository; else its reason."""
    try:
        from httpx import HTTPError
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
    except ImportError:
        return "huggingface_hub is not installed"
    try:
        HfApi().auth_check(name)
    except GatedRepoError:
        return "its owner has to grant access first"
    except RepositoryNotFoundError:
        return "there is no such repository, or it is private"
    except (HTTPError, HFValidationError, OSError) as error:
        return (str(error).strip() or type(error).__name__).split("\n")[0]
    return None
