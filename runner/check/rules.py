"""Rules that a schema cannot say: contradictions between lines, and lines that do not fit model, GPU or data.

A rule is a function from a Recipe to Problems. Those here look at settings, not at scenarios, and stay silent where their
settings are not there; what one scenario alone needs stands in its folder, in `rules.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runner import catalog, parts, scenarios
from runner.check import advanced, base_model, lints, sharding, sources
from runner.check.derived_settings import batch_sizes
from runner.recipe import units
from runner.recipe.recipe import BrokenSetting, Recipe, Settings
from runner.scenarios.contract import Rule
from runner.scenarios.shared.axolotl import FLASH
from runner.tools.names import listed
from runner.tools.problem import Problem

if TYPE_CHECKING:
    from runner.recipe.sections import Openshift

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


def sequence_length(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.model_facts or "sequence_len" not in recipe.model:
        return
    limit = recipe.model_facts.max_position_embeddings
    if recipe.model.sequence_len > limit:
        message = f"`{recipe.model.base}` reads at most {limit:,} tokens, and `sequence_len` is {recipe.model.sequence_len:,}."
        hint = f"Write at most {limit}."
        yield recipe.problem("model.sequence_len", message, hint)


def known_gpu(recipe: Recipe) -> Iterator[Problem]:
    name = recipe.machines.gpu
    gpu = catalog.gpu(name)
    if gpu is None:
        # People write `L40S` or `H100`, and the cluster's label says more.
        meant = listed(catalog.alike(name), "or")
        hint = f"Did you mean {meant}?" if meant else f"Known: {listed(catalog.gpu_names())}."
        if "openshift" in recipe.settings and not LABEL.match(name):
            message = f"No machine can have `{name}` as its GPU's label, and pods would wait for one for ever."
            yield recipe.problem("machines.gpu", message, hint)
            return
        message = f"The GPU `{name}` is not in the catalog, so nothing is checked against it."
        yield recipe.note("machines.gpu", message, hint)
    elif "model" in recipe.settings and not gpu.bf16:
        wanted = {f"{home}.precision": said for home, said in base_model.precisions(recipe).items()}
        wanted["model.attention"] = str(recipe.model.get("attention"))
        instead = {"bf16": base_model.advised_precision(recipe), FLASH: "sdpa"}
        for setting, said in wanted.items():
            if said in instead:
                message = f"{gpu.title} cannot do `{said}`; it takes compute capability 8.0, and this GPU has {gpu.compute_capability}."
                hint = f"Write `{setting.rpartition('.')[2]}: {instead[said]}`."
                yield recipe.problem(setting, message, hint)


def effective_batch(recipe: Recipe) -> Iterator[Problem]:
    stated, computed = batch_sizes(recipe) or (None, None)
    if stated != computed:
        train, gpus = recipe.train, sum(recipe.gpu_counts)
        message = f"`effective_batch_size` says {stated}, and the other lines make {computed}: micro batch {train.micro_batch_size} × accumulation {train.gradient_accumulation_steps} × {gpus} GPUs."
        hint = f"Write {computed}, or change the others until they agree, or delete the line."
        yield recipe.problem("train.effective_batch_size", message, hint)


def one_warmup(recipe: Recipe) -> Iterator[Problem]:
    for name in ("train", "pretrain"):
        section = recipe.settings.get(name) or {}
        if section.get("warmup_ratio") is not None and section.get("warmup_steps") is not None:
            message = (
                f"`{name}` has both `warmup_ratio` and `warmup_steps`, and only one can say how long the rate rises."
            )
            hint = "Delete one of the two lines."
            yield recipe.problem(f"{name}.warmup_steps", message, hint)


def counted_here(recipe: Recipe) -> Iterator[Problem]:
    """A recipe that names no place is for this machine, which is one."""
    named = any(section in recipe.settings for section in ("openshift", "nodes"))
    if not named and recipe.machines.nodes > 1:
        message = f"`nodes` is {recipe.machines.nodes}, and without a section that says where they are, training uses this machine alone."
        hint = "Write `nodes: 1`, or add the section `openshift` (a cluster) or `nodes` (plain machines)."
        yield recipe.note("machines.nodes", message, hint)


# No machine has less or more; whoever writes it meant another unit.
LEAST_MEMORY, MOST_MEMORY = 2**30, 64 * 2**40
LONGEST_SECONDS = 365 * 86400


def memory_sizes(recipe: Recipe) -> Iterator[Problem]:
    """Sizes that no machine and no pod has: a unit was mistaken, or a digit."""
    site: Openshift | None = recipe.settings.get("openshift")
    stated: dict[tuple[str, ...], str | None] = {("machines",): recipe.machines.memory}
    if site is not None:
        stated |= {("openshift", "requests"): site.requests.memory, ("openshift", "limits"): site.limits.memory}
    for section, memory in stated.items():
        if memory and not LEAST_MEMORY <= units.size(memory) <= MOST_MEMORY:
            message = f"A {'pod' if len(section) > 1 else 'machine'} with {memory} of main memory cannot be meant."
            hint = "Write between 1 GiB and 64 TiB, with its unit: `memory: 32 GB`."
            yield recipe.problem((*section, "memory"), message, hint)


def limits_can_be_meant(recipe: Recipe) -> Iterator[Problem]:
    """A limit of nothing would end training after its first step, and call it finished."""
    limits = recipe.settings.get("limits") or {}
    if (time := limits.get("time")) and not 1 <= units.seconds(time) <= LONGEST_SECONDS:
        hint = "Write between 1 s and 365 d, with its unit: `time: 5 min`."
        yield recipe.problem("limits.time", f"A time limit of {time[:40]} cannot be meant.", hint)
    if (memory := limits.get("gpu_memory")) and not 0 < units.size(memory) <= MOST_MEMORY:
        hint = "Write what a GPU has, or less, with its unit: `gpu_memory: 45 GB`."
        yield recipe.problem("limits.gpu_memory", f"A limit of {memory[:40]} of GPU memory cannot be meant.", hint)


def _packed_by(recipe: Recipe, way: str) -> Iterator[tuple[str, Settings, str]]:
    """The sections whose rows are packed in a way, each with its name and its precision: a stage's own, or that of all."""
    for name, section in recipe.sections.items():
        if section.get("packing") == way:
            yield name, section, str(section.get("precision") or recipe.model.precision)


