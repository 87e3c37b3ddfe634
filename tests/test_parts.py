"""The core is a core: it works without any one part, and a package from elsewhere can be a part."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runner import parts
from runner.tools.problem import Stop
from tests.conftest import MINIMAL, ROOT

LANGUAGE = [path for path in MINIMAL if path.stem in ("lora", "last-layers", "causal-lm")]
# A recipe that uses a part, by its file, the line that names it, and what is added to the recipe;
# of a part that no recipe names, its commands are tried.
USES = {
    "evaluate": ("minimal/last-layers", "gates", ("--set", "gates=[perplexity < 15]")),
    "images": ("resnet", "scenario", ()),
    "jobs": ("minimal/lyrics-demo", "openshift", ()),
    "nodes": ("gemma", "nodes", ()),
    "openshift": ("minimal/lyrics-demo", "openshift", ()),
    "pretrain": ("minimal/pretrain", "scenario", ()),
    "rewards": ("arithmetic", "rewards", ()),
    "serve": ("minimal/last-layers", "serve", ("--set", "serve={}")),
}


def test_a_part_that_is_not_here_is_a_message():
    with pytest.raises(Stop, match=r"This needs the part `gone`, which is not installed here\."):
        parts.require("gone")
    assert not parts.has("gone") and parts.has("evaluate")


def typed_parts() -> dict[str, dict[str, str]]:
    """The dicts of `tests/typed_parts.py`: dotted modules and functions by the keys of each, by the
    dict's name."""
    tree = ast.parse((ROOT / "tests" / "typed_parts.py").read_text("utf-8"))
    dotted = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    def in_full(value: ast.expr) -> str:
        if isinstance(value, ast.Attribute):
            return f"{in_full(value.value)}.{value.attr}"
        return dotted[value.id]

    return {
        node.target.id.lower(): {
            key.value: in_full(value)
            for key, value in zip(node.value.keys, node.value.values, strict=True)
        }
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    }


def test_mypy_sees_every_module_that_a_table_names():
    typed = typed_parts()
    of_names = ("targets", "formulas", "preparers", "measures", "asked", "rules_of")
    of_parts = ("rules", "forecast", "callbacks")
    for member in of_names:
        assert typed.pop(member) == parts.table(member), member
    for member in of_parts:
        named = {name: getattr(part, member) for name, part in parts.found().items()}
        assert typed.pop(member) == {
            name: parts.found()[name].module(module) for name, module in named.items() if module
        }, member
    assert typed.pop("placed") == {
        name: module
        for name, module in parts.table("targets").items()
        if hasattr(importlib.import_module(module), "place")
    }
    assert typed == {}


def test_a_broken_format_breaks_only_the_check():
    """Only `check` has formats, so the other commands must not load them."""
    code = "import runner.commands.show, sys; sys.exit('runner.parts.ci.formats' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.fixture(scope="module", params=sorted(parts.found()))
def without(request, tmp_path_factory):
    """The package without one part, in a folder of its own: the part's name, and a function that
    runs `recipe` from it."""
    copy = tmp_path_factory.mktemp(f"without-{request.param}")
    for name in ("runner", "schemas", "recipes"):
        shutil.copytree(ROOT / name, copy / name)
    shutil.rmtree(copy / "runner" / "parts" / request.param)
    return request.param, recipe_of(copy, copy, sys.executable)


def recipe_of(folder: Path, package: Path | None, python: str | Path):
    """`recipe ARGS…` in a folder, by a package there or by what is installed."""
    own = {"PYTHONPATH": str(package)} if package else {}
    env = (
        {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | own
        | {"COLUMNS": "120"}
    )

    def run(*arguments: str | Path):
        command = [str(python), "-m", "runner", *map(str, arguments)]
        return subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=900
        )

    return run


@pytest.mark.long
def test_without_a_part_language_recipes_check(without):
    part, recipe = without
    assert LANGUAGE
    done = recipe("check", *(f"recipes/minimal/{file.name}" for file in LANGUAGE))
    assert done.returncode == 0, f"{part}: {done.stdout}{done.stderr}"


def test_without_a_part_a_language_recipe_checks_and_renders(without):
    part, recipe = without
    if part in ("openshift", "jobs"):
        done = recipe("check", f"recipes/minimal/{LANGUAGE[0].name}")
        assert done.returncode == 0, f"{part}: {done.stdout}{done.stderr}"
        return
    cluster = ("--set", "openshift.namespace=mine", "--set", "openshift.output_dir=/shared/models")
    claims = ("--set", "openshift.claims=[{name: models, mount: /shared/models}]")
    done = recipe(
        "render", f"recipes/minimal/{LANGUAGE[0].name}", *cluster, *claims, "--out", "build"
    )
    assert done.returncode == 0, f"{part}: {done.stdout}{done.stderr}"


def test_without_a_part_a_recipe_that_uses_it_gets_one_message_at_its_line(without):
    part, recipe = without
    if part not in USES:
        commands = parts.found()[part].commands
        for command in commands:
            done = recipe(command, "x")
            assert (
                done.returncode == 2 and f"`{command}` belongs to the part `{part}`" in done.stderr
            ), done.stderr
        assert commands or part in (
            "ci",
            "planner",
            "proof",
            "tracking",
        )
        return
    starter, line, more = USES[part]
    done = recipe("check", f"recipes/{starter}.yaml", *more)
    assert done.returncode == 1 and done.stdout.count("belongs to the part") == 1, (
        done.stdout + done.stderr
    )
    name = {"images": "image-classification", "pretrain": "pretrain"}.get(part, line.strip())
    belongs = (
        f"the part `{part}`, which"
        if part != "jobs"
        else "the part `openshift`, which needs the part `jobs`, and that"
    )
    assert f"`{name}` belongs to {belongs} is not installed here." in done.stdout
    assert parts.INSTALL in done.stdout
    lines = (ROOT / "recipes" / f"{starter}.yaml").read_text("utf-8").split("\n")
    place = [number for number, text in enumerate(lines, 1) if text.startswith(f"{line}:")]
    assert bool(place) != bool(more)
    said = f"recipes/{starter}.yaml:{place[0]}:" if place else f"--set {line}"
    assert done.stdout.startswith(said), done.stdout


