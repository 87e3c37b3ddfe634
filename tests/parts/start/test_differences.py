"""`recipe diff`: what differs in settings, whatever the lines look like, and what that changes in
plans."""

from __future__ import annotations

import json
import shutil

import pytest

from runner.check.copying import edit
from runner.check.validate import load
from runner.commands import cli
from runner.parts.start.commands import diff
from runner.parts.start.commands.diff import Difference
from runner.plan import RECIPE_FILE
from runner.recipe import reading
from runner.recipe.overrides import from_options
from runner.scenarios.render import emit
from runner.tools import packaged
from runner.tools.problem import Stop
from tests.conftest import ROOT, STARTERS

SURVIVAL = ROOT / "recipes" / "survival.yaml"


def changed(*options: str):
    return reading.parse(str(SURVIVAL), edit(SURVIVAL.read_text("utf-8"), from_options(options)))


def between(*options: str) -> list[Difference]:
    return diff.in_settings(reading.read(SURVIVAL), changed(*options))


def test_settings_differ_with_what_they_are():
    assert between("train.epochs=3") == [
        Difference("train.epochs", 4, 3, "How many times training goes through all rows.")
    ]
    found = {
        one.name: (one.before, one.after)
        for one in between("data.validation_share=", "train.seed=7")
    }
    assert found["train.seed"][1] == 7


def test_comments_order_and_defaults_are_no_difference():
    whole = load(SURVIVAL)[0].settings.plain()
    turned = json.dumps(dict(reversed(whole.items())))
    assert diff.in_settings(reading.read(SURVIVAL), reading.parse("turned.yaml", turned)) == []
    assert "report_to" in whole["train"]


def test_a_list_of_sections_differs_where_its_items_do():
    found = between("openshift.claims[1].size_gib=70")
    assert [(one.name, one.before, one.after) for one in found] == [
        ("openshift.claims[1].size_gib", 50, 70)
    ]


def test_another_scenario_has_settings_that_are_not_there():
    found = diff.in_settings(reading.read(SURVIVAL), diff.opened("lyrics"))
    by_name = {one.name: one for one in found}
    assert by_name["train.last_layers"].after is None and by_name["train.last_layers"].meaning
    assert by_name["train.lora_rank"].before is None and by_name["train.lora_rank"].meaning


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_the_sealed_recipe_of_a_run_is_the_recipe(path, tmp_path):
    """A run keeps the file that the plan emits."""
    recipe = load(path)[0]
    if "openshift" not in recipe.settings and "nodes" not in recipe.settings:
        pytest.skip("it has nothing to render")
    sealed = next(file for file in emit(recipe) if file.path.rpartition("/")[2] == RECIPE_FILE)
    for home in ("config", "config/sft"):
        run = tmp_path / home.replace("/", "-")
        (run / home).mkdir(parents=True)
        (run / home / RECIPE_FILE).write_text(sealed.text)
        assert diff.in_settings(reading.read(path), diff.opened(str(run))) == []


def test_a_folder_that_is_no_run_and_a_recipe_with_errors_are_said(tmp_path):
    with pytest.raises(Stop, match="This folder is not a run"):
        diff.opened(str(tmp_path))
    with pytest.raises(Stop, match="This file does not exist"):
        diff.opened("survial")
    with pytest.raises(Stop, match="`epochs` must be"):
        between("train.epochs=-3")
    shutil.copy(SURVIVAL, tmp_path / "survival")
    assert diff.opened(str(tmp_path / "survival")).file == str(tmp_path / "survival"), (
        "a file before a starter"
    )
    assert diff.opened("survival").file == str(packaged.named()["survival"])


def test_plans_differ_in_figures_with_units_and_in_emitted_settings():
    found = {
        one.name: one
        for one in diff.in_plans(reading.read(SURVIVAL), changed("train.epochs=8"), 2.5)
    }
    time, cost, memory = (found[f"train: {name}"] for name in ("time", "cost", "GPU memory"))
    assert time.unit == "seconds" and 1.5 * time.before < time.after < 2.1 * time.before
    assert cost.unit == "at 2.5 a GPU hour" and cost.after > cost.before
    assert memory.before == memory.after > 10 * 2**30, "what stays the same is said too"
    emitted = {name: (one.before, one.after) for name, one in found.items() if not one.unit}
    assert emitted == {"axolotl.yaml: num_epochs": (4, 8)}


def test_a_new_recipe_has_figures_alone():
    found = diff.in_plans(None, reading.read(SURVIVAL))
    assert found and all(one.unit and one.before is None for one in found)


def test_every_starter_can_be_compared_with_every_other():
    first, *others = STARTERS
    assert others
    for path in others:
        before, after = reading.read(first), reading.read(path)
        assert diff.in_settings(before, after) and diff.in_plans(before, after), path


def test_markdown_of_others_stays_text():
    odd = "a|b `c` <img src=x> [x](y) @all #1 &amp;"
    cell = diff.markdown([Difference("description", None, odd)], []).splitlines()[-1]
    assert cell == r'| description | - | "a\|b \`c\` \<img src=x\> \[x\](y) \@all \#1 \&amp;" |  |'


@pytest.mark.parametrize("style", ["text", "json", "markdown"])
def test_the_command_says_both(style, tmp_path, capsys):
    other = tmp_path / "other.yaml"
    other.write_text(changed("train.epochs=8").text)
    assert cli._code(["diff", "survival", str(other), "--plan", "--format", style]) == 0
    said, ending = capsys.readouterr()
    if style == "json":
        whole = json.loads(said)
        assert [one["name"] for one in whole["settings"]] == ["train.epochs"] and len(
            whole["plan"]
        ) > 3
    else:
        assert "train.epochs" in said and "GiB" in said and "num" in said
        assert (
            f"One setting differs between survival and {other}.\nNext: recipe plan " in ending
        ) == (style == "text")
    assert cli._code(["diff", "survival", "survival", "--format", style]) == 0
    same = capsys.readouterr().out
    assert (
        json.loads(same)["settings"] == [] if style == "json" else same == "No setting differs.\n"
    )
