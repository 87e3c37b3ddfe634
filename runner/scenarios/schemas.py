"""The schema of a scenario, made of its own file, the pieces that scenarios share, and the sections of parts.

`make schemas` writes those of ours, once; what other people's parts bring is put together when it is read.
"""

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from runner import __version__, parts, scenarios
from runner.recipe import reading

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def composed(scenario: str) -> Schema:
    """The whole schema of a scenario, as its package has it now."""
    source = inlined(_source(scenario))
    source["properties"]["scenario"] |= {"const": scenario, "examples": [scenario]}
    # What tells copies of a schema apart: its scenario and version, and no address that somebody would have to keep.
    return {"$schema": DIALECT, "$id": f"urn:recipe-runner:{scenario}:{__version__}", **source}


def _source(scenario: str) -> Schema:
    return dict(reading.read(_file(scenarios.packages()[scenario], "schema.yaml")).data)


@cache
def foreign_sections() -> Schema:
    """The sections that other people's parts bring to every scenario."""
    names = [section for part in parts.found().values() if part.foreign for section in part.sections]
    return {name: inlined(_pieces()[name]) for name in names}


def inlined(node: Any) -> Any:
    """Replaces `$ref: FILE#/NAME` by the piece of that name, and `$ref: SCENARIO/schema.yaml` by that scenario's schema; keys beside
    `$ref` win, those of a section one by one."""
    if isinstance(node, list):
        return [inlined(item) for item in node]
    if not isinstance(node, dict):
        return node
    while "$ref" in node:
        file, _, name = node["$ref"].partition("#/")
        piece = _pieces()[name] if name else _source(file.partition("/")[0])
        node = _merged(piece, {key: value for key, value in node.items() if key != "$ref"})
    return {key: inlined(value) for key, value in node.items()}


def _merged(piece: Mapping[str, Any], own: Mapping[str, Any]) -> Schema:
    both = {key: _merged(piece[key], value) for key, value in own.items() if isinstance(value, dict) and key in piece}
    return {**piece, **own, **both}


@cache
def _pieces() -> Schema:
    """What schemas may refer to, by name: what scenarios share, and the sections of every part."""
    owners = [part.package for part in parts.found().values() if part.sections]
    files = [Path(__file__).parent / "shared" / "schema.yaml", *(_file(owner, "sections.yaml") for owner in owners)]
    return {name: piece for file in files for name, piece in reading.read(file).data.items()}


def _file(package: str, name: str) -> Path:
    spec = find_spec(package)
    assert spec and spec.origin, package
    return Path(spec.origin).with_name(name)
