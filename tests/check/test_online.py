"""Datasets on a hub played on this machine: their columns are asked for online, and by the prepare
Job before anything is fetched."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from runner.check.validate import load
from runner.data.data_sets import DataSource, licence
from runner.plan import Place
from runner.scenarios import translate
from tests.conftest import ROOT
from tests.hub import Hub, Repository, parquet

pytestmark = pytest.mark.heavy

RECIPE = """\
scenario: last-layers
name: mine
model:
  base: HuggingFaceTB/SmolLM3-3B
data:
  sets:
    - {hub: someone/rows, question: "[question]", answer: "[answer]"}
    - {hub: someone/chats, split: train_sft}
    - {hub: someone/parts, subset: two, question: "[instruction]", answer: "[reply]"}
machines:
  gpu: NVIDIA-L40S
"""
WRONG = {
    "a column": (('"[question]"', '"[query]"'), 7),
    "a form": (("split: train_sft", "split: train_sft, form: alpaca"), 8),
    "a split": (("train_sft", "train"), 8),
    "a subset": (("subset: two", "subset: three"), 9),
    "no subset": ((", subset: two", ""), 9),
    "a name": (("someone/parts", "someone/nothing"), 9),
    "columns of no form": (
        ('{hub: someone/rows, question: "[question]", answer: "[answer]"}', "{hub: someone/rows}"),
        7,
    ),
}


@pytest.fixture(scope="module")
def hub():
    pairs = [
        {"question": f"What is {number}?", "answer": f"It is {number}."} for number in range(30)
    ]
    chats = [
        {
            "messages": [
                {"role": "user", "content": row["question"] + "!"},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in pairs
    ]
    card = "---\nconfigs:\n- config_name: one\n  data_files: one.csv\n- config_name: two\n  data_files: two.csv\n---\n"
    two = "instruction,reply\n" + "".join(f"{row['question']}?,{row['answer']}\n" for row in pairs)
    return Hub(
        datasets={
            "someone/rows": {
                "README.md": b"---\nlicense: cc-by-sa-4.0\n---\n",
                "data/train-00000-of-00001.parquet": parquet(pairs),
            },
            "someone/chats": {
                "data/train_sft-00000-of-00001.parquet": parquet(chats),
                "data/test_sft-00000-of-00001.parquet": parquet(chats[:2]),
            },
            "someone/parts": {
                "README.md": card.encode(),
                "one.csv": b"a,b\n1,2\n",
                "two.csv": two.encode(),
            },
        },
    )


def changed(*changes: tuple[str, str]) -> str:
    text = RECIPE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.fixture(scope="module")
def online(recipe_command, tmp_path_factory, hub):
    """What `recipe check` says with `--online`, of recipes by the names of their files."""

    def run(
        recipes: dict[str, str], endpoint: str = "", arguments: tuple[str, ...] = ("--online",)
    ):
        folder = tmp_path_factory.mktemp("online")
        for name, text in recipes.items():
            (folder / name).write_text(text, "utf-8")
        env = {
            "HF_ENDPOINT": endpoint or hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_TOKEN": "",
            "HF_HUB_OFFLINE": "",
        }
        return recipe_command("check", *recipes, *arguments, cwd=folder, env=env)

    return run


@pytest.fixture(scope="module")
def wrong(online):
    """One command for all, because what it imports takes longer than what it asks."""
    return online(
        {f"{case.replace(' ', '-')}.yaml": changed(change) for case, (change, _) in WRONG.items()}
    )


def test_what_is_right_is_accepted_and_without_the_option_nobody_is_asked(
    online, hub, golden_message
):
    """And that is said once, with the command that asks."""
    hub.asked.clear()
    done = online({"recipe.yaml": RECIPE}, arguments=())
    assert done.returncode == 0 and hub.asked == []
    golden_message(done.stdout)
    done = online({"recipe.yaml": RECIPE})
    assert done.returncode == 0 and "Not in the catalog" not in done.stdout, (
        done.stdout + done.stderr
    )
    assert "`someone/chats` are read in the form messages" in done.stdout and hub.asked


@pytest.mark.parametrize("case", WRONG)
def test_what_the_hub_does_not_have_is_said_with_what_it_has(case, wrong, golden_message):
    assert wrong.returncode == 1 and "Traceback" not in wrong.stderr, wrong.stdout + wrong.stderr
    file = f"{case.replace(' ', '-')}.yaml"
    (place,) = re.findall(rf"^{file}:(\d+):\d+: (?!note)", wrong.stdout, re.MULTILINE)
    assert int(place) == WRONG[case][1]
    (said,) = [
        text
        for text in wrong.stdout.split("\n\n")
        if text.startswith(f"{file}:") and ": note: " not in text
    ]
    golden_message(
        "\n".join(text for text in said.splitlines() if " | " not in text).replace(
            file, "recipe.yaml"
        )
    )


def test_a_hub_that_does_not_answer_is_a_note(online):
    done = online(
        {"recipe.yaml": changed(("[question]", "[query]"))}, endpoint="http://127.0.0.1:9"
    )
    assert done.returncode == 0, done.stdout
    assert (
        "could not be asked about the columns of `someone/rows`, `someone/chats` and `someone/parts`"
        in done.stdout
    )
    assert "before a GPU is reserved" in done.stdout


def prepared(tmp_path, hub, *changes: tuple[str, str], text: str = ""):
    """What the process of the prepare Job leaves: `python -m runner.entrypoints.prepare`, with the
    stage's own config."""
    (tmp_path / "recipe.yaml").write_text(text or changed(*changes), "utf-8")
    place = Place(*(str(tmp_path / name) for name in ("config", "data", "run", "scratch")))
    stage = translate(load(tmp_path / "recipe.yaml")[0], place).stage("data")
    (tmp_path / "work.json").write_text(json.dumps(stage.config), "utf-8")
    return subprocess.run(
        [sys.executable, "-m", "runner.entrypoints.prepare", str(tmp_path / "work.json")],
        env=os.environ
        | {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_TOKEN": "",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.long
def test_the_prepare_job_reads_all_sets_from_the_hub(tmp_path, hub):
    done = prepared(tmp_path, hub)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "data" / "report.json").read_text("utf-8"))
    assert [(one["name"], one["rows_in"]) for one in report["sets"]] == [
        ("someone/rows on the hub", 30),
        ("someone/chats on the hub", 30),
        ("someone/parts on the hub", 30),
    ]
    assert all(one["train_rows"] for one in report["sets"])
    said = "cc-by-sa-4.0, according to someone/rows; follow it if you publish a model"
    assert report["licence"].split("; none on the page of ")[0] == said
    assert f"licence              {report['licence']}" in done.stdout


