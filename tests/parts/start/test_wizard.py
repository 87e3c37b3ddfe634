"""`recipe new` without `--from`: questions in a terminal, options in a script, and the same recipe
from both."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import shlex
import sys
import time
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from runner import catalog
from runner.catalog.hardware import MEASURED, PROCESSOR, Gpu
from runner.check.validate import load
from runner.commands.cli import _code, cli
from runner.parts.planner import processor
from runner.parts.planner.planned import Planned
from runner.parts.start.commands import new
from runner.parts.start.drafting import Answers, choices
from runner.recipe.overrides import from_options as changes
from runner.recipe.reading import read
from runner.recipe.recipe import Override
from runner.tools import packaged
from runner.tools.files import cache_folder, write_json
from runner.tools.problem import Stop
from tests.conftest import ROOT

SAMPLES = ROOT / "recipes" / "data"
ROWS = [
    json.loads(line) for line in (SAMPLES / "survival-sample.jsonl").read_text("utf-8").splitlines()
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder with data of every kind in it, on a machine without a GPU."""
    from PIL import Image

    with (tmp_path / "my.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Subject", "Question", "Reply"])
        table.writerows([row["topic"], row["question"], row["answer"]] for row in ROWS)
    (tmp_path / "header.csv").write_text("Question,Reply\n")
    (tmp_path / "lonely.csv").write_text(f"Words\n{'one ' * 200}\n")
    pair = {"frage": "Wie alt?", "schlechter": "Nein.", "besser": "Sieben"}
    (tmp_path / "paare.jsonl").write_text(
        "".join(json.dumps(pair | {"frage": f"Wie {n}?"}) + "\n" for n in range(20))
    )
    turns = (
        {"role": role, "content": row[key]}
        for row in ROWS
        for role, key in (("user", "question"), ("assistant", "answer"))
    )
    talks = [json.dumps({"messages": [one, next(turns)]}) for one in turns]
    (tmp_path / "talks.jsonl").write_text("\n".join(talks) + "\n")
    (tmp_path / "text.txt").write_text(
        "\n\n".join([(SAMPLES / "gemma-sample.txt").read_text("utf-8")] * 12)
    )
    (tmp_path / "songs.jsonl").write_text((SAMPLES / "lyrics-sample.jsonl").read_text("utf-8"))
    with (
        (tmp_path / "apart.csv").open("w", encoding="utf-8", newline="") as apart,
        (tmp_path / "asked.csv").open("w", encoding="utf-8", newline="") as asked,
    ):
        tables = csv.writer(apart), csv.writer(asked)
        tables[0].writerow(["Artist", "Genre", "Words"])
        tables[1].writerow(["id", "Wish", "Song"])
        for number, line in enumerate(
            (SAMPLES / "lyrics-sample.jsonl").read_text("utf-8").splitlines()
        ):
            words = json.loads(line)["Label"]
            tables[0].writerow([f"Band {number % 9}", "folk", words])
            tables[1].writerow([number, f"A song like Band {number % 9}, folk please", words])
    for name in ("preferences", "questions", "text"):
        (tmp_path / f"{name}.jsonl").write_text(
            (SAMPLES / f"seven-b-{name}.jsonl").read_text("utf-8")
        )
    pairs = [
        json.loads(line)
        for line in (tmp_path / "preferences.jsonl").read_text("utf-8").splitlines()
    ]
    labelled = (
        {"prompt": one["question"], "completion": one["rejected"], "label": False} for one in pairs
    )
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in labelled))
    for colour, name in (((250, 10, 10), "cat"), ((10, 10, 250), "dog")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(30):
            Image.new("RGB", (32, 32), (*colour[:2], number)).save(
                tmp_path / "pictures" / name / f"{number}.png"
            )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: [])
    return tmp_path


def left(here) -> set[str]:
    return {path.name for path in here.iterdir()} - {
        *(
            "my.csv",
            "header.csv",
            "lonely.csv",
            "talks.jsonl",
            "text.txt",
            "songs.jsonl",
            "pictures",
        ),
        *(
            "apart.csv",
            "asked.csv",
            "paare.jsonl",
            "preferences.jsonl",
            "questions.jsonl",
            "text.jsonl",
            "labels.jsonl",
        ),
    }


KINDS = {
    "questions": ("--data", "my.csv"),
    "conversations": ("--data", "talks.jsonl"),
    "text": ("--data", "text.txt"),
    "songs": ("--data", "songs.jsonl"),
    "images": ("--data", "pictures"),
}
PLACES = {
    "here": (),
    "machines": ("--where", "machines", "--addresses", "10.0.0.1,10.0.0.2", "--gpus", "2"),
    "cluster": ("--where", "cluster", "--namespace", "mine"),
}


SHORT = {
    ("questions", "here"),
    ("conversations", "cluster"),
    ("text", "machines"),
    ("songs", "here"),
    ("images", "here"),
}
EVERY = [
    (kind, where) for kind in KINDS for where in PLACES if (kind, where) != ("images", "machines")
]


@pytest.mark.parametrize(
    ("kind", "where"),
    [pytest.param(*one, marks=[] if one in SHORT else [pytest.mark.long]) for one in EVERY],
)
def test_what_answers_make_checks_clean_plans_and_renders(here, capsys, kind, where):
    assert (
        _code(["new", "made", "--what", kind, *KINDS[kind], *PLACES[where], "--gpu", "NVIDIA-L40S"])
        == 0
    )
    assert capsys.readouterr().err.endswith("first.\nNext: recipe rehearse made.yaml\n")
    assert _code(["check", "made.yaml"]) == 0
    # A few questions of these rows have several answers.
    assert "1 recipe checked, no" in capsys.readouterr().out
    planned = Planned.of(load("made.yaml")[0])
    assert not planned.problems and all(stage.fits for stage in planned.forecasts)
    if where != "here":
        assert _code(["render", "made.yaml"]) == 0, capsys.readouterr().err
    recipe = planned.recipe
    assert recipe.machines.gpu == "NVIDIA-L40S"
    assert "sample" not in recipe.data and "hub" not in recipe.data
    # A run itself chooses questions of rows with answers.
    questions = 3 if kind in ("text", "songs") else 0
    assert len(recipe.settings.get("demo", {}).get("questions", ())) == questions
    assert sum(
        line.startswith((" ", "-")) and "#" not in line for line in made_lines()
    ) == questions + (2 if where == "machines" else 0)


