"""Writing YAML that people can read and that YAML 1.1 readers (PyYAML, kubectl) understand as we mean it."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, lists indented below their key, no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)


def _string(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _string)


def yaml_text(value: Any) -> str:
    """YAML in the order given. PyYAML writes 2e-05 as `2.0e-05`, which it and Axolotl read as a number."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
