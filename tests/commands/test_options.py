"""Arguments and options of commands: the function's signature and the tables `options.toml` say the
same."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path

import click
import pytest

from runner.commands.cli import cli, commands
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
