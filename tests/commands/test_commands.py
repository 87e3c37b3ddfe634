"""The commands as a person meets them: list, new, render, exit codes, wrong use."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

from runner.check import copying
from runner.check.validate import load
from runner.commands.cli import _code as typed
from runner.commands.cli import cli
from runner.commands.show import list_
from runner.parts.start.drafting import minimal_starter
from runner.recipe import reading, units
from runner.recipe.overrides import from_options
from runner.run.pipeline import Selection
from runner.run.run_folder import RunFolder
from runner.scenarios import place, translate
from runner.scenarios.render import emit
from runner.tools import packaged
from runner.tools.files import Artifact, write_all
from runner.tools.problem import Stop
from tests.conftest import MINIMAL, RECIPES, ROOT, STARTERS, setting_of


def test_list_shows_every_starter_recipe(recipe_command):
    done = recipe_command("list")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "SCENARIO", "MODEL", "MACHINES", "DESCRIPTION"]
    assert [line.split()[0] for line in lines[1 : 1 + len(RECIPES)]] == [
        path.stem for path in RECIPES
    ]
    assert [line.split()[0] for line in lines[3 + len(RECIPES) : 3 + len(STARTERS)]] == [
        f"minimal/{path.stem}" for path in MINIMAL
    ]
    survival = next(line for line in lines if line.startswith("survival "))
    assert (
        "last-layers" in survival
        and "HuggingFaceTB/SmolLM3-3B" in survival
        and "4 × 1 L40S" in survival
    )


def test_list_shows_the_recipes_and_runs_of_this_folder(
    tmp_path, monkeypatch, capsys, golden_message
):
    monkeypatch.chdir(tmp_path)
    last_layers = ROOT / "recipes" / "minimal" / "last-layers.yaml"
    (tmp_path / "mine.yaml").write_text(last_layers.read_text("utf-8").replace("../data", "data"))
    (tmp_path / "broken.yaml").write_text("scenario: lora\nname: broken\n")
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    states = {
        "made": ("finished", "run"),
        "made-rehearsal": ("running", "rehearsal"),
        "at-work": ("running", "run"),
    }
    for age, (name, (status, kind)) in enumerate(states.items()):
        file = tmp_path / "runs" / name / "run.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"id": "1", "recipe": "made", "status": status, "kind": kind}))
        os.utime(file, (1_790_000_000 - age, 1_790_000_000 - age))
    with RunFolder.at(tmp_path / "runs" / "at-work").lock():
        list_.callback("text")
        shown = capsys.readouterr().out
        list_.callback("json")
    golden_message(
        re.sub(
            r" 20\d\d-\d\d-\d\d \d\d:\d\d ",
            " <when>           ",
            shown.partition("\n\n")[2],
        )
    )
    whole = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in whole["starters"]] == [path.stem for path in RECIPES]
    assert [each["name"] for each in whole["recipes"]] == ["broken.yaml", "mine.yaml"]
    assert {each["folder"]: each["status"] for each in whole["runs"]} == {
        "runs/made": "finished",
        "runs/made-rehearsal": "interrupted",
        "runs/at-work": "running",
    }


def test_scripts_of_plain_machines_are_started_there_and_not_here(recipe_command, tmp_path):
    said = recipe_command("render", ROOT / "recipes/gemma.yaml", "--out", tmp_path / "out").stderr
    gemma = shlex.quote(str(ROOT / "recipes/gemma.yaml"))
    assert "Copy them to every machine" in said and f"Next: recipe doctor {gemma}" in said


def test_list_puts_descriptions_below_on_a_narrow_terminal(monkeypatch, capsys, tmp_path):
    def shown(columns: int) -> list[str]:
        monkeypatch.setattr(
            "shutil.get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24))
        )
        list_.callback("text")
        return capsys.readouterr().out.splitlines()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert len(shown(200)) == 3 + len(STARTERS)
    below = shown(90)
    assert (
        below[1] == "    DESCRIPTION"
        and below[2].startswith("arithmetic")
        and below[3].startswith("    Qwen2.5-1.5B")
    )
    assert max(map(len, below)) <= 90


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "models",
        "models --gpu NVIDIA-L4",
        "gpus",
        "gpus minimal/lora",
        "diff gemma survival",
    ],
)
def test_tables_fit_a_terminal_of_80_columns(monkeypatch, capsys, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shutil.get_terminal_size", lambda *_, **__: os.terminal_size((80, 24)))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    words = [str(packaged.recipe_file(word)) if "/" in word else word for word in command.split()]
    cli.main(words, standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) > 20


def test_the_name_of_a_starter_is_shown_and_copied_but_not_checked(recipe_command, tmp_path):
    shown = recipe_command("show", "survival", cwd=tmp_path)
    assert shown.returncode == 0 and "Next: recipe new my-demo --from survival" in shown.stderr
    refused = recipe_command("plan", "minimal/lora", cwd=tmp_path)
    assert refused.returncode == 1 and "`recipe new my-lora --from minimal/lora`" in refused.stderr


@pytest.mark.parametrize("source", [path.stem for path in RECIPES])
def test_a_new_recipe_checks_clean_and_keeps_its_comments(recipe_command, tmp_path, source):
    done = recipe_command("new", "my-demo", "--from", source, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "my-demo.yaml").read_text("utf-8")
    original = (ROOT / "recipes" / f"{source}.yaml").read_text("utf-8")
    # The lines at the top have no advice on copies.
    body = text.partition("\n\n")[2]
    original_body = original.partition("\n\n")[2]
    assert body.count("#") == original_body.count("#")
    assert len(body.splitlines()) == len(original_body.splitlines())
    schema = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / schema).read_text("utf-8"))["properties"]["scenario"]
    made = yaml.safe_load(text)
    assert made["name"] == "my-demo"
    # Code by git and the stock image that needs it stay, and their placeholder is named until it is
    # replaced.
    whole = yaml.safe_load(original)
    assert made.get("image") == whole.get("image")
    assert ("quay.io" in str(made)) == ("quay.io" in str(whole)) == (source == "resnet")
    done = recipe_command("check", "my-demo.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert ("This commit is a placeholder." in done.stdout + done.stderr) == (source == "resnet")
    done = recipe_command("plan", "my-demo.yaml", cwd=tmp_path)
    assert done.returncode == 0
    assert ("`recipe check my-demo.yaml` has 1 note." in done.stderr) == (source == "resnet")
    if source == "resnet":
        done = recipe_command(
            "check",
            "my-demo.yaml",
            "--set",
            "image.code_from_git.commit='" + "a1" * 20 + "'",
            cwd=tmp_path,
        )
    else:
        done = recipe_command("check", ".", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith("1 recipe checked, no problems.\n")


OWN_DATA = {
    "conversations": (
        "survival",
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
        {"path"},
        0,
    ),
    "conversations, by the columns that the templates name": (
        "survival",
        '{"topic": "a", "question": "b", "answer": "c", "messages": []}',
        {"path", "question", "answer"},
        0,
    ),
    "a table without questions": ("survival", '{"number": 1, "say": "b"}', set(), 1),
    "a table with questions in other columns": (
        "survival",
        '{"ask": "a", "say": "b"}',
        {"path", "question", "answer"},
        0,
    ),
    "a template of its own": (
        "survival",
        '{"ask": "a", "say": "b"}',
        {"path", "question", "answer"},
        0,
    ),
    "songs": (
        "lyrics",
        '{"instruction": "a", "lyrics": "b"}',
        {"path", "songs", "system_prompt"},
        0,
    ),
    "songs in columns of other names": (
        "lyrics",
        '{"id": "1", "Prompt": "a", "Words": "b"}',
        {"path", "songs", "system_prompt"},
        0,
    ),
    "text": ("gemma", '{"text": "a"}', {"path", "text", "validation_share"}, 0),
}


@pytest.mark.parametrize("case", OWN_DATA)
def test_lines_about_other_data_leave_a_copy_with_data_of_its_own(recipe_command, tmp_path, case):
    source, row, kept, code = OWN_DATA[case]
    (tmp_path / "mine.jsonl").write_text(row + "\n", encoding="utf-8")
    own = (
        ("--set", 'data.question="[ask]"', "--set", 'data.answer="[say]"')
        if case.endswith("of its own")
        else ()
    )
    done = recipe_command(
        "new", "my", "--from", source, "--set", "data.path=mine.jsonl", *own, cwd=tmp_path
    )
    assert done.returncode == code, done.stderr
    if code:
        assert "`mine.jsonl`" in done.stderr and not (tmp_path / "my.yaml").exists()
        return
    data = yaml.safe_load((tmp_path / "my.yaml").read_text("utf-8"))["data"]
    neutral = {"seed", "chat_template", "validation_share"} - kept
    assert set(data) - neutral == kept
    assert (
        f"data.hub: {reading.read(ROOT / 'recipes' / f'{source}.yaml').data['data']['hub'][:20]}"
        in done.stdout
    )
    assert not (tmp_path / "data").exists()


def test_a_column_in_brackets_without_quotes_is_answered_with_them(edited, recipe_command):
    done = recipe_command("check", edited(('answer: "[answer]"', "answer: [answer]")))
    assert done.returncode == 1 and '`answer: "[answer]"`' in done.stdout + done.stderr


@pytest.mark.parametrize("path", MINIMAL, ids=lambda path: path.stem)
def test_a_minimal_starter_is_copied_with_its_sample_beside_it(recipe_command, tmp_path, path):
    done = recipe_command("new", "my-demo", "--from", f"minimal/{path.stem}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    copy, original = ((file).read_text("utf-8") for file in (tmp_path / "my-demo.yaml", path))
    assert len(copy.splitlines()) == len(original.splitlines()) and "../" not in copy
    samples = {name.strip(",") for name in copy.split() if name.startswith("data/")}
    assert (
        samples == {str(file.relative_to(tmp_path)) for file in (tmp_path / "data").iterdir()}
        and samples
    )
    assert not (tmp_path.parent / "data").exists()
    done = recipe_command("check", "my-demo.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 recipe checked, no problems.\n")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_the_minimal_form_of_a_starter_has_its_scenario_model_and_data(path):
    short = minimal_starter(path.stem)
    whole = reading.read(path)
    assert Path(short.file).parent.name == "minimal"
    same: tuple = (("model", "base"), ("data", "hub"))
    # Several are in the form of their scenario's, with another model: the one of this machine too.
    if {"stages", "rewards"} & whole.data.keys() or whole.lookup(("model", "base")) == "small":
        same = ()
    for setting in (("scenario",), *same):
        assert short.lookup(setting) == whole.lookup(setting), setting


def test_a_minimal_form_is_asked_for_by_name(recipe_command, tmp_path, golden_message):
    done = recipe_command(
        "new", "my-demo", "--from", "survival", "--minimal", "--set", "train.epochs=1", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    golden_message(done.stdout)
    done = recipe_command("new", "again", "--from", "my-demo.yaml", "--minimal", cwd=tmp_path)
    assert (done.returncode, "`my-demo.yaml` is a file" in done.stderr) == (1, True)
    golden_message(done.stderr, "a file")


OTHER_MODELS = {
    "a number format that overflows": ("theirs.yaml", "Qwen/Qwen2.5-3B-Instruct", ()),
    "special tokens": ("survival", "microsoft/Phi-4-mini-instruct", ()),
    "a format that somebody asks for": (
        "lyrics",
        "Qwen/Qwen2.5-3B-Instruct",
        ("model.precision=fp32", "model.attention=sdpa"),
    ),
}


@pytest.mark.parametrize("case", OTHER_MODELS)
def test_a_copy_for_another_model_changes_what_belonged_to_the_one_of_before(
    recipe_command, tmp_path, case, golden_message
):
    starter, model, more = OTHER_MODELS[case]
    if starter == "theirs.yaml":
        in_fp16 = ("new", "theirs", "--from", "lyrics", "--set", "model.precision=fp16")
        assert recipe_command(*in_fp16, cwd=tmp_path).returncode == 0
    sets = [word for one in (f"model.base={model}", *more) for word in ("--set", one)]
    done = recipe_command("new", "mine", "--from", starter, *sets, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    golden_message(done.stdout)
    made = yaml.safe_load((tmp_path / "mine.yaml").read_text("utf-8"))
    assert made["model"]["base"] == model and made["model"]["precision"] == (
        "fp32" if more else "bf16"
    )
    assert (
        made["data"]["chat_template"] == "auto" and model.rpartition("/")[2] in made["description"]
    )
    if not more:
        done = recipe_command("check", "mine.yaml", cwd=tmp_path)
        assert (
            done.returncode == 0
            and "infinite" not in done.stdout
            and "tokens, so" not in done.stdout
        ), done.stdout


def test_a_copy_for_another_model_takes_neither_version_nor_code_of_the_one_of_before(
    recipe_command, tmp_path
):
    text = (ROOT / "recipes/minimal/lora.yaml").read_text("utf-8").replace("../data", "data")
    own = "  trust_remote_code: true\n  revision: " + "c0ffee" * 6 + "c0ff" + "\n"
    text = text.replace(
        "data:  ", f"{own}train:\n  epochs: 2\n  lora_layers: [qkv_proj]\ndata:  ", 1
    )
    (tmp_path / "theirs.yaml").write_text(text, "utf-8")
    (tmp_path / "data").mkdir()
    shutil.copy(ROOT / "recipes/data/survival-sample.jsonl", tmp_path / "data")
    done = recipe_command("check", "theirs.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    base = ("--set", "model.base=Qwen/Qwen2.5-3B-Instruct")
    done = recipe_command("new", "mine", "--from", "theirs.yaml", *base, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    made = yaml.safe_load((tmp_path / "mine.yaml").read_text("utf-8"))
    assert made["model"] == {"base": "Qwen/Qwen2.5-3B-Instruct"} and made["train"] == {"epochs": 2}
    for setting in ("model.revision", "model.trust_remote_code", "train.lora_layers"):
        assert (
            f"{setting}: " in done.stdout
            and "(was about microsoft/Phi-4-mini-instruct)" in done.stdout
        )


def test_another_file_of_a_samples_name_is_not_taken_for_it(
    recipe_command, tmp_path, golden_message
):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "survival-sample.jsonl").write_text("{}\n")
    done = recipe_command("new", "my-demo", "--from", "survival", cwd=tmp_path)
    assert (done.returncode, sorted(path.name for path in tmp_path.iterdir())) == (1, ["data"])
    golden_message(done.stderr)
    shutil.copyfile(
        ROOT / "recipes" / "data" / "survival-sample.jsonl",
        tmp_path / "data" / "survival-sample.jsonl",
    )
    assert recipe_command("new", "my-demo", "--from", "survival", cwd=tmp_path).returncode == 0


def test_folders_that_a_recipe_names_stay_where_they_are(recipe_command, tmp_path):
    there, here = tmp_path / "theirs", tmp_path / "mine"
    (there / "texts").mkdir(parents=True)
    here.mkdir()
    (there / "texts" / "one.txt").write_text("A text.\n")
    made = recipe_command("new", "own", "--from", "gemma", "--set", "data.path=texts", cwd=there)
    assert made.returncode == 0, made.stderr
    done = recipe_command("new", "copy", "--from", there / "own.yaml", cwd=here)
    assert done.returncode == 0, done.stderr
    assert "path: ../theirs/texts" in (here / "copy.yaml").read_text("utf-8")
    assert recipe_command("check", "copy.yaml", cwd=here).returncode == 0


def test_what_derives_from_the_name_follows_it(recipe_command, tmp_path):
    recipe_command("new", "my-demo", "--from", "survival", cwd=tmp_path)
    data = yaml.safe_load((tmp_path / "my-demo.yaml").read_text("utf-8"))
    assert data["openshift"]["output_dir"] == "/shared/models/my-demo"
    assert data["openshift"]["namespace"] == "lyric-professor"
    assert data["data"]["hub"] == "cahlen/offline-practical-skills-qa-synthetic"
    assert "recipes/survival.yaml" not in (tmp_path / "my-demo.yaml").read_text("utf-8")


def test_set_edits_the_copy_in_place(recipe_command, tmp_path):
    done = recipe_command(
        "new", "my-demo", "--from", "survival",
        "--set", "train.epochs=2", "--set", "data.hub=", "--set", "data.path=data/survival-sample.jsonl",
        "--set", 'demo.questions=["What is tinder?"]', "--set", "openshift.queue=default",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "my-demo.yaml").read_text("utf-8")
    data = yaml.safe_load(text)
    assert data["train"]["epochs"] == 2
    assert "hub" not in data["data"] and data["data"]["path"] == "data/survival-sample.jsonl"
    assert data["demo"]["questions"] == ["What is tinder?"]
    assert data["openshift"]["queue"] == "default"
    assert "# passes through all rows" in text


def test_a_copy_that_would_not_check_clean_leaves_nothing(recipe_command, tmp_path):
    wrong = "--set", "machines.nodes=2", "--set", "train.effective_batch_size=48"
    done = recipe_command("new", "my-demo", "--from", "survival", *wrong, cwd=tmp_path)
    assert (done.returncode, done.stderr.partition(" ")[0]) == (1, "my-demo.yaml:30:25:")
    assert not list(tmp_path.iterdir())


def test_a_copy_that_would_not_check_clean_leaves_what_was_there(recipe_command, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "survival-sample.jsonl").write_text("mine")
    done = recipe_command(
        "new", "my-demo", "--from", "survival", "--set", "train.epochs=x", cwd=tmp_path
    )
    assert done.returncode == 1
    assert [file.read_text() for file in tmp_path.rglob("*") if file.is_file()] == ["mine"]


@pytest.mark.parametrize(
    ("source", "option", "batch"),
    [
        ("survival", "machines.nodes=2", 32),
        ("resnet", "machines.nodes=2", 64),
        ("gemma", "machines.nodes=1", 64),
    ],
)
def test_what_only_double_checks_is_written_anew_in_the_copy(
    recipe_command, tmp_path, source, option, batch
):
    done = recipe_command("new", "my-demo", "--from", source, "--set", option, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"→ {batch}  (follows --set {option})" in done.stdout
    text = (tmp_path / "my-demo.yaml").read_text("utf-8")
    data = yaml.safe_load(text)
    assert data["train"]["effective_batch_size"] == batch
    assert len(data.get("nodes", {}).get("machines", [0])) == 1
    assert "{" not in text  # a list that got shorter keeps its lines and their comments
    assert recipe_command("check", "my-demo.yaml", cwd=tmp_path).returncode == 0


def test_new_never_writes_over_a_file(recipe_command, tmp_path, golden_message):
    (tmp_path / "my-demo.yaml").write_text("precious")
    done = recipe_command("new", "my-demo", "--from", "survival", cwd=tmp_path)
    assert done.returncode == 1
    golden_message(done.stderr)
    assert (tmp_path / "my-demo.yaml").read_text() == "precious"


def test_new_judges_the_name_before_all_else(recipe_command, tmp_path, golden_message):
    done = recipe_command("new", "../My_demo.yaml", "--from", "survival", cwd=tmp_path)
    assert (done.returncode, "`../My_demo`" in done.stderr) == (1, True)
    golden_message(done.stderr)
    assert not list(tmp_path.iterdir())


def test_an_unknown_starter_is_answered_with_the_nearest(recipe_command, tmp_path, golden_message):
    done = recipe_command("new", "x", "--from", "survivel", cwd=tmp_path)
    assert (done.returncode, "`survival`" in done.stderr) == (1, True)
    golden_message(done.stderr)


def test_editing_keeps_every_other_byte(survival_text):
    edited = copying.edit(survival_text, from_options(["train.epochs=12"]))
    changed = [
        pair
        for pair in zip(survival_text.splitlines(), edited.splitlines(), strict=True)
        if pair[0] != pair[1]
    ]
    assert len(changed) == 1 and changed[0][1].startswith("  epochs: 12 ")
    assert changed[0][0].index("#") == changed[0][1].index("#")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_scalar_of_a_recipe_can_be_replaced_in_its_text(path):
    document = reading.read(path)
    done = 0
    for key in document.values:
        value = document.lookup(key)
        if (
            isinstance(value, dict | list)
            or value is None
            or not all(isinstance(part, str) for part in key)
        ):
            continue
        new = (
            "other words: and more"
            if isinstance(value, str)
            else 7
            if not isinstance(value, bool)
            else not value
        )
        from runner.recipe.recipe import Override

        again = reading.parse(
            "copy", copying.edit(document.text, [Override(".".join(key), None, new, "test")])
        )
        assert again.lookup(key) == new
        again_plain, plain = dict(again.data), dict(document.data)
        assert set(again_plain) == set(plain)
        done += 1
    assert done > (20 if "stages" not in document.data else 6)


def test_render_writes_into_build_or_straight_into_a_folder(recipe_command, tmp_path):
    survival = str(ROOT / "recipes" / "survival.yaml")
    done = recipe_command("render", survival, cwd=tmp_path)
    assert done.returncode == 0
    names = [
        "axolotl.yaml",
        "claims.yaml",
        "configmap.yaml",
        "kustomization.yaml",
        "model",
        "networkpolicy.yaml",
        "plan.json",
    ]
    names += ["pytorchjob.yaml", "recipe.json", "serve"]
    assert sorted(file.name for file in (tmp_path / "build" / "survival").iterdir()) == names
    recipe_command("render", survival, "--out", "here", cwd=tmp_path)
    assert sorted(file.name for file in (tmp_path / "here").iterdir()) == names


def test_render_writes_all_files_or_none(tmp_path):
    (tmp_path / "b.yaml").mkdir()
    with pytest.raises(OSError, match="a folder already has the name of this file"):
        write_all(tmp_path, [Artifact("a.yaml", "a"), Artifact("b.yaml", "b")])
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.yaml"]


def test_render_of_a_broken_recipe_writes_nothing(edited, recipe_command):
    path = edited(("epochs: 4", "epocs: 4"))
    done = recipe_command("render", path, cwd=path.parent)
    assert done.returncode == 1
    assert "Did you mean `epochs`?" in done.stderr
    assert not (path.parent / "build").exists()


def test_rendering_depends_on_the_recipe_alone(recipe_command, tmp_path):
    survival = str(ROOT / "recipes" / "survival.yaml")
    recipe_command(
        "render",
        survival,
        "--out",
        tmp_path / "a",
        env={"EPOCHS": "9", "HF_TOKEN": "hf_secret", "USER": "mallory"},
    )
    recipe_command(
        "render",
        survival,
        "--out",
        tmp_path / "b",
        env={"TZ": "Asia/Tokyo", "LANG": "C", "PYTHONHASHSEED": "1"},
    )
    files = [file for file in (tmp_path / "a").rglob("*") if file.is_file()]
    assert files
    for file in files:
        text = file.read_bytes()
        assert text == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()
        assert b"hf_secret" not in text and b"mallory" not in text


def test_wrong_use_is_2_and_unknown_commands_name_the_nearest(recipe_command, golden_message):
    done = recipe_command("rehears", "x")
    assert (done.returncode, "`rehearse`" in done.stderr) == (2, True)
    golden_message(done.stderr)
    assert recipe_command("check").returncode == 2
    assert recipe_command("check", "recipes", "--form", "json").returncode == 2


def test_run_without_a_gpu_starts_nothing_that_is_too_large_for_the_processor_and_names_rehearse(
    recipe_command, tmp_path
):
    """Its messages are in tests/run/test_processor.py; here they depend on the machine."""
    without = {"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = recipe_command("run", ROOT / "recipes" / "seven-b.yaml", cwd=tmp_path, env=without)
    assert (done.returncode, "`recipe rehearse " in done.stderr) == (1, True)
    assert not (tmp_path / "runs" / "seven-b").exists()


@pytest.mark.parametrize("command", [["ask", "Why?"], ["compare"]], ids=lambda command: command[0])
def test_ask_and_compare_without_a_run_say_how_to_get_one(
    recipe_command, tmp_path, command, golden_message
):
    done = recipe_command(
        command[0], ROOT / "recipes" / "survival.yaml", *command[1:], cwd=tmp_path
    )
    assert (done.returncode, "`survival`" in done.stderr) == (1, True)
    golden_message(done.stderr)


def test_our_own_bug_is_3_with_a_sentence_and_a_file(tmp_path):
    code = (
        "import runner.commands.show as module\n"
        "def broken(path): raise KeyError('x')\n"
        "module.facts = broken\n"
        "from runner.commands.cli import main\nmain(['list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "This is a bug in recipe-runner" in done.stderr
    (report,) = tmp_path.glob("recipe-bug-*.txt")
    assert "KeyError: 'x'" in report.read_text()


def test_interrupting_is_130():
    code = (
        "import runner.commands.show as module\n"
        "def pressed(path): raise KeyboardInterrupt\n"
        "module.facts = pressed\n"
        "from runner.commands.cli import main\nmain(['list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr.strip()) == (
        130,
        "Stopped by ^C. The same command starts again.",
    )


def test_the_end_of_the_input_is_not_an_interrupt(monkeypatch, capsys):
    """As where a question is asked and the terminal is closed, or ^D is pressed."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.setattr("runner.commands.show.facts", lambda path: click.confirm("Really?"))
    assert typed(["list"]) == 1
    error = capsys.readouterr().err
    assert "The input ended before the question was answered" in error and "^C" not in error


