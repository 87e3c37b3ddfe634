"""Tokenised rows: Axolotl 0.19.0 finds them again by the paths of the data, not by its content, and would train on rows of
data that has changed since."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.files import read_json, write_json


def forget_older(config: Mapping[str, Any]) -> None:
    """Deletes what was tokenised from other files than those that lie at the paths of an Axolotl config now."""
    folder = Path(config["dataset_prepared_path"])
    files = [Path(data["path"]) for kind in ("datasets", "test_datasets") for data in config.get(kind) or ()]
    now = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.is_file()]
    made_from = folder.with_name(f"{folder.name}-from.json")
    if read_json(made_from) != now:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(made_from, now)
