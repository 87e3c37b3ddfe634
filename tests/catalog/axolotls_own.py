"""Axolotl's own validation, with the plugins of a config registered as its own command does."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel

from runner import catalog


def validated(config: dict[str, Any], gpu: catalog.Gpu, gpus: int) -> dict[str, Any]:
    """A config as Axolotl has it after its validation. Raises whatever that raises."""
    from axolotl.cli.config import plugin_set_cfg, prepare_plugins
    from axolotl.integrations.base import PluginManager
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    _schema_made_once()
    cfg = DictDefault(config)
    # Registering one again tells so, and makes it anew.
    if not {*config.get("plugins", ())} <= {*PluginManager.get_instance().plugins}:
        prepare_plugins(cfg)
    checked = validate_config(
        cfg,
        capabilities={
            "bf16": gpu.bf16,
            "fp8": gpu.fp8,
            "tf32": gpu.bf16,
            "n_gpu": gpus,
            "compute_capability": f"sm_{gpu.compute_capability.replace('.', '')}",
        },
        env_capabilities={"torch_version": "2.13.0"},
    )
    plugin_set_cfg(checked)
    return dict(checked.to_dict())


@cache
def _schema_made_once() -> None:
    """For each set of plugins: Axolotl makes the classes of its schema anew for every config, which
    takes 0.2 s."""
    from axolotl.integrations import config as integrations
    from axolotl.integrations.base import PluginManager
    from axolotl.utils import config as reading

    made: dict[tuple[str, ...], Any] = {}
    merge = integrations.merge_input_args

    def merged() -> Any:
        plugins = tuple(PluginManager.get_instance().plugins)
        return made.get(plugins) or made.setdefault(plugins, merge())

    integrations.merge_input_args = reading.merge_input_args = merged


@cache
def known_keys(model: type) -> dict[str, list[type]]:
    """The keys of a pydantic model, by name and alias, or of a dataclass, with those of nested
    sections."""

    def sections(annotation: Any) -> Iterator[type]:
        if isinstance(annotation, type) and (
            issubclass(annotation, BaseModel) or is_dataclass(annotation)
        ):
            yield annotation
        for inner in typing.get_args(annotation):
            yield from sections(inner)

    if is_dataclass(model):
        hints = typing.get_type_hints(model)
        return {field.name: list(sections(hints[field.name])) for field in fields(model)}
    keys: dict[str, list[type]] = {}
    for name, field in model.model_fields.items():
        inner = list(sections(field.annotation))
        aliases = getattr(field.validation_alias, "choices", [field.validation_alias])
        for known in {name, field.alias, *aliases} - {None}:
            keys[known] = inner
    return keys


def unknown_keys(config: dict[str, Any]) -> list[str]:
    """Keys of a validated config that Axolotl and its plugins do not have: it drops them without a
    word."""
    from axolotl.integrations.config import merge_input_args

    return _unknown(config, [merge_input_args()[1]], "")


def _unknown(value: Any, models: list[type], path: str) -> list[str]:
    """Keys that none of the models has; sections that the models leave open pass."""
    if isinstance(value, list):
        return [found for item in value for found in _unknown(item, models, path)]
    if not isinstance(value, dict) or not models:
        return []
    keys: dict[str, list[type]] = {}
    for model in models:
        keys |= known_keys(model)
    found = [f"{path}{key}" for key in value if key not in keys]
    for key, inner in value.items():
        if key in keys:
            found += _unknown(inner, keys[key], f"{path}{key}.")
    return found
