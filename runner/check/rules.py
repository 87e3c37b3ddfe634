"""Rules that a schema cannot say: contradictions between lines, and lines that do not fit model, GPU or data.

A rule is a function from a Recipe to Problems. Those here look at settings, not at scenarios, and stay silent where their
settings are not there; what one scenario alone needs stands in its folder, in `rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner import catalog, parts, scenarios
from runner.check import advanced, base_model, lints, machines, on_the_hub, packing, sharding, sources, wording
from runner.check.derived_settings import batch_sizes
from runner.recipe.overrides import path_of
from runner.recipe.recipe import BrokenSetting, Recipe
from runner.scenarios.contract import Rule
from runner.scenarios.shared.axolotl import FLASH
from runner.tools.names import listed
from runner.tools.problem import Problem

# The values of Kubernetes' labels.
LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")


def judge(recipe: Recipe, look: bool = True) -> list[Problem]:
    """Every Problem that a rule finds, the shared ones and those of the recipe's scenario. A rule whose settings the schema
    has refused says nothing.

    look: whether the recipe's files are looked at, which need not be here for whoever asks after a job.
    """
    problems: list[Problem] = []
    modules = parts.modules("rules")
    shared = (*RULES, *(rule for module in modules for rule in module.RULES))
    files = (*FILE_RULES, *(rule for module in modules for rule in getattr(module, "FILE_RULES", ()))) if look else ()
    for rule in (*shared, *files, *scenarios.rules(recipe.scenario, look)):
        try:
            problems.extend(rule(recipe))
        except BrokenSetting:
            continue
    return problems


def _at(recipe: Recipe, setting: str, message: str, hint: str, severity: str = "error") -> Problem:
    return recipe.document.problem(path_of(setting), message, hint, severity=severity)


def sequence_length(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.model_facts or "sequence_len" not in recipe.model:
        return
    limit = recipe.model_facts.max_position_embeddings
    if recipe.model.sequence_len > limit:
        yield _at(
            recipe,
            "model.sequence_len",
            f"`{recipe.model.base}` reads at most {limit:,} tokens, and `sequence_len` is {recipe.model.sequence_len:,}.",
            f"Write at most {limit}.",
        )


def known_gpu(recipe: Recipe) -> Iterator[Problem]:
    name = recipe.machines.gpu
    gpu = catalog.gpu(name)
    if gpu is None:
        # People write `L40S` or `H100`, and the cluster's label says more.
        meant = listed(catalog.alike(name), "or")
        hint = f"Did you mean {meant}?" if meant else f"Known: {listed(catalog.gpu_names())}."
        if "openshift" in recipe.settings and not LABEL.match(name):
            message = f"No machine can have `{name}` as its GPU's label, and pods would wait for one for ever."
            yield _at(recipe, "machines.gpu", message, hint)
            return
        yield _at(
            recipe,
            "machines.gpu",
            f"The GPU `{name}` is not in the catalog, so nothing is checked against it.",
            hint,
            "note",
        )
    elif "model" in recipe.settings and not gpu.bf16:
        wanted = {f"{home}.precision": said for home, said in base_model.precisions(recipe).items()}
        wanted["model.attention"] = str(recipe.model.get("attention"))
        instead = {"bf16": base_model.advised_precision(recipe), FLASH: "sdpa"}
        for setting, said in wanted.items():
            if said in instead:
                yield _at(
                    recipe,
                    setting,
                    f"{gpu.title} cannot do `{said}`; it takes compute capability 8.0, and this GPU has {gpu.compute_capability}.",
                    f"Write `{setting.rpartition('.')[2]}: {instead[said]}`.",
                )


def effective_batch(recipe: Recipe) -> Iterator[Problem]:
    stated, computed = batch_sizes(recipe) or (None, None)
    if stated != computed:
        train, gpus = recipe.train, sum(recipe.gpu_counts)
        yield _at(
            recipe,
            "train.effective_batch_size",
            f"`effective_batch_size` says {stated}, and the other lines make {computed}: micro batch {train.micro_batch_size} × accumulation {train.gradient_accumulation_steps} × {gpus} GPUs.",
            f"Write {computed}, or change the others until they agree, or delete the line.",
        )


def one_warmup(recipe: Recipe) -> Iterator[Problem]:
    for name in ("train", "pretrain"):
        section = recipe.settings.get(name) or {}
        if section.get("warmup_ratio") is not None and section.get("warmup_steps") is not None:
            yield _at(
                recipe,
                f"{name}.warmup_steps",
                f"`{name}` has both `warmup_ratio` and `warmup_steps`, and only one can say how long the rate rises.",
                "Delete one of the two lines.",
            )


# Each rule that several scenarios share costs one line here.
RULES: tuple[Rule, ...] = (
    base_model.known,
    base_model.looked_at,
    base_model.custom_code,
    base_model.template_fits,
    base_model.own_template,
    base_model.precision_fits,
    base_model.loss_fits_model,
    base_model.attention_fits_precision,
    *packing.RULES,
    base_model.gated,
    sequence_length,
    known_gpu,
    effective_batch,
    one_warmup,
    *sharding.RULES,
    *sources.RULES,
    *machines.RULES,
    advanced.settings,
    *wording.RULES,
    *on_the_hub.RULES,
    *lints.RULES,
)
# Those that look at files of this machine.
FILE_RULES: tuple[Rule, ...] = (base_model.as_locked, *sources.FILE_RULES, *sharding.FILE_RULES)