def test_a_reader_that_stops_early_is_no_error():
    done = subprocess.run(
        f"{shlex.quote(sys.executable)} -m runner list | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "bug" not in done.stderr


def test_every_command_has_help(capsys):
    from runner.commands import cli

    for command in cli.commands():
        assert cli._code([command, "--help"]) == 0, command
        said = capsys.readouterr().out
        assert "Usage: recipe" in said and len(said) > 100


def test_every_module_of_a_command_is_listed_and_every_listed_command_has_one():
    from runner import parts
    from runner.commands.cli import CORE, ORDER, commands

    shared = {
        "__init__",
        "cli",
        "options",
        "cluster_options",
        "model_options",
        "next_step",
        "standing",
    }
    rooms = {"": ROOT / "runner" / "commands"} | {
        name: ROOT / "runner" / "parts" / name / "commands" for name in parts.found()
    }
    listed = {"": {module for module, _ in CORE.values()}} | {
        name: set(part.commands) for name, part in parts.found().items()
    }
    files = {
        name: {file.stem for file in folder.glob("*.py")} - shared for name, folder in rooms.items()
    }
    for name, part in parts.found().items():
        if part.command_module:
            module = importlib.import_module(part.module(part.command_module))
            there = [value for value in vars(module).values() if isinstance(value, click.Command)]
            inner = [
                each
                for group in there
                if isinstance(group, click.Group)
                for each in group.commands.values()
            ]
            files[name] = {each.name for each in there if each not in inner}
    assert files == listed
    assert set(ORDER) == set(commands())


def test_a_file_in_the_way_is_said_without_an_option_that_the_command_lacks(
    recipe_command, tmp_path, golden_message
):
    (tmp_path / "data").write_text("")
    done = recipe_command("new", "mine", "--from", "survival", cwd=tmp_path)
    assert (done.returncode, "--out" in done.stderr) == (1, False)
    golden_message(done.stderr)


@pytest.mark.parametrize(
    "ask",
    [lambda plan: plan.stage("sftt"), lambda plan: Selection(last="sftt").of(plan)],
    ids=["one", "up to one"],
)
def test_a_name_that_is_no_stage_is_answered_with_the_nearest(ask, golden_message):
    recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml")
    with pytest.raises(Stop) as stop:
        ask(translate(recipe, place(recipe)))
    assert (stop.value.code, "`sft`" in stop.value.text) == (2, True)
    golden_message(stop.value)


def test_render_says_which_files_of_a_pipeline_pods_will_look_for(
    recipe_command, tmp_path, golden_message
):
    none = [
        word
        for name in ("hub", "revision", "subset")
        for word in ("--set", f"stages.0.data.{name}=")
    ]
    changes = [
        *none,
        "--set",
        "stages.0.data.path=data/seven-b-text.jsonl",
        "--set",
        "openshift.data_dir=/shared/models/data",
    ]
    done = recipe_command("render", "recipes/seven-b.yaml", "--out", tmp_path / "out", *changes)
    assert done.returncode == 0, done.stderr
    golden_message(done.stderr)
    assert '"path": "/shared/models/seven-b/files/data/seven-b-text.jsonl"' in (
        tmp_path / "out" / "data" / "work.json"
    ).read_text("utf-8")


@pytest.mark.parametrize("verb", ["prepare", "rehearse"])
def test_one_file_is_not_for_several_stages(verb, capsys, tmp_path, monkeypatch, golden_message):
    monkeypatch.chdir(tmp_path)
    rows = str(ROOT / "recipes" / "data" / "survival-sample.jsonl")
    assert typed([verb, str(ROOT / "recipes" / "minimal" / "stages.yaml"), "--data", rows]) == 1
    golden_message(capsys.readouterr().err)


@pytest.mark.parametrize(
    "named", ["in the recipe", pytest.param("behind --data", marks=pytest.mark.long)]
)
def test_prepare_reads_a_file_that_lies_beside_a_recipe_for_the_cluster(
    recipe_command, tmp_path, edited, named
):
    rows = ROOT / "recipes" / "data" / "survival-sample.jsonl"
    source = "hub: cahlen/offline-practical-skills-qa-synthetic"
    recipe = edited(
        (f"  {source}", "  path: data/survival-sample.jsonl"), ("  revision:", "  # revision:")
    )
    more = ("--data", rows) if named == "behind --data" else ()
    # Lengths are counted with the base model's tokenizer, where it can be had.
    offline = {"HF_HUB_OFFLINE": "1"}
    done = recipe_command("prepare", recipe, "--out", tmp_path / "out", *more, env=offline)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "train.parquet").is_file()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_for_this_machine_needs_no_section_that_says_where(
    path, tmp_path, monkeypatch, golden_message
):
    here = ["openshift=", "nodes="]
    monkeypatch.chdir(tmp_path)
    recipe, _, notes = load(path, from_options(here))
    plan = translate(recipe, place(recipe))
    assert plan.place.run_dir == str(tmp_path / "runs" / recipe.name) and not plan.place.on_cluster
    assert plan.stages[-1].machines.memory_gib == units.size(recipe.machines.memory) / 2**30
    golden_message([note for note in notes if setting_of(note) == "nodes"], "check")
    with pytest.raises(Stop) as stop:
        emit(recipe)
    golden_message(stop.value, "render")


