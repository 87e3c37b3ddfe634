"""What the user changes wins: lines that only repeat others follow, and say so."""

from __future__ import annotations

import pytest

from runner.check.validate import examine, load
from runner.recipe.overrides import from_options
from runner.tools.problem import Stop
from tests.conftest import RECIPES, ROOT

SURVIVAL, GEMMA = (ROOT / "recipes" / f"{name}.yaml" for name in ("survival", "gemma"))
WITH_BATCH = [path for path in RECIPES if "\n  effective_batch_size:" in path.read_text("utf-8")]
BATCH = "train.effective_batch_size"


def opened(path, *options: str, environment: dict[str, str] | None = None):
    recipe, made, _ = load(path, from_options(options), environment or {})
    return recipe, {change.setting: change for change in made}


def refused(path, *options: str) -> list[str]:
    """The files (for options: the options themselves) that the errors point at."""
    problems = examine(path, from_options(options))
    return [problem.file for problem in problems if problem.severity == "error"]


@pytest.mark.parametrize("path", WITH_BATCH, ids=lambda path: path.stem)
def test_the_effective_batch_follows_a_batch_size_of_the_environment(path):
    before = load(path)[0]
    rows = before.train.micro_batch_size + 1
    recipe, made = opened(path, environment={"BATCH_SIZE": str(rows)})
    expected = rows * before.train.gradient_accumulation_steps * sum(before.gpu_counts)
    assert recipe.train.effective_batch_size == made[BATCH].after == expected
    assert "follows" in made[BATCH].why and f"BATCH_SIZE={rows}" in made[BATCH].why


@pytest.mark.parametrize(
    "setting", ["machines.nodes", "machines.gpus_per_node", "train.gradient_accumulation_steps"]
)
@pytest.mark.parametrize(
    "path", [path for path in WITH_BATCH if path != GEMMA], ids=lambda path: path.stem
)
def test_the_effective_batch_follows_every_factor(path, setting):
    recipe, made = opened(path, f"{setting}=3")
    train = recipe.train
    assert BATCH in made
    assert (
        train.effective_batch_size
        == train.micro_batch_size * train.gradient_accumulation_steps * sum(recipe.gpu_counts)
    )


def test_what_the_user_says_of_the_batch_himself_must_agree():
    assert refused(SURVIVAL, "machines.nodes=2", f"{BATCH}=64") == [str(SURVIVAL)]
    assert refused(SURVIVAL, "machines.nodes=2", f"{BATCH}=48") == [f"--set {BATCH}=48"]
    with pytest.raises(Stop):
        opened(SURVIVAL, f"{BATCH}=64", environment={"BATCH_SIZE": "4"})
    assert opened(SURVIVAL, "machines.nodes=2", f"{BATCH}=32")[0].train.effective_batch_size == 32


def test_a_line_that_was_wrong_before_follows_nothing(edited):
    path = edited(("effective_batch_size: 64", "effective_batch_size: 60"))
    assert refused(path, "machines.nodes=2") == [str(path)]


def test_fewer_machines_are_the_first_of_those_named():
    recipe, made = opened(GEMMA, "machines.nodes=1")
    assert [machine.address for machine in recipe.nodes.machines] == ["<MAIN_NODE_IP>"]
    assert recipe.train.effective_batch_size == 64
    assert {"nodes.machines", BATCH} < set(made)
    recipe, _ = opened(GEMMA, "machines.gpus_per_node=1")
    assert [machine.gpus for machine in recipe.nodes.machines] == [(2,), (2,)]


def test_more_machines_only_a_person_can_name():
    assert refused(GEMMA, "machines.nodes=3") == [str(GEMMA)]
    assert refused(GEMMA, "machines.gpus_per_node=4") == [str(GEMMA)]


def test_counts_follow_the_machines_that_are_named():
    recipe, made = opened(GEMMA, 'nodes.machines=[{"address": "a", "gpus": [0, 1, 2]}]')
    assert (
        recipe.machines.nodes,
        recipe.machines.gpus_per_node,
        recipe.train.effective_batch_size,
    ) == (1, 3, 96)
    assert {"machines.nodes", "machines.gpus_per_node", BATCH} < set(made)


@pytest.mark.parametrize(
    "options",
    [
        ("machines=5",),
        ("machines.nodes=x",),
        ("nodes.machines.0=5",),
        ("nodes=[]", "machines.nodes=1"),
        ("nodes.machines.0.gpus=7", "machines.gpus_per_node=1"),
        ("train=1", "machines.nodes=1"),
        ("train.micro_batch_size=.inf",),
        ("scenario=none", "machines.nodes=1"),
        ("nodes.machines.9.gpus=[1]",),
    ],
    ids=str,
)
def test_changes_that_are_no_settings_are_problems_as_ever(options):
    assert refused(GEMMA, *options)


@pytest.mark.parametrize(
    ("option", "setting", "value"),
    [
        ("openshift.version=3.6", ("openshift", "version"), "3.6"),
        ("openshift.version=3.10", ("openshift", "version"), "3.10"),
        ('openshift.version="3.5"', ("openshift", "version"), "3.5"),
        ("openshift.claims[0].name=1e5", ("openshift", "claims", 0, "name"), "1e5"),
        ("model.revision=840195", ("model", "revision"), "840195"),
        ("description=true", ("description",), "true"),
        ("train.epochs=2", ("train", "epochs"), 2),
    ],
)
def test_a_value_for_a_text_setting_is_text(option, setting, value):
    """No shell hands on the quotes that would say so in a file."""
    found = examine(SURVIVAL, from_options((option,)))
    assert not [problem for problem in found if "must be text" in problem.message]
    recipe = load(SURVIVAL, from_options((option,)))[0]
    assert recipe.document.lookup(setting) == value


def test_a_text_setting_that_is_taken_away_stays_away():
    assert (
        "revision"
        not in load(SURVIVAL, from_options(("model.revision=null",)))[0].document.data["model"]
    )
