"""Rewards in the training process. Axolotl names each as a function of this module, which creates
it from the rules in the config. They are tried before the first step: whether each sees a row's
prompt, answer and reference answer, and whether they distinguish right answers from wrong ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from runner.parts.rewards import scoring
from runner.tools.files import read_json, write_json
from runner.tools.run_files import SAMPLES
from runner.trainer.records import evenly
from runner.trainer.results import History
from runner.trainer.settings import RunSettings
from runner.trainer.stopping import Watchdog
from runner.trainer.trainer_types import TrainerArguments, TrainerControl, TrainerState

if TYPE_CHECKING:
    from transformers import Trainer

Texts = tuple[str, str, str]  # a question, its answer and the reference answer
# The answers that were scored last: their texts, with each reward's score.
last: dict[str, list[tuple[Texts, float]]] = defaultdict(list)
KEPT = 8  # samples of an evaluation
MOST_ALIKE = 20  # logged steps without anything to learn from


def settings() -> RunSettings:
    # Imported late: this module's callbacks are asked for where images are trained too, without
    # Axolotl.
    from axolotl.integrations.base import PluginManager

    from runner.trainer.plugin_settings import run_settings

    return run_settings(PluginManager.get_instance().cfg)


@cache
def scores() -> dict[str, scoring.Score]:
    return scoring.scores(settings().rewards)


def __getattr__(name: str) -> Callable[..., list[float]]:
    if name.startswith("_"):
        raise AttributeError(name)

    def reward(prompts: Any, completions: Any, answer: Any, **_columns: object) -> list[float]:
        questions = map(_last_question, prompts)
        answers = (completion[-1]["content"] for completion in completions)
        scored_texts: list[Texts] = list(zip(questions, answers, answer, strict=True))
        try:
            values = [scores()[name](*texts) for texts in scored_texts]
        except scoring.BadReward as error:
            Watchdog(settings()).stop(str(error))
        last[name] = list(zip(scored_texts, values, strict=True))
        return values

    reward.__name__ = name
    return reward


def _last_question(prompt: Any) -> Any:
    return next(turn["content"] for turn in reversed(prompt) if turn["role"] == "user")


class Samples(TrainerCallback):
    """Keeps answers of each evaluation, with their rewards, in `samples.json`; and ends a training
    whose first steps had nothing to compare."""

    def __init__(self, settings: RunSettings, history: History) -> None:
        self.settings = settings
        self.history = history
        self.rules = settings.rewards
        self.file = Path(settings.run_dir) / SAMPLES

    def on_log(
        self,
        args: TrainerArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        steps = self.history.steps
        if len(steps) == MOST_ALIKE and all(entry.get("alike") == 1 for entry in steps):
            last_text = steps[-1]["reward"]
            message = (
                f"In the first {state.global_step:,} steps all answers to a prompt had equal rewards ({last_text:g} on average at the end), so nothing was learned. See `{SAMPLES}`.",
                "Rewards must be within reach: take easier prompts, a better model, or a reward for a part of the way. `generations` and `temperature` make answers differ more.",
            )
            Watchdog(self.settings).stop(*message)

    def on_evaluate(
        self, args: TrainerArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Adds the answers that were scored last, each with its scores and its reward."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        samples: list[dict[str, Any]] = []
        scored_texts = last[next(iter(self.rules))][:KEPT]
        for index, ((question, answer, reference), _) in enumerate(scored_texts):
            sample_scores = {name: last[name][index][1] for name in self.rules}
            samples.append(
                {
                    "step": step,
                    "question": question,
                    "answer": answer,
                    "reference": reference,
                    "scores": sample_scores,
                    "reward": scoring.total(self.rules, sample_scores),
                }
            )
        if samples:
            earlier = [row for row in read_json(self.file) or [] if row["step"] < step]
            write_json(self.file, earlier + samples)


def callbacks(settings: RunSettings, history: History) -> list[TrainerCallback]:
    if settings.rewards:
        return [Samples(settings, history)]
    return []


ROWS = 10


def tried(trainer: Trainer, settings: RunSettings) -> tuple[list[str], list[tuple[str, str]]]:
    """What the rewards gave, in words; and faults, each with its kind and an example."""
    rows = [dict(row) for row in evenly(trainer.train_dataset, ROWS)]
    if not settings.rewards or not rows:
        return [], []
    faults = list(_seen(trainer, rows, list(settings.rewards)))
    place = next((rule["within"] for rule in settings.rewards.values() if rule.get("within")), None)
    right = [scoring.placed(row["answer"], place) for row in rows]
    candidates = {
        "reference answers": right,
        "reference answers of another row": [*right[1:], right[0]],
        "empty answers": [""] * len(rows),
    }
    lines: list[str] = []
    totals: set[float] = set()
    for title, answers in candidates.items():
        scores_of_rows = _score(rows, answers)
        rewards = [scoring.total(settings.rewards, row_scores) for row_scores in scores_of_rows]
        means = ", ".join(
            f"{name} {sum(row_scores[name] for row_scores in scores_of_rows) / len(rows):.2f}"
            for name in settings.rewards
        )
        positive = sum(reward > 0 for reward in rewards)
        lines.append(
            f"{positive} of {len(rows)} {title} have a reward above 0 (mean scores: {means})"
        )
        totals |= {round(reward, 9) for reward in rewards}
    if len(totals) == 1:
        lines.append(
            "all of them are equal: from such answers nothing would be learned, so compare them with `rewards`"
        )
    return lines, faults


def _score(rows: Sequence[dict[str, Any]], answers: Sequence[str]) -> list[dict[str, float]]:
    """Each row's scores, by reward, for one answer to its question."""
    scores_of_rows: list[dict[str, float]] = []
    for row, answer in zip(rows, answers, strict=True):
        texts = (row["full-question"], answer, row["answer"])
        scores_of_rows.append({name: score(*texts) for name, score in scores().items()})
    return scores_of_rows


def _seen(
    trainer: Trainer, rows: Sequence[dict[str, Any]], names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Lets the trainer score known answers as it scores the model's own, and compares what each
    reward saw."""
    tokenizer = trainer.processing_class
    written = [tokenizer(row["answer"], add_special_tokens=False)["input_ids"] for row in rows]
    right = [
        (row["full-question"], tokenizer.decode(ids, skip_special_tokens=True), row["answer"])
        for row, ids in zip(rows, written, strict=True)
    ]
    generate = trainer._generate_single_turn
    completed = [[*ids, tokenizer.eos_token_id] for ids in written]
    trainer._generate_single_turn = lambda *_: (completed, None)
    tokens = trainer.state.num_input_tokens_seen
    try:
        prompts = [row["prompt"] for row in rows]
        _, ids, _, completions, *_ = trainer._generate(prompts)
        trainer._calculate_rewards(rows, prompts, completions, ids)
    finally:
        trainer._generate_single_turn = generate
        trainer.state.num_input_tokens_seen = tokens
        for metrics in trainer._metrics.values():
            metrics.clear()
    for name in names:
        for (scored_texts, _), row_texts in zip(last[name], right, strict=True):
            if scored_texts != row_texts:
                fault = f"`{name}` saw {scored_texts}, but the row has {row_texts}"
                yield "reward_sees_other", fault
    last.clear()
