"""Rules about the base model: that it is known and can be trained, and that the recipe's other lines fit it."""

import re
from collections.abc import Iterator, Mapping
from os.path import isdir
from typing import Any

from runner import catalog
from runner.catalog import models
from runner.check import by_schema
from runner.recipe import lock
from runner.recipe.recipe import Recipe
from runner.scenarios.shared import sharding
from runner.scenarios.shared.axolotl import FLASH
from runner.tools.files import read_record
from runner.tools.names import hub_name, listed, nearest
from runner.tools.problem import Problem, Stop, worded

FULL_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


def _base(recipe: Recipe) -> str:
    """The base model's name; empty if recipes of this scenario have none."""
    return str((recipe.settings.get("model") or {}).get("base", ""))


def known(recipe: Recipe) -> Iterator[Problem]:
    if not (base := _base(recipe)):
        return
    if unsuitable := catalog.unsuitable(base, recipe.folder):
        yield recipe.problem("model.base", *unsuitable.refusal(base))
    elif base not in catalog.model_ids() and (broken := lock.find(recipe.folder, base, recipe.model.revision)[1]):
        yield from broken
    elif not recipe.model_facts:
        yield unknown(recipe)
    elif recipe.base_folder and not isdir(recipe.base_folder) and not recipe.on_claim(base):
        yield recipe.note("model.base", *worded("check.described-by-lock", base=base, lock=lock))


