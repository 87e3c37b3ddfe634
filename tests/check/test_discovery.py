"""`recipe check FOLDER`: what in it is a recipe, and that one file hides no other."""

from __future__ import annotations

import json

import pytest

from runner.check import validate as examining
from runner.check.batch import find
from runner.check.validate import examine
from runner.commands import cli
from runner.tools.problem import Stop
from tests.conftest import ROOT

GOOD = (
    (ROOT / "recipes" / "minimal" / "lora.yaml")
    .read_text("utf-8")
    .replace("../data", str(ROOT / "recipes" / "data"))
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(folder, **files: str) -> None:
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file = file.with_name(file.name[::-1].replace("_", ".", 1)[::-1])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def test_in_a_folder_recipes_are_judged_and_other_yaml_is_counted(folder):
    _write(
        folder,
        one_yaml=GOOD,
        two_yml="model: {}\ntrain: {}\n",
        three_yml='{"scenario": "lora"}\n',
        broken_yaml="scenario: [\n",
        compose_yaml="services:\n  model: x\n",
        empty_yaml="",
        models_lock_yaml="scenario: 1\n",
        build__x_yaml=GOOD,
        runs__one__recipe_yaml=GOOD,
        elsewhere__run_json="{}",
        elsewhere__x_yaml=GOOD,
        _hidden__x_yaml=GOOD,
        deep__er_yaml=GOOD,
    )
    (folder / "sixteen.yaml").write_text(GOOD, encoding="utf-16")
    (folder / "models_lock.yaml").rename(folder / "models.lock.yaml")
    (folder / "_hidden").rename(folder / ".hidden")
    recipes, others = find(["."])
    assert recipes == [
        "broken.yaml",
        "one.yaml",
        "sixteen.yaml",
        "three.yml",
        "two.yml",
        "deep/er.yaml",
    ]
    assert others == ["compose.yaml", "empty.yaml"]
    assert set(find(["."], strict=True)[0]) == {*recipes, *others}


def test_a_file_that_is_named_is_always_judged(folder, capsys):
    _write(folder, compose_yaml="services: {}\n", runs__mine__x_yaml="a: b\n")
    assert find(["compose.yaml", "runs/mine/x.yaml"])[0] == ["compose.yaml", "runs/mine/x.yaml"]
    assert cli._code(["check", "compose.yaml"]) == 1
    assert "lacks `scenario`" in capsys.readouterr().out


def test_what_is_left_alone_is_said(folder, capsys):
    _write(folder, one_yaml=GOOD, compose_yaml="services: {}\n")
    assert cli._code(["check", "."]) == 0
    assert (
        "1 recipe checked" in (said := capsys.readouterr().out)
        and "Skipped 1 other YAML file" in said
    )
    assert cli._code(["check", ".", "--strict"]) == 1


@pytest.mark.parametrize("files", [{}, {"compose_yaml": "services: {}\n"}], ids=["none", "others"])
def test_a_folder_without_a_recipe_is_wrong_use(files, folder):
    _write(folder, **files)
    with pytest.raises(Stop) as stop:
        find(["."])
    assert stop.value.code == 2


def test_two_recipes_of_one_name_are_noted_at_the_second(folder, capsys):
    _write(folder, a_yaml=GOOD, b_yaml=GOOD.replace("name: ", "name:  "), deep__c_yaml=GOOD)
    assert cli._code(["check", ".", "--format", "json"]) == 0
    notes = [
        one
        for one in json.loads(capsys.readouterr().out)["notes"]
        if "has the name" in one["message"]
    ]
    (line,) = [
        number for number, text in enumerate(GOOD.splitlines(), 1) if text.startswith("name:")
    ]
    assert [(one["file"], one["line"], one["column"]) for one in notes] == [("b.yaml", line, 8)]


def test_a_file_that_the_runner_itself_fails_on_hides_no_other(folder, capsys, monkeypatch):
    _write(folder, a_yaml="scenario: none\n", b_yaml=GOOD, c_yaml="scenario: none\n")

    def fails(file, *rest):
        if file == "b.yaml":
            raise ZeroDivisionError
        return examine(file, *rest)

    monkeypatch.setattr(examining, "examine", fails)
    assert cli._code(["check", "."]) == 3
    said = capsys.readouterr().out
    assert (
        "a.yaml:1:11" in said
        and "c.yaml:1:11" in said
        and "b.yaml: This is a bug in recipe-runner" in said
    )
    assert "3 recipes checked, 3 errors" in said
