"""Fewer machines: `check` notes where they are clearly faster, and `plan` offers the fastest count
with both times."""

from __future__ import annotations

import pytest

from runner.check.validate import examine, load
from runner.parts.planner import machine_counts, recipe_offers
from runner.parts.planner.planned import Planned
from runner.recipe import units
from runner.recipe.overrides import from_options
from runner.tools.problem import Problem
from tests.conftest import ROOT, setting_of

SEVEN_B, SURVIVAL = ROOT / "recipes" / "seven-b.yaml", ROOT / "recipes" / "survival.yaml"
SFT_DPO = ROOT / "recipes" / "sft-dpo.yaml"
FAST = ("openshift.network.kind=rdma", "openshift.network.gbit_s=400", "openshift.network.links=8")


def noted(path, *options: str) -> list[Problem]:
    return [
        note
        for note in examine(path, from_options(options))
        if "Training takes about" in note.message
    ]


def planned(path, *options: str) -> Planned:
    return Planned.of(load(path, from_options(options))[0])


def test_check_notes_that_a_pod_network_makes_two_machines_slower_than_one(golden_message):
    """The gradients of 6 billion weights go over it in each of 100,000 steps."""
    (note,) = noted(SEVEN_B, "machines.nodes=2")
    assert (setting_of(note), note.severity) == ("machines.nodes", "note")
    golden_message(note)
    both = planned(SEVEN_B, "machines.nodes=2")
    assert units.duration(machine_counts.training_seconds(both.forecasts)) in note.message
    assert note.message in [each.message for each in both.notes]


def test_a_network_that_the_recipe_states_decides():
    assert noted(SEVEN_B, "machines.nodes=2", *FAST) == []
    (note,) = noted(SEVEN_B, "machines.nodes=2", "openshift.network.gbit_s=10")
    assert "faster network" not in note.hint


@pytest.mark.parametrize(
    ("name", "nodes"), [("survival", 4), ("resnet", 2), ("gemma", 2), ("lyrics", 4), ("seven-b", 1)]
)
def test_what_may_as_well_be_the_network_s_doing_is_no_note(name, nodes):
    """A time may be half or twice what is planned."""
    path = ROOT / "recipes" / f"{name}.yaml"
    assert noted(path, f"machines.nodes={nodes}") == []


def test_plan_offers_the_fastest_of_fewer_machines_with_both_times(golden_message, recipe_command):
    four = planned(SURVIVAL)
    one, two = (
        [machine_counts.with_machines(stage, count) for stage in four.forecasts] for count in (1, 2)
    )
    seconds = machine_counts.training_seconds(two)
    assert machine_counts.training_seconds(one) < seconds < four.seconds
    offer = recipe_offers.of(four)[0]
    assert offer.fewer_machines and offer.after.forecasts[0].stage.machines.nodes == 1
    assert not offer.loss and offer.after.seconds < seconds
    shown = recipe_command("plan", SURVIVAL).stdout
    golden_message(shown[shown.index("\n1. ") : shown.index("\n2. ")])


@pytest.mark.parametrize(("path", "options"), [(SEVEN_B, ()), (SFT_DPO, ("limits.time=100 min",))])
def test_more_machines_are_not_called_fewer(path, options):
    """Also where the recipe does not state their number."""
    before = planned(path, *options)
    (offer,) = [
        offer for offer in [recipe_offers._tried(before, recipe_offers._on(before, 2))] if offer
    ]
    assert offer.after.forecasts[0].stage.machines.nodes == 2
    assert not offer.fewer_machines