# The fields of a lock entry that come from `config.json`. Users may have corrected the others.
SHAPE = (
    *("model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "tied", "custom_code", "config"),
)


def as_locked(recipe: Recipe) -> Iterator[Problem]:
    """A folder on this machine must still match its entry in the lock file."""
    base = _base(recipe)
    folder = recipe.base_folder if base and base not in catalog.model_ids() else None
    if folder is None or not (folder / models.CONFIG).is_file():
        return
    locked, _ = lock.find(recipe.folder, base, recipe.model.revision)
    if locked is None:
        return
    try:
        here = models.in_folder(folder, base)
    except Stop as stop:
        yield recipe.problem("model.base", *stop.text.split("\n", 1))
        return
    both = ((name, getattr(locked, name), getattr(here, name)) for name in SHAPE)
    if changed := [f"`{name}` is {now} and was {was}" for name, was, now in both if was != now]:
        yield recipe.problem(
            "model.base", *worded("check.other-model", recipe=recipe, lock=lock, changed=", ".join(changed))
        )


def unknown(recipe: Recipe) -> Problem:
    """The problem of an unknown base model. A copied recipe may have it, because a lock file can follow."""
    base, near = recipe.model.base, catalog.near_model(recipe.model.base)
    if named := hub_name(base):
        return recipe.problem("model.base", *worded("check.page-address", base=base, named=named))
    if config := models.config_of(base, recipe.folder):
        return _no_geometry(recipe, config)
    if no_folder := _no_folder(recipe):
        return no_folder
    add = f"`recipe models add {base} --recipe {recipe.file}"
    if recipe.on_claim(base):
        return recipe.problem("model.base", *worded("check.model-on-claim", base=base, add=add, recipe=recipe))
    version = "" if recipe.model.revision == "main" else f" --revision {recipe.model.revision}"
    message = f"The model `{base}` is not in the catalog, and no folder of that name has a readable `config.json`."
    hint = f"Did you mean `{near}`? " if near else ""
    hint += f"`recipe models` lists the catalog. Or name a folder with a model. Or record this model from the hub, for every machine that checks the recipe: {add}{version}`."
    return recipe.problem("model.base", message, hint)


def _no_folder(recipe: Recipe) -> Problem | None:
    """The problem of a base model that can only be a folder, and is not one; None for hub names and claims."""
    base, folder = recipe.model.base, recipe.folder / recipe.model.base
    if recipe.on_claim(base) or not (isdir(folder) or base.startswith((".", "/", "~")) or base.count("/") != 1):
        return None
    if isdir(folder):
        message = f"The folder `{base}` has no readable `config.json`, so it contains no model."
        below = sorted(inner.parent.name for inner in folder.glob(f"*/{models.CONFIG}"))
        hint = "Name the folder in which the model was saved."
        hint = f"Did you mean `{base.rstrip('/')}/{below[0]}`?" if below else hint
    elif "/" not in base and catalog.near_model(base):
        return None
    else:
        message = f"There is no folder `{folder}`, and the catalog has no model `{base}`."
        beside = [inner.name for inner in folder.parent.glob("*/") if inner.is_dir()] if isdir(folder.parent) else []
        near = nearest(folder.name, beside)
        hint = f"Did you mean `{base.rstrip('/').removesuffix(folder.name)}{near}`? " if near else ""
        hint += "A path is relative to the recipe's folder. A model on the hub is `OWNER/NAME`; `recipe models` lists the catalog. A folder on the cluster is below the mount of a claim, `openshift.claims`."
    return recipe.problem("model.base", message, hint)


def _no_geometry(recipe: Recipe, config: Mapping[str, Any]) -> Problem:
    """The problem that a folder's `config.json` lacks the size of its language model, or describes several."""
    base = recipe.model.base
    if parts := [name for name, part in config.items() if isinstance(part, dict) and "model_type" in part]:
        return recipe.problem("model.base", *worded("check.several-models", base=base, parts=listed(parts)))
    wrong = "has an impossible type or size"
    try:
        catalog.from_config(base, config)
    except KeyError as error:
        wrong = f"lacks `{error.args[0]}`"
    except models.NO_GEOMETRY:
        pass
    return recipe.problem("model.base", *worded("check.unknown-size", base=base, wrong=wrong))


def known_type(recipe: Recipe) -> Iterator[Problem]:
    """Notes an architecture that no model in the catalog has, because its layers and memory are guesses."""
    facts = recipe.model_facts if _base(recipe) else None
    if facts and facts.model_type not in catalog.model_types():
        yield recipe.note("model.base", *worded("check.type-never-tried", recipe=recipe, facts=facts))


def custom_code(recipe: Recipe) -> Iterator[Problem]:
    """A model's own code runs with the user's rights, so it needs permission, and a version that cannot change."""
    if "base" not in (recipe.settings.get("model") or {}):
        return
    model, facts = recipe.model, recipe.model_facts
    if facts and facts.custom_code and not model.trust_remote_code:
        yield recipe.problem("model.base", *worded("check.custom-code", model=model))
    on_hub = facts is None or not facts.source.endswith("/config.json") or facts.remote_code
    if model.trust_remote_code and on_hub and not FULL_COMMIT.match(recipe.model_revision):
        message = f"The recipe trusts the model's own code, but its revision `{model.revision}` can change. The model's owner could put other code there, which would run with your rights."
        hint = "Write the full commit that you read, 40 hexadecimal digits, as `revision`."
        line = "revision" if recipe.document.lookup(("model", "revision")) is not None else "trust_remote_code"
        yield recipe.problem(f"model.{line}", message, hint)


def template_fits(recipe: Recipe) -> Iterator[Problem]:
    """ChatML's special tokens must be tokens of the model; else it cannot learn the end of an answer."""
    facts = recipe.model_facts
    if facts and recipe.data.get("chat_template") == "chatml" and facts.chat_template not in ("", "chatml"):
        yield recipe.problem("data.chat_template", *worded("check.not-chatml", base=_base(recipe)), mending="auto")


def own_template(recipe: Recipe) -> Iterator[Problem]:
    """`tokenizer_default` needs a tokenizer with a template."""
    facts = recipe.model_facts
    if not facts or recipe.data.get("chat_template") != "tokenizer_default":
        return
    folder, has_template = recipe.base_folder, facts.own_template
    if folder and (folder / "tokenizer_config.json").is_file():
        template = read_record(folder / "tokenizer_config.json").get("chat_template")
        has_template = bool(template) or any(folder.glob("chat_template*"))
    if not has_template:
        yield recipe.problem("data.chat_template", *worded("check.no-chat-template", recipe=recipe), mending="auto")


def advised_precision(recipe: Recipe) -> str:
    """The precision that fits the recipe's GPU and model."""
    gpu, facts = catalog.gpu(recipe.machines.gpu), recipe.model_facts
    known = by_schema.part(recipe.scenario, "model.precision").get("enum", ())
    return gpu.precision("fp16" in known and (facts is None or facts.fp16)) if gpu else "bf16"


def precisions(recipe: Recipe) -> dict[str, str]:
    """The precision in each section that states one, by the section's name."""
    return {name: str(one["precision"]) for name, one in recipe.sections.items() if one.get("precision")}


def precision_fits(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts
    if facts and not facts.fp16 and recipe.model.get("precision") == "fp16":
        message = f"Activations of `{recipe.model.base}` exceed what fp16 can hold, and the loss would become infinite."
        advised = advised_precision(recipe)
        yield recipe.note("model.precision", message, f"Write `precision: {advised}`.", mending=advised)


def master_weights_fit(recipe: Recipe) -> Iterator[Problem]:
    if (recipe.settings.get("model") or {}).get("master_weights") != "bf16" or sharding.by_zero(recipe):
        return
    precision, say = recipe.model.precision, recipe.note
    message = "A weight in bf16 moves only if a step changes it by 0.2 % or more. At usual learning rates most weights would never move."
    hint = "Write `master_weights: fp32`. To save memory, use a suggestion of `recipe plan` instead."
    if precision in ("fp16", "fp32"):
        say = recipe.problem
        message = f"With `precision: {precision}` trained weights are stored in fp32, but `master_weights` is bf16."
        hint = "Delete the line, or write `precision: bf16`."
    yield say("model.master_weights", message, hint)


def loss_fits_model(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts if "model" in recipe.settings else None
    asked = recipe.settings.get("train", {}).get("cross_entropy") == "fused"
    if facts and asked and facts.model_type not in catalog.fused_loss_models():
        yield recipe.problem("train.cross_entropy", *worded("check.no-fused-loss", facts=facts), mending="auto")


def attention_fits_model(recipe: Recipe) -> Iterator[Problem]:
    facts = recipe.model_facts if "model" in recipe.settings else None
    asked = recipe.model.get("attention") if facts else None
    if not facts or not asked:
        return
    family, gpu, of_hub, kind = facts.family, catalog.gpu(recipe.machines.gpu), "/" in asked, facts.model_type
    able = family.get("attention", "sdpa")
    if of_hub and asked != family.get("kernel"):
        message = f"`{asked}` is for gpt-oss alone, and this model has the type `{kind}`."
    elif of_hub and gpu and not gpu.compute_capability.startswith("9."):
        message = f"`{asked}` needs an H100 or H200, and this GPU is {gpu.title}."
    elif not of_hub and (
        asked != family.get("attention", asked) or (asked == "flex_attention" and "no_flex" in family)
    ):
        message = f"transformers has no `{asked}` for models of type `{kind}`, so training would not start."
    else:
        return
    yield recipe.problem("model.attention", message, f"Write `attention: {able}`.", mending=able)


def attention_fits_precision(recipe: Recipe) -> Iterator[Problem]:
    """FlashAttention multiplies only in half precision."""
    asked = (recipe.settings.get("model") or {}).get("attention") or ""
    if asked != FLASH and "/" not in asked:
        return
    half = advised_precision(recipe)
    instead = "" if half == "fp32" else f", or `precision: {half}`"
    for home in (name for name, precision in precisions(recipe).items() if precision == "fp32"):
        line, under = ("attention", "") if home == "model" else ("precision", " under `model`")
        yield recipe.problem((home, line), *worded("check.flash-in-fp32", flash=asked, under=under, instead=instead))


RULES = (
    *(known, known_type, custom_code, template_fits, own_template, precision_fits, master_weights_fit, loss_fits_model),
    *(attention_fits_model, attention_fits_precision),
)
