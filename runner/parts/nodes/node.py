"""`python -m runner.parts.nodes.node`: the steps of a plain machine's start script around training.

Before each stage that trains, the machines meet and compare. The main one checks the stage before it and its gates, and
prepares the data and the config for the present GPUs. After the last stage, the main one checks the results.

They meet in a TCPStore of torch on the main machine, on the port of training; its key `meeting` tells it from the store
of a training. Each machine takes a number (`arrivals`), writes `hello/NUMBER`, counts up `beat/NUMBER` while it waits,
and finally writes `left/NUMBER`. When all have come, the main one writes `met`, {"refused": [...]} or {"accepted":
[NUMBER, ...]}, prepares, and writes `ready`. A store that disappears before that, or does not answer for
`wait_minutes`, means that the main machine has stopped.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from runner import parts
from runner.check.validate import changed, valid
from runner.data.tokenizers import forget_older
from runner.parts.nodes import target
from runner.plan import PLAN_FILE, Plan, Stage, read_plan
from runner.recipe import reading
from runner.recipe.overrides import Override, of_each
from runner.recipe.recipe import Recipe
from runner.recipe.stages import STAGES
from runner.run import pipeline
from runner.run.run import report
from runner.run.run_folder import RunFolder, open_for
from runner.run.run_manifest import keep
from runner.run.stage_folder import StageFolder
from runner.scenarios import translate
from runner.tools.files import write_text
from runner.tools.names import content_hash
from runner.tools.problem import Stop, worded
from runner.trainer.records import versions

Tell = Callable[[str], None]
TELL_EVERY_S = 15.0
# Seconds between two reads of the store, and the least patience with a silent machine.
BEAT_S, SILENT_S = 0.25, 5.0
PATIENCE_WITH_STORAGE_S = 75.0  # NFS may show a machine an old list of files for up to a minute (acdirmax, nfs(5))
_tell = partial(print, flush=True)
BY = "the machines that came"
ELSEWHERE = "A run on other GPUs is a different run. Name another `nodes.output_dir`, or move that folder."


@dataclass(frozen=True)
class Hello:
    """A machine. rank: its number; gpus: how many it uses; total: TOTAL_GPUS of all machines; fingerprint: of its
    recipe; versions: of its packages."""

    rank: int
    gpus: int
    total: int
    fingerprint: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Ready:
    """What the main machine has prepared. stage: the next to train; files: the hash of each file of its config, by its
    path below the folder of configs; model: the paths of the files of the earlier stage's model."""

    stage: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    model: tuple[str, ...] = ()


def differences(main: Hello, other: Hello) -> Iterator[str]:
    """Why a machine cannot train with the main one, a sentence for each difference."""
    machine = f"machine {other.rank} has"
    if main.fingerprint != other.fingerprint:
        yield worded("nodes.other-recipe", machine=machine, other=other, main=main)[0]
    if main.total != other.total:
        yield worded("nodes.unequal-total", machine=machine, other=other, main=main)[0]
    for package in sorted({*main.versions, *other.versions}):
        here, there = (hello.versions.get(package, "none") for hello in (main, other))
        if here != there:
            yield f"{machine} {package} {there}, but machine 0 has {here}; install the same version"


@dataclass
class Arrival:
    """A machine that has connected. came, heard: when it came, and its last beat, by this machine's clock."""

    hello: Hello
    came: float
    heard: float
    beat: int = 0


