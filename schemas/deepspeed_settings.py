"""Writes `runner/catalog/deepspeed-settings.json`: what the installed DeepSpeed reads of its
configuration, as a JSON Schema.

`python schemas/deepspeed_settings.py`, after another version of DeepSpeed is pinned; a test holds
that the file is DeepSpeed's own.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this clone's package, not an installed one

from runner.catalog.tables import DEEPSPEED_SETTINGS_FILE
from schemas.axolotl_settings import _by_every_name, _without_words

# What transformers fills in, in place of a value (transformers.integrations.deepspeed).
AUTO = {"const": "auto"}


def compact() -> dict[str, Any]:
    """Every setting that DeepSpeed's class asks for, and the sections of `zero_optimization` with
    the kinds of their values.

    DeepSpeed passes over others without a word, and so they are refused here.
    """
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from pydantic import create_model

    # Its old names carry functions, which no schema can say.
    plain = {name: copy.copy(field) for name, field in DeepSpeedZeroConfig.model_fields.items()}
    for field in plain.values():
        field.json_schema_extra = None
    whole = create_model(
        "zero", **{name: (field.annotation, field) for name, field in plain.items()}
    ).model_json_schema()
    definitions = {name: _without_words(part) for name, part in whole.get("$defs", {}).items()}
    definitions["ZeroStageEnum"]["enum"] = sorted(set(definitions["ZeroStageEnum"]["enum"]))
    # What only runs inside DeepSpeed (`param_names`) is no setting of a file.
    zero = _without_words({"properties": _by_every_name(DeepSpeedZeroConfig, whole["properties"])})
    zero["properties"] = {
        name: {"anyOf": [part, AUTO]} for name, part in zero["properties"].items()
    }
    for part in (zero, *(part for part in definitions.values() if "properties" in part)):
        part["additionalProperties"] = False
    definitions["zero_optimization"] = {"type": "object", **zero}
    named: dict[str, Any] = {name: {} for name in asked()}
    named["zero_optimization"] = {"$ref": "#/$defs/zero_optimization"}
    return {
        "properties": named,
        "$defs": definitions,
        "type": "object",
        "additionalProperties": False,
    }


def asked() -> list[str]:
    """The settings that DeepSpeed's own class looks for, in the order of the alphabet."""
    from deepspeed.runtime.config import DeepSpeedConfig

    class Asked(dict[str, Any]):
        """A file that remembers what it was asked for."""

        names: set[str]

        def __contains__(self, key: object) -> bool:
            self.names.add(str(key))
            return super().__contains__(key)

        def get(self, key: str, default: Any = None) -> Any:
            self.names.add(key)
            return super().get(key, default)

        def __getitem__(self, key: str) -> Any:
            self.names.add(key)
            return super().__getitem__(key)

        def keys(self) -> Any:
            return Keys(self)

    class Keys(list[str]):
        """Its names, which are asked for likewise."""

        def __contains__(self, key: object) -> bool:
            file.names.add(str(key))
            return super().__contains__(key)

    file = Asked(
        train_batch_size=1, optimizer={"type": "Adam", "params": {}}, zero_optimization={"stage": 3}
    )
    file.names = set()
    DeepSpeedConfig(file)
    # accelerate and transformers read this one before DeepSpeed does.
    return sorted(name for name in file.names | {"zero_force_ds_cpu_optimizer"} if name)


def text() -> str:
    return json.dumps(compact(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    DEEPSPEED_SETTINGS_FILE.write_text(text(), encoding="utf-8")