def test_the_licence_of_a_dataset_is_what_its_page_says(hub, monkeypatch, golden_message, tmp_path):
    """With one, without one, without a hub; a file has none."""
    from huggingface_hub import constants

    def of(name: str | None, path: str | None = None) -> str:
        return licence(DataSource(hub=name, revision="main", subset=None, split="train", path=path))

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    said = [of("someone/rows"), of("someone/chats"), of("someone/nothing")]
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    golden_message("\n".join([*said, of("someone/rows")]))
    assert of(None, str(tmp_path / "rows.csv")) == ""


@pytest.mark.parametrize(
    "case",
    [
        "a column",
        *(
            pytest.param(case, marks=pytest.mark.long)
            for case in ("a form", "a split", "columns of no form")
        ),
    ],
)
def test_the_prepare_job_says_what_is_wrong_before_it_fetches_anything(
    case, tmp_path, hub, golden_message
):
    hub.asked.clear()
    done = prepared(tmp_path, hub, WRONG[case][0])
    assert done.returncode == 3 and "Traceback" not in done.stderr, done.stdout + done.stderr
    golden_message(done.stderr)
    assert not (tmp_path / "data").exists() and not list((tmp_path / "hf").rglob("*.arrow"))
    assert (
        json.loads((tmp_path / "run" / "data" / "stopped.json").read_text("utf-8"))["message"]
        in done.stderr
    )


ROWS = {
    "data/train-00000-of-00001.parquet": parquet(
        {"question": f"What is {n}?", "answer": f"{n}."} for n in range(30)
    )
}
ONE_SET = """\
scenario: last-layers
name: mine
model:
  base: HuggingFaceTB/SmolLM2-135M-Instruct
  attention: sdpa
data:
  sets:
    - {hub: someone/rows, question: "[question]", answer: "[answer]"}
machines:
  gpu: NVIDIA-L40S
"""
GATED = {"datasets": {"someone/rows": Repository(ROWS, gated=True)}}
# A hub that gives no rows, and the environment of whoever asks it.
REFUSALS = {
    "gated": (GATED, {}),
    "no access": (GATED, {"HF_TOKEN": "hf_stranger"}),
    "not there": ({}, {}),
    "no revision": ({"datasets": {"someone/rows": Repository(ROWS, branches=("v2",))}}, {}),
    "too many requests": ({"busy": True}, {}),
    "offline": ({"datasets": {"someone/rows": ROWS}}, {"HF_HUB_OFFLINE": "1"}),
    "unreachable": ({}, {"HF_ENDPOINT": "http://127.0.0.1:9"}),
}


