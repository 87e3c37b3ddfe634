"""The commands as a person meets them: list, new, render, exit codes, wrong use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner.commands.list import list_recipes
from runner.execute import runs
from runner.execute.order import Selection, stage_of
from runner.files import sha256, write_all
from runner.names import content_hash
from runner.plan import Artifact
from runner.problem import Stop
from runner.recipe import copying, reading
from runner.recipe.changes import from_options
from runner.recipe.check import load
from runner.scenarios import translate
from runner.targets import place
from tests.conftest import RECIPES, ROOT


def test_list_shows_every_starter_recipe(recipe_command):
    done = recipe_command("list")
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["NAME", "SCENARIO", "MODEL", "MACHINES", "DESCRIPTION"]
    assert [line.split()[0] for line in lines[1:]] == [path.stem for path in RECIPES]
    survival = next(line for line in lines if line.startswith("survival "))
    assert "last-layers" in survival and "HuggingFaceTB/SmolLM3-3B" in survival and "4 × 1 L40S" in survival


def test_list_puts_descriptions_below_on_a_narrow_terminal(monkeypatch, capsys):
    def shown(columns: int) -> list[str]:
        monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((columns, 24)))
        list_recipes.callback()
        return capsys.readouterr().out.splitlines()

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert len(shown(200)) == 1 + len(RECIPES)
    below = shown(90)
    assert below[1] == "    DESCRIPTION" and below[2].startswith("gemma") and below[3].startswith("    Gemma 3 270M")
    assert max(map(len, below)) <= 90


@pytest.mark.parametrize("source", [path.stem for path in RECIPES])
def test_a_new_recipe_checks_clean_and_keeps_its_comments(recipe_command, tmp_path, source):
    done = recipe_command("new", "my-demo", "--from", source, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "my-demo.yaml").read_text("utf-8")
    original = (ROOT / "recipes" / f"{source}.yaml").read_text("utf-8")
    assert text.count("#") == original.count("#")
    assert len(text.splitlines()) == len(original.splitlines())
    schema = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / schema).read_text("utf-8"))["properties"]["scenario"]
    assert yaml.safe_load(text)["name"] == "my-demo"
    done = recipe_command("check", ".", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith("1 recipe checked, no problems.\n")


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
    assert "# times through all rows" in text


def test_a_copy_that_would_not_check_clean_is_not_written(recipe_command, tmp_path):
    done = recipe_command("new", "my-demo", "--from", "survival", "--set", "machines.nodes=2", cwd=tmp_path)
    assert done.returncode == 1
    assert "`effective_batch_size` says 64, and the other lines make 32" in done.stderr
    assert not list(tmp_path.rglob("*.yaml")) and not list(tmp_path.rglob("*.jsonl"))


def test_new_never_writes_over_a_file(recipe_command, tmp_path):
    (tmp_path / "my-demo.yaml").write_text("precious")
    done = recipe_command("new", "my-demo", "--from", "survival", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (
        1,
        "`my-demo.yaml` is there already.\nChoose another name, or delete it first.\n",
    )
    assert (tmp_path / "my-demo.yaml").read_text() == "precious"


def test_new_judges_the_name_before_all_else(recipe_command, tmp_path):
    done = recipe_command("new", "../My_demo.yaml", "--from", "survival", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "A recipe cannot be called `../My_demo`.")
    assert not list(tmp_path.iterdir())


def test_an_unknown_starter_is_answered_with_the_nearest(recipe_command, tmp_path):
    done = recipe_command("new", "x", "--from", "survivel", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("There is no starter recipe and no file `survivel`.\nDid you mean `survival`?")


def test_editing_keeps_every_other_byte(survival_text):
    edited = copying.edit(survival_text, from_options(["train.epochs=12"]))
    changed = [pair for pair in zip(survival_text.splitlines(), edited.splitlines(), strict=True) if pair[0] != pair[1]]
    assert len(changed) == 1 and changed[0][1].startswith("  epochs: 12 ")
    assert changed[0][0].index("#") == changed[0][1].index("#")


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_scalar_of_a_recipe_can_be_replaced_in_its_text(path):
    document = reading.read(path)
    done = 0
    for key in document.values:
        value = document.lookup(key)
        if isinstance(value, dict | list) or value is None or not all(isinstance(part, str) for part in key):
            continue
        new = "other words: and more" if isinstance(value, str) else 7 if not isinstance(value, bool) else not value
        from runner.recipe.changes import Change

        again = reading.parse("copy", copying.edit(document.text, [Change(".".join(key), None, new, "test")]))
        assert again.lookup(key) == new
        again_plain, plain = dict(again.data), dict(document.data)
        assert set(again_plain) == set(plain)
        done += 1
    assert done > 20


def test_render_writes_into_build_or_straight_into_a_folder(recipe_command, tmp_path):
    survival = str(ROOT / "recipes" / "survival.yaml")
    done = recipe_command("render", survival, cwd=tmp_path)
    assert done.returncode == 0
    names = ["axolotl.yaml", "claims.yaml", "configmap.yaml", "kustomization.yaml", "pytorchjob.yaml", "recipe.json"]
    assert sorted(file.name for file in (tmp_path / "build" / "survival").iterdir()) == names
    recipe_command("render", survival, "--out", "here", cwd=tmp_path)
    assert sorted(file.name for file in (tmp_path / "here").iterdir()) == names


def test_render_writes_all_files_or_none(tmp_path):
    (tmp_path / "b.yaml").mkdir()
    with pytest.raises(OSError, match="a folder stands where this file belongs"):
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
        "render", survival, "--out", tmp_path / "a", env={"EPOCHS": "9", "HF_TOKEN": "hf_secret", "USER": "eve"}
    )
    recipe_command(
        "render", survival, "--out", tmp_path / "b", env={"TZ": "Asia/Tokyo", "LANG": "C", "PYTHONHASHSEED": "1"}
    )
    for file in (tmp_path / "a").iterdir():
        text = file.read_bytes()
        assert text == (tmp_path / "b" / file.name).read_bytes()
        assert b"hf_secret" not in text and b"eve" not in text.replace(b"every", b"").replace(b"never", b"").replace(
            b"level", b""
        )


def test_wrong_use_is_2_and_unknown_commands_name_the_nearest(recipe_command):
    done = recipe_command("rehears", "x")
    assert done.returncode == 2
    assert "There is no command `rehears`. Did you mean `rehearse`?" in done.stderr
    assert recipe_command("check").returncode == 2
    assert recipe_command("check", "recipes", "--form", "json").returncode == 2


def test_run_without_a_gpu_names_rehearse(recipe_command, tmp_path):
    done = recipe_command("run", ROOT / "recipes" / "survival.yaml", cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 1
    assert done.stderr.startswith("This machine has no GPU that training could use.\n`recipe rehearse ")


def test_ask_and_compare_without_a_run_say_how_to_get_one(recipe_command, tmp_path):
    for command in (
        ["ask", ROOT / "recipes" / "survival.yaml", "Why?"],
        ["compare", ROOT / "recipes" / "survival.yaml"],
    ):
        done = recipe_command(*command, cwd=tmp_path)
        assert done.returncode == 1
        assert done.stderr == (
            "There is no finished run of `survival` below `runs/`.\n"
            "Make one with `recipe rehearse`, or name its folder with `--run DIR`.\n"
        )


def test_a_rehearsal_that_never_began_keeps_no_later_one_out(tmp_path):
    folder = runs.RunFolder(tmp_path / "run", "rehearsal")
    assert not runs.open_for(folder, "with a mistake", [], False, {})
    assert not runs.open_for(folder, "mended", [], False, {})
    (folder.path / "checkpoints").mkdir()
    assert runs.open_for(folder, "mended", [], False, {})
    with pytest.raises(Stop, match="as it was before it changed"):
        runs.open_for(folder, "changed", [], False, {})


def test_a_run_does_not_go_on_with_other_data_than_it_began_with(tmp_path):
    rows, pictures = tmp_path / "my.csv", tmp_path / "pictures"
    rows.write_text("a,b\n1,2\n")
    pictures.mkdir()
    (pictures / "one.png").write_bytes(b"1")
    run, files = runs.RunFolder(tmp_path / "run", "run"), {"data.path": rows, "data.validation_path": pictures}
    runs.open_for(run, "same", [], False, files)
    (run.path / "checkpoints").mkdir()
    assert runs.open_for(run, "same", [], False, files)
    rows.write_text("a,b\n1,3\n")
    with pytest.raises(Stop) as stop:
        runs.open_for(run, "same", [], False, files)
    assert stop.value.text == (
        f"`{rows}` has changed since the run in `{run.path}` began.\n"
        "`--fresh` deletes that run and begins anew; `--out DIR` keeps it and uses another folder."
    )
    rows.write_text("a,b\n1,2\n")
    assert runs.open_for(run, "same", [], False, files)
    (pictures / "two.png").write_bytes(b"2")
    with pytest.raises(Stop, match=f"`{pictures}` has changed since"):
        runs.open_for(run, "same", [], False, files)
    assert not runs.open_for(run, "same", [], True, files)


def test_a_run_whose_data_is_not_on_record_ends_in_a_sentence(tmp_path):
    rows, run = tmp_path / "my.csv", runs.RunFolder(tmp_path / "run", "run")
    rows.write_text("a,b\n")
    run.mark("finished", fingerprint="same", changes=[])
    (run.path / "best_model").mkdir()
    with pytest.raises(Stop) as stop:
        runs.open_for(run, "same", [], False, {"data.path": rows})
    assert stop.value.text.startswith(
        f"It is not on record what `{rows}` held when the run in `{run.path}` began.\n`--fresh`"
    )
    assert runs.open_for(run, "same", [], False, {})


def test_an_edited_data_file_is_no_finished_rehearsal(recipe_command, edited, tmp_path):
    recipe, out = edited(), tmp_path / "run"
    sample = recipe.parent / "data" / "survival-sample.jsonl"
    (out / "best_model").mkdir(parents=True)
    (out / "best_model" / "model.safetensors").write_bytes(b"")
    (out / "training_summary.json").write_text("{}")
    fingerprint = content_hash([load(recipe)[0].fingerprint, "data/survival-sample.jsonl"])
    written = {"data.sample": sha256(sample)}
    (out / "run.json").write_text(json.dumps({"status": "finished", "fingerprint": fingerprint, "files": written}))
    with sample.open("a", encoding="utf-8") as more:
        more.write('{"topic": "t", "question": "q", "answer": "a"}\n')
    done = recipe_command("rehearse", recipe, "--out", out)
    assert done.returncode == 1
    assert done.stderr.startswith(f"`{sample}` has changed since the rehearsal in `{out}` began.\n`--fresh` deletes")


def test_our_own_bug_is_3_with_a_sentence_and_a_file(tmp_path):
    code = (
        "import runner.commands.list as module\n"
        "def broken(): raise KeyError('x')\n"
        "module.facts = broken\n"
        "from runner.cli import main\nmain(['list'])"
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
    assert "This is a bug in recipe-runner, not in your recipe." in done.stderr
    (report,) = tmp_path.glob("recipe-bug-*.txt")
    assert "KeyError: 'x'" in report.read_text()


def test_interrupting_is_130():
    code = (
        "import runner.commands.list as module\n"
        "def pressed(): raise KeyboardInterrupt\n"
        "module.facts = pressed\n"
        "from runner.cli import main\nmain(['list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stderr.strip()) == (130, "Interrupted.")


def test_a_reader_that_stops_early_is_no_error():
    done = subprocess.run(
        f"{sys.executable} -m runner list | head -c 1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" not in done.stderr


def test_every_command_has_help(recipe_command):
    from runner.cli import COMMANDS

    for command in COMMANDS:
        done = recipe_command(command, "--help")
        assert done.returncode == 0, command
        assert "Usage: recipe" in done.stdout and len(done.stdout) > 100


def test_the_commands_folder_and_the_command_list_agree():
    from runner.cli import COMMANDS

    files = {path.stem for path in (ROOT / "runner" / "commands").glob("*.py")} - {
        "__init__",
        "options",
        "cluster_options",
        "training_options",
    }
    assert files == set(COMMANDS), "a command is one module in runner/commands and one line in runner/cli.py"
    assert Path(ROOT / "runner" / "cli.py").is_file()


def test_a_file_in_the_way_is_said_without_an_option_that_the_command_lacks(recipe_command, tmp_path):
    (tmp_path / "data").write_text("")
    done = recipe_command("new", "mine", "--from", "survival", cwd=tmp_path)
    assert done.returncode == 1
    assert "--out" not in done.stderr and done.stderr.endswith(
        "A file stands where a folder is needed. Use another folder, or move the file away.\n"
    )


@pytest.mark.parametrize("ask", [lambda plan: stage_of(plan, "sftt"), lambda plan: Selection(last="sftt").of(plan)])
def test_a_name_that_is_no_stage_is_answered_with_the_nearest(ask):
    recipe, _, _ = load(ROOT / "recipes" / "seven-b.yaml")
    with pytest.raises(Stop) as stop:
        ask(translate(recipe, place(recipe)))
    assert stop.value.code == 2
    assert stop.value.text.startswith(
        "`seven-b` has no stage `sftt`.\nDid you mean `sft`? Its stages are `data`, `init`, "
    )


def test_render_says_which_files_of_a_pipeline_pods_will_look_for(recipe_command, tmp_path):
    none = [word for name in ("hub", "revision", "subset") for word in ("--set", f"data.{name}=")]
    changes = [*none, "--set", "data.path=data/seven-b-text.jsonl", "--set", "openshift.data_dir=/shared/data/seven-b"]
    done = recipe_command("render", "recipes/seven-b.yaml", "--out", tmp_path / "out", *changes)
    assert done.returncode == 0, done.stderr
    assert (
        "note: Pods do not see this machine's files; they read `recipes/data/seven-b-text.jsonl` of their image.\n"
        "It must lie there when it is built. Or put the data on a claim, or on the hub.\n"
    ) in done.stderr
    assert '"path": "/opt/recipe-runner/recipes/data/seven-b-text.jsonl"' in (
        tmp_path / "out" / "data" / "work.json"
    ).read_text("utf-8")


@pytest.mark.parametrize("named", ["in the recipe", "behind --data"])
def test_prepare_reads_a_file_that_lies_beside_a_recipe_for_the_cluster(recipe_command, tmp_path, edited, named):
    rows = ROOT / "recipes" / "data" / "survival-sample.jsonl"
    source = "hub: cahlen/offline-practical-skills-qa-synthetic"
    recipe = edited((f"  {source}", "  path: data/survival-sample.jsonl"), ("  revision:", "  # revision:"))
    more = ("--data", rows) if named == "behind --data" else ()
    # Lengths are counted with the base model's tokenizer, where it can be had.
    offline = {"HF_HUB_OFFLINE": "1"}
    done = recipe_command("prepare", recipe, "--out", tmp_path / "out", *more, env=offline)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "train.parquet").is_file()
