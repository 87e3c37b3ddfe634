"""`python -m runner.parts.nodes.node`: the steps of a plain machine's start script around training.

Before each stage that trains, the machines meet and compare. The main one checks the stage before
it and its gates, and prepares the data and the config for the present GPUs. After the last stage,
the main one checks the results.

The main one listens on the port of training, and each other machine says hello there again and
again: one line of JSON a connection, and one as the answer. It waits until that is its end:
`ready`, `refused`, or nothing, if the main machine stops or continues without it. A main machine
that no longer listens, or does not answer for `wait_minutes`, has stopped.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from runner import parts
from runner.check.validate import changed, valid
from runner.data.tokenizers import forget_older
from runner.parts.nodes import target
from runner.plan import PLAN_FILE, Plan, Stage
from runner.recipe import reading
from runner.recipe.overrides import of_each
from runner.recipe.recipe import Override, Recipe
from runner.recipe.stages import STAGES
from runner.run import pipeline
from runner.run.run import report
from runner.run.run_folder import RunFolder, StageFolder, open_for
from runner.run.run_manifest import keep
from runner.scenarios import translate
from runner.scenarios.saved_plan import read_plan
from runner.tools.files import content_hash, write_text
from runner.tools.listening import OnEveryAddress
from runner.tools.problem import Stop, Tell
from runner.tools.process import hush
from runner.trainer.records import versions

TELL_EVERY_S = 15.0
BEAT_S = 0.25  # between two looks at the other machines
SILENT_S = 5.0  # the least patience with a silent one
# NFS may show a machine an old list of files for up to a minute (acdirmax, nfs(5)).
PATIENCE_WITH_STORAGE_S = 75.0
_tell = partial(print, flush=True)
BY = "the machines that came"
ELSEWHERE = (
    "A run on other GPUs is a different run. Name another `nodes.output_dir`, or move that folder."
)


class Hello(NamedTuple):
    """A machine."""

    rank: int  # its number
    gpus: int  # how many it uses
    total: int  # TOTAL_GPUS of all machines
    fingerprint: str  # of its recipe
    versions: Mapping[str, str]  # of its packages


@dataclass(frozen=True)
class Ready:
    """What the main machine has prepared."""

    stage: str = ""  # the next to train
    # The hash of each file of its config, by its path below the folder of configs; and for each
    # file of the earlier stage's model, by its whole path, an empty text.
    files: Mapping[str, str] = field(default_factory=dict)


def differences(main: Hello, joining: Hello) -> Iterator[str]:
    """Why a machine cannot train with the main one, a sentence for each difference."""
    machine = f"machine {joining.rank} has"
    if main.fingerprint != joining.fingerprint:
        yield f"{machine} another recipe ({joining.fingerprint}) than machine 0 ({main.fingerprint}); copy the folder of scripts to both again"
    if main.total != joining.total:
        yield f"{machine} TOTAL_GPUS {joining.total}, but machine 0 has {main.total}; set the same on every machine"
    for package in sorted({*main.versions, *joining.versions}):
        main_version, other_version = (
            hello.versions.get(package, "none") for hello in (main, joining)
        )
        if main_version != other_version:
            yield f"{machine} {package} {other_version}, but machine 0 has {main_version}; install the same version"


@dataclass
class Arrival:
    """A machine that has said hello."""

    hello: Hello
    came: float  # the first time, by this machine's clock
    heard: float  # the last time
    left: bool = False  # it has heard its end


class Main(OnEveryAddress, socketserver.ThreadingTCPServer):
    """The main machine's side: `gather`, then `ready`. An early exit tells the others that it
    stopped."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 128  # as many machines may come at the same time

    def __init__(self, hello: Hello, nodes: int, port: int, patience_s: float, tell: Tell) -> None:
        self.hello = hello
        self.nodes = nodes
        self.patience_s = patience_s
        self.tell = tell
        # By the number that each chooses for itself.
        self.arrivals: dict[str, Arrival] = {}
        self.met: list[str] | None = None  # those that train
        self.end: Mapping[str, Any] | None = None  # what they hear at last
        try:
            super().__init__(("", port), _Answer)
        except OSError as error:
            raise Stop(
                f"Port {port} of this machine cannot be opened: {error.strerror}.",
                "Stop the program that uses it, or choose another `nodes.port`.",
            ) from None
        threading.Thread(target=self.serve_forever, args=(BEAT_S,), daemon=True).start()

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        """Closes the port after the others have heard their end: why nothing is prepared, if that
        is known."""
        if self.end is None:
            if isinstance(error, Stop):
                self.end = {"refused": [error.text]}
            else:
                self.end = {}
        until = time.monotonic() + SILENT_S
        while time.monotonic() < until and not all(
            arrival.left for arrival in self.arrivals.copy().values()
        ):
            time.sleep(BEAT_S)
        self.shutdown()
        self.server_close()

    def gather(self) -> list[int]:
        """Waits for all machines; returns their GPU counts by rank. Raises Stop if one does not
        come, or differs; then every present machine gets the reason."""
        begin = last_report = time.monotonic()
        while True:
            waiting = self._present()
            problems = self._problems_of(waiting)
            if problems:
                self.end = {"refused": problems}
                raise _refused(problems)
            gpus = {hello.rank: hello.gpus for hello in (self.hello, *waiting.values())}
            missing = [rank for rank in range(self.nodes) if rank not in gpus]
            if not missing:
                self.met = list(waiting)
                return [gpus[rank] for rank in range(self.nodes)]
            names = ", ".join(f"run_node{rank}.sh" for rank in missing)
            now = time.monotonic()
            if now - begin >= self.patience_s:
                self.end = {}
                raise Stop(
                    f"Some machines are missing: {names} did not start in time.",
                    "Start them, then start this one again.",
                )
            if now - last_report >= TELL_EVERY_S:
                self.tell(f"Waiting for {names}")
                last_report = now
            time.sleep(BEAT_S)

    def _present(self) -> dict[str, Hello]:
        """The machines that were heard since the last one came. A machine whose script was stopped
        is silent, and may come again."""
        arrivals = self.arrivals.copy()
        last = max((arrival.came for arrival in arrivals.values()), default=0.0)
        present = {}
        for number, arrival in arrivals.items():
            if arrival.heard > last:
                present[number] = arrival.hello
        return present

    def _problems_of(self, waiting: Mapping[str, Hello]) -> list[str]:
        """Why these machines cannot train with this one."""
        ranks = [0, *(hello.rank for hello in waiting.values())]
        problems = []
        for rank in dict.fromkeys(ranks):
            if ranks.count(rank) > 1 or rank >= self.nodes:
                problems.append(
                    f"a second machine claims to be machine {rank}; start each script once"
                )
        for hello in waiting.values():
            problems += differences(self.hello, hello)
        return problems

    def ready(self, prepared: Ready | None = None) -> None:
        self.end = {"ready": asdict(prepared or Ready())}


