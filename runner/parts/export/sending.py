"""Uploading an export to the hub, and entering it in a Model Registry (Kubeflow's, which OpenShift
AI has)."""

from __future__ import annotations

import asyncio
import getpass
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from runner import __version__
from runner.parts.export import card, exporting
from runner.parts.export.trained_model import TrainedModel, unproven
from runner.parts.report import sentences
from runner.plan import on_claim
from runner.tools import packaged
from runner.tools.files import Record, sha256
from runner.tools.problem import Stop, Tell, worded
from runner.tools.run_files import BEST_MODEL, EXPORTED, PUSHED

if TYPE_CHECKING:
    from huggingface_hub import HfApi


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
    source: TrainedModel, name: str, form: str, kind: str | None, public: bool, tell: Tell
) -> str:
    """Uploads an export to the hub, and returns its address. The model is exported first if there
    is no complete export. public: whether a new repository is public. The token comes from the
    environment (`HF_TOKEN`) or the hub's login, and is not stored. Raises Stop if there is none, or
    the hub refuses."""
    import httpx
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not get_token():
        raise Stop(*worded("export.no-token"))
    api = HfApi()
    try:
        _require_room(api, name, public)
        folder = exporting.place(source, form, kind)
        made = exporting.Export.read(folder)
        same = made.model and made.model == source.stage.weights and made.run == source.run.state.id
        files = made.files.items()
        if same and all(
            (folder / one).is_file() and sha256(folder / one) == digest for one, digest in files
        ):
            exporting.tell_of(source, folder, made)  # with a new card
        else:
            exporting.export(source, form, kind, None, tell)
        made = exporting.Export.read(folder)
        address = api.create_repo(name, private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=address.repo_id,
            folder_path=folder,
            commit_message=f"{source.run.name}: the result of {made.stage} in run {made.run}, {made.format} {made.kind}".rstrip(),
            delete_patterns="*",
        )
        _require_arrived(api, address.repo_id, commit.oid, folder, made.files)
        private = api.model_info(address.repo_id).private
    except HFValidationError as error:
        raise Stop(*worded("export.bad-repository-name", name=name, error=error)) from None
    except HfHubHTTPError as error:
        said = error.server_message or str(error).splitlines()[0]
        raise Stop(*worded("export.hub-refuses", name=name, said=said)) from None
    except httpx.HTTPError as error:
        raise Stop(*worded("export.hub-unreachable", error=error)) from None
    Pushed(made.model, made.format, address.repo_id, commit.oid).write(source.home)
    tell(f"It can be read by {'you and those whom you let' if private else 'everybody'}.")
    return str(address)


def _require_room(api: HfApi, name: str, public: bool) -> None:
    """Raises Stop if a repository of that name holds another model, or is public without
    `--public`."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        known = api.model_info(name)
    except RepositoryNotFoundError:
        return
    if not known.private and not public:
        raise Stop(*worded("export.public-repository", name=name))
    files = {one.rfilename for one in known.siblings or ()}
    if EXPORTED not in files and files - {
        ".gitattributes",
        "README.md",
    }:  # those of a new repository
        raise Stop(
            f"`{name}` contains another model, which `recipe push` did not upload.",
            "Name another repository.",
        )


def _require_arrived(
    api: HfApi, name: str, commit: str, folder: Path, files: Mapping[str, str]
) -> None:
    """Compares the hub's copy with the export: all files, and the hash of each file that the hub
    stores by hash."""
    there = {
        one.rfilename: one
        for one in api.model_info(name, revision=commit, files_metadata=True).siblings or ()
    }
    for file in (*files, EXPORTED):
        if file not in there:
            raise unproven(f"`{file}` has not arrived at the hub", "Push it again.")
        kept = there[file].lfs
        if kept is not None and kept.sha256 != sha256(folder / file):
            raise unproven(f"the hub has another `{file}`", "Push it again.")


# the environment variable with a registry's token (`oc whoami --show-token`)
TOKEN = "MODEL_REGISTRY_TOKEN"


def register(source: TrainedModel, server: str, name: str, version: str, uri: str | None) -> str:
    """Enters a model as a new version, reads it back, and returns its address. server: the
    registry's; uri: the model's address, by default where it was pushed to or trained. Raises Stop
    if that is unknown, or the registry refuses."""
    import aiohttp
    from model_registry import ModelRegistry
    from model_registry.exceptions import StoreError
    from mr_openapi.exceptions import ApiException

    (where, form), facts, table = (
        _where(source, uri),
        lineage(source),
        packaged.toml(__file__, "lineage.toml"),
    )
    author = str(os.getuid())
    with suppress(OSError, KeyError):  # a user id may have no entry in the passwd file
        author = getpass.getuser()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a registry without a token is allowed
            registry = ModelRegistry(
                server, author=author, user_token=os.environ.get(TOKEN), custom_ca=os.environ.get("SSL_CERT_FILE"), async_runner=asyncio.run,
            )  # fmt: skip
        if registry.get_registered_model(name) and registry.get_model_version(name, version):
            raise Stop(
                f"`{name}` has a version `{version}` in that registry.",
                "Name another one with `--version`.",
            )
        registry.register_model(
            name,
            where,
            version=version,
            version_description="\n".join(sentences.first(source.run)),
            model_format_name=form,
            model_format_version="1",
            model_source_kind="recipe-runner",
            metadata=facts,
            **{name: attrgetter(place)(source) for name, place in table["fields"].items()},
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
        said = getattr(error, "body", None) or getattr(error, "reason", None) or str(error)
        reason = " ".join(str(said).split())[:300]
        raise Stop(
            *worded("export.registry-refuses", server=server, reason=reason, token=TOKEN)
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise Stop(*worded("export.registry-unreachable", server=server, error=error)) from None
    return where


def _where(source: TrainedModel, uri: str | None) -> tuple[str, str]:
    """The model's address, as KServe reads it, and its format."""
    if uri:
        return uri, "gguf" if uri.endswith(".gguf") else "safetensors"
    pushed = Pushed.read(source.home)
    if pushed and pushed.model == source.stage.weights:
        return f"hf://{pushed.repository}:{pushed.commit}", pushed.format
    if source.run.state.origin == "cluster":
        site = source.run.planned.settings.get("openshift") or {}
        inner = source.folder.path.relative_to(source.folder.run.path)
        place = on_claim(
            str(PurePosixPath(site.get("output_dir") or "", inner, BEST_MODEL)), site.get("claims")
        )
        if place:
            return place.uri, "safetensors"
    raise Stop(*worded("export.no-address"))


def lineage(source: TrainedModel) -> dict[str, str | int | float | bool]:
    """A model's origin and quality as flat properties, without those that are unknown."""
    table = packaged.toml(__file__, "lineage.toml")
    stage = source.stage
    facts = {name: attrgetter(place)(source) for name, place in table["properties"].items()} | {
        "runner": __version__
    }
    for part, data in source.run.data.items():
        facts |= {
            f"{name}.{part}" if part else name: data.record.get(key)
            for name, key in table["data"].items()
        }
    numbers = (
        (name, value)
        for name, value in card.measured(source).items()
        if isinstance(value, int | float)
    )
    facts |= {f"evaluation.{name}": float(value) for name, value in numbers}
    if stage.verdicts:
        if stage.open:
            if stage.promotion:
                facts["gates"] = "overruled"
            else:
                facts["gates"] = "open"
        else:
            facts["gates"] = "closed"
    return {name: value for name, value in facts.items() if value is not None and value != ""}