def joined_rows(recipe: Recipe) -> Iterator[Problem]:
    for name, section, precision in _packed_by(recipe, "flatten"):
        if recipe.model.attention != FLASH:
            gpu = catalog.gpu(recipe.machines.gpu)
            has_flash = precision != "fp32" and (gpu is None or gpu.bf16)
            flash = f"`attention: {FLASH}` under `model`, or " if has_flash else ""
            message = f"Joined rows are kept apart by FlashAttention, and `attention` is {recipe.model.attention}."
            hint = f"Write {flash}`packing: none`."
            yield recipe.problem((name, "packing"), message, hint)
        elif section["micro_batch_size"] == 1:
            message = "A micro batch has one row here, so that there is nothing to join, and nothing to pad either."
            hint = "Raise `micro_batch_size`, or write `packing: pack` to fill each row with several."
            yield recipe.note((name, "packing"), message, hint)


def packed_rows(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl keeps packed rows apart with FlashAttention or, under sdpa, with torch's own; in fp32 and with eager, by a mask."""
    for name, _, precision in _packed_by(recipe, "pack"):
        gpu, eager = catalog.gpu(recipe.machines.gpu), recipe.model.attention == "eager"
        masked = eager or precision == "fp32"
        if gpu and not gpu.bf16 and precision == "fp16" and not masked:
            message = (
                f"Packed rows are kept apart by FlashAttention, which takes compute capability 8.0, and {gpu.title} has "
                f"{gpu.compute_capability}."
            )
            yield recipe.problem((name, "packing"), message, "Write `packing: none`.")
        elif masked:
            why = "`attention: eager`" if eager else "fp32"
            message = f"With {why} every packed row computes the attention of all its rows to each other and throws most of it away."
            hint = "Write `packing: none`, unless rows are far shorter than `sequence_len`."
            yield recipe.note((name, "packing"), message, hint)


def packed_batch(recipe: Recipe) -> Iterator[Problem]:
    """A stated effective batch counts rows, and how many rows packed ones hold, the data decide."""
    for name, section, _ in _packed_by(recipe, "pack"):
        stated = section.get("effective_batch_size")
        if stated is not None:
            length = recipe.model.sequence_len
            message = f"With `packing: pack` a step reads {stated} packed rows, {stated * length:,} tokens, and not {stated} rows."
            hint = (
                "`recipe plan` says how many rows that is about. Lower `micro_batch_size` or `gradient_accumulation_steps` for "
                "steps of as many rows as before."
            )
            yield recipe.note((name, "effective_batch_size"), message, hint)


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
    joined_rows,
    packed_rows,
    packed_batch,
    base_model.gated,
    sequence_length,
    known_gpu,
    effective_batch,
    one_warmup,
    *sharding.RULES,
    *sources.RULES,
    memory_sizes,
    limits_can_be_meant,
    counted_here,
    advanced.settings,
    *lints.RULES,
)
# Those that look at files of this machine.
FILE_RULES: tuple[Rule, ...] = (base_model.as_locked, *sources.FILE_RULES, *sharding.FILE_RULES)
