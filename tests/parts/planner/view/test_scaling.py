"""More machines on paper: where the time goes, and what keeps a run from being shorter."""

from __future__ import annotations

import json
import math
import random

import pytest

from runner.check.validate import load
from runner.parts.planner import machine_counts
from runner.parts.planner.planned import Planned
from runner.parts.planner.view import scaling
from runner.parts.planner.view.commands import _counts
from runner.recipe.overrides import from_options
from runner.tools.problem import Stop
from tests.conftest import ROOT

SURVIVAL, SEVEN_B = (ROOT / "recipes" / f"{name}.yaml" for name in ("survival", "seven-b"))


def planned(path, *options, rows=None):
    return Planned.of(load(path, from_options(options))[0], 2.0, rows)


def by_count(path, counts, *options, rows=None):
    found = scaling.rows(planned(path, *options, rows=rows).forecasts, counts)
    return {row.nodes: row for row in found}


def simulated(work, saving, every, again, between, draw):
    """The same run, failure by failure."""
    clock, done, fails = 0.0, 0.0, draw.expovariate(1 / between)
    while done < work:
        ends = clock + every + saving
        if ends <= fails:
            clock, done = ends, done + every
            continue
        clock = fails
        while True:  # a restart may fail, too
            fails = clock + draw.expovariate(1 / between)
            if fails >= clock + again:
                clock += again
                break
            clock = fails
    return clock


@pytest.mark.parametrize("between", [2_000.0, 10_000.0, 1e7])
def test_failures_cost_what_a_simulation_of_them_costs(between):
    """100,000 s of work, 60 s to save, each 1,000 s, 300 s to start again."""
    draw = random.Random(7)
    runs = [simulated(100_000, 60, 1_000, 300, between, draw) for _ in range(300)]
    assert scaling.daly(100_000, 60, 1_000, 300, between) == pytest.approx(
        sum(runs) / len(runs), rel=0.03
    )


def test_young_s_interval_costs_least():
    took = {every: scaling.daly(1e6, 60, every, 300, 30_000) for every in range(200, 6_000, 50)}
    assert min(took, key=took.get) == pytest.approx(math.sqrt(2 * 60 * 30_000), rel=0.15)
    assert scaling.daly(1e6, 60, 1e6, 300, 3_000) == math.inf


def test_the_recipe_s_own_count_is_the_plan_and_what_failures_cost():
    whole = planned(SURVIVAL, rows=2845)
    (row,) = scaling.rows(whole.forecasts, [4])
    assert row.total_seconds - row.parts["restarts"] == pytest.approx(whole.together.total_seconds)
    assert sum(row.parts.values()) == pytest.approx(row.total_seconds)
    assert (
        row.cost == pytest.approx(row.total_seconds / 3600 * 4 * 2.0)
        and 0 < row.parts["restarts"] < 30
    )


def test_as_many_rows_are_learned_on_each_count():
    for forecast in planned(SEVEN_B).forecasts:
        before = forecast.steps * forecast.workload.effective_batch_size
        for count in (1, 2, 8, 64):
            other = machine_counts.with_machines(forecast, count)
            batch = other.workload.effective_batch_size
            assert (
                before
                <= other.steps * batch
                < before + 2 * batch + forecast.workload.effective_batch_size
            )
            if forecast.workload.accumulation >= count:
                assert batch == forecast.workload.effective_batch_size


def test_what_limits_moves_with_the_machines():
    fast = (
        "openshift.network.kind=rdma",
        "openshift.network.gbit_s=400",
        "openshift.network.links=8",
    )
    rows = by_count(SEVEN_B, [1, 8, 64, 1024], *fast, "openshift.claims.0.write_mb_s=20000")
    assert rows[1].limit.startswith("computing") and rows[1].efficiency == 1
    assert 5 < rows[8].speed_up <= 8.1
    parts = {count: row.parts for count, row in rows.items()}
    shares = {count: row.parts["communication"] / row.total_seconds for count, row in rows.items()}
    assert shares[1] < shares[64] < shares[1024]
    # A ring of 8,192 is all hops, and something fails every six hours.
    assert rows[1024].efficiency < 0.2 and not rows[1024].limit.startswith("computing")
    slow = by_count(SEVEN_B, [1, 1024], *fast)
    assert slow[1].parts["saving"] == pytest.approx(200 * parts[1]["saving"])
    # Until all have read the model from a slow claim, something fails again.
    assert (slow[1024].total_seconds, slow[1024].limit) == (None, "restarts")
    assert by_count(SURVIVAL, [1, 1024], rows=2845)[1024].limit == "too few rows"


def test_every_machine_reads_the_model_from_a_claim_and_its_own_from_a_disk():
    shared = by_count(SURVIVAL, [1, 64], rows=2845)
    read = shared[64].parts["reading"] - shared[1].parts["reading"]
    assert read == pytest.approx(63 * 2 * 3_075_098_624 / 100e6, rel=0.01)
    own = by_count(ROOT / "recipes" / "gemma.yaml", [1, 64], rows=5000)
    assert own[64].parts["reading"] == pytest.approx(own[1].parts["reading"])


def test_a_claim_s_speed_is_said_once():
    """Checkpoints take as long in the plan as in a pod's grace."""
    slow, fast = (
        planned(SURVIVAL, f"openshift.claims.0.write_mb_s={speed}", rows=2845)
        for speed in (100, 1000)
    )
    before, after = (whole.forecasts[0].time for whole in (slow, fast))
    slow_one, fast_one = (time.checkpoints.writing for time in (before, after))
    assert slow_one == pytest.approx(10 * fast_one)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("1,2,4", [1, 2, 4]),
        ("1,2,…,16", [1, 2, 4, 8, 16]),
        ("1,3,...,30", [1, 3, 9, 27, 30]),
        (None, []),
    ],
)
def test_dots_go_on_as_they_began(text, counts):
    assert _counts(text) == counts


@pytest.mark.parametrize("text", ["…", "1,…,4", "2,1,…,8,x", "1,2,…", "0", "1025"])
def test_no_list_of_counts_is_said(text):
    with pytest.raises(Stop):
        _counts(text)


@pytest.mark.parametrize("text", ["2,1,…,8", "1,1,…,4", "3,4,…,16", "1,2,…,2"])
def test_dots_that_continue_nothing_are_explained(text, recipe_command, golden_message):
    done = recipe_command("plan", SURVIVAL, "--machines", text)
    assert done.returncode == 2
    golden_message(done.stderr)


def test_a_line_a_count_on_one_screen(recipe_command, golden_message):
    for path in (SURVIVAL, SEVEN_B):
        done = recipe_command(
            "plan", path, "--machines", "1,2,4,…,1024", "--price", "2", "--rows", "2845"
        )
        said = done.stdout[done.stdout.index("\nmachines ") : done.stdout.index("\n\n1. ")]
        assert max(map(len, said.splitlines())) <= 80 and len(said.splitlines()) < 28
        golden_message(said, path.stem)


def test_json_has_the_same_rows(recipe_command):
    done = recipe_command(
        "plan", SURVIVAL, "--machines", "1,4", "--format", "json", "--rows", "2845"
    )
    told = json.loads(done.stdout)
    assert [row["nodes"] for row in told["on_machines"]] == [1, 4]
    for row, stage in zip(told["on_machines"], told["stages"][0]["machines"], strict=True):
        assert row["total_seconds"] == stage["total_seconds"] and set(row["parts"]) == set(
            scaling.LIMITS
        )
