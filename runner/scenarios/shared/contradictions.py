"""Contradictions between settings: rules from tables beside modules, in terms of settings, derived
values and facts."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from runner import catalog
from runner.recipe import reading
from runner.recipe.document import Path_, applies, named, value_at
from runner.recipe.recipe import Recipe
from runner.scenarios.shared.common import (
    by_fsdp,
    by_zero,
    by_zero_alone,
    effective_batch_size,
    learning_rate,
    replicas,
    shared_by,
    validates,
    world_size,
)
from runner.tools import packaged
from runner.tools.problem import Problem
from runner.tools.settings import BrokenSetting


def contradictions(
    file: str, **further_names: Callable[[Recipe], object]
) -> Callable[[Recipe], Iterator[Problem]]:
    """The rule of the `contradictions.toml` beside a module (the one in `runner/check/` explains
    the entries). file: the module's `__file__`; further_names: what its rows can name further to
    DERIVED."""
    table = packaged.toml(file, "contradictions.toml")["rows"]
    rows = [(row, _terms(row)) for row in table]
    derived = {**DERIVED, **further_names}

    def rule(recipe: Recipe) -> Iterator[Problem]:
        facts_by_name = Known(recipe=recipe, derived=derived)
        # What gets no further problem: it had one, or a setting that the schema refused, in this
        # row or those that an `else` continues.
        passed = list[str]()
        for row, terms in rows:
            if "else" not in row:
                passed = []
            for home, (when, unless) in terms.items():
                if home in passed:
                    continue
                try:
                    if not applies(facts_by_name, when, unless):
                        continue
                    passed.append(home)
                    problem = _problem(recipe, row, facts_by_name, home, named(when[0]))
                except (
                    BrokenSetting
                ):  # nothing to judge, also for the rows that follow; `suppress` takes longer
                    passed.append(home)
                    continue
                yield problem
                if "each" in row:
                    break

    return rule


def _terms(row: Mapping[str, Any]) -> dict[str, tuple[list[str], list[str]]]:
    """The terms of a row, `when` and `unless`, by what each `*` means."""
    terms = {}
    for home in row.get("each", ("",)):
        when = [term.replace("*", home or "*") for term in row["when"]]
        unless = [term.replace("*", home or "*") for term in row.get("unless", ())]
        terms[home] = (when, unless)
    return terms


class Known(dict[str, Any]):
    """What a table of contradictions can name: the sections of its `recipe`, and what is `derived`
    when first read."""

    def __missing__(self, name: str) -> Any:
        derived = self["derived"]
        recipe = self["recipe"]
        value = self[name] = derived[name](recipe) if name in derived else recipe.settings[name]
        return value


def _problem(
    recipe: Recipe, row: Mapping[str, Any], facts_by_name: Known, home: str, setting_path: Path_
) -> Problem:
    """The problem of a row that applies. home: what `*` means in it."""
    facts_by_name["value"] = value_at(facts_by_name, setting_path)
    texts = (str(row.get(key, "")).replace("[*]", f"[{home}]") for key in ("says", "do", "mending"))
    says, do, mending = (text.format_map(facts_by_name) for text in texts)
    if row.get("note"):
        problem_at = recipe.note
    else:
        problem_at = recipe.problem
    return problem_at(
        setting_path,
        says,
        do,
        mending=reading.scalar(mending),
        key=row.get("key", False),
        check=check_name_of_row(row, home),
    )


def check_name_of_row(row: Mapping[str, Any], home: str) -> str:
    """The name of a row: the first two settings that it compares, without their sections,
    `attention-and-precision`."""
    names = list[str]()
    for term in (*row["when"], *row.get("unless", ())):
        words = [str(word) for word in named(term) if word != "*"]
        name = words[-1].replace("*", home).replace("_", "-")
        if name not in names:
            names.append(name)
    return "-and-".join(names[:2])


def _facts(recipe: Recipe) -> Mapping[str, Any]:
    """The facts about the base model, and what follows from them; of an unknown one, the usual
    attention."""
    facts = recipe.model_facts
    if facts is None:
        return {"attention": "sdpa"}
    return vars(facts) | {
        "attention": facts.family.get("attention", "sdpa"),
        "family": facts.family,
        "has_experts": facts.has_experts,
        "known_type": facts.model_type in catalog.model_types(),
        "fused_loss": facts.sees or facts.model_type in catalog.fused_loss_models(),
    }


def _gpu(recipe: Recipe) -> Mapping[str, Any]:
    """The facts about the GPU; empty if it is unknown."""
    gpu = catalog.gpu(recipe.machines.gpu)
    if gpu is None:
        return {}
    return vars(gpu) | {
        "older": not gpu.bf16,
        "fp8": gpu.fp8,
        "capability": gpu.capability,
        "precision": gpu.precision(fp16=False),
    }


def _lacks_attention(recipe: Recipe) -> bool:
    """Whether the family of the base model has another attention alone."""
    only = recipe.model_facts and recipe.model_facts.family.get("attention")
    return bool(only) and only != recipe.model.attention


def _optimizer(recipe: Recipe) -> Mapping[str, Any]:
    """The facts about the optimizer; empty if it is unknown."""
    facts = catalog.optimizers().get(recipe.train.optimizer)
    if facts:
        return vars(facts)
    return {}


def _other_batch(recipe: Recipe) -> int | None:
    """The batch that follows from the other lines, if the recipe states another one."""
    rows = effective_batch_size(recipe)
    if rows == recipe.train.effective_batch_size:
        return None
    return rows


def _fitting_steps(recipe: Recipe) -> int | None:
    """The longest interval of checkpoints up to the recipe's own that fits its evaluations; None if
    its own does. Pretraining keeps its last checkpoint, so any interval fits."""
    evaluation = recipe.train.get("eval_steps") or 0
    saving = recipe.train.get("save_steps") or 0
    steps = min(evaluation, saving)
    while steps and evaluation % steps:
        steps -= 1
    if steps != saving and not recipe.makes_model:
        return steps
    return None


# zero_alone: whether one GPU needs DeepSpeed; sharers: GPUs that work on one row; odd_groups: the
# GPUs that are then left over; odd_heads: the heads left over if GPUs share matrices.
DERIVED: Mapping[str, Callable[[Recipe], Any]] = {
    **{
        "facts": _facts,
        "gpus": world_size,
        "fsdp": by_fsdp,
        "zero": by_zero,
        "zero_alone": by_zero_alone,
    },
    **{
        "replicas": replicas,
        "learning_rate": learning_rate,
        "gpu": _gpu,
        "optimizer": _optimizer,
    },
    **{
        "validates": validates,
        "fitting_steps": _fitting_steps,
        "lacks_attention": _lacks_attention,
    },
    "groups": lambda recipe: (
        f"{replicas(recipe)}{'' if shared_by(recipe) == (1, 1) else ' groups of'}"
    ),
    "other_batch": _other_batch,
    "batch_tokens": lambda recipe: (
        (recipe.train.effective_batch_size or 0) * recipe.model.sequence_len
    ),
    "sharers": lambda recipe: math.prod(shared_by(recipe)),
    "odd_groups": lambda recipe: world_size(recipe) % math.prod(shared_by(recipe)),
    "odd_heads": lambda recipe: (
        recipe.model_facts and recipe.model_facts.num_key_value_heads % shared_by(recipe)[1]
    ),
    "mixes_rows": lambda recipe: (
        recipe.model_facts and recipe.model_facts.mixes_rows(recipe.model.attention)
    ),
}
