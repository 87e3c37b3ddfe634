"""Rules that a schema cannot say: contradictions between lines, and lines that do not fit model, GPU or data.

A rule is a function from a Recipe to Problems; it looks at settings, not at scenarios, and stays silent where its
settings are not there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from runner import catalog
from runner.names import JOB_NAME, listed, nearest
from runner.problem import Problem
from runner.recipe import base_model, images, pipeline, placing, plain_text, songs, sources
from runner.recipe.recipe import BrokenSetting, Recipe, Settings

Rule = Callable[[Recipe], Iterator[Problem]]


def judge(recipe: Recipe) -> list[Problem]:
    """Every rule's Problems. A rule whose settings the schema has refused says nothing."""
    found: list[Problem] = []
    for rule in RULES:
        with suppress(BrokenSetting):
            found.extend(rule(recipe))
    return found


def _at(recipe: Recipe, setting: str, message: str, hint: str, severity: str = "error") -> Problem:
    path = tuple(int(part) if part.isdigit() else part for part in setting.split("."))
    return recipe.document.problem(path, message, hint, severity=severity)


def trained_layers(recipe: Recipe) -> Iterator[Problem]:
    if "last_layers" not in recipe.settings.get("train", {}) or not recipe.model_facts:
        return
    layers, asked = recipe.model_facts.num_hidden_layers, recipe.train.last_layers
    if asked > layers:
        yield _at(
            recipe,
            "train.last_layers",
            f"`last_layers` is {asked}, and `{recipe.model.base}` has {layers} layers.",
            f"Write at most {layers}.",
        )
    if asked == 0 and not recipe.train.lm_head:
        yield _at(
            recipe,
            "train.last_layers",
            "Nothing is trained: `last_layers` is 0 and `lm_head` is false.",
            "Raise `last_layers`, or set `lm_head: true`.",
        )


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
        alike = [known for known in catalog.gpu_names() if name.lower() in known.lower()]
        near = alike or filter(None, [nearest(name, catalog.gpu_names())])
        hint = f"Did you mean {meant}?" if (meant := listed(near, "or")) else f"Known: {listed(catalog.gpu_names())}."
        yield _at(
            recipe,
            "machines.gpu",
            f"The GPU `{name}` is not in the catalog, so nothing is checked against it.",
            hint,
            "note",
        )
    elif "model" in recipe.settings and not gpu.bf16:
        for setting, bad, instead in (
            ("precision", "bf16", "fp16"),
            ("attention", "flash_attention_2", "sdpa"),
        ):
            if recipe.model.get(setting) == bad:
                yield _at(
                    recipe,
                    f"model.{setting}",
                    f"{gpu.title} cannot do `{bad}`; it takes compute capability 8.0, and this GPU has {gpu.compute_capability}.",
                    f"Write `{setting}: {instead}`.",
                )


def effective_batch(recipe: Recipe) -> Iterator[Problem]:
    train = recipe.settings.get("train", {})
    stated = train.get("effective_batch_size")
    if stated is None:
        return
    gpus = sum(recipe.gpu_counts)
    computed = train.micro_batch_size * train.gradient_accumulation_steps * gpus
    if stated != computed:
        yield _at(
            recipe,
            "train.effective_batch_size",
            f"`effective_batch_size` says {stated}, and the other lines make {computed}: micro batch {train.micro_batch_size} × accumulation {train.gradient_accumulation_steps} × {gpus} GPUs.",
            f"Write {computed}, or change the others until they agree, or delete the line.",
        )


def sharding_needs_gpus(recipe: Recipe) -> Iterator[Problem]:
    gpus = sum(recipe.gpu_counts)
    if gpus == 1 and recipe.settings.get("distribution", "ddp") not in ("ddp", "auto"):
        yield _at(
            recipe,
            "distribution",
            f"`{recipe.distribution}` shares the work between GPUs, and this recipe has one.",
            "Write `distribution: ddp`, or raise `machines.nodes` or `machines.gpus_per_node`.",
        )


def storage(recipe: Recipe) -> Iterator[Problem]:
    if "openshift" not in recipe.settings:
        return
    site: Settings = recipe.openshift
    claims = site.get("claims") or ()
    for setting in ("name", "mount"):
        seen: dict[str, int] = {}
        for index, claim in enumerate(claims):
            if claim[setting] in seen:
                yield _at(
                    recipe,
                    f"openshift.claims.{index}.{setting}",
                    f"Two claims have the {setting} `{claim[setting]}`.",
                    "Give each its own.",
                )
            seen[claim[setting]] = index
    if not claims and not site.get("output_dir"):
        yield recipe.document.problem(
            ("openshift",),
            "`openshift` has no `claims`, so results would be lost with the pods.",
            "Name a claim under `claims`, with its mount.",
            key=True,
        )
    if claims and site.get("output_dir") and not recipe.on_claim(site.output_dir):
        yield _at(
            recipe,
            "openshift.output_dir",
            f"`output_dir` `{site.output_dir}` lies on none of the claims, so results would be lost with the pods.",
            f"Let it start with {listed((claim.mount for claim in claims), 'or')}.",
        )
    if not JOB_NAME.match(site.get("job_name") or recipe.name):
        yield _at(
            recipe,
            "name",
            f"`{recipe.name}` cannot name a job on the cluster.",
            "Use at most 53 lower-case letters, digits and `-`.",
        )


def advanced_keys(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl drops keys that it does not know without a word; here they are errors."""
    known = catalog.axolotl_settings()
    for home, extra in (recipe.settings.get("advanced") or {}).items():
        for key in extra or {}:
            if key in known:
                continue
            near = nearest(key, known)
            yield recipe.document.problem(
                ("advanced", home, key),
                f"Axolotl {catalog.AXOLOTL_VERSION} has no setting `{key}`.",
                f"Did you mean `{near}`?" if near else "Its settings are in Axolotl's own documentation.",
                key=True,
            )


# Each rule costs one line here.
RULES: tuple[Rule, ...] = (
    base_model.known,
    base_model.custom_code,
    base_model.lora_layers,
    base_model.adapter_scale,
    base_model.template_fits,
    base_model.precision_fits,
    trained_layers,
    sequence_length,
    known_gpu,
    effective_batch,
    sharding_needs_gpus,
    *sources.RULES,
    songs.one_kind,
    songs.tasks,
    storage,
    images.normalising,
    images.crop,
    images.kept_images,
    images.limits,
    placing.somewhere,
    placing.counts_agree,
    placing.equal_on_the_cluster,
    placing.deadline,
    plain_text.one_validation,
    plain_text.checkpoints_are_evaluated,
    plain_text.loss_fits_model,
    advanced_keys,
    *pipeline.RULES,
)
