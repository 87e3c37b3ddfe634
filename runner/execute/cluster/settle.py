"""Settle: fetched results become a run folder like any other, which `recipe ask` and `recipe compare` read."""

from __future__ import annotations

from runner.execute.runs import RunFolder
from runner.files import read_json, write_json
from runner.plan import Plan, Stage
from runner.problem import Stop


def before(folder: RunFolder) -> None:
    """Raises Stop where the folder holds a run that this machine made itself."""
    if folder.state and folder.state.get("origin") != "cluster":
        raise Stop(f"`{folder.path}` holds a run of this machine.", "Name another folder with `--to`.")


def after(folder: RunFolder, plan: Plan, stage: Stage) -> None:
    """Marks the folder, and names the base model by what it is called away from the cluster."""
    summary = read_json(folder.path / "training_summary.json")
    folder.mark("finished" if summary else "running", fingerprint=plan.fingerprint, origin="cluster")
    demo = read_json(folder.path / "demo.json")
    if demo and stage.model and demo.get("base_model") == plan.place.model_dir:
        write_json(
            folder.path / "demo.json",
            demo | {"base_model": stage.model["base"], "revision": stage.model["revision"]},
        )