def made_lines() -> list[str]:
    with open("made.yaml", encoding="utf-8") as file:
        return file.read().splitlines()


@pytest.mark.parametrize(
    ("kind", "answers"),
    [
        (
            "questions",
            ["adapter", "my.csv", *[""] * 6, "Qwen/Qwen3-0.6B", "NVIDIA-L4", ""],
        ),
        (
            "questions",
            [
                *(
                    "last-layers",
                    "my.csv",
                    "For [Subject], [Question]",
                    "Reply",
                    "You are a guide.",
                    "no",
                    "yes",
                ),
                *("cluster", "", "mine", "2", "NVIDIA-A40", "2"),
            ],
        ),
        (
            "conversations",
            [
                "",
                "talks.jsonl",
                "",
                "yes",
                "machines",
                "",
                "10.0.0.1, 10.0.0.2",
                "/shared/mine",
                "",
                "",
                "2",
            ],
        ),
        (
            "conversations",
            [
                "",
                "talks.jsonl",
                "",
                "no",
                "machines",
                "",
                "10.0.0.1, 10.0.0.2",
                "/shared/mine",
                "NVIDIA-A40",
                "2, 3",
            ],
        ),
        ("text", ["", "text.txt", "", "", "", ""]),
        (
            "songs",
            [
                "",
                "songs.jsonl",
                "",
                "",
                "",
                "cluster",
                "meta-llama/Llama-3.2-1B-Instruct",
                "mine",
                "",
                "NVIDIA-L4",
                "",
            ],
        ),
        ("images", ["pictures", "", "", ""]),
    ],
    ids=["questions", "templates", "conversations", "numbers", "text", "songs", "images"],
)
def test_answers_and_options_give_the_same_recipe_byte_for_byte(here, monkeypatch, kind, answers):
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: ["NVIDIA-L40S"])
    asked = CliRunner().invoke(cli, ["new", "made"], input="\n".join([kind, *answers, ""]))
    assert asked.exit_code == 0, f"{asked.output}{asked.exception!r}"
    command = next(
        line for line in asked.output.splitlines() if line.startswith("  recipe new made")
    )
    first = (here / "made.yaml").read_bytes()
    (here / "made.yaml").unlink()
    monkeypatch.setattr(new, "terminal", lambda: False)
    assert _code(shlex.split(command)[1:]) == 0
    assert (here / "made.yaml").read_bytes() == first


def test_a_large_model_gets_four_bits_and_the_memory_it_needs(here):
    model = ("--model", "Qwen/Qwen3-14B", "--gpu", "NVIDIA-L4")
    assert _code(["new", "made", "--what", "conversations", "--data", "talks.jsonl", *model]) == 0
    recipe = load("made.yaml")[0]
    assert (recipe.train.adapter, recipe.machines.memory != "32 GB") == ("qlora", True)
    assert not Planned.of(recipe).problems


@pytest.mark.parametrize(
    ("base", "card", "adapter"),
    [
        ("Qwen/Qwen3.5-4B", "NVIDIA-L4", "lora"),
        ("Qwen/Qwen3.5-27B", "NVIDIA-L40S", "qlora"),
        ("google/gemma-4-E4B-it", "NVIDIA-L40S", "lora"),
        ("mistralai/Ministral-3-8B-Instruct-2512-BF16", "NVIDIA-L40S", "lora"),
    ],
)
def test_a_model_of_this_year_is_drafted_also_without_formulas(here, base, card, adapter):
    options = ("--what", "questions", "--data", "my.csv", "--model", base, "--gpu", card)
    assert _code(["new", "made", *options]) == 0
    recipe, problems = load("made.yaml")[:2]
    assert not [one for one in problems if one.severity == "error"]
    assert (recipe.model.base, recipe.train.adapter) == (base, adapter)


@pytest.mark.parametrize("base", ["Qwen/Qwen3.5-4B", "openai/gpt-oss-20b"])
def test_a_model_without_formulas_needs_a_named_gpu(here, base, capsys, golden_message):
    """Its time on a processor cannot be said, and the smallest card that it fits can."""
    asked = ("new", "made", "--what", "questions", "--data", "my.csv", "--model", base)
    assert _code([*asked, "--gpu", "none"]) == 1
    refused = capsys.readouterr().err
    golden_message(refused)
    assert not left(here)
    offered = re.search(r"`--gpu (\S+)`", refused)
    if offered:
        assert _code([*asked, "--gpu", offered[1]]) == 0


def test_a_model_without_formulas_is_refused_where_no_way_fits(here, capsys):
    model = ("--model", "Qwen/Qwen3.5-27B", "--gpu", "NVIDIA-L4")
    assert _code(["new", "made", "--what", "questions", "--data", "my.csv", *model]) == 1
    assert "`Qwen/Qwen3.5-27B` does not fit NVIDIA-L4" in capsys.readouterr().err
    assert not left(here)


def test_models_are_offered_by_year_and_by_what_fits_the_card():
    answers = Answers("questions")
    for card in ("", "NVIDIA-L4"):
        offered = [model.id for model, _ in choices(answers, card)]
        years = [catalog.release_year(name) for name in offered]
        assert years == sorted(years, reverse=True) and years[0] == 2026
        assert ("meta-llama/Llama-3.3-70B-Instruct" in offered) is not bool(card)


def test_a_model_without_room_is_said_and_nothing_is_left(here, capsys, golden_message):
    model = ("--model", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "NVIDIA-L4")
    assert _code(["new", "made", "--what", "conversations", "--data", "talks.jsonl", *model]) == 1
    golden_message(capsys.readouterr().err)
    assert not left(here)


