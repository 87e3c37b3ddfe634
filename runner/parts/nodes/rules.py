"""Rules about plain machines: that their counts agree with `machines`, and that each has its own address."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from runner.recipe.recipe import Recipe
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Nodes


def counts_agree(recipe: Recipe) -> Iterator[Problem]:
    """`nodes` names the machines that `machines` counts."""
    plain: Nodes | None = recipe.settings.get("nodes")
    if plain is None:
        return
    counts, stated = recipe.gpu_counts, recipe.machines
    if len(counts) != stated.nodes:
        message = f"`nodes` names {len(counts)} machine{'s' if len(counts) > 1 else ''}, and `machines.nodes` is {stated.nodes}."
        hint = f"Name {stated.nodes}, or write `nodes: {len(counts)}` in `machines`."
        yield recipe.problem("nodes.machines", message, hint, key=True)
    elif max(counts) != stated.gpus_per_node:
        message = f"`nodes` uses up to {max(counts)} GPUs of a machine, and `machines.gpus_per_node` is {stated.gpus_per_node}."
        hint = f"Write `gpus_per_node: {max(counts)}` in `machines`, or other `gpus` here."
        yield recipe.problem("nodes.machines", message, hint, key=True)
    for index, machine in enumerate(plain.machines):
        if len(set(machine.gpus)) < len(machine.gpus):
            yield recipe.problem(
                ("nodes", "machines", index, "gpus"), "A GPU is named twice.", "Name each GPU of a machine once."
            )


def equal_on_the_cluster(recipe: Recipe) -> Iterator[Problem]:
    if "nodes" in recipe.settings and "openshift" in recipe.settings and len(set(recipe.gpu_counts)) > 1:
        shown = ", ".join(map(str, recipe.gpu_counts))
        message = f"The plain machines use {shown} GPUs, and a job on the cluster has equally many on each machine."
        hint = "Use equally many on each, or make two recipes, one for the cluster and one for the plain machines."
        yield recipe.problem("nodes.machines", message, hint, key=True)


def addresses(recipe: Recipe) -> Iterator[Problem]:
    """Each plain machine has one that can be, and its own."""
    plain: Nodes | None = recipe.settings.get("nodes")
    seen: set[str] = set()
    for index, machine in enumerate(plain.machines if plain else ()):
        place, address = ("nodes", "machines", index, "address"), machine.address
        if re.fullmatch(r"[\d.]+", address):
            try:
                ipaddress.ip_address(address)
            except ValueError:
                hint = "Four numbers from 0 to 255, such as `10.0.0.11`; or the machine's name."
                yield recipe.problem(place, f"`{address}` is no address of a machine.", hint)
        # Several of this machine's own are a try on it.
        if address.lower() in seen and not _own(address):
            hint = "Give each machine its own; GPUs of one machine stand in one line, `gpus: [0, 1]`."
            yield recipe.problem(place, f"Two machines have the address `{address}`.", hint)
        seen.add(address.lower())  # names of machines are the same in capitals


def _own(address: str) -> bool:
    """Whether it is an address of whatever machine asks."""
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


RULES = (counts_agree, equal_on_the_cluster, addresses)
