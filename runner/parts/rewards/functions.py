"""Rewards in the training process. Axolotl names each as a function of this module, which creates
it from the rules in the config. They are tried before the first step: whether each sees a row's
prompt, answer and reference answer, and whether they distinguish right answers from wrong ones."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from runner.parts.rewards import scoring
from runner.tools.files import read_json, write_json
from runner.tools.problem import worded
from runner.tools.run_files import SAMPLES
from runner.trainer.records import evenly
from runner.trainer.results import History
from runner.trainer.settings import RunSettings
from runner.trainer.stopping import Watchdog

Texts = tuple[str, str, str]  # a question, its answer and the reference answer
# The answers that were scored last: their texts, with each reward's score.
last: dict[str, list[tuple[Texts, float]]] = defaultdict(list)
KEPT = 8  # samples of an evaluation
MOST_ALIKE = 20  # logged steps without anything to learn from


def settings() -> RunSettings:
    # Imported late: this module's callbacks are asked for where images are trained too, without
    # Axolotl.
    from axolotl.integrations.base import PluginManager

    from runner.trainer.plugin import run_settings

    return run_settings(PluginManager.get_instance().cfg)


@cache
def scores() -> dict[str, scoring.Score]:
    return scoring.scores(settings().rewards)


def __getattr__(name: str) -> Callable[..., list[float]]:
    if name.startswith("_"):
        raise AttributeError(name)

    def reward(prompts: Any, completions: Any, answer: Any, **other: Any) -> list[float]:
        asked = (
            next(turn["content"] for turn in reversed(prompt) if turn["role"] == "user")
            for prompt in prompts
        )
        said = (completion[-1]["content"] for completion in completions)
        seen: list[Texts] = list(zip(asked, said, answer, strict=True))
        try:
            given = [scores()[name](*each) for each in seen]
        except scoring.BadReward as error:
            Watchdog(settings()).stop(str(error))
        last[name] = list(zip(seen, given, strict=True))
        return given

    reward.__name__ = name
    return reward


class Samples(TrainerCallback):
    """Keeps answers of each evaluation, with their rewards, in `samples.json`; and ends a training
    whose first steps had nothing to compare."""

    def __init__(self, settings: RunSettings, history: History) -> None:
        self.settings = settings
        self.history = history
        self.rules = settings.rewards
        self.file = Path(settings.run_dir) / SAMPLES

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        steps = self.history.steps
        if len(steps) == MOST_ALIKE and all(entry.get("alike") == 1 for entry in steps):
            said = worded("rewards.all-alike", state=state, last=steps[-1]["reward"], file=SAMPLES)
            Watchdog(self.settings).stop(*said)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Adds the answers that were scored last, each with its scores and its reward."""
        if not state.is_world_process_zero:
            return
        step = state.global_step
        now = list[dict[str, Any]]()
        for index, ((question, answer, reference), _) in enumerate(
            last[next(iter(self.rules))][:KEPT]
        ):
            each = {name: last[name][index][1] for name in self.rules}
            said = {"step": step, "question": question, "answer": answer, "reference": reference}
            now.append({**said, "scores": each, "reward": scoring.total(self.rules, each)})
        if now:
            write_json(
                self.file, [row for row in read_json(self.file) or [] if row["step"] < step] + now
            )


def callbacks(settings: RunSettings, history: History) -> list[TrainerCallback]:
    if settings.rewards:
        return [Samples(settings, history)]
    return []


ROWS = 10


def tried(trainer: Any, settings: RunSettings) -> tuple[list[str], list[tuple[str, str]]]:
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
    said = []
    totals = set[float]()
    for name, answers in candidates.items():
        texts = [
            (row["full-question"], answer, row["answer"])
            for row, answer in zip(rows, answers, strict=True)
        ]
        each = [{one: score(*given) for one, score in scores().items()} for given in texts]
        rewards = [scoring.total(settings.rewards, scores) for scores in each]
        means = ", ".join(
            f"{one} {sum(scores[one] for scores in each) / len(each):.2f}"
            for one in settings.rewards
        )
        above = sum(reward > 0 for reward in rewards)
        said.append(f"{above} of {len(rows)} {name} have a reward above 0 (mean scores: {means})")
        totals |= {round(reward, 9) for reward in rewards}
    if len(totals) == 1:
        said.append(
            "all of them are equal: from such answers nothing would be learned, so compare them with `rewards`"
        )
    return said, faults


def _seen(
    trainer: Any, rows: Sequence[dict[str, Any]], names: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Lets the trainer score known answers as it scores the model's own, and compares what each
    reward saw."""
    words = trainer.processing_class
    written = [words(row["answer"], add_special_tokens=False)["input_ids"] for row in rows]
    right = [
        (row["full-question"], words.decode(ids, skip_special_tokens=True), row["answer"])
        for row, ids in zip(rows, written, strict=True)
    ]
    generate = trainer._generate_single_turn
    trainer._generate_single_turn = lambda *asked: (
        [[*ids, words.eos_token_id] for ids in written],
        None,
    )
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
        for (seen, _), wished in zip(last[name], right, strict=True):
            if seen != wished:
                yield "reward_sees_other", f"`{name}` saw {seen}, but the row has {wished}"
    last.clear()