@pytest.mark.parametrize(
    "wrong",
    [
        ("--data", "nothing.csv"),
        ("--data", "lonely.csv"),
        ("--data", "header.csv"),
        ("--what", "conversations", "--data", "my.csv"),
        ("--what", "questions", "--data", "preferences.jsonl"),
        ("--data", "labels.jsonl"),
        ("--data", "preferences.jsonl", "--question", "question"),
        ("--what", "songs", "--data", "preferences.jsonl"),
        ("--what", "text-questions-preferences", "--preferences", "my.csv"),
        ("--what", "questions-preferences", "--questions", "preferences.jsonl"),
        ("--what", "text-questions", "--data", "text.txt", "--preferences", "preferences.jsonl"),
        ("--what", "preferences", "--data", "lonely.csv"),
        (
            "--what",
            "preferences",
            "--data",
            "paare.jsonl",
            "--prompt",
            "frage",
            "--chosen",
            "besser",
        ),
        ("--what", "text", "--data", "text.txt", "--technique", "network"),
        ("--what", "songs", "--data", "asked.csv"),
        ("--what", "songs", "--data", "asked.csv", "--instruction-form", "A song like [artist]"),
        ("--data", "someone/rows"),
        (
            "--what",
            "text",
            "--data",
            "text.txt",
            "--where",
            "machines",
            "--addresses",
            "10.0.0.1",
            "--numbers",
            "2,2",
        ),
        ("--what", "musik"),
        ("--data", "my.csv", "--question", "Questoin"),
        ("--data", "my.csv", "--question", "For [Topic], [Question]"),
        ("--data", "my.csv", "--gpu", "L40S"),
        ("--data", "my.csv", "--gpus", "many"),
        ("--data", "my.csv", "--model", "Qwen/Qwen3-4C"),
        ("--data", "my.csv", "--hold-back", "maybe"),
        ("--what", "text", "--data", "text.txt", "--hold-back", "no"),
        ("--data", "my.csv", "--where", "moon"),
        ("--data", "my.csv", "--where", "cluster", "--namespace", "My Project"),
        ("--data", "my.csv", "--where", "cluster"),
        ("--data", "my.csv", "--namespace", "mine"),
        ("--what", "images", "--data", "pictures", "--where", "machines"),
        ("--model", "Qwen/Qwen3-4B"),
        ("--from", "minimal/lora", "--data", "my.csv"),
        ("--from", "survival", "--what", "questions", "--data", "my.csv"),
        ("--data", "my.csv", "--minimal"),
    ],
    ids=" ".join,
)
def test_a_wrong_answer_ends_with_a_sentence_and_leaves_nothing(
    here, capsys, golden_message, wrong
):
    assert _code(["new", "made", *wrong]) in (1, 2)
    golden_message(capsys.readouterr().err)
    assert not left(here)


def test_a_starter_is_copied_with_your_own_file_and_its_columns(here, monkeypatch, capsys):
    """Nobody is asked, in a terminal either, and the settings that teach stay those of the
    starter."""
    monkeypatch.setattr(new, "terminal", lambda: True)
    assert _code(["new", "made", "--from", "museum", "--data", "my.csv"]) == 0
    data = read("made.yaml").data
    assert (data["data"]["question"], data["data"]["answer"]) == ("[Question]", "[Reply]")
    assert data["data"]["path"] == "my.csv"
    assert data["train"] == read(ROOT / "recipes/museum.yaml").data["train"]
    assert "questions" not in data["demo"]
    assert capsys.readouterr().err.endswith("Next: recipe run made.yaml\n")


STARTERS = [path.stem for path in packaged.starters()]


@pytest.mark.parametrize("starter", STARTERS)
def test_a_copy_of_every_starter_is_made_by_questions_too(here, monkeypatch, starter):
    """With Enter for all that the starter says itself, byte for byte."""
    assert _code(["new", "made", "--from", starter]) == 0
    copied = (here / "made.yaml").read_bytes()
    (here / "made.yaml").unlink()
    assert _code(["new", "made", "--what", starter]) == 0
    assert (here / "made.yaml").read_bytes() == copied
    (here / "made.yaml").unlink()
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: ["NVIDIA-L40S"])
    asked = CliRunner().invoke(cli, ["new", "made"], input="\n".join([starter, *[""] * 12]))
    assert asked.exit_code == 0, f"{asked.output}{asked.exception!r}"
    assert (here / "made.yaml").read_bytes() == copied


