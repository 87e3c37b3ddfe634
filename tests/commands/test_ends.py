"""Every command ends with what has come of it and the command to type next, where a person reads
and no program."""

from __future__ import annotations

import inspect
import re
import shlex

import click
import pytest

from runner.commands.cli import cli, commands
from runner.commands.options import end
from tests.conftest import ROOT

COMMANDS = list(commands())
SURVIVAL = str(ROOT / "recipes" / "survival.yaml")
MUSEUM = str(ROOT / "recipes" / "museum.yaml")  # its model is part of the installation
# What runs until ^C and says how to end it, and what names the next command itself.
OTHERWISE = {
    "edit": "^C ends it",
    "open": "(^C stops it)",
    "serve": "^C ends it",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_what_to_type_next(name):
    command = cli.get_command(click.Context(cli), name)
    parts = [command, *getattr(command, "commands", {}).values()]
    text = inspect.getsource(inspect.getmodule(inspect.unwrap(parts[0].callback)))
    assert OTHERWISE[name] in text if name in OTHERWISE else re.search(r"\bend\(", text)


def test_the_next_command_is_about_the_same_settings_and_run(capsys):
    """As the commands themselves have these options; `new` and `import` write them into the recipe
    instead."""
    found = {
        name: {option.name for option in cli.get_command(click.Context(cli), name).params}
        for name in COMMANDS
    }
    given = {"path": "a.yaml", "sets": ("train.epochs=1",), "run_dir": "here"}
    kept = {}
    for name in COMMANDS:
        context = click.Context(cli)
        context.params = given
        with context:
            end("Done.", name, "a.yaml", "--stage", "sft")
        kept[name] = shlex.split(capsys.readouterr().err.splitlines()[-1])[3:-2]
    about = {
        name: ["a.yaml", *(["--set", "train.epochs=1"] if "sets" in has else [])]
        for name, has in found.items()
    }
    wanted = {
        name: [*about[name], *(["--run", "here"] if "run_dir" in has else [])]
        for name, has in found.items()
    }
    takes = {
        name
        for name, has in found.items()
        if has & {"path", "paths"} or name in ("report", "export", "register")
    }
    assert {name: kept[name] for name in takes} == {name: wanted[name] for name in takes} and len(
        takes
    ) > 30


def parsed(line: str) -> None:
    """Raises where click would refuse the command: a name, option or count of arguments that it has
    not."""
    name, *rest = shlex.split(line.removeprefix("Next: recipe "))
    cli.get_command(click.Context(cli), name).make_context(name, rest, resilient_parsing=False)


@pytest.mark.parametrize(
    ("given", "verdict", "then"),
    [
        (
            ["check", SURVIVAL],
            "The recipe is valid, as far as it can be checked before it runs.",
            ["plan", SURVIVAL],
        ),
        (
            ["check", SURVIVAL, "--set", "train.epochs=-1"],
            "1 error found. Fix it, then check again.",
            ["check", SURVIVAL],
        ),
        (
            ["check", SURVIVAL, "--set", "train.epochs=1"],
            "The recipe is valid, as far as it can be checked before it runs.",
            ["plan", SURVIVAL, "--set", "train.epochs=1"],
        ),
        (
            ["plan", SURVIVAL],
            "The recipe fits, as far as this machine can tell.",
            ["rehearse", SURVIVAL],
        ),
        (
            ["plan", MUSEUM],
            "The recipe fits, as far as this machine can tell.",
            ["run", MUSEUM],
        ),
        (
            ["plan", MUSEUM, "--set", "machines={gpu: none}"],
            "The recipe fits this machine.",
            ["run", MUSEUM, "--set", "machines={gpu: none}"],
        ),
        (["list"], "starter recipes are available.", ["new", "my-demo", "--from", "survival"]),
        (["models"], "models can be named in a recipe.", ["new", "my-demo"]),
        (["gpus"], "GPUs can be named in a recipe.", ["gpus", "RECIPE"]),
        (
            ["show", SURVIVAL],
            f"All settings of {SURVIVAL} are printed. The output is itself a recipe.",
            ["check", SURVIVAL],
        ),
    ],
)
def test_a_command_ends_with_a_verdict_and_the_next_command(recipe_command, given, verdict, then):
    done = recipe_command(*given)
    *_, said, following = done.stderr.splitlines()
    assert said.endswith(verdict) and shlex.split(following) == ["Next:", "recipe", *then]
    assert "Next: " not in done.stdout
    parsed(following)


def test_what_programs_read_ends_as_it_did(recipe_command):
    for style in ("json", "github"):
        assert "Next: " not in recipe_command("check", SURVIVAL, "--format", style).stderr
    assert "Next: " not in recipe_command("plan", SURVIVAL, "--format", "json").stderr


def test_a_path_with_blanks_can_be_typed_as_it_is_said(capsys):
    end("Done.", "check", "my recipes/a b.yaml")
    assert capsys.readouterr().err == "\nDone.\nNext: recipe check 'my recipes/a b.yaml'\n"


def test_every_next_command_that_is_written_can_be_parsed():
    """The words that stand in the calls of `end`, with names in place of what is known only when
    they run."""
    found = []
    files = [
        file
        for pattern in ("commands/*.py", "commands.py")
        for file in (ROOT / "runner").rglob(pattern)
    ]
    for file in sorted(files):
        for call in re.findall(r"(?<!def )\bend\((.*?)\)\n", file.read_text("utf-8"), re.DOTALL):
            words = re.findall(r'"([a-z][a-z-]+|--[a-z-]+)"', call)
            found += [
                (file.stem, word) for word in words if word in COMMANDS or word.startswith("--")
            ]
            for word in (word for word in words if word.startswith("--")):
                assert any(
                    word in option.opts
                    for name in words
                    if name in COMMANDS
                    for option in cli.get_command(click.Context(cli), name).params
                ), (file.stem, word)
    assert len(found) > 40
