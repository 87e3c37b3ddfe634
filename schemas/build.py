"""Builds `schemas/<scenario>.schema.json` and `docs/settings.md` from the YAML sources in `schemas/src/`.

`python schemas/build.py` writes them; `python schemas/build.py --check` exits 1 where one is out of date.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from runner.recipe import reading

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "schemas" / "src"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def load(name: str) -> Any:
    return reading.read(SOURCES / name).data


def inline(node: Any, common: dict[str, Any]) -> Any:
    """Replaces `$ref: common.yaml#/NAME` by the piece of that name; keys beside `$ref` win."""
    if isinstance(node, list):
        return [inline(item, common) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        piece = common[node["$ref"].removeprefix("common.yaml#/")]
        node = piece | {key: value for key, value in node.items() if key != "$ref"}
    return {key: inline(value, common) for key, value in node.items()}


def scenarios() -> dict[str, dict[str, Any]]:
    """Every scenario's whole schema, by name."""
    common = load("common.yaml")
    names = sorted(path.stem for path in SOURCES.glob("*.yaml") if path.stem != "common")
    return {name: {"$schema": DIALECT} | inline(load(f"{name}.yaml"), common) for name in names}


def reference(schemas: dict[str, dict[str, Any]]) -> str:
    """The settings reference in Markdown: a table a section, a section a scenario."""
    lines = [
        "# Every setting",
        "",
        "Generated from `schemas/src/` by `make schemas`. `recipe check` judges by the same source.",
        "",
    ]
    for name, schema in schemas.items():
        lines += [f"## Scenario `{name}`", "", schema["description"], ""]
        lines += ["| setting | meaning | values | default |", "|---|---|---|---|"]
        lines += list(_rows("", schema))
        lines.append("")
    return "\n".join(lines)


def _rows(prefix: str, schema: dict[str, Any]):
    for key, part in schema.get("properties", {}).items():
        path = f"{prefix}{key}"
        needed = " (required)" if key in schema.get("required", []) else ""
        default = f"`{json.dumps(part['default'])}`" if "default" in part else ""
        yield f"| `{path}`{needed} | {part['description']} | {_values(part)} | {default} |"
        yield from _rows(f"{path}.", part)
        if part.get("items", {}).get("properties"):
            yield from _rows(f"{path}[].", part["items"])


def _values(part: dict[str, Any]) -> str:
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    kind = {"object": "section", "array": "list", "string": "text", "boolean": "`true`, `false`"}.get(
        part["type"], part["type"]
    )
    if "x-pattern-means" in part:
        return part["x-pattern-means"].replace("|", "\\|")
    bounds = [
        f"{sign} {part[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in part
    ]
    return " ".join([kind, *bounds])


def outputs() -> dict[Path, str]:
    """Everything that is built: path and text."""
    schemas = scenarios()
    files = {
        ROOT / "schemas" / f"{name}.schema.json": json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        for name, schema in schemas.items()
    }
    return files | {ROOT / "docs" / "settings.md": reference(schemas)}


def main() -> int:
    stale = []
    for path, text in outputs().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{path}: {'out of date, run `make schemas`' if '--check' in sys.argv else 'written'}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
