"""Uploading an export to the hub, and entering it in a Model Registry (Kubeflow's, which OpenShift
AI has)."""

from __future__ import annotations

import asyncio
import getpass
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

from runner import __version__
from runner.parts.export import card, exporting
from runner.parts.export.trained_model import TrainedModel, unproven
from runner.parts.report import sentences
from runner.plan import OnClaim, on_claim
from runner.scenarios import section_schema
from runner.tools import packaged
from runner.tools.files import Record, sha256
from runner.tools.problem import Stop, Tell
from runner.tools.run_files import BEST_MODEL, EXPORTED, PUSHED
from runner.tools.settings import Settings

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from runner.recipe.sections import Openshift


@dataclass(frozen=True)
class Pushed(Record):
    """The last push of a model. model: its hash, as in an Export; repository, commit: on the
    hub."""

    FILE = PUSHED
    model: str = ""
    format: str = ""
    repository: str = ""
    commit: str = ""


def push(
    source: TrainedModel, name: str, form: str, file_kind: str | None, public: bool, tell: Tell
) -> str:
    """Uploads an export to the hub, and returns its address. The model is exported first if there
    is no complete export. public: whether a new repository is public. The token comes from the
    environment (`HF_TOKEN`) or the hub's login, and is not stored. Raises Stop if there is none, or
    the hub refuses."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not get_token():
        raise Stop(
            "There is no token for the hub.",
            "Set `HF_TOKEN` to a token with write access, or run `hf auth login`. recipe-runner does not save it.",
        )
    api = HfApi()
    try:
        _require_room(api, name, public)
        folder = exporting.place(source, form, file_kind)
        record = exporting.Export.read(folder)
        if _is_current(folder, record, source):
            exporting.tell_of(source, folder, record)  # with a new card
        else:
            exporting.export(source, form, file_kind, None, tell)
        record = exporting.Export.read(folder)
        result = f"the result of {record.stage} in run {record.run}"
        title = f"{source.run.name}: {result}, {record.format} {record.kind}"
        address = api.create_repo(name, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            commit_message=title.rstrip(),
            delete_patterns="*",
        )
        _require_arrived(api, address.repo_id, commit.oid, folder, record.files)
        private = api.model_info(address.repo_id).private
    except HFValidationError as error:
        raise Stop(
            f"`{name}` is not a valid repository name: {error}",
            "It is `NAME`, or `ORGANISATION/NAME`.",
        ) from None
    except HfHubHTTPError as error:
        message = error.server_message or str(error).splitlines()[0]
        raise Stop(
            f"The hub refuses `{name}`: {message}",
            "Check that the token may write to that name. `hf auth whoami` shows its owner.",
        ) from None
    except httpx.HTTPError as error:
        raise Stop(
            f"The hub cannot be reached: {error}",
            "Check the network, and `HF_ENDPOINT` if you set it.",
        ) from None
    Pushed(record.model, record.format, address.repo_id, commit.oid).write(source.home)
    if private:
        tell("It can be read by you and those whom you let.")
    else:
        tell("It can be read by everybody.")
    return str(address)


def _is_current(folder: Path, export: exporting.Export, source: TrainedModel) -> bool:
    """Whether a folder has the complete export of this model."""
    if not export.model or export.model != source.stage.weights:
        return False
    if export.run != source.run.state.id:
        return False
    for name, digest in export.files.items():
        file = folder / name
        if not file.is_file() or sha256(file) != digest:
            return False
    return True


def _require_room(api: HfApi, name: str, public: bool) -> None:
    """Raises Stop if a repository of that name holds another model, or is public without
    `--public`."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        repository = api.model_info(name)
    except RepositoryNotFoundError:
        return
    if not repository.private and not public:
        raise Stop(
            f"`{name}` already exists, and is public.",
            "Add `--public` to push to it, or choose another name for a private one.",
        )
    files = {file.rfilename for file in repository.siblings or ()}
    new_repository = {".gitattributes", "README.md"}
    if EXPORTED not in files and files - new_repository:
        raise Stop(
            f"`{name}` contains another model, which `recipe push` did not upload.",
            "Name another repository.",
        )


def _require_arrived(
    api: HfApi, name: str, commit: str, folder: Path, files: Mapping[str, str]
) -> None:
    """Compares the hub's copy with the export: all files, and the hash of each file that the hub
    stores by hash."""
    uploaded = api.model_info(name, revision=commit, files_metadata=True).siblings or ()
    by_name = {file.rfilename: file for file in uploaded}
    for file in (*files, EXPORTED):
        if file not in by_name:
            raise unproven(f"`{file}` has not arrived at the hub", "Push it again.")
        kept = by_name[file].lfs
        if kept is not None and kept.sha256 != sha256(folder / file):
            raise unproven(f"the hub has another `{file}`", "Push it again.")


