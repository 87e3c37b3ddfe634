"""Tracking: a run at MLflow or Weights & Biases, with the same names in both. Without PyTorch,
because the command that started training sends the results at the end."""

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.data.report import REPORT_FILE
from runner.parts.contract import StageHooks
from runner.plan import tracker
from runner.run import pipeline
from runner.run.run_folder import StageFolder
from runner.tools.files import Record, read_record
from runner.tools.problem import Tell, shortened
from runner.tools.run_files import ANSWERS, EVALUATION, PAGE, PLANNED, PROMOTION, SUMMARY, TRACKED

RUNNING, FINISHED, FAILED = "RUNNING", "FINISHED", "FAILED"  # MLflow's words
SECONDS = 10  # the most that training waits for a server
UPLOAD_SECONDS = 600  # for one file of an exported model
# MLflow would wait for minutes, and send statistics to its makers.
MLFLOW = {
    **{"MLFLOW_HTTP_REQUEST_TIMEOUT": f"{SECONDS}", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"},
    **{"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"},
}
MOST = 100  # parameters in a request to MLflow


@dataclass(frozen=True)
class Tracked(Record):
    """A stage's run at a tracking server."""

    FILE = TRACKED
    tool: str = ""  # `mlflow` or `wandb`
    server: str = ""  # MLflow's
    workspace: str = ""  # MLflow's
    project: str = ""
    run: str = ""  # its id there; empty if it is not there
    fault: str = ""  # why something is missing there, in words


class MLflow:
    """MLflow's client. As in Wandb, a method raises the client's own errors."""

    title = "MLflow"

    def open(
        self, tracked: Tracked, name: str, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> Tracked:
        """Creates a run, or continues that on record."""
        # A model may be exported where these are not set.
        variables = dict(MLFLOW)
        if tracked.server:
            variables["MLFLOW_TRACKING_URI"] = tracked.server
        if tracked.workspace:
            variables["MLFLOW_WORKSPACE"] = tracked.workspace
        os.environ.update(variables | os.environ)
        import mlflow
        from mlflow.entities import Metric, Param

        self.metric = Metric
        self.client = mlflow.MlflowClient()
        self.run = tracked.run
        if tracked.run:
            self.client.update_run(tracked.run, status=RUNNING)
            return tracked
        project = os.environ.get("MLFLOW_EXPERIMENT_NAME") or tracked.project
        experiment = mlflow.set_experiment(project).experiment_id
        self.run = self.client.create_run(experiment, run_name=name, tags=tags).info.run_id
        sent = [Param(allowed(setting), value) for setting, value in parameters.items()]
        for start in range(0, len(sent), MOST):
            self.client.log_batch(self.run, params=sent[start : start + MOST])
        where = {
            "server": mlflow.get_tracking_uri(),
            "workspace": os.environ.get("MLFLOW_WORKSPACE", ""),
        }
        return replace(tracked, **where, project=project, run=self.run)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        sent = [self.metric(allowed(name), value, now, step) for name, value in metrics.items()]
        self.client.log_batch(self.run, sent)

    def leave(self, tags: Mapping[str, str], files: Iterable[Path], status: str) -> None:
        """Adds what is known at the end, and ends the run."""
        for name, value in tags.items():
            self.client.set_tag(self.run, name, value)
        for file in files:
            self.client.log_artifact(self.run, str(file))
        self.client.set_terminated(self.run, status)

    def keep(self, folder: Path, name: str) -> str:
        """Uploads the folder of an exported model; returns its place there."""
        os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = f"{UPLOAD_SECONDS}"
        place = f"export/{name}"
        self.client.log_artifacts(self.run, str(folder), place)
        self.client.set_terminated(self.run, FINISHED)
        return place


def allowed(name: str) -> str:
    """A name without the characters that MLflow refuses."""
    return re.sub(r"[^\w\-. :/]", "_", name)


class Wandb:
    title = "Weights & Biases"

    def open(
        self, tracked: Tracked, name: str, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> Tracked:
        import wandb

        project = (
            (tracked.run and tracked.project) or os.environ.get("WANDB_PROJECT") or tracked.project
        )
        resumed: dict[str, Any]
        if tracked.run:
            resumed = {"id": tracked.run, "resume": "allow"}
        else:
            resumed = {"config": {**parameters, **tags}}
        patience = wandb.Settings(init_timeout=SECONDS)
        self.run = wandb.init(project=project, name=name or None, settings=patience, **resumed)
        self.run.define_metric("*", step_metric="step")
        return replace(tracked, project=project, run=self.run.id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({**metrics, "step": step})

    def leave(self, tags: Mapping[str, str], files: Iterable[Path], status: str) -> None:
        self.run.config.update(dict(tags), allow_val_change=True)
        for file in files:
            self.run.save(str(file), base_path=str(file.parent), policy="now")
        self.run.finish(exit_code=int(status == FAILED))

    def keep(self, folder: Path, name: str) -> str:
        import wandb

        place = f"{self.run.id}-{name}"
        kept = wandb.Artifact(place, type="model")
        kept.add_dir(str(folder))
        self.run.log_artifact(kept)
        self.run.finish()
        return place


Tool = MLflow | Wandb
TOOLS: Mapping[str, type[Tool]] = {
    "mlflow": MLflow,
    "wandb": Wandb,
}  # keys: as `runner.plan.tracker` returns them


def away(tracked: Tracked, error: Exception, folder: Path) -> str:
    """Why a server lacks something, and where it is instead."""
    # Of a chain of errors, the last one names the cause.
    _, chained, reason = str(error).rpartition("Caused by ")
    if chained:
        reason = reason.rpartition(": ")[2].strip("\"')")
    else:
        reason = shortened(reason, 300).rstrip(".")
    return " ".join(
        (
            f"Some of this run could not be sent to {TOOLS[tracked.tool].title}: {reason}.",
            f"Training does not depend on it; all results are in `{folder}`.",
        )
    )


def send(folder: StageFolder, tell: Tell) -> None:
    """Sends what a stage has left to the server that got its curves, if any. It never makes a run
    fail."""

    def leave(tool: Tool) -> None:
        measured = read_record(folder.path / EVALUATION).get("metrics")
        if measured:
            if folder.summary:
                steps = folder.summary.steps
            else:
                steps = 0
            tool.log(steps, {f"evaluation.{name}": value for name, value in measured.items()})
        # The hashes that lead from a model to its run, named as in an exported model.
        data = Path(folder.plan.place.data_dir)
        run = folder.run
        prepared = {file: read_record(file).get("key") for file in sorted(data.rglob(REPORT_FILE))}
        tags: dict[str, Any] = {}
        for file, key in prepared.items():
            tags[".".join((*file.parent.relative_to(data).parts, "data_hash"))] = key
        planned = read_record(
            run.path / PLANNED
        )  # missing in pods, which change nothing of the recipe
        tags |= {
            "run": run.state.id,
            "stage": folder.stage.name,
            "weights_hash": folder.model_hash(),
        }
        tags |= {"recipe_fingerprint": planned.get("fingerprint")}
        recipe = Path(folder.stage.config["recipe_runner"]["recipe_file"])
        page = run.path / PAGE
        files = [
            recipe,
            page,
            *(folder.path / name for name in (SUMMARY, ANSWERS, EVALUATION, PROMOTION)),
        ]
        done = folder.state.status in ("finished", pipeline.OUT_OF_TIME)
        known_tags = {name: text for name, text in tags.items() if text}
        tool.leave(
            known_tags, [file for file in files if file.is_file()], FINISHED if done else FAILED
        )

    _at_server(folder, tell, leave)


class TrackingHooks(StageHooks):
    """Sends the results of every stage."""

    def send_results(self, folder: StageFolder, tell: Tell) -> None:
        send(folder, tell)


def send_export(folder: StageFolder, export_folder: Path, form: str, tell: Tell) -> None:
    """Sends an exported model there too. It never makes an export fail."""

    def keep(tool: Tool) -> None:
        tell(
            f"The export was also uploaded to {tool.title}, as `{tool.keep(export_folder, form)}`."
        )

    _at_server(folder, tell, keep)


def _at_server(folder: StageFolder, tell: Tell, work: Callable[[Tool], None]) -> None:
    tracked = Tracked.read(folder.path)
    if not tracked or tracked.tool != tracker(folder.stage.config):
        return
    server = folder.stage.config.get("mlflow_tracking_uri")
    if server:
        os.environ["MLFLOW_TRACKING_URI"] = server  # as Axolotl does
    try:
        if tracked.run:
            tool = TOOLS[tracked.tool]()
            tool.open(tracked, "", {}, {})
            work(tool)
    except Exception as error:  # of any kind: the results are here
        tracked = replace(tracked, fault=away(tracked, error, folder.path))
    if tracked.fault:
        tell(tracked.fault)
