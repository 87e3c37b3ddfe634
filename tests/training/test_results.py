"""What training leaves besides its model."""

from __future__ import annotations

from runner.run_files import LOG_KEPT
from runner.training.results import keep_log_and_configs


def test_the_log_is_that_of_the_last_attempt_where_nobody_else_keeps_one(tmp_path, monkeypatch):
    run, checkpoints, recipe = tmp_path / "run", tmp_path / "run" / "checkpoints", tmp_path / "config" / "recipe.json"
    checkpoints.mkdir(parents=True)
    recipe.parent.mkdir()
    recipe.write_text("{}")
    monkeypatch.delenv(LOG_KEPT, raising=False)
    for attempt in ("first", "second"):
        (checkpoints / "debug.log").write_text(attempt)
        keep_log_and_configs(run, checkpoints, recipe)
        assert (run / "train.log").read_text() == attempt
    assert (run / "config" / "recipe.json").is_file()
    monkeypatch.setenv(LOG_KEPT, str(run / "train.log"))
    (checkpoints / "debug.log").write_text("third")
    keep_log_and_configs(run, checkpoints, recipe)
    assert (run / "train.log").read_text() == "second"
