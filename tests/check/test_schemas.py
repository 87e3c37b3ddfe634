"""Schemas and starter recipes: built from their sources, documented to the last setting, accepted by other validators."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

from runner import __version__, data, parts, scenarios
from runner.recipe import reading
from tests.conftest import MINIMAL, ROOT, STARTERS

SCHEMAS = sorted((ROOT / "schemas").glob("*.schema.json"))


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


def test_a_second_clone_builds_its_own_schemas_whatever_is_installed(tmp_path):
    for folder in ("runner", "schemas"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "runner" / "scenarios" / "language" / "schema.yaml"
    source.write_text(source.read_text("utf-8").replace("Trains a LoRA adapter", "Of the second clone"), "utf-8")
    done = subprocess.run(
        [sys.executable, "schemas/build.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},  # as if this clone were installed
    )
    assert done.returncode == 0, done.stderr
    assert "Of the second clone" in (tmp_path / "schemas" / "lora.schema.json").read_text("utf-8")


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_every_setting_says_what_it_is(path):
    schema = json.loads(path.read_text("utf-8"))
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
            assert Draft202012Validator(part).is_valid(example), f"{name}: its example {example} is not valid"
        if "default" in part:
            assert Draft202012Validator(part).is_valid(part["default"]), f"{name}: its default is not valid"


def test_there_is_a_schema_a_scenario_and_a_starter_recipe():
    built = {path.name.removesuffix(".schema.json") for path in SCHEMAS}
    assert built == set(scenarios.names()), (
        "a scenario is a folder with schema.yaml and translation.py; then `make schemas`"
    )
    used = {reading.read(path).data["scenario"] for path in MINIMAL}
    assert used == built, "every scenario needs a minimal starter recipe"


@pytest.mark.parametrize("path", MINIMAL, ids=lambda path: path.stem)
def test_a_minimal_starter_is_short(path):
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= {"pipeline": 35, "pretrain": 35, "stages": 25}.get(path.stem, 15)


def test_parts_bring_no_kind_of_data_and_no_engine_that_another_has():
    seen = {("preparers", kind) for kind in data.PREPARERS} | {("engines", "axolotl"), ("engines", "runner")}
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
    assert (path.parent / name[1]).resolve() == ROOT / "schemas" / f"{document.data['scenario']}.schema.json"


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
            assert len(comment.split()) >= 5, f"line {place.line}: {key} says too little: {comment!r}"


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_a_schema_has_a_name_of_its_own_with_the_version_and_no_address(path):
    schema = json.loads(path.read_text("utf-8"))
    assert schema["$id"] == f"urn:recipe-runner:{path.name.removesuffix('.schema.json')}:{__version__}"
