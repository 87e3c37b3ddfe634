"""The rows and the base model of a recipe, as a stage without a GPU prepares them."""

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from runner import scenarios
from runner.data import (
    conversation_formats,
    data_sets,
    general_documents,
    object_store,
    support,
    tokenizers,
)
from runner.data.hub_failures import HubFailure, hub_failure
from runner.data.report import rows_of
from runner.parts.contract import Work
from runner.plan import RowsRequest
from runner.recipe import templates
from runner.scenarios.shared import twin as twins
from runner.tools.files import content_hash, in_image, read_json, remote, write_json, write_text
from runner.tools.problem import Stop, Tell, Unreachable, did_you_mean, first_line, listed
from runner.tools.process import without_scikit_learn
from runner.tools.run_files import FETCHED, REPORT

# The files of a model: weights in one format, configs, tokenizer.
MODEL_FILES = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.py")
# Prepared and tokenised rows are small beside a model; at least this many bytes must remain free.
RESERVE = 2**30


def write_rows(work: Work, tell: Tell) -> None:
    """Prepares rows of one kind. `out`: the folder; `data`: for a preparer; `model`: the base
    model, downloaded before, and its folder; `twin`: in a rehearsal, what replaces it (see
    `runner.scenarios.shared.twin`); `questions`: the demo's, which the rows should support."""
    out = Path(work["out"])
    data = work["data"]
    twin = work.get("twin")
    if work["on_claim"]:
        require_space(out, RESERVE, "the prepared data")
    for source in (*data.get("sets", [data]), *data.get("validation_sets", ())):
        if source["path"] and not remote(source["path"]) and not Path(source["path"]).exists():
            raise Stop(
                f"The data file or folder `{source['path']}` is not here.",
                "In a pod: with `openshift.data_from: claim`, `recipe submit` uploads it; with `image` or `git` it must be in the image, or in the commit.",
            )
    documents = []
    if twin:
        without_scikit_learn()
        documents = general_documents()
        tokenizer_for = twins.tokenizer_for(twin, documents)
    else:
        tokenizer_settings = data.get("tokenizer")
        tokenizer_for = partial(
            _tokenizer,
            tokenizers.Pretrained(**tokenizer_settings) if tokenizer_settings else None,
            work["model"],
        )
    report = scenarios.prepare(
        data, out, tokenizer_for=tokenizer_for, sample_rows=work.get("sample_rows")
    )
    if twin:
        twins.build(twin, partial(twins.warm_up, documents=documents, rows=out, seed=twin["seed"]))
    lines = list(report.lines())
    if work.get("questions") and work.get("sample_rows") is None:
        judged = support.of_prepared(out, work["questions"], data.get("system_prompt") or "")
        for finding, remedy in judged.findings():
            lines.append(f"{finding} {remedy}")
    for line in lines:
        tell(line)
    write_text(out / REPORT, "\n".join(lines) + "\n")
    rows_of(report, data).write(out)


def require_columns(data: RowsRequest) -> None:
    """Raises Stop before downloading if a dataset on the hub lacks a named column, or has those of
    no form."""
    for data_set in data.get("sets", [data]):
        if data_set["path"]:
            continue
        source = data_sets.DataSource(
            **{field.name: data_set.get(field.name) for field in fields(data_sets.DataSource)}
        )
        with suppress(Unreachable):  # it may be in the cache of this machine
            columns = data_sets.hub_columns(source)
            if "form" in data_set:
                form = data_set["form"] or conversation_formats.told(columns)
            else:
                form = "columns"
            if form is None:
                remedy = conversation_formats.NO_FORM
                raise Stop(
                    f"The columns of the data set `{source.hub}` match no form. They are {listed(columns)}.",
                    remedy,
                )
            settings = {
                column: f"`{user}`"
                for column, user in templates.needed({**data, **data_set}).items()
            }
            used = settings | dict.fromkeys(
                conversation_formats.COLUMNS.get(form, ()), f"the form {form}"
            )
            for column, user in used.items():
                if column not in columns:
                    hint = f"{did_you_mean(column, columns)}Its columns are {listed(columns)}."
                    raise Stop(
                        f"The data set `{source.hub}` has no column `{column}`, which {user} names.",
                        hint,
                    )


