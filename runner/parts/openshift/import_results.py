"""Import of results: what was fetched becomes a run folder like any other, which `recipe ask` and `recipe compare` read."""

from collections.abc import Callable
from pathlib import Path

from runner.plan import Plan, Stage
from runner.run.run_folder import RunFolder, require_of
from runner.run.stage_folder import StageRecord
from runner.tools.files import read_record, write_json
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, DEMO

OLDER = (
    "What lies on the claim is of the recipe as it was before it changed; the recipe as it is now has no results there yet. "
    "`recipe status` says how far its job is; fetch again when that has finished."
)
ELSEWHERE = "Name another folder with `--to`."

# Files of a stage that name a model, and the setting that does.
NAMING = ((DEMO, "base_model"), (f"{ADAPTER}/adapter_config.json", "base_model_name_or_path"))


def require_imported(folder: RunFolder, plan: Plan) -> None:
    """Raises Stop where the folder holds a run that this machine made itself, or one of another recipe."""
    require_of(folder, plan.name, ELSEWHERE)
    if folder.state and folder.state.origin != "cluster":
        raise Stop(f"`{folder.path}` holds a run of this machine.", ELSEWHERE)


def record(folder: RunFolder, plan: Plan, stage: Stage, number: str, tell: Callable[[str], None]) -> bool:
    """Marks the run folder, and names what lies on the cluster alone by what it is called away from it; whether what came is of
    the recipe as it is now.

    number: the run's own on the claim, which its evaluations are about; empty where it has none, and no evaluation counts.
    """
    home = folder.path / stage.folder
    state = StageRecord.read(home)
    # A claim keeps the results of the recipe as it was until those of the recipe as it is take their place. A change of
    # another stage does not concern it.
    older = bool(state) and state.keys.get("") != stage.keys[""]
    status = "running" if older or not state else state.status
    folder.mark(status, recipe=plan.name, origin="cluster", **({"id": number} if number else {}))
    if older:
        tell(OLDER)
    for file, setting in NAMING:
        _rename(home / file, setting, folder, plan, stage)
    return not older


def _rename(file: Path, setting: str, folder: RunFolder, plan: Plan, stage: Stage) -> None:
    """In a file that names a folder of the cluster: what was fetched into that folder before training, or that folder of
    the run here. Where the file comes again, it is done again."""
    facts, place = read_record(file), plan.place
    there = facts.get(setting)
    if not isinstance(there, str):
        return
    if stage.model and there == place.model_dir:
        write_json(file, facts | {setting: stage.model["base"], "revision": stage.model["revision"]})
    elif there.startswith(f"{place.run_dir}/"):
        write_json(file, facts | {setting: str(folder.path / there.removeprefix(f"{place.run_dir}/"))})
