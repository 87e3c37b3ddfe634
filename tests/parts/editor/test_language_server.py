"""Editors: the language server that they use for YAML takes every recipe, and knows what a recipe
may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import catalog
from runner.check import by_schema
from runner.recipe import reading
from tests.conftest import RECIPES, ROOT, STARTERS
from tests.parts.editor import language_server

pytestmark = pytest.mark.skipif(
    language_server.found() is None,
    reason="no yaml-language-server here (`make language-server`, with node)",
)


@pytest.fixture(scope="module")
def server():
    with language_server.LanguageServer(ROOT) as one:
        yield one


@pytest.mark.parametrize("path", STARTERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_starter_has_no_complaint(server, path):
    assert server.open(path, path.read_text("utf-8")) == []


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_copy_has_no_complaint_and_finds_its_schema(server, recipe_command, tmp_path, path):
    done = recipe_command("new", "mine", "--from", path.stem, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "mine.yaml"
    assert server.open(copy, copy.read_text("utf-8")) == []
    # It has read the schema beside it: a setting that nobody knows is found.
    assert server.open(tmp_path / "other.yaml", copy.read_text("utf-8") + "nonsense: 1\n")


def schema_of(path: Path) -> dict:
    scenario = reading.read(path).data["scenario"]
    return by_schema.schema(scenario)


@pytest.mark.long
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_section_is_completed(server, path):
    first = path.read_text("utf-8").split("\n", 1)[0]
    schema = schema_of(path)
    whole = path.with_name(f"{path.stem}-sections.yaml")
    server.open(whole, f"{first}\n\n")
    assert set(server.complete(whole, 1, 0)) >= set(schema["properties"])
    looked_at = 0
    for name, part in schema["properties"].items():
        if known := part.get("properties"):
            section = path.with_name(f"{path.stem}-{name}.yaml")
            server.open(section, f"{first}\n{name}:\n  \n")
            proposed = set(server.complete(section, 2, 2))
            assert proposed >= set(known), f"{name}: {set(known) - proposed}"
            looked_at += 1
    assert looked_at > 5


def test_gpus_and_models_are_proposed_with_what_they_have(server):
    path = ROOT / "recipes" / "survival.yaml"
    file = path.with_name("offers.yaml")
    first = path.read_text("utf-8").split("\n", 1)[0]
    server.open(file, f"{first}\nmodel:\n  base: \nmachines:\n  gpu: \n")
    models, gpus = server.complete(file, 2, 8), server.complete(file, 4, 7)
    assert set(models) >= set(catalog.model_ids()) and set(gpus) >= set(catalog.gpu_names())
    assert "3,836,021,760 parameters, licence mit" in str(
        models["microsoft/Phi-4-mini-instruct"]["documentation"]
    )
    assert "training can have" in str(gpus["NVIDIA-A100-SXM4-80GB"]["documentation"])
    assert "44.4 GiB" in str(gpus["NVIDIA-L40S"]["documentation"])


def test_pointing_at_a_setting_says_what_it_does_its_bounds_and_its_default(server):
    path = ROOT / "recipes" / "survival.yaml"
    text = path.read_text("utf-8")
    file = path.with_name("hover.yaml")
    server.open(file, text)
    line = next(n for n, line in enumerate(text.splitlines()) if line.startswith("  epochs:"))
    said = server.hover(file, line, 4)
    assert "How many times training goes through all rows" in said
    assert (
        "For conversations, songs and text: a number, more than 0 and at most 1,000. Default: `3`."
        in said
    )


def test_what_is_wrong_is_flagged_at_its_line_in_plain_words(server):
    path = ROOT / "recipes" / "survival.yaml"
    text = path.read_text("utf-8")
    changed = text.replace("  epochs:", "  epocs:").replace(
        "\nname: survival", "\nname: Survival_1"
    )
    lines = changed.splitlines()
    found = {
        lines[each["range"]["start"]["line"]].split(":")[0].strip(): each
        for each in server.open(path.with_name("wrong.yaml"), changed)
    }
    assert set(found) == {"name", "epocs"}
    assert "epocs" in found["epocs"]["message"]
    assert found["name"]["message"].startswith("It must be lower-case letters, digits and `-`")
