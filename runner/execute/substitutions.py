"""Substitutions: what a rehearsal puts in place of the real thing, each a Change that is printed and written down.

A substitution looks at settings, not at scenarios, and is not made where its setting is not there.
"""

from __future__ import annotations

from collections.abc import Iterator

from runner.execute import twin
from runner.execute.data.report import Report
from runner.problem import Stop
from runner.recipe import changes as changing
from runner.recipe import placing
from runner.recipe.changes import Change
from runner.recipe.recipe import Recipe
from runner.scenarios import REHEARSALS

BY = "rehearsal"
MIN_STEPS = 30
MAX_PROCESSES = 2
MAX_RANK = 16
MIN_VALIDATION_SHARE = 0.1


def data(recipe: Recipe, file: str | None) -> list[Change]:
    """Rows from `--data`, else from the recipe's sample, else from the recipe's own file."""
    if file:
        return changing.from_data_option(file)
    if sample := recipe.data.get("sample"):
        why = "the recipe's own sample, so nothing is downloaded"
        return [Change("data.hub", None, None, BY, why), Change("data.path", None, sample, BY, why)]
    if recipe.data.get("path"):
        return []
    raise Stop(
        recipe.document.problem(
            ("data",),
            "A rehearsal downloads nothing, and `data` names no local file.",
            "Name one: `recipe rehearse … --data FILE`, or `data.sample` in the recipe.",
            key=True,
        )
    )


def own(recipe: Recipe) -> list[Change]:
    """What the scenario puts in place of its own settings before its data is prepared."""
    wanted = REHEARSALS.get(recipe.scenario)
    return [*wanted(recipe, BY), Change("resume_from", None, None, BY, "a rehearsal begins anew")] if wanted else []


def split(recipe: Recipe) -> list[Change]:
    share = recipe.data.get("validation_share")
    if share is None or share >= MIN_VALIDATION_SHARE:
        return []
    return [Change("data.validation_share", None, MIN_VALIDATION_SHARE, BY, "of few rows, enough to judge by")]


def model(recipe: Recipe) -> list[Change]:
    wanted = [
        Change("model.revision", None, None, BY, "the twin is local"),
        Change("model.trust_remote_code", None, None, BY, "the twin brings no code"),
        Change("model.precision", None, "fp32", BY, "runs on any processor"),
        Change("model.attention", None, "sdpa", BY, "FlashAttention needs a GPU"),
        Change(
            "distribution",
            None,
            "ddp",
            BY,
            "DeepSpeed and FSDP need GPUs; DDP over gloo divides the rows the same way",
        ),
        Change(
            "demo.max_new_tokens",
            None,
            min(40, recipe.demo.max_new_tokens),
            BY,
            "a tiny model has little to say",
        ),
    ]
    return [change for change in wanted if _has(recipe, change.path)]


def _has(recipe: Recipe, path: tuple[str | int, ...]) -> bool:
    """Whether the recipe has a setting, be it written or left to its default."""
    section = recipe.settings
    for part in path[:-1]:
        section = section.get(part) or {}
    return section.get(path[-1]) is not None


def training(recipe: Recipe, report: Report) -> list[Change]:
    """Processes for machines, and batches small enough for at least 30 steps."""
    chosen = recipe.train
    # A process without a row would never make a step.
    processes = min(MAX_PROCESSES, sum(recipe.gpu_counts), report.train_rows)
    micro, accumulation, epochs = (
        min(chosen.micro_batch_size, 8),
        min(chosen.gradient_accumulation_steps, 2),
        chosen.epochs,
    )

    def steps() -> int:
        return int(report.train_rows // (micro * accumulation * processes) * epochs)

    while steps() < MIN_STEPS and micro > 2:
        micro //= 2
    while steps() < MIN_STEPS and accumulation > 1:
        accumulation -= 1
    while steps() < MIN_STEPS and micro > 1:
        micro //= 2
    while steps() < MIN_STEPS:
        epochs += 1
    few = f"at least {MIN_STEPS} steps from {report.train_rows} rows"
    on_cpu = f"{processes} process{'es' if processes > 1 else ''} on the CPU, talking over gloo"
    third = max(1, steps() // 3)
    # Settings that some scenarios have and others do not.
    others = [
        Change("train.eval_batch_size", None, micro, BY, few),
        Change("train.warmup_steps", None, max(1, steps() // 10), BY, "few steps"),
        Change("train.eval_steps", None, third, BY, "few steps"),
        Change("train.save_steps", None, third, BY, "few steps"),
    ]
    return [
        *placing.on_one_machine(recipe, processes, BY, on_cpu),
        Change("train.micro_batch_size", None, micro, BY, few),
        Change("train.gradient_accumulation_steps", None, accumulation, BY, few),
        Change("train.epochs", None, epochs, BY, few),
        Change("train.eval_batch_size", None, None, BY, "the micro batch size"),
        Change("train.effective_batch_size", None, None, BY, "computed from the lines above"),
        Change("train.learning_rate", None, 0.005, BY, "random weights need larger steps"),
        Change("train.optimizer", None, "adamw_torch", BY, "runs on any processor"),
        Change("train.logging_steps", None, 1, BY, "few steps"),
        Change("train.report_to", None, "tensorboard", BY, "needs no account"),
        *(change for change in others if change.path[-1] in chosen),
        placing.without_time_limit(BY),
    ]


def adapter(recipe: Recipe) -> list[Change]:
    """An adapter that is small beside the twin too, with the recipe's own ratio of alpha to rank."""
    rank = recipe.train.get("lora_rank")
    if rank is None:
        return []
    plain = Change("train.cross_entropy", None, "plain", BY, "the fused and chunked ones are compiled for a GPU")
    if rank <= MAX_RANK:
        return [plain]
    alpha = max(1, round(recipe.train.lora_alpha * MAX_RANK / rank))
    narrow = f"the twin is {twin.WIDTH} wide"
    return [
        plain,
        Change("train.lora_rank", None, MAX_RANK, BY, narrow),
        Change("train.lora_alpha", None, alpha, BY, "in the ratio of the recipe"),
    ]


def layers(recipe: Recipe) -> int:
    """Enough layers that some stay frozen."""
    return min(recipe.model_facts.num_hidden_layers, (recipe.train.get("last_layers") or 0) + 2)


def shown(original: Recipe, made: list[Change], report: Report) -> Iterator[str]:
    """The substitutions as a person reads them, the twin first."""
    facts = original.model_facts
    shape = twin.geometry(facts, layers(original), twin.VOCABULARY)
    yield (
        f"model.base: {original.model.base} → a tiny twin  ({shape['num_hidden_layers']} of {facts.num_hidden_layers} layers, "
        f"width {shape['hidden_size']} of {facts.hidden_size:,}, random weights, a tokenizer trained on these rows)"
    )
    if report.sampled_from is not None:
        yield f"rows: {report.sampled_from:,} → {report.train_rows + report.validation_rows}  (a seeded draw)"
    yield from map(str, made)
