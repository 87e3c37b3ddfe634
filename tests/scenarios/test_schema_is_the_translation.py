"""Where a setting becomes one of Axolotl's unchanged, the schema says so; read backwards, it gives
what was written."""

from __future__ import annotations

import json

import pytest
import yaml

from runner.check import by_schema
from runner.check.validate import load
from runner.scenarios.render import emit
from runner.tools.settings import Settings
from tests.conftest import RENDERED

AXOLOTLS = [path for path in RENDERED if path.stem != "resnet"]


def read_back(config: dict, section: Settings, schema: dict) -> dict:
    """The settings of a section that the emitted file has by the names in the schema."""
    leaves = ((name, part.get("x-axolotl")) for name, part in schema["properties"].items())
    return {name: config[key] for name, key in leaves if key and key in config and name in section}


@pytest.mark.parametrize("path", AXOLOTLS, ids=lambda path: path.stem)
def test_the_emitted_file_and_the_schema_give_what_is_written(path):
    recipe, _, _ = load(path)
    files = {
        file.path: yaml.safe_load(file.text)
        for file in emit(recipe)
        if file.path.endswith("axolotl.yaml")
    }
    files = {
        name: config
        for name, config in files.items()
        if "base_model" in config and "learning_rate" in config
    }
    assert files
    for name, config in files.items():
        trained = recipe.of_stage(name.split("/")[0])
        whole = by_schema.schema(trained.scenario)["properties"]
        for home in ("model", "speed", "train"):
            if home not in trained.settings:
                continue
            section = trained.settings[home]
            expected = json.loads(json.dumps(section.for_axolotl))
            found = read_back(config, section, whole[home])
            assert len(found) == len(expected) and (found or home == "speed"), (name, home)
            assert found == {key: section[key] for key in found}, (name, home)


def test_a_setting_is_named_that_a_computed_one_follows_from(edited):
    from runner.check.validate import examine

    changed = edited(("demo:  ", "advanced:\n  axolotl:\n    attn_implementation: eager\ndemo:  "))
    (problem,) = [each for each in examine(changed) if each.severity == "error"]
    assert problem.hint == "Delete it, and change `model.attention` instead."