HUB = "cahlen/offline-practical-skills-qa-synthetic"
# The five systems as answers, each with what the recipe then says.
SYSTEMS = {
    "last layers, a hub name, a system prompt": (
        f"--technique last-layers --data {HUB} --question 'For [topic], [question]' --answer answer "
        "--system-prompt 'You are a guide.' --where cluster --namespace mine --machines 4",
        {
            "scenario": "last-layers",
            "data.hub": HUB,
            "data.system_prompt": "You are a guide.",
            "machines.nodes": 4,
        },
    ),
    "songs on the hub": (
        "--what songs --data rajtripathi/5M-Songs-Lyrics --where cluster --namespace mine",
        {
            "scenario": "lora",
            "data.songs.lyrics": "Label",
            "data.songs.count": 90000,
            "openshift.namespace": "mine",
        },
    ),
    "songs that are asked for in other words": (
        "--what songs --data asked.csv --question Wish --answer Song "
        "--instruction-form 'A song like [artist], [genre] please'",
        {"data.songs.instruction": "Wish", "data.songs.lyrics": "Song"},
    ),
    "songs in a column each": (
        "--what songs --data apart.csv",
        {
            "data.question": "Generate a song verse in the style of [Artist] in the genre of [Genre].",
            "data.answer": "[Words]",
        },
    ),
    "plain text, GPUs by number": (
        "--what text --data Salesforce/wikitext:wikitext-2-raw-v1 --model google/gemma-3-270m --where machines "
        "--addresses 10.0.0.1,10.0.0.2 --gpu NVIDIA-A40 --numbers 2,3",
        {
            "scenario": "causal-lm",
            "data.subset": "wikitext-2-raw-v1",
            "nodes.machines.1.gpus": [2, 3],
            "machines.nodes": 2,
        },
    ),
    "an adapter on plain text": (
        "--what text --data text.txt --technique adapter",
        {"scenario": "lora", "data.path": "text.txt", "data.form": "text", "data.question": None},
    ),
    "all weights on questions": (
        "--data my.csv --technique all-weights --gpu NVIDIA-L40S",
        {
            "scenario": "full",
            "data.question": "[Question]",
            "model.base": "HuggingFaceTB/SmolLM2-360M-Instruct",
        },
    ),
    "last layers on songs": (
        "--what songs --data songs.jsonl --technique last-layers",
        {"scenario": "last-layers", "data.songs.lyrics": "Label", "data.question": None},
    ),
    "preferences": (
        "--what preferences --data preferences.jsonl --technique last-layers",
        {
            "scenario": "last-layers",
            "data.form": "preferences",
            "data.prompt": "[question]",
            "data.question": None,
        },
    ),
    "labels": (
        "--what preferences --data labels.jsonl --technique adapter",
        {
            "scenario": "lora",
            "data.label": "[label]",
            "train.objective": "kto",
            "data.question": None,
        },
    ),
    "preferences in columns of their own": (
        "--what preferences --data paare.jsonl --prompt frage --chosen besser --rejected [schlechter]",
        {"data.prompt": "[frage]", "data.chosen": "[besser]", "data.rejected": "[schlechter]"},
    ),
    "images on the hub": (
        "--what images --data uoft-cs/cifar10 --where cluster --namespace mine",
        {
            "scenario": "image-classification",
            "data.hub": "uoft-cs/cifar10",
            "openshift.namespace": "mine",
        },
    ),
    "a pipeline": (
        "--what text-questions-preferences --data text.jsonl --questions questions.jsonl --preferences preferences.jsonl",
        {
            "scenario": "stages",
            "stages.0.technique": "pretrain",
            "stages.0.data.path": "text.jsonl",
            "stages.0.data.column": "text",
            "stages.1.data.answer": "[response]",
            "stages.2.data.rejected": "[rejected]",
            "stages.2.data.hub": None,
        },
    ),
    "questions, then preferences, on two machines": (
        "--what questions-preferences --questions my.csv --preferences preferences.jsonl --model HuggingFaceTB/SmolLM2-135M-Instruct "
        "--where machines --addresses 10.0.0.1,10.0.0.2 --gpu NVIDIA-L4",
        {
            "scenario": "stages",
            "model.base": "HuggingFaceTB/SmolLM2-135M-Instruct",
            "stages.0.data.path": "my.csv",
            "stages.0.data.question": "[Question]",
            "stages.1.data.path": "preferences.jsonl",
            "stages.1.data.prompt": "[question]",
            "nodes.machines.1.address": "10.0.0.2",
            "machines.nodes": 2,
        },
    ),
    "conversations, then preferences": (
        "--what questions-preferences --questions talks.jsonl",
        {
            "stages.0.data.path": "talks.jsonl",
            "stages.0.data.question": None,
            "stages.1.data.hub": "Intel/orca_dpo_pairs",
        },
    ),
    "plain text, then questions": (
        "--what text-questions --data text.txt --questions my.csv --where here",
        {
            "scenario": "stages",
            "stages.0.data.path": "text.txt",
            "stages.0.data.form": "text",
            "stages.1.data.path": "my.csv",
            "stages.1.data.answer": "[Reply]",
            "openshift": None,
        },
    ),
    "a starter of stages, with rows of one's own": (
        "--what sft-dpo --preferences preferences.jsonl --where here",
        {
            "stages.0.data.hub": "databricks/databricks-dolly-15k",
            "stages.1.data.path": "preferences.jsonl",
        },
    ),
    "seven-b with preferences of one's own": (
        "--what seven-b --preferences preferences.jsonl --namespace mine",
        {
            "stages.2.data.path": "preferences.jsonl",
            "stages.2.data.prompt": "[question]",
            "machines.gpus_per_node": 8,
        },
    ),
    "survival on this machine, with rows of one's own": (
        "--what survival --data my.csv --where here",
        {"data.question": "[Question]", "train.last_layers": 2, "openshift": None, "serve": None},
    ),
    "gemma on a cluster": (
        "--what gemma --where cluster --namespace mine",
        {"nodes": None, "openshift.namespace": "mine", "machines.nodes": 2},
    ),
}


@pytest.mark.parametrize("case", SYSTEMS)
def test_each_of_the_five_systems_is_made_by_answers(here, capsys, monkeypatch, case):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    answers, wanted = SYSTEMS[case]
    assert _code(["new", "made", *shlex.split(answers)]) == 0, capsys.readouterr().err
    document = read(here / "made.yaml")
    for setting, value in wanted.items():
        assert document.lookup(Override(setting).path) == value, setting
    assert _code(["check", "made.yaml"]) == 0, capsys.readouterr().out


def test_every_answer_is_an_option(here):
    known = {option for param in new.new.params for option in param.opts}
    asked = new.QUESTIONS
    assert {one.option for one in asked} <= known
    assert {one.name for one in asked} == {field.name for field in fields(Answers)} - {"sets"}


def test_back_leads_out_of_every_question(here, monkeypatch, golden_message):
    """Also out of a file that is of no use for what was said before, and from the machines to the
    data."""
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: ["NVIDIA-L40S"])
    said = [
        "back",
        "questions",
        "adapter",
        "preferences.jsonl",
        "lonely.csv",
        "back",
        "back",
        "text",
        "",
        "lonely.csv",
    ]
    said += [
        "Wards",
        "Words",
        *["back"] * 4,
        "questions",
        "adapter",
        "my.csv",
        "Reply",
        "back",
        "Question",
        "Reply",
    ]
    said += [
        "",
        "",
        "",
        "cluster",
        "",
        "My Project",
        *["back"] * 9,
        "text-questions-preferences",
        "",
        "questions.jsonl",
        "my.csv",
    ]
    said += ["preferences.jsonl", "here", "", ""]
    done = CliRunner().invoke(cli, ["new", "made"], input="\n".join([*said, ""]))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    golden_message(done.output)


def test_a_wrong_setting_beside_answers_ends_it_in_a_terminal_too(
    here, monkeypatch, golden_message
):
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: ["NVIDIA-L40S"])
    said = ["questions", "", "my.csv", *[""] * 7, "NVIDIA-L4", ""]
    done = CliRunner().invoke(
        cli, ["new", "made", "--set", "train.epocs=3"], input="\n".join([*said, ""])
    )
    assert isinstance(done.exception, Stop) and not left(here)
    golden_message(done.exception.text)


def test_columns_of_a_data_set_that_nobody_knows_are_typed(here, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: ["NVIDIA-L40S"])
    said = [
        "questions",
        "",
        "someone/rows",
        "For [about], [ask]",
        "say",
        "",
        "",
        "",
        "",
        "NVIDIA-L4",
        "",
    ]
    done = CliRunner().invoke(cli, ["new", "made"], input="\n".join([*said, ""]))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    data = read(here / "made.yaml").data["data"]
    assert data == {"hub": "someone/rows", "question": "For [about], [ask]", "answer": "[say]"}


@pytest.mark.parametrize("named", ["wikitext", "wikitext:wikitext-2-raw-v1"])
def test_a_data_set_without_its_owner_is_offered_by_its_whole_name(
    here, capsys, named, golden_message
):
    assert _code(["new", "made", "--what", "text", "--data", named]) == 1
    golden_message(capsys.readouterr().err)
    assert not left(here)