def test_a_recipe_for_this_machine_is_planned_and_not_sent(
    recipe_command, tmp_path, golden_message
):
    here = ["--set", "openshift="]
    shown = recipe_command("plan", RECIPES[0].with_stem("resnet"), *here, "--details", cwd=tmp_path)
    assert (
        shown.returncode == 0
        and "main memory, each machine" in shown.stdout
        and "pod" not in shown.stdout
    )
    sent = recipe_command("submit", RECIPES[0].with_stem("resnet"), *here, cwd=tmp_path)
    assert sent.returncode == 1
    golden_message(sent.stderr)


@pytest.mark.parametrize("command", ["status", "logs", "stop", "fetch", "open"])
def test_who_asks_after_a_job_needs_no_data_files(command, edited, recipe_command, tmp_path):
    path = edited(
        ("hub: cahlen/offline-practical-skills-qa-synthetic", "path: data/not-here.jsonl #"),
        ("  revision: main                      # version on the hub\n", ""),
        ("  split: train                        # which part of the data set\n", ""),
    )
    nowhere = {"KUBECONFIG": str(tmp_path / "no-cluster")}
    done = recipe_command(command, path, env=nowhere)
    # What is missing is the cluster alone.
    assert done.returncode == 1 and "not-here" not in done.stdout + done.stderr, done.stderr
    assert "KUBECONFIG" in done.stderr or "kubeconfig" in done.stderr
