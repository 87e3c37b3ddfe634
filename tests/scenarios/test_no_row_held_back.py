"""`data.validation_share: 0`: conversations of which the model learns every row."""

import pytest

from runner import scenarios
from runner.check.validate import changed, examine, load
from runner.parts.planner.planned import Planned
from runner.parts.proof.hooks import plain
from runner.recipe.overrides import from_options
from runner.scenarios import place, rehearsal, translate
from runner.trainer.records import Proof
from tests.conftest import ROOT

MUSEUM = ROOT / "recipes" / "museum.yaml"
NONE = "data.validation_share=0"


def museum(*options: str):
    return load(MUSEUM, from_options([NONE, *options]))[0]


def messages(*options: str) -> list[str]:
    return [problem.message for problem in examine(MUSEUM, from_options(options))]


def test_training_measures_nothing_and_keeps_the_last_weights():
    recipe = museum()
    config = translate(recipe, place(recipe)).stages[-1].config
    assert "test_datasets" not in config and config["val_set_size"] == 0
    assert (config["eval_strategy"], config["load_best_model_at_end"]) == ("no", False)


def test_every_row_is_prepared_for_training(tmp_path):
    for options, sides in (((), (54, 6)), ((NONE,), (60, 0))):
        recipe = load(MUSEUM, from_options(options))[0]
        data = translate(recipe, place(recipe)).stages[-1].data
        report = scenarios.prepare(data, tmp_path)
        assert (report.train_rows, report.validation_rows) == sides
    assert not (tmp_path / "validation.parquet").exists(), "of the earlier share"
    assert "without them, nothing is evaluated" in "\n".join(report.lines())


def test_a_plan_counts_every_row():
    work = Planned.of(museum()).forecasts[0].workload
    assert (work.rows, work.evaluation_rows) == (60, 0)


def test_a_rehearsal_holds_rows_back_for_its_verdict():
    recipe = museum()
    made = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))[1]
    share = next(change for change in made if change.setting == "data.validation_share")
    assert share.after > 0 and "judged by its validation loss" in share.why


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("gates=[taught_answers >= 0.8]", ""),
        ("gates=[new_answers >= 0.8]", "does not produce the metric `new_answers`"),
        ("gates=[perplexity < 40]", "does not produce the metric `perplexity`"),
        ("train.early_stopping.patience=3", "needs the validation loss"),
    ],
)
def test_what_needs_held_out_rows_is_refused(setting, words):
    found = messages(NONE, setting)
    assert not found if not words else len(found) == 1 and words in found[0]


@pytest.mark.parametrize("rows", ["form=preferences", "songs.lyrics=answer"])
def test_other_rows_need_some(rows):
    found = messages(NONE, "data.question=", "data.answer=", f"data.{rows}")
    assert any("`validation_share` must be at least 0.001" in message for message in found), found


def test_a_proof_names_no_validation_rows():
    assert "validation row" in "\n".join(plain(Proof(kind="chat")))
    assert "validation row" not in "\n".join(plain(Proof(kind="chat", held_out=False)))
