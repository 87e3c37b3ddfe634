"""Rules that a schema cannot say: contradictions between lines, and lines that do not fit model, GPU or data.

A rule is a function from a Recipe to Problems; it looks at settings, not at scenarios, and stays silent where its
settings are not there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress

from runner import catalog
from runner.names import JOB_NAME, listed, nearest
from runner.problem import Problem
from runner.recipe import columns, images, placing, plain_text, templates
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


def known_model(recipe: Recipe) -> Iterator[Problem]:
    if "base" not in (recipe.settings.get("model") or {}) or recipe.model_facts:
        return
    base = recipe.model.base
    near = nearest(base, catalog.model_ids())
    yield _at(
        recipe,
        "model.base",
        f"The model `{base}` is not in the catalog, and no folder of that name holds a readable `config.json`.",
        (f"Did you mean `{near}`? " if near else "")
        + f"Known models: {listed(catalog.model_ids())}. Or name a folder that holds a model.",
    )


def trained_layers(recipe: Recipe) -> Iterator[Problem]:
    if "last_layers" not in recipe.train or not recipe.model_facts:
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
        near = nearest(name, catalog.gpu_names())
        hint = f"Did you mean `{near}`? " if near else ""
        yield _at(
            recipe,
            "machines.gpu",
            f"The GPU `{name}` is not in the catalog, so nothing is checked against it.",
            f"{hint}Known: {listed(catalog.gpu_names())}.",
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
    train = recipe.train
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
    if gpus == 1 and recipe.settings.get("distribution", "ddp") != "ddp":
        yield _at(
            recipe,
            "distribution",
            f"`{recipe.distribution}` shares the work between GPUs, and this recipe has one.",
            "Write `distribution: ddp`, or raise `machines.nodes` or `machines.gpus_per_node`.",
        )


def one_source(recipe: Recipe) -> Iterator[Problem]:
    data = recipe.data
    if data.get("hub") and data.get("path"):
        yield _at(
            recipe,
            "data.path",
            "`data` has both `path` and `hub`, and only one can be read.",
            "Delete one of the two lines.",
        )
    if not data.get("hub") and not data.get("path"):
        yield recipe.document.problem(
            ("data",),
            "`data` names no data.",
            "Give `path` (a local file) or `hub` (a dataset on the hub).",
            key=True,
        )


def data_files(recipe: Recipe) -> Iterator[Problem]:
    """Local data files are there and have the columns that the templates name."""
    names = {setting: recipe.data.get(setting) for setting in ("question", "answer") if recipe.data.get(setting)}
    for setting, template in names.items():
        if templates.unclosed(template) is not None:
            yield _at(
                recipe,
                f"data.{setting}",
                f"`{setting}` opens a bracket and does not close it.",
                "Write `[column]`, or `[[` for a bracket that is text.",
            )
    wanted = {column: setting for setting, template in names.items() for column in templates.columns(template)}
    wanted |= {recipe.data[part]: part for part in ("image_column", "label_column") if part in recipe.data}
    if recipe.data.get("text"):
        wanted[recipe.data.text] = "text"
    for setting in ("path", "validation_path", "sample"):
        name = recipe.data.get(setting)
        if not name:
            continue
        file = recipe.folder / name
        if file.is_dir() and "image_column" in recipe.data:
            continue
        if setting == "sample" and file.suffix == ".parquet" and file.is_file():
            # The rehearsal looks into it; here opening Parquet would slow every check down.
            continue
        if not os.path.isfile(file):
            yield _at(
                recipe,
                f"data.{setting}",
                f"There is no file `{file}`.",
                "Paths start from the recipe's own folder.",
            )
            continue
        if file.suffix == ".txt":
            continue
        try:
            there = columns.of(file)
        except columns.Unreadable as reason:
            yield _at(
                recipe,
                f"data.{setting}",
                f"`{file}` cannot be read: {reason}",
                "Open it and compare its first line with what its name says.",
                reason.severity,
            )
            continue
        for column, user in wanted.items():
            if column not in there:
                near = nearest(column, there)
                meant = f"[{near}]" if user in names else near
                hint = (f"Did you mean `{meant}`? " if near else "") + f"Its columns are {listed(there)}."
                yield _at(
                    recipe,
                    f"data.{user}",
                    f"`{user}` names the column `{column}`, which `{file}` does not have.",
                    hint,
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
    if claims and site.get("output_dir") and not any(_below(site.output_dir, claim.mount) for claim in claims):
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


def _below(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")


def advanced_keys(recipe: Recipe) -> Iterator[Problem]:
    """Axolotl drops keys that it does not know without a word; here they are errors."""
    extra = (recipe.settings.get("advanced") or {}).get("axolotl") or {}
    known = catalog.axolotl_settings()
    for key in extra:
        if key not in known:
            near = nearest(key, known)
            yield recipe.document.problem(
                ("advanced", "axolotl", key),
                f"Axolotl {catalog.AXOLOTL_VERSION} has no setting `{key}`.",
                f"Did you mean `{near}`?" if near else "Its settings are in Axolotl's own documentation.",
                key=True,
            )


# Each rule costs one line here.
RULES: tuple[Rule, ...] = (
    known_model,
    trained_layers,
    sequence_length,
    known_gpu,
    effective_batch,
    sharding_needs_gpus,
    one_source,
    data_files,
    storage,
    images.normalising,
    images.crop,
    images.kept_images,
    images.limits,
    placing.somewhere,
    placing.counts_agree,
    placing.equal_on_the_cluster,
    plain_text.one_validation,
    plain_text.checkpoints_are_evaluated,
    plain_text.loss_fits_model,
    advanced_keys,
)