class _Answer(socketserver.StreamRequestHandler):
    """The answer to one hello. A connection that says something else is of no machine."""

    timeout = 10

    def handle(self) -> None:
        assert isinstance(self.server, Main)
        with suppress(ValueError, TypeError, OSError):
            number, facts = json.loads(self.rfile.readline(2**20))
            main = self.server
            now = time.monotonic()
            arrival = main.arrivals.setdefault(number, Arrival(Hello(**facts), came=now, heard=now))
            arrival.heard = now
            if main.met is None or number in main.met:
                end = main.end
            else:
                end = {}
            self.wfile.write(
                json.dumps({"met": main.met is not None} if end is None else end).encode() + b"\n"
            )
            arrival.left = end is not None


def join(hello: Hello, address: str, port: int, patience_s: float, tell: Tell) -> Ready:
    """Another machine's side: waits for the main machine's meeting, says hello, and waits until all
    is ready. On the same port, the main machine may still be in the training before. Raises Stop if
    it does not come, refuses, or stops."""
    return _Joining(hello, address, port, patience_s, tell).wait()


class _Joining:
    """Another machine's side, until all is ready."""

    def __init__(
        self, hello: Hello, address: str, port: int, patience_s: float, tell: Tell
    ) -> None:
        self.hello = hello
        self.address = address
        self.port = port
        self.patience_s = patience_s
        self.tell = tell
        self.came = False  # the main machine has answered
        self.met = False  # all machines have come
        self.foreign = 0  # how often something else has answered
        self.heard = time.monotonic()  # the last answer
        self.last_report = 0.0

    def wait(self) -> Ready:
        line = json.dumps([secrets.token_hex(8), self.hello._asdict()])
        while True:
            attempt = _say_hello(line, self.address, self.port)
            answer = attempt.answer
            if answer is None:
                self._require_patience(attempt)
                time.sleep(1)
                continue
            problems = answer.get("refused")
            if problems:
                raise _refused(problems)
            if "ready" in answer:
                self.tell("Ready")
                return Ready(**answer["ready"])
            if "met" not in answer:
                raise self._stopped()
            if answer["met"] and not self.met:
                self.tell("Same recipe and packages as machine 0, which now prepares the data")
            self.heard = time.monotonic()
            self.came = True
            self.met = answer["met"]
            time.sleep(BEAT_S)

    def _require_patience(self, attempt: _Attempt) -> None:
        """Reports what this machine waits for. Raises Stop if an attempt without an answer shows
        that waiting is useless, or if it has waited long enough."""
        now = time.monotonic()
        patience_s = self.patience_s
        if self.came:
            patience_s = max(patience_s, SILENT_S)
        is_late = now - self.heard >= patience_s
        self.foreign += attempt.is_foreign
        # A training may have ended between the two connections, but not twice.
        self.foreign += attempt.is_connected and not attempt.is_slow
        if self.came and (is_late or not attempt.is_slow):
            raise self._stopped()
        if not self.came and self.foreign > 1:
            raise Stop(
                f"{self.address}:{self.port} answers, but it is not the main machine.",
                "Check `nodes.port`.",
            )
        if is_late and attempt.is_connected:
            raise self._stopped()
        if is_late:
            raise Stop(
                f"The main machine does not answer at {self.address}:{self.port}: {attempt.reason}.",
                "Start run_node0.sh there. Check MAIN_NODE_IP, and that no firewall blocks the port.",
            )
        if not self.came and now - self.last_report >= TELL_EVERY_S:
            self.tell(f"Waiting for the main machine at {self.address}:{self.port}")
            self.last_report = now

    def _stopped(self) -> Stop:
        return Stop(
            "The main machine has stopped, or has started without this one.",
            f"Its own output explains why. It continues if another machine came as machine {self.hello.rank}.",
        )


