"""What training leaves besides its model."""

from __future__ import annotations

from types import SimpleNamespace

from runner.tools.run_files import LOG_KEPT
from runner.trainer import results
from runner.trainer.results import keep_log_and_configs


def test_the_log_is_that_of_the_last_attempt_where_nobody_else_keeps_one(tmp_path, monkeypatch):
    run, checkpoints, recipe = (
        tmp_path / "run",
        tmp_path / "run" / "checkpoints",
        tmp_path / "config" / "recipe.json",
    )
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
    assert (taken["step_seconds"], taken["gpu_memory_gib"], taken["gpu_reserved_gib"]) == (
        1.0,
        3.5,
        4.0,
    )
    assert results._taken(settings, SimpleNamespace(steps=[]))["step_seconds"] is None


def test_the_history_has_the_peaks_that_axolotl_logs_before_it_resets_the_counters(
    tmp_path, monkeypatch
):
    """Seen on an H100: after Axolotl's log PyTorch gave 9.27 GiB, where 11.23 had been the most."""
    reads = {
        "is_available": True,
        "max_memory_allocated": 9 * 2**30,
        "max_memory_reserved": 10 * 2**30,
    }
    for name, value in (reads | {"mem_get_info": (70 * 2**30, 80 * 2**30)}).items():
        monkeypatch.setattr(results.torch.cuda, name, lambda value=value: value)
    history = results.History(SimpleNamespace(run_dir=tmp_path, effective_batch_size=4))
    state = SimpleNamespace(
        global_step=1, max_steps=2, epoch=0.5, num_input_tokens_seen=10, is_world_process_zero=True
    )  # fmt: skip
    taken = {"memory/max_allocated (GiB)": 11.23, "memory/device_reserved (GiB)": 11.57}
    history.on_log(
        None, state, None, logs={"eval_loss": 1.0} | taken | {"memory/max_allocated (GiB)": 12.5}
    )
    history.on_log(None, state, None, logs={"loss": 1.0} | taken)
    history.on_log(None, state, None, logs={"loss": 1.0} | taken)
    history.on_log(None, state, None, logs={"loss": 1.0})  # by a trainer that resets nothing
    assert [entry["gpu_memory_gib"] for entry in history.steps] == [12.5, 11.23, 9.0]
    assert [entry["gpu_reserved_gib"] for entry in history.steps] == [11.57, 11.57, 10.0]
    assert history.steps[0]["gpu_driver_gib"] == 10.0