def _tokenizer(
    pretrained: tokenizers.Pretrained | None, fetched: Mapping[str, Any] | None, _texts: list[str]
) -> Any:
    """The base model's tokenizer, from the downloaded model, this machine or the hub; None if there
    is none."""
    if pretrained is None:
        return None
    trust = pretrained.trust_remote_code
    if fetched:
        return tokenizers.load(fetched["folder"], None, trust, local_only=True)
    return tokenizers.load(
        pretrained.base, None if Path(pretrained.base).is_dir() else pretrained.revision, trust
    )


def fetch_model(model: Mapping[str, Any], tell: Tell) -> None:
    """Downloads a model's files at its revision, or the rest after an interruption."""
    folder = Path(model["folder"])
    done = read_json(folder / FETCHED)
    if done and (done["base"], done["revision"]) == (model["base"], model["revision"]):
        tell(f"The model {model['base']} is already in {folder}.")
        return
    if remote(model["base"]):
        return copy_model(model, folder, tell)
    from httpx import HTTPError
    from huggingface_hub import HfApi, snapshot_download

    try:
        facts = HfApi().model_info(model["base"], revision=model["revision"], files_metadata=True)
        if facts.id != model["base"]:
            tell(f"The hub now calls {model['base']} {facts.id}. Write the new name in the recipe.")
        # From here on the commit counts, so that a branch that moves meanwhile does not mix two
        # versions.
        sizes_here = {}
        for file in folder.rglob("*"):
            if file.is_file():
                sizes_here[str(file.relative_to(folder))] = file.stat().st_size
        missing = sum(
            file.size or 0
            for file in facts.siblings or ()
            if any(Path(file.rfilename).match(pattern) for pattern in MODEL_FILES)
            and sizes_here.get(file.rfilename) != file.size
        )
        require_space(folder, missing + RESERVE, f"the model {model['base']}")
        tell(f"Downloading {model['base']} at {facts.sha}, {missing / 2**30:.1f} GiB")
        wanted = {"revision": facts.sha, "allow_patterns": list(MODEL_FILES)}
        snapshot_download(model["base"], local_dir=folder, max_workers=4, **wanted)
    except (HTTPError, OSError) as error:
        # An unknown failure, a broken connection for example, may not last.
        unknown = HubFailure(
            first_line(error).rstrip("."), "Check its name and the network.", temporary=True
        )
        failure = hub_failure(error) or unknown
        stop_type: type[Stop]
        if failure.temporary:
            stop_type = Unreachable
        else:
            stop_type = Stop
        raise stop_type(
            f"The model `{model['base']}` at `{model['revision']}` cannot be downloaded: {failure.reason}.",
            failure.remedy,
        ) from None
    write_json(
        folder / FETCHED,
        {"base": model["base"], "revision": model["revision"], "commit": facts.sha},
    )


def copy_model(model: Mapping[str, Any], folder: Path, tell: Tell) -> None:
    """Copies a model's files from an `s3://` address, or the rest after an interruption. Raises
    Stop as above."""
    base = model["base"]
    if in_image(base):
        raise Stop(
            f"`{base}` is an image, which only pods of a cluster can mount.",
            "Here, name a folder with the model, its name on the hub, or an `s3://` address: `--set model.base=…`.",
        )
    with object_store.asking(base) as store:
        objects_there = object_store.objects(store, base)
        model_files = {}
        for name, stored in objects_there.items():
            if any(Path(name).match(form) for form in MODEL_FILES):
                model_files[name] = stored
        if "config.json" not in model_files:
            raise Stop(
                f"`{base}` contains no model, because it has no `config.json`.",
                "Name the folder that contains the model's `config.json` and its weights.",
            )
        size = sum(stored.size for stored in model_files.values())
        require_space(folder, size + RESERVE, f"the model {base}")
        tell(f"Downloading {base}, {size / 2**30:.1f} GiB")
        object_store.download(store, model_files, folder)
    version = content_hash(object_store.etags(model_files), 40)
    write_json(folder / FETCHED, {"base": base, "revision": model["revision"], "commit": version})


def require_space(folder: Path, size: int, content: str) -> None:
    """Raises Stop if the disk that holds `folder` has less than `size` bytes free."""
    existing_folder = next(parent for parent in (folder, *folder.parents) if parent.is_dir())
    free = shutil.disk_usage(existing_folder).free
    if free < size:
        raise Stop(
            f"{existing_folder} has {free / 2**30:.1f} GiB free, and {content} needs {size / 2**30:.1f} GiB.",
            "Raise `openshift.claims[].size_gib` of that claim, or delete old runs from it. Files that are already there stay.",
        )
