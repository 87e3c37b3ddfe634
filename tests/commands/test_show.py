"""`recipe show`: the whole recipe, where each setting comes from, and that it is still the same
one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from runner.check import origins
from runner.check.by_schema import schema
from runner.check.computed import computed_values
from runner.check.validate import judge, load, override, valid
from runner.recipe import reading
from runner.recipe.overrides import from_options
from runner.scenarios import place, translate
from runner.scenarios.render import emit, named
from tests.conftest import ROOT, STARTERS


def read_back(recipe):
    """The recipe that is shown, read as a file of its own in the same folder."""
    shown = origins.as_yaml(recipe, schema(recipe.scenario), dict(computed_values(recipe)))
    again, problems = judge(reading.parse(recipe.document.file, shown))
    assert again and not [problem for problem in problems if problem.severity == "error"], problems
    return again, shown


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_what_is_shown_is_the_same_recipe(path):
    recipe = load(path)[0]
    again, shown = read_back(recipe)
    assert again.settings.plain() == recipe.settings.plain()
    assert again.fingerprint == recipe.fingerprint
    first, second = (translate(one, place(one)) for one in (recipe, again))
    # Files hold the recipe in the order of its lines.
    bare = [
        replace(plan, stages=tuple(replace(stage, files=()) for stage in plan.stages))
        for plan in (first, second)
    ]
    assert bare[0] == bare[1]
    if named(recipe):
        texts = [{file.path: file.text for file in emit(one)} for one in (recipe, again)]
        assert texts[0].keys() == texts[1].keys()
    assert read_back(again)[1].count("\n") == shown.count("\n")


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_every_value_says_where_it_comes_from(path):
    recipe = load(path)[0]
    lines = recipe.document.text.splitlines()
    said = origins.origins(recipe.document, recipe.settings.plain())
    assert len(said) > 25
    for setting, where in said.items():
        key = [part for part in setting.split(".") if not part.isdigit()][-1]
        if where != "default":
            line = lines[int(where.removeprefix("line ")) - 1]
            assert key in line or line.lstrip().startswith("- "), setting


def test_a_minimal_recipe_is_shown_with_every_default(recipe_command, golden_message):
    file = "recipes/minimal/lyrics-demo.yaml"
    done = recipe_command(
        "show", file, "--set", "train.epochs=1", env={"LORA_RANK": "8", "EPOCHS": "7"}
    )
    assert done.returncode == 0 and "note:" not in done.stderr, done.stderr
    golden_message(done.stdout)


def test_json_holds_values_their_origins_and_what_is_computed(recipe_command):
    done = recipe_command(
        "show",
        "recipes/survival.yaml",
        "--format",
        "json",
        "--set",
        "machines.nodes=2",
        env={"EPOCHS": "2"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["recipe"]["train"]["epochs"] == 2
    assert found["from"]["train.epochs"] == "EPOCHS=2"
    # A line that only double-checks follows.
    assert (
        found["from"]["machines.nodes"]
        == found["from"]["train.effective_batch_size"]
        == "--set machines.nodes=2"
    )
    assert (
        found["from"]["openshift.claims.0.name"] == "line 87"
        and found["from"]["openshift.version"] == "default"
    )
    assert found["computed"]["train.learning_rate"] == {"value": 0.0001, "how": "times 2 GPUs"}
    assert found["computed"]["openshift.requests.memory"]["value"] == "22 GiB"


def test_a_recipe_that_is_wrong_is_not_shown(recipe_command):
    done = recipe_command("show", "recipes/survival.yaml", "--set", "train.epocs=2")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Did you mean `epochs`?" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "two\nlines\n", "two\nlines", "an end\n\n", "\na beginning", "  indented\nlines", "spaces \nbehind", "tab\tin\nit",
        "# no comment\n# at all", "null", "2e-5", "yes", "a: b", "a:", "- a", "it's", "[x] y", "a #b", "", " ", "\u2028\nx",
        "a, b", "{x}", "a\n\nb\n", "12:30", "x?", "<a> = (b)", "!x", "&x", "*x", "%x", "@x", "`x`", "über 3 Ecken",
    ],
)  # fmt: skip
def test_every_text_is_read_as_it_was(text):
    document, _ = override(
        reading.read(ROOT / "recipes" / "survival.yaml"), from_options(["data.system_prompt=x"])
    )
    document.data["data"]["system_prompt"] = text
    document.data["demo"]["questions"] = [text or "x", "[other]"]
    document.origins["data", "system_prompt"] = f"--set data.system_prompt={text}"
    if text:
        again, _ = read_back(valid(document)[0])
        assert again.data.system_prompt == text
        assert again.demo.questions[0] == text
