"""`recipe check` is quick enough to run on every key stroke of an editor, and over a folder of a thousand recipes."""

from __future__ import annotations

from benchmarks.check_speed import BARE, SURVIVAL, beside_the_import, check, many, taken
from runner.check import by_schema
from runner.check.validate import examine


def test_checking_takes_little_more_than_the_import_of_its_libraries():
    """In processor time the aim is 2.2; a noisy machine gets 2.5, and one more try."""
    ratios = []
    for _ in range(2):
        ratios.append(beside_the_import(runs=7)[2])
        if ratios[-1] <= 2.5:
            return
    raise AssertionError(f"recipe check took {ratios} times the bare import; 2.5 is the limit")


def test_a_thousand_recipes_take_little_more_each_than_a_page_of_reading():
    """By 150 of them, in processor time beside the bare import; the aim for 1,000 is 30, and it takes 23 to 25 on a busy machine."""
    count, ratios = 150, []
    for _ in range(3):
        before, alone, whole, after = taken(BARE), taken(check(SURVIVAL)), many(count), taken(BARE)
        each = (whole.processor - alone.processor) / (count - 1)
        ratios.append((alone.processor + 999 * each) / ((before.processor + after.processor) / 2))
        if ratios[-1] <= 35:
            return
    raise AssertionError(f"1,000 recipes took {ratios} times the bare import; 35 is the limit")


def test_a_recipe_without_errors_needs_no_validator_and_writes_no_files(monkeypatch):
    """What those two cost grows with each setting; a new keyword in the schemas, or a rule that reads an emitted file, ends here."""

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(by_schema, "_validator", never)
    monkeypatch.setattr("runner.scenarios.shared.common._text", never)
    assert not [problem for problem in examine(SURVIVAL) if problem.severity == "error"]
