"""Registry: a model, where it lies, and where it comes from, entered in a Model Registry (Kubeflow's, which OpenShift AI has)."""

from __future__ import annotations

import asyncio
import getpass
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any

from runner import __version__
from runner.parts.export import card
from runner.parts.export.hub import Pushed
from runner.parts.export.source import Source
from runner.parts.export.unproven import unproven
from runner.parts.report import sentences
from runner.tools.problem import Stop
from runner.tools.run_files import BEST_MODEL

# In the environment: what a person shows a registry that asks who they are (`oc whoami --show-token`).
TOKEN = "MODEL_REGISTRY_TOKEN"
_KEPT = str | int | float | bool


def register(source: Source, server: str, name: str, version: str, uri: str | None) -> str:
    """Enters a model as a new version, reads it back, and gives where it says that the model lies. server: the registry's address;
    uri: where the model lies, by default where it was pushed to, or on the claim that it was trained on.

    Raises Stop where nobody knows where the model lies, or the registry refuses.
    """
    where, form = _where(source, uri)
    facts = lineage(source)
    with _refusals(server):
        from model_registry import ModelRegistry

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is no token: a registry without one is asked so
            registry = ModelRegistry(
                server, author=_author(), user_token=os.environ.get(TOKEN), custom_ca=os.environ.get("SSL_CERT_FILE"), async_runner=asyncio.run,
            )  # fmt: skip
        known = registry.get_registered_model(name)
        if known and registry.get_model_version(name, version):
            raise Stop(f"`{name}` has a version `{version}` in that registry.", "Name another one with `--version`.")
        registry.register_model(
            name,
            where,
            version=version,
            version_description="\n".join(sentences.first(source.run)),
            model_format_name=form,
            model_format_version="1",
            model_source_kind="recipe-runner",
            model_source_class=source.run.kind,
            model_source_group=source.run.name,
            model_source_id=source.run.state.id,
            model_source_name=source.stage.name,
            metadata=facts,
        )
        entered, artifact = registry.get_model_version(name, version), registry.get_model_artifact(name, version)
        if (
            entered is None
            or dict(entered.custom_properties or {}) != facts
            or artifact is None
            or artifact.uri != where
        ):
            raise unproven("the registry does not say what was entered", "Look at what it has of that version.")
    return where


def _author() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user whom nobody has written down
        return str(os.getuid())


def _where(source: Source, uri: str | None) -> tuple[str, str]:
    """Where the model lies, as KServe reads it, and in what format."""
    pushed = Pushed.read(source.home)
    if uri:
        return uri, "gguf" if uri.endswith(".gguf") else "safetensors"
    if pushed and pushed.model == source.stage.weights:
        return f"hf://{pushed.repository}:{pushed.commit}", pushed.format
    if source.run.state.origin == "cluster" and (claim := _claim(source)):
        return claim, "safetensors"
    raise Stop(
        "A registry must say where the model lies, and this one lies on this machine alone.",
        "`recipe push` sends it to the hub; `--uri` names where else you have put it (hf://, s3://, oci:// or pvc://).",
    )


def _claim(source: Source) -> str:
    """Where a model that was trained on a cluster lies there, on the first claim whose folder it is below."""
    told = source.run.planned.settings.get("openshift") or {}
    inner = source.folder.path.relative_to(source.folder.run.path)
    home = PurePosixPath(str(told.get("output_dir") or "")) / inner / BEST_MODEL
    for claim in told.get("claims") or ():
        if home.is_relative_to(str(claim.get("mount"))):
            return f"pvc://{claim['name']}/{home.relative_to(claim['mount'])}"
    return ""


def lineage(source: Source) -> dict[str, _KEPT]:
    """Where a model comes from and how good it is, as flat properties: those that are known."""
    run, stage, planned = source.run, source.stage, source.run.planned
    facts: dict[str, Any] = {
        "recipe": planned.file,
        "recipe_fingerprint": planned.fingerprint,
        "recipe_commit": planned.commit,
        "scenario": planned.scenario,
        "run": run.state.id,
        "kind": run.kind,
        "stage": stage.name,
        "trained_at": planned.at,
        "base_model": planned.model,
        "base_model_revision": planned.revision,
        "licence": planned.licence,
        "weights_hash": stage.weights,
        "runner": __version__,
    }
    for part, data in run.data.items():
        of = f".{part}" if part else ""
        for name, key in (
            ("data", "source"),
            ("data_hash", "key"),
            ("data_licence", "licence"),
            ("data_rows", "train_rows"),
        ):
            facts[f"{name}{of}"] = data.record.get(key)
    for name in ("steps", "first_validation_loss", "best_validation_loss"):
        facts[name] = getattr(stage.summary, name)
    facts |= {f"evaluation.{name}": value for name, value in _numbers(card.measured(source)).items()}
    if stage.verdicts:
        facts["gates"] = ("overruled" if stage.promoted else "open") if stage.open else "closed"
    return {name: value for name, value in facts.items() if value is not None and value != ""}


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if isinstance(value, int | float)}


@contextmanager
def _refusals(server: str) -> Iterator[None]:
    """What the registry refuses, in a sentence. Raises ModuleNotFoundError where the extra `registry` is not installed."""
    import aiohttp
    from model_registry.exceptions import StoreError
    from mr_openapi.exceptions import ApiException

    try:
        yield
    except (StoreError, ApiException) as error:
        said = getattr(error, "body", None) or getattr(error, "reason", None) or str(error)
        raise Stop(
            f"The registry at {server} refuses: {' '.join(str(said).split())[:300]}",
            f"A registry that asks who you are reads `{TOKEN}`: `oc whoami --show-token` gives one.",
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise Stop(
            f"The registry at {server} cannot be reached: {error}", "Check its address and the network."
        ) from None
