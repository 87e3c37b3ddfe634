"""Settle: fetched results become a run folder like any other, which `recipe ask` and `recipe compare` read."""

from __future__ import annotations

from collections.abc import Callable

from runner.execute.runs import RunFolder
from runner.execute.stages import STATE_FILE as STAGE_FILE
from runner.files import read_json, write_json
from runner.plan import Plan, Stage
from runner.problem import Stop

OLDER = (
    "What lies on the claim is of the recipe as it was before it changed; the recipe as it is now has no results there yet. "
    "`recipe status` says how far its job is; fetch again when that has finished."
)


def before(folder: RunFolder) -> None:
    """Raises Stop where the folder holds a run that this machine made itself."""
    if folder.state and folder.state.get("origin") != "cluster":
        raise Stop(f"`{folder.path}` holds a run of this machine.", "Name another folder with `--to`.")


def after(folder: RunFolder, plan: Plan, stage: Stage, tell: Callable[[str], None]) -> None:
    """Marks the folder, and names the base model by what it is called away from the cluster."""
    summary = read_json(folder.path / "training_summary.json")
    # A claim keeps the results of the recipe as it was until those of the recipe as it is take their place.
    older = summary is not None and not _of_this_recipe(folder, plan, stage, summary)
    folder.mark(
        "finished" if summary and not older else "running",
        fingerprint=summary.get("fingerprint") if older else plan.fingerprint,
        origin="cluster",
    )
    if older:
        tell(OLDER)
    demo = read_json(folder.path / "demo.json")
    if demo and stage.model and demo.get("base_model") == plan.place.model_dir:
        write_json(
            folder.path / "demo.json",
            demo | {"base_model": stage.model["base"], "revision": stage.model["revision"]},
        )


def _of_this_recipe(folder: RunFolder, plan: Plan, stage: Stage, summary: dict[str, str]) -> bool:
    """Of several stages each has a key of its own, because a change of another one does not concern it."""
    if not stage.folder:
        return summary.get("fingerprint") == plan.fingerprint
    record = read_json(folder.path / STAGE_FILE) or {}
    return (record.get("keys") or {}).get("") == stage.keys[""]
