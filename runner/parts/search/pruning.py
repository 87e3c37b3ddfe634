"""Pruning: the training process reports a trial's results to the study, and ends a trial in the
worse half."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from runner.parts.search.trials import ENDED, TrialRecord, study
from runner.trainer import stopping
from runner.trainer.results import History
from runner.trainer.settings import RunSettings
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState

if TYPE_CHECKING:
    from optuna import Trial


class Pruning(TrainerCallback):
    """Ends a training as early stopping does: the checkpoint of this evaluation is saved, and the
    best one is kept."""

    def __init__(self, record: TrialRecord, history: History) -> None:
        self.record = record
        self.history = history
        self.trial: Trial | None = None

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> Any:
        if stopping.any_of(state.is_world_process_zero and self._poor(state), args.device):
            control.should_training_stop = True
        return control

    def _poor(self, state: TrainerState) -> bool:
        """Reports the evaluations so far, and returns whether the trial is in the worse half."""
        import optuna

        if self.record.higher:
            measure = "reward"
        else:
            measure = "validation_loss"
        values = []
        for entry in self.history.epochs:
            if entry["step"] and entry.get(measure) is not None:
                values.append(entry[measure])
        if not values:
            return False
        if self.trial is None:
            all_trials = study(self.record.journal, self.record.study, self.record.higher)
            self.trial = optuna.trial.Trial(
                all_trials, all_trials.trials[self.record.trial]._trial_id
            )
        self.trial.report(values[-1], len(values))
        poor = (
            self.record.stop_poor
            and state.global_step < state.max_steps
            and self.trial.should_prune()
        )
        if poor:
            self.trial.set_user_attr(ENDED, state.global_step)
            print(
                f"This trial ends after step {state.global_step:,}, because others were better by then.",
                flush=True,
            )
        return bool(poor)


def callbacks(settings: RunSettings, history: History) -> list[TrainerCallback]:
    record = TrialRecord.read(Path(settings.run_dir))
    if record:
        return [Pruning(record, history)]
    return []
