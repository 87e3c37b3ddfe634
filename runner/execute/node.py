"""`python -m runner.execute.node`: what a plain machine's start script does around training (runner/targets/nodes.py).

Before it the machines meet and compare, and the main one prepares the data and writes the config for the GPUs that have
come; after it the main one sees that the results are there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
import yaml

from runner.execute import meeting, runs, training
from runner.execute.data import prepare
from runner.execute.meeting import Hello, Tell
from runner.execute.tokenised import forget_older
from runner.files import write_text
from runner.plan import Place
from runner.problem import Stop
from runner.recipe import reading
from runner.recipe.changes import Change
from runner.recipe.check import changed, valid
from runner.recipe.recipe import Recipe
from runner.scenarios import axolotl, translate
from runner.targets import nodes
from runner.training.versions import versions

BY = "the machines that came"
ELSEWHERE = "A run on other GPUs is another one, too. Name another `nodes.output_dir`, or move that folder away."

# NFS may show a machine an old list of files for up to a minute (acdirmax, nfs(5)).
PATIENCE_WITH_STORAGE_S = 75.0


@click.group()
def node() -> None:
    """What a start script asks for."""


@node.command()
@click.option("--recipe", "file", required=True)
@click.option("--rank", type=int, required=True)
@click.option("--main", "address", required=True)
@click.option("--port", type=int, required=True)
@click.option("--gpus", required=True)
@click.option("--total", type=int, required=True)
def meet(file: str, rank: int, address: str, port: int, gpus: str, total: int) -> None:
    """Meets the other machines; on the main one, prepares data and config for all."""
    recipe = read(file)
    mine = len(gpus.split(","))
    cpu = os.environ.get("ACCELERATE_USE_CPU") == "true"
    if not cpu:
        _gpus_are_here(gpus, mine)
    hello = Hello(rank, mine, total, recipe.fingerprint, comparable_versions())
    patience_s = recipe.nodes.wait_minutes * 60
    if rank != 0:
        meeting.join(hello, address, port, patience_s, _tell)
        _shared(recipe, rank)
        _forget_older(recipe)
        return
    with meeting.Main(hello, recipe.machines.nodes, port, patience_s, _tell) as main:
        counts = main.gather()
        try:
            with main.at_work():
                lead(recipe, counts, total, accelerator=not cpu, tell=_tell)
        except Stop as stop:
            main.refuse(stop.text)
            raise
        _forget_older(recipe)
        main.ready()


@node.command()
@click.option("--results", required=True)
def finish(results: str) -> None:
    """Marks the run as finished, and says what was learned."""
    folder = runs.RunFolder(Path(results), "run")
    for line in training.results(folder, training.finish(folder, folder.state["fingerprint"])):
        _tell(line)


def read(file: str) -> Recipe:
    """The recipe beside the script. Its sample is for rehearsals elsewhere and need not be here."""
    document = reading.read(file)
    if isinstance(document.data, dict) and isinstance(document.data.get("data"), dict):
        document.data["data"].pop("sample", None)
    return valid(document)[0]


def comparable_versions() -> dict[str, str]:
    """Package versions; of Python itself only what packages are built for, such as 3.11."""
    found = versions()
    return found | {"python": ".".join(found["python"].split(".")[:2])}


def _gpus_are_here(gpus: str, count: int) -> None:
    import torch

    if (here := torch.cuda.device_count()) != count:
        raise Stop(
            f"This machine is to use the GPUs {gpus}, and {here} of them can be seen.",
            "`nvidia-smi` shows the GPUs and their numbers; set GPUS to those that are free.",
        )


def lead(recipe: Recipe, counts: list[int], total: int, accelerator: bool, tell: Tell) -> None:
    """On the main machine: the recipe for the GPUs that came, its data, and its config, in the shared folder."""
    if sum(counts) != total:
        raise Stop(
            f"The machines use {' + '.join(map(str, counts))} = {sum(counts)} GPUs together, and TOTAL_GPUS is {total}.",
            f"Set TOTAL_GPUS={sum(counts)} on every machine, or change GPUS.",
        )
    recipe = on_these(recipe, counts, tell)
    at = nodes.place(recipe)
    place = Place(at.config_dir, at.data_dir, at.run_dir, at.scratch_dir, accelerator)
    plan = translate(recipe, place)
    folder = runs.RunFolder(Path(place.run_dir), "run")
    going_on = runs.open_for(folder, plan.fingerprint, [], False, runs.data_files(recipe), ELSEWHERE)
    if (folder.path / "training_summary.json").is_file():
        raise Stop(f"The run in `{folder.path}` is done already.", "Name another `nodes.output_dir` for another run.")
    tell("Going on with the run that was interrupted" if going_on else "Preparing the data")
    from runner.execute.run import base_tokenizer

    (stage,) = plan.stages
    for line in prepare(stage.data, Path(place.data_dir), tokenizer_for=base_tokenizer(recipe)).lines():
        tell(f"  {line}")
    for artifact in stage.files:
        write_text(Path(place.config_dir) / artifact.path, artifact.text)


def on_these(recipe: Recipe, counts: list[int], tell: Tell) -> Recipe:
    """The recipe with the GPUs that came, and what follows from that, said aloud."""
    if tuple(counts) == recipe.gpu_counts:
        return recipe
    wanted = [
        *(
            Change(f"nodes.machines.{rank}.gpus", None, list(range(count)), BY)
            for rank, count in enumerate(counts)
            if count != recipe.gpu_counts[rank]
        ),
        Change("machines.gpus_per_node", None, max(counts), BY),
        Change("train.effective_batch_size", None, None, BY, "follows the GPUs"),
    ]
    recipe, made = changed(recipe, wanted)
    for change in made:
        tell(f"  {change}")
    return recipe


def _forget_older(recipe: Recipe) -> None:
    """Each machine keeps tokenised rows of its own, by the config that the main one wrote for all."""
    config = Path(nodes.place(recipe).config_dir) / axolotl.CONFIG_FILE
    forget_older(yaml.safe_load(config.read_text(encoding="utf-8")))


def _shared(recipe: Recipe, rank: int) -> None:
    """What the main machine has just written must be seen from here, though a network file system may take a while."""
    config = Path(nodes.place(recipe).config_dir)
    deadline = time.monotonic() + PATIENCE_WITH_STORAGE_S
    while not (config.is_dir() and nodes.RECIPE_FILE in os.listdir(config)):
        if time.monotonic() < deadline:
            time.sleep(0.5)
            continue
        raise Stop(
            f"Machine {rank} does not see what machine 0 wrote into `{recipe.nodes.output_dir}`.",
            "That folder must be on storage that all machines share, under the same path on each.",
        )


def _tell(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    from runner.quiet import hush

    hush()
    try:
        node.main(standalone_mode=False)
    except Stop as stop:
        print(stop.text, file=sys.stderr)
        sys.exit(stop.code)


if __name__ == "__main__":
    main()
