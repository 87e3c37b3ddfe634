"""Settle: fetched results become a run folder like any other, which `recipe ask` and `recipe compare` read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
    """Marks the run folder, and names the base model by what it is called away from the cluster."""
    home = folder.path / stage.folder
    made, wanted, done = _of_stage(home, stage) if stage.folder else _of_run(home, plan)
    # A claim keeps the results of the recipe as it was until those of the recipe as it is take their place.
    older = made is not None and made != wanted
    folder.mark(
        "finished" if done and not older else "running",
        fingerprint=made if older and not stage.folder else plan.fingerprint,
        origin="cluster",
    )
    if older:
        tell(OLDER)
    if stage.model and plan.place.model_dir:
        base, revision = stage.model["base"], stage.model["revision"]
        _rename(home / "demo.json", "base_model", plan.place.model_dir, base, revision)
        _rename(
            home / "lora_adapter/adapter_config.json", "base_model_name_or_path", plan.place.model_dir, base, revision
        )


def _rename(file: Path, setting: str, there: str, base: str, revision: str | None) -> None:
    """In a file that names a folder of the cluster: what was fetched into that folder. Where the file comes again, it is
    done again."""
    facts = read_json(file)
    if isinstance(facts, dict) and facts.get(setting) == there:
        write_json(file, facts | {setting: base, "revision": revision})


def _of_run(home: Path, plan: Plan) -> tuple[str | None, str, bool]:
    """The recipe that the results are of, None where there are none; the recipe as it is; whether they are all there."""
    summary = read_json(home / "training_summary.json")
    return None if summary is None else summary.get("fingerprint", ""), plan.fingerprint, summary is not None


def _of_stage(home: Path, stage: Stage) -> tuple[str | None, str, bool]:
    """The same of one stage of several, by its own key, because a change of another stage does not concern it."""
    record = read_json(home / STAGE_FILE)
    if record is None:
        return None, stage.keys[""], False
    return (record.get("keys") or {}).get("", ""), stage.keys[""], record.get("status") == "finished"
