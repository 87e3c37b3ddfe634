"""Comments of a recipe hold for it also after a command has changed a value: over all starters and
all their settings."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from runner.check import by_schema, copying
from runner.parts.axolotl_files.conversion import as_recipe
from runner.recipe.overrides import from_options
from runner.recipe.reading import parse, read
from runner.recipe.recipe import Override
from runner.tools.problem import Stop
from tests.conftest import ROOT, STARTERS

SURVIVAL = ROOT / "recipes" / "survival.yaml"
NUMBER = copying._FIGURE


def edited(file: Any, *changes: Override) -> str:
    document = read(file)
    return copying.edited(document.text, changes)


def test_a_file_of_another_trainer_is_not_rewritten(tmp_path):
    path = tmp_path / "axolotl.yaml"
    path.write_text(
        "base_model: a/b  # 7 layers\ndatasets:\n- {path: a/b, type: alpaca}\nlearning_rate: 1e-4\n",
        "utf-8",
    )
    document, _ = as_recipe(read(path)) or pytest.fail("it is Axolotl's")
    with pytest.raises(Stop, match="cannot write this change into a file of this form"):
        copying.rewrite(document, [Override("train.micro_batch_size", None, 1, copying.NEW)])
    assert path.read_text("utf-8") == document.text


def comment(line: str) -> str:
    return line.partition(" #")[2].strip()


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value * 3 if isinstance(value, int | float) else "another-value"


def line_of(text: str, setting: str) -> str:
    document = parse("x", text)
    return text.splitlines()[document.keys[Override(setting, None, None, "").path].line - 1]


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_what_was_said_of_a_changed_value_is_said_no_more(path):
    document, looked_at = read(path), 0
    lines = document.text.splitlines()
    says = partial(by_schema.sentence, document.data["scenario"])
    for place, key in document.keys.items():
        value, said = document.lookup(place), comment(lines[key.line - 1])
        if (
            not said
            or isinstance(value, dict | list | None)
            or "\n" in str(value)
            or "{" in lines[key.line - 1]
        ):
            continue
        setting, looked_at = ".".join(map(str, place)), looked_at + 1
        text = edited(path, Override(setting, None, another(value), "a test"))
        after = text.splitlines()
        assert parse("x", text).lookup(place) == another(value) and len(after) == len(lines), (
            setting
        )
        now = comment(after[key.line - 1])
        sentence = says(place)
        generic = now == sentence[:1].lower() + sentence[1:] or now == sentence
        number = isinstance(value, int | float) and not isinstance(value, bool)
        assert generic or (
            number and not NUMBER.search(now) and set(now.split("; ")) <= set(said.split("; "))
        ), (
            setting,
            now,
        )
        assert now, setting
        for old, new in zip(lines, after, strict=True):
            # Elsewhere only figures go, or a whole comment for what the schema says.
            assert (
                old.partition(" #")[0].rstrip() == new.partition(" #")[0].rstrip()
                or old == lines[key.line - 1]
            )
            assert bool(comment(old)) == bool(comment(new)), (setting, new)
            if old != new and old != lines[key.line - 1]:
                assert NUMBER.search(comment(old)), (setting, old)
    assert looked_at > 5


def test_figures_go_with_what_they_were_reckoned_from():
    text = edited(SURVIVAL, *from_options(["model.base=someone/model"]))
    assert (
        comment(line_of(text, "train.keep_checkpoints"))
        == "checkpoints on disk; higher lets you go back further"
    )
    assert (
        comment(line_of(text, "train.lm_head"))
        == "also train the step from numbers to words (and the embedding, tied to it)"
    )
    assert comment(line_of(text, "limits.gpu_memory")).startswith(
        "the most memory that the run may take"
    )
    # Neither what the rows are nor what the machines have is another model's.
    before = SURVIVAL.read_text("utf-8")
    for setting in ("data.hub", "machines.memory", "machines.gpu", "openshift.restart_policy"):
        assert line_of(text, setting) == line_of(before, setting)


def test_the_words_beside_a_choice_are_those_of_the_choice():
    text = edited(SURVIVAL, *from_options(["distribution=zero2", "train.epochs=9"]))
    assert (
        line_of(text, "distribution")
        == "distribution: zero2                   # how several GPUs share the work"
    )
    assert line_of(text, "train.epochs") == (
        "  epochs: 9                           # passes through all rows; more passes teach more, until the model memorises the rows"
    )


def test_what_is_said_of_one_stage_stays_when_another_changes():
    before = (ROOT / "recipes/sft-dpo.yaml").read_text("utf-8").splitlines()
    text = edited(
        ROOT / "recipes/sft-dpo.yaml", *from_options(["stages.1.train.micro_batch_size=2"])
    )
    changed = [new for old, new in zip(before, text.splitlines(), strict=True) if old != new]
    assert (
        changed[0]
        == "      micro_batch_size: 2             # pairs at once on one GPU; two answers each"
    )
    assert "4 × 4 = 16 rows" in text and "7 billion weights take 6 GB" in text


@pytest.mark.parametrize(
    "setting",
    ["stages.0", "stages.2", "stages.3", "stages.3.gates.1", "evaluation.tasks.0"],
)
def test_an_entry_of_a_list_is_left_out_with_its_lines_and_no_others(setting):
    document = read(ROOT / "recipes" / "seven-b.yaml")
    (change,) = from_options([f"{setting}="])
    text = copying.faithful(document, [change], copying.edited)
    assert text
    *section, number = change.path
    entries = document.lookup(tuple(section))
    kept = [entry for index, entry in enumerate(entries) if index != number]
    assert parse("x", text).lookup(tuple(section)) == kept
    assert "\n\n\n" not in text
    # The others keep their comments.
    assert "technique: full                   # every weight" in text


def test_where_a_recipe_lives_changes_no_figure():
    before = SURVIVAL.read_text("utf-8").splitlines()
    after = edited(SURVIVAL, *from_options(["openshift.namespace=mine", "name=mine"])).splitlines()
    changed = [
        old.split(":")[0].strip() for old, new in zip(before, after, strict=True) if old != new
    ]
    assert changed == ["name", "namespace"]


def test_a_copy_says_of_its_starter_what_the_starter_said_of_itself(recipe_command, tmp_path):
    done = recipe_command(
        "new", "small", "--from", "seven-b", "--set", "stages.0.model.layers=12", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "small.yaml").read_text("utf-8")
    (line,) = [line for line in text.splitlines() if "6,083,055,616" in line]
    assert line.startswith(
        "# Copied from seven-b: trains a language model of 6,083,055,616 parameters"
    )


def test_an_offer_that_is_written_leaves_no_words_about_the_other_card(tmp_path, recipe_command):
    recipe = tmp_path / "small.yaml"
    text = (
        (ROOT / "recipes" / "minimal" / "last-layers.yaml")
        .read_text("utf-8")
        .replace("../data/", "data/")
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "survival-sample.jsonl").write_bytes(
        (ROOT / "recipes/data/survival-sample.jsonl").read_bytes()
    )
    recipe.write_text(
        text.replace(
            "  gpu: NVIDIA-L40S                    # the GPU;",
            "  gpu: NVIDIA-L4                      # the L4 with 24 GB;",
        )
        # Too many for that card: another one is suggested only where it is needed.
        + "train:\n  last_layers: 14\n"
    )
    said = recipe_command("plan", recipe, "--format", "json").stdout
    import json

    offers = json.loads(said)["offers"]
    number = next(
        n
        for n, offer in enumerate(offers, 1)
        if any(line.startswith("machines.gpu:") for line in offer["lines"])
    )
    done = recipe_command("plan", recipe, "--apply", str(number))
    assert done.returncode == 0, done.stderr
    assert "24 GB" not in recipe.read_text("utf-8") and "24 GB" in done.stdout
