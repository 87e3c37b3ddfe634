"""The callback that sends the curves of a training to a tracking server."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from transformers import TrainerCallback

from runner.parts.tracking import servers
from runner.plan import EngineConfig, tracker
from runner.recipe.document import flat
from runner.tools.files import read_record
from runner.trainer.settings import RunSettings
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState

AGAIN = 600.0  # seconds until a server that was away is asked again


class Tracking(TrainerCallback):
    """Sends the curves to MLflow or Weights & Biases, under the Trainer's names. A server that is
    away or refuses ends nothing: what it lacks is sent later, or the record says why it is missing
    there."""

    def __init__(self, tool: str, settings: RunSettings) -> None:
        self.settings = settings
        self.folder = Path(settings.run_dir)
        tracked = servers.Tracked.read(self.folder)
        if tracked.tool == tool:
            self.known = tracked
        else:
            self.known = servers.Tracked(tool=tool)
        self.tool: servers.Tool | None = None
        self.unsent: list[tuple[int, Mapping[str, float]]] = []
        self.next_try = 0.0

    def on_train_begin(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._send(state)

    def on_log(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        numbers = {}
        for name, value in (logs or {}).items():
            if isinstance(value, int | float):
                numbers[name] = float(value)
        self.unsent.append((state.global_step, numbers))
        self._send(state)

    def on_train_end(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self.next_try = 0.0
        self._send(state)

    def _send(self, state: TrainerState) -> None:
        if not state.is_world_process_zero or time.monotonic() < self.next_try:
            return
        tracked = self.known
        try:
            if self.tool is None:
                recipe = self.settings.name
                folder = self.folder.name
                tool = servers.TOOLS[tracked.tool]()
                tags = {"recipe": recipe, "recipe_fingerprint": self.settings.fingerprint}
                started = replace(tracked, project=tracked.project or recipe)
                if folder.startswith(recipe):
                    name = folder
                else:
                    name = f"{recipe}/{folder}"
                self.known = tool.open(
                    started, name, flat(read_record(Path(self.settings.recipe_file))), tags
                )
                self.tool = tool
            while self.unsent:
                self.tool.log(*self.unsent[0])
                del self.unsent[0]
            self.known = replace(self.known, fault="")
        except Exception as error:  # of any kind: hours of training are worth more
            self.next_try = time.monotonic() + AGAIN
            self.known = replace(self.known, fault=servers.away(tracked, error, self.folder))
            if not tracked.fault:
                print(self.known.fault, flush=True)
        if self.known != tracked:
            self.known.write(self.folder)


def trackers(config: EngineConfig, settings: RunSettings) -> list[TrainerCallback]:
    """The callback of an engine's config, whose own it switches off: those of transformers 5.16.1
    and Axolotl end training if the server is away."""
    tool = tracker(config)
    if not tool:
        return []
    if "trainer" in config:
        config["trainer"]["report_to"] = "none"
    else:
        config[f"use_{tool}"] = False
    return [Tracking(tool, settings)]