def test_without_a_terminal_and_without_answers_from_is_missing(here, capsys, golden_message):
    assert _code(["new", "made"]) == 2
    golden_message(capsys.readouterr().err)


def test_wrong_answers_are_asked_again_with_a_sentence(here, monkeypatch, golden_message):
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    monkeypatch.setattr("runner.parts.start.commands.doctor.labels", lambda: ["NVIDIA-L40S"])
    said = [
        "musik",
        "questions",
        "network",
        "adapter",
        "nothing.csv",
        "header.csv",
        "lonely.csv",
        "my.csv",
        "Questoin",
        "Question",
        "Reply",
        "",
    ]
    said += [
        "maybe",
        "yes",
        "perhaps",
        "y",
        "moon",
        "here",
        "Qwen/Qwen3-4C",
        "meta-llama/Llama-3.3-70B-Instruct",
        "cpu",
        "NVIDIA-L4",
        "0",
        "1",
    ]
    # It has no room there, so model and GPU are asked again.
    said += ["here", "Qwen/Qwen3-4B", "NVIDIA-L4", "1"]
    done = CliRunner().invoke(cli, ["new", "made"], input="\n".join([*said, ""]))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    golden_message(done.output)
    assert left(here) == {"made.yaml", "lora.schema.json"}


class Terminal:
    """`recipe new made` behind a pseudo-terminal: `answer` waits for a question and types."""

    def __init__(self, folder) -> None:
        self.pid, self.end = pty.fork()
        if not self.pid:
            os.chdir(folder)
            os.environ |= {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb"}
            os.execv(sys.executable, [sys.executable, "-m", "runner", "new", "made"])
        self.said = ""

    def _read(self, key: str = "") -> bool:
        """False at the end. key: typed again while nothing is said."""
        limit = time.monotonic() + 120
        while not select.select([self.end], [], [], 2)[0]:
            assert time.monotonic() < limit, f"nothing more is said after:\n{self.said}"
            os.write(self.end, key.encode())
        try:
            piece = os.read(self.end, 65536)
        except OSError:
            return False
        self.said += piece.decode(errors="replace").replace("\r", "")
        return bool(piece)

    def answer(self, question: str, text: str) -> None:
        limit = time.monotonic() + 120
        while question not in self.said.rpartition("\0")[2]:
            assert time.monotonic() < limit and self._read(), (
                f"`{question}` is not asked:\n{self.said}"
            )
        self.said += "\0"
        os.write(self.end, text.encode())

    def close(self, key: str = "") -> int:
        limit = time.monotonic() + 120
        # A signal that comes just before readline waits is seen at the next key.
        while self._read(key):
            assert time.monotonic() < limit, f"it does not end:\n{self.said}"
        os.close(self.end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_here_means_the_cpu_of_a_machine_without_a_gpu(here, monkeypatch, capsys, golden_message):
    """No question about a GPU, and only models that this machine can train in a day, with their
    time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    card = Gpu(
        PROCESSOR,
        "Some with 4 threads",
        16,
        16.0,
        "0.0",
        90.0,
        "host",
        1.0,
        "torch 2",
        fp32_tflops=0.2,
    )
    cache_folder().mkdir(parents=True)
    monkeypatch.setattr(
        processor, "measure", lambda: write_json(cache_folder() / MEASURED, asdict(card))
    )
    monkeypatch.setattr("runner.parts.start.commands.new.terminal", lambda: True)
    asked = []

    def prompt(question, default=None, **_):
        asked.append(question)
        return "my.csv" if "Where is your data" in question else default or ""

    monkeypatch.setattr("click.prompt", prompt)
    assert _code(["new", "made"]) == 0
    assert not [question for question in asked if "GPU" in question]
    shown = capsys.readouterr().out
    golden_message(shown[shown.index("MODEL") : shown.index("elsewhere.") + len("elsewhere.")])
    recipe = load("made.yaml")[0]
    assert (recipe.machines.gpu, recipe.model.base) == ("none", "small")
    command = next(line for line in shown.splitlines() if line.startswith("  recipe new made"))
    first = (here / "made.yaml").read_bytes()
    (here / "made.yaml").unlink()
    monkeypatch.setattr("runner.parts.start.commands.new.terminal", lambda: False)
    assert _code(shlex.split(command)[1:]) == 0
    assert (here / "made.yaml").read_bytes() == first, "the printed command makes the same recipe"
    assert _code(["plan", "made.yaml"]) == 0


@pytest.mark.parametrize(
    ("options", "gpu", "base"),
    [
        (["--data", "my.csv", "--where", "here"], "none", "small"),
        (["--data", "my.csv"], "none", "small"),
        (["--data", "my.csv", "--model", "Qwen/Qwen3-0.6B"], "none", "Qwen/Qwen3-0.6B"),
        (["--data", "my.csv", "--gpus", "1"], "NVIDIA-L4", "microsoft/Phi-4-mini-instruct"),
        (["--what", "images", "--data", "pictures", "--where", "here"], "none", None),
    ],
    ids=["here", "nothing", "a model", "GPUs", "images"],
)
def test_options_without_a_gpu_mean_the_cpu_of_a_machine_without_one(here, options, gpu, base):
    assert _code(["new", "made", *options]) == 0
    document = read(here / "made.yaml")
    assert document.lookup(Override("machines.gpu").path) == gpu
    assert document.lookup(Override("model.base").path) == base
    assert _code(["check", "made.yaml"]) == 0


@pytest.mark.parametrize("kind", ["questions", "conversations"])
@pytest.mark.parametrize(
    ("options", "share"), [([], None), (["--hold-back", "yes"], None), (["--hold-back", "no"], 0)]
)
def test_rows_with_answers_are_held_back_unless_the_answer_is_no(
    here, capsys, kind, options, share
):
    assert _code(["new", "made", "--what", kind, *KINDS[kind], *options]) == 0
    document = read("made.yaml").data
    assert document["data"].get("validation_share") == share and "demo" not in document
    assert _code(["check", "made.yaml"]) == 0
    assert _code(["plan", "made.yaml", "--set", "machines.gpu=NVIDIA-L4"]) == 0


def test_a_starter_is_copied_without_rows_held_back(here):
    answers = ["--from", "museum", "--data", "my.csv", "--hold-back", "no"]
    assert _code(["new", "made", *answers]) == 0
    assert load("made.yaml")[0].data.validation_share == 0


def questions_file(count: int) -> None:
    rows = (f"What is {number} plus 7?,It is {number + 7}" for number in range(count))
    Path("sums.csv").write_text("\n".join(["question,answer", *rows]) + "\n")


@pytest.mark.parametrize(
    ("count", "options", "epochs"),
    [
        (60, ["--model", "small"], 10),
        (60, ["--model", "small", "--gpu", "NVIDIA-L4"], 10),
        (60, ["--model", "HuggingFaceTB/SmolLM2-360M-Instruct"], 10),
        (900, [], 8),
    ],
    ids=["small", "small on a GPU", "another small model", "many rows"],
)
def test_a_small_model_gets_the_settings_that_taught_the_museum(here, count, options, epochs):
    questions_file(count)
    assert _code(["new", "made", "--data", "sums.csv", *options]) == 0
    made, museum = (read(file).data for file in ("made.yaml", ROOT / "recipes/museum.yaml"))
    measured = {
        name: value
        for name, value in museum["train"].items()
        if name not in ("epochs", "seed", "logging_steps")
    }
    assert made["train"] == {**measured, "epochs": epochs}
    assert made["model"]["gradient_checkpointing"] is False
    assert _code(["check", "made.yaml"]) == 0


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (60, ["--model", "HuggingFaceTB/SmolLM2-360M-Instruct", "--gpu", "NVIDIA-L4"]),
        (60, ["--model", "Qwen/Qwen3-0.6B"]),
        (60, ["--technique", "last-layers"]),
        (2300, []),
    ],
    ids=["a GPU", "a larger model", "another technique", "thousands of rows"],
)
def test_settings_that_were_not_measured_stay_those_of_the_starter(here, count, options):
    questions_file(count)
    assert _code(["new", "made", "--data", "sums.csv", *options]) == 0
    train = read("made.yaml").data.get("train", {})
    assert not {"epochs", "learning_rate", "lora_rank"} & train.keys()


@pytest.mark.long
def test_a_terminal_is_asked_and_shows_three_rows_as_the_model_will_see_them(here):
    terminal = Terminal(here)
    terminal.answer("What data do you have", "\n")
    terminal.answer("What do you want to train", "\n")
    terminal.answer("Where is your data", "my.csv\n")
    terminal.answer("Which question does the model get", "\n")
    terminal.answer("Which answer should it learn", "\n")
    terminal.answer("who is the model", "\n")
    terminal.answer("Hold back a tenth", "\n")
    terminal.answer("Is that a question with its answer", "\n")
    terminal.answer("Where should it train", "\n")
    terminal.answer("Which model", "\n")
    assert terminal.close() == 0, terminal.said
    for row in ROWS[:3]:
        assert (
            f"<|user|>{row['question']}<|end|><|assistant|>{row['answer'][:100]}" in terminal.said
        )
    # A real terminal on a machine without a GPU, as the tests' machines are, offers what its CPU
    # can train.
    assert "TIME HERE" in terminal.said and "Larger models need a GPU elsewhere." in terminal.said
    assert left(here) == {"made.yaml", "lora.schema.json"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("key", "code", "words"),
    [
        ("\x03", 130, "Stopped by ^C."),
        ("\x04", 1, "The input ended before the question was answered"),
    ],
    ids=["interrupt", "end of input"],
)
def test_an_end_in_the_middle_leaves_nothing_and_no_trace(here, key, code, words):
    terminal = Terminal(here)
    terminal.answer("What data do you have", "\n")
    terminal.answer("What do you want to train", "\n")
    terminal.answer("Where is your data", key)
    assert terminal.close(key) == code, terminal.said
    assert words in terminal.said and "Traceback" not in terminal.said
    assert not left(here)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_answers_make_rehearses(here, capsys, kind):
    assert _code(["new", "made", "--what", kind, *KINDS[kind], "--gpu", "NVIDIA-L40S"]) == 0
    assert _code(["rehearse", "made.yaml"]) == 0, capsys.readouterr()


def test_a_copy_for_songs_in_columns_of_their_own_asks_by_them(here, capsys):
    """The starter's own songs have one column that asks for each."""
    lines = [f"Artist {n},folk,Oak and ash under the moon {n}" for n in range(9)]
    Path("songs.csv").write_text("\n".join(["Artist,Genre,Lyrics", *lines]))
    assert _code(["new", "mine", "--from", "lyrics", "--set", "data.path=songs.csv"]) == 0
    data = yaml.safe_load(Path("mine.yaml").read_text("utf-8"))["data"]
    assert (
        data["question"]
        == "Generate a song verse in the style of [Artist] in the genre of [Genre]."
    )
    assert data["answer"] == "[Lyrics]" and "songs" not in data
    assert _code(["check", "mine.yaml"]) == 0


def test_a_copy_whose_questions_name_the_columns_has_no_songs(here):
    """Brackets on the command line are columns, as in the recipe, and no list."""
    Path("lieder.csv").write_text(
        "Interpret,Stil,Text\n" + "".join(f"A{n},Rock,Eiche und Mond {n}\n" for n in range(9))
    )
    assert _code(["new", "mine", "--from", "lyrics", "--set", "data.path=lieder.csv"]) == 1
    question = "Schreibe ein Lied wie [Interpret], Stil [Stil]"
    sets = ("data.path=lieder.csv", f"data.question={question}", "data.answer=[Text]")
    assert (
        _code(
            ["new", "mine", "--from", "lyrics", *(word for one in sets for word in ("--set", one))]
        )
        == 0
    )
    copy = yaml.safe_load(Path("mine.yaml").read_text("utf-8"))
    assert (
        copy["data"]["question"] == question
        and copy["data"]["answer"] == "[Text]"
        and "songs" not in copy["data"]
    )
    assert copy["description"] == (
        "Phi-4-mini-instruct learns from lieder.csv, planned for one NVIDIA-L40S (a copy of lyrics)"
    )
    question = "[Interpret]: ein Lied?"
    assert _code(["check", "mine.yaml", "--set", f"data.question={question}"]) == 0
    assert (
        load(Path("mine.yaml"), changes(["data.answer=[Stil]"]))[0].settings.data.answer == "[Stil]"
    )


def test_a_copy_that_cannot_be_written_says_so(here, capsys, golden_message):
    """Its errors name lines of a file that is not there."""
    Path("fragen.csv").write_text(
        "Nummer,Antwort\n" + "".join(f"{n},Es ist {n}\n" for n in range(9))
    )
    assert _code(["new", "mine", "--from", "minimal/lora", "--set", "data.path=fragen.csv"]) == 1
    assert not Path("mine.yaml").exists()
    golden_message(capsys.readouterr().err)


def test_a_copy_with_other_stages_data_takes_no_sample_that_it_does_not_name(here):
    Path("pairs.jsonl").write_text(
        "".join(
            json.dumps({"question": f"q{n}", "chosen": "a", "rejected": "b"}) + "\n"
            for n in range(9)
        )
    )
    assert (
        _code(["new", "mine", "--from", "sft-dpo", "--set", "stages.1.data.path=pairs.jsonl"]) == 0
    )
    assert [file.name for file in Path("data").iterdir()] == ["seven-b-questions.jsonl"]
    assert (
        yaml.safe_load(Path("mine.yaml").read_text("utf-8"))["description"]
        == "Qwen2.5-7B-Instruct learns from databricks-dolly-15k and pairs.jsonl, planned for one NVIDIA-L40S (a copy of sft-dpo)"
    )


def test_a_copy_takes_the_columns_of_its_own_questions(here):
    Path("bienen.csv").write_text(
        "Nr,Frage,Antwort,Wer,Bemerkung\n"
        + "".join(
            f"{n},Was ist Biene {n}?,Es ist Biene {n} aus dem Volk.,Eva,\n" for n in range(30)
        )
    )
    assert _code(["new", "mine", "--from", "minimal/lora", "--set", "data.path=bienen.csv"]) == 0
    data = load(Path("mine.yaml"))[0].settings.data
    assert (data.question, data.answer) == ("[Frage]", "[Antwort]")


def test_what_is_in_the_columns_decides_and_not_the_first_and_the_last(here):
    rows = [
        {"id": f"q{n}", "created": "2026-11-01", "y": f"Why {n}?", "x": f"Because of {n} bees."}
        for n in range(30)
    ]
    Path("chats.jsonl").write_text(
        "".join(json.dumps(row | {"state": "new"}) + "\n" for row in rows)
    )
    assert _code(["new", "mine", "--data", "chats.jsonl", "--model", "small"]) == 0
    data = load(Path("mine.yaml"))[0].settings.data
    assert (data.question, data.answer) == ("[y]", "[x]")


def test_columns_without_questions_and_answers_are_refused(here, capsys, golden_message):
    """Nobody wants a model that answers a title with a number."""
    chats = [{"title": f"Chat {n}", "create_time": 1.5e9, "id": f"c{n}"} for n in range(30)]
    Path("conversations.json").write_text(json.dumps(chats))
    assert _code(["new", "mine", "--data", "conversations.json", "--model", "small"]) == 1
    golden_message(capsys.readouterr().err)
    assert not Path("mine.yaml").exists()


def test_columns_that_say_nothing_are_named_by_options(here):
    prices = "\n".join(f"Honey of garden {number},{number}.50" for number in range(40))
    Path("prices.csv").write_text(f"name,price\n{prices}\n")
    options = ["--data", "prices.csv", "--model", "small"]
    assert _code(["new", "mine", *options, "--question", "name", "--answer", "price"]) == 0
    data = load(Path("mine.yaml"))[0].settings.data
    assert (data.question, data.answer) == ("[name]", "[price]")


def test_columns_that_say_nothing_are_asked_in_a_terminal(here, monkeypatch):
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.trained_here", lambda name, answers: [])
    prices = "\n".join(f"Honey of garden {number},{number}.50" for number in range(40))
    Path("prices.csv").write_text(f"name,price\n{prices}\n")
    said = ["questions", "", "prices.csv", "cost", "name", "price", "", "yes", "", "here", "small"]
    done = CliRunner().invoke(cli, ["new", "mine"], input="\n".join([*said, ""]))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    assert "`prices.csv` has no column `cost`." in done.output
    assert "The model will learn: “Honey of garden 0” → “0.50”" in done.output
    data = load(Path("mine.yaml"))[0].settings.data
    assert (data.question, data.answer) == ("[name]", "[price]")


def test_the_person_who_answers_in_a_chat_is_asked_in_a_terminal(here, monkeypatch):
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.trained_here", lambda name, answers: [])
    lines = []
    for number in range(60):
        lines += [f"Anna: How old is hive {number}?", f"Ben: Hive {number} is {number} days old."]
    Path("talk.txt").write_text("\n".join(lines))
    said = ["conversations", "", "talk.txt", "Carla", "Anna", "", "", "here", "small"]
    done = CliRunner().invoke(cli, ["new", "mine"], input="\n".join([*said, ""]))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    assert "`Carla` is not a valid name in this chat." in done.output
    assert load(Path("mine.yaml"))[0].settings.data.answered_by == "Anna"


def test_a_short_text_gets_short_blocks(here):
    paragraphs = [f"The queen of hive {number} walked over the comb. " * 3 for number in range(60)]
    Path("story.txt").write_text("\n\n".join(paragraphs))
    assert _code(["new", "story", "--data", "story.txt", "--model", "small"]) == 0
    settings = load(Path("story.yaml"))[0].settings
    assert settings.model.sequence_len == 128
    assert settings.data.validation_share == 0.1
    Path("note.txt").write_text(paragraphs[0] * 6)
    assert _code(["new", "note", "--data", "note.txt", "--model", "small"]) == 0
    settings = load(Path("note.yaml"))[0].settings
    assert settings.model.sequence_len == 64
    assert settings.data.validation_share is None


def test_a_text_of_a_few_words_is_refused(here, capsys):
    Path("note.txt").write_text("The queen walked over the comb.")
    assert _code(["new", "note", "--data", "note.txt", "--model", "small"]) == 1
    assert "`note.txt` is too short to train on." in capsys.readouterr().err
    assert not Path("note.yaml").exists()


def test_rows_that_cannot_be_used_are_allowed_and_shown(here, capsys):
    rows = [f"Why {number}?,{'' if number % 3 else 'Because of bees.'}" for number in range(40)]
    Path("half.csv").write_text("\n".join(["question,answer", *rows[:30], *(rows[::3] * 3)]))
    assert _code(["new", "half", "--data", "half.csv", "--model", "small"]) == 0
    assert "20 will be left out" in capsys.readouterr().out
    assert load(Path("half.yaml"))[0].settings.data.max_lost_share == 0.28


def half_empty_file() -> None:
    """A file whose likely answers are mostly empty, beside a column without empty cells."""
    rows = ["question,answer,reply"]
    for number in range(20):
        answer = "" if number % 4 else "It is a number with quite a long answer."
        rows.append(f"What is the number {number} of the list?,{answer},A reply to {number}.")
    Path("lost.csv").write_text("\n".join(rows))


LOST_COLUMNS = ("--question", "[question]", "--answer", "[answer]")
LOST_SETTINGS = ("--set", "data.question=[question]", "--set", "data.answer=[answer]")
LOST_COMMANDS = {
    "options": ("--data", "lost.csv", *LOST_COLUMNS),
    "settings": ("--data", "lost.csv", *LOST_SETTINGS),
    "copy with options": ("--from", "museum", "--data", "lost.csv", *LOST_COLUMNS),
    "copy with settings": ("--from", "museum", "--set", "data.path=lost.csv"),
}


@pytest.mark.parametrize("case", LOST_COMMANDS)
def test_what_a_refusal_of_lost_rows_recommends_works(here, capsys, case):
    half_empty_file()
    command = ["new", "made", *LOST_COMMANDS[case]]
    assert _code(command) == 1
    recommended = re.search(r"with `(max_lost_share): ([\d.]+)`", capsys.readouterr().err)
    assert recommended and not Path("made.yaml").exists()
    setting, value = recommended.groups()
    assert _code([*command, "--set", f"data.{setting}={value}"]) == 0
    assert load(Path("made.yaml"))[0].settings.data.max_lost_share == float(value)


@pytest.mark.parametrize("case", LOST_COMMANDS)
def test_another_column_counts_before_lost_rows_are_refused(here, capsys, case):
    half_empty_file()
    command = [word.replace("[answer]", "[reply]") for word in LOST_COMMANDS[case]]
    if case == "copy with settings":
        command += ["--set", "data.answer=[reply]"]
    assert _code(["new", "made", *command]) == 0
    assert load(Path("made.yaml"))[0].data.answer == "[reply]"


@pytest.mark.parametrize("case", LOST_COMMANDS)
def test_a_nonsense_setting_is_refused_beside_lost_rows(here, capsys, case):
    half_empty_file()
    command = ["new", "made", *LOST_COMMANDS[case], "--set", "nonsense.foo=1"]
    assert _code(command) == 1
    assert "`nonsense` is not a setting of a recipe." in capsys.readouterr().err
    assert not Path("made.yaml").exists()


def calls_file() -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"town": "Bath"}}}
    lines = []
    for number in range(12):
        turns = [
            {"role": "user", "content": f"What is the weather in town {number}?"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "a", **call}]},
            {"role": "tool", "tool_call_id": "a", "content": "sunny"},
            {"role": "assistant", "content": f"It is sunny in town {number}."},
        ]
        lines.append(json.dumps({"messages": turns}))
    Path("calls.jsonl").write_text("\n".join(lines))


