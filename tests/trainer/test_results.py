"""What training leaves besides its model."""

from __future__ import annotations

from types import SimpleNamespace

from runner.tools.run_files import LOG_KEPT
from runner.trainer import results
from runner.trainer.results import keep_log_and_configs


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


def test_a_summary_has_the_pace_without_the_first_entry_and_the_most_memory():
    settings = SimpleNamespace(effective_batch_size=64)
    entries = [
        {"samples_per_second": 1.0, "gpu_memory_gib": 2.0, "gpu_reserved_gib": 2.5},
        {"samples_per_second": 32.0, "gpu_memory_gib": 3.0, "gpu_reserved_gib": 4.0},
        {"samples_per_second": 64.0, "gpu_memory_gib": 3.5},  # as an older version has written it
        {"samples_per_second": 64.0, "gpu_memory_gib": None, "gpu_reserved_gib": None},
    ]
    taken = results._taken(settings, SimpleNamespace(steps=entries))
    assert (taken["step_seconds"], taken["gpu_memory_gib"], taken["gpu_reserved_gib"]) == (1.0, 3.5, 4.0)
    assert results._taken(settings, SimpleNamespace(steps=[]))["step_seconds"] is None
