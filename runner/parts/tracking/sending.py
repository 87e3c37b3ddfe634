"""The results of a stage, and its exported model, sent to the server that got its curves."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from runner.data.report import REPORT_FILE
from runner.parts.tracking import servers
from runner.parts.tracking.servers import Tool, Tracked
from runner.plan import tracker
from runner.run import pipeline
from runner.run.pipeline import Tell
from runner.run.stage_folder import StageFolder
from runner.tools.files import read_record
from runner.tools.problem import worded
from runner.tools.run_files import ANSWERS, EVALUATION, PAGE, PLANNED, PROMOTION, SUMMARY


def send(folder: StageFolder, tell: Tell) -> None:
    """Sends what a stage has left to the server that got its curves, if any. It never makes a run fail."""

    def leave(tool: Tool) -> None:
        if measured := read_record(folder.path / EVALUATION).get("metrics"):
            steps = folder.summary.steps if folder.summary else 0
            tool.log(steps, {f"evaluation.{name}": value for name, value in measured.items()})
        done = folder.state.status in ("finished", pipeline.OUT_OF_TIME)
        tool.leave(*_origin(folder), servers.FINISHED if done else servers.FAILED)

    _at_server(folder, tell, leave)


def send_export(folder: StageFolder, made: Path, form: str, tell: Tell) -> None:
    """Sends an exported model there too. It never makes an export fail."""

    def keep(tool: Tool) -> None:
        tell(worded("tracking.sent", title=tool.title, place=tool.keep(made, form))[0])

    _at_server(folder, tell, keep)


def _at_server(folder: StageFolder, tell: Tell, work: Callable[[Tool], None]) -> None:
    known = Tracked.read(folder.path)
    if not known or known.tool != tracker(folder.stage.config):
        return
    if server := folder.stage.config.get("mlflow_tracking_uri"):
        os.environ["MLFLOW_TRACKING_URI"] = server  # as Axolotl does
    try:
        if known.run:
            tool = servers.TOOLS[known.tool]()
            tool.open(known, "", {}, {})
            work(tool)
    except Exception as error:  # of any kind: the results are here
        known = replace(known, fault=servers.away(known, error, folder.path))
    if known.fault:
        tell(known.fault)


def _origin(folder: StageFolder) -> tuple[dict[str, str], list[Path]]:
    """The hashes that lead from a model to its run, named as in an exported model; and the files beside the curves."""
    data, run = Path(folder.plan.place.data_dir), folder.run
    prepared = {file: read_record(file).get("key") for file in sorted(data.rglob(REPORT_FILE))}
    tags = {".".join((*file.parent.relative_to(data).parts, "data_hash")): key for file, key in prepared.items()}
    planned = read_record(run.path / PLANNED)  # missing in pods, which change nothing of the recipe
    tags |= {"run": run.state.id, "stage": folder.stage.name, "weights_hash": folder.model_hash()}
    tags |= {"recipe_fingerprint": planned.get("fingerprint")}
    recipe, page = Path(folder.stage.config["recipe_runner"]["recipe_file"]), run.path / PAGE
    files = [recipe, page, *(folder.path / name for name in (SUMMARY, ANSWERS, EVALUATION, PROMOTION))]
    return {name: text for name, text in tags.items() if text}, [file for file in files if file.is_file()]
