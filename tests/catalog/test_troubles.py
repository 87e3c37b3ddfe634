"""Troubles: each is known by the words that somebody has pasted into a public thread, and told in
one sentence with its remedy."""

from __future__ import annotations

import re
import tomllib

import pytest

from runner.catalog import troubles
from tests.conftest import ROOT

SHOWN = tomllib.loads((ROOT / "tests/fixtures/troubles.toml").read_text("utf-8"))
# What no thread that was found shows in the cluster's own words; tests of the cluster play them.
# vLLM's have tests of their own.
UNSHOWN = {"preempted", "machine gone", "too many failures"}


def told(case: str) -> troubles.FoundTrouble | None:
    shown = SHOWN[case]
    words = {key: shown[key] for key in ("world_size", "gpu") if key in shown}
    return troubles.diagnose_anything(shown["log"], **words).trouble


@pytest.mark.parametrize("case", SHOWN)
def test_words_of_a_public_thread_are_understood(case):
    shown, found = SHOWN[case], told(case)
    assert found and found.trouble.name == shown.get("trouble", case), (
        f"taken for: {found and found.trouble.name}"
    )
    assert shown["says"] in str(found), str(found)
    assert shown.get("line", "") in found.line
    assert shown["source"].startswith("https://github.com/")


def test_every_trouble_is_shown_and_there_are_more_than_thirty():
    named = {shown.get("trouble", case) for case, shown in SHOWN.items()}
    known = {trouble.name for trouble in troubles.known() if trouble.places != (troubles.SERVER,)}
    assert known - named == UNSHOWN and named <= known and len(named) > 30


def test_what_they_say(golden_message):
    golden_message("\n".join(f"{case}: {told(case)}" for case in SHOWN))


def test_every_setting_that_a_remedy_names_is_one():
    settings = (ROOT / "docs/settings.md").read_text("utf-8")
    for trouble in troubles.known():
        for name in re.findall(
            r"`([a-z_]+(?:\[\])?(?:\.[a-z_]+)+)`", trouble.remedy + trouble.means
        ):
            assert f"`{name}`" in settings, f"{trouble.name}: {name}"


@pytest.mark.parametrize(
    "log",
    [
        "",
        "Epoch 1: loss 0.5, grad_norm 0.3\nsaved checkpoint-100",
        "NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\nNCCL INFO Connected all rings",
        "W socket.cpp:601] [c10d] The IPv6 network addresses of (master, 29500) cannot be retrieved (gai error: -2)",
        "0/6 nodes were asked; 3 nodes denied nothing",
        "The user doesn't exist; the account is inactive, access was denied, and nothing of that name was found",
        "ValueError: something of ours",
    ],
)
def test_what_is_none_is_not_taken_for_one(log):
    assert troubles.diagnose_anything(log).trouble is None


def test_a_cause_is_told_before_what_it_brings_about():
    log = (
        SHOWN["collective timeout"]["log"]
        + SHOWN["gpu memory"]["log"]
        + SHOWN["asked to end"]["log"]
    )
    assert troubles.diagnose(log).trouble.trouble.name == "gpu memory"
    effects = SHOWN["asked to end"]["log"] + SHOWN["port closed"]["log"]
    assert troubles.diagnose(effects).trouble.trouble.name == "port closed"


def test_the_last_time_counts():
    log = "CUDA out of memory. Tried to allocate 1 GiB\nfine\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    assert "2 GiB" in troubles.diagnose(log).line


WAITS = "[rank%d]:[E1] [Rank %d] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=%d, OpType=ALLREDUCE, Timeout(ms)=600000) ran"


@pytest.mark.parametrize(
    ("waiting", "world", "late"),
    [
        ({0: 7, 1: 7, 2: 7}, 4, "Rank 3 came late or never: ranks 0 to 2 waited"),
        ({1: 7, 2: 7, 3: 7}, 0, "Rank 0 came late or never: ranks 1 to 3 waited"),
        ({5: 7, 6: 7, 7: 7}, 0, "Rank 4 came late or never: ranks 5 to 7 waited"),
        ({0: 7, 1: 7, 2: 6}, 3, "Rank 2 came late or never: ranks 0 and 1 waited"),
        ({0: 7, 2: 7, 4: 7}, 6, "Ranks 1, 3 and 5 came late or never: ranks 0, 2 and 4 waited"),
        (
            {0: 7, 1: 7},
            2,
            "All of ranks 0 and 1 were at collective 7 (ALLREDUCE), for 10 minutes. None was late",
        ),
        (
            {4: 7, 5: 7, 6: 7, 7: 7},
            0,
            "Ranks 4 to 7 waited at collective 7 (ALLREDUCE), for 10 minutes. The logs of the other",
        ),
        (
            {2: 7},
            0,
            "Rank 2 waited at collective 7 (ALLREDUCE), for 10 minutes. The logs of the other machines",
        ),
    ],
)
def test_who_came_late(waiting, world, late):
    """A machine's ranks are numbered on from the one before; of other machines its log says
    nothing."""
    log = "\n".join(WAITS % (rank, rank, number) for rank, number in waiting.items())
    assert troubles.late(log, world).startswith(late)


def test_who_came_late_by_the_last_that_each_has_begun():
    behind = "\n".join(
        f"[Rank {rank}] last enqueued NCCL work: {number}, last completed"
        for rank, number in ((0, 9), (1, 7))
    )
    log = "\n".join(WAITS % (rank, rank, 7) for rank in (0, 1)) + f"\n{behind}"
    assert troubles.late(log, 2).startswith("Rank 1 came late")


def test_without_a_watchdog_nobody_came_late():
    assert troubles.late("fine") == ""


def test_a_missing_module_is_installed_by_the_name_of_its_package():
    """Seen with Python 3.12, which has no distutils of its own: `pip install distutils` finds
    nothing."""
    found = troubles.diagnose("ModuleNotFoundError: No module named 'distutils'").trouble
    assert (
        str(found)
        == "The package `distutils` is missing. Install it: pip install setuptools (no-package)"
    )
