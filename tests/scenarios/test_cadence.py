"""When training is evaluated and saved, and when it ends early: what a recipe says of it, in every
scenario."""

from __future__ import annotations

import pytest

from runner.check.validate import examine, load
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from runner.tools.problem import Stop
from tests.conftest import ROOT, setting_of

STARTERS = {
    "lyrics": "train",
    "survival": "train",
    "resnet": "train",
    "gemma": "train",
    "seven-b": "sft",
}
SECTIONS = dict.fromkeys(STARTERS, "train") | {"seven-b": "stages.1.train"}


def stage(starter: str, *options: str):
    recipe, _, _ = load(ROOT / "recipes" / f"{starter}.yaml", from_options(options))
    return next(
        stage
        for stage in translate(recipe, place(recipe)).stages
        if stage.name == STARTERS[starter]
    )


def engine(starter: str, *options: str) -> dict:
    config = stage(starter, *options).config
    return config.get("trainer", config)


@pytest.mark.parametrize("starter", STARTERS)
def test_every_scenario_can_evaluate_save_and_stop_by_steps(starter):
    section = SECTIONS[starter]
    options = [
        f"{section}.eval_steps=20",
        f"{section}.save_steps=10",
        f"{section}.early_stopping.patience=4",
    ]
    config, found = stage(starter, *options).config, engine(starter, *options)
    said = {
        name: found[name] for name in ("eval_strategy", "eval_steps", "save_strategy", "save_steps")
    }
    # Each evaluation has its checkpoint; those at step 10, 30, … are the runner's.
    assert said == {
        "eval_strategy": "steps",
        "eval_steps": 20,
        "save_strategy": "steps",
        "save_steps": 20,
    }
    assert config["recipe_runner"]["save_steps"] == 10
    assert config["recipe_runner"]["early_stopping"] == {"patience": 4, "min_improvement": 0}
    if "trainer" not in config:
        assert (
            found["load_best_model_at_end"] is True
            and found["metric_for_best_model"] == "eval_loss"
        )


@pytest.mark.parametrize("starter", ("lyrics", "survival", "resnet", "seven-b"))
def test_without_a_word_epochs_are_evaluated_and_nothing_ends_early(starter):
    found, told = engine(starter), stage(starter).config["recipe_runner"]
    assert found["eval_strategy"] == found["save_strategy"] == "epoch" and "eval_steps" not in found
    assert "save_steps" not in told and "early_stopping" not in told


def test_pretraining_and_preferences_keep_the_last_model_and_save_by_steps_too():
    recipe, _, _ = load(
        ROOT / "recipes" / "seven-b.yaml",
        from_options(["stages.2.train.save_steps=5", "stages.0.train.save_steps="]),
    )
    configs = {stage.name: stage.config for stage in translate(recipe, place(recipe)).stages}
    assert configs["dpo"]["recipe_runner"]["save_steps"] == 5 and configs["dpo"]["save_steps"] == 10
    assert configs["pretrain-512"]["save_steps"] == configs["pretrain-512"]["eval_steps"] == 1000
    assert "save_steps" not in configs["pretrain-512"]["recipe_runner"]


def test_other_checkpoints_are_the_same_training_and_another_patience_is_not():
    def key(*options: str) -> str:
        return stage("lyrics", *options).keys[""]

    assert key("train.save_steps=10") == key("train.save_steps=25") == key()
    assert key("train.early_stopping.patience=2") != key("train.early_stopping.patience=3") != key()


# A starter, changes of it, and the setting that is refused.
REFUSED = {
    "out of step": ("lyrics", ["train.eval_steps=50", "train.save_steps=20"], "train.save_steps"),
    "rarer than evaluations": ("survival", ["train.eval_steps=10", "train.save_steps=20"], "train.save_steps"),
    "of one of several stages": ("seven-b", ["stages.2.train.save_steps=20"], "stages.2.train.save_steps"),
    "no validation": (
        "gemma", ["data.validation_split=", 'train.early_stopping={"patience": 2}'], "train.early_stopping",
    ),
    "never": ("lyrics", ["train.early_stopping.patience=0"], "train.early_stopping.patience"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_senseless_lines_are_refused_where_they_stand(case, golden_message):
    starter, options, setting = REFUSED[case]
    with pytest.raises(Stop) as stop:
        load(ROOT / "recipes" / f"{starter}.yaml", from_options(options))
    assert [setting_of(problem) for problem in stop.value.problems] == [setting]
    golden_message(stop.value)


# What holds and is hardly meant.
NOTED = {
    "patience for two epochs": ("survival", ["train.epochs=2", "train.early_stopping.patience=3"], "train.early_stopping.patience"),
    "patience for few evaluations": ("resnet", ["train.eval_steps=10000", "train.early_stopping.patience=2"], "train.early_stopping.patience"),
    "no checkpoint of its own": ("survival", ["train.save_steps=5000"], "train.save_steps"),
    "more checkpoints than steps": ("gemma", ["train.keep_checkpoints=50", "train.eval_steps=10", "train.save_steps=10", "train.warmup_steps=3"], "train.keep_checkpoints"),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTED)
def test_what_is_hardly_meant_is_noted_where_it_stands(case, golden_message):
    starter, options, setting = NOTED[case]
    noted = examine(ROOT / "recipes" / f"{starter}.yaml", from_options(options))
    # The starter with a placeholder is noted for that, too.
    (note,) = [one for one in noted if not one.message.startswith("This commit is a placeholder")]
    assert note.severity == "note" and setting_of(note) == setting
    golden_message(note)


def test_a_run_of_one_step_may_keep_the_best_checkpoint_and_the_latest():
    options = from_options(["train.epochs=0.05", "train.keep_checkpoints=2"])
    noted = " ".join(map(str, examine(ROOT / "recipes/gemma.yaml", options)))
    assert "ends after 1 step, before its first" in noted and "should keep" not in noted
