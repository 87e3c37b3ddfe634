"""What a rehearsal puts in place of the real thing, before anything is trained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runner.check.validate import changed, load
from runner.data.prepared import PreparedRows
from runner.recipe.recipe import Override, Recipe
from runner.scenarios import rehearsal
from runner.scenarios.shared import rehearsal as shared
from runner.scenarios.shared import twin
from runner.scenarios.shared.rehearsal import ENOUGH_STEPS, MIN_STEPS
from runner.tools.problem import Stop
from runner.trainer.records import Summary
from tests.conftest import ROOT, STARTERS
from tests.stages import plan_in

LANGUAGE = ("survival", "lyrics", "gemma")


def recipe_of(name: str, *changes: Override) -> Recipe:
    return load(ROOT / "recipes" / f"{name}.yaml", changes)[0]


def rehearsed(recipe: Recipe, rows: int = 200) -> tuple[Recipe, list[Override]]:
    own = rehearsal(recipe.scenario)
    recipe, made = changed(recipe, own.before_data(recipe, None))
    # All but the twin itself, which is no folder here.
    then = own.after_data(recipe, PreparedRows(rows), Path("nowhere"))
    recipe, more = changed(
        recipe, [override for override in then if override.setting != "model.base"]
    )
    return recipe, made + more


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_recipe_that_names_no_place_is_rehearsed_like_one_that_does(name):
    def settings(*changes: Override) -> dict:
        recipe = rehearsed(recipe_of(name, *changes))[0]
        return {
            section: value
            for section, value in recipe.settings.plain().items()
            if section not in places
        }

    places = ("openshift", "nodes")
    assert settings(*(Override(place, None, None, "a test") for place in places)) == settings()


@pytest.mark.parametrize("name", LANGUAGE)
def test_a_setting_left_to_its_default_is_replaced_like_one_that_is_written(name):
    replaced = {change.setting for change in rehearsed(recipe_of(name))[1]}
    looked_at = []
    for setting in sorted(
        replaced | {"model.precision", "model.attention", "distribution", "demo.max_new_tokens"}
    ):
        try:
            left_out = recipe_of(name, Override(setting, None, None, "a test"))
        except Stop:
            continue  # it may not be left out
        default = left_out.settings
        for part in setting.split("."):
            default = default and default.get(part)
        written = recipe_of(name, Override(setting, None, default, "a test"))
        assert rehearsed(left_out)[0].settings.plain() == rehearsed(written)[0].settings.plain(), (
            setting
        )
        looked_at.append(setting)
    assert {"model.precision", "model.attention", "demo.max_new_tokens"} <= set(looked_at)


@pytest.mark.parametrize("name", LANGUAGE)
def test_nothing_that_needs_a_gpu_is_left_where_the_recipe_does_not_say(name):
    unsaid = [
        Override(f"model.{setting}", None, None, "a test") for setting in ("precision", "attention")
    ]
    recipe, made = rehearsed(recipe_of(name, *unsaid))
    assert (recipe.model.precision, recipe.model.attention) == ("fp32", "sdpa")
    (precision,) = [change for change in made if change.setting == "model.precision"]
    assert (precision.before, precision.after) == (None, "fp32") and ": unset → fp32 " in str(
        precision
    )


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_rows_make_50_steps_too(rows):
    recipe, _ = rehearsed(recipe_of("survival"), rows)
    train = recipe.train
    assert (recipe.machines.nodes, recipe.machines.gpus_per_node) == (1, 1)
    assert (
        rows // (train.micro_batch_size * train.gradient_accumulation_steps) * train.epochs
        >= ENOUGH_STEPS
    )


@pytest.fixture
def own(tmp_path) -> Path:
    """A recipe of questions in a file of one's own, with the starter's sample still beside it."""
    text = (ROOT / "recipes" / "survival.yaml").read_text("utf-8")
    hub = next(line for line in text.splitlines() if line.strip().startswith("hub:"))
    text = text.replace(hub, "  path: bread.jsonl").replace(
        "  revision: main                      # version on the hub\n  split: train                        # which part of the data set\n",
        "",
    )
    (tmp_path / "data").mkdir()
    for name in ("bread.jsonl", "data/survival-sample.jsonl"):
        (tmp_path / name).write_text(
            '{"topic": "bread", "question": "How long does it rise?", "answer": "Two hours."}\n'
        )
    (tmp_path / "own.yaml").write_text(text)
    return tmp_path / "own.yaml"


def rows_of(recipe: Recipe) -> list[tuple[str | None, float | None]]:
    first, _ = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))
    return [(one.get("path"), one.get("share")) for _, one in first.data_sets()]


def test_a_rehearsal_takes_the_recipes_own_file_and_not_the_starters_sample(own):
    recipe = load(own)[0]
    assert recipe.data.sample and rows_of(recipe) == [("bread.jsonl", None)]
    # What lies on a claim is not here; the sample stands in for it.
    claimed = load(own, [Override("data.path", None, "/shared/workspace/bread.jsonl", "a test")])[0]
    assert rows_of(claimed) == [("data/survival-sample.jsonl", None)]


def test_of_a_large_file_a_rehearsal_takes_a_share_and_says_so(own, monkeypatch):
    monkeypatch.setattr(shared, "LARGE", 20)
    size = (own.parent / "bread.jsonl").stat().st_size
    share = float(f"{20 / size:.2g}")
    recipe = load(own)[0]
    assert rows_of(recipe) == [("bread.jsonl", share)]
    said = [
        str(change)
        for change in changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))[1]
    ]
    assert (
        f'data.sets: unset → [{{"path": "bread.jsonl", "share": {share}}}]  (a seeded draw of 0 MB)'
        in said
    )
    sets = [{"path": "bread.jsonl", "share": 0.5}, {"path": "data/survival-sample.jsonl"}]
    several = load(
        own,
        [
            *(Override(f"data.{name}", None, None, "a test") for name in ("path", "sample")),
            Override("data.sets", None, sets, "a test"),
        ],
    )[0]
    assert rows_of(several) == [
        ("bread.jsonl", float(f"{10 / size:.2g}")),
        ("data/survival-sample.jsonl", share),
    ]


def test_texts_of_ones_own_are_judged_by_the_file_that_the_recipe_names_for_it(tmp_path):
    text = (ROOT / "recipes" / "minimal" / "causal-lm.yaml").read_text("utf-8")
    lines = [
        line
        for line in text.splitlines()
        if not line.strip().startswith(("hub:", "subset:", "validation_split:", "sample:"))
    ]
    at = lines.index(next(line for line in lines if line.startswith("data:"))) + 1
    for name in ("mine.txt", "held.txt"):
        paragraphs = [
            f"Text {number} has some words to learn from, as others have." for number in range(200)
        ]
        (tmp_path / name).write_text("\n\n".join(paragraphs))
    for own, expected in (
        (["  path: mine.txt", "  validation_path: held.txt"], ("held.txt", None)),
        (["  path: mine.txt"], (None, 0.1)),
    ):
        (tmp_path / "text.yaml").write_text("\n".join([*lines[:at], *own, *lines[at:]]) + "\n")
        recipe = load(tmp_path / "text.yaml")[0]
        first, _ = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))
        assert (first.data.validation_path, first.data.validation_share) == expected


def summary(first: float | None, best: float | None, steps: int = MIN_STEPS) -> Summary:
    return Summary(steps=steps, first_validation_loss=first, best_validation_loss=best)


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (summary(2.0, 1.0, steps=MIN_STEPS - 1), "29 steps, but needs 30"),
        (
            summary(2.0, 1.9),
            "did not learn: the validation loss went from 2.000 to 1.900, 5.0% better",
        ),
        (
            summary(0.0, 0.0),
            "did not learn: the validation loss went from 0.000 to 0.000, 0.0% better",
        ),
        (summary(None, 1.0), "has no verdict, because it has no validation loss."),
        (summary(2.0, None), "has no verdict, because it has no validation loss."),
    ],
    ids=["too few steps", "too little", "nothing to learn", "no first loss", "no best loss"],
)
def test_what_is_not_plainly_learned_fails_a_rehearsal(left, words, tmp_path):
    own, plan = rehearsal(recipe_of("survival").scenario), plan_in(tmp_path, "survival")
    own.judge(plan, [summary(2.0, 1.7)])
    with pytest.raises(Stop, match=re.escape(words)):
        own.judge(plan, [left])


@pytest.mark.parametrize("classes", [4, 10])
def test_the_classes_of_a_sample_are_its_own(classes):
    """Check asks for those of the recipe's images, and a rehearsal must not ask for those of the
    sample in their place."""
    own = [
        Override("data.hub", None, "someone/own-images", "a test"),
        Override("model.classes", None, classes, "a test"),
    ]
    recipe = recipe_of("resnet", *own)
    first, made = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))
    assert first.model.classes == 10
    assert [change.setting for change in made if "classes" in change.setting] == (
        ["model.classes"] if classes == 4 else []
    )


def test_a_model_that_starts_from_nothing_has_fewer_words_than_a_twin_that_is_warmed_up():
    made = {
        change.setting: change.after
        for change in rehearsal("pretrain").before_data(recipe_of("seven-b").pretraining, None)
    }
    assert made["tokenizer.vocabulary"] == 1024 < twin.VOCABULARY
    assert made["model.vocabulary"] == 1088


def test_settings_of_kernels_that_need_a_gpu_are_left_out():
    own = Override("advanced.axolotl", None, {"liger_layer_norm": True, "gc_steps": 5}, "a test")
    recipe, made = rehearsed(recipe_of("survival", own))
    assert recipe.advanced.plain()["axolotl"] == {"gc_steps": 5}
    assert [one.why for one in made if one.setting.startswith("advanced")] == [
        "Liger's kernels need a GPU"
    ]


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_the_substitutions_before_the_data_leave_every_starter_valid(path):
    """Also one without an optional section, such as a pipeline without its last stage."""
    recipe, _, _ = load(path)
    made, changes = changed(recipe, rehearsal(recipe.scenario).before_data(recipe, None))
    # The museum's rows are here, and enough of them are held out.
    assert changes or path.stem == "museum"
    assert {*made.sections} <= {*recipe.sections}
