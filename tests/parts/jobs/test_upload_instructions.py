"""FILES.md: its commands, typed as they stand, bring a recipe's files to where its pods look."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from runner.check.validate import load
from runner.parts.jobs import kubernetes
from runner.scenarios import translate
from tests.conftest import ROOT

RECIPE = """\
scenario: causal-lm
name: mine
model:
  base: HuggingFaceTB/SmolLM2-135M
data:
  validation_path: held out.txt
  sets:
    - path: texts
    - path: ../beside/more.jsonl
    - path: texts/first.txt
machines:
  gpu: NVIDIA-L40S
{code}openshift:
  namespace: somewhere
  data_from: {comes}
  data_dir: /results/mine/data
  claims:
    - {{name: results, mount: /results}}
"""
CODE = "image:\n  code_from_git: {{url: 'https://example.org/code.git', commit: '{}'}}\n".format(
    "1" * 40
)
# What `oc` does with a pod's folders, on those below $PODS; of manifests it only looks whether they
# are there.
OC = """#!/bin/bash
set -eu
echo "$@" >> "$PODS/asked"
case $1 in
  exec) while [ "$1" != -- ]; do shift; done; shift; exec "$1" "$2" "$PODS$3" ;;
  cp) test -d "$PODS${3#*:}"; exec cp -R "$2" "$PODS${3#*:}" ;;
  apply|create) case $2 in -f) test -f "$3" ;; -k) test -f "$3/kustomization.yaml" ;; esac ;;
esac
"""


@pytest.fixture
def rendered(tmp_path, recipe_command):
    """A recipe with files beside it, rendered; gives its folder."""

    def make(comes: str) -> Path:
        folder = tmp_path / "here"
        (folder / "texts").mkdir(parents=True)
        (tmp_path / "beside").mkdir()
        (folder / "texts" / "first.txt").write_text("One.\n", "utf-8")
        (folder / "held out.txt").write_text("Two.\n", "utf-8")
        (tmp_path / "beside" / "more.jsonl").write_text('{"text": "Three."}\n', "utf-8")
        (folder / "mine.yaml").write_text(
            RECIPE.format(comes=comes, code=CODE if comes == "git" else ""), "utf-8"
        )
        done = recipe_command("render", "mine.yaml", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "FILES.md" in done.stderr
        return folder

    return make


def typed(folder: Path, **env: str) -> Path:
    """Types what FILES.md says, in the folder of the recipe; gives the folder that pods see as
    theirs."""
    commands, pods = folder.parent / "commands", folder.parent / "pods"
    for place in (commands, pods):
        place.mkdir(exist_ok=True)
    (commands / "oc").write_text(OC, "utf-8")
    (commands / "recipe").write_text(
        f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m runner "$@"\n', "utf-8"
    )
    for command in commands.iterdir():
        command.chmod(0o755)
    text = (folder / "build" / "mine" / "FILES.md").read_text("utf-8")
    script = "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))
    done = subprocess.run(
        [
            "bash",
            "-eu",
            "-c",
            script.replace("CHECKOUT=…", f"CHECKOUT='{folder.parent / 'checkout'}'"),
        ],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PODS": str(pods),
            "PYTHONPATH": str(ROOT),
            **env,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return pods


def looked_for(folder: Path) -> list[str]:
    """Where the stage `data` looks for what the recipe names, in its order."""
    recipe, _, _ = load(folder / "mine.yaml")
    data = translate(recipe, kubernetes.place(recipe)).stage("data").config["data"]
    return [one["path"] for name in ("sets", "validation_sets") for one in data[name]]


def assert_there(root: Path, folder: Path) -> None:
    texts, more, first, held_out = (root / path.removeprefix("/") for path in looked_for(folder))
    assert (texts / "first.txt").read_text("utf-8") == first.read_text("utf-8") == "One.\n"
    assert [file.name for file in texts.iterdir()] == ["first.txt"]
    assert (json.loads(more.read_text("utf-8"))["text"], held_out.read_text("utf-8")) == (
        "Three.",
        "Two.\n",
    )


def test_a_claim_gets_them_through_a_pod_that_opens_it(rendered, golden_message):
    folder = rendered("claim")
    golden_message((folder / "build" / "mine" / "FILES.md").read_text("utf-8"))
    assert_there(typed(folder), folder)
    # Typed again, nothing lands in a folder within itself.
    assert_there(typed(folder), folder)
    pod = yaml.safe_load((folder / "build" / "mine" / "files.yaml").read_text("utf-8"))
    asked = (folder.parent / "pods" / "asked").read_text("utf-8")
    assert f"pod/{pod['metadata']['name']} --namespace {pod['metadata']['namespace']}" in asked
    (container,) = pod["spec"]["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/results", "/tmp"]
    claim, scratch = pod["spec"]["volumes"]
    assert claim == {"name": "results", "persistentVolumeClaim": {"claimName": "results"}}
    assert scratch == {"name": "tmp", "emptyDir": {}}


def test_an_image_is_built_with_them(rendered, golden_message):
    folder = rendered("image")
    text = (folder / "build" / "mine" / "FILES.md").read_text("utf-8")
    assert "move `../beside/more.jsonl` below the folder of the recipe first" in text
    golden_message(text)
    checkout = folder.parent / "checkout"
    (checkout / "recipes").mkdir(parents=True)
    pods = typed(folder)
    assert (checkout / "recipes" / "mine.yaml").is_file()
    # The image has the checkout's recipes where its pods look.
    at = folder.parent / "image" / kubernetes.IMAGE_FILES.removeprefix("/")
    at.parent.mkdir(parents=True)
    at.symlink_to(checkout / "recipes")
    assert_there(folder.parent / "image", folder)
    assert "value: mine" in (checkout / "site" / "build.yaml").read_text("utf-8").replace('"', "")
    assert "--from-dir=." in (pods / "asked").read_text("utf-8")


def test_a_clone_has_them_once_they_are_pushed(rendered, golden_message):
    folder = rendered("git")
    golden_message((folder / "build" / "mine" / "FILES.md").read_text("utf-8"))
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org"]
    remote, checkout = folder.parent / "remote.git", folder.parent / "checkout"
    for command in (["init", "-q", "--bare", remote], ["clone", "-q", remote, checkout]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (checkout / ".gitignore").write_text("*.jsonl\n", "utf-8")
    (checkout / "recipes").mkdir()
    who = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_CONFIG_COUNT": "1"}
    who |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    typed(folder, **who, GIT_CONFIG_KEY_0="push.autoSetupRemote", GIT_CONFIG_VALUE_0="true")
    clone = (
        folder.parent / "pod" / kubernetes.CLONED_FILES.removeprefix("/").removesuffix("/recipes")
    )
    subprocess.run([*git, "clone", "-q", remote, clone], check=True, capture_output=True)
    assert_there(folder.parent / "pod", folder)


def test_a_recipe_without_files_of_its_own_needs_none(tmp_path, recipe_command):
    done = recipe_command("render", ROOT / "recipes" / "lyrics.yaml", "--out", tmp_path)
    assert (
        done.returncode == 0
        and not list(tmp_path.rglob("FILES.md"))
        and not list(tmp_path.rglob("files.yaml"))
    )
