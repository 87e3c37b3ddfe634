"""`recipe check` is quick enough to run on every key stroke of an editor."""

from __future__ import annotations

from benchmarks.check_speed import side_by_side


def test_checking_takes_at_most_twice_the_import_of_its_libraries():
    """The aim is 2.0; a noisy machine gets 2.5, and one more try."""
    ratios = []
    for _ in range(2):
        ratios.append(side_by_side(runs=7)[2])
        if ratios[-1] <= 2.5:
            return
    raise AssertionError(f"recipe check took {ratios} times the bare import; 2.5 is the limit")
