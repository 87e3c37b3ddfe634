"""Schemas and starter recipes: built from their sources, documented to the last setting, accepted
by other validators."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from runner import __version__, data, parts, scenarios
from runner.check import by_schema
from runner.recipe import reading
from runner.tools import packaged
from tests.conftest import MINIMAL, ROOT, STARTERS


def settings(schema: dict, path: str = ""):
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}", part
        yield from settings(part, f"{path}{name}.")
        if "items" in part:
            yield f"{path}{name}[]", part["items"]
            yield from settings(part["items"], f"{path}{name}[].")


def test_schemas_and_settings_reference_are_built_from_their_sources():
    done = subprocess.run(
        [sys.executable, "schemas/build.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def second_clone(tmp_path) -> Path:
    for folder in ("runner", "schemas"):
        shutil.copytree(
            ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def build(clone: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": str(ROOT)}  # as if this clone were installed
    return subprocess.run(
        [sys.executable, "schemas/build.py"], cwd=clone, capture_output=True, text=True, env=env
    )


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert text.count(old) == 1
    file.write_text(text.replace(old, new), "utf-8")


def test_a_second_clone_builds_its_own_schemas_whatever_is_installed(second_clone):
    replace_in(
        second_clone / "runner/scenarios/language/schema.yaml",
        "Trains a LoRA adapter",
        "Of the second clone",
    )
    done = build(second_clone)
    assert done.returncode == 0, done.stderr
    built = [file.read_text("utf-8") for file in (second_clone / "schemas").glob("*.json")]
    assert any("Of the second clone" in text for text in built)


def test_two_scenarios_that_define_one_setting_differently_are_an_error(second_clone):
    """A stage takes `train.steps` from the pipeline's schema, and everything else of `train` from
    that of one stage."""
    language = second_clone / "runner/scenarios/language/schema.yaml"
    epochs = "\n      epochs:\n"
    steps = "\n      steps: {title: Steps, description: Of a language recipe., type: integer, examples: [5]}"
    replace_in(language, epochs, steps + epochs)
    done = build(second_clone)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the setting `steps` differently" in done.stderr
    assert (
        "runner/scenarios/language/schema.yaml and runner/parts/pretrain/schema.yaml" in done.stderr
    )


def test_two_scenarios_may_refer_to_one_definition(second_clone):
    shared = "{$ref: shared/schema.yaml#/seed}"
    for file, section in (("scenarios/language", "train"), ("parts/pretrain", "train")):
        source = second_clone / "runner" / file / "schema.yaml"
        schema = yaml.safe_load(source.read_text("utf-8"))
        schema["properties"][section]["properties"]["curriculum"] = yaml.safe_load(shared)
        source.write_text(yaml.safe_dump(schema, sort_keys=False), "utf-8")
    done = build(second_clone)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (
            "x-axolotl: kto_desirable_weight",
            "x-axolotl-name: kto_desirable_weight",
            "x-axolotl-name is not a keyword",
        ),
        (
            "x-rows: [labels]\n        x-axolotl: kto_desirable_weight",
            "x-rows: [label]",
            "'label' is not one of",
        ),
        ("x-never-none: true", "x-never-none: yes please", "True was expected"),
        (
            "x-elsewhere: Delete the line.",
            "x-elsewhere: [Delete the line.]  #",
            "is not of type 'string'",
        ),
    ],
)
def test_a_misused_keyword_is_an_error_that_names_its_file_and_its_setting(
    second_clone, old, new, named
):
    replace_in(second_clone / "runner/scenarios/language/schema.yaml", old, new)
    done = build(second_clone)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        done.stderr.startswith("runner/scenarios/language/schema.yaml: `properties.")
        and named in done.stderr
    )


def test_every_keyword_is_described_and_used_in_schemas_and_in_code():
    described = yaml.safe_load((ROOT / "schemas" / "keywords.yaml").read_text("utf-8"))
    keywords = set(described["properties"])
    assert keywords == set(described["propertyNames"]["anyOf"][1]["enum"])
    assert all(keyword["description"] for keyword in described["properties"].values())
    sources = [
        file for name in ("schema.yaml", "sections.yaml") for file in (ROOT / "runner").rglob(name)
    ]
    used = {
        keyword
        for file in sources
        for keyword in re.findall(r"(?<![\w-])x-[a-z-]+(?=:)", file.read_text("utf-8"))
    }
    assert used == keywords
    code = "".join(
        file.read_text("utf-8")
        for file in (*(ROOT / "runner").rglob("*.py"), *(ROOT / "schemas").glob("*.py"))
    )
    computed = {"x-scenario", "x-by-scenario"}  # `x-{key}` in scenarios.narrowed
    assert {keyword for keyword in keywords if f'"{keyword}"' in code} == keywords - computed
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    assert {keyword for keyword in keywords if f"`{keyword}`" not in page} == set()


@pytest.mark.parametrize("scenario", scenarios.names())
def test_every_setting_says_what_it_is(scenario):
    schema = json.loads(by_schema.schema_text(scenario))
    Draft202012Validator.check_schema(schema)
    found = list(settings(schema))
    assert len(found) > 20
    for name, part in found:
        assert part.get("title"), f"{name} has no title"
        assert len(part.get("description", "")) > 15, f"{name} has no description"
        is_section = part.get("type") == "object" and "properties" in part
        assert is_section or part.get("examples"), f"{name} has no example"
        if part.get("type") == "object":
            assert "additionalProperties" in part, f"{name} lets every key pass"
        for example in part.get("examples", []):
            assert Draft202012Validator(part).is_valid(example), (
                f"{name}: its example {example} is not valid"
            )
        if "default" in part:
            assert Draft202012Validator(part).is_valid(part["default"]), (
                f"{name}: its default is not valid"
            )


def test_there_is_a_schema_a_scenario_and_a_starter_recipe():
    schemas = (ROOT / "schemas").glob("*.schema.json")
    built = {path.name.removesuffix(".schema.json") for path in schemas}
    assert built == set(scenarios.names()), (
        "a scenario is a folder with schema.yaml and translation.py; then `make schemas`"
    )
    used = {reading.read(path).data["scenario"] for path in MINIMAL}
    assert used == built, "every scenario needs a minimal starter recipe"


@pytest.mark.parametrize("path", MINIMAL, ids=lambda path: path.stem)
def test_a_minimal_starter_is_short(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= {"from-scratch": 35, "pretrain": 25, "stages": 25}.get(
        path.stem, 15
    )


def test_parts_bring_no_kind_of_data_and_no_engine_that_another_has():
    seen = {("preparers", kind) for kind in data.PREPARERS} | {
        ("engines", "axolotl"),
        ("engines", "runner"),
    }
    brought = [
        (table, name, part.module(module))
        for part in parts.found().values()
        for table in ("preparers", "engines")
        for name, module in getattr(part, table).items()
    ]
    assert brought
    for table, name, module in brought:
        assert (table, name) not in seen, f"{module}: {name} is there already"
        seen.add((table, name))
        assert importlib.util.find_spec(module)


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_another_validator_accepts_every_starter_recipe(path):
    scenario = reading.read(path).data["scenario"]
    schema = ROOT / "schemas" / f"{scenario}.schema.json"
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--schemafile", str(schema), str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_the_first_line_of_a_recipe_tells_editors_its_schema(path):
    document = reading.read(path)
    first = document.text.split("\n", 1)[0]
    name = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert name, first
    assert (
        path.parent / name[1]
    ).resolve() == ROOT / "schemas" / f"{document.data['scenario']}.schema.json"


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_every_line_of_a_recipe_says_what_it_does(path):
    document = reading.read(path)
    looked_at = 0
    lines = document.text.splitlines()
    for key, place in document.keys.items():
        line = lines[place.line - 1]
        looked_at += 1
        assert re.search(r"\s#\s*\S+", line) or lines[place.line - 2].strip().startswith("#"), (
            f"line {place.line}: {key}"
        )
    assert looked_at > 8


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: path.stem)
def test_numbers_of_a_recipe_say_what_they_cost_or_buy(path):
    document = reading.read(path)
    lines = document.text.splitlines()
    for key, place in document.values.items():
        value = document.lookup(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            comment = lines[place.line - 1].partition(" #")[2]
            assert len(comment.split()) >= 5, (
                f"line {place.line}: {key} says too little: {comment!r}"
            )


@pytest.mark.parametrize("scenario", scenarios.names())
def test_a_copy_of_a_schema_is_whole_and_has_a_name_with_the_version_and_no_address(scenario):
    text = by_schema.schema_text(scenario)
    assert "$ref" not in text and packaged.DEFINITIONS not in text
    schema = json.loads(text)
    assert schema["$id"] == f"urn:recipe-runner:{scenario}:{__version__}"
    assert list(schema)[:2] == ["$schema", "$id"]
    for (path, part), (source_path, source) in zip(
        settings(schema), settings(scenarios.composed(scenario)), strict=True
    ):
        assert path == source_path
        for keyword in ("description", "type", "enum", "default", "required", "x-axolotl"):
            assert part.get(keyword) == source.get(keyword), path


def test_what_several_schemas_have_in_common_is_written_once():
    """A definition that nothing refers to, or only one place, would be in the way of a reader."""
    texts = {file: file.read_text("utf-8") for file in (ROOT / "schemas").glob("*.json")}
    definitions = json.loads(texts[packaged.definitions_file()])["$defs"]
    assert len(definitions) > 50
    for name in definitions:
        reference = f'"{packaged.DEFINITIONS}#/$defs/{name}"'
        assert sum(text.count(reference) for text in texts.values()) > 1, name
    whole = sum(len(by_schema.schema_text(scenario)) for scenario in scenarios.names())
    assert sum(map(len, texts.values())) < whole / 3
