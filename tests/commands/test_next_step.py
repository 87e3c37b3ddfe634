"""The command after a rehearsal, by what is here."""

from __future__ import annotations

import pytest
import yaml

from runner.check.validate import load
from runner.commands import next_step
from runner.plan import Prediction
from runner.run import this_machine
from tests.conftest import ROOT

KUBECONFIG = {"current-context": "ours", "users": [{"name": "me"}], "contexts": [], "clusters": []}


@pytest.fixture
def nothing_here(tmp_path, monkeypatch):
    """A machine without a GPU and without a login, too slow for the recipe."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.setattr(next_step, "DEVICES", ())
    monkeypatch.setattr(next_step, "trains_in_a_day", lambda recipe: False)
    return tmp_path


def logs_in(folder) -> None:
    (folder / "kubeconfig").write_text(yaml.safe_dump(KUBECONFIG), "utf-8")


def recipe_called(name: str):
    return load(ROOT / f"recipes/{name}.yaml", look=False)[0]


def test_after_a_twin_comes_the_real_small_model(nothing_here):
    assert next_step.after_rehearsal(recipe_called("survival"), "x", None) == (
        "rehearse",
        "x",
        "--model",
        "small",
    )


@pytest.mark.parametrize("name", ["resnet", "seven-b", "sft-dpo"])
def test_a_recipe_that_the_small_model_cannot_replace_goes_on_without_it(nothing_here, name):
    assert next_step.after_rehearsal(recipe_called(name), "x", None) == ("plan", "x")


def test_without_the_package_the_small_model_is_not_proposed(nothing_here, monkeypatch):
    monkeypatch.setattr(next_step, "find_spec", lambda module: None)
    assert next_step.after_rehearsal(recipe_called("survival"), "x", None) == ("plan", "x")


def test_submit_is_proposed_only_with_a_login(nothing_here):
    survival, own_machines = recipe_called("survival"), recipe_called("gemma")
    assert next_step.after_rehearsal(survival, "x", "small") == ("chat", "x", "--page")
    assert next_step.training_verb(survival) == "run"
    (nothing_here / "kubeconfig").write_text("current-context: ''\n")
    assert next_step.training_verb(survival) == "run"
    (nothing_here / "kubeconfig").write_bytes(b"\xff: [")
    assert next_step.training_verb(survival) == "run"
    logs_in(nothing_here)
    assert next_step.after_rehearsal(survival, "x", "small") == ("submit", "x")
    assert next_step.training_verb(own_machines) == "render"


def test_a_gpu_here_is_used_first(nothing_here, monkeypatch):
    logs_in(nothing_here)
    monkeypatch.setattr(next_step, "DEVICES", ("/dev/null",))
    monkeypatch.setattr(this_machine, "gpus_here", lambda recipe: (["NVIDIA L40S"], "0"))
    assert next_step.after_rehearsal(recipe_called("survival"), "x", "small") == ("run", "x")


@pytest.mark.parametrize(
    ("hours", "too_large", "proposed"), [(5, False, True), (50, False, False), (5, True, False)]
)
def test_a_processor_is_proposed_for_at_most_a_day(
    tmp_path, monkeypatch, hours, too_large, proposed
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(this_machine, "gpus_here", lambda recipe: ([], ""))
    size = {"memory_least": 9, "usable": 8} if too_large else {}
    predicted = (Prediction("train", seconds=3600.0 * hours, **size),)
    monkeypatch.setattr(this_machine.forecasting(), "on_processor", lambda recipe, plan: predicted)
    assert next_step.trains_in_a_day(recipe_called("minimal/lora")) is proposed
