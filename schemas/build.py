"""Builds `schemas/<scenario>.schema.json`, `schemas/definitions.json`, `docs/settings.md` and the
types of `recipe.section.name` (`runner/recipe/sections.pyi`) from each scenario's `schema.yaml`, in
its folder.

`python schemas/build.py` writes them; `python schemas/build.py --check` exits 1 where one is out of
date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this clone's package, not an installed one

import editors
import sharing
from jsonschema import Draft202012Validator

from runner import parts, scenarios
from runner.recipe import reading as yaml_file
from runner.scenarios import composed
from runner.tools import packaged
from runner.tools.problem import Stop

RUNNER = ROOT / "runner"
PARTS = RUNNER / "parts"


def schemas() -> dict[str, dict[str, Any]]:
    """Every scenario's whole schema, by the scenario's name."""
    return {scenario: composed(scenario) for scenario in scenarios.names()}


def misused_keywords() -> list[str]:
    """What is wrong with keywords of ours in the sources of all schemas, a line each; see
    `keywords.yaml`."""
    keywords = Draft202012Validator(yaml_file.read(ROOT / "schemas" / "keywords.yaml").data)
    problems = []
    for file in sorted([*RUNNER.rglob("schema.yaml"), *RUNNER.rglob("sections.yaml")]):
        for path, schema in _schemas_within(yaml_file.read(file).data):
            # null removes a keyword of the schema that this one is laid over.
            present = {name: value for name, value in schema.items() if value is not None}
            for error in keywords.iter_errors(present):
                where = ".".join([*path, *map(str, error.absolute_path)])
                problem = error.message
                if error.validator == "anyOf":
                    problem = f"{error.instance} is not a keyword"
                problems.append(f"{file.relative_to(ROOT)}: `{where}`: {problem}")
    return problems


def _schemas_within(
    value: object, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, object]]]:
    """Each mapping of a file, with its path; without those that map names of settings to
    sentences."""
    if isinstance(value, Mapping):
        yield path, value
        for name, inner in value.items():
            if name not in ("x-renamed", "examples", "default"):
                yield from _schemas_within(inner, (*path, str(name)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _schemas_within(inner, (*path, str(number)))


def reference(whole: dict[str, dict[str, Any]]) -> str:
    """The settings reference in Markdown: a table a section, a section a scenario."""
    lines = [
        "# Every setting",
        "",
        "<!-- Generated from the `schema.yaml` of each scenario by `make schemas`. -->",
        "",
        "For people who look up a setting of a recipe. The line `scenario` selects the table that is for your recipe. `recipe check` uses the",
        "same source, and `recipe explain SETTING` prints one entry.",
        "",
        "A name such as `train.epochs` is the line `epochs` in the section `train`; `[]` is an entry of a list. Some settings, values and defaults",
        "are only for some kinds of rows: conversations, songs, text, preferences (a better and a worse answer), labels (one answer, labelled good",
        "or bad) and prompts ([learning from the model's own answers](rewards.md)).",
        "",
    ]
    for name, schema in whole.items():
        lines += [f"## Scenario `{name}`", "", schema["description"], ""]
        lines += ["| setting | meaning | values | default |", "|---|---|---|---|"]
        lines += list(_rows("", schema))
        lines.append("")
    return "\n".join(lines)


def _rows(prefix: str, schema: dict[str, Any]):
    for key, part in schema.get("properties", {}).items():
        path = f"{prefix}{key}"
        needed = " (required)" if key in schema.get("required", []) else ""
        default = _cell(part, editors.default)
        rows = f" Only for {editors.each(part['x-rows'])}." if "x-rows" in part else ""
        meaning = part["description"].replace("|", "\\|")
        yield f"| `{path}`{needed} | {meaning}{rows} | {_cell(part, _values)} | {default} |"
        yield from _rows(f"{path}.", part)
        if part.get("items", {}).get("properties"):
            yield from _rows(f"{path}[].", part["items"])


def _cell(part: dict[str, Any], words: Callable[[Mapping[str, Any]], str]) -> str:
    """What holds of a setting; for each kind of rows, if they differ."""
    values = editors.by_rows(part, words)
    cells = [f"{said or 'none'} ({editors.each(rows)})" for said, rows in values.items()]
    return ("; ".join(cells) if len(values) > 1 else next(iter(values))).replace("|", "\\|")


def _values(part: Mapping[str, Any]) -> str:
    if "const" in part:
        return f"`{part['const']}`"
    if "enum" in part:
        return ", ".join(f"`{value}`" for value in part["enum"])
    kinds = {"object": "section", "array": "list", "string": "text", "boolean": "`true`, `false`"}
    return (
        editors.allowed(part)
        if "x-pattern-means" in part or part["type"] not in kinds
        else kinds[part["type"]]
    )


def types(schemas: dict[str, dict[str, Any]]) -> str:
    """A stub with a class for each section, over all scenarios: where they differ, a setting has
    all their types."""
    classes: dict[str, dict[str, list[str]]] = {"Sections": {}}
    for schema in schemas.values():
        _add_types(classes, "Sections", "", schema)
    lines = [
        '"""What each setting of a recipe is, over all scenarios. `make schemas` generates it '
        'from the\n`schema.yaml` of every scenario."""',
        "",
        "from typing import Any, Generic, Literal, TypeVar",
        "",
        "from runner.tools.settings import Settings",
        "",
        'Name = TypeVar("Name", bound=str)',
        "",
        "class TypedSection(Settings, Generic[Name]):",
        '    """A section with settings of these names alone."""',
        "",
        "    def __getitem__(self, key: Name) -> Any: ...  # type: ignore[override]",
        "    def get(self, key: Name, default: Any = None) -> Any: ...  # type: ignore[override]",
    ]
    for name, settings in classes.items():
        known = ", ".join(f'"{setting}"' for setting in settings)
        base = "" if name == "Sections" else f"(TypedSection[Literal[{known}]])"
        lines += ["", f"class {name}{base}:"]
        lines += [f"    {key}: {_union(kinds)}" for key, kinds in settings.items()]
    return "\n".join(lines) + "\n"


