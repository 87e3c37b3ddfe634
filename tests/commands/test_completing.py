"""Completion in a shell: by click, of commands, settings, values, GPU labels, models, starters and
files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete

from runner import catalog
from runner.check import by_schema
from runner.commands.cli import cli, commands
from tests.conftest import ROOT

COMMANDS = list(commands())
SURVIVAL = str(ROOT / "recipes" / "survival.yaml")


def completed(line: str) -> list[str]:
    """What is proposed for the last word of a line, which may be empty."""
    *words, last = shlex.split(line) if not line.endswith(" ") else [*shlex.split(line), ""]
    return [
        item.value
        for item in ShellComplete(cli, {}, "recipe", "_RECIPE_COMPLETE").get_completions(
            words[1:], last
        )
    ]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("recipe re", ["rehearse", "render", "report", "register"]),
        ("recipe explain train.ep", ["train.epochs"]),
        ("recipe explain lora_al", ["train.lora_alpha"]),
        (f"recipe plan {shlex.quote(SURVIVAL)} --set train.last", ["train.last_layers="]),
        (f"recipe plan {shlex.quote(SURVIVAL)} --set lora", []),
        (
            "recipe new mine --from minimal/l",
            ["minimal/last-layers", "minimal/lora", "minimal/lyrics-demo"],
        ),
        (
            "recipe new mine --from minimal/lora --set train.adapter=",
            ["train.adapter=lora", "train.adapter=qlora"],
        ),
        (
            f"recipe run {SURVIVAL} --set model.gradient_checkpointing=f",
            ["model.gradient_checkpointing=false"],
        ),
        ("recipe models --gpu h200", ["NVIDIA-H200"]),
        ("recipe run --set machines.gpu=b200", ["machines.gpu=NVIDIA-B200"]),
        (
            "recipe new mine --model allenai/OLMo-2",
            ["allenai/OLMo-2-0425-1B-Instruct", "allenai/OLMo-2-1124-7B-Instruct"],
        ),
    ],
)
def test_what_is_begun_is_finished(line, found):
    assert sorted(completed(line)) == sorted(found)


def test_all_commands_settings_cards_models_are_proposed():
    assert completed("recipe ") == list(COMMANDS)
    assert completed("recipe models --gpu ") == catalog.gpu_names()
    assert completed("recipe new mine --model ") == catalog.model_ids()
    assert completed(f"recipe plan {shlex.quote(SURVIVAL)} --set ") == [
        f"{name}=" for name, _ in by_schema.settings("last-layers")
    ]


def test_files_are_left_to_the_shell():
    items = ShellComplete(cli, {}, "recipe", "_RECIPE_COMPLETE").get_completions(["check"], "rec")
    assert [(item.value, item.type) for item in items] == [("rec", "file")]


def test_the_lines_of_the_page_turn_it_on_in_bash_and_are_clicks_own_elsewhere(tmp_path):
    page = (ROOT / "docs" / "shell.md").read_text("utf-8")
    lines = dict(re.findall(r"^\| (\w+)[^|]*\|[^|]*\| `(.*)` \|$", page, re.MULTILINE))
    assert set(lines) == {"bash", "zsh", "fish"}
    command = tmp_path / "recipe"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m runner "$@"\n')
    command.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    for shell in ("zsh", "fish"):
        assert f"_RECIPE_COMPLETE={shell}_source recipe" in lines[shell]
        done = subprocess.run(
            [command],
            env=environment | {"_RECIPE_COMPLETE": f"{shell}_source"},
            capture_output=True,
            text=True,
        )
        assert "_RECIPE_COMPLETE" in done.stdout and f"{shell}_complete" in done.stdout, done.stderr
    asks = "; ".join(
        (
            lines["bash"],
            "COMP_WORDS=(recipe explain train.ep)",
            "COMP_CWORD=2",
            "_recipe_completion recipe",
            'echo "${COMPREPLY[@]}"',
        )
    )
    done = subprocess.run(["bash", "-c", asks], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "train.epochs", done.stderr
