"""Executors: where datatrove's steps run: on this machine's cores, in the pods of a Job, in a queue
of Slurm, or on a cluster of Ray. A step begins when all tasks of the one before have ended. A
stopped run continues with the missing tasks. Pods, Slurm and Ray need the folder of prepared data
on shared storage, under the same path."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep

from runner.parts.pretrain.architecture import Cleaning
from runner.tools.files import read_json, write_json
from runner.tools.problem import Stop
from runner.tools.process import INDEX, cores, helping_pod

LOOK_SECONDS = 2.0  # seconds between a pod's looks for the marks of the others
# Seconds between two looks at a queue, and how often in a row a job must be missing there before it
# counts as gone: files of the last tasks may come late over the network, and a queue may not answer
# once.
POLL_SECONDS = 10.0
MISSES = 3


class Here:
    """All cores of this machine, or `workers` of them at once. tasks: the number of parts that the
    documents are cut into, each processed separately. Of several pods, each does neighbouring tasks
    of every step. They wait for one another by the marks that tasks leave on their claim: the first
    at the end of each step, because it continues alone, the others before the next."""

    def __init__(self, tasks: int, workers: int, pods: int = 1) -> None:
        self.tasks = tasks
        self.workers = workers
        self.pods = pods
        self.pod = helping_pod() if pods > 1 else 0
        self.before: LocalPipelineExecutor | None = None

    def run(self, name: str, pipeline: list[PipelineStep], tasks: int, logs: Path) -> None:
        """Runs one step to its end. Raises Stop if a task does not end well."""
        self._wait()
        begin, end = (-(-tasks * place // self.pods) for place in (self.pod, self.pod + 1))
        self.before = LocalPipelineExecutor(
            pipeline,
            tasks=tasks,
            workers=max(1, min(self.workers, end - begin)),
            local_tasks=end - begin,
            local_rank_offset=begin,
            logging_dir=str(logs),
        )
        if begin < end:
            self.before.run()
        if not self.pod:
            self._wait()

    def _wait(self) -> None:
        while self.before and self.before.get_incomplete_ranks(skip_completed=True):
            time.sleep(LOOK_SECONDS)


class Slurm:
    """Each step is an array job. A repeated command waits for a job that is still running."""

    def __init__(self, cleaning: Cleaning, tasks: int) -> None:
        self.cleaning = cleaning
        self.tasks = tasks
        if not shutil.which("sbatch") or not shutil.which("squeue"):
            raise Stop(
                "Cleaning should run on Slurm, but this machine has no `sbatch` and `squeue`.",
                "Run the command on a machine with Slurm's commands, or write `data.cleaning.executor: local`.",
            )
        if "SLURM_ARRAY_TASK_ID" in os.environ:
            raise Stop(
                "Cleaning cannot be queued from inside an array job of Slurm.",
                "Run the command on the login machine.",
            )

    def run(self, name: str, pipeline: list[PipelineStep], tasks: int, logs: Path) -> None:
        from datatrove.executor.slurm import SlurmPipelineExecutor

        cleaning = self.cleaning
        note = logs / "job.json"
        # A job sees the Python packages of this process, however its own shell begins.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        paths = {"PATH": path, "PYTHONPATH": os.environ.get("PYTHONPATH")}
        executor = SlurmPipelineExecutor(
            pipeline,
            tasks=tasks,
            time=cleaning.time,
            partition=cleaning.partition,
            **_size(cleaning),
            qos=cleaning.qos or "",
            sbatch_args=dict(cleaning.sbatch_args),
            job_name=f"clean-{name}",
            env_command="; ".join(
                f"export {name}={shlex.quote(value)}" for name, value in paths.items() if value
            ),
            logging_dir=str(logs),
        )
        job = (read_json(note) or {}).get("job")
        if not job or not _in_queue(job):
            try:
                executor.run()
            except subprocess.CalledProcessError as error:
                raise Stop(
                    f"Slurm refused the cleaning step `{name}` (exit {error.returncode}).",
                    "Its message is in the stage's log. Check `data.cleaning` in the recipe.",
                ) from None
            job = executor.job_id
            write_json(note, {"job": job})
        missed = 0
        try:
            # Until every task has written its mark.
            while undone := executor.get_incomplete_ranks(skip_completed=True):
                missed = 0 if _in_queue(job) else missed + 1
                if missed >= MISSES:
                    raise _undone(
                        name, undone, executor.world_size, f"{executor.slurm_logs_folder}"
                    )
                time.sleep(POLL_SECONDS)
        except BaseException:
            subprocess.run(["scancel", str(job)], check=False)
            raise


class Ray:
    """A cluster of Ray; without an address, that of RAY_ADDRESS, or one of this machine's own."""

    def __init__(self, cleaning: Cleaning, tasks: int) -> None:
        self.cleaning = cleaning
        self.tasks = tasks
        try:
            import ray
        except ImportError:
            raise Stop(
                "Cleaning should run on Ray, but the package is not installed.",
                'Install the version of your cluster: pip install "ray[default]". Or write `data.cleaning.executor: local`.',
            ) from None
        try:
            ray.init(address=cleaning.address, ignore_reinit_error=True, log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise Stop(
                f"No Ray cluster answers: {str(error).splitlines()[0]}",
                "Look at `data.cleaning.address`.",
            ) from None

    def run(self, name: str, pipeline: list[PipelineStep], tasks: int, logs: Path) -> None:
        from datatrove.executor.ray import RayPipelineExecutor

        seconds = None
        if written := self.cleaning.time:  # `[days-]hours:minutes:seconds`, as Slurm writes times
            parts = zip(re.split("[-:]", written)[::-1], (1, 60, 3600, 86400), strict=False)
            seconds = sum(int(part) * unit for part, unit in parts)
        executor = RayPipelineExecutor(
            pipeline,
            tasks=tasks,
            **_size(self.cleaning),
            time=seconds,
            logging_dir=str(logs),
        )
        executor.run()
        # The executor only warns of tasks that failed.
        undone = executor.get_incomplete_ranks(skip_completed=True)
        if undone:
            raise _undone(name, undone, executor.world_size, f"{logs}/logs")


Executor = Here | Slurm | Ray


def chosen(cleaning: Cleaning, size: int | None) -> Executor:
    """The recipe's executor. size: bytes of a local file, None for a stream. Raises Stop if it
    cannot be reached."""
    here = cores()
    workers = max(0, cleaning.workers)
    if cleaning.executor == "pods" and INDEX in os.environ:
        pods = cleaning.pods or 1
        workers = workers or cleaning.cpus
        return Here(cleaning.tasks or pods * workers, workers, pods)
    # For a small file no more than it keeps busy: a worker takes seconds to start.
    tasks = cleaning.tasks or (here if size is None else max(1, min(here, size // 8_000_000)))
    if cleaning.executor == "slurm":
        return Slurm(cleaning, tasks)
    if cleaning.executor == "ray":
        return Ray(cleaning, tasks)
    return Here(tasks, workers or here)


def agreed(file: Path, made: Callable[[], object]) -> Any:
    """A value that all pods must share, which the first one computes once; JSON."""
    while (known := read_json(file)) is None:
        if helping_pod():
            time.sleep(LOOK_SECONDS)
        else:
            write_json(file, made())
    return known


def _size(cleaning: Cleaning) -> dict[str, int]:
    """The tasks at once and the machine of each, as datatrove's executors for clusters call
    them."""
    return {
        name: getattr(cleaning, name) for name in ("workers", "cpus_per_task", "mem_per_cpu_gb")
    }


def _in_queue(job: object) -> bool:
    asked = subprocess.run(
        ["squeue", "--noheader", "--jobs", str(job)],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return asked.returncode == 0 and bool(asked.stdout.strip())


def _undone(name: str, undone: list[int], task_count: int, logs: str) -> Stop:
    return Stop(
        f"The cleaning step `{name}` has ended with {len(undone):,} of {task_count:,} tasks not done.",
        f"Their logs are in `{logs}`. The same command tries them again.",
    )