# the environment variable with a registry's token (`oc whoami --show-token`)
TOKEN = "MODEL_REGISTRY_TOKEN"


def _author() -> str:
    """This user's name. A pod's user may have none, but a number."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        if sys.platform == "win32":
            return "unknown"
        return str(os.getuid())


def register(source: TrainedModel, server: str, name: str, version: str, uri: str | None) -> str:
    """Enters a model as a new version, reads it back, and returns its address. server: the
    registry's; uri: the model's address, by default where it was pushed to or trained. Raises Stop
    if that is unknown, or the registry refuses."""
    import aiohttp
    from model_registry import ModelRegistry
    from model_registry.exceptions import StoreError
    from mr_openapi.exceptions import ApiException

    where, form = _where(source, uri)
    facts = lineage(source)
    table = packaged.toml(__file__, "lineage.toml")
    author = _author()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a registry without a token is allowed
            registry = ModelRegistry(
                server,
                author=author,
                user_token=os.environ.get(TOKEN),
                custom_ca=os.environ.get("SSL_CERT_FILE"),
                async_runner=asyncio.run,
            )
        if registry.get_registered_model(name) and registry.get_model_version(name, version):
            raise Stop(
                f"`{name}` has a version `{version}` in that registry.",
                "Name another one with `--version`.",
            )
        fields = {name: attrgetter(place)(source) for name, place in table["fields"].items()}
        registry.register_model(
            name,
            where,
            version=version,
            version_description="\n".join(sentences.first(source.run)),
            model_format_name=form,
            model_format_version="1",
            model_source_kind="recipe-runner",
            metadata=facts,
            **fields,
        )
        entered = registry.get_model_version(name, version)
        artifact = registry.get_model_artifact(name, version)
        same = entered is not None and dict(entered.custom_properties or {}) == facts
        if not same or artifact is None or artifact.uri != where:
            raise unproven(
                "the registry does not report what was registered",
                "Look at that version in the registry.",
            )
    except (StoreError, ApiException) as error:
        error_text = getattr(error, "body", None) or getattr(error, "reason", None) or str(error)
        reason = " ".join(str(error_text).split())[:300]
        raise Stop(
            f"The registry at {server} refuses: {reason}",
            f"If it needs a login, set `{TOKEN}` to a token; `oc whoami --show-token` prints one.",
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise Stop(
            f"The registry at {server} cannot be reached: {error}",
            "Check its address and the network.",
        ) from None
    return where


def _where(source: TrainedModel, uri: str | None) -> tuple[str, str]:
    """The model's address, as KServe reads it, and its format."""
    if uri:
        if uri.endswith(".gguf"):
            return uri, "gguf"
        return uri, "safetensors"
    pushed = Pushed.read(source.home)
    if pushed and pushed.model == source.stage.weights:
        return f"hf://{pushed.repository}:{pushed.commit}", pushed.format
    if source.run.state.origin == "cluster":
        place = _place_on_claim(source)
        if place:
            return place.uri, "safetensors"
    raise Stop(
        "A registry needs the model's address, but this model is only on this machine.",
        "`recipe push` uploads it to the hub; `--uri` names another place where you stored it (hf://, s3://, oci:// or pvc://).",
    )


def _place_on_claim(source: TrainedModel) -> OnClaim | None:
    """Where a run of the cluster left the model, by the recipe; None if that names no claim."""
    site = source.run.planned.settings.get("openshift")
    if not site:
        return None
    section = cast("Openshift", Settings(site, section_schema("openshift")))
    inner = source.folder.path.relative_to(source.folder.run.path)
    folder = PurePosixPath(section.output_dir or "", inner, BEST_MODEL)
    return on_claim(str(folder), section.claims)


def lineage(source: TrainedModel) -> dict[str, str | int | float | bool]:
    """A model's origin and quality as flat properties, without those that are unknown."""
    table = packaged.toml(__file__, "lineage.toml")
    stage = source.stage
    facts = {name: attrgetter(place)(source) for name, place in table["properties"].items()}
    facts["runner"] = __version__
    for part, data in source.run.data.items():
        suffix = ""
        if part:
            suffix = f".{part}"
        for name, key in table["data"].items():
            facts[f"{name}{suffix}"] = data.record.get(key)
    for name, value in card.measured(source).items():
        if isinstance(value, int | float):
            facts[f"evaluation.{name}"] = float(value)
    if stage.verdicts and not stage.open:
        facts["gates"] = "closed"
    elif stage.verdicts and stage.promotion:
        facts["gates"] = "overruled"
    elif stage.verdicts:
        facts["gates"] = "open"
    return {name: value for name, value in facts.items() if value not in (None, "")}
