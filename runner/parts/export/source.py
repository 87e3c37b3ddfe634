"""Source: what of a run is exported, pushed or registered: the model that a stage has left, with all that is on record of it."""

from dataclasses import dataclass
from pathlib import Path

from runner.parts.export.weights import WEIGHTS, AdapterFolder, Base
from runner.parts.report import facts
from runner.parts.report.facts import RunFacts, StageFacts
from runner.run import inference
from runner.run.run_folder import RunFolder
from runner.run.run_manifest import plan_of
from runner.run.stage_folder import StageFolder
from runner.tools.files import read_record
from runner.tools.problem import Stop
from runner.tools.run_files import ADAPTER, BEST_IMAGES, DEMO, EXPORT, SUMMARY
from runner.trainer.generation import Chat, chats


@dataclass(frozen=True)
class TrainedModel:
    """A model in a run folder. folder: of the stage that has left it; run, stage: what is on record, as the page shows it.
    base: the model that the stage began with, None where it is not here or is none of a hub's; chat: how it is asked, and what."""

    folder: StageFolder
    run: RunFacts
    stage: StageFacts
    base: Base | None
    chat: Chat
    questions: tuple[str, ...]

    @property
    def model(self) -> Path:
        return self.folder.model

    @property
    def adapter(self) -> AdapterFolder | None:
        """The adapter that was trained; None where it was the model itself."""
        folder = self.folder.path / ADAPTER
        return AdapterFolder(folder) if (folder / WEIGHTS).is_file() else None

    @property
    def home(self) -> Path:
        """Where its exports lie unless somebody names another folder."""
        return self.folder.path / EXPORT

    @property
    def hub_base(self) -> str:
        """The base model's name on the hub; empty where it has none: a folder, a model from nothing, or the twin of a rehearsal."""
        named = self.run.planned.model
        on_hub = named.count("/") == 1 and not named.startswith((".", "/", "~"))
        return named if on_hub and not self.run.rehearsal else ""


def of(run: RunFolder, stage: str | None = None) -> TrainedModel:
    """The model of a stage of a run; of the last one that has left a model where none is named.

    Raises Stop where there is none, it is one that tells images apart, or it is not any more what training has left.
    """
    plan = plan_of(run)
    folder = StageFolder(plan, plan.stage(stage)) if stage else inference.newest(plan)
    if list(folder.path.glob(BEST_IMAGES)):
        raise Stop(
            f"`{plan.name}` trains a model that tells images apart, which servers of language models do not load.",
            f"It is in `{folder.path / BEST_IMAGES}`, as `torch.load` reads it; its shape is in `{SUMMARY}` beside it.",
        )
    if not folder.weights_files:
        raise Stop(f"The stage `{folder.stage.name}` has left no model.", "Leave out `--stage`.")
    if folder.state.outputs and (changed := folder.changed_outputs()):
        raise Stop(
            f"`{folder.path / changed[0]}` is not as training has left it.",
            "What is on record of this run would not be about it. Put the file back, or export the model by other means.",
        )
    known = facts.of(run)
    found = next((one for one in known.stages if one.name == folder.stage.name), None)
    if found is None:
        raise Stop(f"Nothing is on record of the stage `{folder.stage.name}`.", "`recipe fetch` brings it.")
    base = _base(folder, known)
    demo = read_record(folder.path / DEMO)
    if demo:
        _, chat = chats(folder.path, demo | {"base_model": base[0] if base else demo["base_model"]})
    else:
        chat = Chat(str(folder.model), None, str(folder.model), None, max_new_tokens=40, chat=False)
    return TrainedModel(folder, known, found, base, chat, tuple(demo.get("questions") or ()))


def _base(folder: StageFolder, run: RunFacts) -> Base | None:
    """As merging finds it: as the plan has it where the folder lies now, else by its name on the hub."""
    base = str(folder.stage.config.get("base_model") or "")
    if Path(base).is_dir():
        return base, None
    if base.startswith("/") and not run.rehearsal and run.planned.model:
        return run.planned.model, run.planned.revision or None
    return (base, folder.stage.config.get("revision_of_model")) if base and not base.startswith("/") else None
