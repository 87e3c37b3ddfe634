"""Arguments and options of commands: the function's signature and the tables `options.toml` say the
same."""

from __future__ import annotations

import inspect
import re
import shutil
import tomllib
from pathlib import Path

import click
import pytest
import yaml

from runner.commands.cli import _code, cli, commands
from runner.commands.options import OPTIONS, command, with_options
from tests.conftest import ROOT

CORE = ROOT / "runner" / "commands" / OPTIONS
TABLES = sorted((ROOT / "runner").rglob(OPTIONS))


def functions() -> dict[Path, dict[str, list[str]]]:
    """The parameters of every command's function, by the table beside its module and its name."""
    there = [cli.get_command(click.Context(cli), name) for name in commands()]
    there += [
        each
        for group in there
        if isinstance(group, click.Group)
        for each in group.commands.values()
    ]
    found: dict[Path, dict[str, list[str]]] = {}
    for function in (inspect.unwrap(each.callback) for each in there):
        table = Path(inspect.getfile(function)).with_name(OPTIONS)
        found.setdefault(table, {})[function.__name__] = list(
            inspect.signature(function).parameters
        )
    return found


@pytest.mark.parametrize(
    "table", TABLES, ids=lambda file: str(file.parent.relative_to(ROOT / "runner"))
)
def test_every_entry_is_of_a_parameter_of_a_command(table):
    known = functions()
    here = known[table]
    users = [
        function
        for file in (known if table == CORE else [table])
        for function in known[file].values()
    ]
    of = {**here, "shared": [name for names in users for name in names]}
    entries = tomllib.loads(table.read_text("utf-8"))
    assert {
        f"{name}.{each}"
        for name in entries
        for each in entries[name]
        if each not in of.get(name, ())
    } == set()


def test_a_parameter_without_an_entry_is_refused():
    def frobnicate(path: str, unknown: str) -> None:
        """Does nothing."""

    with pytest.raises(LookupError, match="`unknown` of the command `frobnicate`"):
        command(frobnicate)


def test_the_signature_says_what_is_required_repeated_or_a_flag():
    @click.command()
    @with_options
    @click.option("--more")
    def frobnicate(
        path: str | None,
        sets: tuple[str, ...],
        fresh: bool,
        style: str,
        first_stage: str,
        price: float | None,
        **more: str,
    ) -> None:
        """Does nothing."""

    made = [
        (each.opts[0], each.type.name, each.required, each.multiple) for each in frobnicate.params
    ]
    assert made == [
        ("path", "text", False, False),
        ("--set", "text", False, True),
        ("--fresh", "boolean", False, False),
        ("--format", "choice", False, False),
        ("--from", "text", True, False),
        ("--price", "float range", False, False),
        ("--more", "text", False, False),
    ]
    assert frobnicate.params[0].metavar == "[RECIPE]"


# What is wrong, in a recipe of one stage or of several.
WRONG_SETS = {
    "unknown section": (("nonsense=1",), "nonsense=1"),
    "setting of an unknown section": (("nonsense.foo=1",), "nonsense.foo=1"),
    "unknown setting": (("model.bas=x",), "model.bas=x"),
    "a section is a number": (("machines=3",), "machines=3"),
    "wrong type": (("seed=many",), "seed=many"),
    "out of bounds": (("model.sequence_len=8",), "model.sequence_len=8"),
    "below a value": (("name.x=3",), "name.x=3"),
    "no such entry": (("demo.questions.9=Why?",), "demo.questions.9=Why?"),
    "two that contradict": (("machines=3", "machines.nodes=1"), "machines.nodes=1"),
    "with a line of the recipe": (("train.epochs=2", "data.form=messages"), "data.form=messages"),
}
COMMANDS_WITH_SETS = ("check", "plan", "render", "prepare", "rehearse", "run")
OF_ONE_STAGE_ONLY = ("no such entry", "with a line of the recipe", "wrong type")


@pytest.fixture(scope="module")
def recipes_with_notes(tmp_path_factory):
    """A recipe of one stage whose rows have notes, and one of several whose option has one."""
    folder = tmp_path_factory.mktemp("sets")
    rows = [f"What is {number}?,It is {number}." for number in range(12)]
    (folder / "rows.csv").write_text("\n".join(["question,answer", *rows]))
    recipe = yaml.safe_load((ROOT / "recipes" / "museum.yaml").read_text())
    recipe["data"] = {"path": "rows.csv", "question": "[question]", "answer": "[answer]"}
    (folder / "one.yaml").write_text(yaml.safe_dump(recipe))
    shutil.copy(ROOT / "recipes" / "domain.yaml", folder / "several.yaml")
    shutil.copytree(ROOT / "recipes" / "data", folder / "data")
    return folder


@pytest.mark.parametrize("case", WRONG_SETS)
@pytest.mark.parametrize("file", ["one.yaml", "several.yaml"])
def test_an_error_of_a_set_names_it_beside_notes(recipes_with_notes, capsys, file, case):
    sets, wrong = WRONG_SETS[case]
    if file == "several.yaml" and case in OF_ONE_STAGE_ONLY:
        pytest.skip("its stages have these settings")
    noted = ("model.sequence_len=64", *sets) if case != "out of bounds" else sets
    for name in COMMANDS_WITH_SETS:
        words = [word for change in noted for word in ("--set", change)]
        assert _code([name, str(recipes_with_notes / file), *words]) == 1, name
        printed = capsys.readouterr()
        assert f"--set {wrong}" in f"{printed.out}{printed.err.partition('Next:')[0]}", name
        if name == "check":
            assert re.search(r"checked, \d errors?", printed.out)
            assert "note: " in printed.out or case not in ("unknown section", "unknown setting")
