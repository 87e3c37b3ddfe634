"""`recipe models`: the models that a recipe can name, and `recipe models add` for those that the
catalog lacks."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from runner import catalog, parts
from runner.catalog.models import BESIDE, CONFIG, Model, described, in_folder, near_model
from runner.check import by_schema
from runner.check.validate import judge
from runner.commands.options import end, say, short, table, with_options
from runner.data import object_store
from runner.data.hub_failures import HubFailure, hub_failure
from runner.parts.planner import forecast, memory, parameters
from runner.recipe import lock, units
from runner.recipe.overrides import apply
from runner.recipe.reading import read
from runner.recipe.recipe import Override, Recipe
from runner.scenarios import place, translate
from runner.tools import packaged
from runner.tools.files import in_image, remote
from runner.tools.problem import Stop, errors_of, first_line, listed
from runner.tools.text import json_text

# Ways to train a language model, each with its starter and settings.
WAYS = packaged.toml(str(Path(__file__).parent), "questions.toml")["ways"]


@dataclass(frozen=True)
class Need:
    """The GPU memory of a way to train, with one row at a time, and the cards with enough, the
    smallest first."""

    memory_bytes: int
    cards: tuple[str, ...]


def needs_of(model: catalog.Model, card: catalog.Gpu | None = None) -> dict[str, Need]:
    """The needs of each way to train a model; empty if they are unknown. card: decides the number
    format, else bf16."""
    if card:
        precision = card.precision(model.fp16)
    else:
        precision = "bf16"
    if not parameters.has_formulas(model.model_type):
        return _traced_needs(model.id, precision)
    # Models of the same shape share one computation.
    shape = replace(
        model,
        id="model",
        licence="",
        gated=False,
        source="",
        parameters=None,
        published=None,
        revision="",
    )
    return {way: _need(shape, way, precision) for way in WAYS}


def _traced_needs(name: str, precision: str) -> dict[str, Need]:
    """The same of a model without formulas, as benchmarks/traced_needs.py traced it in bf16; empty
    if it did not."""
    traced = catalog.table("traced-needs").get(catalog.original(name), {})
    if precision != "bf16":
        return {}
    needs = {}
    for way, need in traced.items():
        cards = [card.name for card in memory.cards(need, ()) if card.bf16]
        needs[way] = Need(need, tuple(cards))
    return needs


@cache
def _need(model: catalog.Model, way: str, precision: str) -> Need:
    forecasts = forecasts_of(model, way, precision)
    need = max(stage.full.memory.total for stage in forecasts)
    return Need(
        need,
        tuple(card.name for card in memory.cards(need, [stage.workload for stage in forecasts])),
    )


def forecasts_of(model: catalog.Model, way: str, precision: str) -> list[forecast.Forecast]:
    """The stages of the way's starter with a model, also without formulas, with one row at a
    time."""
    wished = {"model.precision": precision, "train.micro_batch_size": 1, **WAYS[way]["settings"]}
    starter = read(packaged.named()[WAYS[way]["starter"]])
    document, _ = apply(starter, [Override(name, None, value) for name, value in wished.items()])
    recipe = Recipe(document, by_schema.read(document)[0], model)
    plan = translate(recipe, place(recipe))
    return list(forecast.of(recipe, plan, look=False, any_architecture=True))


def counted(model: catalog.Model) -> int | None:
    """A model's number of parameters; None if its architecture is unknown."""
    try:
        return model.parameters or parameters.total(model)
    except catalog.UnknownArchitecture:
        return None


def newest_first(names: Iterable[str]) -> list[catalog.Model]:
    """Models of the catalog, those of the last year first, and of a year the smallest."""
    models = list(filter(None, map(catalog.model, names)))
    return sorted(
        models, key=lambda model: (-catalog.release_year(model.id), model.parameters or math.inf)
    )


def size(model: catalog.Model) -> str:
    """A model's number of parameters, for tables."""
    count = counted(model)
    if count is None:
        return "-"
    if count >= 1e8:
        return f"{count / 1e9:.2f}B"
    return f"{count / 1e6:.2f}M"


def licence(model: catalog.Model) -> str:
    return (model.licence or "unknown") + (", gated" if model.gated else "")


def card_named(name: str) -> catalog.Gpu:
    """The catalog's card of that label. Raises Stop if it has none."""
    found = catalog.gpu(name)
    if found:
        return found
    near = catalog.alike(name)
    if near:
        hint = f"Did you mean {listed(near, 'or')}? "
    else:
        hint = ""
    raise Stop(f"The catalog has no GPU `{name}`.", f"{hint}`recipe gpus` lists them.")