class _Attempt(NamedTuple):
    """How one hello to the main machine went."""

    answer: Mapping[str, Any] | None  # None without one
    is_connected: bool  # also with a training, which says nothing
    is_slow: bool = False  # it took too long
    is_foreign: bool = False  # something else has answered
    reason: str = ""  # why nothing has answered


def _say_hello(line: str, address: str, port: int) -> _Attempt:
    is_connected = False
    try:
        with socket.create_connection((address, port), timeout=SILENT_S) as main:
            is_connected = True
            main.sendall(f"{line}\n".encode())
            answer = json.loads(main.makefile(encoding="utf-8").readline() or "null")
    except ValueError:
        return _Attempt(None, is_connected, is_foreign=True)
    except OSError as error:
        is_slow = isinstance(error, TimeoutError)
        return _Attempt(None, is_connected, is_slow, reason=error.strerror or str(error))
    if isinstance(answer, dict | None):
        return _Attempt(answer, is_connected)
    return _Attempt(None, is_connected, is_foreign=True)


def _refused(problems: list[str]) -> Stop:
    return Stop(
        "The machines cannot train together:\n" + "\n".join(f"  {problem}" for problem in problems)
    )


@click.group()
def node() -> None:
    """The steps of a start script."""


@node.command()
@click.option("--recipe", "file", required=True)
@click.option("--rank", type=int, required=True)
@click.option("--main", "address", required=True)
@click.option("--port", type=int, required=True)
@click.option("--gpus", required=True)
@click.option("--total", type=int, required=True)
def meet(file: str, rank: int, address: str, port: int, gpus: str, total: int) -> None:
    """Meets the other machines; on the main one, prepares data and config. Prints which of several
    stages is next."""
    recipe = read(file)
    gpu_count = len(gpus.split(","))
    cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
    if not cpu:
        import torch

        visible_gpus = torch.cuda.device_count()
        if visible_gpus != gpu_count:
            raise Stop(
                f"This machine should use the GPUs {gpus}, but only {visible_gpus} of them are visible.",
                "`nvidia-smi` shows the GPUs and their numbers. Set GPUS to free ones.",
            )
    installed = versions()
    # The patch number of Python may differ.
    comparable = installed | {"python": ".".join(installed["python"].split(".")[:2])}
    hello = Hello(rank, gpu_count, total, recipe.fingerprint, comparable)
    patience_s: float = recipe.settings["nodes"].wait_minutes * 60
    # A script of several stages reads the standard output; everything else is for people.
    with redirect_stdout(sys.stderr):
        if rank != 0:
            ready = join(hello, address, port, patience_s, _tell)
            # Each machine has its own tokenised rows, by the config that the main one wrote for
            # all.
            forget_older(_shared(recipe, rank, ready).stage(ready.stage).config)
        else:
            with Main(hello, recipe.machines.nodes, port, patience_s, _tell) as main:
                ready = lead(recipe, main.gather(), total, accelerator=not cpu, tell=_tell)
                main.ready(ready)
    if recipe.stage_recipes:
        _tell(ready.stage)


