"""Target nodes: a start script for each of a few plain machines without Kubernetes, and the rules
of the section `nodes`: its counts agree with `machines`, and each machine has its own address.

`run_node.sh.jinja` beside this file is the scripts' template. They need bash and the runner's own
Python on every machine, and shared storage.
"""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.check.rules import of_section
from runner.plan import RECIPE_FILE, Place, Plan, Stage
from runner.recipe.recipe import Recipe
from runner.recipe.stages import STAGES
from runner.scenarios import planned
from runner.tools import packaged
from runner.tools.files import Artifact, remote
from runner.tools.problem import Problem, Stop, counted
from runner.tools.text import macros

if TYPE_CHECKING:
    from runner.recipe.sections import Nodes

FOLDER = "nodes"
TEMPLATE = Path(__file__).with_name("run_node.sh.jinja")
NODES = "machines.nodes"
GPUS = "machines.gpus_per_node"
PLAIN = "nodes.machines"


def named(recipe: Recipe) -> bool:
    return "nodes" in recipe.settings


def emitted(recipe: Recipe) -> list[Artifact]:
    """The engine's own configs, as they will be in the results folder, and a script for each
    machine."""
    plan = planned(recipe, FOLDER)
    stages = [stage for stage in plan.stages if stage.trains]
    texts = {}
    for stage in stages:
        for file in stage.files:
            texts[
                RECIPE_FILE
                if file.path == RECIPE_FILE
                else f"{stage.folder}/{file.path}".lstrip("/")
            ] = file.text
    scripts = {}
    for rank in range(recipe.machines.nodes):
        scripts[f"run_node{rank}.sh"] = script(plan, stages, rank)
    return [Artifact(f"{FOLDER}/{path}", text) for path, text in (texts | scripts).items()]


def place(recipe: Recipe) -> Place:
    """The folders of a recipe's plain machines: all on the shared storage, except each machine's
    scratch. Raises Stop if the recipe names no plain machines."""
    section: Nodes | None = recipe.settings.get("nodes")
    if section is None:
        raise Stop(
            f"The recipe `{recipe.name}` has no section `nodes`, so there are no scripts for plain machines.",
            "Add the section; `recipes/gemma.yaml` has an example.",
        )
    results = section.output_dir
    return Place(
        f"{results}/config", f"{results}/data", results, f"/tmp/recipe-runner-{recipe.name}"
    )


def script(plan: Plan, stages: list[Stage], rank: int) -> str:
    """The start script of one machine. stages: those that train."""
    meanings = packaged.toml(__file__, "environment.toml")
    first_env = stages[0].env.items()
    shared = {}
    for name, value in first_env:
        if all(stage.env.get(name) == value for stage in stages):
            shared[name] = value
    # Data files as the recipe names them; the stages' own paths start from the folder of rendering.
    recipe = json.loads(
        next((file.text for file in stages[-1].files if file.path == RECIPE_FILE), "{}")
    )
    sections = [section["data"] for section in recipe.get(STAGES, [recipe]) if "data" in section]
    paths = []
    for data in sections:
        for data_set in data.get("sets", [data]):
            paths.append(data_set.get("path"))
    for data in sections:
        paths.append(data.get("validation_path"))
    relative = [path for path in paths if path and not path.startswith("/") and not remote(path)]
    return str(macros(TEMPLATE, shlex=shlex).script(plan, stages, shared, rank, meanings, relative))


def counts_agree(recipe: Recipe, plain: Nodes) -> Iterator[Problem]:
    """`nodes` names as many machines and GPUs as `machines`."""
    counts = recipe.gpu_counts
    machines = recipe.machines
    if len(counts) != machines.nodes:
        message = (
            f"`nodes` names {counted(len(counts), 'machine')}, but `machines.nodes` is {machines.nodes}.",
            f"Name {machines.nodes}, or write `nodes: {len(counts)}` in `machines`.",
        )
        yield recipe.problem("nodes.machines", *message, key=True)
    elif max(counts) != machines.gpus_per_node:
        yield recipe.problem(
            "nodes.machines",
            f"`nodes` uses up to {max(counts)} GPUs of a machine, but `machines.gpus_per_node` is {machines.gpus_per_node}.",
            f"Write `gpus_per_node: {max(counts)}` in `machines`, or other `gpus` here.",
            key=True,
        )
    if "openshift" in recipe.settings and len(set(counts)) > 1:
        gpu_counts = " and ".join(map(str, counts))
        yield recipe.problem(
            "nodes.machines",
            f"The plain machines use {gpu_counts} GPUs, but a job on the cluster has the same number on each machine.",
            "Use the same number on each, or make two recipes: one for the cluster and one for the plain machines.",
            key=True,
        )


def addresses(recipe: Recipe, plain: Nodes) -> Iterator[Problem]:
    """Each plain machine has a valid address of its own, and the main one has one for the
    others."""
    used_addresses = set[str]()
    local = list[bool]()
    for index, machine in enumerate(plain.machines):
        place = ("nodes", "machines", index, "address")
        address = machine.address
        try:
            if address == "localhost":
                ip_address = None
            else:
                ip_address = ipaddress.ip_address(address)
            this_machine = ip_address is None or ip_address.is_loopback or ip_address.is_unspecified
        except ValueError:
            this_machine = False
            if re.fullmatch(r"[\d.]+", address):
                yield recipe.problem(
                    place,
                    f"`{address}` is not the address of a machine.",
                    "Write four numbers from 0 to 255, such as `10.0.0.11`, or the machine's name.",
                )
        # Several with this machine's own address are a test on it.
        if address.lower() in used_addresses and not this_machine:
            yield recipe.problem(
                place,
                f"Two machines have the address `{address}`.",
                "Give each machine its own address. List GPUs of one machine together, `gpus: [0, 1]`.",
            )
        used_addresses.add(address.lower())  # Names of machines ignore case.
        local.append(this_machine)
    if local and local[0] and not all(local):
        place = ("nodes", "machines", 0, "address")
        address = plain.machines[0].address
        yield recipe.problem(
            place,
            f"`{address}` is each machine's own address, so the others would not find the main machine.",
            "Write the address by which the other machines reach it.",
        )


def _counted(before: Recipe, after: Recipe) -> Iterator[tuple[str, Any]]:
    """`machines` gets the number of the plain machines that are now named."""
    if "nodes" in after.settings and _agree(before):
        yield NODES, len(after.gpu_counts)
        yield GPUS, max(after.gpu_counts)


def _named(before: Recipe, after: Recipe) -> Iterator[tuple[str, Any]]:
    """If fewer machines or GPUs are needed, the first remain. If more are needed, a person must
    name them."""
    if "nodes" not in after.settings or not _agree(before):
        return
    machines: list[Mapping[str, Any]] = after.document.lookup(("nodes", "machines"))
    if after.machines.nodes < len(after.gpu_counts):
        yield PLAIN, machines[: after.machines.nodes]
    for index, machine in enumerate(machines[: after.machines.nodes]):
        if after.machines.gpus_per_node < len(machine["gpus"]):
            yield f"{PLAIN}.{index}.gpus", machine["gpus"][: after.machines.gpus_per_node]


def _agree(recipe: Recipe) -> bool:
    return (recipe.machines.nodes, recipe.machines.gpus_per_node) == (
        len(recipe.gpu_counts),
        max(recipe.gpu_counts),
    )


def followers() -> tuple[tuple[tuple[str, ...], Callable[..., Any]], ...]:
    return ((PLAIN,), _counted), ((NODES, GPUS), _named)


RULES = of_section("nodes", counts_agree, addresses)
