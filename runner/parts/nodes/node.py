"""`python -m runner.parts.nodes.node`: the steps of a plain machine's start script around training.

Before training, the machines meet and compare, and the main one prepares the data and writes the config for the present
GPUs. After it, the main one checks the results.
"""

import os
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner import parts
from runner.check.validate import changed, valid
from runner.data.tokenizers import forget_older
from runner.parts.nodes import rendezvous, target
from runner.parts.nodes.rendezvous import Hello, Tell
from runner.plan import PLAN_FILE, Plan, read_plan
from runner.recipe import reading
from runner.recipe.overrides import Override
from runner.recipe.recipe import Recipe
from runner.run import pipeline
from runner.run.run import report
from runner.run.run_folder import RunFolder, open_for
from runner.run.run_manifest import keep
from runner.run.stage_folder import StageFolder
from runner.scenarios import translate
from runner.tools.files import Artifact, write_text
from runner.tools.names import content_hash
from runner.tools.problem import Stop, worded
from runner.trainer.records import versions

if TYPE_CHECKING:
    from runner.recipe.sections import Nodes

BY = "the machines that came"
ELSEWHERE = "A run on other GPUs is a different run. Name another `nodes.output_dir`, or move that folder."

# NFS may show a machine an old list of files for up to a minute (acdirmax, nfs(5)).
PATIENCE_WITH_STORAGE_S = 75.0


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
    """Meets the other machines; on the main one, prepares data and config for all."""
    recipe, mine = read(file), len(gpus.split(","))
    cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
    if not cpu:
        _gpus_are_here(gpus, mine)
    installed = versions()
    # The patch number of Python may differ.
    comparable = installed | {"python": ".".join(installed["python"].split(".")[:2])}
    hello = Hello(rank, mine, total, recipe.fingerprint, comparable)
    site: Nodes = recipe.settings["nodes"]
    patience_s = site.wait_minutes * 60
    if rank != 0:
        files = rendezvous.join(hello, address, port, patience_s, _tell)
        # Each machine has its own tokenised rows, by the config that the main one wrote for all.
        forget_older(_shared(recipe, rank, files).stages[-1].config)
        return
    with rendezvous.Main(hello, recipe.machines.nodes, port, patience_s, _tell) as main:
        counts = main.gather()
        try:
            files = lead(recipe, counts, total, accelerator=not cpu, tell=_tell)
        except Stop as stop:
            main.refuse(stop.text)
            raise
        main.ready(files)


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
    if training.finished:
        pipeline.judge(training, _tell)


def read(file: str) -> Recipe:
    """The recipe beside the script. Its sample is for rehearsals, and need not be on this machine."""
    document = reading.read(file)
    data = document.lookup(("data",))
    for one in (data, *(data.get("sets") or ())) if isinstance(data, dict) else ():
        one.pop("sample", None)
    return valid(document)[0]


def _gpus_are_here(gpus: str, count: int) -> None:
    import torch

    if (here := torch.cuda.device_count()) != count:
        raise Stop(*worded("nodes.invisible-gpus", gpus=gpus, here=here))


def lead(recipe: Recipe, counts: list[int], total: int, accelerator: bool, tell: Tell) -> dict[str, str]:
    """On the main machine: prepares the data and the config for the present GPUs, in the shared folder; returns the
    hash of each file of the config."""
    if sum(counts) != total:
        together = f"{' + '.join(map(str, counts))} = {sum(counts)}"
        raise Stop(*worded("nodes.other-total", together=together, total=total, counts=sum(counts)))
    asked, recipe = recipe, on_these(recipe, counts, tell)
    place = replace(target.place(recipe), accelerator=accelerator)
    plan = translate(recipe, place)
    run = RunFolder(Path(place.run_dir))
    open_for(run, recipe.name, fresh=False, remedy=ELSEWHERE)
    run.mark("running", recipe=recipe.name)
    data, training = (StageFolder(plan, plan.stage(name)) for name in ("data", "train"))
    if pipeline.is_done(plan):
        raise Stop(f"The run in `{run.path}` is already done.", "Name another `nodes.output_dir` for another run.")
    pipeline.keep_what_took_training(plan, pipeline.decide(plan, plan.stages), ELSEWHERE)
    keep(run, asked, plan, recipe)
    pipeline.carry_out(plan, [data.stage], tell, lambda: nullcontext(lambda event: None))
    pipeline.begin(training, pipeline.decision_on(training), tell)
    files = (*training.stage.files, Artifact(PLAN_FILE, plan.as_json()))
    for file in files:
        write_text(Path(place.config_dir) / file.path, file.text)
    return {file.path: content_hash(file.text) for file in files}


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
    changes.append(Override("train.effective_batch_size", None, None, BY, "follows the GPUs"))
    recipe, made = changed(recipe, changes)
    for change in made:
        tell(f"  {change}")
    return recipe


def _shared(recipe: Recipe, rank: int, files: Mapping[str, str]) -> Plan:
    """The plan, once this machine sees the files that the main one has just written: a network file system may show
    those of an earlier start for a while. files: the hash of each, by its name."""
    place = target.place(recipe)
    config = Path(place.config_dir)
    deadline = time.monotonic() + PATIENCE_WITH_STORAGE_S
    while any(_hash_of(config / name) != written for name, written in files.items()):
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


def _tell(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    from runner.tools.process import hush

    hush()
    # A TCPStore whose other side is gone would print a traceback.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        node.main(standalone_mode=False)
    except Stop as stop:
        print(stop.text, file=sys.stderr)
        sys.exit(stop.code)


if __name__ == "__main__":
    main()