@node.command()
@click.option("--results", required=True)
def finish(results: str) -> None:
    """Marks the run as finished, or as stopped at its time limit, and prints its report."""
    plan = read_plan(Path(results) / "config" / PLAN_FILE)
    training = StageFolder(plan, plan.stages[-1])
    for line in (*pipeline.finish(training), *report(plan)):
        _tell(line)
    training.run.mark("finished" if training.finished else "stopped")
    if parts.has("planner"):
        from runner.parts.planner import calibration

        for line in calibration.after_plan(plan, training.run):
            _tell(line)
    _judge(training, _tell)


def _judge(training: StageFolder, tell: Tell) -> None:
    """Sends what a stage has left, whether its gates open or not. Raises Stop if one does not."""
    try:
        if training.finished:
            pipeline.judge(training, tell)
    finally:
        pipeline.send(training, tell)


def read(file: str) -> Recipe:
    """The recipe beside the script. Its samples are for rehearsals, and need not be on this
    machine."""
    document = reading.read(file)
    for section in (document.data, *document.data.get(STAGES, ())):
        data = section.get("data", {})
        for data_set in (data, *(data.get("sets") or ())):
            data_set.pop("sample", None)
    return valid(document)[0]


def lead(recipe: Recipe, counts: list[int], total: int, accelerator: bool, tell: Tell) -> Ready:
    """On the main machine: finishes the stage that has just been trained, and prepares the next
    one's data and its config for the present GPUs, in the shared folder. Raises Stop if a gate
    between them is closed."""
    if sum(counts) != total:
        together = f"{' + '.join(map(str, counts))} = {sum(counts)}"
        raise Stop(
            f"The machines use {together} GPUs together, but TOTAL_GPUS is {total}.",
            f"Set TOTAL_GPUS={sum(counts)} on every machine, or change GPUS.",
        )
    written_recipe = recipe
    recipe = on_these(recipe, counts, tell)
    place = replace(target.place(recipe), accelerator=accelerator)
    plan = translate(recipe, place)
    run = RunFolder(Path(place.run_dir))
    open_for(run, recipe.name, fresh=False, remedy=ELSEWHERE)
    run.mark("running", recipe=recipe.name)
    if pipeline.is_done(plan):
        raise Stop(
            f"The run in `{run.path}` is already done.",
            "Name another `nodes.output_dir` for another run.",
        )
    pipeline.keep_what_took_training(plan, pipeline.decide(plan, plan.stages), ELSEWHERE)
    keep(run, written_recipe, plan, recipe)
    stage = _next(plan, tell)
    stage_dir = Path(stage.folder)
    texts = {str(stage_dir / file.path): file.text for file in stage.files} | {
        PLAN_FILE: plan.as_json()
    }
    for name, text in texts.items():
        write_text(Path(place.config_dir) / name, text)
    models = (StageFolder(plan, plan.stage(name)).model for name in stage.reads)
    weights = {}
    for model in models:
        for file in model.rglob("*"):
            if file.is_file():
                weights[str(file)] = ""
    return Ready(stage.name, weights | {name: content_hash(text) for name, text in texts.items()})