@pytest.mark.long
def test_without_a_part_a_language_recipe_rehearses(without):
    part, recipe = without
    done = recipe("rehearse", "recipes/minimal/last-layers.yaml", "--out", "rehearsal")
    assert done.returncode == 0, f"{part}: {done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A temporary environment with the package of CONTRIBUTING installed in it, and a folder with a
    recipe of its scenario."""
    home = tmp_path_factory.mktemp("elsewhere")
    write_package(home / "package")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "venv")], check=True)
    python = home / "venv" / "bin" / "python"
    (site,) = (home / "venv").glob("lib/python3*/site-packages")
    own = [folder for folder in sys.path if folder.endswith("site-packages")]
    (site / "beside.pth").write_text(f"import sys; sys.path += {[*own, str(ROOT)]!a}\n")
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([*install, str(home / "package")], check=True, capture_output=True, text=True)
    folder = home / "recipes"
    folder.mkdir()
    shutil.copytree(ROOT / "recipes" / "data", folder / "data")
    text = (
        (ROOT / "recipes" / "minimal" / "last-layers.yaml")
        .read_text("utf-8")
        .replace("../data/", "data/")
    )
    assert "scenario: last-layers " in text
    text = text.replace("scenario: last-layers ", "scenario: first-layers ")
    (folder / "mine.yaml").write_text(
        f"{text}greeting:\n  words: good morning   # what its file says\n", "utf-8"
    )
    return folder, recipe_of(folder, None, python)


def write_package(folder: Path) -> None:
    """The package that CONTRIBUTING shows, file by file: each is a block of code behind its
    name."""
    text = (
        (ROOT / "CONTRIBUTING.md")
        .read_text("utf-8")
        .partition("## A part of your own")[2]
        .partition("\n## ")[0]
    )
    blocks = text.split("\n```")
    files = {}
    for before, block in zip(blocks[::2], blocks[1::2], strict=False):
        name = before.strip().splitlines()[-1].strip("`: ")
        files[name] = block.partition("\n")[2] + "\n"
    assert len(files) >= 6, list(files)
    assert sum(len(content.splitlines()) for content in files.values()) <= 60
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, "utf-8")


def test_a_part_from_elsewhere_may_have_its_table_in_its_module(tmp_path, monkeypatch):
    (tmp_path / "older.py").write_text(
        "from runner.parts import Part\n\nPART = Part(package=__name__, rules='judging')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert parts._elsewhere("older") == parts.Part(package="older", rules="judging")


def test_a_part_of_one_module_judges_a_section_of_ours_beside_its_own_part(tmp_path):
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "__init__.py").write_text(
        "from runner.check.rules import of_section\nfrom runner.parts import Part\n\n"
        "PART = Part(package=__name__, rules_of={'serve': 'judging'})\n"
    )
    (tmp_path / "older" / "judging.py").write_text(
        "from runner.check.rules import of_section\n\n"
        "RULES = of_section('serve', lambda recipe, section: iter([recipe.note('serve', 'Asked.', '')]))\n"
    )
    (tmp_path / "older-1.dist-info").mkdir()
    (tmp_path / "older-1.dist-info" / "entry_points.txt").write_text(
        f"[{parts.GROUP}]\nolder = older\n"
    )
    recipe = ROOT / "recipes" / "minimal" / "last-layers.yaml"
    done = subprocess.run(
        [sys.executable, "-m", "runner", "check", str(recipe), "--set", "serve.gpus=7"],
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(tmp_path / "gone"), str(ROOT)))},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Asked." in done.stdout and "7 GPUs" in done.stdout, (
        done.stdout + done.stderr
    )


def test_a_part_from_elsewhere_is_listed_and_helps(elsewhere):
    _, recipe = elsewhere
    assert "first-layers" in recipe("list").stdout
    assert "  greet " in recipe("--help").stdout
    done = recipe("greet", "mine.yaml")
    assert done.returncode == 0 and done.stdout == "good morning\n", done.stdout + done.stderr


def test_a_part_from_elsewhere_judges_its_section(elsewhere):
    _, recipe = elsewhere
    done = recipe("check", "mine.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    done = recipe("check", "mine.yaml", "--set", "greeting.word=hello")
    assert done.returncode == 1 and "`word` is not a setting of `greeting`." in done.stdout, (
        done.stdout
    )
    assert "Did you mean `words`?" in done.stdout
    done = recipe("check", "mine.yaml", "--set", "greeting.words=HELLO")
    assert done.returncode == 1 and "A greeting does not shout." in done.stdout


def test_a_part_from_elsewhere_renders_its_target(elsewhere):
    folder, recipe = elsewhere
    done = recipe("render", "mine.yaml", "--out", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "build" / "greeting.txt").read_text("utf-8") == "good morning\n"


def test_the_schema_for_editors_has_the_section_of_a_part_from_elsewhere(elsewhere):
    folder, recipe = elsewhere
    done = recipe("new", "own", "--from", "mine.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"greeting"' in (folder / "first-layers.schema.json").read_text("utf-8")


@pytest.mark.long
def test_a_part_from_elsewhere_rehearses(elsewhere):
    _, recipe = elsewhere
    done = recipe("rehearse", "mine.yaml", "--out", "rehearsal")
    assert done.returncode == 0, done.stdout + done.stderr
