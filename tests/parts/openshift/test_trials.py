"""`recipe search --submit`: each trial becomes a recipe and a job of its own."""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager, suppress

import yaml

from runner.check.validate import load
from runner.parts.openshift.errors import Refused
from tests.conftest import ROOT
from tests.parts.openshift.conftest import in_process, job_status


@contextmanager
def jobs_end(site):
    """Jobs without a GPU, for which `recipe submit` waits, end well."""
    over = threading.Event()

    def play() -> None:
        while not over.wait(0.2):
            for job in site.cluster.list("Job", site.namespace):
                if not job.get("status", {}).get("conditions"):
                    with suppress(Refused):
                        site.set_status("Job", job["metadata"]["name"], job_status())

    player = threading.Thread(target=play, daemon=True)
    player.start()
    try:
        yield
    finally:
        over.set()
        player.join()


@in_process
def test_each_trial_is_sent_as_a_recipe_of_its_own(site, tmp_path, capsys):
    shutil.copytree(ROOT / "recipes/data", tmp_path / "recipes/data")
    recipe = tmp_path / "recipes/own.yaml"
    search = "search: {over: {train.learning_rate: [1.0e-5, 3.0e-5]}}"
    survival = (ROOT / "recipes/survival.yaml").read_text("utf-8")
    recipe.write_text(f"{survival}\n{search}\n", encoding="utf-8")
    with jobs_end(site):
        assert site.recipe("search", "--submit", path=recipe) == 0, capsys.readouterr()
    trials = [load(recipe.with_name(f"own-{number}.yaml"))[0] for number in (1, 2)]
    assert [one.train.learning_rate for one in trials] == [1e-5, 3e-5]
    names = [one.settings["openshift"].get("job_name") or one.name for one in trials]
    assert len({*names, "survival"}) == 3
    for name in names:
        assert site.job(name=name), name
    capsys.readouterr()
    assert site.recipe("search", "--submit", path=recipe) == 0, "sending twice changes nothing"
    assert yaml.safe_load(recipe.read_text())["search"], "the recipe itself is as it was"
