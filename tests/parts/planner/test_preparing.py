"""Stages that train nothing are planned too: a pipeline's data, and its first weights."""

from __future__ import annotations

import json

import pytest

from runner import catalog
from runner.check.validate import examine, load
from runner.parts.planner.planned import Planned
from runner.recipe.overrides import from_options
from tests.conftest import ROOT

SEVEN_B = ROOT / "recipes" / "seven-b.yaml"
POSTED = ("stages.0.data.cleaning.executor=pods", "stages.0.data.cleaning.pods=16")


def planned(*sets: str, path=SEVEN_B) -> Planned:
    return Planned.of(load(path, from_options(sets))[0])


def seconds(*sets: str, path=SEVEN_B) -> dict[str, float | None]:
    return {each.stage: each.total_seconds for each in planned(*sets, path=path).preparations}


def test_cleaning_takes_as_long_as_the_measured_pace_says_and_counts_in_the_total():
    whole = planned()
    data, init = whole.preparations
    # 35 million documents at 0.45 MB a processor second, on 64 processors.
    cleaning = (
        35e6 * catalog.dataset("HuggingFaceFW/fineweb-edu:sample-100BT")["characters"] / 0.45e6 / 64
    )
    assert cleaning < data.total_seconds < 4 * cleaning
    assert init.total_seconds > 6_083_055_616 * 4 / 100e6, (
        "weights in fp32 are written to the claim"
    )
    trained = [each.time for each in whole.forecasts if each.time]
    both = [*trained, *whole.preparations]
    assert whole.together.total_seconds == pytest.approx(sum(each.total_seconds for each in both))
    assert whole.together.range_seconds[1] == pytest.approx(
        sum(each.range_seconds[1] for each in both)
    )
    hours = sum(time.total_seconds for time in trained) * 8 / 3600
    assert whole.together.gpu_hours == pytest.approx(hours), "no GPU waits for text"


@pytest.mark.parametrize(
    ("change", "least", "most"),
    [
        (("stages.0.data.limit=17500000",), 0.4, 0.9),
        (("openshift.requests.cpus=32",), 1.3, 2.0),
        (("stages.0.data.deduplicate=exact",), 0.8, 0.97),
        (POSTED, 0.5, 0.8),
        (("stages.0.data.cleaning.workers=8",), 2.0, 8.0),
        (("stages.0.data.cleaning.tasks=8",), 2.0, 8.0),
        (("stages.0.data.cleaning.executor=ray", "stages.0.data.cleaning.tasks=64"), 0.99, 1.01),
        (("openshift.claims.0.write_mb_s=1000",), 0.4, 0.8),
    ],
)
def test_what_makes_it_faster_or_slower(change, least, most):
    assert least < seconds(*change)["data"] / seconds()["data"] < most
    if "write_mb_s" not in change[0]:
        assert seconds(*change)["init"] == seconds()["init"]


def test_a_file_of_ones_own_is_as_large_as_it_is(tmp_path):
    text = (ROOT / "recipes" / "minimal" / "pretrain.yaml").read_text()
    start, end = text.index("  hub: HuggingFaceFW"), text.index("train: ")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"{text[:start]}  path: texts.jsonl\n{text[end:]}".replace(
            "../data/", str(ROOT / "recipes/data") + "/"
        )
    )
    (tmp_path / "texts.jsonl").write_text('{"text": "word"}\n' * 100_000)
    one = seconds(path=path)["data"]
    (tmp_path / "texts.jsonl").write_text('{"text": "word"}\n' * 6_000_000)
    assert 0.5 < (seconds(path=path)["data"] - one) / (5_900_000 * 17 / 0.45e6 / 8) < 1.5


def test_text_of_unknown_size_is_not_estimated_and_the_total_names_it(
    recipe_command, golden_message
):
    done = recipe_command("plan", SEVEN_B, "--set", "stages.0.data.hub=someone/else")
    golden_message(done.stdout)
    told = json.loads(
        recipe_command(
            "plan", SEVEN_B, "--set", "stages.0.data.hub=someone/else", "--format", "json"
        ).stdout
    )
    assert [each["stage"] for each in told["preparations"]] == ["init"] and told["preparations"][0][
        "total_seconds"
    ]


def test_a_job_that_ends_before_its_text_is_clean_is_noted_by_plan_and_check(
    recipe_command, golden_message
):
    short = "openshift.deadline_hours=4"
    notes = [
        note for note in examine(SEVEN_B, from_options([short])) if "deadline_hours" in str(note)
    ]
    assert (
        len(notes) == 1 and "`pretrain-2048`" in notes[0].message and "others" in notes[0].message
    )
    small = [
        short,
        "stages.0.train.steps=100",
        "stages.0.train.warmup_steps=10",
        "stages.0.train.eval_steps=50",
    ]
    (note,) = [note for note in examine(SEVEN_B, from_options(small)) if "`data`" in note.message]
    golden_message(note)
    said = recipe_command("plan", SEVEN_B, *(f"--set={one}" for one in small)).stdout
    assert note.message in said


def test_a_limit_of_time_is_about_training_alone():
    trained = sum(each.time.total_seconds for each in planned().forecasts)
    assert not planned(f"limits.time={trained / 3600 + 0.1:.2f} h").problems
    assert planned(f"limits.time={trained / 3600 - 0.1:.2f} h").problems