@click.group(invoke_without_command=True)
@with_options
def models(recipe: str | None, card: str | None, style: str) -> None:
    """List the models of the catalog and of the lock file beside a recipe, with the smallest GPU
    for each.

    The newest models are first. The GPUs are for four ways to train: an adapter beside the model in
    4 bits (qlora), an adapter beside the unchanged model (lora), the last layers, and all weights.
    They are estimates of `recipe plan`, with its defaults and one row at a time.
    """
    context = click.get_current_context()
    context.obj = recipe
    if context.invoked_subcommand:
        return
    if recipe:
        file = Path(read(recipe).file).parent / lock.LOCK
    else:
        file = Path(lock.LOCK)
    gpu = card_named(card) if card else None
    known = [(one, "catalog") for one in newest_first(catalog.model_ids())]
    for name, entry in lock.entries(file).items():
        known.append((lock.model_of(name, entry), file.name))
    found = []
    for model, where in known:
        needs = {
            way: need
            for way, need in needs_of(model, gpu).items()
            if not gpu or gpu.name in need.cards
        }
        if needs or not gpu:
            found += [(model, where, needs)]
    if style == "json":
        entries = [
            {
                "model": model.id,
                "parameters": counted(model),
                "released": catalog.release_year(model.id) or None,
                "longest_row_tokens": model.max_position_embeddings,
                "licence": model.licence or None,
                "gated": model.gated,
                "from": where,
                "ways": needs,
            }
            for model, where, needs in found
        ]
        say(json_text(entries))
        return
    rows = []
    for model, where, needs in found:
        shown = {
            way: units.gib(need.memory_bytes) if gpu else short(need.cards[0])
            for way, need in needs.items()
            if need.cards
        }
        ways = (shown.get(way, "-") for way in WAYS)
        rows.append(
            (
                model.id,
                size(model),
                str(catalog.release_year(model.id) or "-"),
                f"{model.max_position_embeddings:,}",
                *ways,
                licence(model),
                where,
            )
        )
    titles = (
        "MODEL",
        "PARAMETERS",
        "YEAR",
        "LONGEST ROW",
        *(way.upper() for way in WAYS),
        "LICENCE",
        "FROM",
    )
    table([titles, *rows], movable=(*titles[4:8], "FROM"))
    if gpu:
        say(f"\nOf the {units.gib(gpu.usable_gib * 2**30)} of {gpu.name}, with one row at a time.")
    else:
        way = "Each way to train shows the smallest GPU that fits (bf16, one row at a time)."
        say(f"\n{way}\nA row counts in tokens.\n`recipe gpus` lists the GPUs.")
    if gpu:
        fit = f"fit {gpu.name}"
    else:
        fit = "can be named in a recipe"
    end(f"{len(rows)} models {fit}.", "new", "my-demo")


@models.command()
@with_options
def add(
    name: str, recipe: str | None, out: str | None, revision: str | None, known_as: str | None
) -> None:
    """Write a model's facts into the lock file, so that check, plan and render need no network for
    it.

    NAME is a model on the Hugging Face hub. FOLDER has a model with its config.json, on this
    machine or, with `--recipe`, on a claim of that recipe, or at an `s3://` address. It reads only
    small files, no weights. It also records the hub's commit; recipes beside the lock file then
    train that commit.
    """
    recipe = recipe or click.get_current_context().obj  # which may also come before `add`
    if recipe and out:
        raise click.UsageError("`--recipe` and `--out` both set where to write. Use one of them.")
    document = read(recipe) if recipe else None
    if recipe:
        file = Path(recipe).parent / lock.LOCK
    else:
        file = Path(out or lock.LOCK)
    if in_image(name):
        raise Stop(
            f"This machine does not read images, so it cannot read the facts about `{name}` there.",
            f"Copy the model's `config.json` and `tokenizer_config.json` from the image into a folder, and run `recipe models add FOLDER --as {name}`.",
        )
    if remote(name):
        with TemporaryDirectory() as folder:
            with object_store.asking(name) as store:
                there = object_store.objects(store, name)
                small = {one: there[one] for one in (CONFIG, *BESIDE) if one in there}
                object_store.download(store, small, Path(folder))
            model = written(file, folder, "", known_as or name)
    elif document and name.startswith("/") and not Path(name).is_dir():
        made, problems = judge(document)  # its model is unknown yet, which is also an error
        if made is None:
            raise Stop(errors_of(problems))
        parts.require("openshift")
        from runner.parts.openshift import transfer

        with transfer.copied(made, name, say) as folder:
            model = written(file, str(folder), "", known_as or name)
    else:
        if document:
            named = document.lookup(("model", "revision"))
        else:
            named = None
        model = written(file, name, revision or str(named or "main"), known_as)
    say(f"{file}: {model.id}" + (f" at {model.revision}" if model.revision else ""))
    say(f"{model.model_type}, {size(model)} parameters, licence {licence(model)}.")
    if not parameters.has_formulas(model.model_type):
        say(
            "There are no formulas for its architecture; `recipe plan --exact` builds the model and counts."
        )
    say("Keep the file under version control.")
    end(
        f"Recipes beside {file} can now use `base: {model.id}` under `model`.",
        "check",
        recipe or "RECIPE",
    )


