"""What the pages say to type is typed: those commands that can run on this machine, in the order of
their page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from itertools import takewhile

import pytest

from runner.commands import cli
from runner.parts.openshift import helper_pod
from tests.conftest import ROOT
from tests.docs import pages
from tests.docs.pages import PAGES
from tests.parts.openshift.api import Api
from tests.parts.openshift.conftest import in_process

# What cannot be typed here, and why. Each must parse, which test_pages.py holds.
ELSEWHERE = {
    r"run ": "needs a GPU",
    r"(?:submit|status|why|logs|fetch|stop|open|register|push) ": "talks to a cluster, a registry or the hub",
    r"(?:serve|chat|edit) ": "goes on until it is ended",
    r"new \S+ $": "asks in a terminal",
    r".* - $": "reads what is piped in",
    r"evaluate |promote |gate recipes/lyrics": "is about a run of the full size",
    r"models add |.*--model small ": "asks the hub, or a claim",
    r".*--url ": "asks a server",
    r".*(?:runs/one|runs/my-demo\b|models/my-own|/shared/|--online|--learn|--cluster|picture\.png)": "is about what is not here",
    r"export .*gguf": "needs the extra `gguf`",
    r"ask recipes/seven-b|compare recipes/seven-b|doctor ": "is about a run, or a machine, of the full size",
    r".*\b[A-Z]{3,}\b(?!-)": "has a word for its reader to fill in",
}
# On these pages, too: every starter is rehearsed in tests of its own, what is asked on the
# cluster's page was fetched, and `prepare` reads rows that are on the hub.
APART = {
    "docs/starters/": "rehearse",
    "docs/cluster": "ask",
    "docs/rehearsal": "prepare",
    "README": "prepare",
}


def typed(page):
    """The commands of a page that run here: copies that a sentence speaks of, then what stands in
    blocks."""
    told = list(pages.commands(page))
    for command in sorted(told, key=lambda command: not command.spoken):
        line = " ".join(command.words) + " "
        apart = any(
            pages.name(page).startswith(at) and command.words[0] == verb
            for at, verb in APART.items()
        )
        copied = command.words[0] == "new" and len(command.words) > 1
        if (
            (copied or not command.spoken)
            and not apart
            and not any(re.match(known, line) for known in ELSEWHERE)
        ):
            yield command


TYPED = [page for page in PAGES if any(typed(page))]


@pytest.fixture
def desk(tmp_path):
    """A folder with the files that the pages speak of."""
    shutil.copytree(ROOT / "recipes", tmp_path / "recipes")
    shutil.copytree(ROOT / "schemas", tmp_path / "schemas")
    rows = [
        json.loads(line)
        for line in (ROOT / "recipes/data/survival-sample.jsonl").read_text("utf-8").splitlines()
    ]
    turns = [
        {
            "messages": [
                {"role": "user", "content": row["question"]},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in rows
    ]
    (tmp_path / "chats.jsonl").write_text(
        "".join(f"{json.dumps(row)}\n" for row in turns), encoding="utf-8"
    )
    (tmp_path / "my-questions.csv").write_text(
        "Question,Answer\n" + "".join(f"What is {n} and {n}?,It is {2 * n}.\n" for n in range(40)),
        encoding="utf-8",
    )
    (tmp_path / "songs.csv").write_text(
        "instruction,lyrics\nWrite a song,la la la\n", encoding="utf-8"
    )
    (tmp_path / "my-tasks.jsonl").write_text(
        "".join(f'{{"problem": "What is {n} and {n}?", "result": "{2 * n}"}}\n' for n in range(40)),
        encoding="utf-8",
    )
    (tmp_path / "my-pairs.jsonl").write_text(
        "".join(
            f'{{"prompt": "{n} + {n}?", "chosen": "It is {2 * n}.", "rejected": "{n}"}}\n'
            for n in range(40)
        ),
        encoding="utf-8",
    )
    (tmp_path / "my-texts.jsonl").write_text(
        '{"text": "A text of its own."}\n' * 40, encoding="utf-8"
    )
    (tmp_path / "chat.txt").write_text(
        "".join(f"Ann: What is {n} and {n}?\nBob: It is {2 * n}.\n" for n in range(40)),
        encoding="utf-8",
    )
    (tmp_path / "my-texts").mkdir()
    (tmp_path / "my-texts/one.txt").write_text("A text.\n\nAnother one.\n", encoding="utf-8")
    for kind in ("cats", "dogs", "birds"):
        (tmp_path / "my-images" / kind).mkdir(parents=True)
    return tmp_path


@pytest.mark.long
@pytest.mark.parametrize("page", TYPED, ids=pages.name)
def test_what_a_page_says_to_type_works(page, desk):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    for command in typed(page):
        words = takewhile(lambda word: word != ">", command.words)  # a shell's, which is not here
        done = subprocess.run(
            [sys.executable, "-m", "runner", *words],
            cwd=desk,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def test_most_of_what_pages_say_to_type_runs_here():
    here, told = (
        sum(len(list(list_of(page))) for page in PAGES) for list_of in (typed, pages.commands)
    )
    assert len(TYPED) > 15 and here > 60 and told > here


@in_process
def test_what_the_page_of_the_cluster_says_to_send_would_be_taken(tmp_path, monkeypatch, capfd):
    """By the small API, which judges and keeps nothing; what comes after a job is there, tests of
    the cluster play."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(helper_pod, "require_rows", lambda *_: None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    api, did = Api("my-namespace"), []
    try:
        monkeypatch.setenv(
            "KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig", "my-namespace"))
        )
        for command in pages.commands(ROOT / "docs/cluster.md"):
            words = [word.replace("--follow", "--dry-run") for word in command.words]
            if not command.spoken and words[0] in ("new", "check", "plan", "site", "submit"):
                code = cli._code(words)
                assert code == 0, f"{command}\n{''.join(capfd.readouterr())}"
                did.append(words[0])
    finally:
        api.close()
    assert did == ["new", "check", "plan", "site", "submit"]


def test_no_command_of_the_cluster_page_makes_a_claim_before_submit_has_looked_at_the_storage():
    """Claims for several machines stay Pending on block storage."""
    typed = [
        line
        for line in (ROOT / "docs/cluster.md").read_text("utf-8").splitlines()
        if line.startswith("oc ")
    ]
    assert len(typed) > 4 and not [line for line in typed if "claims.yaml" in line]