def _next(plan: Plan, tell: Tell) -> Stage:
    """Begins the next stage to train, and returns it. Before that, it does the stages that train
    nothing and finishes those that the machines have trained; the last one's results are for
    `finish`."""
    for stage in plan.stages:
        folder = StageFolder(plan, stage)
        if not stage.trains:
            pipeline.carry_out(plan, [stage], tell, lambda: nullcontext(lambda event: None))
            continue
        decision = pipeline.decision_on(folder)
        last = stage is plan.stages[-1]
        if (
            decision.action == "go on"
            and folder.summary
            and folder.state.status == "begun"
            and not last
        ):
            for line in pipeline.finish(folder):
                tell(line)
            _judge(folder, tell)
        elif decision.action != "keep" or last:
            pipeline.require_earlier(folder, tell)
            pipeline.begin(folder, decision, tell)
            break
    return stage


def on_these(recipe: Recipe, counts: list[int], tell: Tell) -> Recipe:
    """The recipe with the present GPUs; prints the changes."""
    if tuple(counts) == recipe.gpu_counts:
        return recipe
    changes = []
    for rank, count in enumerate(counts):
        if count != recipe.gpu_counts[rank]:
            changes.append(Override(f"nodes.machines.{rank}.gpus", None, list(range(count)), BY))
    changes.append(Override("machines.gpus_per_node", None, max(counts), BY))
    batch = Override("train.effective_batch_size", None, None, BY, "follows the GPUs")
    changes += of_each(recipe, lambda name, section: [batch] if "train" in section.settings else [])
    recipe, applied = changed(recipe, changes)
    for change in applied:
        tell(f"  {change}")
    return recipe


def _shared(recipe: Recipe, rank: int, ready: Ready) -> Plan:
    """The plan, once this machine sees the files that the main one has just written: a network file
    system may show those of an earlier start for a while."""
    place = target.place(recipe)
    config = Path(place.config_dir)
    deadline = time.monotonic() + PATIENCE_WITH_STORAGE_S
    while not all(_is_there(config / name, written) for name, written in ready.files.items()):
        if time.monotonic() >= deadline:
            raise Stop(
                f"Machine {rank} does not see the files that machine 0 wrote to `{place.run_dir}`.",
                "That folder must be on storage that all machines share, under the same path.",
            )
        time.sleep(0.5)
    return read_plan(config / PLAN_FILE)


def _is_there(file: Path, written: str) -> bool:
    """Whether a file exists, with a content of this hash if there is one."""
    with suppress(OSError):
        if written:
            return content_hash(file.read_text(encoding="utf-8")) == written
        return file.is_file()
    return False


def main() -> None:
    hush()
    try:
        node.main(standalone_mode=False)
    except Stop as stop:
        print(stop.text, file=sys.stderr)
        sys.exit(stop.code)


if __name__ == "__main__":
    main()