def written(file: Path, name: str, revision: str, known_as: str | None = None) -> catalog.Model:
    """Writes a model into a lock file. name: a folder (below the lock file's or this one), or a
    name on the hub. known_as: the name of a folder in recipes, if not its path. Raises Stop if the
    model cannot be used."""
    if (known_as or name) in catalog.model_ids():
        known_as_text = known_as or name
        raise Stop(
            f"`{known_as_text}` is in the catalog, which comes first.",
            "It needs no lock. `revision` under `model` fixes one commit of it.",
        )
    unsuitable = catalog.unsuitable(known_as or name)
    if unsuitable:
        raise Stop(*unsuitable)
    lock.entries(file)  # a broken file is reported before anything is fetched
    folder = next((place for place in (file.parent / name, Path(name)) if place.is_dir()), None)
    if folder:
        if Path(name).is_absolute():
            path = name
        else:
            path = Path(os.path.relpath(folder, file.parent)).as_posix()
        model = in_folder(folder, known_as or path)
    elif name.startswith("/"):
        raise Stop(
            f"There is no folder `{name}` on this machine.",
            f"If it is on a claim, `recipe models add {name} --recipe RECIPE` reads it there, with a recipe that names the claim. Without a cluster, copy its `config.json` and `tokenizer_config.json` into a folder, and run `recipe models add FOLDER --as {name}`.",
        )
    elif known_as:
        raise Stop(
            "`--as` is for a folder. A model on the hub has its own name.", "Leave it out.", code=2
        )
    else:
        model = on_hub(name, revision)
    lock.add(file, model.id, lock.entry_of(model, revision))
    return model


def on_hub(name: str, revision: str) -> Model:
    """The model of a name and revision on the hub, with its present commit. Raises Stop if it is
    not available."""
    from httpx import HTTPError
    from huggingface_hub import HfApi, errors, hf_hub_download

    def fetch(file: str) -> Path | None:
        try:
            return Path(hf_hub_download(name, file, revision=facts.sha))
        except errors.RemoteEntryNotFoundError:
            return None

    try:
        facts = HfApi().model_info(name, revision=revision)
        model = described(name, fetch)
    except errors.GatedRepoError:
        raise Stop(
            f"`{name}` is gated: you must accept its licence before you can download its files.",
            f"Accept it at https://huggingface.co/{name}. Then run `hf auth login`, or set HF_TOKEN.",
        ) from None
    except errors.RevisionNotFoundError:
        raise Stop(
            f"`{name}` has no revision `{revision}`.",
            "Name a branch, a tag or a commit; without one it is `main`.",
        ) from None
    except errors.RepositoryNotFoundError:
        try:
            HfApi().dataset_info(name)
            hint = "This is a data set. A recipe names it under `data.hub`; `model.base` must be a model."
        except (HTTPError, OSError):
            hint = _near(name)
        raise Stop(f"The hub has no model `{name}` that you may read.", hint) from None
    except errors.HFValidationError:
        raise Stop(
            f"`{name}` is neither a folder here nor a name on the hub.", _near(name)
        ) from None
    except (HTTPError, OSError) as error:
        failure = hub_failure(error) or HubFailure(
            first_line(error).rstrip("."), "Check the network."
        )
        raise Stop(
            f"The hub cannot be asked about `{name}`: {failure.reason}.",
            f"{failure.remedy} Or name a folder with the model.",
        ) from None
    if facts.id != name:
        raise Stop(
            f"The hub now calls the model `{name}` `{facts.id}`.",
            f"Use the new name: `recipe models add {facts.id}`, and `model.base` in the recipe.",
        )
    licences = [tag.partition(":")[2] for tag in facts.tags or () if tag.startswith("license:")]
    return replace(
        model, revision=facts.sha or "", licence=" ".join(licences), gated=bool(facts.gated)
    )


def _near(name: str) -> str:
    near = near_model(name)
    if near:
        known = f"Did you mean `{near}`? That one is in the catalog. "
    else:
        known = ""
    return f"{known}Check the name. A private model needs `hf auth login`, or HF_TOKEN."