def _union(kinds: list[str]) -> str:
    """One type of several; the choices of all scenarios in one `Literal`, and None last."""
    choices = [kind.removeprefix("=") for kind in kinds if kind.startswith("=")]
    others = [kind for kind in kinds if not kind.startswith("=") and kind != "None"]
    return " | ".join(
        [
            *([f"Literal[{', '.join(choices)}]"] if choices else []),
            *others,
            *(["None"] if "None" in kinds else []),
        ]
    )


def _add_types(
    classes: dict[str, dict[str, list[str]]], name: str, prefix: str, schema: dict[str, Any]
) -> None:
    known = classes.setdefault(name, {})
    for key, part in schema["properties"].items():
        kinds = known.setdefault(key, [])
        # What is not there is None, unless the schema fills it in
        # (runner.recipe.recipe.with_defaults).
        filled = (
            ("default" in part and "x-default-unless" not in part)
            or "x-default-twice" in part
            or (
                part.get("type") == "object"
                and not part.get("required")
                and not part.get("x-only-written")
            )
            or "x-never-none" in part
        )
        there = [] if key in schema.get("required", []) or filled else ["None"]
        kinds += [
            kind
            for kind in [*_kinds(classes, f"{prefix}{key.title().replace('_', '')}", part), *there]
            if kind not in kinds
        ]


def _kinds(classes: dict[str, dict[str, list[str]]], name: str, part: dict[str, Any]) -> list[str]:
    """The types of a setting, a choice as `="word"`; name: of the class, if it is a section."""
    if "const" in part or "enum" in part:
        return [f"={json.dumps(value)}" for value in part.get("enum", [part.get("const")])]
    if "x-own-recipe" in part:
        return ["Settings"]  # those of recipes of its technique
    if part["type"] == "array":
        return [f"tuple[{_union(_kinds(classes, name, part['items']))}, ...]"]
    if part["type"] == "object" and "properties" in part:
        _add_types(classes, name, name, part)
        return [name]
    plain = {
        "string": "str",
        "integer": "int",
        "number": "float",
        "boolean": "bool",
        "object": "Settings",
    }
    return [plain[part["type"]]]


def known() -> dict[str, dict[str, list[str]]]:
    """What each of our parts owns, for the message where one is not installed."""
    return {
        file.parent.name: {
            kind: list(getattr(parts.found()[file.parent.name], kind)) for kind in parts.OWNED
        }
        for file in sorted(PARTS.glob("*/part.toml"))
    }


def outputs() -> dict[Path, str]:
    """Everything that is built: path and text."""
    whole = schemas()
    for_editors = {name: editors.with_words(schema) for name, schema in whole.items()}
    small, definitions = sharing.shared(for_editors)
    folder = ROOT / "schemas"
    files = {folder / f"{name}.schema.json": _as_json(schema) for name, schema in small.items()}
    definitions_file = {"$schema": scenarios.DIALECT, "$defs": definitions}
    files[folder / packaged.DEFINITIONS] = _as_json(definitions_file)
    return files | {
        ROOT / "docs" / "settings.md": reference(whole),
        ROOT / "runner" / "recipe" / "sections.pyi": types(whole),
        PARTS / "known.json": json.dumps(known(), indent=2) + "\n",
    }


def _as_json(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    if misused := misused_keywords():
        raise Stop("\n".join(misused), "schemas/keywords.yaml describes each keyword.")
    stale = []
    for path, text in outputs().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in stale:
        print(
            f"{path}: {'out of date, run `make schemas`' if '--check' in sys.argv else 'written'}"
        )
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Stop as stop:
        sys.exit(stop.text)
