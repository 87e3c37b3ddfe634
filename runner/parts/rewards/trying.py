"""Rewards on trial, before the first step: whether each sees the prompt, the answer and the reference answer of a row, and
whether they tell right answers from wrong ones."""

from collections.abc import Iterator, Sequence
from typing import Any

from runner.parts.rewards import functions, scoring
from runner.trainer.records import evenly
from runner.trainer.settings import RunSettings

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
    said, totals = [], set[float]()
    for name, answers in candidates.items():
        texts = [(row["full-question"], answer, row["answer"]) for row, answer in zip(rows, answers, strict=True)]
        each = [{one: score(*given) for one, score in functions.scores().items()} for given in texts]
        rewards = [scoring.total(settings.rewards, scores) for scores in each]
        means = ", ".join(f"{one} {sum(scores[one] for scores in each) / len(each):.2f}" for one in settings.rewards)
        above = sum(reward > 0 for reward in rewards)
        said.append(f"{above} of {len(rows)} {name} have a reward above 0 (mean scores: {means})")
        totals |= {round(reward, 9) for reward in rewards}
    if len(totals) == 1:
        said.append("all of them are equal: from such answers nothing would be learned, so compare them with `rewards`")
    return said, faults


def _seen(trainer: Any, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Lets the trainer score answers that are known, as it scores the model's own, and compares what each reward saw."""
    words = trainer.processing_class
    written = [words(row["answer"], add_special_tokens=False)["input_ids"] for row in rows]
    right = [
        (row["full-question"], words.decode(ids, skip_special_tokens=True), row["answer"])
        for row, ids in zip(rows, written, strict=True)
    ]
    generate, trainer._generate_single_turn = (
        trainer._generate_single_turn,
        lambda *asked: (
            [[*ids, words.eos_token_id] for ids in written],
            None,
        ),
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
        for (seen, _), wished in zip(functions.last[name], right, strict=True):
            if seen != wished:
                yield "reward_sees_other", f"`{name}` saw {seen}, but the row has {wished}"
    functions.last.clear()