def test_tool_calls_need_the_models_own_template_which_an_option_chooses(
    here, capsys, golden_message
):
    calls_file()
    command = ["new", "made", "--data", "calls.jsonl", "--model", "Qwen/Qwen3-0.6B"]
    assert _code(command) == 1
    golden_message(capsys.readouterr().err)
    assert not Path("made.yaml").exists()
    assert _code([*command, "--set", "data.chat_template=tokenizer_default"]) == 0
    assert load(Path("made.yaml"))[0].data.chat_template == "tokenizer_default"


def test_the_options_count_for_rows_that_a_terminal_shows(here, monkeypatch):
    calls_file()
    monkeypatch.setattr(new, "terminal", lambda: True)
    monkeypatch.setattr("runner.parts.start.drafting.choices", lambda *_: [])
    command = ["new", "made", "--model", "Qwen/Qwen3-0.6B"]
    command += ["--set", "data.chat_template=tokenizer_default"]
    said = ["conversations", "", "calls.jsonl", *[""] * 6]
    done = CliRunner().invoke(cli, command, input="\n".join(said))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    assert "chatml" not in done.output


REFUSED = {
    "lost rows": ("made", "--data", "lost.csv", *LOST_COLUMNS),
    "lost rows of a copy": ("made", "--from", "museum", "--set", "data.path=lost.csv"),
    "nonsense": ("made", "--data", "my.csv", "--set", "nonsense.foo=1"),
    "nonsense in a copy": ("made", "--from", "museum", "--set", "nonsense.foo=1"),
    "tool calls": ("made", "--data", "calls.jsonl", "--model", "Qwen/Qwen3-0.6B"),
    "a wrong name": ("My Demo", "--data", "my.csv"),
    "a name that exists": ("there", "--data", "my.csv"),
    "a file that is not there": ("made", "--data", "mi.csv"),
    "a starter that is not there": ("made", "--from", "musem"),
    "columns that say nothing": ("made", "--data", "people.csv"),
    "a wrong column": ("made", "--data", "my.csv", "--question", "[Wish]", "--answer", "[Reply]"),
    "preferences": ("made", "--data", "preferences.jsonl", "--what", "questions"),
    "labels": ("made", "--data", "labels.jsonl", "--what", "questions"),
    "one column": ("made", "--data", "lonely.csv"),
    "an option too many": ("made", "--data", "my.csv", "--namespace", "mine"),
    "no model without a gpu": ("made", "--data", "my.csv", "--model", "Qwen/Qwen3.5-4B"),
}
# What no other option can make a recipe of.
WITHOUT_A_WAY = {
    "no file of that name": ("made", "--data", "nothing-like-it.csv"),
    "a header alone": ("made", "--data", "header.csv"),
    "no data": ("made", "--model", "Qwen/Qwen3-4B"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_command_after_a_refusal_works_as_it_is(here, capsys, case):
    half_empty_file()
    calls_file()
    Path("there.yaml").write_text("name: there\n")
    people = [f"Anna {letter},Berg {letter}" for letter in "abcdefghijklm"]
    Path("people.csv").write_text("\n".join(["Vorname,Nachname", *people]))
    assert _code(["new", *REFUSED[case]]) != 0
    recipes = {path.name for path in Path().glob("*.yaml")}
    assert recipes == {"there.yaml"}
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("Next: recipe new ")
    assert _code(shlex.split(last.removeprefix("Next: recipe "))) == 0
    assert len(list(Path().glob("*.yaml"))) == 2


@pytest.mark.parametrize("case", WITHOUT_A_WAY)
def test_a_refusal_without_a_way_out_proposes_no_command(here, capsys, case):
    assert _code(["new", *WITHOUT_A_WAY[case]]) != 0
    assert "Next:" not in capsys.readouterr().err
