"""Rows that make too few steps are noted at their line, with settings that make about a hundred,
each tried before it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.check import copying
from runner.check.validate import examine, load
from runner.parts.planner import recipe_offers
from runner.parts.planner.planned import ENOUGH, FEW, TOO_FEW, Planned, too_short
from runner.recipe.overrides import from_options
from runner.tools.problem import Problem
from tests.conftest import ROOT, setting_of

SURVIVAL = ROOT / "recipes" / "survival.yaml"
SEVEN_B = ROOT / "recipes" / "seven-b.yaml"


@pytest.fixture
def fifty(tmp_path) -> Path:
    """The survival recipe, for four L40S, with fifty questions in a file of one's own."""
    rows = [
        {
            "q": f"How long does loaf {n} rise?",
            "a": f"Loaf {n} rises for two hours in a warm place.",
        }
        for n in range(50)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    own = ["data.path=rows.jsonl", 'data.question="[q]"', 'data.answer="[a]"', "demo="]
    gone = [f"data.{name}=" for name in ("hub", "revision", "split", "sample")]
    path = tmp_path / "own.yaml"
    path.write_text(copying.edit(SURVIVAL.read_text("utf-8"), from_options([*gone, *own])))
    return path


@pytest.fixture
def pipeline(tmp_path):
    """A copy of seven-b with settings written into it."""

    def make(*sets: str) -> Path:
        (tmp_path / "data").symlink_to(ROOT / "recipes" / "data")
        path = tmp_path / "pipeline.yaml"
        path.write_text(copying.edit(SEVEN_B.read_text("utf-8"), from_options(sets)))
        return path

    return make


def noted(path: Path) -> list[Problem]:
    return [note for note in examine(path) if "That is too few to learn much" in note.message]


def test_fifty_questions_on_four_gpus_are_noted_with_what_makes_a_hundred_steps(
    fifty, golden_message
):
    (note,) = noted(fifty)
    assert (setting_of(note), note.severity) == ("epochs", "note")
    golden_message(note)


def test_what_check_says_and_what_plan_offers_makes_enough_steps(fifty):
    planned = Planned.of(load(fifty)[0])
    assert [stage.steps for stage in planned.forecasts] == [3] and too_short(planned.forecasts)
    found = [one for one in recipe_offers.of(planned) if not too_short(one.after.forecasts)]
    assert found and recipe_offers.of(planned)[0] == found[0]
    (note,) = noted(fifty)
    assert all(f"`{line}`" in note.hint for line in found[0].lines)
    for offer in found:
        (stage,) = offer.after.forecasts
        assert ENOUGH * 0.8 <= (stage.steps or 0) <= ENOUGH * 2 and stage.fits
        assert stage.workload.epochs <= recipe_offers.MOST_EPOCHS and stage.warmup_steps >= 2
    copying.rewrite(planned.recipe.document, found[0].changes)
    assert noted(fifty) == []


def test_a_stage_of_a_pipeline_is_noted_with_the_accumulation_that_makes_enough_steps(
    pipeline, recipe_command, golden_message
):
    """Accumulation for one GPU, kept on eight: 16 steps, of which 3 % as warmup is none."""
    path = pipeline("stages.1.train.gradient_accumulation_steps=16")
    (note,) = noted(path)
    assert (setting_of(note), note.severity) == ("epochs", "note")
    golden_message(note)
    assert recipe_command("plan", path, "--apply", "1").returncode == 0
    assert noted(path) == []
    sft = next(stage for stage in Planned.of(load(path)[0]).forecasts if stage.stage.name == "sft")
    assert (sft.steps or 0) >= ENOUGH and sft.warmup_steps and sft.workload.epochs == 3


def test_all_short_stages_are_noted_with_settings_that_are_enough_for_each(pipeline):
    notes = noted(
        pipeline(
            "stages.1.train.gradient_accumulation_steps=16",
            "stages.2.train.gradient_accumulation_steps=160",
        )
    )
    assert [note.message.split("`")[1] for note in notes] == ["sft", "dpo"]
    for note in notes:
        assert (
            "`stages.1.train.gradient_accumulation_steps: 2`, `stages.2.train.gradient_accumulation_steps: 14`"
            in note.hint
        )


def test_few_steps_with_the_warmup_that_is_stated_are_the_authors_choice():
    """Gemma makes 31 steps, three of them as warmup."""
    (stage,) = Planned.of(load(ROOT / "recipes" / "gemma.yaml")[0]).forecasts
    assert TOO_FEW < stage.steps < FEW and stage.warmup_steps == 3
    assert not too_short([stage])
    assert too_short([stage.changed(warmup_steps=0, warmup_ratio=0.03)])


def test_plan_says_it_too_and_its_first_offer_mends_it(recipe_command, fifty):
    done = recipe_command("plan", fifty)
    assert (
        done.returncode == 0
        and "note: Stage `train` makes only 3 steps of 64 rows, 0 of them as warmup" in done.stdout
    )
    assert recipe_command("plan", fifty, "--apply", "1").returncode == 0
    assert noted(fifty) == []


@pytest.mark.parametrize("name", ["survival", "gemma", "lyrics", "resnet", "seven-b"])
def test_no_starter_has_too_few_steps(name):
    assert not too_short(Planned.of(load(ROOT / "recipes" / f"{name}.yaml")[0]).forecasts)
