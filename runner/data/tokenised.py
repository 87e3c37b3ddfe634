"""Tokenised rows: Axolotl 0.19.0 finds them again by the paths of the data, not by its content, and would train on rows of
data that has changed since."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.tools.files import read_json, write_json

# By this setting of its environment Axolotl takes so many processes for tokenising.
PROCESSES = "AXOLOTL_DATASET_NUM_PROC"
# Axolotl's tokenising processes each import it anew, which takes as long as some thousand rows.
ROWS_A_PROCESS = 5_000


def processes(config: Mapping[str, Any], most: int) -> int:
    """How many processes are worth their start for tokenising the rows of an Axolotl config, at most so many; 0 is none beside
    Axolotl's own."""
    import pyarrow.parquet as parquet

    rows: int = sum(parquet.read_metadata(file).num_rows for file in _files(config) if file.suffix == ".parquet")
    return min(rows // ROWS_A_PROCESS, most)


def _files(config: Mapping[str, Any]) -> list[Path]:
    paths = [Path(data["path"]) for kind in ("datasets", "test_datasets") for data in config.get(kind) or ()]
    return [path for path in paths if path.is_file()]


def forget_older(config: Mapping[str, Any]) -> None:
    """Deletes what was tokenised from other files than those that lie at the paths of an Axolotl config now."""
    folder = Path(config["dataset_prepared_path"])
    now = [[str(file), file.stat().st_size, file.stat().st_mtime_ns] for file in _files(config)]
    made_from = folder.with_name(f"{folder.name}-from.json")
    if read_json(made_from) != now:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(made_from, now)