class Main:
    """The main machine's side: `gather`, then `ready`. An early exit tells the others that it stopped."""

    def __init__(self, hello: Hello, nodes: int, port: int, patience_s: float, tell: Tell) -> None:
        self.hello, self.nodes, self.patience_s, self.tell = hello, nodes, patience_s, tell
        self.arrivals: dict[int, Arrival] = {}
        try:
            with socket.socket() as probe:
                # Bound without listening, so that no other machine connects to it.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("", port))
            self.store = _store("127.0.0.1", port, main=True)
            self.store.set("meeting", "")
        except (OSError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or str(error).split("\n")[0]
            raise Stop(*worded("nodes.port-in-use", port=port, reason=reason)) from None

    def __enter__(self) -> Main:
        return self

    def __exit__(self, *_: Any) -> None:
        """Closes the store after the others have left it, so that they read the last word and the port is free."""
        for word in ("met", "ready"):
            self._say(word, {})
        until = time.monotonic() + SILENT_S
        while time.monotonic() < until:
            if self.store.check([f"left/{number}" for number in range(1, self.store.add("arrivals", 0) + 1)]):
                break
            time.sleep(BEAT_S)
        del self.store

    def gather(self) -> list[int]:
        """Waits for all machines; returns their GPU counts by rank. Raises Stop if one does not come, or differs; then
        every present machine gets the reason."""
        begin = told = time.monotonic()
        while True:
            waiting = self._waiting()
            if problems := self._problems(list(waiting.values())):
                self._say("met", {"refused": problems})
                raise _refused(problems)
            gpus = {hello.rank: hello.gpus for hello in (self.hello, *waiting.values())}
            missing = [rank for rank in range(self.nodes) if rank not in gpus]
            if not missing:
                self._say("met", {"accepted": list(waiting)})
                return [gpus[rank] for rank in range(self.nodes)]
            names, now = ", ".join(f"run_node{rank}.sh" for rank in missing), time.monotonic()
            if now - begin >= self.patience_s:
                raise Stop(*worded("nodes.missing-machines", names=names))
            if now - told >= TELL_EVERY_S:
                self.tell(f"Waiting for {names}")
                told = now
            time.sleep(BEAT_S)

    def _problems(self, hellos: list[Hello]) -> list[str]:
        ranks = [0, *(hello.rank for hello in hellos)]
        twice = [rank for rank in dict.fromkeys(ranks) if ranks.count(rank) > 1 or rank >= self.nodes]
        return [
            *(f"a second machine claims to be machine {rank}; start each script once" for rank in twice),
            *(sentence for hello in hellos for sentence in differences(self.hello, hello)),
        ]

    def ready(self, prepared: Ready | None = None, refused: str = "") -> None:
        """refused: why nothing is prepared."""
        self._say("ready", {"refused": [refused]} if refused else {"ready": asdict(prepared or Ready())})

    def _say(self, word: str, value: Mapping[str, Any]) -> None:
        """Writes a key that has no value yet."""
        if not self.store.check([word]):
            self.store.set(word, json.dumps(value))

    def _waiting(self) -> dict[int, Hello]:
        """The present machines, by number: those with a beat since the last one came. A machine whose script was
        stopped has none, and may come again."""
        now = time.monotonic()
        for number in range(1, self.store.add("arrivals", 0) + 1):
            if number not in self.arrivals and self.store.check([f"hello/{number}"]):
                hello = Hello(**json.loads(self.store.get(f"hello/{number}")))
                self.arrivals[number] = Arrival(hello, came=now, heard=now)
        for number, arrival in self.arrivals.items():
            if (beat := self.store.add(f"beat/{number}", 0)) != arrival.beat:
                arrival.beat, arrival.heard = beat, now
        last = max((arrival.came for arrival in self.arrivals.values()), default=now)
        return {number: arrival.hello for number, arrival in self.arrivals.items() if arrival.heard > last}


def join(hello: Hello, address: str, port: int, patience_s: float, tell: Tell) -> Ready:
    """Another machine's side: waits for the main machine's meeting, says hello, and waits until all is ready. Raises
    Stop if the main machine does not come, refuses, or stops."""
    heard: queue.Queue[str | Stop | Ready] = queue.Queue()
    # In a thread, because a store that does not answer blocks its caller.
    thread = threading.Thread(target=_talk, args=(hello, address, port, patience_s, heard), daemon=True)
    thread.start()
    while True:
        try:
            said = heard.get(timeout=max(patience_s, SILENT_S))
        except queue.Empty:
            raise _stopped(hello) from None
        if not isinstance(said, str):
            # An interpreter that ends while a thread is in a store aborts.
            thread.join(SILENT_S)
        if isinstance(said, Stop):
            raise said
        if isinstance(said, Ready):
            tell("Ready")
            return said
        if said:
            tell(said)


def _talk(hello: Hello, address: str, port: int, patience_s: float, heard: queue.Queue[str | Stop | Ready]) -> None:
    """Puts the main machine's answers into `heard`, and "" as a sign that it lives."""
    try:
        store = _meeting(hello, address, port, patience_s, heard.put)
        number = store.add("arrivals", 1)
        store.set(f"hello/{number}", json.dumps(asdict(hello)))
        for word in ("met", "ready"):
            while not store.check([word]):
                store.add(f"beat/{number}", 1)
                heard.put("")
                time.sleep(BEAT_S)
            answer = json.loads(store.get(word))
            if problems := answer.get("refused"):
                heard.put(_refused(problems))
                break
            if not answer.get("ready") and number not in answer.get("accepted", ()):
                heard.put(_stopped(hello))
                break
            met = "Same recipe and packages as machine 0, which now prepares the data"
            heard.put(met if word == "met" else Ready(**answer["ready"]))
        store.set(f"left/{number}", "")
    except RuntimeError:
        heard.put(_stopped(hello))
    except Stop as stop:
        heard.put(stop)


def _refused(problems: list[str]) -> Stop:
    return Stop("The machines cannot train together:\n" + "\n".join(f"  {problem}" for problem in problems))


def _stopped(hello: Hello) -> Stop:
    return Stop(*worded("nodes.main-stopped", hello=hello))


def _store(address: str, port: int, main: bool = False) -> Any:
    """The store at this port, which the main machine creates. Raises RuntimeError."""
    from torch.distributed import TCPStore

    return TCPStore(address, port, is_master=main, wait_for_workers=False, timeout=timedelta(seconds=10))


def _meeting(hello: Hello, address: str, port: int, patience_s: float, tell: Tell) -> Any:
    """The store of the main machine's meeting, once it is open; a TCPStore alone would print tracebacks meanwhile. On
    the same port, the main machine may still be in the training before. Raises Stop if it does not come."""
    deadline, told, foreign = time.monotonic() + patience_s, 0.0, 0
    while True:
        silent: Stop = _stopped(hello)
        try:
            socket.create_connection((address, port), timeout=10).close()
            store = _store(address, port)
            with suppress(RuntimeError):  # a training may end now
                if store.check(["meeting"]):
                    return store
        except OSError as error:
            why = error.strerror or error
            silent = Stop(*worded("nodes.main-silent", address=address, port=port, why=why))
        except RuntimeError:
            # A training may have ended between the two connections, but not twice.
            if (foreign := foreign + 1) > 1:
                raise Stop(*worded("nodes.other-program", address=address, port=port)) from None
        if (now := time.monotonic()) >= deadline:
            raise silent
        waiting = now - told >= TELL_EVERY_S
        tell(f"Waiting for the main machine at {address}:{port}" if waiting else "")
        told = now if waiting else told
        time.sleep(1)


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
    """Meets the other machines; on the main one, prepares data and config. Prints which of several stages is next."""
    recipe, mine, cpu = read(file), len(gpus.split(",")), os.environ.get("ACCELERATE_USE_CPU") == "true"
    if not cpu:
        import torch

        if (here := torch.cuda.device_count()) != mine:
            raise Stop(*worded("nodes.invisible-gpus", gpus=gpus, here=here))
    installed = versions()
    # The patch number of Python may differ.
    comparable = installed | {"python": ".".join(installed["python"].split(".")[:2])}
    hello = Hello(rank, mine, total, recipe.fingerprint, comparable)
    patience_s: float = recipe.settings["nodes"].wait_minutes * 60
    # A script of several stages reads the standard output; everything else is for people.
    with redirect_stdout(sys.stderr):
        if rank != 0:
            ready = join(hello, address, port, patience_s, _tell)
            # Each machine has its own tokenised rows, by the config that the main one wrote for all.
            forget_older(_shared(recipe, rank, ready).stage(ready.stage).config)
        else:
            with Main(hello, recipe.machines.nodes, port, patience_s, _tell) as main:
                counts = main.gather()
                try:
                    ready = lead(recipe, counts, total, accelerator=not cpu, tell=_tell)
                except Stop as stop:
                    main.ready(refused=stop.text)
                    raise
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
    for after_plan in parts.hooks("after_plan"):
        for line in after_plan(plan, training.run):
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
    """The recipe beside the script. Its samples are for rehearsals, and need not be on this machine."""
    document = reading.read(file)
    for section in (document.data, *document.data.get(STAGES, ())):
        data = section.get("data", {})
        for one in (data, *(data.get("sets") or ())):
            one.pop("sample", None)
    return valid(document)[0]


def lead(recipe: Recipe, counts: list[int], total: int, accelerator: bool, tell: Tell) -> Ready:
    """On the main machine: finishes the stage that has just been trained, and prepares the next one's data and its config
    for the present GPUs, in the shared folder. Raises Stop if a gate between them is closed."""
    if sum(counts) != total:
        together = f"{' + '.join(map(str, counts))} = {sum(counts)}"
        raise Stop(*worded("nodes.other-total", together=together, total=total, counts=sum(counts)))
    asked, recipe = recipe, on_these(recipe, counts, tell)
    place = replace(target.place(recipe), accelerator=accelerator)
    plan = translate(recipe, place)
    run = RunFolder(Path(place.run_dir))
    open_for(run, recipe.name, fresh=False, remedy=ELSEWHERE)
    run.mark("running", recipe=recipe.name)
    if pipeline.is_done(plan):
        raise Stop(f"The run in `{run.path}` is already done.", "Name another `nodes.output_dir` for another run.")
    pipeline.keep_what_took_training(plan, pipeline.decide(plan, plan.stages), ELSEWHERE)
    keep(run, asked, plan, recipe)
    stage = _next(plan, tell)
    below = Path(stage.folder)
    texts = {str(below / file.path): file.text for file in stage.files} | {PLAN_FILE: plan.as_json()}
    for name, text in texts.items():
        write_text(Path(place.config_dir) / name, text)
    models = (StageFolder(plan, plan.stage(name)).model for name in stage.reads)
    files = tuple(str(file) for model in models for file in model.rglob("*") if file.is_file())
    return Ready(stage.name, {name: content_hash(text) for name, text in texts.items()}, files)


def _next(plan: Plan, tell: Tell) -> Stage:
    """Begins the next stage to train, and returns it. Before that, it does the stages that train nothing and finishes
    those that the machines have trained; the last one's results are for `finish`."""
    for stage in plan.stages:
        folder = StageFolder(plan, stage)
        if not stage.trains:
            pipeline.carry_out(plan, [stage], tell, lambda: nullcontext(lambda event: None))
            continue
        decision, last = pipeline.decision_on(folder), stage is plan.stages[-1]
        if decision.action == "go on" and folder.summary and folder.state.status == "begun" and not last:
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
    changes = [
        Override(f"nodes.machines.{rank}.gpus", None, list(range(count)), BY)
        for rank, count in enumerate(counts)
        if count != recipe.gpu_counts[rank]
    ]
    changes.append(Override("machines.gpus_per_node", None, max(counts), BY))
    batch = Override("train.effective_batch_size", None, None, BY, "follows the GPUs")
    changes += of_each(recipe, lambda name, one: [batch] if "train" in one.settings else [])
    recipe, made = changed(recipe, changes)
    for change in made:
        tell(f"  {change}")
    return recipe


def _shared(recipe: Recipe, rank: int, ready: Ready) -> Plan:
    """The plan, once this machine sees the files that the main one has just written: a network file system may show
    those of an earlier start for a while."""
    place = target.place(recipe)
    config = Path(place.config_dir)
    deadline = time.monotonic() + PATIENCE_WITH_STORAGE_S
    while any(_hash_of(config / name) != written for name, written in ready.files.items()) or not all(
        Path(file).is_file() for file in ready.model
    ):
        if time.monotonic() < deadline:
            time.sleep(0.5)
            continue
        raise Stop(*worded("nodes.files-not-shared", rank=rank, place=place))
    return read_plan(config / PLAN_FILE)


def _hash_of(file: Path) -> str:
    try:
        return content_hash(file.read_text(encoding="utf-8"))
    except OSError:
        return ""


def main() -> None:
    from runner.tools.process import hush

    hush()
    # A TCPStore would print a traceback when its other side is gone.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        node.main(standalone_mode=False)
    except Stop as stop:
        print(stop.text, file=sys.stderr)
        sys.exit(stop.code)


if __name__ == "__main__":
    main()