def asking(hub, folder, env):
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "HF_TOKEN": "",
        "HF_HUB_OFFLINE": "",
    } | env


@pytest.mark.parametrize("case", REFUSALS)
def test_check_says_why_the_hub_gives_no_rows(case, recipe_command, tmp_path, golden_message):
    has, env = REFUSALS[case]
    refusing = Hub(**has)
    (tmp_path / "mine.yaml").write_text(ONE_SET, "utf-8")
    done = recipe_command(
        "check", "mine.yaml", "--online", cwd=tmp_path, env=asking(refusing, tmp_path, env)
    )
    assert done.returncode == (0 if case in ("too many requests", "offline", "unreachable") else 1)
    golden_message(done.stdout)


@pytest.mark.parametrize(
    "case",
    [
        "gated",
        *(pytest.param(case, marks=pytest.mark.long) for case in REFUSALS if case != "gated"),
    ],
)
def test_prepare_and_run_end_with_why_the_hub_gives_no_rows(case, tmp_path, golden_message):
    """`run` starts the same program for its data as `prepare`, and repeats its words."""
    has, env = REFUSALS[case]
    refusing = Hub(**has)
    (tmp_path / "mine.yaml").write_text(ONE_SET, "utf-8")
    commands = {"prepare": (), "run": ("--yes",)}
    if case == "gated":
        del commands["run"]
    for verb, options in commands.items():
        done = subprocess.run(
            [sys.executable, "-m", "runner", verb, "mine.yaml", *options],
            cwd=tmp_path,
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
            | asking(refusing, tmp_path, env),
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr, (
            done.stdout + done.stderr
        )
        golden_message(done.stderr[done.stderr.index("The data set") :], verb)


def test_a_data_set_that_has_another_name_today_is_a_note_and_is_read(
    recipe_command, tmp_path, golden_message
):
    moved = Hub(datasets={"somebody/rows": ROWS}, renamed={"someone/rows": "somebody/rows"})
    (tmp_path / "mine.yaml").write_text(ONE_SET, "utf-8")
    done = recipe_command(
        "check", "mine.yaml", "--online", cwd=tmp_path, env=asking(moved, tmp_path, {})
    )
    assert done.returncode == 0
    golden_message(done.stdout)


SONGS = ROOT / "recipes/data/lyrics-sample.jsonl"
# As published scripts read the data set that the starter names.
PUBLISHED = ("Instruction", "Label")


@pytest.fixture(scope="module")
def songs():
    rows = [json.loads(line).values() for line in SONGS.read_text("utf-8").splitlines()]
    played = [dict(zip(PUBLISHED, row, strict=True)) for row in rows]
    return Hub(
        datasets={
            "rajtripathi/5M-Songs-Lyrics": {"data/train-00000-of-00001.parquet": parquet(played)}
        }
    )


def lyrics(starter: str, *changes: tuple[str, str]) -> str:
    """The starter's text, without the sample that lies beside it."""
    text = re.sub(
        r"^  sample: .*\n",
        "",
        (ROOT / "recipes" / f"{starter}.yaml").read_text("utf-8"),
        flags=re.MULTILINE,
    )
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


@pytest.mark.long
@pytest.mark.parametrize("starter", ["lyrics", "minimal/lyrics-demo"])
def test_the_first_job_of_the_starter_with_songs_reads_the_columns_as_they_are_published(
    starter, tmp_path, songs
):
    done = prepared(tmp_path, songs, text=lyrics(starter))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "data" / "report.json").read_text("utf-8"))
    assert (
        report["rows_in"] == len(SONGS.read_text("utf-8").splitlines())
        and report["train_rows"] > 50
    )


def test_wrong_columns_of_songs_stop_the_first_job_with_those_that_there_are(
    tmp_path, songs, golden_message
):
    done = prepared(tmp_path, songs, text=lyrics("lyrics", ("lyrics: Label", "lyrics: lyrics")))
    assert done.returncode == 3 and not (tmp_path / "data").exists()
    golden_message(done.stderr)


def test_columns_that_the_catalog_knows_are_said_without_the_hub(
    recipe_command, tmp_path, golden_message
):
    wrong = (
        ("instruction: Instruction", "instruction: instruction"),
        ("lyrics: Label", "lyrics: lyrics"),
    )
    (tmp_path / "mine.yaml").write_text(lyrics("lyrics", *wrong), "utf-8")
    done = recipe_command("check", "mine.yaml", cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0
    golden_message(done.stdout)
