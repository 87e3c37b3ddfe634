"""Process: a home folder, quiet libraries, free ports, and which pod this is."""

import errno
import os
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.tools import packaged
from runner.tools.problem import Stop

if TYPE_CHECKING:
    from socket import socket


def hush() -> None:
    """Silences libraries. Call it before the first import of torch, transformers or datasets."""
    import logging  # late, because few commands need it

    quiet = packaged.toml(__file__, "quiet.toml")
    messages = quiet["messages"]
    for name, value in quiet["environment"].items():
        os.environ.setdefault(name, value)
    for name in messages["loggers"]:
        # A filter, because DeepSpeed sets its own level when it is imported.
        logging.getLogger(name).addFilter(lambda record: record.levelno >= logging.ERROR)
    warnings.filterwarnings("ignore", module=messages["warnings"])


def without_scikit_learn() -> None:
    """Call it before the first import of transformers, in a process that only runs models: 5.16
    imports scikit-learn for an unused kind of generation, a quarter of its import time."""
    sys.modules.setdefault("sklearn", cast(Any, None))


def without_gpu_kernels() -> None:
    """Call it before the first model: transformers 5.16 chooses flash-linear-attention's kernels if
    that package is installed, even without the GPU that they need (Qwen3-Next)."""
    import torch

    if not torch.cuda.is_available():
        sys.modules["fla"] = cast(Any, None)


def memory_gib() -> float:
    """Main memory in GiB, or the container's limit if that is lower."""
    import psutil  # late, because few commands need it

    size = int(psutil.virtual_memory().total)
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _line(file)
        if text.isdigit():
            size = min(size, int(text))
    return size / 2**30


def cores() -> int:
    """The number of CPU cores that this process may use, or the container's limit if that is
    lower."""
    quota, _, period = _line("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit():
        least = max(1, int(quota) // int(period))
    else:
        least = sys.maxsize
    return min(least, _cores_of_process())


def _cores_of_process() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads() -> int:
    """The number of threads for training on the processor: OMP_NUM_THREADS, else the number of
    cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return cores()


# What Linux calls the instructions that multiply bf16 (Intel since 2020, AMD since 2022), and the
# values of oneDNN's own variable that keep it from using them.
BF16_FLAGS = {"amx_bf16", "avx512_bf16"}
WITHOUT_BF16 = {
    "SSE41",
    "AVX",
    "AVX2",
    "AVX2_VNNI",
    "AVX2_VNNI_2",
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
}


def multiplies_bf16() -> bool:
    """Whether this machine's processor multiplies numbers in bf16 by itself. Others compute in
    fp32 and only convert, which is slower than fp32 alone."""
    if os.environ.get("ONEDNN_MAX_CPU_ISA", "").upper() in WITHOUT_BF16:
        return False
    flags: set[str] = set()
    for line in processor_lines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            flags = set(value.split())
            break
    return bool(BF16_FLAGS & flags)


@cache
def processor_lines() -> tuple[str, ...]:
    """What Linux says of the processor; empty on other systems. Read once, because a plan asks for
    each change that it tries, and a server has a hundred processors to list."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    return tuple(text.splitlines())


def _line(file: str) -> str:
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def ensure_home() -> None:
    """Gives this process and its children another home folder if the user's is not writable,
    because training libraries cache there. It is below the temporary folder, and remains for the
    next command. Windows gives every user a folder."""
    if sys.platform == "win32":
        return
    home = os.path.expanduser("~")
    if home != "/" and os.access(home, os.W_OK):
        return
    import tempfile  # late, because few commands need it

    folder = Path(tempfile.gettempdir()) / f"recipe-runner-home-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():  # another process created it first
        folder = Path(tempfile.mkdtemp(prefix="recipe-runner-home-"))
    os.environ["HOME"] = str(folder)


HOST = "127.0.0.1"


def bound_port(port: int) -> "socket":
    """A socket on that port (0 for any free one) before it listens. Raises Stop if the port is not
    available."""
    import socket  # slow to load

    held = socket.socket()
    # A port that was closed a moment ago counts as free.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((HOST, port))
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            reason = "is in use"
        else:
            reason = f"cannot be used: {error.strerror}"
        message = f"Port {port} of this machine {reason}."
        raise Stop(message, "Name another with `--port`, or `--port 0` for any.") from None
    return held


def free_port(port: int = 0) -> int:
    """The port, or a free one for 0. Raises Stop if it is not available."""
    with bound_port(port) as held:
        return int(held.getsockname()[1])


# Kubernetes numbers the pods of an indexed Job from 0
# (https://kubernetes.io/docs/concepts/workloads/controllers/job/).
INDEX = "JOB_COMPLETION_INDEX"


def helping_pod() -> int:
    """The number of this pod among several. 0 is the first or only one, which does all work that
    cannot be shared."""
    return int(os.environ.get(INDEX) or 0)
