"""Launch: starts a stage's engine on this machine, logs it, passes on its progress, and reports why
it failed."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.util import find_spec
from pathlib import Path

from runner import parts
from runner.catalog import troubles
from runner.plan import RUNNER, Place, Stage
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.axolotl import UNTRACKED
from runner.tools import child_process, packaged
from runner.tools.files import read_record, write_text
from runner.tools.problem import Stop
from runner.tools.run_files import LOG, LOG_KEPT, STOPPED
from runner.trainer import fork_server

_ENVIRONMENT = packaged.toml(__file__, "environment.toml")
BY_BUS = _ENVIRONMENT["by-bus"]
WITHOUT_GPU = _ENVIRONMENT["without-gpu"]

DOING = {
    "data": "Preparing the data",
    "init": "Creating the first weights",
}  # all other stages train
TRAINING = "Training"

Progress = Callable[[child_process.Event], None]


def launch(stage: Stage, place: Place, progress: Progress) -> None:
    """Trains a stage on this machine, with one process for each GPU (without GPUs, for each planned
    process). Raises Stop with the reason if training fails; ModuleNotFoundError if the extra
    `train` is not installed."""
    for package in ("torch", "transformers"):  # here, before a process fails without it
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    for file in stage.files:
        write_text(Path(place.config_dir) / file.path, file.text)
    if stage.trains:
        doing = TRAINING
    else:
        doing = DOING.get(stage.name, TRAINING)
    follow(
        ENGINES[stage.engine](stage, place),
        environment(stage, place),
        Path(place.run_dir),
        progress,
        doing,
    )


def ahead(stage: Stage, place: Place) -> None:
    """Starts to import what a stage's engine needs, if stages are forks (see `fork_server`)."""
    fork_server.ahead(ENGINES[stage.engine](stage, place), environment(stage, place))


def follow(
    command: list[str], env: dict[str, str], run_dir: Path, progress: Progress, doing: str
) -> None:
    """Runs a command; its output goes to the log in `run_dir`, its events to `progress`. doing: its
    work, as the beginning of a sentence. Raises Stop with the reason if it fails."""
    log = run_dir / LOG
    log.parent.mkdir(parents=True, exist_ok=True)
    (run_dir / STOPPED).unlink(missing_ok=True)
    # The log begins with earlier attempts, which failed for other reasons.
    if log.exists():
        start = log.stat().st_size
    else:
        start = 0
    env = env | {LOG_KEPT: str(log)}
    process = fork_server.fork(command, env) or subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        # Its own session, so that ^C reaches it once, from here, and all its processes end with it.
        start_new_session=True,
    )
    try:
        with log.open("a", encoding="utf-8") as out:
            for line in process.stdout or ():
                out.write(line)
                out.flush()
                for event in child_process.events(line):
                    progress(event)
        code = process.wait()
    except BaseException:
        end(process)
        raise
    if code == 0:
        return
    stopped = read_record(run_dir / STOPPED)
    if stopped:
        if doing == TRAINING:
            reason = f"{doing} was stopped. {stopped['message']}"
        else:
            reason = stopped["message"]
    else:
        reason = fault(end_of(log, start), code, doing)
    raise Stop(f"{reason}\nThe whole log: {log}")


def engine_environment() -> dict[str, str]:
    """This process's environment for an engine that ends with it."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **BY_BUS,
        **os.environ,
        "PATH": path,
        "PYTHONUNBUFFERED": "1",
        child_process.PARENT: str(os.getpid()),
    }


def forking() -> AbstractContextManager[None]:
    """A context with a server that forks stages without a GPU. Axolotl reads some of its
    environment when imported."""
    return fork_server.forking(engine_environment() | WITHOUT_GPU | UNTRACKED)


def environment(stage: Stage, place: Place) -> dict[str, str]:
    """This process's environment with the stage's on top. In a pod, processes see all GPUs."""
    env = engine_environment() | ({} if place.accelerator else WITHOUT_GPU) | dict(stage.env)
    if place.accelerator and stage.machines.nodes == 1 and not place.on_cluster:
        # One process would take more GPUs than planned: the Trainer copies the model, Axolotl
        # spreads it.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(
            device_names(env.get("CUDA_VISIBLE_DEVICES"), stage.machines.world_size)
        )
    return env


def device_names(visible: str | None, count: int) -> list[str]:
    """The names of `count` visible GPUs. visible: the value of CUDA_VISIBLE_DEVICES; None for
    nvidia-smi's numbers."""
    if visible is not None:
        return [name.strip() for name in visible.split(",")][:count]
    return [*map(str, range(count))]


def gpus_of(recipe: Recipe) -> list[int]:
    """The GPUs of the main machine that the recipe names; empty for any."""
    nodes = recipe.settings.get("nodes")
    if nodes:
        return list(nodes.machines[0].gpus)
    return []


def particular(visible: str | None, numbers: Sequence[int], count: int) -> dict[int, str]:
    """The visible GPUs, counted from 0, that the recipe names (`nodes.machines[].gpus`), each with
    its name in CUDA_VISIBLE_DEVICES: those that are here, as the others are other users'. If none
    is (no numbers, another machine, names such as `GPU-8f6b…`), all count."""
    names = device_names(visible, count)
    chosen = {names.index(str(number)): str(number) for number in numbers if str(number) in names}
    return chosen or dict(enumerate(names))


def end(process: subprocess.Popen[str] | fork_server.Forked) -> None:
    """Ends the engine and all its processes, with SIGTERM first."""
    with suppress(ProcessLookupError):
        for number, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 5)):
            with suppress(subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(patience)
                return


def end_of(log: Path, start: int = 0, most: int = 20_000) -> str:
    """The end of a log's text after its first `start` bytes, at most `most` bytes; empty if it
    cannot be read."""
    try:
        with log.open("rb") as content:
            content.seek(max(start, log.stat().st_size - most))
            return content.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def fault(log: str, code: int, doing: str) -> str:
    """Why a process failed, by its log's end and exit status. doing: its work, as the beginning of
    a sentence."""
    diagnosis = troubles.diagnose(log)
    if diagnosis.stop:
        return f"{doing} was stopped. {diagnosis.stop}"
    if diagnosis.line:
        line = f"\nThe log says: {diagnosis.line}"
    else:
        line = ""
    if code < 0:
        ended = f"Signal {-code} killed it."
    else:
        ended = ""
    return f"{doing} failed. {diagnosis.meaning or ended}".strip() + line


TRAIN = (sys.executable, "-m", "axolotl.cli.main", "train")  # a config and a launcher follow


# The programs of all other engines: the runner's own work, data and first weights; and parts' own
# trainers.
PROGRAMS = {RUNNER: "runner.entrypoints.prepare", **parts.table("engines")}


def program(stage: Stage, place: Place) -> list[str]:
    """An engine in this interpreter: plain for one process, through torchrun with its own
    rendezvous for several."""
    config = f"{place.config_dir}/{stage.config_file}"
    processes = stage.machines.world_size
    several = ["--standalone", f"--nproc_per_node={processes}"]
    if stage.engine == "axolotl":
        return [
            *TRAIN,
            config,
            "--launcher",
            *(["torchrun", "--", *several] if processes > 1 else ["python"]),
        ]
    if processes > 1:
        launcher = ["-m", "torch.distributed.run", *several]
    else:
        launcher = []
    return [sys.executable, *launcher, "-m", PROGRAMS[stage.engine], config]


ENGINES: dict[str, Callable[[Stage, Place], list[str]]] = dict.fromkeys(
    ("axolotl", *PROGRAMS), program
)
